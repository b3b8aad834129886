//! What is probed of each other node, and from where: a pure function of the overlay's inputs and of
//! the state that follows from them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use russet_addr::{Family, IpNet, NodeName};
use russet_overlay::{Desired, Hop, Inputs, device_name};
use serde::{Deserialize, Serialize};

/// The path of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Path {
    /// Through the tunnel, between the addresses of the tunnel devices, as pods' packets pass.
    Tunnel,
    /// By the route to the node's block, as pods' packets pass, to an address there: that of its tunnel device, or one that
    /// the node has only for probes.
    Route,
    /// Between the nodes' own addresses: nothing in the node's blocks is known to answer.
    Underlay,
}

/// How one family of one node is probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Target {
    pub path: Path,
    /// The address that has to answer.
    pub address: IpAddr,
    /// The node's own address, if it is known.
    pub underlay: Option<IpAddr>,
}

/// A node with something to probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub name: NodeName,
    v4: Option<Target>,
    v6: Option<Target>,
}

/// This node's end of all probes of one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Own {
    /// The address of the tunnel device.
    pub tunnel: Option<IpAddr>,
    /// The address that is only for probes.
    pub probe: Option<IpAddr>,
    pub underlay: Option<IpAddr>,
    /// The name of the tunnel device, if there is one.
    pub device: Option<&'static str>,
    /// The largest packet of a pod on each of the paths.
    tunnel_bytes: u32,
    plain_bytes: u32,
}

/// All nodes but this one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Targets {
    /// Sorted by name.
    pub peers: Vec<Peer>,
    own: [Option<Own>; 2],
    /// The tunnels' UDP port.
    pub port: u16,
    /// The index of the interface to the other nodes.
    pub underlay_index: u32,
}

// === impl Path ===

impl Path {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tunnel => "tunnel",
            Self::Route => "route",
            Self::Underlay => "underlay",
        }
    }
}

// === impl Peer ===

impl Peer {
    pub fn target(&self, family: Family) -> Option<&Target> {
        match family {
            Family::V4 => self.v4.as_ref(),
            Family::V6 => self.v6.as_ref(),
        }
    }
}

// === impl Own ===

impl Own {
    /// The address that probes of this path come from.
    pub fn source(&self, path: Path) -> Option<IpAddr> {
        match path {
            Path::Tunnel => self.tunnel,
            Path::Route => self.probe.or(self.tunnel),
            Path::Underlay => self.underlay,
        }
    }

    /// The size of the largest packet that pods send by this path, with its IP header.
    pub fn packet_max_bytes(&self, path: Path) -> u32 {
        match path {
            Path::Tunnel => self.tunnel_bytes,
            Path::Route | Path::Underlay => self.plain_bytes,
        }
    }
}

// === impl Targets ===

impl Targets {
    pub fn new(inputs: &Inputs, desired: &Desired, pod_mtu_bytes: u32) -> Self {
        let own = Family::BOTH.map(|family| own(inputs, desired, family, pod_mtu_bytes));
        let plain: BTreeSet<IpAddr> = desired.routes.values().filter_map(|hop| plain_gateway(*hop)).collect();
        let lengths: BTreeSet<u8> = desired.routes.keys().map(IpNet::prefix_len).collect();
        let others = inputs.nodes.iter().filter(|(name, _)| **name != inputs.node);
        let peers = others.filter_map(|(name, node)| {
            let [v4, v6] = Family::BOTH.map(|family| {
                let own = own[index(family)].as_ref()?;
                let ends = node.of(family);
                let tunnel = ends.tunnel.filter(|address| desired.neighbours.contains_key(address));
                let underlay = ends.underlay.map(|net| net.addr());
                let known = Known { tunnel, probe: ends.probe, underlay };
                target(own, &known, &plain, |address| covering(desired, &lengths, address))
            });
            (v4.is_some() || v6.is_some()).then(|| Peer { name: name.clone(), v4, v6 })
        });
        let peers = peers.collect();
        Self { peers, own, port: inputs.tunnel.port, underlay_index: inputs.underlay.ifindex }
    }

    pub fn peer(&self, name: &NodeName) -> Option<&Peer> {
        let place = self.peers.binary_search_by(|peer| peer.name.cmp(name)).ok()?;
        self.peers.get(place)
    }

