//! Two nodes whose pods reach each other by one of the compared data paths.

use std::net::Ipv4Addr;
use std::str::FromStr;
use std::sync::Arc;

use russet_flanneld::udp::{FastPath, OVERHEAD_BYTES, Options, PORT, Proxy, Via};
use russet_linux::NetNs;
use russet_netlink::{Batch, FdbEntry, LinkAdd, LinkKind, Neighbour, PacketSizes, Route, Vxlan};
use russet_overlay::ROUTE_PROTOCOL;
use russet_overlay::fast_path;
use russet_overlay::flannel::Fabric;

use crate::overlay::flanneld::NETWORK;
use crate::overlay::metadata::MetadataTunnel;
use crate::overlay::naive::Naive;
use crate::overlay::node::{Node, WIRE_MTU, mac, name, up};
use crate::overlay::{agent, fast, flanneld, metadata};
use crate::policy::packets;
use crate::{BoxError, Result};

/// The path of packets from pod to pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Without pods: the nodes themselves are the endpoints.
    Bare,
    /// Routed veth, route to the other node.
    Routed,
    /// Routed veth, VXLAN device, no netfilter.
    Vxlan,
    /// The same, and the masquerade and forward rules of our flannel daemon, so that connections are tracked.
    VxlanRules,
    /// Routed veth, and the overlay as the agent makes it, with these guards.
    Agent(agent::Guards),
    /// The agent's with all guards, and the fast path.
    Fast,
    /// The same without any guard.
    FastOpen,
    /// The same as the first, with netkit pairs.
    FastNetkit,
    /// The agent's with all guards, a network policy at the receiver's node, and the fast path.
    FastPolicy,
    /// The agent's with all guards, and the fast path, between two pods of one node.
    FastSame,
    /// Routed veth, route to the other node, and the fast path.
    FastRouted,
    /// The same with BIG TCP.
    FastRoutedBig,
    /// Bridge, and the overlay as our flannel daemon makes it, with these guards.
    Flanneld(flanneld::Guards),
    /// As flannel and the bridge plugin leave it: bridge, VXLAN device, connection tracking, `bridge-nf-call-iptables`.
    VxlanFlannel,
    /// As Calico leaves it: routed veth, VXLAN device, connection tracking. Its policies are not there.
    VxlanCalico,
    /// Routed veth, and BPF programs that leave VXLAN to a device with metadata, as Cilium's do.
    VxlanMetadata,
    /// Routed veth, our userspace udp backend.
    Udp,
    /// Routed veth, our udp backend with its fast path.
    UdpFast,
    /// Routed veth, our udp backend; pods send packets that fit into one datagram batch.
    UdpSized,
    /// Routed veth, one packet in each system call: the stand-in for flannel's original.
    UdpNaive,
}

/// The nodes, with everything that lives as long as they do.
pub struct Stage {
    pub way: Way,
    pub nodes: [Node; 2],
    _proxies: Vec<Proxy>,
    /// Of the flannel daemons of both nodes, if they run.
    fabrics: Vec<Fabric>,
    _fast_paths: Vec<fast_path::FastPath>,
    _metadata: Vec<MetadataTunnel>,
}

const VXLAN_MTU: u32 = 1450;
const UDP_MTU: u32 = WIRE_MTU - OVERHEAD_BYTES;
/// As the agent sets them (docs/big-tcp.md).
const BIG: PacketSizes = PacketSizes::all(190_000);
/// One read of the TUN then fits into one send of at most 65,507 bytes (dataplane.md section 2.5).
const DATAGRAM_BATCH: PacketSizes = PacketSizes::all(62_000);
/// flannel's port is the kernel's default.
pub(super) const VXLAN_PORT: u16 = 8472;

/// What dataplane.md section 7 gives the models with connection tracking; a cluster's rules are longer.
const TRACKING_RULES: &str = "
table ip flannel {
  chain forward {
    type filter hook forward priority filter; policy accept;
    ct state invalid drop
    ct state established,related accept
    ip saddr 10.244.0.0/16 accept
    ip daddr 10.244.0.0/16 accept
  }
  chain postrouting {
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16 return
    ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
  }
  chain prerouting { type nat hook prerouting priority dstnat; policy accept; }
}
";

// === impl Way ===

