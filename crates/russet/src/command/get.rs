//! `russet get`: resources as tables, YAML or JSON; pods, which are no resources.

mod pods;

use std::process::ExitCode;
use std::time::SystemTime;

use russet_agent::Paths;
use russet_cni_spec::plugin::prepare;
use russet_cni_spec::{Prepared, relay};
use russet_model::{Key, Prefix, Resource, ResourceKind};
use russet_store::{BoxFuture, Record, Revision};
use serde_json::{Value, json};

use super::place::Place;
use super::{Failure, PROBLEMS, runtime};
use crate::cli::resources::{GetArgs, Listed, ResourceFormat};
use crate::output;
use crate::resources::{
    AgentState, Definition, Kind, Shown, TableContext, each_kind, list_value, make_portable, value, yaml,
};
use crate::settings;

/// A requested name that no resource has.
#[derive(Debug, thiserror::Error)]
#[error("{kind} {name:?} does not exist")]
struct Missing {
    kind: &'static str,
    name: String,
}

/// The resources to print.
struct Listing<S> {
    shown: Vec<Shown<S>>,
    /// The revision of the list.
    revision: Revision,
    /// One was requested by name, and is printed by itself.
    single: bool,
    /// The number of records that cannot be decoded.
    unreadable: usize,
}

/// Prints the requested resources.
pub fn run(mut args: GetArgs) -> Result<ExitCode, Failure> {
    runtime()?.block_on(async {
        let place = Place::open(std::mem::take(&mut args.place)).await?;
        match args.kind {
            Listed::Kind(kind) => each_kind!(kind, boxed(&place, &args)).await,
            Listed::Pods => pods::run(&place, &args).await,
        }
    })
}

/// Boxes the future, so that every kind has the same type.
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
        ResourceFormat::Table => table(&found, false, args.all_namespaces, &surroundings::<S>(place)),
        ResourceFormat::Wide => table(&found, true, args.all_namespaces, &surroundings::<S>(place)),
        ResourceFormat::Json => output::json(&whole(&found, args.export)),
        ResourceFormat::Yaml => yaml(&whole(&found, args.export))?,
        ResourceFormat::Name => found.shown.iter().map(|shown| name_line(S::KIND, shown)).collect(),
    });
    Ok(if found.unreadable == 0 { ExitCode::SUCCESS } else { ExitCode::from(PROBLEMS) })
}

async fn list<S: Definition>(place: &Place, args: &GetArgs) -> Result<Listing<S>, Failure> {
    let snapshot = place.store.list(&Prefix::resources(S::KIND)).await?;
    let mut found = Listing { shown: Vec::new(), revision: snapshot.revision, single: false, unreadable: 0 };
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

async fn named<S: Definition>(place: &Place, args: &GetArgs) -> Result<Listing<S>, Failure> {
    let single = args.names.len() == 1;
    let mut found = Listing { shown: Vec::new(), revision: Revision(0), single, unreadable: 0 };
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

fn whole<S: Definition>(found: &Listing<S>, export: bool) -> Value {
    let mut whole = match &found.shown[..] {
        [one] if found.single => value(one),
        several => list_value(several, found.revision),
    };
    if export {
        make_portable(&mut whole);
    }
    whole
}

/// Only nodes' tables show more than what is stored; other kinds do not query the agent.
fn surroundings<S: Definition>(place: &Place) -> TableContext {
    let nodes = S::KIND == Kind::Node.resource();
    let this_node = || Some((settings::node_name(&place.paths).ok()?.to_string(), agent_state(&place.paths)));
    TableContext { now: SystemTime::now(), this_node: nodes.then(this_node).flatten() }
}

/// The state in the agent's answer to STATUS.
fn agent_state(paths: &Paths) -> AgentState {
    let vars = [("CNI_COMMAND", "STATUS"), ("CNI_PATH", "/opt/cni/bin")];
    let vars = vars.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let config = json!({ "cniVersion": "1.1.0", "name": "russet", "type": "russet",
        "agent_socket": paths.cni_socket() });
    match prepare(vars, config.to_string().into_bytes(), "russet get") {
        Ok(Prepared::Request(request)) => match relay::ask_agent("russet", &request, false) {
            Ok(Some(outcome)) if outcome.is_success() => AgentState::Ready,
            Ok(Some(_)) => AgentState::NotReady,
            Ok(None) | Err(_) => AgentState::NotRunning,
        },
        Ok(Prepared::Answer(_)) | Err(_) => AgentState::NotRunning,
    }
}

fn name_line<S>(kind: ResourceKind, shown: &Shown<S>) -> String {
    output::short_name(kind, &shown.resource.metadata.name) + "\n"
}

fn table<S: Definition>(found: &Listing<S>, wide: bool, all_namespaces: bool, seen: &TableContext) -> String {
    let with_namespace = all_namespaces && S::KIND.namespaced();
    let mut heading = S::heading(wide).to_vec();
    if with_namespace {
        heading.insert(0, "NAMESPACE");
    }
    let row = |shown: &Shown<S>| {
        let mut row = S::row(&shown.resource, wide, seen);
        if with_namespace {
            row.insert(0, shown.resource.metadata.namespace.clone().unwrap_or_default());
        }
        row
    };
    output::table(&heading, &found.shown.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use russet_testkit::replay;

    use super::*;
    use crate::resources::Kind;

    /// The same corpus as tests/hostile has, with the output of `get` for it.
    #[test]
    fn no_stored_resource_makes_get_panic() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/stored");
        let replayed = replay(&corpus, |bytes| {
            let end = bytes.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            Kind::ALL.into_iter().filter(|kind| each_kind!(*kind, printed(&bytes[end..]))).count() > 0
        });
        // A third of the corpus is resources.
        assert!(replayed.inputs_read * 100 > replayed.inputs, "{replayed:?}");
    }

    #[test]
    fn every_stored_resource_of_the_corpus_is_printed() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus/stored");
        let kinds = [
            ("pool", Kind::Pool),
            ("reservation", Kind::Reservation),
            ("node", Kind::Node),
            ("profile", Kind::Profile),
            ("endpoint", Kind::Endpoint),
        ];
        for (file, kind) in kinds {
            let bytes = std::fs::read(corpus.join(file)).unwrap();
            let end = bytes.iter().position(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            assert!(each_kind!(kind, printed(&bytes[end..])), "{file}");
        }
    }

    fn printed<S: Definition>(value: &[u8]) -> bool {
        let Ok(resource) = Resource::<S>::decode(value) else { return false };
        let shown = vec![Shown { resource, revision: Revision(7) }];
        let found = Listing { shown, revision: Revision(7), single: true, unreadable: 0 };
        for wide in [false, true] {
            assert!(
                !table(&found, wide, true, &TableContext::elsewhere())
                    .chars()
                    .any(|c| c.is_control() && c != '\n')
            );
        }
        for export in [false, true] {
            let whole = whole(&found, export);
            let read: Value = serde_json::from_str(&output::json(&whole)).unwrap();
            assert_eq!(read, whole);
            yaml(&whole).unwrap();
        }
        true
    }
}
