//! Nodes in network namespaces of their own on one bridge, for kernel tests. Everything runs on a
//! thread in the bridge's namespace.

use russet_linux::NetNs;
use russet_overlay::{Encapsulation, Inputs, ReconcileReport, Reconciler};
use russet_testkit::{in_netns_with_loopback, run};

use crate::scene::{Build, alone, name, net};

/// One node: namespace `nI`, interface `w0` with 192.168.77.I/24 and fd77::I/64, a "pod" address 10.1.I.5 on its loopback.
pub struct Node {
    pub ns: NetNs,
    pub inputs: Inputs,
    reconciler: Reconciler,
}

pub const NODES: usize = 3;

/// Splits a command at its blanks and runs it; panics when it fails.
#[track_caller]
pub fn sh(command: &str) -> String {
    let words: Vec<&str> = command.split_whitespace().collect();
    run(words[0], &words[1..])
}

pub fn succeeds(command: &str) -> bool {
    let words: Vec<&str> = command.split_whitespace().collect();
    let output = std::process::Command::new(words[0]).args(&words[1..]).output().unwrap();
    output.status.success()
}

/// Runs `body` with three nodes whose inputs name each other and that have not run yet.
pub fn with_nodes(encapsulation: Encapsulation, body: impl FnOnce(&mut Vec<Node>) + Send) {
    in_netns_with_loopback(|| {
        sh("ip link add br0 type bridge");
        sh("ip link set br0 up");
        let mut nodes: Vec<Node> = (1..=NODES).map(|number| node(number, encapsulation)).collect();
        body(&mut nodes);
    });
}

fn node(number: usize, encapsulation: Encapsulation) -> Node {
    let namespace = format!("n{number}");
    let ns = NetNs::create_named(&namespace).unwrap();
    sh(&format!("ip link add port{number} type veth peer name w0 netns {namespace}"));
    sh(&format!("ip link set port{number} master br0 up"));
    let ip = |command: &str| sh(&format!("ip -n {namespace} {command}"));
    ip("link set lo up");
    ip("link set w0 up");
    ip(&format!("addr add 192.168.77.{number}/24 dev w0"));
    ip(&format!("addr add fd77::{number}/64 dev w0 nodad"));
    ip(&format!("addr add 10.1.{number}.5/32 dev lo"));
    ip(&format!("addr add fd10::{number}:5/128 dev lo nodad"));
    let shown: serde_json::Value = serde_json::from_str(&ip("-j link show dev w0")).unwrap();
    let mut inputs = alone().pool("10.1.0.0/16", encapsulation).pool("fd10::/48", encapsulation);
    inputs.nodes.clear();
    inputs.node = name(&format!("node-{number}"));
    inputs.underlay.ifindex = u32::try_from(shown[0]["ifindex"].as_u64().unwrap()).unwrap();
    inputs.underlay.addresses =
        vec![net(&format!("192.168.77.{number}/24")), net(&format!("fd77::{number}/64"))];
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
        ns.with(|| reconciler.start(inputs).pending()).unwrap()
    }

    /// A run that is dropped after some steps.
    pub fn break_off_after(&mut self, steps: usize) {
        let Node { ns, reconciler, inputs } = self;
        ns.with(|| {
            let mut run = reconciler.start(inputs);
            (0..steps).for_each(|_| assert!(run.step()));
        })
        .unwrap();
    }

    /// Removes the tunnels' guard; returns whether there was one.
    pub fn withdraw_guard(&mut self) -> bool {
        let Node { ns, reconciler, .. } = self;
        ns.with(|| reconciler.withdraw_guard()).unwrap().unwrap()
    }

    pub fn withdraw(&mut self) -> ReconcileReport {
        let Node { ns, reconciler, inputs } = self;
        ns.with(|| reconciler.withdraw(inputs.dialect)).unwrap()
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
