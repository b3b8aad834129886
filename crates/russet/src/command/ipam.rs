//! `russet ipam`: addresses in the store of the node's settings, for operators. One module per
//! verb.

mod check;
mod configure;
mod release;
mod repair;
mod show;
mod split;
mod who;
mod why;

use std::process::ExitCode;

use super::place::Place;
use super::{Failure, runtime};
use crate::cli::ipam::{IpamArgs, IpamVerb};

/// Runs one verb.
pub fn run(args: IpamArgs) -> Result<ExitCode, Failure> {
    runtime()?.block_on(async {
        let verb = match args.verb {
            // Keeps no store open while it waits for its second check.
            IpamVerb::Repair(verb) => return repair::run(args.place, verb).await,
            verb => verb,
        };
        let place = Place::open(args.place).await?;
        match verb {
            IpamVerb::Repair(_) => unreachable!("it was taken care of"),
            IpamVerb::Show(args) => show::run(&place, args).await.map(|()| ExitCode::SUCCESS),
            IpamVerb::Who(args) => who::run(&place, args).await,
            IpamVerb::Why(args) => why::run(&place, args).await,
            IpamVerb::Check(args) => check::run(&place, args).await,
            IpamVerb::Release(args) => release::run(&place, args).await,
            IpamVerb::Split(args) => split::run(&place, args).await.map(|()| ExitCode::SUCCESS),
            IpamVerb::Configure(args) => configure::run(&place, args).await.map(|()| ExitCode::SUCCESS),
        }
    })
}
