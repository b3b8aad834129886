//! The demo in a Kubernetes cluster, as a user runs it.

use crate::host::{HostState, Russet, demo_turn};
use russet_testkit::kubernetes::Release;
use rustix::process::Signal;
use serde_json::Value;

/// The directory of the programs that tests have built.
fn programs() -> String {
    let programs = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd"];
    let [apiserver, ..] = programs.map(|name| Release::Older.program(name));
    apiserver.parent().unwrap().display().to_string()
}

/// Every ordered pair of pods, and the outside host, answered; the manifest's pools are IPv4.
fn assert_reached_over_ipv4(report: &Value, nodes: usize, pods: usize) {
    let all = |name: &str| report[name].as_array().unwrap();
    assert_eq!((all("nodes").len(), all("pods").len()), (nodes, pods));
    for node in all("nodes") {
        let of_node = |pod: &&Value| pod["node"] == node["name"];
        assert_eq!(all("pods").iter().filter(of_node).count(), pods / nodes, "{report}");
    }
    assert_eq!(all("pings").len(), pods * (pods - 1) + pods, "a pair is missing");
    for ping in all("pings") {
        assert_eq!((&ping["ok"], &ping["family"]), (&true.into(), &4.into()), "{ping}");
    }
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: kube-apiserver, kube-controller-manager, kube-scheduler, etcd"]
fn a_cluster_gets_its_network_from_the_manifest_and_leaves_nothing() {
    let _turn = demo_turn();
    let before = HostState::now();
    let programs = programs();
    let args = ["--kubernetes", "--kubernetes-programs", &programs, "--nodes", "2", "--pods", "2"];
    let report = Russet::demo(&args).json();
    assert_reached_over_ipv4(&report, 2, 4);
    let cluster = &report["kubernetes"];
    assert!(cluster["version"].as_str().unwrap().starts_with("v1."), "{cluster}");
    for step in ["apiserver_ready_ms", "nodes_ready_ms", "pods_running_ms"] {
        assert!(cluster[step].as_u64().unwrap() > 0, "{step} of {cluster}");
    }
    assert_eq!(HostState::now(), before);
    // Interrupted while the control plane starts, and while the manifest's pods do.
    for marker in ["kube-apiserver", "russet.yaml applied", "a Deployment of"] {
        let mut demo = Russet::demo(&args).start();
        demo.wait_for_progress(marker);
        demo.signal(Signal::INT);
        let output = demo.finish();
        assert!(!output.status.success(), "interrupted at {marker:?}");
        assert_eq!(HostState::now(), before, "interrupted at {marker:?}");
    }
}
