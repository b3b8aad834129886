//! The vxlan backend: our device and the triple of neighbour, forwarding entry and route for each peer (flannel.md section
//! 6.2). Called by `fabric` for the device and by `rules` for the peers.

use std::net::IpAddr;

use russet_addr::{Family, IfName, Mac};
use russet_linux::random;

use super::rules::{Near, PeerPath};
use super::{FlannelError, Underlay, VXLAN_PORT, Vxlan};
use crate::observe::FoundDevice;
use crate::owner::of;
use crate::plan::matches;
use crate::refusal::Reason;
use crate::vxlan::{Device, is_unicast, mtu_min, overhead};

/// VXLAN network identifiers have 24 bits.
const VNI_END: u32 = 1 << 24;

pub(crate) fn device_name(vni: u32, family: Family) -> Result<IfName, FlannelError> {
    Ok(IfName::new(match family {
        Family::V4 => format!("flannel.{vni}"),
        Family::V6 => format!("flannel-v6.{vni}"),
    })?)
}

/// The device that a family needs, given the existing one. A matching device stays as it is, with
/// its MAC and, unless that is configured or too large for the underlay, its MTU. A new one gets
/// the MAC that peers know, else that of its predecessor, else a random one: set at creation, so
/// that udev does not change it. `known` is our device so far, whose published values are kept.
pub(crate) fn device(
    options: &Vxlan,
    underlay: &Underlay,
    family: Family,
    found: Option<&FoundDevice>,
    known: Option<&Device>,
) -> Result<Device, FlannelError> {
    if options.vni >= VNI_END {
        return Err(FlannelError::Vni(options.vni));
    }
    let local = underlay.address(family).ok_or_else(|| FlannelError::NoAddress {
        interface: underlay.name.clone(),
        family,
        backend: "vxlan",
    })?;
    let room = options.mtu.unwrap_or(underlay.mtu);
    let mtu = room.saturating_sub(overhead(family));
    if mtu < mtu_min(family) {
        return Err(FlannelError::MtuTooSmall { mtu: room, family });
    }
    let port = if options.port == 0 { VXLAN_PORT } else { options.port };
    let predecessor = found.filter(|found| found.vxlan.is_some()).and_then(|found| found.mac);
    let sound = |mac: &Mac| is_unicast(*mac);
    let given = *of(&options.mac, family);
    let mac =
        known.map(|known| known.mac).filter(sound).or(given.filter(sound)).or(predecessor.filter(sound));
    let mut device = Device {
        vni: options.vni,
        port,
        local,
        parent: underlay.ifindex,
        mtu: known.map_or(mtu, |known| known.mtu),
        mac: mac.unwrap_or_else(random_mac),
        address: None,
        gbp: options.gbp,
        learning: options.learning,
    };
    if let Some((found, mac)) = found.and_then(|found| Some((found, found.mac?))) {
        let adopted = Device { mac, ..device.clone() };
        if matches(&adopted, found) {
            device.mac = mac;
            if known.is_none() && options.mtu.is_none() && found.mtu >= mtu_min(family) {
                device.mtu = found.mtu.min(mtu);
            }
        }
    }
    Ok(device)
}

/// A random locally administered unicast address.
fn random_mac() -> Mac {
    let mut octets = random::random::<6>();
    octets[0] = octets[0] & 0xfe | 0x02;
    Mac(octets)
}

/// The path to the peer at `public` whose device has the MAC `mac`.
pub(crate) fn path(
    options: &Vxlan,
    mac: Option<Mac>,
    own: Option<Mac>,
    public: IpAddr,
    near: Near<'_>,
) -> Result<PeerPath, Reason> {
    if options.direct_routing
        && let Some(ifindex) = near(public)
    {
        return Ok(PeerPath::Direct { ifindex, gateway: public });
    }
    let mac = mac.ok_or(Reason::NoTunnelEndpoint)?;
    if !is_unicast(mac) {
        return Err(Reason::NotUnicast);
    }
    // After a node changed its public address, a lease with the old address and its MAC remains
    // (flannel.md section 3.3). It may be our own.
    if own == Some(mac) {
        return Err(Reason::Ours);
    }
    Ok(PeerPath::Tunnel { mac, outer: public })
}
