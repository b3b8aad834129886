//! `russet migrate`: data of other programs, carried over.

mod calico_v1;

use std::process::ExitCode;

use super::{Failure, runtime};
use crate::cli::migrate::{MigrateArgs, MigrateVerb};

/// Runs one verb.
pub fn run(args: MigrateArgs) -> Result<ExitCode, Failure> {
    match args.verb {
        MigrateVerb::CalicoV1(args) => runtime()?.block_on(calico_v1::run(args)),
    }
}
