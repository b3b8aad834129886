//! Two nodes whose pods reach each other by one of the compared data paths.

use std::net::Ipv4Addr;
use std::str::FromStr;

use russet_linux::NetNs;
use russet_netlink::{Batch, Df, FdbEntry, LinkAdd, LinkKind, Neighbour, Route, Socket, Vxlan};
use russet_overlay::firewall::{Firewall, Mode, Wanted};
use russet_overlay::udp::{OVERHEAD_BYTES, Options, PORT, Proxy};
use russet_policy::{Entry, PortGuard, PortSources, Verdicts};

use crate::naive::Naive;
use crate::node::{HOST_END, Node, mac, name, up};
use crate::{Error, Result};

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
    /// The same, and verdicts and guards: sources of pods, peers of the tunnel.
    VxlanGuarded,
    /// Bridge, VXLAN device, and the rules of our flannel daemon.
    BridgeRules,
    /// The same, and guards: MAC and sources of the port, sources of the bridge, peers of the tunnel.
    BridgeGuarded,
    /// As flannel and the bridge plugin leave it: bridge, VXLAN device, connection tracking, `bridge-nf-call-iptables`.
    VxlanFlannel,
    /// Routed veth, our userspace udp backend.
    Udp,
    /// Routed veth, one packet in each system call: the stand-in for flannel's original.
    UdpNaive,
}

/// The nodes, with everything that lives as long as they do.
pub struct Stage {
    pub way: Way,
    pub nodes: [Node; 2],
    _proxies: Vec<Proxy>,
}

const WIRE_MTU: u32 = 1500;
const VXLAN_MTU: u32 = 1450;
const UDP_MTU: u32 = WIRE_MTU - OVERHEAD_BYTES;
const NETWORK: &str = "10.244.0.0/16";
/// flannel's port is the kernel's default.
const VXLAN_PORT: u16 = 8472;

/// What dataplane.md section 7 gives the flannel model; a cluster's rules are longer.
const FLANNEL_RULES: &str = "
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

/// The tunnel's guard of flannel's daemon (`overlay::flannel`), and what the agent's guard looks for in forwarded packets of routed pods.
const TUNNEL_GUARD: &str = "
table inet russet-flannel-1 {
  set active { type inet_proto; flags timeout; elements = { udp timeout 1h } }
  set pods { type ifname; elements = { cni0 } }
  set peers4 { type ipv4_addr; elements = { 192.168.77.1, 192.168.77.2 } }
  chain tunnel {
    meta l4proto != @active accept
    @th,96,24 != 0x000001 accept
    iifname @pods counter drop
    ip saddr != @peers4 counter drop
  }
  chain tunnel-on {
    meta l4proto != @active accept
    iifname @pods counter drop
    ip saddr 10.244.0.0/16 counter drop
  }
  chain input { type filter hook input priority filter; policy accept; udp dport 8472 goto tunnel; }
  chain forward { type filter hook forward priority filter; policy accept; udp dport 8472 goto tunnel-on; }
}
table inet russet {
  set overlay-peers4 { type ipv4_addr; elements = { 192.168.77.1, 192.168.77.2 } }
  set overlay-peers6 { type ipv6_addr; }
  set overlay-encapsulations { type inet_proto; elements = { 4, 41, 47 } }
  chain overlay-forward {
    type filter hook forward priority filter; policy accept;
    iifname \"russ*\" udp dport 4789 counter drop
    iifname \"cali*\" udp dport 4789 counter drop
    iifname \"russ*\" meta l4proto @overlay-encapsulations ip daddr @overlay-peers4 counter drop
    iifname \"russ*\" meta l4proto @overlay-encapsulations ip6 daddr @overlay-peers6 counter drop
    iifname \"cali*\" meta l4proto @overlay-encapsulations ip daddr @overlay-peers4 counter drop
    iifname \"cali*\" meta l4proto @overlay-encapsulations ip6 daddr @overlay-peers6 counter drop
  }
}
";

/// What flannel's daemon keeps pods behind bridges from (`overlay::flannel::pods`).
const POD_GUARD: &str = "
table inet russet-flannel-pods {
  set bridges { type ifname; flags timeout; elements = { cni0 timeout 1h } }
  set nodes4 { type ipv4_addr; elements = { 192.168.77.1, 192.168.77.2 } }
  set nodes6 { type ipv6_addr; }
  set encapsulations { type inet_proto; elements = { 4, 41, 47 } }
  chain guard-source {
    ip6 saddr fe80::/10 accept
    counter drop
  }
  chain guard {
    meta l4proto @encapsulations ip daddr @nodes4 counter drop
    meta l4proto @encapsulations ip6 daddr @nodes6 counter drop
    meta l4proto @encapsulations fib daddr type local counter drop
    fib saddr . iif oif 0 goto guard-source
  }
  chain prerouting { type filter hook prerouting priority raw; policy accept; iifname @bridges goto guard; }
}
";

// === impl Way ===

impl FromStr for Way {
    type Err = Box<dyn Error + Send + Sync>;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "bare" => Self::Bare,
            "routed" => Self::Routed,
            "vxlan" => Self::Vxlan,
            "vxlan-rules" => Self::VxlanRules,
            "vxlan-guarded" => Self::VxlanGuarded,
            "bridge-rules" => Self::BridgeRules,
            "bridge-guarded" => Self::BridgeGuarded,
            "vxlan-flannel" => Self::VxlanFlannel,
            "udp" => Self::Udp,
            "udp-naive" => Self::UdpNaive,
            _ => return Err(format!("no way {text:?}").into()),
        })
    }
}

// === impl Stage ===

