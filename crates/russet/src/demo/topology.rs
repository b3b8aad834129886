//! The demo's underlay: a switch, a namespace per node, an outside host, and the veth pairs between
//! them.

use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};

use ipnet::IpNet;
use russet_addr::{Family, IfName};
use russet_linux::{NetNs, sysctl};
use russet_netlink::{Address, Batch, Bridge, LinkAdd, LinkKind, LinkSet, Peer, Route, Socket};

use super::DemoError;
use super::lab::{self, Lab, OUTSIDE, UNDERLAY, WIRE};

/// The switch's name inside its namespace.
const SWITCH: &str = "switch0";

/// Makes every namespace of the lab, connects nodes and the outside host, and assigns their
/// addresses. Pods stay empty.
pub fn build(lab: &Lab) -> Result<(), DemoError> {
    let wire = namespace(WIRE)?;
    let mut switch = Switch::build(&wire)?;
    let outside = namespace(OUTSIDE)?;
    switch.plug(&outside, "outside")?;
    host(&outside, &lab::outside_underlay(), &[])?;
    services(&outside)?;
    for node in &lab.nodes {
        let netns = namespace(&node.namespace)?;
        switch.plug(&netns, &node.name)?;
        host(&netns, &node.underlay(), &lab::GATEWAYS)?;
        for pod in &node.pods {
            namespace(&pod.namespace)?;
        }
    }
    Ok(())
}

/// Makes the empty namespace of a pod, or of a host.
pub fn namespace(name: &str) -> Result<NetNs, DemoError> {
    NetNs::create_named(name).map_err(|error| DemoError::step(format!("make namespace {name}"), error))
}

fn netlink_failed(what: &str) -> impl Fn(russet_netlink::BatchError) -> DemoError {
    move |error| DemoError::step(what.to_owned(), error)
}

/// Opens a netlink socket inside a namespace; it stays there.
fn socket_in(netns: &NetNs) -> Result<Socket, DemoError> {
    let opened = netns.with(Socket::route).map_err(DemoError::namespace)?;
    opened.map_err(|error| DemoError::step("open a netlink socket", error))
}

fn name(text: &str) -> Result<IfName, DemoError> {
    IfName::new(text).map_err(|error| DemoError::step("name a link", error))
}

fn index_of(socket: &mut Socket, name: &IfName) -> Result<u32, DemoError> {
    let found =
        socket.link_by_name(name).map_err(|error| DemoError::step(format!("look up {name}"), error))?;
    Ok(found.index)
}

/// The bridge in the role of the network between nodes.
struct Switch {
    socket: Socket,
    index: u32,
}

// === impl Switch ===

impl Switch {
    fn build(wire: &NetNs) -> Result<Self, DemoError> {
        // The switch only forwards frames; it needs no address on the underlay.
        wire.with(|| sysctl::write_if_different("net/ipv6/conf/default/disable_ipv6", "1"))
            .map_err(DemoError::namespace)?
            .map_err(|error| DemoError::step("quiet the switch", error))?;
        let mut socket = socket_in(wire)?;
        let switch = name(SWITCH)?;
        let mut batch = Batch::new();
        batch.add_link(&LinkAdd {
            up: true,
            ..LinkAdd::new(switch.clone(), LinkKind::Bridge(Bridge::default()))
        });
        socket.execute(&batch).map_err(netlink_failed("make the switch"))?;
        let index = index_of(&mut socket, &switch)?;
        Ok(Self { socket, index })
    }

    /// Connects a namespace to the switch: its end has the same interface name on every node.
    fn plug(&mut self, netns: &NetNs, port: &str) -> Result<(), DemoError> {
        let mut peer = Peer::new(name(UNDERLAY)?);
        peer.netns = Some(netns.as_fd().as_raw_fd());
        let mut link = LinkAdd::veth(name(port)?, peer);
        link.up = true;
        link.master = Some(self.index);
        let mut batch = Batch::new();
        batch.add_link(&link);
        self.socket.execute(&batch).map_err(netlink_failed("join a namespace to the switch"))
    }
}

/// Brings up loopback and underlay of a host, with addresses and default routes.
fn host(netns: &NetNs, addresses: &[IpNet], gateways: &[IpAddr]) -> Result<(), DemoError> {
    let mut socket = socket_in(netns)?;
    let (lo, underlay) = (name("lo")?, name(UNDERLAY)?);
    let index = index_of(&mut socket, &underlay)?;
    let up = |name: IfName| LinkSet { up: Some(true), ..LinkSet::named(name) };
    let mut batch = Batch::new();
    batch.set_link(&up(lo)).set_link(&up(underlay));
    for address in addresses {
        batch.add_address(&Address::new(index, *address));
    }
    for gateway in gateways {
        batch.add_route(&Route::via(Family::of(*gateway).default_net(), *gateway));
    }
    socket.execute(&batch).map_err(netlink_failed("set up a host of the demo"))
}

/// Gives the outside host the addresses that only it has.
fn services(netns: &NetNs) -> Result<(), DemoError> {
    let mut socket = socket_in(netns)?;
    let lo = index_of(&mut socket, &name("lo")?)?;
    let mut batch = Batch::new();
    for address in lab::OUTSIDE_SERVICES {
        batch.add_address(&Address::new(lo, IpNet::from(address)));
    }
    socket.execute(&batch).map_err(netlink_failed("set up the outside host"))
}
