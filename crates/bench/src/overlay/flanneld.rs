//! Nodes as our flannel daemon makes them: its own fabric and firewall, and the port's guard of our
//! plugin `bridge`, with all guards or without some.

use russet_netlink::Socket;
use russet_overlay::firewall::{Firewall, Mode, Wanted};
use russet_overlay::flannel::{Backend, Fabric, Networks, Peer, Underlay, Vxlan};
use russet_policy::{PortGuard, PortSources, Verdicts};

use crate::overlay::node::{HOST_END, Node, WIRE_MTU, mac, name};
use crate::{BoxError, Result};

/// What is in force besides routes, masquerade and forward rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guards {
    None,
    /// MAC and sources of the port, in table `bridge russet-policy`.
    Ports,
    /// Sources of the bridge, and IP in IP and GRE.
    Pods,
    /// Who may send tunnel packets.
    Tunnel,
    All,
}

pub const NETWORK: &str = "10.244.0.0/16";

/// Tunnel, routes and tables of both nodes; their pods are there. The guards of the daemon end some
/// minutes after it, so the caller keeps the fabrics and calls [`Fabric::resync`].
pub fn start(nodes: &[Node; 2], guards: Guards) -> Result<Vec<Fabric>> {
    let mut fabrics = Vec::new();
    let mut leases = Vec::new();
    for node in nodes {
        let (fabric, lease) = node.host.with(|| prepare(node, guards))??;
        fabrics.push(fabric);
        leases.push(lease);
        rules(node)?;
        if matches!(guards, Guards::Ports | Guards::All) {
            guard_port(node)?;
        }
    }
    for ((node, fabric), peer) in nodes.iter().zip(&mut fabrics).zip(leases.into_iter().rev()) {
        let report = node.host.with(|| fabric.reset(vec![peer]))?;
        if !report.errors.is_empty() {
            return Err(format!("{:?}", report.errors).into());
        }
    }
    Ok(fabrics)
}

/// The fabric of one node, and its lease.
fn prepare(node: &Node, guards: Guards) -> Result<(Fabric, Peer)> {
    let vxlan = Vxlan {
        vni: 1,
        port: 0,
        gbp: false,
        direct_routing: false,
        learning: false,
        mtu: None,
        mac: [None, None],
    };
    let underlay =
        Underlay { ifindex: node.wire, name: name("w0")?, mtu: WIRE_MTU, v4: Some(node.address()), v6: None };
    let networks = Networks { v4: Some(NETWORK.parse()?), v6: None };
    let mut fabric = Fabric::open(Backend::Vxlan(vxlan), underlay, networks)?;
    if !matches!(guards, Guards::Tunnel | Guards::All) {
        fabric.open_tunnel()?;
    }
    if !matches!(guards, Guards::Pods | Guards::All) {
        fabric.open_pods()?;
    }
    let prepared = fabric.prepare()?;
    let subnet = node.subnet()?;
    let report = fabric.own(Some(subnet), None);
    if !report.errors.is_empty() {
        return Err(format!("{:?}", report.errors).into());
    }
    let lease = Peer {
        subnet: Some(subnet),
        subnet_v6: None,
        public_ip: node.address(),
        public_ipv6: None,
        mac: prepared.mac,
        wireguard: [None, None],
    };
    Ok((fabric, lease))
}

/// The rules that our flannel daemon makes by default.
pub fn rules(node: &Node) -> Result<()> {
    let wanted = Wanted {
        networks: vec![NETWORK.parse()?],
        own: vec![node.subnet()?.into()],
        masquerade: true,
        random_fully: true,
        forward: true,
    };
    let apply = || Ok::<_, BoxError>(Firewall::open(Mode::Nft)?.apply(&wanted));
    let report = node.host.run_in_thread(apply)??;
    if report.failed.is_empty() { Ok(()) } else { Err(format!("{:?}", report.failed).into()) }
}

/// What our plugin `bridge` makes for the pod.
fn guard_port(node: &Node) -> Result<()> {
    let host_end = name(HOST_END)?;
    let mut pod = node.pod.with(Socket::route)??;
    let index = pod.link_by_name(&name("eth0")?)?.index;
    let sources = PortSources { addresses: [node.pod_address().into()].into(), prefixes: Vec::new() };
    let guard = PortGuard { mac: mac(&mut pod, index)?, sources: Some(sources) };
    let in_force = || Ok::<_, BoxError>(Verdicts::open()?.put_port(&host_end, &guard)?);
    if node.host.run_in_thread(in_force)?? {
        return Ok(());
    }
    Err("this kernel has no CONFIG_NF_TABLES_BRIDGE".into())
}
