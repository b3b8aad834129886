//! The bridge of a host end: created, or adapted. Concurrent ADDs may work on the same bridge, so
//! each step reads its state again.

use russet_addr::{Family, IpNet, Mac};
use russet_linux::{random, sysctl};
use russet_netlink::{
    Address, Batch, Bridge as BridgeKind, Link, LinkAdd, LinkKind, LinkSet, NetlinkError, Scope, Socket,
};

use super::AttachCause;
use super::request::wire_address;
use crate::inspect;
use crate::plan::Bridge;

/// Makes sure that the bridge exists and is up, with its gateways' addresses, and that the node
/// forwards for these.
pub(crate) fn prepare_bridge(host: &mut Socket, wanted: &Bridge) -> Result<Link, AttachCause> {
    let link = match inspect::by_name(host, &wanted.name)? {
        Some(link) => link,
        None => create_bridge(host, wanted)?,
    };
    if link.kind.as_deref() != Some("bridge") {
        return Err(AttachCause::NotABridge(link.name));
    }
    // A pod that sends router advertisements must not become the node's default gateway (CVE-2020-10749).
    write_if_present(&format!("net/ipv6/conf/{}/accept_ra", wanted.name), "0")?;
    let mut batch = Batch::new();
    if !link.is_up() {
        batch.set_link(&LinkSet { up: Some(true), ..LinkSet::index(link.index) });
    }
    if wanted.promiscuous && !link.is_promiscuous() {
        batch.set_link(&LinkSet { promiscuous: Some(true), ..LinkSet::index(link.index) });
    }
    set_gateways(host, wanted, &link, &mut batch)?;
    for result in host.execute_all(&batch) {
        match result {
            // Another ADD of the network was faster.
            Err(error) if error.is_exists() || error.is_not_found() => {}
            other => other?,
        }
    }
    Ok(link)
}

fn create_bridge(host: &mut Socket, wanted: &Bridge) -> Result<Link, AttachCause> {
    let mut batch = Batch::new();
    let kind = LinkKind::Bridge(BridgeKind { vlan_filtering: false, mcast_snooping: true });
    batch.add_link(&LinkAdd {
        up: true,
        mtu_bytes: wanted.mtu,
        // Without an explicit MAC a bridge has the lowest one of its ports, which changes as they
        // come and go.
        mac: Some(wanted.mac.unwrap_or_else(random_mac)),
        ..LinkAdd::new(wanted.name.clone(), kind)
    });
    match host.execute(&batch) {
        Err(error) if !error.is_exists() => return Err(NetlinkError::from(error).into()),
        _ => {}
    }
    Ok(host.link_by_name(&wanted.name)?)
}

fn set_gateways(
    host: &mut Socket,
    wanted: &Bridge,
    link: &Link,
    batch: &mut Batch,
) -> Result<(), AttachCause> {
    if wanted.gateways.is_empty() {
        return Ok(());
    }
    let present = host.addresses_of(link.index)?;
    let mut added = false;
    for gateway in &wanted.gateways {
        if present.iter().any(|address| address.net == *gateway) {
            continue;
        }
        for other in present.iter().filter(|other| is_in_the_way(other, *gateway, &wanted.gateways)) {
            if !wanted.force_address {
                let (bridge, found) = (link.name.clone(), other.net);
                return Err(AttachCause::BridgeAddress { bridge, wanted: *gateway, found });
            }
            batch.delete_address(other);
        }
        batch.add_address(&wire_address(*gateway, link.index));
        added = true;
    }
    if added && let Some(mac) = link.mac {
        // It had the MAC of a port before; from now on it is its own.
        batch.set_link(&LinkSet { mac: Some(mac), ..LinkSet::index(link.index) });
    }
    for family in Family::BOTH {
        if wanted.gateways.iter().any(|gateway| Family::of_net(gateway) == family) {
            let name = match family {
                Family::V4 => "net/ipv4/ip_forward",
                Family::V6 => "net/ipv6/conf/all/forwarding",
            };
            sysctl::write_if_different(name, "1")?;
        }
    }
    Ok(())
}

/// As in the Go plugin: one IPv4 network on a bridge, and IPv6 networks that do not overlap. Other
/// gateways of the same network do not conflict, nor do link-local addresses.
fn is_in_the_way(other: &Address, gateway: IpNet, gateways: &[IpNet]) -> bool {
    let same_family = Family::of_net(&other.net) == Family::of_net(&gateway);
    let overlap = other.net.contains(&gateway.addr()) || gateway.contains(&other.net.addr());
    same_family
        && !gateways.contains(&other.net)
        && (Family::of_net(&gateway) == Family::V4 || overlap)
        && other.scope != Scope::Link
}

fn write_if_present(name: &str, value: &str) -> Result<(), AttachCause> {
    match sysctl::write_if_different(name, value) {
        Err(error) if !error.is_missing() => Err(error.into()),
        _ => Ok(()),
    }
}

/// A locally administered unicast MAC.
fn random_mac() -> Mac {
    let mut octets: [u8; 6] = random::random();
    octets[0] = octets[0] & 0xfc | 0x02;
    Mac(octets)
}
