//! `russet migrate calico-v1`: reads the v1 model behind etcd's v2 API, plans what that is in v3, compares it with what the new store has,
//! writes what is missing, and reads everything once more. Pools come last: without one nobody takes an address while the rest is on its way.

mod compare;
mod plan;
mod report;

use std::process::ExitCode;

use russet_agent::{EtcdSettings, Secret};
use russet_model::v1::V1Key;
use russet_model::{Key, Prefix};
use russet_store::{Record, Step, Store};
use russet_store_etcd::EtcdV2;

use super::super::place::Place;
use super::super::{Failure, PROBLEMS};
use crate::cli::migrate::CalicoV1Args;
use crate::output;
use compare::{Compared, State};
use plan::Plan;
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
        "{count} records are not as they were written, the first is {first}: somebody else writes to the new store; run the command again"
    )]
    Unverified {
        /// How many.
        count: usize,
        /// The first.
        first: Key,
    },
    /// The old data is no longer what was carried over.
    #[error(
        "the v2 data changed while it was carried over: Calico v1 still runs somewhere; stop it and run the command again, with --force where records differ then"
    )]
    Moving,
}

/// Carries the data over.
pub async fn run(args: CalicoV1Args) -> Result<ExitCode, Failure> {
    let from = EtcdV2::connect(source(&args)?)?;
    let mut choice = args.place;
    choice.location.store = args.to.or(choice.location.store);
    let target = Place::open(choice).await?;
    let plan = read(&from, &args.from).await?;
    let compared = compare::with(&*target.store, &plan).await?;
    let differing = compared.iter().filter(|one| one.state == State::Differs).count();
    let blocked = !plan.problems.is_empty() || differing > 0 && !args.force;
    if blocked || args.dry_run {
        let report = Report::new(&plan, &compared, report::Done::Nothing, args.force);
        output::print(&report.show(args.output.format));
        return Ok(if blocked { ExitCode::from(PROBLEMS) } else { ExitCode::SUCCESS });
    }
    write(&*target.store, &compared).await?;
    verify(&*target.store, &plan).await?;
    if read(&from, &args.from).await? != plan {
        return Err(MigrateError::Moving.into());
    }
    let report = Report::new(&plan, &compared, report::Done::Written, args.force);
    output::print(&report.show(args.output.format));
    Ok(ExitCode::SUCCESS)
}

fn source(args: &CalicoV1Args) -> Result<EtcdSettings, Failure> {
    let password = match &args.from_password_file {
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|e| format!("read {}: {e}", path.display()))?;
            Some(Secret::new(text.trim_end_matches(['\r', '\n'])))
        }
        None => None,
    };
    Ok(EtcdSettings {
        ca: args.from_ca_file.clone(),
        cert: args.from_cert_file.clone(),
        key: args.from_key_file.clone(),
        username: args.from_username.clone(),
        password,
        ..EtcdSettings::for_endpoints(&args.from)?
    })
}

/// Reads everything of Calico's behind the v2 API.
async fn read(from: &EtcdV2, name: &str) -> Result<Plan, Failure> {
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
async fn write(store: &dyn Store, compared: &[Compared<'_>]) -> Result<(), Failure> {
    let steps: Vec<Step> = compared.iter().filter_map(Compared::step).collect();
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

/// Reads back what was written.
async fn verify(store: &dyn Store, plan: &Plan) -> Result<(), Failure> {
    let compared = compare::with(store, plan).await?;
    let mut wrong = compared.iter().filter(|one| one.state != State::Same);
    match wrong.next() {
        None => Ok(()),
        Some(first) => {
            let (count, first) = (1 + wrong.count(), first.planned.key.clone());
            Err(MigrateError::Unverified { count, first }.into())
        }
    }
}
