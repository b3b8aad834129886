//! From what the kernel's path is made of to what the fast path does. Pure.
//!
//! Nothing here comes from the store: the fast path goes where the kernel's routes, neighbours and
//! forwarding entries lead, and only for pods whose interfaces have no queueing discipline or filter
//! that it would pass by.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use russet_addr::{Family, IpNet, Mac, host_net};
use russet_netlink::{
    FdbEntry, FdbTable, Link, Neighbour, NeighbourState, Qdisc, Route, RouteKind, RouteLookup, Rule, Vxlan,
};

use super::layout::{Endpoint, Node, Tunnel, VxlanHeaders};
use crate::{DEVICE_ALIAS, vxlan};

/// What the kernel's path is made of.
#[derive(Debug, Clone, Default)]
pub struct KernelPath {
    pub links: Vec<Link>,
    pub neighbours: Vec<Neighbour>,
    /// Of the tunnels' devices.
    pub fdb: Vec<FdbEntry>,
    /// Of the main table.
    pub routes: Vec<Route>,
    pub qdiscs: Vec<Qdisc>,
    pub rules: Vec<Rule>,
    /// The routes to the tunnels' other ends.
    pub underlay: BTreeMap<IpAddr, RouteLookup>,
}

/// What the maps hold, and where programs are attached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    pub endpoints: BTreeMap<IpAddr, Endpoint>,
    /// None where the kernel's routes lead elsewhere than to a node.
    pub prefixes: BTreeMap<IpNet, Option<Node>>,
    /// By the families of their outer headers.
    pub tunnels: BTreeMap<Family, Tunnel>,
    pub hooks: BTreeSet<Hook>,
    /// Interfaces whose packets all take the kernel's path, and why.
    pub left_out: BTreeMap<String, &'static str>,
    /// Pods' addresses to and from which nothing is carried, and why.
    pub excluded: BTreeMap<IpAddr, &'static str>,
    /// The host ends of all pods, by their indexes: what is carried of them is counted.
    pub interfaces: BTreeMap<u32, String>,
    /// Nodes whose packets take the kernel's path for a while.
    pub paused: BTreeSet<Node>,
}

/// What the kernel's path carries for a while, so that it is seen at the devices that the fast path passes by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paused {
    /// Indexes of pods' host ends, and of tunnels' devices.
    pub interfaces: BTreeSet<u32>,
    /// The outer addresses of nodes.
    pub peers: BTreeSet<IpAddr>,
}

/// A program at a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hook {
    pub ifindex: u32,
    pub role: Role,
}

/// What a program does at a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Takes what a pod sends.
    Pod,
    /// The same at a netkit pair, in the context of the sender.
    NetkitPod,
    /// Takes what other nodes send.
    Uplink,
    /// Learns flows of what leaves the kernel's path.
    Learn,
}

/// Links by their indexes, with what decides whether the fast path may pass them.
struct Links<'a> {
    links: BTreeMap<u32, &'a Link>,
    disciplines: BTreeMap<u32, Vec<&'a Qdisc>>,
}

/// The discipline of a link that has none.
const NO_DISCIPLINE: &str = "noqueue";
/// Of disciplines for received packets; `clsact` says `clsact`.
const OF_RECEIVED: [&str; 2] = ["ingress", "clsact"];
/// The priorities of the rules for the tables local, main and default.
const DEFAULT_RULES: [u32; 3] = [0, 32766, 32767];
const RULED: &str = "there are routing rules besides the kernel's own";
const PAUSED: &str = "a capture runs, which shall see its packets";
const LIMITED: &str = "a queueing discipline or filter is at its interface";

/// What the fast path does beside this path of the kernel. `host_prefix` begins the names of pods'
/// host ends, and `protocol` marks the routes to other nodes.
pub fn content(kernel: &KernelPath, host_prefix: &str, protocol: u8) -> Content {
    let links = Links::new(kernel);
    let mut content = Content::default();
    // They may lead any packet elsewhere, by more than its destination.
    if kernel.rules.iter().any(|rule| !DEFAULT_RULES.contains(&rule.priority)) {
        content.left_out.insert("all".to_owned(), RULED);
        return content;
    }
    content.interfaces = host_ends(kernel, host_prefix);
    content.find_endpoints(kernel, &links, host_prefix);
    content.find_nodes(kernel, &links, protocol);
    // Without a pod, nothing is sent or received.
    if content.endpoints.is_empty() {
        content.hooks.clear();
    }
    content
}

