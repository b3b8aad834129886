//! `russet version`.

use serde::Serialize;

use super::Failure;
use crate::cli::OutputArgs;
use crate::output;

/// Versions of this build and of its interfaces; `schema` grows when a member changes its meaning.
#[derive(Serialize)]
struct Version {
    schema: u32,
    version: &'static str,
    cni_versions: Vec<String>,
    agent_protocol: u32,
    datastores: [&'static str; 3],
}

/// Prints the version.
pub fn run(args: OutputArgs) -> Result<(), Failure> {
    let version = Version {
        schema: 1,
        version: env!("CARGO_PKG_VERSION"),
        cni_versions: russet_cni_spec::Version::ALL.iter().map(ToString::to_string).collect(),
        agent_protocol: russet_cni_spec::relay::RelayRequest::VERSION,
        datastores: ["embedded", "unix", "etcd"],
    };
    output::print_as(args.format, &version, || {
        format!("russet {}\nCNI {}\n", version.version, version.cni_versions.join(" "))
    });
    Ok(())
}
