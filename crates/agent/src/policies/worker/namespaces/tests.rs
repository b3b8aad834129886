use std::sync::Arc;

use russet_journal::EndpointTable;
use serde_json::{Value, json};

use super::*;
use crate::config::Paths;
use crate::fast_path::Signal;
use crate::health::Readiness;
use crate::metrics::PolicyMetrics;
use crate::policies::alone::Marker;
use crate::policies::{Change, Shared, Source};

fn object(namespace: &str, name: &str) -> Value {
    json!({ "metadata": { "namespace": namespace, "name": name, "labels": { "team": name } },
        "spec": { "nodeName": "n2" }, "status": { "podIP": "10.1.0.2" } })
}

#[test]
fn a_namespace_keeps_its_labels_until_its_last_pod_is_gone() {
    // policy.md P140
    let dir = tempfile::tempdir().unwrap();
    let shared = Arc::new(Shared::new(Source::Kubernetes));
    let metrics = (PolicyMetrics::default(), Readiness::pending());
    let mut worker = Worker::new(
        "n1",
        (EndpointTable::default(), &Signal::default()),
        Marker::new(&Paths::new(dir.path())),
        shared,
        metrics,
    );
    let has_labels = |worker: &Worker| worker.profiles.contains("kns.shop");
    let shop = || object("", "shop");
    for (kind, objects) in [
        (Kind::Namespaces, vec![shop(), object("", "shops")]),
        (Kind::Pods, vec![object("shop", "a"), object("shop", "b"), object("shops", "c")]),
    ] {
        worker.take(Change::Begin(kind));
        objects.into_iter().for_each(|it| worker.take(Change::Put(kind, it)));
        worker.take(Change::Complete(kind));
    }
    worker.take(Change::Deleted(Kind::Namespaces, shop()));
    worker.take(Change::Deleted(Kind::Pods, object("shop", "a")));
    assert!(has_labels(&worker));
    worker.take(Change::Deleted(Kind::Pods, object("shop", "b")));
    assert!(!has_labels(&worker) && worker.profiles.contains("kns.shops"));

    // It is created again before its last pod is gone.
    worker.take(Change::Put(Kind::Namespaces, shop()));
    worker.take(Change::Put(Kind::Pods, object("shop", "a")));
    worker.take(Change::Deleted(Kind::Namespaces, shop()));
    worker.take(Change::Put(Kind::Namespaces, shop()));
    worker.take(Change::Deleted(Kind::Pods, object("shop", "a")));
    assert!(has_labels(&worker));

    // Lists that leave out both, in the order that would take the labels first.
    worker.take(Change::Put(Kind::Pods, object("shop", "a")));
    for (kind, left) in [(Kind::Namespaces, object("", "shops")), (Kind::Pods, object("shops", "c"))] {
        assert!(has_labels(&worker));
        worker.take(Change::Begin(kind));
        worker.take(Change::Put(kind, left));
        worker.take(Change::Complete(kind));
    }
    assert!(!has_labels(&worker) && worker.ending.is_empty());

    // Without pods it goes at once.
    worker.take(Change::Put(Kind::Namespaces, shop()));
    worker.take(Change::Deleted(Kind::Namespaces, shop()));
    assert!(!has_labels(&worker));
}
