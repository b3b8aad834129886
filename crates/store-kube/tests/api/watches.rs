//! Watches: faults of the server and of single objects.

use std::time::Duration;

use russet_model::{Key, Prefix, ResourceKind};
use russet_store::{Event, Step, Store, StoreError};
use russet_store_kube::{Group, Pauses};
use serde_json::json;

use crate::bench::{Bench, count, handle, next, within};

#[tokio::test]
async fn a_server_that_cannot_stream_lists_is_asked_once() {
    // kubernetes.md K71 and K12
    let bench = Bench::new();
    bench.server.refuse_watch_lists();
    for _ in 0..3 {
        let mut watch = bench.store.watch(&Prefix::handles()).await.unwrap();
        assert!(matches!(next(&mut watch).await, Event::Snapshot(_)));
    }
    let asked = bench.server.seen().iter().filter(|seen| seen.path.contains("sendInitialEvents")).count();
    assert_eq!(asked, 1);
}

#[tokio::test]
async fn a_streamed_list_is_one_request() {
    // kubernetes.md section 4.2
    let bench = Bench::new();
    bench.one(Step::create(handle("net.a"), count(1))).await.unwrap();
    let since = bench.server.seen().len();
    let mut watch = bench.store.watch(&Prefix::handles()).await.unwrap();
    let Event::Snapshot(snapshot) = next(&mut watch).await else { panic!("the first event is the snapshot") };
    assert_eq!(snapshot.records.len(), 1);
    bench.one(Step::create(handle("net.b"), count(1))).await.unwrap();
    assert!(matches!(next(&mut watch).await, Event::Put(record) if record.key == handle("net.b")));
    let sent = bench.requests(since);
    assert_eq!(sent.iter().filter(|request| *request == "GET ipamhandles").count(), 1, "{sent:?}");
}