    pub fn own(&self, family: Family) -> Option<&Own> {
        self.own[index(family)].as_ref()
    }

    /// The addresses from which probes are sent.
    pub fn sources(&self) -> BTreeSet<IpAddr> {
        self.own.iter().flatten().flat_map(|own| [own.tunnel, own.probe, own.underlay]).flatten().collect()
    }
}

fn index(family: Family) -> usize {
    usize::from(family == Family::V6)
}

/// This node's end, in a family that has pools.
fn own(inputs: &Inputs, desired: &Desired, family: Family, pod_mtu_bytes: u32) -> Option<Own> {
    if !desired.forwarding.contains(&family) {
        return None;
    }
    let device = desired.devices.get(&family);
    let underlay = inputs.nodes.get(&inputs.node).and_then(|node| node.of(family).underlay);
    let is_local = |net: &IpNet| inputs.underlay.addresses.iter().any(|local| local.addr() == net.addr());
    let plain_bytes = pod_mtu_bytes.min(inputs.underlay.mtu);
    Some(Own {
        tunnel: device.and_then(|device| device.address).map(|net| net.addr()),
        probe: desired.probes.iter().copied().find(|address| Family::of(*address) == family),
        underlay: underlay.filter(is_local).map(|net| net.addr()),
        device: device.map(|_| device_name(family)),
        tunnel_bytes: device.map_or(plain_bytes, |device| device.mtu.min(pod_mtu_bytes)),
        plain_bytes,
    })
}

/// The next hop, if it is a node on our subnet.
fn plain_gateway(hop: Hop) -> Option<IpAddr> {
    match hop {
        Hop::Underlay { gateway, .. } => Some(gateway),
        _ => None,
    }
}

/// The longest route that contains an address. `lengths` are those of all routes.
fn covering(desired: &Desired, lengths: &BTreeSet<u8>, address: IpAddr) -> Option<Hop> {
    lengths.iter().rev().find_map(|length| {
        let net = IpNet::new(address, *length).ok()?.trunc();
        desired.routes.get(&net).copied()
    })
}

/// The addresses of a node in one family, as far as its record names them.
struct Known {
    tunnel: Option<IpAddr>,
    probe: Option<IpAddr>,
    underlay: Option<IpAddr>,
}

