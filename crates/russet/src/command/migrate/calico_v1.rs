//! `russet migrate calico-v1`: reads the v1 model behind etcd's v2 API, plans what that is in v3, compares it with what the new store has,
//! writes what is missing, and reads everything once more. Pools come last, once the v1 data was seen not to have changed meanwhile: without one nobody
//! takes an address from v3.

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
use compare::{Compared, State};
use plan::{Kind, Plan};
use report::Report;

/// Where blocks, affinities, handles and settings lie, in both models.
const IPAM: &str = "/calico/ipam/v2/";
/// Records in one commit: with full blocks still far below what etcd takes.
const BATCH: usize = 16;

/// The migration could not be carried to its end.
#[derive(Debug, thiserror::Error)]
enum MigrateError {
    /// There is no v1 data where it was to be.
    #[error("there is no data of Calico v1 behind the v2 API of {0}; is --from right?")]
    Nothing(String),
    /// Somebody wrote to the new store at the same time.
    #[error("write {key}: {source}; what was written so far is good: run the command again")]
    Interrupted {
        /// Where it stopped.
        key: Key,
        /// Why.
        source: russet_store::StoreError,
    },
    /// What was read back is not what was written.
    #[error(
        "{count} records are not as they were written, the first is {first}: somebody else writes to the new store; stop that first"
    )]
    Unverified {
        /// How many.
        count: usize,
        /// The first.
        first: Key,
    },
    /// The old data is no longer what was carried over.
    #[error(
        "the v2 data changed while it was carried over: Calico v1 still runs somewhere; v3 was not opened: no pool was written; stop Calico v1 everywhere and run the command again"
    )]
    Moving,
    /// The v1 data still takes requests.
    #[error(
        "{} is {found}, not \"false\": an address that v1 gives from now on v3 would give, too; close it with: ETCDCTL_API=2 etcdctl --endpoints {from} set {0} false",
        V1Key::Ready.key()
    )]
    Open {
        /// What the flag says.
        found: String,
        /// The etcd.
        from: String,
    },
    /// What --force would overwrite is in use.
    #[error(
        "the new store has pools: v3 gives addresses from it, and what it says differently is newer than v1's; --force would have them given twice, and nothing was written"
    )]
    InUse,
}

/// Carries the data over.
pub async fn run(mut args: CalicoV1Args) -> Result<ExitCode, Failure> {
    let from = EtcdV2::connect(super::source(&args.source)?)?;
    let mut choice = std::mem::take(&mut args.place);
    choice.location.store = args.to.take().or(choice.location.store);
    let target = Place::open(choice).await?;
    let plan = read(&from, &args.source.from).await?;
    let compared = compare::with(&*target.store, &plan).await?;
    let differing = compared.iter().filter(|one| one.state == State::Differs).count();
    let blocked = !plan.problems.is_empty() || differing > 0 && !args.force;
    if blocked || args.dry_run {
        let report = Report::new(&plan, &compared, report::Done::Nothing, args.force);
        output::print(&report.show(args.output.format));
        return Ok(if blocked { ExitCode::from(PROBLEMS) } else { ExitCode::SUCCESS });
    }
    if differing > 0 && !target.store.list(&Prefix::pools()).await?.records.is_empty() {
        return Err(MigrateError::InUse.into());
    }
    carry_over(&from, &*target.store, &args, &plan, &compared).await?;
    let report = Report::new(&plan, &compared, report::Done::Written, args.force);
    output::print(&report.show(args.output.format));
    Ok(ExitCode::SUCCESS)
}

/// Everything but what lets v3 give addresses; that only after the v1 data was seen closed and unchanged.
async fn carry_over(
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

/// Plugins since 1.11.2 refuse to work while the flag says `false`.
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
            "the v1 data is open: whatever still writes to it gives addresses twice"
        );
        return Ok(());
    }
    Err(MigrateError::Open { found, from: args.source.from.clone() }.into())
}

/// Reads everything of Calico's behind the v2 API.
async fn read(from: &dyn Store, name: &str) -> Result<Plan, Failure> {
    let mut records: Vec<Record> = Vec::new();
    for prefix in [Prefix::from_stored(IPAM), V1Key::everything(), V1Key::bgp_of_nodes()] {
        records.extend(from.list(&prefix).await?.records);
    }
    if records.is_empty() {
        return Err(MigrateError::Nothing(name.to_owned()).into());
    }
    Ok(Plan::of(&records))
}

/// Writes what is missing, and over what differs: whoever did not ask for that does not come here. In the plan's order.
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

/// Reads back what was written of these kinds.
async fn verify(store: &dyn Store, plan: &Plan, of: impl Fn(Kind) -> bool) -> Result<(), Failure> {
    let compared = compare::with(store, plan).await?;
    let mut wrong = compared.iter().filter(|one| of(one.planned.kind) && one.state != State::Same);
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
