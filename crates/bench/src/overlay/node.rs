//! A node and its pod: two network namespaces, joined as the way wants it.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd as _, RawFd};
use std::process::Command;

use russet_addr::{IfName, Ipv4Net, Mac, host_net};
use russet_linux::{NetNs, process, sysctl};
use russet_netlink::{
    Address, Batch, Bridge, LinkAdd, LinkKind, LinkSet, Neighbour, PacketSizes, Peer, Route, Socket,
};

use crate::{BoxError, Result};

/// One of the two nodes: 192.168.77.N on the wire, the pods 10.244.N.0/24.
pub struct Node {
    pub number: u8,
    pub host: NetNs,
    pub pod: NetNs,
    /// A second pod, 10.244.N.3, if the way has one.
    pub neighbour: Option<NetNs>,
    /// Of the node's own namespace.
    pub netlink: Socket,
    /// The index of `w0`.
    pub wire: u32,
    /// Whether pods have netkit pairs, and not veths.
    pub has_netkit: bool,
}

pub const WIRE_MTU: u32 = 1500;

/// The gateway of a routed pod (calico-cni.md section 3).
const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);

/// The name of pods' host ends: one that Russet's tables are about.
pub const HOST_END: &str = "russ0";
/// What both begin with.
pub const HOST_PREFIX: &str = "russ";
/// That of the second pod.
pub const NEIGHBOUR_END: &str = "russ1";

// === impl Node ===

impl Node {
    /// Both nodes, on one wire.
    pub fn pair(mtu_bytes: u32) -> Result<[Self; 2]> {
        let (mut one, mut two) = (Self::new(1)?, Self::new(2)?);
        let peer =
            Peer { netns: Some(two.host.as_raw_fd()), mtu_bytes: Some(mtu_bytes), ..Peer::new(name("w0")?) };
        let link = LinkAdd { mtu_bytes: Some(mtu_bytes), ..LinkAdd::veth(name("w0")?, peer) };
        one.netlink.execute(Batch::new().add_link(&link))?;
        for node in [&mut one, &mut two] {
            node.wire = node.netlink.link_by_name(&name("w0")?)?.index;
            let address = Ipv4Net::new(node.address(), 24)?;
            up(&mut node.netlink, node.wire, Some(address))?;
        }
        Ok([one, two])
    }

    fn new(number: u8) -> Result<Self> {
        let (host, pod) = (NetNs::create_unnamed()?, NetNs::create_unnamed()?);
        let netlink = host.with(Socket::route)??;
        let node = Self { number, host, pod, neighbour: None, netlink, wire: 0, has_netkit: false };
        for (setting, value) in [("net/ipv4/ip_forward", "1"), ("net/ipv4/conf/all/rp_filter", "0")] {
            node.set(setting, value)?;
        }
        Ok(node)
    }

    /// The node's own address.
    pub fn address(&self) -> Ipv4Addr {
        Ipv4Addr::new(192, 168, 77, self.number)
    }

