//! Random states of Calico's kinds, and questions about them. All is valid for Calico, and the listed differences
//! (docs/policy.md, "Where verdicts differ from Felix'") do not occur:
//!
//! * Policies of one order are all GlobalNetworkPolicies: with equal orders Felix 3.28 compares `namespace/name`, and Russet, as
//!   3.32 does, `name/namespace/kind` (policy.md section 1.1).
//! * There is one tier: 3.28 has no other.
//! * `services` have a namespace (policy.md P73).
//! * `doNotTrack` is not asked of a host endpoint for all interfaces, where Felix ignores it.
//! * `notICMP` stands beside the protocol: the kernel refuses the rule that Felix makes without it.
//! * Each address has one endpoint.

use std::net::IpAddr;

use russet_addr::Family;
use russet_testkit::Random;
use russet_verdict::evaluator::Stage;
use russet_verdict::flow::Flow;
use russet_verdict::ir::{Direction, Protocol};
use serde_json::{Map, Value, json};

use super::peer::{NODE, Probe};

/// Questions at each end, stage and direction.
const PROBES: usize = 8;
const NAMESPACES: [&str; 2] = ["red", "blue"];
const ACCOUNTS: [&str; 2] = ["one", "two"];

/// A pod: its node, namespace, name and addresses.
type Pod = (&'static str, &'static str, &'static str, &'static [&'static str]);

const PODS: [Pod; 6] = [
    (NODE, "red", "a", &["10.0.0.1", "fd00::1"]),
    (NODE, "red", "b", &["10.0.0.2"]),
    (NODE, "blue", "c", &["10.0.0.3", "fd00::3"]),
    (NODE, "blue", "d", &["fd00::4"]),
    ("there", "red", "e", &["10.0.1.1", "fd00:0:0:1::1"]),
    ("there", "blue", "f", &["10.0.1.2"]),
];
/// Host endpoints: node, name, interface and expected addresses.
const HOSTS: [Pod; 3] = [
    (NODE, "eth", "eth0", &["192.0.2.1", "2001:db8::1"]),
    (NODE, "rest", "*", &[]),
    ("there", "far", "eth0", &["192.0.2.2"]),
];
/// The local ones, by the names that probes have.
const WORKLOADS: [(&str, &[&str]); 4] =
    [("red/a", PODS[0].3), ("red/b", PODS[1].3), ("blue/c", PODS[2].3), ("blue/d", PODS[3].3)];
/// What is no endpoint.
const OTHERS: [&str; 6] = ["198.51.100.1", "203.0.113.5", "10.0.0.9", "10.1.2.3", "2001:db8:9::1", "fd00::9"];
const NETS: [(&str, Family); 12] = [
    ("10.0.0.0/8", Family::V4),
    ("10.0.0.0/24", Family::V4),
    ("10.0.0.0/30", Family::V4),
    ("10.0.1.2/32", Family::V4),
    ("192.0.2.0/24", Family::V4),
    ("198.51.100.0/25", Family::V4),
    ("0.0.0.0/1", Family::V4),
    ("fd00::/8", Family::V6),
    ("fd00::/64", Family::V6),
    ("fd00::4/128", Family::V6),
    ("2001:db8::/32", Family::V6),
    ("2001:db8:9::/48", Family::V6),
];
const SELECTORS: [&str; 18] = [
    "all()",
    "a == 'x'",
    "a == 'y'",
    "a != 'x'",
    "has(b)",
    "!has(b)",
    "b in {'x', 'y'}",
    "b not in {'x'}",
    "a == 'x' && b == 'y'",
    "a == 'x' || b == 'z'",
    "!(a == 'x' || has(b))",
    "a starts with 'x'",
    "b contains 'z'",
    "b ends with 'y'",
    "projectcalico.org/namespace == 'red'",
    "has(projectcalico.org/namespace)",
    "projectcalico.org/orchestrator == 'k8s'",
    "projectcalico.org/serviceaccount == 'one'",
];
const NAMESPACE_SELECTORS: [&str; 7] = [
    "env == 'x'",
    "env != 'x'",
    "has(env)",
    "!has(env)",
    "all()",
    "projectcalico.org/name == 'red'",
    "env in {'x', 'y'}",
];
/// Those of rules may also ask for what is in no namespace.
const NAMESPACE_SELECTORS_OF_RULES: [&str; 7] = [
    "global()",
    "env == 'x'",
    "env != 'x'",
    "!has(env)",
    "all()",
    "projectcalico.org/name == 'red'",
    "has(env)",
];
const ACCOUNT_SELECTORS: [&str; 4] = ["team == 'x'", "team != 'x'", "all()", "!has(team)"];
const PORTS: [u16; 8] = [22, 53, 79, 80, 81, 90, 8080, 40_000];
const PORT_NAMES: [&str; 2] = ["web", "dns"];
const COUNTED: [&str; 3] = ["TCP", "UDP", "SCTP"];
/// Orders of GlobalNetworkPolicies, some of them equal.
const GLOBAL_ORDERS: [Option<f64>; 5] = [None, Some(-1.0), Some(0.5), Some(10.0), Some(10.0)];
/// Orders of NetworkPolicies, each used once.
const OWN_ORDERS: [f64; 4] = [-2.0, 0.25, 0.75, 11.5];

/// Where a rule stands.
#[derive(Clone, Copy)]
struct Place {
    direction: Direction,
    /// The family of its addresses, which have to be of one.
    family: Family,
}

/// The generator of a state.
pub struct States(Random);

// === impl States ===

impl States {
    pub fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    /// The documents of a state, in random order.
    pub fn documents(&mut self) -> Vec<Value> {
        let mut all: Vec<Value> = PODS.iter().map(|pod| self.workload(*pod)).collect();
        all.extend(HOSTS.iter().map(|host| self.host(*host)));
        for namespace in NAMESPACES {
            if !self.0.once_in(12) {
                all.push(self.namespace(namespace));
            }
            all.extend(ACCOUNTS.iter().map(|account| self.account(namespace, account)));
            all.push(self.set(Some(namespace), "near"));
            all.push(self.slice(namespace));
        }
        all.extend(["wide", "other"].iter().map(|name| self.set(None, name)));
        all.extend((0..self.0.below(5)).map(|index| self.global_policy(index)));
        all.extend((0..=self.0.below(OWN_ORDERS.len())).map(|index| self.policy(index)));
        all.extend((0..self.0.below(3)).map(|index| self.kubernetes_policy(index)));
        let mut shuffled = Vec::new();
        while !all.is_empty() {
            shuffled.push(all.swap_remove(self.0.below(all.len())));
        }
        shuffled
    }

    /// Questions to each end of the node.
    pub fn probes(&mut self) -> Vec<Probe> {
        let of_eth = [Stage::Local, Stage::Forward, Stage::Untracked, Stage::PreDnat];
        let of_rest = [Stage::Local, Stage::Forward, Stage::PreDnat];
        let mut found = Vec::new();
        for direction in [Direction::Ingress, Direction::Egress] {
            for (end, own) in WORKLOADS {
                found.extend(self.asked(end, own, None, direction));
            }
            for (end, stages) in [("eth", &of_eth[..]), ("rest", &of_rest)] {
                for stage in stages {
                    if *stage != Stage::PreDnat || direction == Direction::Ingress {
                        found.extend(self.asked(end, HOSTS[0].3, Some(*stage), direction));
                    }
                }
            }
        }
        found
    }

    fn asked(
        &mut self,
        end: &'static str,
        own: &[&str],
        stage: Option<Stage>,
        direction: Direction,
    ) -> Vec<Probe> {
        (0..PROBES)
            .map(|_| {
                // What is forwarded is neither from nor to the node.
                let own =
                    if stage == Some(Stage::Forward) { self.address() } else { address(self.0.pick(own)) };
                Probe { end, stage, direction, flow: self.flow(own, direction) }
            })
            .collect()
    }

    /// A flow to or from an address.
    fn flow(&mut self, own: IpAddr, direction: Direction) -> Flow {
        let peer = loop {
            let peer = self.address();
            if Family::of(peer) == Family::of(own) {
                break peer;
            }
        };
        let icmp = if own.is_ipv4() { Protocol::ICMP } else { Protocol::ICMPV6 };
        let protocols = [Protocol::TCP, Protocol::TCP, Protocol::UDP, Protocol::SCTP, icmp, Protocol(47)];
        let protocol = protocols[self.0.below(protocols.len())];
        let mut port = || PORTS[self.0.below(PORTS.len())];
        let (source_port, destination_port) = match protocol.has_ports() {
            true => (port(), port()),
            false if protocol == icmp => (0, [0x0800, 0x0801, 0x0000, 0x8000][self.0.below(4)]),
            false => (0, 0),
        };
        let (source, destination) = match direction {
            Direction::Ingress => (peer, own),
            Direction::Egress => (own, peer),
        };
        Flow { source, destination, protocol, source_port, destination_port }
    }

    fn address(&mut self) -> IpAddr {
        let owned = PODS.iter().chain(&HOSTS).flat_map(|(.., addresses)| addresses.iter());
        let all: Vec<&str> = owned.chain(&OTHERS).copied().collect();
        address(self.0.pick(&all))
    }

    fn some<T>(&mut self, one_in: usize, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.0.once_in(one_in).then(|| make(self))
    }

    fn labels(&mut self) -> Map<String, Value> {
        let mut labels = Map::new();
        for (key, values) in [("a", &["x", "y"][..]), ("b", &["x", "y", "z"])] {
            labels.extend(self.some(2, |it| (key.to_owned(), it.0.pick(values).into())));
        }
        labels
    }

    fn named_ports(&mut self) -> Vec<Value> {
        let mut port = || json!({"name": self.0.pick(&PORT_NAMES), "protocol": self.0.pick(&COUNTED), "port": PORTS[self.0.below(PORTS.len())]});
        let all = [port(), port(), port()];
        all.into_iter().take(self.0.below(4)).collect()
    }

    fn workload(&mut self, (node, namespace, name, addresses): Pod) -> Value {
        let account = self.0.pick(&ACCOUNTS);
        let mut labels = self.labels();
        labels.insert("projectcalico.org/namespace".to_owned(), namespace.into());
        labels.insert("projectcalico.org/orchestrator".to_owned(), "k8s".into());
        // Keys of a namespace's labels do not count on a pod.
        labels.extend(self.some(8, |it| ("pcns.env".to_owned(), it.0.pick(&["x", "y"]).into())));
        let own = format!("kns.{namespace}");
        let of_account = format!("ksa.{namespace}.{account}");
        let profiles = match self.0.below(12) {
            0 => vec![],
            1 => vec!["unknown".to_owned(), own],
            2 => vec!["projectcalico-default-allow".to_owned(), own],
            3 => vec![of_account, own],
            _ => vec![own, of_account],
        };
        let nets: Vec<String> =
            addresses.iter().map(|ip| format!("{ip}/{}", if ip.contains(':') { 128 } else { 32 })).collect();
        let metadata =
            json!({"name": format!("{node}-k8s-{name}-eth0"), "namespace": namespace, "labels": labels});
        let account = if self.0.once_in(8) { "" } else { account };
        let spec = json!({"node": node, "orchestrator": "k8s", "pod": name, "endpoint": "eth0", "interfaceName": format!("cali{name}"),
            "serviceAccountName": account, "ipNetworks": nets, "profiles": profiles, "ports": self.named_ports()});
        object("WorkloadEndpoint", metadata, spec)
    }

    fn host(&mut self, (node, name, interface, addresses): Pod) -> Value {
        let profiles = match self.0.below(6) {
            0 => json!(["unknown"]),
            1 | 2 => json!(["projectcalico-default-allow"]),
            _ => json!([]),
        };
        object(
            "HostEndpoint",
            json!({"name": name, "labels": self.labels()}),
            json!({"node": node, "interfaceName": interface, "expectedIPs": addresses, "profiles": profiles, "ports": self.named_ports()}),
        )
    }

    fn namespace(&mut self, name: &str) -> Value {
        let mut labels = Map::from_iter([("pcns.projectcalico.org/name".to_owned(), name.into())]);
        labels.extend(self.some(2, |it| ("pcns.env".to_owned(), it.0.pick(&["x", "y"]).into())));
        let mut rules = |direction| match self.0.once_in(5) {
            true => self.rules(direction, None),
            false => vec![json!({"action": "Allow"})],
        };
        let (ingress, egress) = (rules(Direction::Ingress), rules(Direction::Egress));
        object(
            "Profile",
            json!({"name": format!("kns.{name}")}),
            json!({"ingress": ingress, "egress": egress, "labelsToApply": labels}),
        )
    }

    fn account(&mut self, namespace: &str, name: &str) -> Value {
        let mut labels = Map::from_iter([("pcsa.projectcalico.org/name".to_owned(), name.into())]);
        labels.extend(self.some(2, |it| ("pcsa.team".to_owned(), it.0.pick(&["x", "y"]).into())));
        object(
            "Profile",
            json!({"name": format!("ksa.{namespace}.{name}")}),
            json!({"labelsToApply": labels}),
        )
    }

    fn set(&mut self, namespace: Option<&str>, name: &str) -> Value {
        let nets: Vec<&str> = (0..self.0.below(4)).map(|_| NETS[self.0.below(NETS.len())].0).collect();
        let kind = if namespace.is_some() { "NetworkSet" } else { "GlobalNetworkSet" };
        let mut metadata = json!({"name": name, "labels": self.labels()});
        if let Some(namespace) = namespace {
            metadata["namespace"] = namespace.into();
        }
        object(kind, metadata, json!({"nets": nets}))
    }

    /// The endpoints of the Service `s` of a namespace.
    fn slice(&mut self, namespace: &str) -> Value {
        let addresses = ["10.0.0.2", "10.0.1.1", "10.0.1.2", "198.51.100.1"];
        let endpoints: Vec<Value> = (0..=self.0.below(2))
            .map(|_| json!({"addresses": [self.0.pick(&addresses)], "conditions": {"ready": self.0.once_in(2)}}))
            .collect();
        let mut ports = vec![
            json!({"name": "p", "protocol": self.0.pick(&COUNTED), "port": PORTS[self.0.below(PORTS.len())]}),
        ];
        ports.extend(self.some(4, |_| json!({"name": "any"})));
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "s-1", "namespace": namespace, "labels": {"kubernetes.io/service-name": "s"}},
            "endpoints": endpoints, "ports": ports})
    }
}

pub fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A resource of Calico.
pub fn object(kind: &str, metadata: Value, spec: Value) -> Value {
    json!({"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": metadata, "spec": spec})
}

mod policies;
