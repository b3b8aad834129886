//! What is freed and what is kept.

use std::time::Duration;

use russet_controller::{Outcome, Report, Settings};
use russet_model::{Handle, Key};
use russet_store::Step;
use serde_json::json;

use crate::bench::{Bench, handle, kind, settings, until};

fn outcome(report: &Report, address: std::net::IpAddr) -> Option<Outcome> {
    let addresses = report.nodes.iter().flat_map(|node| &node.addresses);
    let mut of = addresses.filter(|it| it.address == address.to_string());
    of.next().map(|it| it.outcome)
}

#[tokio::test]
async fn a_deleted_node_gives_back_its_pods_addresses_then_its_tunnels_then_its_blocks() {
    // kubernetes.md K82
    let bench = Bench::with(&["n1", "n2"]).await;
    let (gone, tunnel) = (bench.pod("n1", "web-0").await, bench.tunnel("n1").await);
    let living = bench.pod("n2", "web-1").await;
    bench.heartbeat("n1").renew(None).await.unwrap();
    bench.delete_node("n1", &["web-0"]);
    let mut order = Vec::new();
    bench
        .run(Settings { once: true, ..settings("a") }, |report| {
            for address in [gone, tunnel] {
                if outcome(report, address) == Some(Outcome::Freed) {
                    order.push((address, report.nodes[0].phase));
                }
            }
            false
        })
        .await;
    assert_eq!(order, [(gone, "addresses"), (tunnel, "everything")]);
    assert!(bench.is_allocated(living).await);
    let left = bench.names("/calico/ipam/v2/").await;
    assert_eq!(left.iter().filter(|key| key.contains("n1") || key.contains("web-0")).count(), 0, "{left:?}");
    assert_eq!(left.len(), 3, "block, affinity and handle of n2: {left:?}");
    assert_eq!(bench.server.object("Lease.coordination.k8s.io", "kube-node-lease", "russet-n1"), None);
    let events = bench.writes().into_iter().filter(|seen| seen.path.ends_with("/namespaces/default/events"));
    assert_eq!(events.count(), 1);
}

#[tokio::test]
async fn an_agent_that_lives_keeps_everything_of_a_deleted_node() {
    // kubernetes.md K81
    let bench = Bench::with(&["n1", "n2"]).await;
    let address = bench.pod("n1", "web-0").await;
    let beat = tokio::spawn(bench.heartbeat("n1").run());
    until("the agent renews", async || {
        bench.server.object("Lease.coordination.k8s.io", "kube-node-lease", "russet-n1").is_some()
    })
    .await;
    bench.delete_node("n1", &["web-0"]);
    let mut looks = 0;
    bench
        .run(settings("a"), |report| {
            looks += 1;
            assert!(report.nodes.iter().all(|node| node.phase == "waiting"), "{report}");
            looks == 60
        })
        .await;
    assert!(bench.is_allocated(address).await);
    beat.abort();
    bench.once().await;
    assert!(!bench.is_allocated(address).await, "it fell silent");
}

#[tokio::test]
async fn pods_that_report_an_address_and_unknown_owners_keep_theirs_and_the_rest_is_freed() {
    // kubernetes.md K88 and K89
    let bench = Bench::with(&["n1", "n2"]).await;
    let finished = bench.pod("n1", "finished").await;
    let elsewhere = bench.pod("n1", "elsewhere").await;
    let annotated = bench.pod("n1", "annotated").await;
    let unknown = bench.address("n1", "service", None).await;
    let gone = bench.pod("n1", "gone").await;
    let pod = |name: &str, node: &str, address: &str| {
        json!({ "kind": "Pod", "metadata": { "namespace": "shop", "name": name, "annotations": {} },
            "spec": { "nodeName": node }, "status": { "phase": "Running", "podIP": address } })
    };
    let mut object = pod("finished", "n1", &finished.to_string());
    object["status"]["phase"] = json!("Succeeded");
    bench.server.put(object);
    bench.server.put(pod("elsewhere", "n2", &elsewhere.to_string()));
    let mut object = pod("annotated", "n1", "fd00::1");
    object["metadata"]["annotations"]["cni.projectcalico.org/podIPs"] =
        json!(format!("fd00::1/128,{annotated}/32"));
    bench.server.put(object);
    bench.delete_node("n1", &["gone"]);
    let report = bench.once().await;
    let kept = [finished, elsewhere, annotated].map(|address| outcome(&report, address));
    assert_eq!(kept, [Some(Outcome::Kept); 3], "{report}");
    assert_eq!(outcome(&report, unknown), Some(Outcome::Unknown));
    assert!(report.has_problems());
    assert!(!bench.is_allocated(gone).await);
    for address in [finished, elsewhere, annotated, unknown] {
        assert!(bench.is_allocated(address).await, "{address}");
    }
}

#[tokio::test]
async fn a_cache_that_lacks_a_node_frees_nothing_of_it() {
    // kubernetes.md K70
    let bench = Bench::with(&["n1"]).await;
    bench.server.freeze_cache();
    bench.server.put(json!({ "kind": "Node", "metadata": { "name": "n2" } }));
    let pod = bench.pod("n2", "web-0").await;
    let report = bench.once().await;
    assert!(report.nodes.is_empty(), "{report}");
    assert!(bench.is_allocated(pod).await);
}

