//! The executable that container runtimes run for every pod: it relays the request to the agent.
//!
//! It links only `addr` and `cni`, so that it starts in well under a millisecond.

// It reads what a container runtime sends: none of that may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

use std::process::ExitCode;

use russet_cni_spec::relay;

fn main() -> ExitCode {
    relay::main(std::env::args_os(), relay::Executable::Plugin)
}
