//! Random updates and questions, over so few names that they meet each other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use russet_addr::{Family, IfName, IpNet, NodeName};
use russet_model::Selector;

use crate::flow::Flow;
use crate::ir::*;
use crate::world::*;

/// A generator of numbers that a seed determines.
pub(in crate::engine) struct Random(u64);

const ADDRESSES: [&str; 12] = [
    "10.0.0.1",
    "10.0.0.2",
    "10.0.0.3",
    "10.0.1.1",
    "10.0.1.2",
    "10.1.0.1",
    "192.0.2.1",
    "192.0.2.9",
    "fd00::1",
    "fd00::2",
    "fd00:0:0:1::1",
    "2001:db8::1",
];
const NETS: [&str; 12] = [
    "10.0.0.0/8",
    "10.0.0.0/16",
    "10.0.0.0/24",
    "10.0.0.0/30",
    "10.0.1.2/32",
    "0.0.0.0/0",
    "192.0.2.0/24",
    "192.0.2.8/29",
    "fd00::/8",
    "fd00::/64",
    "::/0",
    "fd00::2/128",
];
const SELECTORS: [&str; 16] = [
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
    "projectcalico.org/namespace == 'n1'",
    "projectcalico.org/namespace == 'n2' && has(a)",
    "pcns.env == 'x'",
    "has(pcns.env) && a starts with 'x'",
    "a in {}",
    "pcns.env == 'y' && pcns.env != 'x'",
];
const PROTOCOLS: [Protocol; 6] =
    [Protocol::TCP, Protocol::UDP, Protocol::SCTP, Protocol::ICMP, Protocol::ICMPV6, Protocol(47)];
const PORTS: [u16; 8] = [0, 53, 79, 80, 81, 90, 8080, 65535];
const TIERS: [&str; 4] = ["default", "first", "last", "missing"];