/// `plain` are the nodes whose blocks are reached without a tunnel; `route` finds an address's route.
fn target(
    own: &Own,
    known: &Known,
    plain: &BTreeSet<IpAddr>,
    route: impl Fn(IpAddr) -> Option<Hop>,
) -> Option<Target> {
    let Known { tunnel, probe, underlay } = *known;
    let is_plain = underlay.is_some_and(|address| plain.contains(&address));
    let by_tunnel_address = tunnel.filter(|_| own.tunnel.is_some()).and_then(|address| {
        match route(address)? {
            Hop::Underlay { .. } => Some((Path::Route, address)),
            // Pods' packets take another path than this address's.
            _ if is_plain => None,
            _ => Some((Path::Tunnel, address)),
        }
    });
    // Any program can write what a node's record says: only an address that is the node's by its block is probed.
    let by_probe_address = || {
        let address = probe.filter(|_| own.probe.is_some())?;
        (underlay.is_some() && route(address).and_then(plain_gateway) == underlay)
            .then_some((Path::Route, address))
    };
    let found = by_tunnel_address.or_else(by_probe_address);
    let (path, address) = found.or(Some((Path::Underlay, underlay?)))?;
    own.source(path)?;
    Some(Target { path, address, underlay })
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use russet_model::AffinityState;
    use russet_overlay::{Addresses, Affinity, Encapsulation, Node, Pool, Underlay, desired};

    use super::*;

    /// A node `n0` and others, which are `far` from it or on its subnet, with pools of both families.
    pub fn inputs(count: u8, encapsulation: Encapsulation, far: bool) -> Inputs {
        let name = |n: u8| NodeName::new(format!("n{n}")).unwrap();
        let net = |text: String| text.parse::<IpNet>().unwrap();
        let address = |text: String| text.parse::<IpAddr>().unwrap();
        let subnet = |n: u8| if far { n } else { 0 };
        let tunnels = encapsulation.needs_tunnel();
        let node = |n: u8| Node {
            v4: Addresses {
                underlay: Some(net(format!("10.77.{}.{}/24", subnet(n), n + 1))),
                tunnel: tunnels.then(|| address(format!("10.244.{n}.1"))),
                mac: None,
                probe: None,
            },
            v6: Addresses {
                underlay: Some(net(format!("fd00:{}::{}/64", subnet(n), n + 1))),
                tunnel: tunnels.then(|| address(format!("fd01::{n}:1"))),
                mac: None,
                probe: None,
            },
        };
        let pool = |cidr: &str| Pool { cidr: cidr.parse().unwrap(), encapsulation, nat_outgoing: false };
        let block = |n: u8, text: String| Affinity {
            block: text.parse().unwrap(),
            node: name(n),
            state: AffinityState::Confirmed,
        };
        let underlay = Underlay {
            ifindex: 2,
            mtu: 1500,
            addresses: vec![net("10.77.0.1/24".to_owned()), net("fd00:0::1/64".to_owned())],
        };
        Inputs {
            node: name(0),
            dialect: Default::default(),
            tunnel: Default::default(),
            senders: Default::default(),
            underlay,
            nodes: (0..count).map(|n| (name(n), node(n))).collect::<BTreeMap<_, _>>(),
            pools: vec![pool("10.244.0.0/16"), pool("fd01::/64")],
            affinities: (0..count)
                .flat_map(|n| [block(n, format!("10.244.{n}.0/26")), block(n, format!("fd01::{n}:0/122"))])
                .collect(),
            borrowed: Vec::new(),
            own_pods: Default::default(),
            protected: Default::default(),
            probes: [None, None],
        }
    }

    fn path(encapsulation: Encapsulation, far: bool, family: Family) -> Option<(Path, String, u32)> {
        let inputs = inputs(3, encapsulation, far);
        let targets = Targets::new(&inputs, &desired(&inputs), 1430);
        let target = targets.peer(&"n2".parse().unwrap())?.target(family)?;
        let own = targets.own(family).unwrap();
        Some((target.path, target.address.to_string(), own.packet_max_bytes(target.path)))
    }

    #[test]
    fn probes_take_the_path_of_pods_packets_where_something_answers_there() {
        let found = |path, address: &str, bytes| Some((path, address.to_owned(), bytes));
        use Encapsulation::{None as Plain, Vxlan, VxlanCrossSubnet};
        assert_eq!(path(Vxlan, false, Family::V4), found(Path::Tunnel, "10.244.2.1", 1430));
        assert_eq!(path(Vxlan, true, Family::V6), found(Path::Tunnel, "fd01::2:1", 1430));
        // The tunnel address is in the block, which has a plain route.
        assert_eq!(path(VxlanCrossSubnet, false, Family::V4), found(Path::Route, "10.244.2.1", 1430));
        // In IPv6 it always has a route to the device.
        assert_eq!(path(VxlanCrossSubnet, false, Family::V6), found(Path::Underlay, "fd00::3", 1430));
        assert_eq!(path(VxlanCrossSubnet, true, Family::V4), found(Path::Tunnel, "10.244.2.1", 1430));
        assert_eq!(path(Plain, false, Family::V4), found(Path::Underlay, "10.77.0.3", 1430));
    }

    /// Nodes that hold an address of each family for probes.
    fn probe_addresses(encapsulation: Encapsulation, far: bool) -> Inputs {
        let mut inputs = inputs(3, encapsulation, far);
        let address = |text: String| text.parse::<IpAddr>().unwrap();
        for (n, node) in inputs.nodes.values_mut().enumerate() {
            node.v4.probe = Some(address(format!("10.244.{n}.2")));
            node.v6.probe = Some(address(format!("fd01::{n}:2")));
        }
        inputs.probes = ["10.244.0.2", "fd01::2"].map(|text| Some(address(text.to_owned())));
        inputs
    }

    fn probed(inputs: &Inputs, family: Family) -> (Path, String, String) {
        let targets = Targets::new(inputs, &desired(inputs), 1430);
        let target = *targets.peer(&"n2".parse().unwrap()).unwrap().target(family).unwrap();
        let source = targets.own(family).unwrap().source(target.path).unwrap();
        assert!(targets.sources().contains(&source));
        (target.path, source.to_string(), target.address.to_string())
    }

    #[test]
    fn nodes_with_addresses_for_probes_are_probed_by_the_routes_to_their_blocks() {
        use Encapsulation::{None as Plain, Vxlan, VxlanCrossSubnet};
        let found = |path, from: &str, to: &str| (path, from.to_owned(), to.to_owned());
        let plain = probe_addresses(Plain, false);
        assert_eq!(probed(&plain, Family::V4), found(Path::Route, "10.244.0.2", "10.244.2.2"));
        assert_eq!(probed(&plain, Family::V6), found(Path::Route, "fd01::2", "fd01::2:2"));
        // The pools without encapsulation lead to no node behind a router.
        let far = probe_addresses(Plain, true);
        assert_eq!(probed(&far, Family::V4), found(Path::Underlay, "10.77.0.1", "10.77.2.3"));
        let cross = probe_addresses(VxlanCrossSubnet, false);
        assert_eq!(probed(&cross, Family::V6), found(Path::Route, "fd01::2", "fd01::2:2"));
        let cross = probe_addresses(VxlanCrossSubnet, true);
        assert_eq!(probed(&cross, Family::V6), found(Path::Tunnel, "fd01::1", "fd01::2:1"));
        let tunnel = probe_addresses(Vxlan, false);
        assert_eq!(probed(&tunnel, Family::V4), found(Path::Tunnel, "10.244.0.1", "10.244.2.1"));
        // Where either node has none, only the nodes' own addresses are left.
        for (theirs, ours) in
            [(None, plain.probes[0]), (plain.nodes[&"n2".parse::<NodeName>().unwrap()].v4.probe, None)]
        {
            let mut inputs = plain.clone();
            inputs.nodes.get_mut(&"n2".parse::<NodeName>().unwrap()).unwrap().v4.probe = theirs;
            inputs.probes[0] = ours;
            assert_eq!(probed(&inputs, Family::V4), found(Path::Underlay, "10.77.0.1", "10.77.0.3"));
        }
    }

    #[test]
    fn an_address_for_probes_that_does_not_lead_to_the_node_is_ignored() {
        let plain = probe_addresses(Encapsulation::None, false);
        // Another node's, our own, one of no block, one of no pool, nodes' own ones, and no host's.
        for hostile in [
            "10.244.1.2",
            "10.244.0.2",
            "10.244.9.1",
            "192.0.2.1",
            "10.77.0.3",
            "10.77.0.1",
            "127.0.0.1",
            "0.0.0.0",
        ] {
            let mut inputs = plain.clone();
            inputs.nodes.get_mut(&"n2".parse::<NodeName>().unwrap()).unwrap().v4.probe =
                Some(hostile.parse().unwrap());
            let (path, _, address) = probed(&inputs, Family::V4);
            assert_eq!((path, address.as_str()), (Path::Underlay, "10.77.0.3"), "{hostile}");
        }
        // Nor does this node use one that is in no pool, whatever its handle says.
        let mut inputs = plain;
        inputs.probes[0] = Some("10.77.0.254".parse().unwrap());
        assert_eq!(desired(&inputs).probes, ["fd01::2".parse::<IpAddr>().unwrap()].into());
    }

    #[test]
    fn this_node_and_families_without_pools_are_not_probed() {
        let mut inputs = inputs(3, Encapsulation::Vxlan, false);
        inputs.pools.retain(|pool| Family::of_net(&pool.cidr) == Family::V4);
        let targets = Targets::new(&inputs, &desired(&inputs), 9000);
        assert_eq!(targets.peers.iter().map(|peer| peer.name.as_str()).collect::<Vec<_>>(), ["n1", "n2"]);
        assert!(targets.peers.iter().all(|peer| peer.target(Family::V6).is_none()));
        assert_eq!(targets.peer(&"n0".parse().unwrap()), None);
        // Packets that are larger than the device's MTU are pods' own affair.
        assert_eq!(targets.own(Family::V4).unwrap().packet_max_bytes(Path::Tunnel), 1450);
    }

    #[test]
    fn nothing_is_probed_from_an_address_that_this_node_does_not_have() {
        let mut inputs = inputs(3, Encapsulation::None, false);
        inputs.underlay.addresses.retain(|net| Family::of_net(net) == Family::V6);
        let targets = Targets::new(&inputs, &desired(&inputs), 1500);
        assert!(targets.peers.iter().all(|peer| peer.target(Family::V4).is_none()));
        assert!(targets.sources().iter().all(IpAddr::is_ipv6));
    }
}
