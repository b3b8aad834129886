//! The command line of `russet netavark`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::store::StoreChoice;

/// What `--help` ends with.
pub const EXAMPLES: &str = "Examples:
  ln -s /usr/local/bin/russet /usr/local/libexec/netavark/russet    from now on it is a driver of podman
  podman network create --driver russet blue
  podman run --network blue --publish 8080:80 IMAGE
  russet netavark info
  russet netavark setup /run/netns/c1 < request.json        what netavark calls for each container
  russet netavark teardown /run/netns/c1 < request.json

podman and netavark start a plugin by its whole path, as `/usr/local/libexec/netavark/russet setup NETNS`: the words of the API come first then,
without `netavark`. The request is JSON on standard input, the answer JSON on standard output; an error is {\"error\": \"...\"} with exit code 1.

Exit codes: 0 done; 1 refused or failed; 2 usage. docs/netavark.md.";

#[derive(Debug, Args)]
pub struct NetavarkArgs {
    #[command(flatten)]
    pub place: StoreChoice,
    #[command(subcommand)]
    pub verb: NetavarkVerb,
}

#[derive(Debug, Subcommand)]
pub enum NetavarkVerb {
    /// Check a new network, and print it as it is to be kept. `podman network create` calls it.
    Create,
    /// Attach a container to a network, and print its interface.
    Setup {
        /// Path of the container's network namespace.
        #[arg(value_name = "NETNS")]
        netns: PathBuf,
    },
    /// Detach a container from a network. It succeeds again, and where nothing is attached.
    Teardown {
        /// Path of the container's network namespace, which may be gone.
        #[arg(value_name = "NETNS")]
        netns: PathBuf,
    },
    /// Print the version of Russet and that of the API.
    Info,
}
