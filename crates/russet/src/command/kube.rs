//! `russet kube check`: what of other networks stands in Russet's way (kubernetes.md section 5.6).

pub(super) mod cluster;
pub(super) mod node;

use std::path::PathBuf;
use std::process::ExitCode;

use russet_agent::StoreLocation;
use russet_kube::Client;

use super::findings::Findings;
use super::{Failure, runtime};
use crate::cli::kube::{KubeArgs, KubeVerb};
use crate::output;

/// A store that is not the Kubernetes API.
#[derive(Debug, thiserror::Error)]
#[error("a cluster is named by kubernetes:FILE or kubernetes:in-cluster, not {0}")]
struct NotKubernetes(StoreLocation);

/// Runs a verb of `russet kube`.
pub fn run(args: KubeArgs) -> Result<ExitCode, Failure> {
    let KubeVerb::Check(args) = args.verb;
    let mut report = Findings { schema: 1, looked_at: vec!["node"], ..Findings::default() };
    let under = |path: PathBuf| args.root.join(path.strip_prefix("/").unwrap_or(&path));
    node::look(&under(args.cni_conf_dir.clone()), &under(node::HOST_LOCAL.into()), &mut report);
    match &args.store {
        Some(StoreLocation::Kubernetes(location)) => {
            let client = Client::new(location.source())?;
            runtime()?.block_on(cluster::look(&client, &mut report));
            report.looked_at.push("cluster");
        }
        Some(other) => return Err(NotKubernetes(other.clone()).into()),
        None => {}
    }
    output::print_as(args.output.format, &report, || text(&report));
    Ok(report.exit_code())
}

fn text(report: &Findings) -> String {
    let text = report.text("nothing found that stands in Russet's way");
    match report.looked_at.contains(&"cluster") {
        true => text,
        false => text + "the cluster was not looked at: give --store kubernetes:FILE\n",
    }
}