impl Random {
    pub(in crate::engine) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below another one (splitmix64).
    pub(in crate::engine) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % end as u64).unwrap()
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn some<T>(&mut self, one_in: usize, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.one_in(one_in).then(|| make(self))
    }

    fn several<T>(&mut self, most: usize, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(most + 1)).map(|_| make(self)).collect()
    }

    pub(in crate::engine) fn shuffled<T: Clone>(&mut self, all: &[T]) -> Vec<T> {
        let mut left = all.to_vec();
        (0..all.len()).map(|_| left.swap_remove(self.below(left.len()))).collect()
    }

    fn address(&mut self) -> IpAddr {
        self.of(&ADDRESSES).parse().unwrap()
    }

    fn net(&mut self) -> IpNet {
        self.of(&NETS).parse().unwrap()
    }

    fn selector(&mut self) -> Selector {
        Selector::parse(self.of(&SELECTORS)).unwrap()
    }

    fn namespace(&mut self) -> Arc<str> {
        self.of(&["n1", "n2"]).into()
    }

    pub(in crate::engine) fn flow(&mut self) -> Flow {
        let source = self.address();
        let destination = loop {
            let address = self.address();
            if Family::of(address) == Family::of(source) {
                break address;
            }
        };
        let protocol = self.of(&PROTOCOLS);
        let is_icmp = matches!(protocol, Protocol::ICMP | Protocol::ICMPV6);
        let port = if is_icmp { self.of(&[0, 1, 0x0800, 0x0801, 0x0900]) } else { self.of(&PORTS) };
        let destination_port = if is_icmp || protocol.has_ports() { port } else { 0 };
        let source_port = if protocol.has_ports() { self.of(&PORTS) } else { 0 };
        Flow { source, destination, protocol, source_port, destination_port }
    }

    /// An update; one in six deletes.
    pub(in crate::engine) fn update(&mut self) -> Update {
        let is_there = !self.one_in(6);
        match self.below(20) {
            0..=6 => {
                let policy = self.policy();
                Update::Policy(policy.id.clone(), is_there.then(|| Arc::new(policy)))
            }
            7 => Update::Tier(self.of(&TIERS[..3]).into(), self.tier().filter(|_| is_there)),
            8 => {
                let (name, profile) = self.profile();
                Update::Profile(name, is_there.then(|| Arc::new(profile)))
            }
            9..=13 => {
                let name = self.of(&["e1", "e2", "e3", "e4", "e5", "e6", "e7"]);
                let endpoint = self.endpoint(name);
                Update::Endpoint(EndpointKey(name.into()), is_there.then(|| Arc::new(endpoint)))
            }
            14 | 15 => {
                let id =
                    SetId { namespace: self.some(2, Self::namespace), name: self.of(&["s1", "s2"]).into() };
                let set = self.set();
                Update::NetworkSet(id, is_there.then(|| Arc::new(set)))
            }
            16 => {
                let id = self.service_id();
                let endpoints = self.several(3, |it| (it.address(), it.of(&PROTOCOLS[..2]), it.of(&PORTS)));
                let without_ports = self.several(1, Self::address);
                let addresses = endpoints.iter().map(|(address, ..)| *address).chain(without_ports).collect();
                let service = Service { addresses, endpoints: endpoints.into_iter().collect() };
                Update::Service(id, is_there.then(|| Arc::new(service)))
            }
            17 => {
                let name = NodeName::new(self.of(&["here", "there"])).unwrap();
                let addresses = self.several(2, Self::address).into_iter().collect();
                let node = Node { addresses, labels: self.labels() };
                Update::Node(name, is_there.then(|| Arc::new(node)))
            }
            18 => {
                let name = self.of(&["default", "other"]).into();
                let rules = self.several(3, |it| (it.one_in(2), it.egress_peer()));
                let firewall = EgressFirewall { rules };
                Update::EgressFirewall(self.namespace(), name, is_there.then(|| Arc::new(firewall)))
            }
            _ => Update::Config(Config {
                node: "here".into(),
                own_addresses: self.several(1, Self::address).into_iter().collect(),
                cluster_nets: self.several(1, Self::net).into_iter().collect(),
                allow_without_profile: self.one_in(2),
            }),
        }
    }

    fn egress_peer(&mut self) -> EgressPeer {
        match self.one_in(2) {
            true => EgressPeer::Net(self.net()),
            false => {
                EgressPeer::Name("example.com".into(), self.several(2, Self::address).into_iter().collect())
            }
        }
    }

    fn policy(&mut self) -> Policy {
        let name: Arc<str> = self.of(&["p1", "p2", "p3", "p4"]).into();
        let kind = self.of(&[PolicyKind::NetworkPolicy, PolicyKind::GlobalNetworkPolicy]);
        let namespace = (kind == PolicyKind::NetworkPolicy).then(|| self.namespace());
        Policy {
            id: PolicyId { kind, namespace, name: name.clone() },
            name,
            tier: self.of(&TIERS).into(),
            order: self.order(),
            subject: self.selector(),
            directions: Directions { ingress: !self.one_in(3), egress: !self.one_in(3) },
            staged: self.some(12, |_| StagedAction::Set),
            host_use: match self.below(12) {
                0 => HostUse::Forward,
                1 => HostUse::Untracked,
                2 => HostUse::PreDnat,
                _ => HostUse::Normal,
            },
            ingress: self.several(4, Self::rule),
            egress: self.several(4, Self::rule),
            problems: Vec::new(),
        }
    }

    fn order(&mut self) -> Order {
        Order::new(self.of(&[None, Some(-1.0), Some(0.5), Some(10.0), Some(10.0)]))
    }

    fn tier(&mut self) -> Option<Tier> {
        let default_action = self.of(&[TierDefault::Deny, TierDefault::Pass]);
        Some(Tier { order: self.order(), default_action })
    }

    fn rule(&mut self) -> Rule {
        Rule {
            action: self.of(&[
                Action::Allow,
                Action::Allow,
                Action::Allow,
                Action::Deny,
                Action::Pass,
                Action::Log,
            ]),
            family: self.some(8, |it| it.of(&Family::BOTH)),
            protocol: self.some(2, |it| it.of(&PROTOCOLS)),
            not_protocol: self.some(10, |it| it.of(&PROTOCOLS)),
            icmp: self.some(12, Self::icmp),
            not_icmp: self.some(12, Self::icmp),
            source: self.entity(12),
            destination: self.entity(3),
            http: false,
            path: "rule".into(),
        }
    }

    fn icmp(&mut self) -> Icmp {
        Icmp { kind: self.of(&[0, 8]), code: self.some(2, |it| it.of(&[0, 1])) }
    }

    /// A side of a rule; one in some asks for ports.
    fn entity(&mut self, ports: usize) -> Entity {
        Entity {
            nets: self.some(5, |it| it.several(2, Self::net)),
            not_nets: self.some(8, |it| it.several(2, Self::net)).unwrap_or_default(),
            selector: self.some(3, Self::selector),
            not_selector: self.some(6, Self::selector),
            nodes: self.some(20, Self::selector),
            service: self.some(20, Self::service_id),
            ports: self.some(ports, |it| it.several(3, Self::port)),
            not_ports: self.some(ports * 4, |it| it.several(2, Self::port)).unwrap_or_default(),
        }
    }

    fn port(&mut self) -> Port {
        match self.below(3) {
            0 => Port::Named(self.of(&["web", "dns"]).into()),
            1 => Port::Range(self.of(&PORTS), self.of(&PORTS)),
            _ => {
                let port = self.of(&PORTS);
                Port::Range(port, port)
            }
        }
    }

    fn service_id(&mut self) -> ServiceId {
        ServiceId { namespace: self.namespace(), name: self.of(&["v1", "v2"]).into() }
    }

    fn labels(&mut self) -> BTreeMap<Arc<str>, Arc<str>> {
        let pairs =
            self.several(2, |it| (it.of(&["a", "b", "pcns.env"]).into(), it.of(&["x", "y", "z"]).into()));
        pairs.into_iter().collect()
    }

    fn profile(&mut self) -> (Arc<str>, Profile) {
        let name = self.of(&["kns.n1", "kns.n2"]).into();
        let profile = Profile {
            ingress: self.several(2, Self::rule),
            egress: self.several(2, Self::rule),
            labels: self.labels(),
        };
        (name, profile)
    }

    fn endpoint(&mut self, name: &str) -> Endpoint {
        let namespace = self.namespace();
        let mut labels = self.labels();
        labels.insert("projectcalico.org/namespace".into(), namespace.clone());
        let kind = match self.one_in(8) {
            true => EndpointKind::Host { interface: "*".into() },
            false => EndpointKind::Workload,
        };
        Endpoint {
            kind,
            namespace: Some(namespace.clone()),
            name: name.into(),
            node: "here".into(),
            addresses: self.several(2, Self::address).into_iter().collect::<BTreeSet<_>>(),
            labels,
            profiles: self.profiles(&namespace),
            ports: self.several(2, |it| NamedPort {
                name: it.of(&["web", "dns"]).into(),
                protocol: it.of(&PROTOCOLS[..3]),
                port: it.of(&PORTS),
            }),
            local: self.some(2, |_| IfName::new("cali1").unwrap()),
            age: self.below(3) as u64,
        }
    }

    fn profiles(&mut self, namespace: &str) -> Vec<Arc<str>> {
        let own = format!("kns.{namespace}").into();
        match self.below(6) {
            0 => Vec::new(),
            1 => vec!["unknown".into(), own],
            2 => vec![own, "projectcalico-default-allow".into()],
            _ => vec![own],
        }
    }

    fn set(&mut self) -> NetworkSet {
        NetworkSet {
            nets: self.several(3, Self::net).into_iter().collect(),
            labels: self.labels(),
            profile: self.some(2, |it| it.of(&["kns.n1", "kns.n2"]).into()),
        }
    }
}
