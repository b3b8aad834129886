//! Nodes in network namespaces of their own on one bridge, each with a fabric.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use russet_addr::{IfName, Ipv4Net, Ipv6Net, Mac};
use russet_linux::NetNs;
use russet_overlay::ReconcileReport;
use russet_overlay::flannel::{
    Backend, Fabric, FlannelError, Networks, Peer, PeerKey, Prepared, Underlay, Vxlan,
};
use russet_testkit::bridge::{add_addresses, index_and_mtu, on_bridge, with_bridge};
use russet_testkit::{eventually, sh, sh_json, succeeds};

/// One node: namespace `nI`, interface `w0` with 192.168.77.I/24 and fd77::I/64, subnets 10.5.I.0/24 and fd10:5:0:I::/64, a "pod"
/// address 10.5.I.5 on its loopback.
pub struct Node {
    pub ns: NetNs,
    pub number: u8,
    pub backend: Backend,
    pub networks: Networks,
    fabric: Option<Fabric>,
    pub prepared: Prepared,
}

/// The default options of the vxlan backend.
pub fn vxlan() -> Vxlan {
    Vxlan {
        vni: 1,
        port: 0,
        gbp: false,
        direct_routing: false,
        learning: false,
        mtu: None,
        mac: [None, None],
    }
}

pub fn subnet(number: u8) -> Ipv4Net {
    Ipv4Net::new(Ipv4Addr::new(10, 5, number, 0), 24).unwrap()
}

pub fn subnet_v6(number: u8) -> Ipv6Net {
    Ipv6Net::new(Ipv6Addr::new(0xfd10, 5, 0, u16::from(number), 0, 0, 0, 0), 64).unwrap()
}

pub fn key(number: u8) -> PeerKey {
    PeerKey { v4: Some(subnet(number)), v6: Some(subnet_v6(number)) }
}

/// A peer without a node.
pub fn peer_without_node(number: u8) -> Peer {
    let mac = |family: u8| Some(Mac([2, family, 0, 0, 0, number]));
    Peer {
        subnet: Some(subnet(number)),
        subnet_v6: Some(subnet_v6(number)),
        public_ip: Ipv4Addr::new(192, 168, 77, number),
        public_ipv6: Some(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, u16::from(number))),
        mac: [mac(4), mac(6)],
        wireguard: [None, None],
    }
}

/// Runs `body` with `count` nodes that are prepared and own their subnets, and have no peers yet.
pub fn with_nodes(count: u8, backend: &Backend, body: impl FnOnce(&mut Vec<Node>) + Send) {
    with_bridge(|| {
        let mut nodes: Vec<Node> = (1..=count).map(|number| Node::new(number, backend.clone())).collect();
        nodes.iter_mut().for_each(Node::start);
        body(&mut nodes);
    });
}

/// A route of `n1`'s main table as `ip` shows it, without trailing blanks; empty when there is none, several lines when there are
/// several.
pub fn route(number: u8) -> String {
    sh(&format!("ip -n n1 route show 10.5.{number}.0/24")).trim_end().to_owned()
}

/// Its IPv6 twin.
pub fn route_v6(number: u8) -> String {
    sh(&format!("ip -n n1 -6 route show fd10:5:0:{number:x}::/64")).trim_end().to_owned()
}

/// The remotes behind a MAC on a device of `n1`.
pub fn remotes(device: &str, mac: Mac) -> Vec<String> {
    let entries = sh_json(&format!("bridge -n n1 -j fdb show dev {device}"));
    let of = entries.iter().filter(|entry| entry["mac"] == mac.to_string());
    of.map(|entry| entry["dst"].as_str().unwrap().to_owned()).collect()
}

// === impl Node ===

