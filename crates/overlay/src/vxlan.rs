//! The VXLAN backend: our tunnel device, the endpoints of all other nodes, and routes through them
//! (calico-cni.md sections 4.3 and 4.4). Called by `desired`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use russet_addr::{Family, IpNet, Mac, NodeName, host_net};

use crate::desired::{Desired, Hop};
use crate::inputs::{Addresses, Inputs};
use crate::mac::tunnel_mac;
use crate::owner::of;
use crate::refusal::{Reason, Subject};
use crate::validated::ValidatedInputs;

/// VXLAN network identifier that every Calico node uses unless it is configured otherwise.
pub const VNI: u32 = 4096;
/// Calico's default UDP port; also IANA's.
pub const PORT: u16 = 4789;

/// The device for a family's tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// VXLAN network identifier.
    pub vni: u32,
    /// UDP port of the outer packets.
    pub port: u16,
    /// Source address of the outer packets.
    pub local: IpAddr,
    /// Index of the interface that carries the outer packets.
    pub parent: u32,
    /// MTU in bytes.
    pub mtu: u32,
    /// Its MAC, which peers compute or read from our node object.
    pub mac: Mac,
    /// Our tunnel address, full length; none while it is unknown.
    pub address: Option<IpNet>,
    /// Whether packets carry the sender's group policy.
    pub gbp: bool,
    /// Whether it learns addresses from received packets; not compared with an existing device.
    pub learning: bool,
}

/// The end of another node's tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) tunnel: IpAddr,
    pub(crate) mac: Mac,
    pub(crate) underlay: IpAddr,
}

/// One family's tunnel: our device and the endpoints behind it.
pub(crate) struct Vxlan<'a> {
    pub(crate) device: Device,
    /// By node; looked up once per block.
    endpoints: BTreeMap<&'a NodeName, Endpoint>,
}

/// The name of `family`'s device; peers and operators know it (calico-cni.md section 4.4).
pub const fn device_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "vxlan.calico",
        Family::V6 => "vxlan-v6.calico",
    }
}

/// Bytes of the outer headers.
pub(crate) const fn overhead(family: Family) -> u32 {
    match family {
        Family::V4 => 50,
        Family::V6 => 70,
    }
}

/// Below these the kernel disables the family on the device (RFC 791, RFC 8200).
pub(crate) const fn mtu_min(family: Family) -> u32 {
    match family {
        Family::V4 => 576,
        Family::V6 => 1280,
    }
}

// === impl Vxlan ===

impl<'a> Vxlan<'a> {
    /// The tunnel of `family`, if a pool needs one and our own node has valid addresses for it.
    pub(crate) fn new(validated: &mut ValidatedInputs<'a>, family: Family) -> Option<Self> {
        if !validated.needs_tunnel(family) {
            return None;
        }
        match device(validated, family) {
            Ok(device) => {
                let endpoints = endpoints(validated, family, &device);
                Some(Self { device, endpoints })
            }
            Err(reason) => {
                validated.refuse(Subject::Device(family), None, reason);
                None
            }
        }
    }

    /// The next hop towards a block or address of `node`.
    pub(crate) fn hop(&self, node: &NodeName) -> Result<Hop, Reason> {
        self.endpoints.get(node).map(|end| Hop::Tunnel(end.tunnel)).ok_or(Reason::NoTunnelEndpoint)
    }

    /// Adds the device, its FDB and its neighbours to `desired`.
    pub(crate) fn program(&self, family: Family, desired: &mut Desired) {
        desired.devices.insert(family, self.device.clone());
        for end in self.endpoints.values() {
            desired.fdb.insert((family, end.mac), end.underlay);
            desired.neighbours.insert(end.tunnel, end.mac);
        }
    }

    /// Adds a directly connected route for each endpoint that its node's block route does not
    /// cover: the address is borrowed, or its block is that one address, or it is in no block
    /// (calico-cni.md section 4.3). It comes after the block routes, over which it wins: a block of
    /// one address would otherwise be its own next hop.
    ///
    /// In IPv6 every endpoint gets one. The kernel refuses an on-link next hop to which any route
    /// but the default one leads through another link ("invalid gateway or device mismatch"). Such
    /// a route can be the block's own before a change of encapsulation, or an operator's to the
    /// whole pool.
    pub(crate) fn connect(&self, validated: &ValidatedInputs<'a>, desired: &mut Desired) {
        for (node, end) in &self.endpoints {
            let host = host_net(end.tunnel);
            let leads = |(block, owner): (&IpNet, &&NodeName)| {
                owner == node && *block != host && desired.routes.contains_key(block)
            };
            let covered = end.tunnel.is_ipv4() && validated.blocks.covering(&host).is_some_and(leads);
            if !covered {
                desired.routes.insert(host, Hop::Connected);
            }
        }
    }
}

