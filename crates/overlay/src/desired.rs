//! The state that the kernel should have: a pure function of the inputs. `plan` compares it
//! with the observed state.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use russet_addr::{Family, IpNet, Mac, NodeName, host_net};

use crate::inputs::{Borrowed, Encapsulation, Inputs};
use crate::masquerade::Masquerade;
use crate::owner::Owner;
use crate::refusal::{Reason, Refusal, Subject};
use crate::routed;
use crate::validated::ValidatedInputs;
use crate::vxlan::{Device, Vxlan, tunnel_addresses};

/// Everything that should be in the kernel, and the inputs that were refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    /// The tunnel devices.
    pub devices: BTreeMap<Family, Device>,
    /// The nodes behind the devices' MACs: device and MAC to outer address.
    pub fdb: BTreeMap<(Family, Mac), IpAddr>,
    /// Permanent neighbours on the devices: tunnel address to MAC.
    pub neighbours: BTreeMap<IpAddr, Mac>,
    /// Routes in the main table.
    pub routes: BTreeMap<IpNet, Hop>,
    /// Addresses of the loopback interface, at which other nodes probe this one.
    pub probes: BTreeSet<IpAddr>,
    /// Address translation.
    pub masquerade: Masquerade,
    /// The metrics of routes that need another one than the kernel's default.
    pub metrics: BTreeMap<IpNet, u32>,
    /// The names and marks that identify the owner of all of it.
    pub owner: Owner,
    /// Families that are to be forwarded.
    pub forwarding: Vec<Family>,
    /// Index of the underlay interface, which keeps a default route that a router advertised.
    pub underlay: u32,
    /// What is not programmed, and why; sorted.
    pub refusals: Vec<Refusal>,
}

/// The next hop of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hop {
    /// Through its family's tunnel device, by this tunnel address. The IPv4 kernel compares a new
    /// next hop with all others of its device, because its hash covers only device and metric:
    /// 5,000 such routes take 0.2 s once, 15,000 take 2.7 s (Linux 6.18). Different metrics avoid
    /// that, see `Desired::metrics`.
    Tunnel(IpAddr),
    /// To the tunnel device itself: the destination is an endpoint.
    Connected,
    /// To a node on our subnet.
    Underlay {
        /// Index of the underlay interface.
        ifindex: u32,
        /// The node's own address.
        gateway: IpAddr,
    },
    /// To the link with this index, whose driver knows the peers.
    Link(u32),
    /// Drops the packet: an address of our own block that no pod has must not follow the default
    /// route.
    Blackhole,
}

/// Computes the routes of one family.
struct Ways<'a> {
    family: Family,
    vxlan: Option<Vxlan<'a>>,
}

/// What the kernel should hold for `inputs` (calico-cni.md sections 4.3, 4.4, 4.8).
pub fn desired(inputs: &Inputs) -> Desired {
    let mut validated = ValidatedInputs::new(inputs);
    let (owner, underlay) = (Owner::calico(inputs.dialect), inputs.underlay.ifindex);
    let mut desired = Desired { owner, underlay, ..Desired::default() };
    for family in Family::BOTH {
        let vxlan = Vxlan::new(&mut validated, family);
        let ways = Ways { family, vxlan };
        ways.program_blocks(&mut validated, &mut desired);
        if let Some(vxlan) = &ways.vxlan {
            vxlan.program(family, &mut desired);
            vxlan.connect(&validated, &mut desired);
        }
        ways.program_borrowed(&mut validated, &mut desired);
        if validated.pools.iter().any(|(net, _)| Family::of_net(net) == family) {
            desired.forwarding.push(family);
        }
    }
    for address in inputs.probes.into_iter().flatten() {
        match validated.check_host(address) {
            Ok(()) => _ = desired.probes.insert(address),
            Err(reason) => validated.refuse(Subject::Probe(address), Some(&inputs.node), reason),
        }
    }
    desired.masquerade = Masquerade::new(&validated, &desired);
    desired.refusals = validated.refusals;
    desired.refusals.sort();
    desired.refusals.dedup();
    desired
}

/// The route of our own block: a blackhole, unless the block is a single address, which its pod's
/// own route covers, or another program routes the pool (calico-cni.md section 4.3, first note).
fn own_hop(validated: &ValidatedInputs<'_>, net: &IpNet) -> Option<Hop> {
    let ours = !matches!(validated.encapsulation(net), None | Some(Encapsulation::Ipip));
    (ours && net.prefix_len() < net.max_prefix_len()).then_some(Hop::Blackhole)
}

