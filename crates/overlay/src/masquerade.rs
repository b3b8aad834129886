//! Computes which traffic takes the node's address, which is not tracked, and which machines may
//! send tunnel packets (calico-cni.md sections 4.4 and 4.8, policy.md section 3.6). Pure; `nat`
//! applies the result to nf_tables.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use russet_addr::{Family, IfName, IpNet};
use russet_nft::{
    self as nft, Chain, ChainKind, Element, Hook, KeyPart, KeyType, L4, Rule, Set, Table, priority,
};

use crate::desired::Desired;
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

/// Chains, sets and rules, in the order in which they must be created.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ruleset {
    pub(crate) chains: Vec<Chain>,
    pub(crate) sets: Vec<(Set, Vec<Element>)>,
    pub(crate) rules: Vec<Rule>,
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
/// The prefixes of the names of pods' host ends, ours and those of Calico's plugin.
const POD_ENDS: [&str; 2] = ["russ", "cali"];
/// The comment of the rules that drop what pods send to a tunnel's port.
pub const POD_TUNNEL_DROP: &str = "a pod does not send tunnel packets";
/// The comment of the rules that drop what other machines send to a tunnel's port.
pub const FOREIGN_TUNNEL_DROP: &str = "tunnel packet from an address that is no peer's";
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

/// The chains and sets of the guard, rules before the sets that they refer to.
pub(crate) fn guard_parts() -> ([&'static str; 2], [Set; 2]) {
    ([INPUT, FORWARD], Family::BOTH.map(peers_set))
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
        }
    }

    pub fn is_empty(&self) -> bool {
        self.nat.is_empty() && self.tunnels.is_empty()
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
            self.guard(&mut ruleset);
        }
        ruleset
    }

    /// Drops tunnel packets from senders that are no peers, because the sender of such a packet
    /// chooses its inner source. The hook `input` sees what the kernel's tunnel socket would
    /// receive, after defragmentation and translation of destinations.
    fn guard(&self, ruleset: &mut Ruleset) {
        let table = table();
        let filter = |name, hook| Chain::base(&table, name, ChainKind::Filter, hook, priority::FILTER);
        let (input, forward) = (filter(INPUT, Hook::Input), filter(FORWARD, Hook::Forward));
        let ports: BTreeSet<u16> = self.tunnels.values().map(|ends| ends.port).collect();
        for chain in [&input, &forward] {
            for (prefix, port) in
                POD_ENDS.iter().flat_map(|prefix| ports.iter().map(move |port| (prefix, port)))
            {
                let sent = Rule::new(chain).iif_prefix(prefix).protocol(L4::Udp).dport(*port);
                ruleset.rules.push(sent.counter().drop().comment(POD_TUNNEL_DROP));
            }
        }
        for (family, ends) in &self.tunnels {
            let set = peers_set(*family);
            // Other programs may use the port for their own networks.
            let outer = Rule::new(&input).protocol(L4::Udp).dport(ends.port).vni(ends.vni);
            let foreign = outer.saddr_not_in(*family, set.name.clone()).counter().drop();
            ruleset.rules.push(foreign.comment(FOREIGN_TUNNEL_DROP));
            let peers = self.peers.iter().filter(|peer| Family::of(**peer) == *family);
            ruleset.sets.push((set, peers.map(|peer| Element::new(KeyPart::from(*peer))).collect()));
        }
        ruleset.chains.extend([input, forward]);
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

/// Merges networks that contain each other.
fn disjoint(nets: impl Iterator<Item = IpNet>) -> Vec<IpNet> {
    let mut nets = IpNet::aggregate(&nets.collect());
    nets.sort();
    nets
}
