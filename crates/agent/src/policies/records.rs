//! Watches the records of the agent's store on which policies depend, in whichever store they are.

use std::rc::Rc;

use russet_model::{Key, Prefix, ResourceKind};
use russet_store::{Event, Record, Store, StoreError};
use russet_sync::Backoff;
use serde_json::{Map, Value, json};

use super::source::{ABSENT_PAUSE, after_failure, backoff};
use super::{Change, Kind, Policies};

/// Follows the records of a kind for ever.
pub async fn follow(kind: ResourceKind, store: Rc<dyn Store>, policies: Policies) {
    let mut backoff = backoff();
    loop {
        let Err(error) = follow_once(kind, &*store, &policies, &mut backoff).await;
        if matches!(error, StoreError::Unsupported { .. }) {
            // The store cannot hold any.
            policies.send_all(Kind::Records(kind), []).await;
            tokio::time::sleep(ABSENT_PAUSE).await;
        } else {
            after_failure(kind.plural(), &error, &mut backoff).await;
        }
    }
}

/// Follows them until the watch fails.
async fn follow_once(
    kind: ResourceKind,
    store: &dyn Store,
    policies: &Policies,
    backoff: &mut Backoff,
) -> Result<std::convert::Infallible, StoreError> {
    let prefix = Prefix::resources(kind);
    let read = |key: &Key, value: Option<&[u8]>| {
        document(kind, key.as_str().strip_prefix(prefix.as_str()).unwrap_or(key.as_str()), value)
    };
    let of_record = |record: &Record| read(&record.key, Some(&record.value));
    let records = Kind::Records(kind);
    let mut watch = store.watch(&prefix).await?;
    loop {
        let event = watch.next().await?;
        backoff.reset();
        match event {
            Event::Snapshot(snapshot) => {
                policies.send_all(records, snapshot.records.iter().map(of_record)).await;
            }
            Event::Put(record) => policies.send(Change::Put(records, of_record(&record))).await,
            Event::Deleted { key, .. } => policies.send(Change::Deleted(records, read(&key, None))).await,
        }
    }
}

/// The document of a record. Its names are those of the key, which decides among policies of equal
/// order. A policy that is no document at all is one whose selector cannot be read, which isolates
/// its namespace (policy.md section 1.11).
pub fn document(kind: ResourceKind, names: &str, value: Option<&[u8]>) -> Value {
    let (namespace, name) = names.rsplit_once('/').map_or((None, names), |(ns, name)| (Some(ns), name));
    let mut document: Map<String, Value> = match value.map(serde_json::from_slice) {
        None => Map::new(),
        Some(Ok(document)) => document,
        Some(Err(error)) => {
            russet_store::refused("a record cannot be read", format!("{} {names}", kind.plural()), error);
            Map::new()
        }
    };
    // The subject of a ClusterNetworkPolicy can be all pods, which are not isolated by mistake.
    let is_closed = Kind::Records(kind).is_policy() && kind != ResourceKind::ClusterNetworkPolicy;
    if is_closed && !document.get("spec").is_some_and(Value::is_object) {
        let directions = json!(["Ingress", "Egress"]);
        let closed = match kind {
            ResourceKind::KubernetesNetworkPolicy => json!({ "podSelector": {}, "policyTypes": directions }),
            _ => json!({ "selector": false, "types": directions }),
        };
        document.insert("spec".to_owned(), closed);
    }
    let metadata = document.entry("metadata").or_insert_with(|| json!({}));
    if !metadata.is_object() {
        *metadata = json!({});
    }
    metadata["name"] = name.into();
    metadata["namespace"] = namespace.into();
    Value::Object(document)
}

#[cfg(test)]
mod tests {
    use super::*;
    use russet_verdict::ir::PolicyKind;
    use russet_verdict::translate::Translator;
    use russet_verdict::world::Update;

    /// What a record of a policy says, as the translator reads it.
    fn policy(kind: ResourceKind, names: &str, value: &[u8]) -> Option<(PolicyKind, String, usize)> {
        let mut document = document(kind, names, Some(value));
        (document["apiVersion"], document["kind"]) = (kind.document().0.into(), kind.document().1.into());
        match Translator::default().put(&document).updates.as_slice() {
            [Update::Policy(id, Some(policy))] => {
                Some((id.kind, policy.subject.to_string(), policy.ingress.len() + policy.egress.len()))
            }
            [] => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_key_names_a_record_and_a_policy_that_is_no_document_isolates_its_namespace() {
        let good = br#"{"metadata":{"name":"other"},"spec":{"selector":"app == 'db'"}}"#;
        let selector = "(app == \"db\" && projectcalico.org/namespace == \"shop\")".to_owned();
        let (np, gnp) = (ResourceKind::NetworkPolicy, ResourceKind::GlobalNetworkPolicy);
        assert_eq!(policy(np, "shop/db", good), Some((PolicyKind::NetworkPolicy, selector, 0)));
        let cluster = br#"{"spec":{"tier":"Admin","priority":7,"subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[{"namespaces":{}}]}]}}"#;
        let pods =
            "(has(projectcalico.org/namespace) && projectcalico.org/orchestrator == \"k8s\")".to_owned();
        let found = policy(ResourceKind::ClusterNetworkPolicy, "db", cluster);
        assert_eq!(found, Some((PolicyKind::ClusterNetworkPolicy, pods, 1)));
        let isolated = "projectcalico.org/namespace == \"shop\"".to_owned();
        for bad in [&b"\xff"[..], b"", b"[]", b"{}", br#"{"metadata":1,"spec":[]}"#] {
            assert_eq!(policy(np, "shop/db", bad), Some((PolicyKind::NetworkPolicy, isolated.clone(), 0)));
            let of_kubernetes = policy(ResourceKind::KubernetesNetworkPolicy, "shop/db", bad);
            let pods = format!("(projectcalico.org/orchestrator == \"k8s\" && {isolated})");
            assert_eq!(of_kubernetes, Some((PolicyKind::KubernetesNetworkPolicy, pods, 0)));
            // It could be the whole cluster, which is not isolated by mistake.
            assert_eq!(policy(gnp, "db", bad), None);
            assert_eq!(policy(ResourceKind::ClusterNetworkPolicy, "db", bad), None);
        }
    }
}