impl FromStr for Way {
    type Err = BoxError;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "bare" => Self::Bare,
            "routed" => Self::Routed,
            "vxlan" => Self::Vxlan,
            "vxlan-rules" => Self::VxlanRules,
            "agent-open" => Self::Agent(agent::Guards::None),
            "agent-verdicts" => Self::Agent(agent::Guards::Verdicts),
            "agent-policy" => Self::Agent(agent::Guards::Policy),
            "agent-tunnel" => Self::Agent(agent::Guards::Tunnel),
            "agent" => Self::Agent(agent::Guards::All),
            "fast" => Self::Fast,
            "fast-open" => Self::FastOpen,
            "fast-netkit" => Self::FastNetkit,
            "fast-policy" => Self::FastPolicy,
            "fast-same" => Self::FastSame,
            "fast-routed" => Self::FastRouted,
            "fast-routed-big" => Self::FastRoutedBig,
            "flanneld-open" => Self::Flanneld(flanneld::Guards::None),
            "flanneld-ports" => Self::Flanneld(flanneld::Guards::Ports),
            "flanneld-pods" => Self::Flanneld(flanneld::Guards::Pods),
            "flanneld-tunnel" => Self::Flanneld(flanneld::Guards::Tunnel),
            "flanneld" => Self::Flanneld(flanneld::Guards::All),
            "vxlan-flannel" => Self::VxlanFlannel,
            "vxlan-calico" => Self::VxlanCalico,
            "vxlan-metadata" => Self::VxlanMetadata,
            "udp" => Self::Udp,
            "udp-fast" => Self::UdpFast,
            "udp-sized" => Self::UdpSized,
            "udp-naive" => Self::UdpNaive,
            _ => return Err(format!("no way {text:?}").into()),
        })
    }
}

impl Way {
    /// Those of the agent's node.
    const fn guards(self) -> agent::Guards {
        match self {
            Self::Agent(guards) => guards,
            Self::FastOpen => agent::Guards::None,
            _ => agent::Guards::All,
        }
    }

    const fn has_fast_path(self) -> bool {
        matches!(
            self,
            Self::Fast
                | Self::FastOpen
                | Self::FastNetkit
                | Self::FastPolicy
                | Self::FastSame
                | Self::FastRouted
                | Self::FastRoutedBig
        )
    }
}

// === impl Stage ===

impl Stage {
    /// Makes everything.
    pub fn set(way: Way) -> Result<Self> {
        let mut nodes = Node::pair(WIRE_MTU)?;
        let (mut proxies, mut fabrics, mut metadata) = (Vec::new(), Vec::new(), Vec::new());
        nodes.iter_mut().for_each(|node| node.has_netkit = way == Way::FastNetkit);
        match way {
            Way::Bare => {}
            Way::Routed | Way::FastRouted | Way::FastRoutedBig => each(&mut nodes, |node, other| {
                node.routed_pod(WIRE_MTU)?;
                let route = Route::via(other.subnet()?.into(), other.address().into());
                let route = Route { protocol: ROUTE_PROTOCOL, oif: Some(node.wire), ..route };
                Ok(node.netlink.execute(Batch::new().add_route(&route))?)
            })?,
            Way::Vxlan | Way::VxlanRules | Way::VxlanCalico => {
                vxlan(&mut nodes, |node| node.routed_pod(VXLAN_MTU))?
            }
            Way::VxlanFlannel => vxlan(&mut nodes, |node| node.bridged_pod(VXLAN_MTU))?,
            Way::VxlanMetadata => each(&mut nodes, |node, other| {
                node.routed_pod(VXLAN_MTU)?;
                metadata.push(metadata::start(node, other, VXLAN_MTU)?);
                Ok(())
            })?,
            Way::Agent(_) | Way::Fast | Way::FastOpen | Way::FastNetkit | Way::FastPolicy | Way::FastSame => {
                let mtu = if way == Way::FastSame { WIRE_MTU } else { VXLAN_MTU };
                each(&mut nodes, |node, _| node.routed_pod(mtu))?;
                if way == Way::FastSame {
                    nodes[0].routed_neighbour(mtu)?;
                }
                nodes.iter().try_for_each(|node| agent::start(node, way.guards()))?;
                if way == Way::FastPolicy {
                    let client = nodes[0].pod_address();
                    packets::judge(&nodes[1], client)?;
                }
            }
            Way::Flanneld(guards) => {
                each(&mut nodes, |node, _| node.bridged_pod(VXLAN_MTU))?;
                fabrics = flanneld::start(&nodes, guards)?;
            }
            Way::Udp | Way::UdpFast | Way::UdpSized => {
                each(&mut nodes, |node, _| node.routed_pod(UDP_MTU))?;
                let proxy = |node, other| proxy(node, other, way == Way::UdpFast);
                proxies = vec![proxy(&nodes[0], &nodes[1])?, proxy(&nodes[1], &nodes[0])?];
            }
            Way::UdpNaive => {
                each(&mut nodes, |node, _| node.routed_pod(UDP_MTU))?;
                each(&mut nodes, |node, other| Naive::start(node, other, UDP_MTU))?;
            }
        }
        match way {
            Way::VxlanRules => nodes.iter().try_for_each(flanneld::rules)?,
            Way::VxlanFlannel => nodes.iter().try_for_each(|node| {
                node.run("nft", &["-f", "-"], TRACKING_RULES)?;
                node.set("net/bridge/bridge-nf-call-iptables", "1")
            })?,
            Way::VxlanCalico => {
                nodes.iter().try_for_each(|node| node.run("nft", &["-f", "-"], TRACKING_RULES))?;
            }
            _ => {}
        }
        match way {
            Way::FastRoutedBig => nodes.iter_mut().try_for_each(|node| {
                node.set_wire_sizes(BIG)?;
                node.set_pod_sizes(BIG)
            })?,
            Way::UdpSized => nodes.iter_mut().try_for_each(|node| node.set_pod_sizes(DATAGRAM_BATCH))?,
            _ => {}
        }
        let has_fast_path = way.has_fast_path();
        let fast_paths = nodes.iter().filter(|_| has_fast_path).map(fast::start).collect::<Result<_>>()?;
        Ok(Self { way, nodes, _proxies: proxies, fabrics, _fast_paths: fast_paths, _metadata: metadata })
    }

