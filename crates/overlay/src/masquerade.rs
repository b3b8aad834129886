//! Computes which traffic takes the node's address, which is not tracked, and which machines may
//! send tunnel packets (calico-cni.md sections 4.4 and 4.8, policy.md section 3.6). Pure; `nat`
//! applies the result to nf_tables.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use russet_addr::{Family, IfName, IpNet};
use russet_nft::{
    self as nft, Chain, ChainKind, Element, Field, Hook, KeyPart, KeyType, L4, Rule, Set, Table, priority,
};

use crate::desired::Desired;
use crate::inputs::TunnelSenders;
use crate::ruleset::Ruleset;
use crate::validated::ValidatedInputs;
use crate::vxlan::device_name;

/// The inputs of the overlay's part of table `inet russet`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Masquerade {
    /// All pools, disjoint and sorted: traffic to these keeps its source.
    pub pools: Vec<IpNet>,
    /// The pools whose traffic to anywhere else takes the node's address, disjoint and sorted.
    pub nat: Vec<IpNet>,
    /// The tunnels: their port must stay free, and their outer packets need no tracking.
    pub tunnels: BTreeMap<Family, TunnelEnds>,
    /// The other nodes' own addresses: only these may send to a tunnel's port.
    pub peers: BTreeSet<IpAddr>,
    /// What else may send encapsulated packets.
    pub senders: TunnelSenders,
}

/// The addresses of one of our own devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TunnelEnds {
    /// The UDP port of outer packets.
    pub port: u16,
    /// The network identifier in them.
    pub vni: u32,
    /// The outer source address.
    pub local: IpAddr,
    /// The tunnel address.
    pub tunnel: IpAddr,
}

/// The chain that masquerades, behind the other nat chains of its hook: kube-proxy's rules come first.
const POSTROUTING: &str = "overlay-postrouting";
/// The chain for packets that arrive through the underlay.
const PREROUTING: &str = "overlay-prerouting";
/// The chain for packets that leave through it.
const OUTPUT: &str = "overlay-output";
/// The chain for packets addressed to this machine: it drops tunnel packets from senders that are
/// no peers.
const INPUT: &str = "overlay-input";
/// The chain for packets that this machine forwards: it drops tunnel packets from pods. They would
/// be masqueraded and look like this node's own to the other nodes.
const FORWARD: &str = "overlay-forward";
/// Forwarded packets that are not TCP.
const FORWARD_OTHER: &str = "overlay-forward-other";
/// Tunnel packets for this machine.
const TUNNEL: &str = "overlay-tunnel";
/// Packets to a tunnel's port, from pods or not.
const POD_TUNNEL: &str = "overlay-pod-tunnel";
/// Forwarded packets that carry others.
const ENCAPSULATED: &str = "overlay-encapsulated";
/// Packets that carry others for a node, from pods or not.
const POD_ENCAPSULATED: &str = "overlay-pod-encapsulated";
/// The prefixes of the names of pods' host ends, ours and those of Calico's plugin.
const POD_ENDS: [&str; 2] = ["russ", "cali"];
/// The comment of the rules that drop what pods send to a tunnel's port.
pub const POD_TUNNEL_DROP: &str = "a pod does not send tunnel packets";
/// The comment of the rules that drop what other machines send to a tunnel's port.
pub const FOREIGN_TUNNEL_DROP: &str = "tunnel packet from an address that is no peer's";
/// The comment of the rules that drop other encapsulated packets of pods for nodes.
pub const POD_ENCAPSULATION_DROP: &str = "a pod sends nodes no IP in IP and no GRE";
/// IPv4 in IP, IPv6 in IP and GRE (IANA's protocol numbers).
pub(crate) const ENCAPSULATIONS: [u8; 3] = [4, 41, 47];
/// How far behind priority `srcnat` our chain is.
const BEHIND_SRCNAT: i32 = 10;
/// Minimum number of ports for masqueraded flows, and the first port that is not for servers.
const PORTS_MIN: u16 = 1024;
/// Prefix of the names of the overlay's chains and sets; other parts of Russet use the same table.
pub(crate) const PREFIX: &str = "overlay-";

