//! Writes: which requests they need, and what their failures mean.

use std::time::{Duration, Instant};

use russet_kube::testing::Fault;
use russet_model::Key;
use russet_store::{Step, Store, StoreError};
use russet_store_kube::Group;
use serde_json::json;

use crate::bench::{Bench, block, count, handle, node};

#[tokio::test]
async fn a_writer_of_its_own_objects_reads_nothing() {
    // kubernetes.md K40, section 1.15
    let bench = Bench::new();
    let first = bench.one(Step::create(handle("net.a"), count(1))).await.unwrap();
    let since = bench.server.seen().len();
    let second = bench.one(Step::update(handle("net.a"), count(2), first)).await.unwrap();
    bench.one(Step::delete(handle("net.a"), Some(second))).await.unwrap();
    assert_eq!(bench.requests(since), ["PUT ipamhandles/net.a", "DELETE ipamhandles/net.a"]);
    let deletion: serde_json::Value =
        serde_json::from_str(&bench.server.seen().last().unwrap().body).unwrap();
    assert_eq!(deletion["preconditions"]["resourceVersion"], second.0.to_string());
    assert!(deletion["preconditions"]["uid"].is_string() && deletion["propagationPolicy"].is_null());
}

#[tokio::test]
async fn the_requests_of_a_claim_are_calicos() {
    // kubernetes.md K42, sections 1.13 and 7.8
    let bench = Bench::new();
    bench.store.group().await.unwrap();
    let since = bench.server.seen().len();
    let affinity = Key::affinity(&node("node-a"), block());
    let state = |state: &str| format!(r#"{{"state":"{state}","deleted":false}}"#);
    let pending = bench.one(Step::create(affinity.clone(), state("pending"))).await.unwrap();
    let new = json!({ "cidr": "10.1.0.16/29", "affinity": "host:node-a", "allocations": vec![(); 8], "unallocated": [0, 1, 2, 3, 4, 5, 6, 7],
        "attributes": null, "sequenceNumber": 7, "sequenceNumberForAllocation": {}, "deleted": false });
    bench.one(Step::create(Key::block(block()), new.to_string())).await.unwrap();
    bench.one(Step::update(affinity.clone(), state("confirmed"), pending)).await.unwrap();
    let name = "node-a-10-1-0-16-29";
    let requests = ["POST blockaffinities", "POST ipamblocks", &format!("PUT blockaffinities/{name}")];
    assert_eq!(bench.requests(since), requests);
    let stored = bench.object("BlockAffinity", name).unwrap();
    assert_eq!(stored["metadata"]["labels"]["projectcalico.org/affinity-type"], "host");
    assert_eq!(
        (&stored["spec"]["state"], &stored["spec"]["deleted"]),
        (&json!("confirmed"), &json!("false"))
    );
}

#[tokio::test]
async fn an_unchanged_write_leaves_the_object_and_its_revision() {
    // kubernetes.md K22 and K01
    let bench = Bench::new();
    bench.server.put(json!({ "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock",
        "metadata": { "name": "10-1-0-16-29", "annotations": { "projectcalico.org/metadata": "{\"creationTimestamp\":null}", "x/y": "z" } },
        "spec": { "cidr": "10.1.0.16/29", "affinity": "host:node-a", "allocations": [0], "unallocated": [], "attributes": [{ "handle_id": "net.a" }],
            "sequenceNumber": 7, "sequenceNumberForAllocation": { "0": 6 }, "strictAffinity": false, "deleted": false, "future": 1 } }));
    let before = bench.object("IPAMBlock", "10-1-0-16-29");
    let record = bench.get(&Key::block(block())).await.unwrap();
    let revision = bench.one(Step::update(record.key, record.value, record.revision)).await.unwrap();
    assert_eq!((revision, bench.object("IPAMBlock", "10-1-0-16-29")), (record.revision, before));
}

#[tokio::test]
async fn an_object_of_another_process_is_read_before_it_is_written() {
    let bench = Bench::new();
    let first = bench.one(Step::create(handle("net.a"), count(1))).await.unwrap();
    let other = bench.other();
    let second = other.commit(vec![Step::update(handle("net.a"), count(2), first)]).await.unwrap()[0];
    let error = bench.one(Step::update(handle("net.a"), count(3), first)).await.unwrap_err();
    assert!(matches!(error, StoreError::Conflict { .. }), "{error}");
    let error = bench.one(Step::delete(handle("net.a"), Some(first))).await.unwrap_err();
    assert!(matches!(error, StoreError::Conflict { .. }), "{error}");
    bench.one(Step::delete(handle("net.a"), Some(second))).await.unwrap();
    let error = other.commit(vec![Step::delete(handle("net.a"), Some(second))]).await.unwrap_err().error;
    assert!(matches!(error, StoreError::NotFound { .. }), "{error}");
}

#[tokio::test]
async fn a_handle_is_found_and_removed_in_either_spelling() {
    // kubernetes.md K27
    let bench = Bench::new();
    bench.one(Step::create(handle("net.ABC"), count(1))).await.unwrap();
    let error = bench.one(Step::create(handle("net.abc"), count(1))).await.unwrap_err();
    assert!(matches!(error, StoreError::AlreadyExists { .. }), "{error}");
    let record = bench.get(&handle("net.abc")).await.unwrap();
    let revision = bench.one(Step::update(record.key, count(2), record.revision)).await.unwrap();
    assert_eq!(bench.object("IPAMHandle", "net.abc").unwrap()["spec"]["handleID"], "net.ABC");
    bench.one(Step::delete(handle("net.abc"), Some(revision))).await.unwrap();
    assert!(bench.get(&handle("net.ABC")).await.is_none());
}

#[tokio::test]
async fn a_network_name_that_the_api_would_refuse_sends_no_request() {
    // kubernetes.md K28
    let bench = Bench::new();
    let error = bench.one(Step::create(handle("my_net.a"), count(1))).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Invalid { reason, .. } if reason.contains("another name")),
        "{error}"
    );
    assert!(bench.server.seen().is_empty());
}