    /// Lets the guards of flannel's daemons hold for some more minutes, as the daemons do.
    pub fn refresh(&mut self) -> Result<()> {
        for (node, fabric) in self.nodes.iter().zip(&mut self.fabrics) {
            let report = node.host.with(|| fabric.resync())?;
            if !report.is_quiet() {
                return Err(format!("something changed the tables: {report:?}").into());
            }
        }
        Ok(())
    }

    /// The namespaces of sender and receiver, and the receiver's address.
    pub fn ends(&self) -> (&NetNs, &NetNs, Ipv4Addr) {
        let [one, two] = &self.nodes;
        match self.way {
            Way::Bare => (&one.host, &two.host, two.address()),
            Way::FastSame => match &one.neighbour {
                Some(neighbour) => (&one.pod, neighbour, one.neighbour_address()),
                None => (&one.pod, &one.pod, one.pod_address()),
            },
            _ => (&one.pod, &two.pod, two.pod_address()),
        }
    }
}

fn each(nodes: &mut [Node; 2], mut body: impl FnMut(&mut Node, &Node) -> Result<()>) -> Result<()> {
    let [one, two] = nodes;
    body(one, two)?;
    body(two, one)
}

/// A VXLAN device on each node, and the other in its tables (flannel.md section 6.2).
fn vxlan(nodes: &mut [Node; 2], mut pod: impl FnMut(&mut Node) -> Result<()>) -> Result<()> {
    let mut device = |node: &mut Node| {
        let (local, parent) = (Some(node.address().into()), Some(node.wire));
        let vxlan = Vxlan { local, parent, udp_csum: true, ..Vxlan::new(1, VXLAN_PORT) };
        let link = LinkAdd {
            mtu_bytes: Some(VXLAN_MTU),
            ..LinkAdd::new(name("flannel.1")?, LinkKind::Vxlan(vxlan))
        };
        node.netlink.execute(Batch::new().add_link(&link))?;
        let index = node.netlink.link_by_name(&name("flannel.1")?)?.index;
        let base = format!("{}/32", node.base()).parse()?;
        up(&mut node.netlink, index, Some(base))?;
        pod(node)?;
        Ok::<_, BoxError>((index, mac(&mut node.netlink, index)?))
    };
    let ends = [device(&mut nodes[0])?, device(&mut nodes[1])?];
    let mut ends = [(ends[0].0, ends[1].1), (ends[1].0, ends[0].1)].into_iter();
    each(nodes, |node, other| {
        let Some((index, mac)) = ends.next() else { return Ok(()) };
        let via = other.base().into();
        let mut batch = Batch::new();
        batch.replace_neighbour(&Neighbour::permanent(index, via, mac));
        batch.append_fdb(&FdbEntry::remote(index, mac, other.address().into()));
        let route = Route { oif: Some(index), onlink: true, ..Route::via(other.subnet()?.into(), via) };
        batch.add_route(&route);
        Ok(node.netlink.execute(&batch)?)
    })
}

fn proxy(node: &Node, other: &Node, is_fast: bool) -> Result<Proxy> {
    let fast_path = is_fast.then(|| FastPath::load(node.wire)).transpose()?.map(Arc::new);
    let options = Options {
        tun: "flannel%d".to_owned(),
        mtu: UDP_MTU,
        own: node.base(),
        network: NETWORK.parse()?,
        local: node.address(),
        port: PORT,
        queues: 1,
        offload: true,
        guard: true,
        fast_path: fast_path.clone(),
    };
    let proxy = node.host.run_in_thread(|| Proxy::start(options))??;
    proxy.put(other.subnet()?, Via { address: other.address(), decapsulates: is_fast });
    match fast_path.and_then(|fast_path| fast_path.failure()) {
        Some(reason) => Err(reason.into()),
        None => Ok(proxy),
    }
}

#[cfg(test)]
mod tests;