pub(crate) fn table() -> Table {
    Table::inet("russet")
}

fn pools_set(family: Family) -> &'static str {
    match family {
        Family::V4 => "overlay-pools4",
        Family::V6 => "overlay-pools6",
    }
}

fn nat_set(family: Family) -> &'static str {
    match family {
        Family::V4 => "overlay-nat4",
        Family::V6 => "overlay-nat6",
    }
}

/// The chains and sets of the guard. Each chain is behind those that lead to it.
pub(crate) fn guard_parts() -> ([&'static str; 7], [Set; 5]) {
    let ([peers4, peers6], [external4, external6]) =
        (Family::BOTH.map(peers_set), Family::BOTH.map(external_set));
    let chains = [INPUT, FORWARD, FORWARD_OTHER, TUNNEL, POD_TUNNEL, ENCAPSULATED, POD_ENCAPSULATED];
    (chains, [peers4, peers6, external4, external6, encapsulations_set()])
}

/// The set of the machines that are no nodes and may send tunnel packets.
fn external_set(family: Family) -> Set {
    let name = match family {
        Family::V4 => "overlay-external4",
        Family::V6 => "overlay-external6",
    };
    Set::prefixes(&table(), name, family)
}

/// The set of the protocols that carry packets of other addresses.
fn encapsulations_set() -> Set {
    Set::new(&table(), "overlay-encapsulations", [KeyType::InetProto])
}

fn peers_set(family: Family) -> Set {
    let name = match family {
        Family::V4 => "overlay-peers4",
        Family::V6 => "overlay-peers6",
    };
    Set::new(&table(), name, [KeyType::address(family)])
}

// === impl Masquerade ===

impl Masquerade {
    /// The sets for the pools of `validated`.
    pub(crate) fn new(validated: &ValidatedInputs<'_>, desired: &Desired) -> Self {
        let nat = validated.pools.iter().filter(|(_, pool)| pool.nat_outgoing);
        let ends = desired.devices.iter().filter_map(|(family, device)| {
            let tunnel = device.address?.addr();
            Some((*family, TunnelEnds { port: device.port, vni: device.vni, local: device.local, tunnel }))
        });
        Self {
            pools: disjoint(validated.pools.iter().map(|(net, _)| *net)),
            nat: disjoint(nat.map(|(net, _)| *net)),
            tunnels: ends.collect(),
            peers: validated.peers().collect(),
            senders: validated.inputs.senders.clone(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.nat.is_empty() && self.tunnels.is_empty() && !self.guards_encapsulation()
    }

    /// Whether pods are kept from sending IP in IP and GRE to nodes: some of them may take such packets from each other, whatever this
    /// node does.
    fn guards_encapsulation(&self) -> bool {
        !self.pools.is_empty() && !self.senders.pods_ipip
    }

    /// The rules. None of them leaves traffic between pods untracked, although that would be
    /// cheaper: replies of a connection whose destination was translated (services, host ports)
    /// would keep the translated source, and the client would not recognise them.
    pub(crate) fn ruleset(&self) -> Ruleset {
        let mut ruleset = Ruleset::default();
        if self.is_empty() {
            return ruleset;
        }
        let table = table();
        let postrouting = priority::SRCNAT + BEHIND_SRCNAT;
        let postrouting = Chain::base(&table, POSTROUTING, ChainKind::Nat, Hook::Postrouting, postrouting);
        for family in Family::BOTH {
            self.masquerade(family, &postrouting, &mut ruleset);
        }
        ruleset.chains.push(postrouting);
        if !self.tunnels.is_empty() {
            let raw = |name, hook| Chain::base(&table, name, ChainKind::Filter, hook, priority::RAW);
            let (prerouting, output) = (raw(PREROUTING, Hook::Prerouting), raw(OUTPUT, Hook::Output));
            for ends in self.tunnels.values() {
                // Only our own packets: a pod may have a tunnel of its own, whose packets must be
                // masqueraded.
                let outer = |chain| Rule::new(chain).protocol(L4::Udp).dport(ends.port);
                ruleset.rules.push(outer(&prerouting).daddr(ends.local.into()).notrack());
                ruleset.rules.push(outer(&output).saddr(ends.local.into()).notrack());
            }
            ruleset.chains.extend([prerouting, output]);
        }
        if !self.tunnels.is_empty() || self.guards_encapsulation() {
            self.guard(&mut ruleset);
        }
        ruleset
    }

    /// Drops tunnel packets from senders that are no peers, because the sender of such a packet
    /// chooses its inner source. The hook `input` sees what the kernel's tunnel socket would
    /// receive, after defragmentation and translation of destinations.
    ///
    /// ```text
    /// chain overlay-input   { udp dport 4789 goto overlay-tunnel; meta l4proto @overlay-encapsulations goto overlay-pod-encapsulated }
    /// chain overlay-forward { meta l4proto != tcp goto overlay-forward-other }
    /// chain overlay-forward-other {
    ///     udp dport 4789 goto overlay-pod-tunnel
    ///     meta l4proto @overlay-encapsulations goto overlay-encapsulated
    /// }
    /// chain overlay-tunnel {
    ///     ip saddr @overlay-peers4 iifname != "russ*" iifname != "cali*" accept; (IPv6 likewise)
    ///     the rules of overlay-pod-tunnel
    ///     @th,96,24 4096 ip saddr != @overlay-peers4 counter drop; (IPv6 likewise)
    /// }
    /// chain overlay-pod-tunnel       { iifname "russ*" counter drop; iifname "cali*" counter drop }
    /// chain overlay-encapsulated     { ip daddr @overlay-peers4 goto overlay-pod-encapsulated; (IPv6 likewise) }
    /// chain overlay-pod-encapsulated { iifname "russ*" counter drop; iifname "cali*" counter drop }
    /// ```
    ///
    /// What nearly all packets are (TCP when they are forwarded, a peer's tunnel packet when they
    /// are not) leaves a chain at its first rule.
    fn guard(&self, ruleset: &mut Ruleset) {
        let base = |name, hook| Chain::base(&table(), name, ChainKind::Filter, hook, priority::FILTER);
        ruleset.chains.extend([base(INPUT, Hook::Input), base(FORWARD, Hook::Forward)]);
        ruleset.chains.push(Chain::new(&table(), FORWARD_OTHER));
        ruleset.rules.push(rule(FORWARD).protocol_not(L4::Tcp).goto(FORWARD_OTHER));
        if !self.tunnels.is_empty() {
            self.guard_port(ruleset);
        }
        if self.guards_encapsulation() {
            guard_encapsulation(ruleset);
        }
        for family in Family::BOTH {
            if self.guards_encapsulation() || self.tunnels.contains_key(&family) {
                let peers = self.peers.iter().filter(|peer| Family::of(**peer) == family);
                let elements = peers.map(|peer| Element::new(KeyPart::from(*peer))).collect();
                ruleset.sets.push((peers_set(family), elements));
            }
        }
    }

    fn guard_port(&self, ruleset: &mut Ruleset) {
        let pods = if self.senders.pods_vxlan { &[][..] } else { &POD_ENDS };
        ruleset.chains.extend([TUNNEL, POD_TUNNEL].map(|name| Chain::new(&table(), name)));
        let ports: BTreeSet<u16> = self.tunnels.values().map(|ends| ends.port).collect();
        for (chain, to) in [(INPUT, TUNNEL), (FORWARD_OTHER, POD_TUNNEL)] {
            ruleset
                .rules
                .extend(ports.iter().map(|port| rule(chain).protocol(L4::Udp).dport(*port).goto(to)));
        }
        for family in self.tunnels.keys() {
            let peer = rule(TUNNEL).saddr_in(*family, peers_set(*family).name);
            ruleset.rules.push(peer.iif_no_prefix(pods).accept());
        }
        for chain in [TUNNEL, POD_TUNNEL] {
            ruleset.rules.extend(drop_from(pods, chain, POD_TUNNEL_DROP));
        }
        for (family, ends) in &self.tunnels {
            // Other programs may have networks of their own at the port.
            let outer = rule(TUNNEL).protocol(L4::Udp).dport(ends.port).vni(ends.vni);
            let mut foreign = outer.saddr_not_in(*family, peers_set(*family).name);
            let of_family = self.senders.external.iter().filter(|net| Family::of_net(net) == *family);
            let external = Element::cover(of_family.copied());
            if !external.is_empty() {
                foreign = foreign.saddr_not_in(*family, external_set(*family).name);
                ruleset.sets.push((external_set(*family), external));
            }
            ruleset.rules.push(foreign.counter().drop().comment(FOREIGN_TUNNEL_DROP));
        }
    }

    /// Ports that masqueraded UDP may use where there is a tunnel: those above its own, or below if
    /// there are none above (calico-cni.md section 4.8). Filters and trackers would take a flow
    /// from the tunnel's port to another node for a tunnel packet.
    fn udp_ports(&self) -> Option<RangeInclusive<u16>> {
        let port = self.tunnels.values().map(|ends| ends.port).max()?;
        Some(if port < u16::MAX - PORTS_MIN { port + 1..=u16::MAX } else { PORTS_MIN..=port - 1 })
    }

    fn masquerade(&self, family: Family, chain: &Chain, ruleset: &mut Ruleset) {
        let how = nft::Masquerade::fully_random;
        let tunnel = self.tunnels.get(&family);
        if let (Some(ends), Ok(device)) = (tunnel, IfName::new(device_name(family))) {
            // Replies to packets that the node itself sends to a pod with another of its addresses
            // as source would bypass the tunnel.
            let host = Rule::new(chain).oif(&device).saddr_not(ends.tunnel.into()).from_this_machine();
            ruleset.rules.push(host.masquerade(how()));
        }
        let of_family = |nets: &[IpNet]| -> Vec<IpNet> {
            nets.iter().copied().filter(|net| Family::of_net(net) == family).collect()
        };
        let nat = of_family(&self.nat);
        if nat.is_empty() {
            return;
        }
        for (name, nets) in [(pools_set(family), of_family(&self.pools)), (nat_set(family), nat)] {
            ruleset.sets.push((Set::prefixes(&table(), name, family), Element::cover(nets)));
        }
        let leaving =
            |rule: Rule| rule.saddr_in(family, nat_set(family)).daddr_not_in(family, pools_set(family));
        if let Some(ports) = self.udp_ports() {
            let udp = leaving(Rule::new(chain)).protocol(L4::Udp);
            ruleset.rules.push(udp.masquerade(how().ports(ports)));
        }
        ruleset.rules.push(leaving(Rule::new(chain)).masquerade(how()));
    }
}

/// What pods send to this node, and through it to other nodes, in IP or GRE. Masqueraded, it would look like this node's own to the others.
fn guard_encapsulation(ruleset: &mut Ruleset) {
    ruleset.chains.extend([ENCAPSULATED, POD_ENCAPSULATED].map(|name| Chain::new(&table(), name)));
    for (chain, to) in [(INPUT, POD_ENCAPSULATED), (FORWARD_OTHER, ENCAPSULATED)] {
        ruleset.rules.push(rule(chain).is_in(&[Field::L4Proto], encapsulations_set().name).goto(to));
    }
    for family in Family::BOTH {
        ruleset
            .rules
            .push(rule(ENCAPSULATED).daddr_in(family, peers_set(family).name).goto(POD_ENCAPSULATED));
    }
    ruleset.rules.extend(drop_from(&POD_ENDS, POD_ENCAPSULATED, POD_ENCAPSULATION_DROP));
    let protocols = ENCAPSULATIONS.map(|number| Element::new(KeyPart::protocol(number)));
    ruleset.sets.push((encapsulations_set(), protocols.into()));
}

fn rule(chain: &str) -> Rule {
    Rule::in_chain(&table(), chain)
}

/// The rules that drop what arrives through interfaces whose names begin like this.
fn drop_from<'a>(ends: &'a [&str], chain: &'a str, comment: &'a str) -> impl Iterator<Item = Rule> {
    ends.iter().map(move |prefix| rule(chain).iif_prefix(prefix).counter().drop().comment(comment))
}

/// Merges networks that contain each other.
fn disjoint(nets: impl Iterator<Item = IpNet>) -> Vec<IpNet> {
    let mut nets = IpNet::aggregate(&nets.collect());
    nets.sort();
    nets
}
