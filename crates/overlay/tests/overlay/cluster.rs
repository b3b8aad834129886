//! Nodes in network namespaces of their own on one bridge, for kernel tests. Everything runs on a
//! thread in the bridge's namespace.

use std::sync::Arc;

use russet_linux::NetNs;
use russet_overlay::controller::{Controller, compare, differences};
use russet_overlay::{Encapsulation, Inputs, ReconcileReport, Reconciler, desired};
use russet_testkit::bridge::{add_addresses, index_and_mtu, on_bridge, with_bridge};
use russet_testkit::sh;

use crate::scene::{Build, alone, name, net};

/// One node: namespace `nI`, interface `w0` with 192.168.77.I/24 and fd77::I/64, a "pod" address 10.1.I.5 on its loopback.
pub struct Node {
    pub ns: NetNs,
    pub inputs: Inputs,
    reconciler: Reconciler,
}

pub const NODES: usize = 3;

/// Runs `body` with three nodes whose inputs name each other and that have not run yet.
pub fn with_nodes(encapsulation: Encapsulation, body: impl FnOnce(&mut Vec<Node>) + Send) {
    with_bridge(|| {
        let mut nodes: Vec<Node> = (1..=NODES).map(|number| node(number, encapsulation)).collect();
        body(&mut nodes);
    });
}

fn node(number: usize, encapsulation: Encapsulation) -> Node {
    let namespace = format!("n{number}");
    let underlay = [format!("192.168.77.{number}/24"), format!("fd77::{number}/64")];
    let ns = on_bridge(&namespace, &underlay);
    add_addresses(&namespace, "lo", &[format!("10.1.{number}.5/32"), format!("fd10::{number}:5/128")]);
    let mut inputs = alone().pool("10.1.0.0/16", encapsulation).pool("fd10::/48", encapsulation);
    inputs.nodes.clear();
    inputs.node = name(&format!("node-{number}"));
    (inputs.underlay.ifindex, _) = index_and_mtu(&namespace, "w0");
    inputs.underlay.addresses = underlay.iter().map(|address| net(address)).collect();
    for peer in 1..=NODES {
        let name = format!("node-{peer}");
        inputs = inputs
            .v4(&name, &format!("192.168.77.{peer}/24"), &format!("10.1.{peer}.1"))
            .v6(&name, &format!("fd77::{peer}/64"), &format!("fd10::{peer}:1"))
            .claim(&name, &format!("10.1.{peer}.0/26"))
            .claim(&name, &format!("fd10::{peer}:0/122"));
    }
    let reconciler = ns.with(Reconciler::new).unwrap().unwrap();
    Node { ns, inputs, reconciler }
}

// === impl Node ===

impl Node {
    /// A run that must not fail.
    #[track_caller]
    pub fn reconcile(&mut self) -> ReconcileReport {
        let Node { ns, reconciler, inputs } = self;
        let report = ns.with(|| reconciler.reconcile(inputs)).unwrap();
        assert_eq!(report.failed, 0, "{:?}", report.errors);
        report
    }

    /// A run that may fail.
    pub fn try_reconcile(&mut self) -> ReconcileReport {
        let Node { ns, reconciler, inputs } = self;
        ns.with(|| reconciler.reconcile(inputs)).unwrap()
    }

    pub fn drift(&mut self) -> Vec<String> {
        let Node { ns, reconciler, inputs } = self;
        reconciler.set(Some(Arc::new(desired(inputs))));
        ns.with(|| differences(reconciler)).unwrap().unwrap()
    }

    /// A run that ends after some changes. Returns how many it would have made.
    pub fn break_off_after(&mut self, changes: usize) -> usize {
        let Node { ns, reconciler, inputs } = self;
        ns.with(|| {
            let mut report = ReconcileReport::default();
            reconciler.set(Some(Arc::new(desired(inputs))));
            let mut comparison = compare(reconciler, &mut report).unwrap().unwrap();
            let all = comparison.differences.len();
            comparison.differences.truncate(changes);
            reconciler.apply(comparison, &mut report).unwrap();
            all
        })
        .unwrap()
    }

    /// Removes the tunnels' guard; returns whether there was one.
    pub fn withdraw_guard(&mut self) -> bool {
        let Node { ns, reconciler, .. } = self;
        ns.with(|| reconciler.withdraw_guard()).unwrap().unwrap()
    }

    pub fn withdraw(&mut self) -> ReconcileReport {
        let Node { ns, reconciler, inputs } = self;
        let nothing = Inputs { pools: Vec::new(), affinities: Vec::new(), ..inputs.clone() };
        ns.with(|| reconciler.reconcile(&nothing)).unwrap()
    }
}

/// Every node's pod reaches every other node's, in both families.
#[track_caller]
pub fn assert_reachable() {
    for from in 1..=NODES {
        for to in (1..=NODES).filter(|to| *to != from) {
            sh(&format!("ip netns exec n{from} ping -c 1 -W 5 -I 10.1.{from}.5 10.1.{to}.5"));
            sh(&format!("ip netns exec n{from} ping -6 -c 1 -W 5 -I fd10::{from}:5 fd10::{to}:5"));
        }
    }
}