/// The devices of the overlay's tunnels, and their own outer addresses.
pub(super) fn tunnels(links: &[Link]) -> impl Iterator<Item = (&Link, &Vxlan, IpAddr)> {
    let ours = links.iter().filter(|link| link.alias.as_deref() == Some(DEVICE_ALIAS) && link.is_up());
    ours.filter_map(|link| Some((link, link.vxlan.as_ref()?)))
        .filter(|(_, vxlan)| !vxlan.collect_metadata)
        .filter_map(|(link, vxlan)| Some((link, vxlan, vxlan.local?)))
}

// === impl Role ===

impl Role {
    /// Whether it takes what a pod sends.
    pub const fn is_from_pod(self) -> bool {
        matches!(self, Self::Pod | Self::NetkitPod)
    }
}

// === impl Content ===

impl Content {
    /// Leaves to the kernel's path what is paused. Programs stay at the other links, so that it ends at once.
    pub fn pause(&mut self, paused: &Paused) {
        let is_paused = |ifindex: u32| paused.interfaces.contains(&ifindex);
        let pods = self.endpoints.iter().filter(|(_, endpoint)| is_paused(endpoint.ifindex));
        self.excluded.extend(pods.map(|(address, _)| (*address, PAUSED)));
        self.endpoints.retain(|_, endpoint| !is_paused(endpoint.ifindex));
        self.hooks.retain(|hook| !(self.interfaces.contains_key(&hook.ifindex) && is_paused(hook.ifindex)));
        let is_meant = |node: &Node| {
            let is_of_peer = |headers: VxlanHeaders| paused.peers.contains(&headers.remote);
            // What is sent without a tunnel is seen at the uplink in any case.
            node.vxlan.is_some_and(is_of_peer)
                || (node.vxlan.is_some()
                    && node.via_ifindex != node.out_ifindex
                    && is_paused(node.via_ifindex))
        };
        self.paused = self.prefixes.values().flatten().filter(|node| is_meant(node)).copied().collect();
    }

    fn find_endpoints(&mut self, kernel: &KernelPath, links: &Links<'_>, host_prefix: &str) {
        let routed: BTreeSet<(u32, IpNet)> = kernel
            .routes
            .iter()
            .filter(|route| route.kind == RouteKind::Unicast && route.gateway.is_none())
            .filter_map(|route| Some((route.oif?, route.dst)))
            .collect();
        for neighbour in &kernel.neighbours {
            let host = links.of(neighbour.ifindex).filter(|link| is_host_end(link, host_prefix));
            let (Some(host), Some(pod_mac), true) =
                (host, permanent(neighbour), host_is_routed(&routed, neighbour))
            else {
                continue;
            };
            let Some(host_mac) = host.mac else { continue };
            if !links.is_plain(host.index) {
                self.left_out.insert(host.name.clone(), LIMITED);
                self.excluded.insert(neighbour.address, LIMITED);
                continue;
            }
            let endpoint = Endpoint { ifindex: host.index, mtu_bytes: host.mtu_bytes, pod_mac, host_mac };
            self.endpoints.insert(neighbour.address, endpoint);
            let from_pod = if host.is_netkit() { Role::NetkitPod } else { Role::Pod };
            self.hooks.extend([from_pod, Role::Learn].map(|role| Hook { ifindex: host.index, role }));
        }
    }