#[tokio::test]
async fn what_a_peer_has_half_deleted_is_absent_and_its_name_is_free() {
    // kubernetes.md K51, section 1.12
    let bench = Bench::new();
    bench.one(Step::create(handle("net.a"), count(1))).await.unwrap();
    let mut object = bench.object("IPAMHandle", "net.a").unwrap();
    object["spec"]["deleted"] = json!(true);
    bench.server.put(object);
    assert!(bench.get(&handle("net.a")).await.is_none());
    let since = bench.server.seen().len();
    bench.one(Step::create(handle("net.a"), count(3))).await.unwrap();
    let requests =
        ["POST ipamhandles", "GET ipamhandles/net.a", "DELETE ipamhandles/net.a", "POST ipamhandles"];
    assert_eq!(bench.requests(since), requests);
    assert_eq!(bench.object("IPAMHandle", "net.a").unwrap()["spec"]["block"]["10.1.0.16/29"], 3);
}

#[tokio::test]
async fn a_lost_answer_is_an_unknown_outcome() {
    // kubernetes.md K60 and K61
    let bench = Bench::new();
    for (fault, is_done) in [(Fault::Unanswered, true), (Fault::Unexecuted, false)] {
        let key = handle(&format!("net.{is_done}"));
        bench.server.lose_next_write(fault);
        let error = bench.one(Step::create(key.clone(), count(1))).await.unwrap_err();
        assert!(error.outcome_unknown(), "{error}");
        assert_eq!(bench.get(&key).await.is_some(), is_done, "{fault:?}");
    }
    bench.store.group().await.unwrap();
    for code in [500, 502, 503, 504] {
        bench.server.fail_next(1, code);
        let error = bench.one(Step::create(handle("net.x"), count(1))).await.unwrap_err();
        assert!(error.outcome_unknown(), "{code}: {error}");
    }
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_an_unknown_outcome() {
    let bench = Bench::new();
    bench.store.group().await.unwrap();
    bench.server.answer_with(vec![b' '; 9 << 20]);
    let error = bench.one(Step::create(handle("net.a"), count(1))).await.unwrap_err();
    assert!(error.outcome_unknown(), "{error}");
    assert!(bench.get(&handle("net.a")).await.is_some(), "it was created");
}

#[tokio::test]
async fn an_overloaded_server_gets_the_write_again_after_the_pause_that_it_asks_for() {
    // kubernetes.md K63
    let bench = Bench::new();
    bench.store.group().await.unwrap();
    let (since, begun) = (bench.server.seen().len(), Instant::now());
    bench.server.fail_next(1, 429);
    bench.one(Step::create(handle("net.a"), count(1))).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(bench.requests(since), ["POST ipamhandles", "POST ipamhandles"]);
}

#[tokio::test]
async fn a_missing_right_is_named() {
    // kubernetes.md K73
    let bench = Bench::new();
    bench.server.forbid("create ipamhandles");
    let error = bench.one(Step::create(handle("net.a"), count(1))).await.unwrap_err();
    assert!(matches!(error, StoreError::Unsupported { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("cannot create resource") && text.contains("grant this right"), "{text}");
    bench.server.set_token("another");
    let since = bench.server.seen().len();
    let error = bench.store.get(&handle("net.a")).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("check the kubeconfig"), "{error}");
    assert_eq!(bench.requests(since).len(), 2, "once with the credentials as they are now");
}

#[tokio::test]
async fn a_too_large_object_is_full_and_not_sent_again() {
    // kubernetes.md K77
    let bench = Bench::new();
    bench.one(Step::create(handle("net.a"), count(1))).await.unwrap();
    let mut object = bench.object("IPAMHandle", "net.a").unwrap();
    object["metadata"]["annotations"]["x/y"] = json!("x".repeat(2_400_000));
    bench.server.put(object);
    let record = bench.get(&handle("net.a")).await.unwrap();
    let since = bench.server.seen().len();
    let error = bench.one(Step::update(record.key, count(2), record.revision)).await.unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
    assert_eq!(bench.requests(since), ["PUT ipamhandles/net.a"]);
}

#[tokio::test]
async fn members_that_the_definitions_lack_are_named_once() {
    // kubernetes.md K35
    let bench = Bench::new();
    bench.server.lack("ipamblocks", "affinityClaimTime");
    let value = json!({ "cidr": "10.1.0.16/29", "affinity": "host:node-a", "affinity_claim_time": "2026-01-02T03:00:00Z", "allocations": [null],
        "unallocated": [0], "attributes": [], "sequenceNumber": 7, "sequenceNumberForAllocation": {}, "deleted": false });
    let first = bench.one(Step::create(Key::block(block()), value.to_string())).await.unwrap();
    bench.one(Step::update(Key::block(block()), value.to_string(), first)).await.unwrap();
    let warnings = bench.store.warnings();
    assert!(matches!(&warnings[..], [one] if one.contains("spec.affinityClaimTime")), "{warnings:?}");
}

#[tokio::test]
async fn the_native_group_is_used_where_only_that_is_served() {
    // kubernetes.md section 1.1, K24
    let bench = Bench::with(Group::V3, |settings| settings);
    assert_eq!(bench.store.group().await.unwrap(), Group::V3);
    let affinity = Key::affinity(&node("node-a"), block());
    bench.one(Step::create(affinity, r#"{"state":"pending","deleted":false}"#)).await.unwrap();
    let stored = bench.object("BlockAffinity", "node-a-10-1-0-16-29").unwrap();
    assert_eq!(stored["spec"]["deleted"], json!(false));
    bench.one(Step::create(Key::ipam_config(), r#"{"auto_allocate_blocks":true}"#)).await.unwrap();
    assert!(bench.object("IPAMConfiguration", "default").is_some());
}

#[tokio::test]
async fn of_two_groups_the_older_one_is_used_until_it_is_locked() {
    // kubernetes.md sections 1.1 and 1.14
    let bench = Bench::new();
    bench.server.install("projectcalico.org");
    let information = |group: &str, ready: bool| {
        bench.server.put(
            json!({ "apiVersion": group, "kind": "ClusterInformation", "metadata": { "name": "default" },
            "spec": { "datastoreReady": ready } }),
        );
    };
    information("crd.projectcalico.org/v1", true);
    information("projectcalico.org/v3", false);
    assert_eq!(bench.other().group().await.unwrap(), Group::V1);
    information("crd.projectcalico.org/v1", false);
    assert_eq!(bench.other().group().await.unwrap(), Group::V1, "both are locked");
    information("projectcalico.org/v3", true);
    assert_eq!(bench.other().group().await.unwrap(), Group::V3);
    let chosen =
        Bench::with(Group::V1, |settings| russet_store_kube::Settings { group: Some(Group::V3), ..settings });
    assert_eq!(chosen.store.group().await.unwrap(), Group::V3, "the operator's choice wins");
}

#[tokio::test]
async fn removed_definitions_are_an_error_until_they_are_there_again() {
    // kubernetes.md K78
    let bench = Bench::new();
    bench.one(Step::create(handle("net.a"), count(1))).await.unwrap();
    bench.server.uninstall(bench.group);
    let error = bench.one(Step::create(handle("net.b"), count(1))).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Unsupported { operation } if operation.contains("does not serve")),
        "{error}"
    );
    let error = bench.one(Step::create(handle("net.b"), count(1))).await.unwrap_err();
    assert!(error.retryable() && error.to_string().contains("install the resource definitions"), "{error}");
    bench.server.install(bench.group);
    bench.one(Step::create(handle("net.b"), count(1))).await.unwrap();
}

#[tokio::test]
async fn affinities_without_labels_get_them() {
    // kubernetes.md K25
    let bench = Bench::new();
    let affinity = Key::affinity(&node("node-a"), block());
    let foreign = Key::affinity(&node("node-b"), "10.1.0.24/29".parse().unwrap());
    for key in [&affinity, &foreign] {
        bench.one(Step::create(key.clone(), r#"{"state":"confirmed","deleted":false}"#)).await.unwrap();
    }
    for name in ["node-a-10-1-0-16-29", "node-b-10-1-0-24-29"] {
        let mut object = bench.object("BlockAffinity", name).unwrap();
        object["metadata"]["labels"] = json!({ "projectcalico.org/affinity-type": "" });
        object["spec"].as_object_mut().unwrap().remove("type");
        bench.server.put(object);
    }
    let own = russet_model::Prefix::affinities_of(&node("node-a"), russet_addr::Family::V4);
    assert!(bench.store.list(&own).await.unwrap().records.is_empty());
    assert_eq!(bench.store.label_affinities(&node("node-a")).await.unwrap(), 1);
    assert_eq!(bench.store.list(&own).await.unwrap().records.len(), 1);
    assert_eq!(bench.store.label_affinities(&node("node-a")).await.unwrap(), 0);
    let others = bench.object("BlockAffinity", "node-b-10-1-0-24-29").unwrap();
    assert_eq!(
        others["metadata"]["labels"]["projectcalico.org/affinity-type"], "",
        "each node repairs its own"
    );
}

#[tokio::test]
async fn endpoints_are_annotations_of_pods_and_nodes_keep_what_is_not_calicos() {
    // kubernetes.md sections 1.7, 1.8, 2.4 and 4.6
    let bench = Bench::new();
    bench.server.put(json!({ "kind": "Pod", "metadata": { "name": "web-0", "namespace": "shop" },
        "spec": { "nodeName": "node-a" }, "status": { "phase": "Pending" } }));
    bench.server.put(json!({ "kind": "Node", "metadata": { "name": "node-a", "labels": { "zone": "a" } }, "spec": { "taints": [{ "key": "t" }] } }));
    let key = Key::workload_endpoint("shop", "node--a-k8s-web--0-eth0").unwrap();
    let record = bench.get(&key).await.unwrap();
    let mut endpoint = russet_model::WorkloadEndpoint::decode(&record.value).unwrap();
    endpoint.spec.ip_networks = vec!["10.1.0.17/32".parse().unwrap()];
    endpoint.spec.container_id = "aaaa1111".to_owned();
    let revision = bench.one(Step::update(key.clone(), endpoint.encode(), record.revision)).await.unwrap();
    let annotation = |name: &str| {
        bench.server.annotation("Pod", "shop", "web-0", &format!("cni.projectcalico.org/{name}"))
    };
    assert_eq!(annotation("podIPs").as_deref(), Some("10.1.0.17/32"));
    bench.one(Step::delete(key.clone(), Some(revision))).await.unwrap();
    assert_eq!(
        (annotation("podIP").as_deref(), annotation("containerID").as_deref()),
        (Some(""), Some("aaaa1111"))
    );
    let error = bench.one(Step::create(key, endpoint.encode())).await.unwrap_err();
    assert!(matches!(error, StoreError::Unsupported { .. }), "{error}");

    let key = Key::node(&node("node-a"));
    let record = bench.get(&key).await.unwrap();
    let mut value = russet_model::Node::decode(&record.value).unwrap();
    value.spec.ipv4_vxlan_tunnel_addr = Some("10.1.0.18".parse().unwrap());
    bench.one(Step::put(key.clone(), value.encode())).await.unwrap();
    let stored = bench.server.object("Node", "", "node-a").unwrap();
    assert_eq!(stored["metadata"]["annotations"]["projectcalico.org/IPv4VXLANTunnelAddr"], "10.1.0.18");
    assert_eq!(
        (&stored["spec"]["taints"][0]["key"], &stored["metadata"]["labels"]["zone"]),
        (&json!("t"), &json!("a"))
    );
    let error = bench.one(Step::delete(key, None)).await.unwrap_err();
    assert!(matches!(error, StoreError::Unsupported { .. }), "{error}");
}
