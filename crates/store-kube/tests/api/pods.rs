//! Endpoints, which are annotations of pods: what guards their writes.

use russet_model::{Key, WorkloadEndpoint};
use russet_store::{Record, Step, Store, StoreError};
use serde_json::{Value, json};

use crate::bench::Bench;

const NAME: &str = "node--a-k8s-web--0-eth0";

fn key() -> Key {
    Key::workload_endpoint("shop", NAME).unwrap()
}

/// A cluster with one pod that has a node and no addresses.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.server.put(json!({ "kind": "Pod", "metadata": { "name": "web-0", "namespace": "shop" },
        "spec": { "nodeName": "node-a" }, "status": { "phase": "Pending" } }));
    bench
}

fn pod(bench: &Bench) -> Value {
    bench.server.object("Pod", "shop", "web-0").unwrap()
}

/// What kubelet does all the time while a pod starts.
fn write_status(bench: &Bench, phase: &str) {
    let mut object = pod(bench);
    object["status"]["phase"] = json!(phase);
    bench.server.put(object);
}

fn announce(bench: &Bench, record: &Record, container: &str) -> Step {
    let mut endpoint = WorkloadEndpoint::decode(&record.value).unwrap();
    endpoint.spec.ip_networks = vec!["10.1.0.17/32".parse().unwrap()];
    endpoint.spec.container_id = container.to_owned();
    write_status(bench, container);
    Step::update(key(), endpoint.encode(), record.revision)
}

fn address(bench: &Bench) -> Value {
    pod(bench)["metadata"]["annotations"]["cni.projectcalico.org/podIP"].clone()
}

#[tokio::test]
async fn writes_of_kubelet_do_not_fail_an_add() {
    // kubernetes.md sections 2.4 and 4.6, K40
    let bench = bench();
    let record = bench.get(&key()).await.unwrap();
    let step = announce(&bench, &record, "aaaa");
    let since = bench.server.seen().len();
    bench.one(step).await.unwrap();
    assert_eq!(bench.requests(since).len(), 1, "{:?}", bench.requests(since));
    let sent: Value = serde_json::from_str(&bench.server.seen().last().unwrap().body).unwrap();
    assert_eq!(sent["metadata"]["uid"], pod(&bench)["metadata"]["uid"]);
    assert!(sent["metadata"]["resourceVersion"].is_null(), "{sent}");
    assert_eq!(address(&bench), "10.1.0.17/32");
}

#[tokio::test]
async fn another_pod_of_the_name_is_not_written() {
    // kubernetes.md K45
    let bench = bench();
    let record = bench.get(&key()).await.unwrap();
    bench.server.delete("Pod", "shop", "web-0");
    bench.server.put(json!({ "kind": "Pod", "metadata": { "name": "web-0", "namespace": "shop" }, "spec": { "nodeName": "node-a" } }));
    let step = announce(&bench, &record, "aaaa");
    let error = bench.one(step).await.unwrap_err();
    assert!(matches!(error, StoreError::NotFound { .. }), "{error}");
    let error = bench.one(Step::delete(key(), Some(record.revision))).await.unwrap_err();
    assert!(error.lost_race(), "{error}");
    assert_eq!(address(&bench), Value::Null);
}

#[tokio::test]
async fn a_del_empties_the_addresses_of_its_own_sandbox_only() {
    // kubernetes.md section 2.7, K43 and K44
    let bench = bench();
    let record = bench.get(&key()).await.unwrap();
    bench.one(announce(&bench, &record, "aaaa")).await.unwrap();
    let known = bench.get(&key()).await.unwrap();
    let newer = announce(&bench, &known, "bbbb");
    bench.other().commit(vec![newer]).await.unwrap();
    let error = bench.one(Step::delete(key(), Some(known.revision))).await.unwrap_err();
    assert!(matches!(error, StoreError::Conflict { .. }), "{error}");
    assert_eq!(address(&bench), "10.1.0.17/32", "the address is that of the newer sandbox");
}

#[tokio::test]
async fn writes_of_kubelet_do_not_fail_a_del() {
    // kubernetes.md K43
    let bench = bench();
    let record = bench.get(&key()).await.unwrap();
    let written = bench.one(announce(&bench, &record, "aaaa")).await.unwrap();
    write_status(&bench, "Running");
    bench.one(Step::delete(key(), Some(written))).await.unwrap();
    assert_eq!(address(&bench), "");
}

#[tokio::test]
async fn a_deletion_that_waits_for_a_finalizer_is_not_done() {
    // kubernetes.md section 1.5
    let bench = Bench::new();
    let finalizer = "projectcalico.org/ippool-finalizer";
    bench.server.put(json!({ "apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool", "metadata": { "name": "p", "finalizers": [finalizer] },
        "spec": { "cidr": "10.1.0.0/16" } }));
    let key = Key::pool("p").unwrap();
    let record = bench.get(&key).await.unwrap();
    let error = bench.one(Step::delete(key.clone(), Some(record.revision))).await.unwrap_err();
    assert!(error.retryable() && error.to_string().contains(finalizer), "{error}");
    assert!(bench.get(&key).await.is_some(), "it is there until the finalizer is removed");
}
