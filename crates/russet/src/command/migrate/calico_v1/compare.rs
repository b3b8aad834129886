//! Compares each planned record with the new store.

use std::collections::BTreeMap;
use std::time::SystemTime;

use russet_linux::random::random;
use russet_model::{Key, Prefix, ResourceKind, time, uid};
use russet_store::{Record, Step, Store, StoreError};
use serde_json::Value;

use super::plan::{Kind, Plan, Planned};

/// The state of a planned record in the new store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordState {
    Missing,
    Same,
    Differs,
}

/// A planned record and its state in the store.
#[derive(Debug)]
pub struct Compared<'a> {
    pub planned: &'a Planned,
    pub state: RecordState,
    present: Option<Record>,
}

/// Members that the first writer sets and that never change afterwards.
const STAMPS: [&str; 2] = ["uid", "creationTimestamp"];

/// Compares the plan with a store.
pub async fn with<'a>(store: &dyn Store, plan: &'a Plan) -> Result<Vec<Compared<'a>>, StoreError> {
    let mut present: BTreeMap<Key, Record> = BTreeMap::new();
    for prefix in prefixes() {
        let records = store.list(&prefix).await?.records;
        present.extend(records.into_iter().map(|record| (record.key.clone(), record)));
    }
    let compare = |planned: &'a Planned| {
        let present = present.remove(&planned.key);
        let state = match &present {
            None => RecordState::Missing,
            // The stored record has newer information on the cluster than the v1 data.
            Some(_) if planned.kind == Kind::Cluster => RecordState::Same,
            Some(record) if same(&record.value, &planned.value) => RecordState::Same,
            Some(_) => RecordState::Differs,
        };
        Compared { planned, state, present }
    };
    Ok(plan.writes.iter().map(compare).collect())
}

/// The prefixes of all keys that a plan may write.
fn prefixes() -> impl Iterator<Item = Prefix> {
    let kinds = [
        ResourceKind::Node,
        ResourceKind::Profile,
        ResourceKind::WorkloadEndpoint,
        ResourceKind::IpPool,
        ResourceKind::ClusterInformation,
    ];
    std::iter::once(Prefix::from_stored(super::IPAM)).chain(kinds.map(Prefix::resources))
}

/// Whether two records are equal, apart from their stamps.
fn same(a: &[u8], b: &[u8]) -> bool {
    match (unstamped(a), unstamped(b)) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

fn unstamped(bytes: &[u8]) -> Option<Value> {
    let mut value: Value = serde_json::from_slice(bytes).ok()?;
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        STAMPS.iter().for_each(|name| {
            metadata.shift_remove(*name);
        });
    }
    Some(value)
}

/// The record with its stamps: those of the record that it replaces, else new ones. IPAM records
/// have none.
fn stamped(planned: &Planned, present: Option<&Record>) -> Vec<u8> {
    let Ok(mut value) = serde_json::from_slice::<Value>(&planned.value) else { return planned.value.clone() };
    let old: Option<Value> = present.and_then(|record| serde_json::from_slice(&record.value).ok());
    let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) else {
        return planned.value.clone();
    };
    for name in STAMPS {
        let kept =
            old.as_ref().and_then(|old| old.get("metadata")?.get(name)).filter(|stamp| stamp.is_string());
        let stamp = kept.cloned().unwrap_or_else(|| fresh(name));
        metadata.insert(name.to_owned(), stamp);
    }
    if planned.kind == Kind::Cluster
        && let Some(spec) = value.get_mut("spec").and_then(Value::as_object_mut)
    {
        spec.insert("clusterGUID".to_owned(), uid(random()).replace('-', "").into());
    }
    serde_json::to_vec(&value).unwrap_or_else(|_| planned.value.clone())
}

fn fresh(stamp: &str) -> Value {
    match stamp {
        "uid" => uid(random()).into(),
        _ => time::rfc3339(SystemTime::now()).into(),
    }
}

// === impl Compared ===

impl Compared<'_> {
    /// The write that this record needs, if any: guarded, so that a change since the comparison is
    /// not overwritten.
    pub fn step(&self) -> Option<Step> {
        let value = || stamped(self.planned, self.present.as_ref());
        let key = self.planned.key.clone();
        match (self.state, &self.present) {
            (RecordState::Same, _) => None,
            (_, None) => Some(Step::create(key, value())),
            (_, Some(present)) => Some(Step::update(key, value(), present.revision)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use russet_store::Revision;

    #[test]
    fn records_that_differ_in_stamps_and_order_only_are_the_same() {
        let a = br#"{"kind":"Node","metadata":{"name":"n","uid":"1","creationTimestamp":null},"spec":{}}"#;
        let b = br#"{"metadata":{"creationTimestamp":"2026-01-02T03:00:00Z","name":"n"},"kind":"Node","spec":{}}"#;
        assert!(same(a, b));
        assert!(!same(a, br#"{"kind":"Node","metadata":{"name":"n"},"spec":{"bgp":{}}}"#));
        assert!(!same(
            br#"{"sequenceNumber":1767322800000000001}"#,
            br#"{"sequenceNumber":1767322800000000002}"#
        ));
    }

    #[test]
    fn a_record_that_is_replaced_keeps_its_stamps() {
        let planned = Planned {
            kind: Kind::Node,
            from: Key::from_stored("/f"),
            key: Key::from_stored("/k"),
            value: br#"{"metadata":{"name":"n","creationTimestamp":null},"spec":{}}"#.to_vec(),
        };
        let old = br#"{"metadata":{"name":"n","uid":"u","creationTimestamp":"t"}}"#.to_vec();
        let present = Record { key: planned.key.clone(), value: old, revision: Revision(3) };
        let text = String::from_utf8(stamped(&planned, Some(&present))).unwrap();
        assert!(text.contains(r#""uid":"u""#) && text.contains(r#""creationTimestamp":"t""#), "{text}");
        let fresh: Value = serde_json::from_slice(&stamped(&planned, None)).unwrap();
        assert_eq!(fresh["metadata"]["uid"].as_str().map(str::len), Some(36));
        assert!(fresh["metadata"]["creationTimestamp"].is_string());
    }
}