impl Node {
    fn new(number: u8, backend: Backend) -> Self {
        let namespace = format!("n{number}");
        let ns = on_bridge(&namespace, &[format!("192.168.77.{number}/24"), format!("fd77::{number:x}/64")]);
        let pod = [format!("10.5.{number}.5/32"), format!("fd10:5:0:{number:x}::5/128")];
        add_addresses(&namespace, "lo", &pod);
        for forward in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
            ns.with(|| russet_linux::sysctl::write_if_different(&format!("net/{forward}"), "1"))
                .unwrap()
                .unwrap();
        }
        let networks =
            Networks { v4: Some("10.5.0.0/16".parse().unwrap()), v6: Some("fd10:5::/48".parse().unwrap()) };
        Self { ns, number, backend, networks, fabric: None, prepared: Prepared::default() }
    }

    fn underlay(&self) -> Underlay {
        let (ifindex, mtu) = index_and_mtu(&format!("n{}", self.number), "w0");
        Underlay {
            ifindex,
            name: IfName::new("w0").unwrap(),
            mtu,
            v4: Some(Ipv4Addr::new(192, 168, 77, self.number)),
            v6: Some(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, u16::from(self.number))),
        }
    }

    /// Starts a daemon without any earlier knowledge.
    #[track_caller]
    pub fn start(&mut self) {
        self.try_start().unwrap();
    }

    pub fn try_start(&mut self) -> Result<(), FlannelError> {
        let (backend, underlay, networks) = (self.backend.clone(), self.underlay(), self.networks);
        self.fabric = Some(self.ns.with(|| Fabric::open(backend, underlay, networks)).unwrap()?);
        self.prepared = self.run(|fabric| fabric.prepare())?;
        let own = (Some(subnet(self.number)), Some(subnet_v6(self.number)));
        sound(&self.run(|fabric| fabric.own(own.0, own.1)));
        Ok(())
    }

    pub fn run<T: Send>(&mut self, work: impl FnOnce(&mut Fabric) -> T + Send) -> T {
        let fabric = self.fabric.as_mut().unwrap();
        self.ns.with(|| work(fabric)).unwrap()
    }

    #[track_caller]
    pub fn reset(&mut self, peers: Vec<Peer>) -> ReconcileReport {
        sound(&self.run(|fabric| fabric.reset(peers)))
    }

    #[track_caller]
    pub fn resync(&mut self) -> ReconcileReport {
        sound(&self.run(Fabric::resync))
    }

    #[track_caller]
    pub fn change(&mut self, gone: &[PeerKey], put: &[Peer]) -> ReconcileReport {
        sound(&self.run(|fabric| fabric.change(gone, put)))
    }

    pub fn drifted(&mut self) -> bool {
        self.run(Fabric::drifted).unwrap()
    }

    /// The lease of this node.
    pub fn lease(&self) -> Peer {
        Peer { mac: self.prepared.mac, ..peer_without_node(self.number) }
    }
}

/// Requires that nothing failed; returns a copy.
#[track_caller]
fn sound(report: &ReconcileReport) -> ReconcileReport {
    assert_eq!(report.failed, 0, "{:?}", report.errors);
    ReconcileReport {
        changed: report.changed.clone(),
        refusals: report.refusals.clone(),
        ..ReconcileReport::default()
    }
}

/// Sets each node's peers to all others.
pub fn introduce(nodes: &mut [Node]) {
    let leases: Vec<Peer> = nodes.iter().map(Node::lease).collect();
    for node in nodes {
        let own = node.lease().key();
        node.reset(leases.iter().filter(|lease| lease.key() != own).cloned().collect());
        assert!(node.resync().is_quiet(), "a second run has nothing to do");
    }
}

/// Pods of the first node reach those of all others.
#[track_caller]
pub fn assert_reachable(nodes: &[Node]) {
    for node in &nodes[1..] {
        let n = node.number;
        eventually(Duration::from_secs(20), || {
            succeeds(&format!("ip netns exec n1 ping -c1 -W1 -I 10.5.1.5 10.5.{n}.5"))
                && succeeds(&format!("ip netns exec n1 ping -c1 -W1 -I fd10:5:0:1::5 fd10:5:0:{n:x}::5"))
        });
    }
}
