//! Short builders of inputs for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use russet_addr::{IpNet, NodeName};
use russet_overlay::{
    Addresses, Affinity, AffinityState, Borrowed, Dialect, Encapsulation, Inputs, Pool, Reason, Subject,
    Tunnel, Underlay, desired,
};

pub fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub fn name(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

fn addresses(underlay: &str, tunnel: &str) -> Addresses {
    let tunnel = Some(tunnel).filter(|text| !text.is_empty()).map(ip);
    Addresses {
        underlay: Some(underlay).filter(|text| !text.is_empty()).map(net),
        tunnel,
        mac: None,
        probe: None,
    }
}

/// Node `me` on 192.168.77.1/24 and fd77::1/64, interface 3, MTU 1500; no pools.
pub fn alone() -> Inputs {
    let inputs = Inputs {
        node: name("me"),
        dialect: Dialect::Native,
        tunnel: Tunnel::default(),
        senders: Default::default(),
        underlay: Underlay {
            ifindex: 3,
            mtu: 1500,
            addresses: vec![net("192.168.77.1/24"), net("fd77::1/64"), net("fe80::1/64")],
        },
        nodes: BTreeMap::new(),
        pools: Vec::new(),
        affinities: Vec::new(),
        borrowed: Vec::new(),
        own_pods: BTreeSet::new(),
        protected: BTreeSet::new(),
        probes: [None, None],
    };
    inputs.v4("me", "192.168.77.1/24", "10.1.0.1").v6("me", "fd77::1/64", "fd10::1")
}

pub trait Build: Sized {
    fn pool(self, cidr: &str, encapsulation: Encapsulation) -> Self;
    fn v4(self, node: &str, underlay: &str, tunnel: &str) -> Self;
    fn v6(self, node: &str, underlay: &str, tunnel: &str) -> Self;
    fn claim(self, node: &str, block: &str) -> Self;
    fn claim_in(self, node: &str, block: &str, state: AffinityState) -> Self;
    fn borrows(self, node: &str, address: &str) -> Self;
    fn mac(self, node: &str, mac: &str) -> Self;
}

impl Build for Inputs {
    fn pool(mut self, cidr: &str, encapsulation: Encapsulation) -> Self {
        self.pools.push(Pool { cidr: net(cidr), encapsulation, nat_outgoing: true });
        self
    }

    fn v4(mut self, node: &str, underlay: &str, tunnel: &str) -> Self {
        self.nodes.entry(name(node)).or_default().v4 = addresses(underlay, tunnel);
        self
    }

    fn v6(mut self, node: &str, underlay: &str, tunnel: &str) -> Self {
        self.nodes.entry(name(node)).or_default().v6 = addresses(underlay, tunnel);
        self
    }

    fn claim(self, node: &str, block: &str) -> Self {
        self.claim_in(node, block, AffinityState::Confirmed)
    }

    fn claim_in(mut self, node: &str, block: &str, state: AffinityState) -> Self {
        self.affinities.push(Affinity { block: block.parse().unwrap(), node: name(node), state });
        self
    }

    fn borrows(mut self, node: &str, address: &str) -> Self {
        self.borrowed.push(Borrowed { address: ip(address), node: name(node) });
        self
    }

    fn mac(mut self, node: &str, mac: &str) -> Self {
        self.nodes.get_mut(&name(node)).unwrap().v4.mac = Some(mac.parse().unwrap());
        self
    }
}

/// The routes as text, in order.
pub fn routes(inputs: &Inputs) -> Vec<String> {
    let hop = |hop| match hop {
        russet_overlay::Hop::Tunnel(gateway) => format!("tunnel {gateway}"),
        russet_overlay::Hop::Connected => "connected".to_owned(),
        russet_overlay::Hop::Underlay { ifindex, gateway } => format!("via {gateway} dev {ifindex}"),
        russet_overlay::Hop::Link(ifindex) => format!("dev {ifindex}"),
        russet_overlay::Hop::Blackhole => "blackhole".to_owned(),
    };
    desired(inputs).routes.into_iter().map(|(dst, to)| format!("{dst} {}", hop(to))).collect()
}

/// The refusals with their reasons.
pub fn refused(inputs: &Inputs) -> Vec<(Subject, Reason)> {
    desired(inputs).refusals.into_iter().map(|refusal| (refusal.subject, refusal.reason)).collect()
}