fn device(validated: &mut ValidatedInputs<'_>, family: Family) -> Result<Device, Reason> {
    let inputs: &Inputs = validated.inputs;
    let local = validated.own_underlay(family)?.addr();
    let own = inputs.nodes.get(&inputs.node).map(|node| node.of(family)).ok_or(Reason::OwnAddressMissing)?;
    let address = own.tunnel.ok_or(Reason::OwnTunnelAddressMissing)?;
    if let Err(reason) = check_tunnel(validated, family, address) {
        validated.refuse(Subject::Tunnel(address), Some(&inputs.node), reason);
        return Err(Reason::OwnTunnelAddressMissing);
    }
    let set = *of(&inputs.tunnel.mtu, family);
    let mtu = set.unwrap_or_else(|| inputs.underlay.mtu.saturating_sub(overhead(family)));
    if mtu < mtu_min(family) {
        return Err(Reason::MtuTooSmall(inputs.underlay.mtu));
    }
    let mac = match own.mac {
        Some(mac) if !is_unicast(mac) => {
            validated.refuse(Subject::Mac(mac), Some(&inputs.node), Reason::NotUnicast);
            tunnel_mac(&inputs.node, family)
        }
        Some(mac) => mac,
        None => tunnel_mac(&inputs.node, family),
    };
    let crate::inputs::Tunnel { vni, port, .. } = inputs.tunnel;
    let parent = inputs.underlay.ifindex;
    let address = Some(host_net(address));
    Ok(Device { vni, port, local, parent, mtu, mac, address, gbp: false, learning: false })
}

/// The endpoints of all other nodes. Tunnel addresses and MACs are unique: ours come first, then
/// the nodes with a computed MAC, then those that name a MAC, which could be any node's.
fn endpoints<'a>(
    validated: &mut ValidatedInputs<'a>,
    family: Family,
    own: &Device,
) -> BTreeMap<&'a NodeName, Endpoint> {
    let inputs = validated.inputs;
    let mut tunnels: BTreeMap<_, _> = own.address.iter().map(|net| (net.addr(), &inputs.node)).collect();
    let mut macs = BTreeMap::from([(own.mac, &inputs.node)]);
    let mut found = BTreeMap::new();
    let others = || inputs.nodes.iter().filter(|(name, _)| **name != inputs.node);
    let computed = others().filter(|(_, node)| node.of(family).mac.is_none());
    for (name, node) in computed.chain(others().filter(|(_, node)| node.of(family).mac.is_some())) {
        let Some(end) = endpoint(validated, family, name, node.of(family)) else { continue };
        let owner = tunnels.get(&end.tunnel).map(|owner| (Subject::Tunnel(end.tunnel), *owner));
        if let Some((subject, owner)) =
            owner.or(macs.get(&end.mac).map(|owner| (Subject::Mac(end.mac), *owner)))
        {
            validated.refuse(subject, Some(name), Reason::TakenBy(owner.clone()));
            continue;
        }
        tunnels.insert(end.tunnel, name);
        macs.insert(end.mac, name);
        found.insert(name, end);
    }
    found
}

/// The endpoint in `node`'s own object, if it is complete and valid. An incomplete one is not
/// reported here: the node has no tunnel (yet), and each of its blocks that would need one is
/// reported.
fn endpoint(
    validated: &mut ValidatedInputs<'_>,
    family: Family,
    node: &NodeName,
    said: &Addresses,
) -> Option<Endpoint> {
    let tunnel = said.tunnel?;
    let underlay = validated.underlay(node, family)?.addr();
    if let Err(reason) = check_tunnel(validated, family, tunnel) {
        validated.refuse(Subject::Tunnel(tunnel), Some(node), reason);
        return None;
    }
    let mac = said.mac.unwrap_or_else(|| tunnel_mac(node, family));
    if !is_unicast(mac) {
        validated.refuse(Subject::Mac(mac), Some(node), Reason::NotUnicast);
        return None;
    }
    Some(Endpoint { tunnel, mac, underlay })
}

fn check_tunnel(validated: &ValidatedInputs<'_>, family: Family, address: IpAddr) -> Result<(), Reason> {
    if Family::of(address) != family {
        return Err(Reason::WrongFamily);
    }
    validated.check_host(address)
}

pub(crate) fn is_unicast(mac: Mac) -> bool {
    !mac.is_multicast() && mac.octets() != [0; 6]
}

/// The tunnel addresses among `desired`'s next hops and neighbours; no pod may have one of these.
pub(crate) fn tunnel_addresses(desired: &Desired) -> BTreeSet<IpAddr> {
    let own = desired.devices.values().filter_map(|device| device.address).map(|net| net.addr());
    desired.neighbours.keys().copied().chain(own).collect()
}