#[tokio::test]
async fn an_end_of_the_watch_resumes_at_the_bookmark() {
    // kubernetes.md K68
    let bench = Bench::new();
    let mut watch = bench.store.watch(&Prefix::handles()).await.unwrap();
    next(&mut watch).await;
    // A change of another resource moves the revision, which only a bookmark tells.
    bench.one(Step::create(Key::ipam_config(), r#"{"auto_allocate_blocks":true}"#)).await.unwrap();
    let bookmarked = bench.server.revision();
    bench.server.bookmark();
    bench.server.end_watches();
    let resumes_there = async {
        let wanted = format!("resourceVersion={bookmarked}");
        while !bench
            .server
            .seen()
            .iter()
            .any(|seen| seen.path.contains("watch=true") && seen.path.contains(&wanted))
        {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    within(resumes_there).await;
    bench.one(Step::create(handle("net.a"), count(1))).await.unwrap();
    assert!(matches!(next(&mut watch).await, Event::Put(record) if record.key == handle("net.a")));
}

#[tokio::test]
async fn lists_after_a_restart_are_spread_by_the_number_of_nodes() {
    // kubernetes.md K76
    let bench = Bench::new();
    assert_eq!(
        bench.store.client().spread(Pauses::RELIST),
        Pauses::RELIST,
        "nothing is known of the cluster"
    );
    let node = |name: &str| {
        let metadata =
            json!({ "name": name, "annotations": { "projectcalico.org/IPv4Address": "10.0.0.1/24" } });
        bench.server.put(json!({ "kind": "Node", "metadata": metadata }));
    };
    ["n1", "n2", "n3"].iter().for_each(|name| node(name));
    let mut watch = bench.store.watch(&Prefix::nodes()).await.unwrap();
    assert!(matches!(next(&mut watch).await, Event::Snapshot(snapshot) if snapshot.records.len() == 3));
    // The watch notes the number after it has reported the change.
    within(spread_is(&bench, Duration::from_millis(108))).await;
    node("n4");
    assert!(matches!(next(&mut watch).await, Event::Put(_)));
    within(spread_is(&bench, Duration::from_millis(144))).await;
    // A watch of one node says nothing about the cluster.
    let mut one =
        bench.store.watch(&Prefix::from_stored(Key::node(&"n1".parse().unwrap()).as_str())).await.unwrap();
    next(&mut one).await;
    within(spread_is(&bench, Duration::from_millis(144))).await;
}

async fn spread_is(bench: &Bench, wanted: Duration) {
    while bench.store.client().spread(Pauses::RELIST) != wanted {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_server_that_was_restored_from_a_backup_is_listed_again() {
    // kubernetes.md K69
    let bench = Bench::new();
    for n in 0..20 {
        bench.one(Step::create(handle(&format!("net.{n}")), count(1))).await.unwrap();
    }
    let mut watch = bench.store.watch(&Prefix::handles()).await.unwrap();
    next(&mut watch).await;
    bench.server.delete(&format!("IPAMHandle.{}", bench.group), "", "net.7");
    bench.server.restore(5);
    bench.server.end_watches();
    loop {
        match next(&mut watch).await {
            Event::Deleted { key, .. } => break assert_eq!(key, handle("net.7")),
            Event::Put(record) => assert_eq!(record.revision.0, 5),
            Event::Snapshot(_) => panic!("a snapshot comes once"),
        }
    }
    bench.one(Step::create(handle("net.new"), count(1))).await.unwrap();
    loop {
        if matches!(next(&mut watch).await, Event::Put(record) if record.key == handle("net.new")) {
            break;
        }
    }
}

#[tokio::test]
async fn what_a_peer_marks_as_deleted_is_reported_as_removed() {
    // kubernetes.md section 1.12
    let bench = Bench::new();
    bench.one(Step::create(handle("net.a"), count(1))).await.unwrap();
    let mut watch = bench.store.watch(&Prefix::handles()).await.unwrap();
    next(&mut watch).await;
    let mut object = bench.object("IPAMHandle", "net.a").unwrap();
    object["spec"]["deleted"] = json!(true);
    bench.server.put(object);
    assert!(matches!(next(&mut watch).await, Event::Deleted { key, .. } if key == handle("net.a")));
    bench.server.delete(&format!("IPAMHandle.{}", bench.group), "", "net.a");
    bench.one(Step::create(handle("net.b"), count(1))).await.unwrap();
    assert!(matches!(next(&mut watch).await, Event::Put(record) if record.key == handle("net.b")), "once");
}

#[tokio::test]
async fn one_invalid_pod_costs_no_relist_and_keeps_its_last_valid_form() {
    // kubernetes.md K32
    let bench = Bench::new();
    let put = |name: &str, floating: &str| {
        bench.server.put(json!({ "kind": "Pod", "metadata": { "name": name, "namespace": "shop",
                "annotations": { "cni.projectcalico.org/floatingIPs": floating } },
            "spec": { "nodeName": "node-a" }, "status": { "podIP": "10.1.0.17" } }));
    };
    for n in 0..1000 {
        put(&format!("web-{n}"), "[]");
    }
    let mut watch = bench.store.watch(&Prefix::workload_endpoints()).await.unwrap();
    let Event::Snapshot(snapshot) = next(&mut watch).await else { panic!("the first event is the snapshot") };
    assert_eq!(snapshot.records.len(), 1000);
    knows_cluster(&bench).await;
    let since = bench.server.seen().len();
    for n in 0..10 {
        put("web-0", &format!("rubbish {n}"));
    }
    put("web-1", r#"["203.0.113.9"]"#);
    let key = |name: &str| Key::workload_endpoint("shop", &format!("node--a-k8s-{name}-eth0")).unwrap();
    assert!(matches!(next(&mut watch).await, Event::Put(record) if record.key == key("web--1")));
    put("web-0", "[]");
    assert!(matches!(next(&mut watch).await, Event::Put(record) if record.key == key("web--0")));
    assert_eq!(bench.requests(since), Vec::<String>::new());
}

#[tokio::test]
async fn a_watch_of_several_collections_is_one_watch() {
    // kubernetes.md section 1.9: profiles are namespaces and service accounts
    let bench = Bench::new();
    bench.server.put(json!({ "kind": "Namespace", "metadata": { "name": "shop" } }));
    let mut watch = bench.store.watch(&Prefix::resources(ResourceKind::Profile)).await.unwrap();
    let Event::Snapshot(snapshot) = next(&mut watch).await else { panic!("the first event is the snapshot") };
    assert_eq!(
        snapshot.records.iter().map(|record| record.key.clone()).collect::<Vec<_>>(),
        [Key::profile("kns.shop").unwrap()]
    );
    bench.server.put(json!({ "kind": "ServiceAccount", "metadata": { "name": "web", "namespace": "shop" } }));
    assert!(
        matches!(next(&mut watch).await, Event::Put(record) if record.key == Key::profile("ksa.shop.web").unwrap())
    );
    bench.server.delete("Namespace", "", "shop");
    assert!(
        matches!(next(&mut watch).await, Event::Deleted { key, .. } if key == Key::profile("kns.shop").unwrap())
    );
}

#[tokio::test]
async fn a_watch_that_is_refused_says_so_and_goes_on_later() {
    // kubernetes.md K73
    let bench = Bench::new();
    let mut watch = bench.store.watch(&Prefix::handles()).await.unwrap();
    next(&mut watch).await;
    knows_cluster(&bench).await;
    bench.server.fail_next(1, 403);
    bench.server.end_watches();
    let error = within(watch.next()).await.unwrap_err();
    assert!(matches!(error, StoreError::Unsupported { .. }), "{error}");
    bench.one(Step::put(handle("net.b"), count(1))).await.unwrap();
    loop {
        if matches!(next(&mut watch).await, Event::Put(record) if record.key == handle("net.b")) {
            break;
        }
    }
}

/// Waits until the store has looked which cluster this is.
pub async fn knows_cluster(bench: &Bench) {
    let known = async {
        while !bench.server.seen().iter().any(|seen| seen.path.ends_with("/kube-system")) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    within(known).await;
}

/// Waits until the handles are listed again.
async fn listed_again(bench: &Bench, since: usize) {
    let is_list = |path: &str| path.contains("/ipamhandles?limit=500");
    let listed = async {
        while !bench.server.seen()[since..].iter().any(|seen| is_list(&seen.path)) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    within(listed).await;
}

#[tokio::test]
async fn another_cluster_behind_the_address_is_listed_anew() {
    // kubernetes.md section 4.2 item 5, K69
    let bench = Bench::new();
    let namespace =
        |uid: &str| json!({ "kind": "Namespace", "metadata": { "name": "kube-system", "uid": uid } });
    bench.server.put(namespace("one"));
    let mut watch = bench.store.watch(&Prefix::handles()).await.unwrap();
    next(&mut watch).await;
    knows_cluster(&bench).await;
    bench.one(Step::create(handle("net.a"), count(1))).await.unwrap();
    assert!(matches!(next(&mut watch).await, Event::Put(_)));
    let since = bench.server.seen().len();
    bench.server.put(namespace("two"));
    bench.server.end_watches();
    listed_again(&bench, since).await;
}

#[tokio::test]
async fn an_event_that_is_no_json_is_dropped_alone() {
    // kubernetes.md section 4.2 item 6, K32
    let bench = Bench::new();
    let mut watch = bench.store.watch(&Prefix::handles()).await.unwrap();
    next(&mut watch).await;
    let since = bench.server.seen().len();
    for bad in [
        "nonsense",
        r#"{"type":"RUMOUR","object":{}}"#,
        r#"{"type":"ADDED","object":{"metadata":{"name":"\ud800"}}}"#,
    ] {
        bench.server.send_line(bad);
    }
    bench.one(Step::create(handle("net.a"), count(1))).await.unwrap();
    assert!(matches!(next(&mut watch).await, Event::Put(record) if record.key == handle("net.a")));
    let sent = bench.requests(since);
    assert!(!sent.iter().any(|request| request == "GET ipamhandles"), "the watch stays open: {sent:?}");
}

#[tokio::test]
async fn a_long_lived_process_follows_a_migration_to_the_other_group() {
    // kubernetes.md sections 1.1 and 1.14, K111
    let bench = Bench::new();
    let information = |group: &str, ready: bool| {
        bench.server.put(
            json!({ "apiVersion": group, "kind": "ClusterInformation", "metadata": { "name": "default" },
            "spec": { "datastoreReady": ready } }),
        );
    };
    information("crd.projectcalico.org/v1", true);
    let mut watch = bench.store.watch(&Prefix::resources(ResourceKind::ClusterInformation)).await.unwrap();
    next(&mut watch).await;
    assert_eq!(bench.store.group().await.unwrap(), Group::V1);
    bench.server.install("projectcalico.org");
    information("projectcalico.org/v3", true);
    information("crd.projectcalico.org/v1", false);
    assert!(matches!(next(&mut watch).await, Event::Put(_)), "the old group is locked");
    let moved = async {
        while bench.store.group().await.unwrap() == Group::V1 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    within(moved).await;
    let Event::Put(record) = next(&mut watch).await else { panic!("the new group's object is another") };
    assert!(String::from_utf8(record.value).unwrap().contains(r#""datastoreReady":true"#));
}

#[tokio::test]
async fn the_deletion_of_a_policys_old_object_keeps_the_policy() {
    // kubernetes.md sections 1.3 and 1.4: before 3.32 the object of policy `p` was `default.p`
    let bench = Bench::new();
    let policy = |name: &str, order: u64| {
        bench.server.put(json!({ "apiVersion": "crd.projectcalico.org/v1", "kind": "GlobalNetworkPolicy", "metadata": { "name": name },
            "spec": { "tier": "default", "order": order } }));
    };
    policy("default.p", 1);
    let mut watch = bench.store.watch(&Prefix::resources(ResourceKind::GlobalNetworkPolicy)).await.unwrap();
    next(&mut watch).await;
    policy("p", 2);
    let Event::Put(record) = next(&mut watch).await else { panic!("the policy has changed") };
    let kind = format!("GlobalNetworkPolicy.{}", bench.group);
    let delete = |name: &str| bench.server.delete(&kind, "", name);
    delete("default.p");
    policy("q", 3);
    let Event::Put(other) = next(&mut watch).await else { panic!("the policy is still there") };
    assert_ne!(other.key, record.key);
    delete("p");
    assert!(matches!(next(&mut watch).await, Event::Deleted { key, .. } if key == record.key));
}