// === impl Hop ===

impl Hop {
    /// Whether the route is gone once the tunnel device is.
    pub(crate) const fn uses_device(self) -> bool {
        matches!(self, Hop::Tunnel(_) | Hop::Connected)
    }
}

impl fmt::Display for Hop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hop::Tunnel(gateway) => write!(f, "through the tunnel by {gateway}"),
            Hop::Connected => f.write_str("on the tunnel device"),
            Hop::Underlay { gateway, .. } => write!(f, "via {gateway}"),
            Hop::Link(ifindex) => write!(f, "on link {ifindex}"),
            Hop::Blackhole => f.write_str("into the blackhole"),
        }
    }
}

// === impl Ways ===

impl<'a> Ways<'a> {
    fn program_blocks(&self, validated: &mut ValidatedInputs<'a>, desired: &mut Desired) {
        let mut refused = Vec::new();
        for (net, node) in validated.blocks.iter().filter(|(net, _)| Family::of_net(net) == self.family) {
            let hop = match *node == &validated.inputs.node {
                true => Ok(own_hop(validated, net)),
                false => self.hop(validated, net, node).map(Some),
            };
            match hop {
                Ok(hop) => desired.routes.extend(hop.map(|hop| (*net, hop))),
                Err(reason) => refused.push((*net, *node, reason)),
            }
        }
        for (net, node, reason) in refused {
            validated.refuse(Subject::Block(net), Some(node), reason);
        }
    }

    /// The next hop towards `net`, which is on `node`.
    fn hop(&self, validated: &ValidatedInputs<'a>, net: &IpNet, node: &NodeName) -> Result<Hop, Reason> {
        let tunnel = || self.vxlan.as_ref().ok_or(Reason::NoTunnelEndpoint)?.hop(node);
        match validated.encapsulation(net).ok_or(Reason::OutsidePools)? {
            Encapsulation::None => routed::hop(validated, self.family, node),
            Encapsulation::VxlanCrossSubnet if routed::is_near(validated, self.family, node) => {
                routed::hop(validated, self.family, node)
            }
            Encapsulation::Vxlan | Encapsulation::VxlanCrossSubnet => tunnel(),
            Encapsulation::Ipip => Err(Reason::Unsupported),
        }
    }

    /// Adds host routes to pods that live away from their block. The longer prefix wins over the
    /// block's route, and over our own blackhole.
    fn program_borrowed(&self, validated: &mut ValidatedInputs<'a>, desired: &mut Desired) {
        let inputs = validated.inputs;
        let tunnels = tunnel_addresses(desired);
        let mut taken: BTreeMap<IpAddr, &NodeName> = BTreeMap::new();
        let mut borrowed: Vec<_> =
            inputs.borrowed.iter().filter(|entry| Family::of(entry.address) == self.family).collect();
        borrowed.sort_by_key(|entry| (entry.address, entry.node != inputs.node, &entry.node));
        for entry in borrowed {
            let hop = match taken.get(&entry.address) {
                Some(winner) if **winner == entry.node => continue,
                Some(winner) => Err(Reason::TakenBy((*winner).clone())),
                None if tunnels.contains(&entry.address) => Err(Reason::Covers(entry.address)),
                None => self.borrowed_hop(validated, entry),
            };
            match hop {
                Ok(hop) => {
                    taken.insert(entry.address, &entry.node);
                    desired.routes.extend(hop.map(|hop| (host_net(entry.address), hop)));
                }
                Err(reason) => validated.refuse(Subject::Borrowed(entry.address), Some(&entry.node), reason),
            }
        }
    }

    /// The next hop towards one borrowed address; none where the pod is local and has a route of
    /// its own, or where its block's route suffices.
    fn borrowed_hop(&self, validated: &ValidatedInputs<'a>, entry: &Borrowed) -> Result<Option<Hop>, Reason> {
        let host = host_net(entry.address);
        if entry.node == validated.inputs.node {
            return Ok(None);
        }
        validated.check_host(entry.address)?;
        match validated.blocks.covering(&host) {
            Some((_, owner)) if **owner == entry.node => Ok(None),
            _ => self.hop(validated, &host, &entry.node).map(Some),
        }
    }
}
