//! A machine that is lost for good: its agent, its pods and its Node go, and no DEL follows. Only
//! `russet controller`, which also removes handles without addresses, can free what it held.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use super::runtime_thread::Arena;
use super::tracked_node::{PodState, TrackedNode};
use crate::chaos::shared_store::SharedStore;
use crate::chaos::store_records::StoreRecords;
use crate::chaos::victims::Victims;
use crate::node::Answer;

/// Seconds in place of minutes, between the two looks that must agree.
const FLAGS: [&str; 12] = [
    "--once",
    "-o=json",
    "--namespace=kube-system",
    "--grace=1s",
    "--tunnel-grace=2s",
    "--handle-grace=1s",
    "--interval=1s",
    "--leader-elect-lease-duration=4s",
    "--leader-elect-renew-deadline=3s",
    "--leader-elect-retry-period=1s",
    "--log-level=warn",
    "--identity=chaos",
];

/// Loses the last node, and returns the others, after the controller has freed what it held.
pub fn lose_last<'a>(
    arena: &Arena,
    nodes: &'a [TrackedNode],
    victims: &mut Victims<'_>,
) -> &'a [TrackedNode] {
    let (lost, others) = nodes.split_last().unwrap();
    victims.end_agent(others.len());
    let mut containers = BTreeSet::new();
    for entry in lost.forget_all() {
        if let PodState::There(alive, _) = &entry.state {
            arena.owners.give_up(alive);
        }
        containers.insert(entry.pod.container);
    }
    lost.site.remove_pods();
    let held = held(&others[0], &containers);
    assert!(!held.is_empty(), "the lost node had no pod");
    let Some(SharedStore::Kubernetes(cluster)) = victims.shared.as_deref() else {
        panic!("only a Kubernetes cluster has a controller")
    };
    let name = lost.site.name();
    for object in [
        format!("/api/v1/nodes/{name}"),
        // The agent's sign of life, which counts for another six minutes.
        format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/russet-{name}"),
    ] {
        cluster.with(|server| server.delete(&object));
    }
    let report = run_controller(&others[0]).expect("it is a node of a cluster");
    arena.events.note(format_args!("the controller's last look: {report}"));
    let left = self::held(&others[0], &containers);
    assert!(left.is_empty(), "the controller left {left:?} of node {name}: {report}");
    let blocks = others[0].site.node.russet_inside(&["store", "dump", "--prefix", "/calico/ipam/v2/host/"]);
    assert!(!blocks.stdout.contains(&format!("/host/{name}/")), "{}", blocks.stdout);
    println!("the controller freed {} addresses and handles of node {name}", held.len());
    others
}

/// Addresses and handles of containers.
fn held(node: &TrackedNode, containers: &BTreeSet<String>) -> BTreeSet<String> {
    let records = StoreRecords::read(&node.site).unwrap();
    let of_these = |entry: &String| containers.contains(entry.split(' ').next().unwrap_or_default());
    records.held.into_iter().chain(records.handles).filter(of_these).collect()
}

/// Runs the controller of the node's cluster, if it is of one, until its work is done; returns its
/// last report.
pub fn run_controller(node: &TrackedNode) -> Option<Value> {
    let store = node.site.cluster()?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
    command.args(["controller", "--store", store]).args(FLAGS).env_remove("POD_NAME");
    let socket = node.site.node.path("controller.sock");
    command.arg(format!("--health-address=unix:{}", socket.display()));
    let answer: Answer = node.site.node.output(&mut command, "");
    assert_eq!(answer.status, 0, "{answer:?}");
    let last = serde_json::Deserializer::from_str(&answer.stdout).into_iter::<Value>().last();
    Some(last.expect("there is a report").unwrap())
}