    /// The pod's.
    pub fn pod_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 244, self.number, 2)
    }

    /// The second pod's.
    pub fn neighbour_address(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 244, self.number, 3)
    }

    /// The base of the lease, and the node's address on an overlay device.
    pub fn base(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 244, self.number, 0)
    }

    /// The node's pods.
    pub fn subnet(&self) -> Result<Ipv4Net> {
        Ok(Ipv4Net::new(self.base(), 24)?)
    }

    /// Writes a sysctl of the node.
    pub fn set(&self, name: &str, value: &str) -> Result<()> {
        self.host.with(|| sysctl::write_if_different(name, value))??;
        Ok(())
    }

    /// Runs a program in the node's namespace, with this on its standard input.
    pub fn run(&self, program: &str, arguments: &[&str], input: &str) -> Result<()> {
        use std::io::Write as _;
        let mut command = Command::new(program);
        command.args(arguments).stdin(std::process::Stdio::piped());
        let mut child = process::in_netns(&mut command, &self.host)?.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        let status = child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("{program}: {status}").into()) }
    }

    /// The pod on a routed veth, as `attach` wires it.
    pub fn routed_pod(&mut self, mtu_bytes: u32) -> Result<()> {
        let (fd, address) = (self.pod.as_raw_fd(), self.pod_address());
        let socket = self.pod.with(Socket::route)??;
        self.routed(HOST_END, (fd, socket, address), mtu_bytes)
    }

    /// The same for a second pod.
    pub fn routed_neighbour(&mut self, mtu_bytes: u32) -> Result<()> {
        let neighbour = NetNs::create_unnamed()?;
        let (fd, address) = (neighbour.as_raw_fd(), self.neighbour_address());
        let socket = neighbour.with(Socket::route)??;
        self.routed(NEIGHBOUR_END, (fd, socket, address), mtu_bytes)?;
        self.neighbour = Some(neighbour);
        Ok(())
    }

    fn routed(
        &mut self,
        host_end: &str,
        (netns, mut pod, address): (RawFd, Socket, Ipv4Addr),
        mtu_bytes: u32,
    ) -> Result<()> {
        let (host_end, pod_end) = self.links(host_end, (netns, &mut pod), mtu_bytes)?;
        let (host_mac, pod_mac) = (mac(&mut self.netlink, host_end)?, mac(&mut pod, pod_end)?);
        up(&mut pod, pod_end, Some(Ipv4Net::new(address, 32)?))?;
        up(&mut self.netlink, host_end, None)?;
        let everything = "0.0.0.0/0".parse()?;
        let mut inside = Batch::new();
        inside.replace_neighbour(&Neighbour::permanent(pod_end, GATEWAY.into(), host_mac));
        inside.add_route(&Route::dev(host_net(GATEWAY.into()), pod_end));
        inside.add_route(&Route { oif: Some(pod_end), ..Route::via(everything, GATEWAY.into()) });
        pod.execute(&inside)?;
        let address = IpAddr::V4(address);
        let mut outside = Batch::new();
        outside.replace_neighbour(&Neighbour::permanent(host_end, address, pod_mac));
        outside.add_route(&Route::dev(host_net(address), host_end));
        Ok(self.netlink.execute(&outside)?)
    }

    /// The pod on a bridge, as flannel's CNI plugin has it made.
    pub fn bridged_pod(&mut self, mtu_bytes: u32) -> Result<()> {
        let (netns, mut pod) = (self.pod.as_raw_fd(), self.pod.with(Socket::route)??);
        let (host_end, pod_end) = self.links(HOST_END, (netns, &mut pod), mtu_bytes)?;
        let kind = LinkKind::Bridge(Bridge::default());
        let bridge = LinkAdd { mtu_bytes: Some(mtu_bytes), ..LinkAdd::new(name("cni0")?, kind) };
        self.netlink.execute(Batch::new().add_link(&bridge))?;
        let bridge = self.netlink.link_by_name(&name("cni0")?)?.index;
        let gateway = Ipv4Addr::new(10, 244, self.number, 1);
        up(&mut self.netlink, bridge, Some(Ipv4Net::new(gateway, 24)?))?;
        self.netlink
            .execute(Batch::new().set_link(&LinkSet { master: Some(bridge), ..LinkSet::index(host_end) }))?;
        up(&mut self.netlink, host_end, None)?;
        up(&mut pod, pod_end, Some(Ipv4Net::new(self.pod_address(), 24)?))?;
        Ok(pod.execute(Batch::new().add_route(&Route::via("0.0.0.0/0".parse()?, gateway.into())))?)
    }

    /// A pair of links from the node to a pod: the index here, and there.
    fn links(
        &mut self,
        host_end: &str,
        (netns, pod): (RawFd, &mut Socket),
        mtu_bytes: u32,
    ) -> Result<(u32, u32)> {
        let peer = Peer { netns: Some(netns), mtu_bytes: Some(mtu_bytes), ..Peer::new(name("eth0")?) };
        let pair = if self.has_netkit { LinkAdd::netkit } else { LinkAdd::veth };
        let link = LinkAdd { mtu_bytes: Some(mtu_bytes), ..pair(name(host_end)?, peer) };
        self.netlink.execute(Batch::new().add_link(&link))?;
        let host_end = self.netlink.link_by_name(&name(host_end)?)?.index;
        Ok((host_end, pod.link_by_name(&name("eth0")?)?.index))
    }

    /// The largest packets of the pod's veth.
    pub fn set_pod_sizes(&mut self, sizes: PacketSizes) -> Result<()> {
        let mut pod = self.pod.with(Socket::route)??;
        let change =
            |end: &str| Ok::<_, BoxError>(LinkSet { sizes: Some(sizes), ..LinkSet::named(name(end)?) });
        pod.execute(Batch::new().set_link(&change("eth0")?))?;
        Ok(self.netlink.execute(Batch::new().set_link(&change(HOST_END)?))?)
    }

    /// The largest packets of this end of the wire.
    pub fn set_wire_sizes(&mut self, sizes: PacketSizes) -> Result<()> {
        let change = LinkSet { sizes: Some(sizes), ..LinkSet::index(self.wire) };
        Ok(self.netlink.execute(Batch::new().set_link(&change))?)
    }
}

/// A name that is right.
pub fn name(text: &str) -> Result<IfName> {
    Ok(IfName::new(text)?)
}

/// The MAC of a link.
pub fn mac(socket: &mut Socket, index: u32) -> Result<Mac> {
    socket.link_by_index(index)?.mac.ok_or_else(|| format!("link {index} has no MAC").into())
}

/// Raises a link and gives it an address.
pub fn up(socket: &mut Socket, index: u32, address: Option<Ipv4Net>) -> Result<()> {
    let mut batch = Batch::new();
    if let Some(address) = address {
        batch.add_address(&Address::new(index, address.into()));
    }
    batch.set_link(&LinkSet { up: Some(true), ..LinkSet::index(index) });
    Ok(socket.execute(&batch)?)
}