    fn find_nodes(&mut self, kernel: &KernelPath, links: &Links<'_>, protocol: u8) {
        let tunnels: BTreeMap<u32, ToNodes<'_>> =
            ToNodes::all(kernel).map(|tunnel| (tunnel.device.index, tunnel)).collect();
        let mut others = Vec::new();
        for route in &kernel.routes {
            let is_to_a_node = route.protocol == protocol && route.kind == RouteKind::Unicast;
            let (true, Some(gateway), Some(oif)) = (is_to_a_node, route.gateway, route.oif) else {
                others.push(route.dst);
                continue;
            };
            let node = match tunnels.get(&oif) {
                Some(tunnel) => tunnel.node(kernel, gateway),
                None => links.of(oif).map(|uplink| Node {
                    via_ifindex: oif,
                    mtu_bytes: uplink.mtu_bytes,
                    out_ifindex: oif,
                    next_hop: gateway,
                    vxlan: None,
                }),
            };
            let mtu_bytes =
                |node: &Node| route.mtu_bytes.map_or(node.mtu_bytes, |mtu| mtu.min(node.mtu_bytes));
            let node = node.map(|node| Node { mtu_bytes: mtu_bytes(&node), ..node });
            if !node.is_some_and(|node| self.add_node(links, route.dst, node)) {
                others.push(route.dst);
            }
        }
        for dst in others {
            if self.is_in_a_prefix(dst) {
                self.prefixes.insert(dst, None);
            }
        }
        let is_used =
            |device: &Link| self.prefixes.values().flatten().any(|node| node.via_ifindex == device.index);
        let used = tunnels.into_values().filter(|tunnel| is_used(tunnel.device));
        self.tunnels = used.map(|tunnel| (Family::of(tunnel.local), tunnel.received())).collect();
    }

    /// Whether a route is one of a prefix, or of a part of it.
    fn is_in_a_prefix(&self, dst: IpNet) -> bool {
        let wider = |len| IpNet::new(dst.addr(), len).ok().map(|net| net.trunc());
        (0..=dst.prefix_len()).filter_map(wider).any(|net| self.prefixes.contains_key(&net))
    }

    /// Returns whether packets may go there.
    fn add_node(&mut self, links: &Links<'_>, dst: IpNet, node: Node) -> bool {
        let uplink = links.of(node.out_ifindex).filter(|link| link.mac.is_some() && link.is_up());
        let Some(uplink) = uplink else { return false };
        // What queues packets at the uplink stays in their way, and what does so at a tunnel's device does not.
        let is_passed_by = node.via_ifindex != node.out_ifindex;
        let is_plain = !is_passed_by || links.is_plain(node.via_ifindex);
        if !(is_plain && links.has_no_filters(uplink.index)) {
            self.left_out.insert(uplink.name.clone(), LIMITED);
            return false;
        }
        let outer_bytes = node.vxlan.map_or(0, |headers| vxlan::overhead(Family::of(headers.remote)));
        let mtu_bytes = node.mtu_bytes.min(uplink.mtu_bytes.saturating_sub(outer_bytes));
        let node = Node { mtu_bytes, ..node };
        self.hooks.insert(Hook { ifindex: uplink.index, role: Role::Uplink });
        self.hooks
            .extend([node.via_ifindex, uplink.index].map(|ifindex| Hook { ifindex, role: Role::Learn }));
        // Of several routes to one destination, metrics decide which counts.
        let is_first = self.prefixes.insert(dst, Some(node)).is_none();
        if !is_first {
            self.prefixes.insert(dst, None);
        }
        true
    }
}

fn host_ends(kernel: &KernelPath, host_prefix: &str) -> BTreeMap<u32, String> {
    let is_named = |link: &&Link| link.is_of_pair() && link.name.starts_with(host_prefix);
    kernel.links.iter().filter(is_named).map(|link| (link.index, link.name.clone())).collect()
}

fn is_host_end(link: &Link, host_prefix: &str) -> bool {
    link.is_of_pair() && link.name.starts_with(host_prefix) && link.is_up() && link.master.is_none()
}

fn permanent(neighbour: &Neighbour) -> Option<Mac> {
    neighbour.mac.filter(|_| neighbour.state == NeighbourState::Permanent && !neighbour.proxy)
}

fn host_is_routed(routed: &BTreeSet<(u32, IpNet)>, neighbour: &Neighbour) -> bool {
    routed.contains(&(neighbour.ifindex, host_net(neighbour.address)))
}