impl Stage {
    /// Makes everything.
    pub fn set(way: Way) -> Result<Self> {
        let mut nodes = Node::pair(WIRE_MTU)?;
        let mut proxies = Vec::new();
        match way {
            Way::Bare => {}
            Way::Routed => each(&mut nodes, |node, other| {
                node.routed_pod(WIRE_MTU)?;
                let route = Route::via(other.subnet()?.into(), other.address().into());
                Ok(node.netlink.execute(Batch::new().add_route(&route))?)
            })?,
            Way::Vxlan | Way::VxlanRules | Way::VxlanGuarded => {
                vxlan(&mut nodes, |node| node.routed_pod(VXLAN_MTU))?
            }
            Way::BridgeRules | Way::BridgeGuarded | Way::VxlanFlannel => {
                vxlan(&mut nodes, |node| node.bridged_pod(VXLAN_MTU))?
            }
            Way::Udp => {
                each(&mut nodes, |node, _| node.routed_pod(UDP_MTU))?;
                proxies = vec![proxy(&nodes[0], &nodes[1])?, proxy(&nodes[1], &nodes[0])?];
            }
            Way::UdpNaive => {
                each(&mut nodes, |node, _| node.routed_pod(UDP_MTU))?;
                each(&mut nodes, |node, other| Naive::start(node, other, UDP_MTU))?;
            }
        }
        match way {
            Way::VxlanRules | Way::BridgeRules => nodes.iter().try_for_each(rules)?,
            Way::VxlanGuarded => nodes.iter().try_for_each(|node| rules(node).and_then(|()| guards(node)))?,
            Way::BridgeGuarded => {
                nodes.iter().try_for_each(|node| rules(node).and_then(|()| port_guards(node)))?
            }
            Way::VxlanFlannel => nodes.iter().try_for_each(|node| {
                node.run("nft", &["-f", "-"], FLANNEL_RULES)?;
                node.set("net/bridge/bridge-nf-call-iptables", "1")
            })?,
            _ => {}
        }
        Ok(Self { way, nodes, _proxies: proxies })
    }

    /// The namespaces of sender and receiver, and the receiver's address.
    pub fn ends(&self) -> (&NetNs, &NetNs, Ipv4Addr) {
        let [one, two] = &self.nodes;
        match self.way {
            Way::Bare => (&one.host, &two.host, two.address()),
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
        let vxlan = Vxlan {
            vni: 1,
            local: Some(node.address().into()),
            parent: Some(node.wire),
            port: VXLAN_PORT,
            learning: false,
            ttl: 0,
            df: Df::Unset,
            gbp: false,
            collect_metadata: false,
            group: None,
            l2miss: false,
            udp_csum: true,
            udp_zero_csum6_tx: false,
            udp_zero_csum6_rx: false,
        };
        let link = LinkAdd {
            mtu_bytes: Some(VXLAN_MTU),
            ..LinkAdd::new(name("flannel.1")?, LinkKind::Vxlan(vxlan))
        };
        node.netlink.execute(Batch::new().add_link(&link))?;
        let index = node.netlink.link_by_name(&name("flannel.1")?)?.index;
        let base = format!("{}/32", node.base()).parse()?;
        up(&mut node.netlink, index, Some(base))?;
        pod(node)?;
        Ok::<_, Box<dyn Error + Send + Sync>>((index, mac(&mut node.netlink, index)?))
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

/// The rules that our flannel daemon makes by default.
fn rules(node: &Node) -> Result<()> {
    let wanted = Wanted {
        networks: vec![NETWORK.parse()?],
        own: vec![node.subnet()?.into()],
        masquerade: true,
        random_fully: true,
        forward: true,
    };
    let apply = || Ok::<_, Box<dyn Error + Send + Sync>>(Firewall::open(Mode::Nft)?.apply(&wanted));
    let report = node.host.run_in_thread(apply)??;
    if report.failed.is_empty() { Ok(()) } else { Err(format!("{:?}", report.failed).into()) }
}

/// Verdicts and guards as the agent makes them, and the tunnel's peers as overlay and flannel's daemon do.
fn guards(node: &Node) -> Result<()> {
    let host_end = name(HOST_END)?;
    let in_force = || {
        Verdicts::open()?.reconcile(&[Entry::allow(host_end)])?;
        Ok::<_, Box<dyn Error + Send + Sync>>(())
    };
    node.host.run_in_thread(in_force)??;
    node.run("nft", &["-f", "-"], TUNNEL_GUARD)
}

/// What our plugin `bridge` and flannel's daemon make for a pod behind a bridge.
fn port_guards(node: &Node) -> Result<()> {
    let host_end = name(HOST_END)?;
    let mut pod = node.pod.with(Socket::route)??;
    let index = pod.link_by_name(&name("eth0")?)?.index;
    let sources = PortSources { addresses: [node.pod_address().into()].into(), prefixes: Vec::new() };
    let guard = PortGuard { mac: mac(&mut pod, index)?, sources: Some(sources) };
    let in_force = || Ok::<_, Box<dyn Error + Send + Sync>>(Verdicts::open()?.put_port(&host_end, &guard)?);
    if !node.host.run_in_thread(in_force)?? {
        return Err("this kernel has no CONFIG_NF_TABLES_BRIDGE".into());
    }
    node.run("nft", &["-f", "-"], TUNNEL_GUARD)?;
    node.run("nft", &["-f", "-"], POD_GUARD)
}

fn proxy(node: &Node, other: &Node) -> Result<Proxy> {
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
    };
    let proxy = node.host.run_in_thread(|| Proxy::start(options))??;
    proxy.put(other.subnet()?, other.address());
    Ok(proxy)
}
