//! The cluster in which cases are judged: pods a, b and c in the namespaces x, y and z, as in the
//! end-to-end tests of Kubernetes, two dual-stack pods, a node and an external address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use russet_addr::{IfName, NodeName};
use serde_json::Value;

use super::Change;
use crate::explain::Probe;
use crate::ir::{Action, Order, Profile, Protocol, Rule, Tier, TierDefault};
use crate::world::{Config, Endpoint, EndpointKey, EndpointKind, NamedPort, Node, Update};

/// The namespaces. Each has the label `ns` with its name.
pub const NAMESPACES: [&str; 3] = ["x", "y", "z"];
/// The pods of each namespace. Each has the label `pod` with its name.
pub const PODS: [&str; 3] = ["a", "b", "c"];
/// The pods that have an address of each family, in the namespace z.
const DUAL_STACK: [&str; 2] = ["d", "e"];
/// The ports on which every pod serves each protocol.
const SERVED: [u16; 2] = [80, 81];
/// The nodes: even pods are on the first.
const NODES: [&str; 2] = ["n1", "n2"];

/// An end of probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// `x/a`, `node`, `external`.
    pub name: String,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
}

/// The updates that make the cluster.
pub fn cluster() -> Vec<Update> {
    let mut updates = vec![Update::Config(Config {
        node: NODES[0].into(),
        own_addresses: BTreeSet::from([node_address(0)]),
        cluster_nets: ["10.244.0.0/16", "fd00:10:244::/48"]
            .iter()
            .filter_map(|net| net.parse().ok())
            .collect(),
        allow_without_profile: true,
    })];
    let tiers = [
        ("kube-admin", 1_000.0, TierDefault::Pass),
        ("default", 1_000_000.0, TierDefault::Deny),
        ("kube-baseline", 10_000_000.0, TierDefault::Pass),
    ];
    for (name, order, default_action) in tiers {
        updates
            .push(Update::Tier(name.into(), Some(Tier { order: Order::new(Some(order)), default_action })));
    }
    for (index, name) in NODES.into_iter().enumerate() {
        let labels = BTreeMap::from([("node".into(), name.into())]);
        let node = Node { addresses: BTreeSet::from([node_address(index)]), labels };
        updates.extend(NodeName::new(name).ok().map(|name| Update::Node(name, Some(Arc::new(node)))));
    }
    for namespace in NAMESPACES {
        updates.push(self::namespace(namespace, namespace));
        updates.extend(PODS.iter().map(|name| pod(namespace, name, name)));
    }
    updates.extend(DUAL_STACK.iter().map(|name| pod("z", name, name)));
    updates
}

/// The ends of probes: the pods, a node (which is also what a pod with the host's network is), and an
/// address outside the cluster.
pub fn hosts() -> Vec<Host> {
    let of = |namespace: &str, name: &str| Host {
        name: format!("{namespace}/{name}"),
        addresses: addresses(namespace, name).into_iter().collect(),
    };
    let mut found: Vec<Host> =
        NAMESPACES.iter().flat_map(|namespace| PODS.iter().map(|name| of(namespace, name))).collect();
    found.extend(DUAL_STACK.iter().map(|name| of("z", name)));
    found.push(Host { name: "node".to_owned(), addresses: vec![node_address(1)] });
    found.push(Host { name: "external".to_owned(), addresses: vec![[203, 0, 113, 7].into()] });
    found
}

/// What is probed between each two ends.
pub fn probes() -> Vec<Probe> {
    let served = [Protocol::TCP, Protocol::UDP, Protocol::SCTP]
        .into_iter()
        .flat_map(|protocol| SERVED.map(|port| Probe { protocol, port }));
    served.chain([Probe { protocol: Protocol::ICMP, port: 0 }]).collect()
}

/// A pod of the cluster, whose label `pod` has this value.
pub fn pod(namespace: &str, name: &str, label: &str) -> Update {
    let text = |text: &str| -> Arc<str> { text.into() };
    let ports = [("tcp", Protocol::TCP), ("udp", Protocol::UDP), ("sctp", Protocol::SCTP)];
    let endpoint = Endpoint {
        kind: EndpointKind::Workload,
        namespace: Some(text(namespace)),
        name: text(name),
        node: text(if index(name).is_multiple_of(2) { NODES[0] } else { NODES[1] }),
        addresses: addresses(namespace, name),
        labels: BTreeMap::from([
            (text("pod"), text(label)),
            (text("projectcalico.org/namespace"), text(namespace)),
            (text("projectcalico.org/orchestrator"), text("k8s")),
        ]),
        profiles: vec![format!("kns.{namespace}").into()],
        ports: ports
            .into_iter()
            .flat_map(|(word, protocol)| {
                SERVED.map(|port| NamedPort { name: format!("serve-{port}-{word}").into(), protocol, port })
            })
            .collect(),
        local: IfName::new(format!("pod-{namespace}-{name}")).ok(),
        age: 0,
    };
    Update::Endpoint(EndpointKey(format!("{namespace}/{name}").into()), Some(Arc::new(endpoint)))
}

/// The profile of a namespace, whose label `ns` has this value.
fn namespace(name: &str, label: &str) -> Update {
    let labels = [
        ("pcns.ns", label),
        ("pcns.kubernetes.io/metadata.name", name),
        ("pcns.projectcalico.org/name", name),
    ];
    let allow = vec![Rule::any(Action::Allow, "")];
    let profile = Profile {
        ingress: allow.clone(),
        egress: allow,
        labels: labels.into_iter().map(|(key, value)| (key.into(), value.into())).collect(),
    };
    Update::Profile(format!("kns.{name}").into(), Some(Arc::new(profile)))
}

fn addresses(namespace: &str, name: &str) -> BTreeSet<IpAddr> {
    let third = NAMESPACES.iter().position(|it| *it == namespace).map_or(9, |place| place + 1);
    let (third, last) = (u8::try_from(third).unwrap_or(9), u8::try_from(index(name) + 1).unwrap_or(9));
    let four = IpAddr::from([10, 244, third, last]);
    let six = IpAddr::from([0xfd00, 0x10, 0x244, u16::from(third), 0, 0, 0, u16::from(last)]);
    if DUAL_STACK.contains(&name) { BTreeSet::from([four, six]) } else { BTreeSet::from([four]) }
}

/// The place of a pod's letter in the alphabet.
fn index(name: &str) -> usize {
    name.bytes().next().map_or(0, |letter| usize::from(letter.saturating_sub(b'a')))
}

fn node_address(index: usize) -> IpAddr {
    [192, 168, 0, u8::try_from(index + 1).unwrap_or(9)].into()
}

/// What a value of the feature `change` does. `policy` is the first policy with other ports.
pub(super) fn changes(value: &str, policy: &dyn Fn(&str) -> Value) -> Vec<Change> {
    let world = |update| vec![Change::World(update)];
    match value {
        "change-rule" => vec![Change::Apply(policy("changed"))],
        "label-pod" => world(pod("y", "a", "b")),
        "label-namespace" => world(namespace("y", "z")),
        "add-pod" => world(pod("x", "f", "a")),
        "remove-pod" => world(Update::Endpoint(EndpointKey("y/b".into()), None)),
        "delete" => vec![Change::Delete(policy("absent"))],
        _ => Vec::new(),
    }
}
