//! `russet migrate flannel-v2`: reads the network config and the leases behind etcd's v2 API, compares them with what the new store has, writes what is
//! missing, and reads it back. The config comes last: without it no daemon takes a subnet from the new store while leases are still missing there.

mod plan;
mod report;

use std::process::ExitCode;
use std::time::Duration;

use russet_lease::Paths;
use russet_model::Key;
use russet_store::{Step, Store, StoreError};
use russet_store_etcd::{EtcdV2, Life};

use super::super::place::Place;
use super::super::{Failure, PROBLEMS};
use crate::cli::migrate::FlannelV2Args;
use crate::output;
use plan::{Found, Plan, Planned, State};
use report::Report;

/// Space between writes while daemons may be watching: v0.20 looks only at the first event of an answer (flannel.md section 12 item 4).
const SPACE: Duration = Duration::from_millis(200);
/// Leases between two lines of progress.
const PROGRESS: usize = 100;
/// Shortest lease: what is about to end may as well end a moment later.
const TTL_MIN: Duration = Duration::from_secs(1);

/// The migration could not be carried to its end.
#[derive(Debug, thiserror::Error)]
enum MigrateError {
    /// There is nothing where it was to be.
    #[error(
        "there is no data of flannel at {prefix} behind the v2 API of {from}; are --from and --prefix right?"
    )]
    Nothing {
        /// The prefix.
        prefix: String,
        /// The etcd.
        from: String,
    },
    /// A write failed.
    #[error("write {key}: {source}; what was written so far is good: run the command again")]
    Interrupted {
        /// Where it stopped.
        key: Key,
        /// Why.
        source: StoreError,
    },
    /// What was read back is not what was written.
    #[error(
        "{key} is not as it was written: somebody else writes to the new store; look at what is there, and run the command again"
    )]
    Unverified {
        /// The first such record.
        key: Key,
    },
}

/// Carries the data over.
pub async fn run(mut args: FlannelV2Args) -> Result<ExitCode, Failure> {
    let from = EtcdV2::connect(super::source(&args.source)?)?;
    let mut choice = std::mem::take(&mut args.place);
    choice.location.store = args.to.take().or(choice.location.store);
    // Whoever only looks leaves no empty store behind.
    let target = if args.dry_run { Place::open(choice).await? } else { Place::open_or_make(choice).await? };
    let old = read_old(&from, &args.prefix).await?;
    if old.config.is_none() && old.leases.is_empty() {
        return Err(MigrateError::Nothing { prefix: args.prefix, from: args.source.from }.into());
    }
    let plan = Plan::of(&old, &read_new(&*target.store, &args.prefix).await?, &args.prefix);
    let differing = plan.all().any(|planned| matches!(planned.state, State::Differs(_)));
    let blocked = !plan.problems.is_empty() || differing && !args.force;
    if !blocked && !args.dry_run {
        write(&*target.store, &plan, &args).await?;
        verify(&*target.store, &old, &plan, &args).await?;
    }
    let written = !blocked && !args.dry_run;
    output::print(&Report::new(&plan, written, args.force).show(args.output.format));
    Ok(if blocked { ExitCode::from(PROBLEMS) } else { ExitCode::SUCCESS })
}

async fn read_old(from: &EtcdV2, prefix: &str) -> Result<Found, Failure> {
    let paths = plan::old_paths(prefix);
    let config = from.get(&paths.config()).await?;
    let (leases, _) = from.list_with_life(&paths.subnets()).await?;
    Ok(Found { config, leases })
}

async fn read_new(store: &dyn Store, prefix: &str) -> Result<Found, Failure> {
    let paths = Paths::new(prefix);
    let config = store.get(&paths.config()).await?;
    let leases = store.list(&paths.subnets()).await?.records;
    // What becomes of those that are there is not looked at.
    Ok(Found { config, leases: leases.into_iter().map(|record| (record, Life::Forever)).collect() })
}

/// Writes what is missing: leases first.
async fn write(store: &dyn Store, plan: &Plan, args: &FlannelV2Args) -> Result<(), Failure> {
    let missing: Vec<&Planned> = plan.leases.iter().filter(|lease| lease.state == State::Missing).collect();
    // Whether somebody watches is not known; where nobody has a lease nobody does.
    let watched =
        plan.leases.len() > missing.len() || store.holds(&Paths::new(&args.prefix).subnets()).await?;
    for (done, lease) in missing.iter().enumerate() {
        if done > 0 && done % PROGRESS == 0 {
            output::progress(&format!("{done} of {} leases are carried over", missing.len()));
        }
        if watched && done > 0 {
            tokio::time::sleep(SPACE).await;
        }
        create(store, lease)
            .await
            .map_err(|source| MigrateError::Interrupted { key: lease.key.clone(), source })?;
    }
    let Some(config) = &plan.config else { return Ok(()) };
    let step = match &config.state {
        State::Same | State::Moved(_) => return Ok(()),
        State::Missing => Step::create(config.key.clone(), config.value.clone()),
        State::Differs(_) => Step::put(config.key.clone(), config.value.clone()),
    };
    let done = store.commit(vec![step]).await;
    done.map_err(|failed| MigrateError::Interrupted { key: config.key.clone(), source: failed.error })?;
    Ok(())
}

/// Creates a lease with the time that it has left, each under a lease of its own. One that is there by now is looked at afterwards.
async fn create(store: &dyn Store, planned: &Planned) -> Result<(), StoreError> {
    let step = Step::create(planned.key.clone(), planned.value.clone());
    let step = match planned.time_left {
        Some(left) => step.with_lease(store.grant(left.max(TTL_MIN)).await?),
        None => step,
    };
    match store.commit(vec![step]).await {
        Ok(_) => Ok(()),
        Err(failed) if failed.error.lost_race() => Ok(()),
        Err(failed) => Err(failed.error),
    }
}

/// Looks whether everything is there now. What was about to end may have ended.
async fn verify(store: &dyn Store, old: &Found, plan: &Plan, args: &FlannelV2Args) -> Result<(), Failure> {
    let now = Plan::of(old, &read_new(store, &args.prefix).await?, &args.prefix);
    let left_out = |key: &Key| {
        let planned = plan.leases.iter().find(|planned| planned.key == *key);
        planned.is_some_and(|planned| matches!(planned.state, State::Differs(_)))
    };
    let brief = |planned: &Planned| planned.time_left.is_some_and(|left| left < Duration::from_secs(60));
    let wrong = now.all().find(|planned| match planned.state {
        State::Same | State::Moved(_) => false,
        State::Missing => !brief(planned),
        State::Differs(_) => !left_out(&planned.key),
    });
    match wrong {
        Some(planned) => Err(MigrateError::Unverified { key: planned.key.clone() }.into()),
        None => Ok(()),
    }
}
