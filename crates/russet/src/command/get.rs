//! `russet get`: resources as tables, YAML or JSON.

use std::process::ExitCode;

use russet_model::{Key, Prefix, Resource};
use russet_store::{BoxFuture, Record, Revision};
use serde_json::Value;

use super::place::Place;
use super::{Failure, PROBLEMS, runtime};
use crate::cli::resources::{GetArgs, ResourceFormat};
use crate::output;
use crate::resources::{Definition, Shown, each_kind, list_value, make_portable, value, yaml};

/// A name that nothing has.
#[derive(Debug, thiserror::Error)]
#[error("{kind} {name:?} does not exist")]
struct Missing {
    kind: &'static str,
    name: String,
}

/// What was found.
struct Found<S> {
    shown: Vec<Shown<S>>,
    /// The revision of the list.
    revision: Revision,
    /// One was asked for by name, and is printed by itself.
    single: bool,
    /// Records that cannot be read.
    unreadable: usize,
}

/// Prints what was asked for.
pub fn run(mut args: GetArgs) -> Result<ExitCode, Failure> {
    runtime()?.block_on(async {
        let place = Place::open(std::mem::take(&mut args.place)).await?;
        each_kind!(args.kind, boxed(&place, &args)).await
    })
}

/// The same type of future for every kind.
fn boxed<'a, S: Definition + 'a>(
    place: &'a Place,
    args: &'a GetArgs,
) -> BoxFuture<'a, Result<ExitCode, Failure>> {
    Box::pin(get::<S>(place, args))
}

async fn get<S: Definition>(place: &Place, args: &GetArgs) -> Result<ExitCode, Failure> {
    let found = match args.names.is_empty() {
        true => list::<S>(place, args).await?,
        false => named::<S>(place, args).await?,
    };
    output::print(&match args.format {
        ResourceFormat::Table => table(&found, false, args.all_namespaces),
        ResourceFormat::Wide => table(&found, true, args.all_namespaces),
        ResourceFormat::Json => output::json(&whole(&found, args.export)),
        ResourceFormat::Yaml => yaml(&whole(&found, args.export))?,
    });
    Ok(if found.unreadable == 0 { ExitCode::SUCCESS } else { ExitCode::from(PROBLEMS) })
}

async fn list<S: Definition>(place: &Place, args: &GetArgs) -> Result<Found<S>, Failure> {
    let snapshot = place.store.list(&Prefix::resources(S::KIND)).await?;
    let mut found = Found { shown: Vec::new(), revision: snapshot.revision, single: false, unreadable: 0 };
    for record in snapshot.records {
        match decode(&record) {
            Ok(shown) if everywhere::<S>(args) || within(&shown, args.namespace.or_default()) => {
                found.shown.push(shown)
            }
            Ok(_) => {}
            Err(error) => {
                output::progress(&output::visible(&format!("{} is passed over: {error}", record.key)));
                found.unreadable += 1;
            }
        }
    }
    Ok(found)
}

fn everywhere<S: Definition>(args: &GetArgs) -> bool {
    args.all_namespaces || !S::KIND.namespaced()
}

fn within<S>(shown: &Shown<S>, namespace: &str) -> bool {
    shown.resource.metadata.namespace.as_deref() == Some(namespace)
}

async fn named<S: Definition>(place: &Place, args: &GetArgs) -> Result<Found<S>, Failure> {
    let single = args.names.len() == 1;
    let mut found = Found { shown: Vec::new(), revision: Revision(0), single, unreadable: 0 };
    for name in &args.names {
        let namespace = S::KIND.namespaced().then(|| args.namespace.or_default());
        let key = Key::resource(S::KIND, namespace, name)?;
        let record = place.store.get(&key).await?;
        let record = record.ok_or_else(|| Missing { kind: S::KIND.kind(), name: name.clone() })?;
        found.revision = found.revision.max(record.revision);
        found.shown.push(decode(&record)?);
    }
    Ok(found)
}

fn decode<S: Definition>(record: &Record) -> Result<Shown<S>, russet_model::DecodeError> {
    Ok(Shown { resource: Resource::decode(&record.value)?, revision: record.revision })
}

fn whole<S: Definition>(found: &Found<S>, export: bool) -> Value {
    let mut whole = match &found.shown[..] {
        [one] if found.single => value(one),
        several => list_value(several, found.revision),
    };
    if export {
        make_portable(&mut whole);
    }
    whole
}

fn table<S: Definition>(found: &Found<S>, wide: bool, all_namespaces: bool) -> String {
    let with_namespace = all_namespaces && S::KIND.namespaced();
    let mut heading = S::heading(wide).to_vec();
    if with_namespace {
        heading.insert(0, "NAMESPACE");
    }
    let row = |shown: &Shown<S>| {
        let mut row = S::row(&shown.resource, wide);
        if with_namespace {
            row.insert(0, shown.resource.metadata.namespace.clone().unwrap_or_default());
        }
        row
    };
    output::table(&heading, &found.shown.iter().map(row).collect::<Vec<_>>())
}