/// A tunnel's device, and what it knows of its other ends.
struct ToNodes<'a> {
    device: &'a Link,
    vxlan: &'a Vxlan,
    local: IpAddr,
    macs: BTreeMap<IpAddr, Mac>,
    remotes: BTreeMap<Mac, IpAddr>,
}

// === impl ToNodes ===

impl<'a> ToNodes<'a> {
    /// The first of each family of outer headers.
    fn all(kernel: &'a KernelPath) -> impl Iterator<Item = Self> {
        let of = |family| tunnels(&kernel.links).find(move |(_, _, local)| Family::of(*local) == family);
        Family::BOTH.into_iter().filter_map(of).map(|(device, vxlan, local)| {
            let neighbours = kernel.neighbours.iter().filter(|neighbour| neighbour.ifindex == device.index);
            let entries = kernel.fdb.iter().filter(|entry| {
                let is_plain = entry.vni.is_none() && entry.port.is_none() && entry.permanent;
                entry.ifindex == device.index && entry.table == FdbTable::Device && is_plain
            });
            let macs = neighbours.filter_map(|it| Some((it.address, permanent(it)?))).collect();
            let remotes = entries.filter_map(|entry| Some((entry.mac, entry.dst?))).collect();
            Self { device, vxlan, local, macs, remotes }
        })
    }

    /// The node behind a gateway; none if the kernel's tables do not lead there.
    fn node(&self, kernel: &KernelPath, gateway: IpAddr) -> Option<Node> {
        let Self { device, vxlan, local, .. } = *self;
        let inner_to = *self.macs.get(&gateway)?;
        let remote =
            *self.remotes.get(&inner_to).filter(|remote| Family::of(**remote) == Family::of(local))?;
        let route = kernel.underlay.get(&remote).filter(|route| route.kind == RouteKind::Unicast)?;
        Some(Node {
            via_ifindex: device.index,
            mtu_bytes: device.mtu_bytes,
            out_ifindex: route.oif?,
            next_hop: route.gateway.unwrap_or(remote),
            vxlan: Some(VxlanHeaders {
                remote,
                local,
                vni: vxlan.vni,
                port: vxlan.port,
                inner_to,
                inner_from: device.mac?,
            }),
        })
    }

    fn received(&self) -> Tunnel {
        Tunnel { ifindex: self.device.index, vni: self.vxlan.vni, port: self.vxlan.port }
    }
}

/// The outer addresses to which the tunnels lead.
pub(super) fn remotes(fdb: &[FdbEntry]) -> BTreeSet<IpAddr> {
    // The route to a link-local address would need the link.
    let is_global = |dst: &IpAddr| match dst {
        IpAddr::V4(_) => true,
        IpAddr::V6(dst) => !dst.is_unicast_link_local(),
    };
    let all = fdb.iter().filter_map(|entry| entry.dst);
    all.filter(|dst| !dst.is_multicast() && !dst.is_unspecified() && is_global(dst)).collect()
}

// === impl Links ===

impl<'a> Links<'a> {
    fn new(kernel: &'a KernelPath) -> Self {
        let mut disciplines: BTreeMap<u32, Vec<&Qdisc>> = BTreeMap::new();
        for qdisc in &kernel.qdiscs {
            disciplines.entry(qdisc.ifindex).or_default().push(qdisc);
        }
        Self { links: kernel.links.iter().map(|link| (link.index, link)).collect(), disciplines }
    }

    fn of(&self, ifindex: u32) -> Option<&'a Link> {
        self.links.get(&ifindex).copied()
    }

    /// Whether nothing is done to packets at a link, in either direction.
    fn is_plain(&self, ifindex: u32) -> bool {
        self.disciplines.get(&ifindex).is_none_or(|all| all.iter().all(|qdisc| qdisc.kind == NO_DISCIPLINE))
    }

    /// Whether no filter is asked about packets that a link receives or sends. What queues them stays in
    /// their way.
    fn has_no_filters(&self, ifindex: u32) -> bool {
        let all = self.disciplines.get(&ifindex);
        all.is_none_or(|all| !all.iter().any(|qdisc| OF_RECEIVED.contains(&qdisc.kind.as_str())))
    }
}

#[cfg(test)]
mod tests;
