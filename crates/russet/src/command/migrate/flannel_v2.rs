//! `russet migrate flannel-v2`: reads the network config and the leases behind etcd's v2 API,
//! compares them with the new store, writes what is missing, and reads it back. The config comes
//! last: without it no daemon takes a subnet from the new store while leases are still missing
//! there.

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
use plan::{Plan, Planned, RecordState, StoredData};
use report::MigrationReport;

/// The interval between writes while daemons may be watching: v0.20 processes only the first event
/// of an answer (flannel.md section 12 item 4).
const SPACE: Duration = Duration::from_millis(200);
/// Leases between two lines of progress.
const PROGRESS: usize = 100;
/// The shortest remaining time of a lease, since etcd grants none below a second.
const TTL_MIN: Duration = Duration::from_secs(1);

/// The migration was not completed.
#[derive(Debug, thiserror::Error)]
enum MigrateError {
    /// The source has no data.
    #[error(
        "there is no data of flannel at {prefix} behind the v2 API of {from}; are --from and --prefix right?"
    )]
    Nothing { prefix: String, from: String },
    #[error("write {key}: {source}; what was written so far is good: run the command again")]
    Interrupted {
        /// The key whose write failed.
        key: Key,
        source: StoreError,
    },
    /// The record that was read back differs from the one that was written.
    #[error(
        "{key} is not as it was written: another client writes to the new store; look at what is there, and run the command again"
    )]
    Unverified { key: Key },
}

/// Runs the migration.
pub async fn run(mut args: FlannelV2Args) -> Result<ExitCode, Failure> {
    let from = EtcdV2::connect(super::source(&args.source)?)?;
    let mut choice = std::mem::take(&mut args.place);
    choice.location.store = args.to.take().or(choice.location.store);
    // A dry run creates no empty store.
    let target = if args.dry_run { Place::open(choice).await? } else { Place::open_or_make(choice).await? };
    let old = read_old(&from, &args.prefix).await?;
    if old.config.is_none() && old.leases.is_empty() {
        return Err(MigrateError::Nothing { prefix: args.prefix, from: args.source.from }.into());
    }
    let plan = Plan::compare(&old, &read_new(&*target.store, &args.prefix).await?, &args.prefix);
    let differing = plan.all().any(|planned| matches!(planned.state, RecordState::Differs(_)));
    let blocked = !plan.problems.is_empty() || differing && !args.force;
    if !blocked && !args.dry_run {
        write(&*target.store, &plan, &args).await?;
        verify(&*target.store, &old, &plan, &args).await?;
    }
    let written = !blocked && !args.dry_run;
    output::print(&MigrationReport::new(&plan, written, args.force).show(args.output.format));
    Ok(if blocked { ExitCode::from(PROBLEMS) } else { ExitCode::SUCCESS })
}

async fn read_old(from: &EtcdV2, prefix: &str) -> Result<StoredData, Failure> {
    let paths = plan::old_paths(prefix);
    let config = from.get(&paths.config()).await?;
    let (leases, _) = from.list_with_life(&paths.subnets()).await?;
    Ok(StoredData { config, leases })
}

async fn read_new(store: &dyn Store, prefix: &str) -> Result<StoredData, Failure> {
    let paths = Paths::new(prefix);
    let config = store.get(&paths.config()).await?;
    let leases = store.list(&paths.subnets()).await?.records;
    // Their remaining time does not matter.
    Ok(StoredData { config, leases: leases.into_iter().map(|record| (record, Life::Forever)).collect() })
}

/// Writes what is missing: leases first.
async fn write(store: &dyn Store, plan: &Plan, args: &FlannelV2Args) -> Result<(), Failure> {
    let missing: Vec<&Planned> =
        plan.leases.iter().filter(|lease| lease.state == RecordState::Missing).collect();
    // Watchers cannot be seen; without any lease there are none.
    let watched =
        plan.leases.len() > missing.len() || store.holds(&Paths::new(&args.prefix).subnets()).await?;
    for (done, lease) in missing.iter().enumerate() {
        if done > 0 && done % PROGRESS == 0 {
            output::progress(&format!("{done} of {} leases are migrated", missing.len()));
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
        RecordState::Same | RecordState::Moved(_) => return Ok(()),
        RecordState::Missing => Step::create(config.key.clone(), config.value.clone()),
        RecordState::Differs(_) => Step::put(config.key.clone(), config.value.clone()),
    };
    let done = store.commit(vec![step]).await;
    done.map_err(|failed| MigrateError::Interrupted { key: config.key.clone(), source: failed.error })?;
    Ok(())
}

/// Creates a lease with its remaining time, each under an etcd lease of its own. A lease that
/// exists by now is compared afterwards.
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

/// Checks that everything exists now. A lease that was about to expire may have expired.
async fn verify(
    store: &dyn Store,
    old: &StoredData,
    plan: &Plan,
    args: &FlannelV2Args,
) -> Result<(), Failure> {
    let now = Plan::compare(old, &read_new(store, &args.prefix).await?, &args.prefix);
    let left_out = |key: &Key| {
        let planned = plan.leases.iter().find(|planned| planned.key == *key);
        planned.is_some_and(|planned| matches!(planned.state, RecordState::Differs(_)))
    };
    let brief = |planned: &Planned| planned.time_left.is_some_and(|left| left < Duration::from_secs(60));
    let wrong = now.all().find(|planned| match planned.state {
        RecordState::Same | RecordState::Moved(_) => false,
        RecordState::Missing => !brief(planned),
        RecordState::Differs(_) => !left_out(&planned.key),
    });
    match wrong {
        Some(planned) => Err(MigrateError::Unverified { key: planned.key.clone() }.into()),
        None => Ok(()),
    }
}