#[tokio::test]
async fn a_node_that_comes_back_in_time_keeps_its_blocks_and_its_tunnel() {
    // kubernetes.md K83
    let bench = Bench::with(&["n1", "n2"]).await;
    let (tunnel, pod) = (bench.tunnel("n1").await, bench.pod("n1", "web-0").await);
    bench.delete_node("n1", &["web-0"]);
    let long = Settings {
        limits: russet_controller::Limits { tunnel_grace: Duration::from_secs(600), ..settings("a").limits },
        ..settings("a")
    };
    bench.run(long.clone(), |report| outcome(report, pod) == Some(Outcome::Freed)).await;
    bench.server.put(json!({ "kind": "Node", "metadata": { "name": "n1" } }));
    let report = bench.run(long, |_| true).await;
    assert!(report.nodes.is_empty() && bench.is_allocated(tunnel).await);
    assert_eq!(bench.names("/calico/ipam/v2/host/n1/").await.len(), 1);
}

#[tokio::test]
async fn nodes_that_vanish_together_wait_for_an_operator() {
    // kubernetes.md K84
    let names: Vec<String> = (0..20).map(|n| format!("n{n}")).collect();
    let nodes: Vec<&str> = names.iter().map(String::as_str).collect();
    let bench = Bench::with(&nodes).await;
    let mut addresses = Vec::new();
    for node in &nodes[..5] {
        addresses.push(bench.pod(node, &format!("pod-{node}")).await);
        bench.delete_node(node, &[&format!("pod-{node}")]);
    }
    let client = russet_kube::Client::new(bench.server.source()).unwrap();
    let namespace = settings("a").namespace;
    let mut looks = 0;
    let stopped = bench
        .run(settings("a"), |report| {
            looks += 1;
            assert!(report.stopped.is_some(), "{report}");
            looks == 20
        })
        .await;
    assert_eq!(stopped.stopped.unwrap().nodes.len(), 5);
    assert!(bench.is_allocated(addresses[0]).await);
    let annotation = bench.lease().unwrap()["metadata"]["annotations"]["russet.dev/gc-stopped"].clone();
    assert!(annotation.as_str().unwrap().contains("n4"), "{annotation}");
    let confirmed = russet_controller::resume(&client, &namespace).await.unwrap();
    assert_eq!(confirmed.len(), 5);
    // Another leader does as the operator said.
    bench.run(Settings { once: true, ..settings("b") }, |_| false).await;
    for address in addresses {
        assert!(!bench.is_allocated(address).await);
    }
}

#[tokio::test]
async fn handles_without_addresses_are_removed_and_wrong_counts_corrected() {
    // kubernetes.md K87
    let bench = Bench::with(&["n1"]).await;
    let address = bench.pod("n1", "web-0").await;
    let block = bench.allocator.holder_of(address).await.unwrap().unwrap().block;
    let mut orphan = Handle::default();
    orphan.set(block, 1);
    let put = |name: &str, counts: &Handle| Step::put(Key::handle(&handle(name)), counts.encode());
    for step in [put("orphan", &orphan), put("empty", &Handle::default())] {
        bench.store.commit(vec![step]).await.unwrap();
    }
    let mut wrong = Handle::default();
    wrong.set(block, 3);
    wrong.set("10.1.0.248/29".parse().unwrap(), 1);
    bench.store.commit(vec![put("web-0", &wrong)]).await.unwrap();
    let report = bench.once().await;
    assert!(
        report.handles.is_empty() || report.handles.iter().all(|it| it.outcome == Outcome::Freed),
        "{report}"
    );
    assert_eq!(bench.names("/calico/ipam/v2/handle/").await, ["/calico/ipam/v2/handle/net.web-0"]);
    let record = bench.store.get(&Key::handle(&handle("web-0"))).await.unwrap().unwrap();
    let counted = Handle::decode(&record.value).unwrap();
    assert_eq!(counted.blocks().map(|cidr| (cidr, counted.count(cidr))).collect::<Vec<_>>(), [(block, 1)]);
    assert!(bench.is_allocated(address).await);
}

#[tokio::test]
async fn a_dry_run_says_what_it_would_free_and_writes_nothing() {
    let bench = Bench::with(&["n1", "n2"]).await;
    let address = bench.pod("n1", "web-0").await;
    bench.delete_node("n1", &["web-0"]);
    let before = bench.writes().len();
    let report = bench.run(Settings { dry_run: true, once: true, ..settings("a") }, |_| false).await;
    assert_eq!(outcome(&report, address), Some(Outcome::WouldFree), "{report}");
    assert_eq!(bench.writes().len(), before);
    assert!(bench.is_allocated(address).await && bench.lease().is_none());
}

#[tokio::test]
async fn calicos_controllers_and_a_locked_datastore_make_it_report_only() {
    // kubernetes.md K86
    let bench = Bench::with(&["n1", "n2"]).await;
    let address = bench.pod("n1", "web-0").await;
    bench.delete_node("n1", &["web-0"]);
    bench.server.put(json!({ "kind": "Deployment", "apiVersion": "apps/v1",
        "metadata": { "namespace": "kube-system", "name": "calico-kube-controllers" }, "spec": { "replicas": 1 } }));
    let mut last_phase = "";
    let found = |report: &Report| {
        last_phase = report.nodes[0].phase;
        last_phase == "everything"
    };
    let report = bench.run(settings("a"), found).await;
    assert!(report.reports_only.is_some_and(|reason| reason.contains("calico-kube-controllers")));
    bench.server.delete("Deployment.apps", "kube-system", "calico-kube-controllers");
    bench
        .server
        .put(json!({ "kind": "ClusterInformation", "apiVersion": format!("{}/v1", crate::bench::GROUP),
        "metadata": { "name": "default" }, "spec": { "datastoreReady": false } }));
    let report = bench.run(settings("b"), |report| report.nodes[0].phase == "everything").await;
    assert!(report.reports_only.is_some_and(|reason| reason.contains("locked")));
    assert!(bench.is_allocated(address).await);
    bench.server.delete(&kind("ClusterInformation"), "", "default");
    bench.once().await;
    assert!(!bench.is_allocated(address).await);
}
