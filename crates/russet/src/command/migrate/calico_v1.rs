//! `russet migrate calico-v1`: reads the v1 model behind etcd's v2 API, plans its v3 equivalent,
//! compares it with the new store, writes what is missing, and reads everything again. Pools come
//! last, once the v1 data has been read again unchanged: without a pool no plugin assigns an
//! address from v3.

mod compare;
mod plan;
mod report;

use std::process::ExitCode;

use russet_model::v1::V1Key;
use russet_model::{Key, Prefix};
use russet_store::{Record, Step, Store};
use russet_store_etcd::EtcdV2;

use super::super::place::Place;
use super::super::{Failure, PROBLEMS};
use crate::cli::migrate::CalicoV1Args;
use crate::output;
use compare::{Compared, RecordState};
use plan::{Kind, Plan};
use report::MigrationReport;

/// The prefix of blocks, affinities, handles and settings, in both models.
const IPAM: &str = "/calico/ipam/v2/";
/// Records per commit: with full blocks still far below etcd's limit.
const BATCH: usize = 16;

/// The migration was not completed.
#[derive(Debug, thiserror::Error)]
enum MigrateError {
    /// The source has no v1 data.
    #[error("there is no data of Calico v1 behind the v2 API of {0}; is --from right?")]
    Nothing(String),
    /// Another client wrote to the new store at the same time.
    #[error("write {key}: {source}; what was written so far is good: run the command again")]
    Interrupted {
        /// The key whose write failed.
        key: Key,
        source: russet_store::StoreError,
    },
    /// The records that were read back differ from those that were written.
    #[error(
        "{count} records are not as they were written, the first is {first}: another client writes to the new store; stop that first"
    )]
    Unverified { count: usize, first: Key },
    /// The old data has changed during the migration.
    #[error(
        "the v2 data changed while the migration ran: Calico v1 still runs somewhere; v3 was not opened: no pool was written; stop Calico v1 everywhere and run the command again"
    )]
    Moving,
    /// The v1 data is still open.
    #[error(
        "{} is {found}, not \"false\": an address that v1 gives from now on v3 would give, too; close it with: ETCDCTL_API=2 etcdctl --endpoints {from} set {0} false",
        V1Key::Ready.key()
    )]
    Open {
        /// The value of the flag.
        found: String,
        from: String,
    },
    /// --force would overwrite data in use.
    #[error(
        "the new store has pools: v3 gives addresses from it, and what it says differently is newer than v1's; --force would have them given twice, and nothing was written"
    )]
    InUse,
}

/// Runs the migration.
pub async fn run(mut args: CalicoV1Args) -> Result<ExitCode, Failure> {
    let from = EtcdV2::connect(super::source(&args.source)?)?;
    let mut choice = std::mem::take(&mut args.place);
    choice.location.store = args.to.take().or(choice.location.store);
    let target = Place::open(choice).await?;
    let plan = read(&from, &args.source.from).await?;
    let compared = compare::with(&*target.store, &plan).await?;
    let differing = compared.iter().filter(|one| one.state == RecordState::Differs).count();
    let blocked = !plan.problems.is_empty() || differing > 0 && !args.force;
    if blocked || args.dry_run {
        let report = MigrationReport::new(&plan, &compared, report::Done::Nothing, args.force);
        output::print(&report.show(args.output.format));
        return Ok(if blocked { ExitCode::from(PROBLEMS) } else { ExitCode::SUCCESS });
    }
    if differing > 0 && !target.store.list(&Prefix::pools()).await?.records.is_empty() {
        return Err(MigrateError::InUse.into());
    }
    migrate_all_but_pools(&from, &*target.store, &args, &plan, &compared).await?;
    let report = MigrationReport::new(&plan, &compared, report::Done::Written, args.force);
    output::print(&report.show(args.output.format));
    Ok(ExitCode::SUCCESS)
}

/// Writes everything except what lets v3 assign addresses; that is written only after the v1 data
/// was read again, closed and unchanged.
async fn migrate_all_but_pools(
    from: &dyn Store,
    store: &dyn Store,
    args: &CalicoV1Args,
    plan: &Plan,
    compared: &[Compared<'_>],
) -> Result<(), Failure> {
    let opens = |kind: Kind| kind >= Kind::Pool;
    require_closed(from, args).await?;
    write(store, compared.iter().filter(|one| !opens(one.planned.kind))).await?;
    verify(store, plan, |kind| !opens(kind)).await?;
    if read(from, &args.source.from).await? != *plan {
        return Err(MigrateError::Moving.into());
    }
    require_closed(from, args).await?;
    write(store, compared.iter().filter(|one| opens(one.planned.kind))).await?;
    verify(store, plan, |_| true).await
}

/// Plugins since 1.11.2 refuse to work while the flag is `false`.
async fn require_closed(from: &dyn Store, args: &CalicoV1Args) -> Result<(), Failure> {
    let ready = from.get(&V1Key::Ready.key()).await?;
    let found = match &ready {
        Some(record) if record.value == b"false" => return Ok(()),
        Some(record) => format!("{:?}", String::from_utf8_lossy(&record.value)),
        None => "not there".to_owned(),
    };
    if args.v1_open {
        tracing::warn!(
            ready = found,
            "the v1 data is open: addresses that v1 still assigns are assigned twice"
        );
        return Ok(());
    }
    Err(MigrateError::Open { found, from: args.source.from.clone() }.into())
}

/// Reads all Calico data behind the v2 API.
async fn read(from: &dyn Store, name: &str) -> Result<Plan, Failure> {
    let mut records: Vec<Record> = Vec::new();
    for prefix in [Prefix::from_stored(IPAM), V1Key::everything(), V1Key::bgp_of_nodes()] {
        records.extend(from.list(&prefix).await?.records);
    }
    if records.is_empty() {
        return Err(MigrateError::Nothing(name.to_owned()).into());
    }
    Ok(Plan::from_records(&records))
}

/// Writes what is missing, and overwrites what differs: without --force the caller stops earlier.
/// In the plan's order.
async fn write<'a>(
    store: &dyn Store,
    compared: impl Iterator<Item = &'a Compared<'a>>,
) -> Result<(), Failure> {
    let steps: Vec<Step> = compared.filter_map(Compared::step).collect();
    let mut steps = steps.into_iter().peekable();
    while let Some(first) = steps.peek().map(|step| step.key().clone()) {
        let batch: Vec<Step> = steps.by_ref().take(BATCH).collect();
        let keys: Vec<Key> = batch.iter().map(|step| step.key().clone()).collect();
        store.commit(batch).await.map_err(|failed| {
            let key = keys.get(failed.failed).cloned().unwrap_or(first);
            MigrateError::Interrupted { key, source: failed.error }
        })?;
    }
    Ok(())
}

/// Reads back the records of these kinds and compares them.
async fn verify(store: &dyn Store, plan: &Plan, of: impl Fn(Kind) -> bool) -> Result<(), Failure> {
    let compared = compare::with(store, plan).await?;
    let mut wrong = compared.iter().filter(|one| of(one.planned.kind) && one.state != RecordState::Same);
    match wrong.next() {
        None => Ok(()),
        Some(first) => {
            let (count, first) = (1 + wrong.count(), first.planned.key.clone());
            Err(MigrateError::Unverified { count, first }.into())
        }
    }
}

#[cfg(test)]
mod tests;
