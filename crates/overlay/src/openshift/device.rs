//! The tunnel device: one for all peers and tenants, since each packet carries its destination and
//! network ID in its metadata. It has the node's own address among its pods, their gateway: the
//! kernel answers for that address on every pod's link.

use russet_addr::{IfName, IpNet};
use russet_linux::bpf::Program;
use russet_netlink::{
    Address, Batch, Link, LinkAdd, LinkDel, LinkKind, LinkSet, NetlinkError, Route, RouteKind, Socket, Vxlan,
};

use super::changes::Changes;
use super::programs::{Hook, NamedProgram};
use super::{DEVICE, OVERHEAD_BYTES, ROUTE_PROTOCOL, SdnError, Settings, programs};
use crate::refusal::{Reason, Refusal, Subject};
use crate::report::{Kind, OverlayError};

/// The alias by which we recognise the device.
const ALIAS: &str = "russet-sdn tunnel";
/// The sysctls of the device. Those about ARP are for peers with Open vSwitch, which request our
/// pods' MACs through the tunnel.
const SYSCTLS: [(&str, &str); 6] = [
    ("ipv6/conf/{}/disable_ipv6", "1"),
    ("ipv6/conf/{}/accept_ra", "0"),
    ("ipv4/conf/{}/forwarding", "1"),
    ("ipv4/conf/{}/proxy_arp", "1"),
    ("ipv4/neigh/{}/proxy_delay", "0"),
    ("ipv4/conf/{}/send_redirects", "0"),
];

/// The switch of the whole namespace. Setting it also sets the switches of the links.
const FORWARDING: &str = "net/ipv4/ip_forward";

/// Creates or repairs the device with everything that does not depend on pods and peers. Returns
/// whether it exists, which is false only for a missing device in a dry run.
pub(super) fn ensure(
    settings: &Settings,
    socket: &mut Socket,
    changes: &mut Changes,
) -> Result<bool, SdnError> {
    let name = name()?;
    let underlay = socket.link_by_index(settings.underlay)?;
    if underlay.mtu_bytes < settings.mtu.saturating_add(OVERHEAD_BYTES) {
        let reason = Reason::MtuTooSmall(underlay.mtu_bytes);
        let refusal = Refusal::new(Subject::Device(russet_addr::Family::V4), None, reason);
        changes.report().refusals.push(refusal);
    }
    // Without forwarding, which some distributions switch off, no packet reaches a pod's link.
    changes.sysctl(FORWARDING, "1")?;
    let Some(link) = link(settings, socket, &name, changes)? else { return Ok(false) };
    // Programs first: packets that arrive before the device is up are not for us.
    for hook in [Hook::FromTunnel, Hook::IntoTunnel] {
        attach(socket, link.index, &programs::for_hook(hook), &mut None, changes)?;
    }
    for (pattern, value) in SYSCTLS {
        changes.sysctl(&format!("net/{}", pattern.replace("{}", name.as_str())), value)?;
    }
    configure(settings, socket, &link, changes)?;
    unreachable(settings, socket, changes)?;
    Ok(true)
}

pub(super) fn name() -> Result<IfName, NetlinkError> {
    IfName::new(DEVICE).map_err(|_| NetlinkError::Invalid {
        operation: format!("name the tunnel device {DEVICE}"),
        reason: "it is no interface name",
    })
}

/// Returns the device's link; creates it if missing, and recreates one of ours whose options cannot
/// be changed.
fn link(
    settings: &Settings,
    socket: &mut Socket,
    name: &IfName,
    changes: &mut Changes,
) -> Result<Option<Link>, SdnError> {
    match socket.link_by_name(name) {
        Ok(link) if misfit(settings, &link).is_none() => return Ok(Some(link)),
        Ok(link) if link.alias.as_deref() == Some(ALIAS) => {
            let why = misfit(settings, &link).unwrap_or_default();
            changes.report().replaced.push(format!("{name}: {why}"));
            changes.insist(socket, Batch::new().delete_link(&LinkDel::Index(link.index)), Kind::Device)?;
        }
        Ok(_) => {
            return Err(NetlinkError::Invalid {
                operation: format!("create link {name}"),
                reason: "a link that is not ours has the name",
            }
            .into());
        }
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error.into()),
    }
    let vxlan = Vxlan { collect_metadata: true, udp_csum: true, ..Vxlan::new(0, settings.vxlan_port) };
    let add = LinkAdd { mtu_bytes: Some(settings.mtu), ..LinkAdd::new(name.clone(), LinkKind::Vxlan(vxlan)) };
    changes.insist(socket, Batch::new().add_link(&add), Kind::Device)?;
    if changes.is_dry_run() { Ok(None) } else { Ok(Some(socket.link_by_name(name)?)) }
}

/// Why a link cannot become the device.
fn misfit(settings: &Settings, link: &Link) -> Option<String> {
    let port = settings.vxlan_port;
    match &link.vxlan {
        None => Some("it is no vxlan device".to_owned()),
        Some(vxlan) if !vxlan.collect_metadata => Some("it has one VNI for all packets".to_owned()),
        Some(vxlan) => (vxlan.port != port).then(|| format!("port {}, not {port}", vxlan.port)),
    }
}

/// Attaches a program to a hook of a link, unless it is attached under its name, which contains a
/// digest of its code. `loaded` caches the program for callers that attach it to many links.
pub(super) fn attach(
    socket: &mut Socket,
    ifindex: u32,
    program: &NamedProgram,
    loaded: &mut Option<Program>,
    changes: &mut Changes,
) -> Result<(), SdnError> {
    if socket.bpf_filters(ifindex, program.direction)?.iter().any(|filter| filter.is_ours(&program.name)) {
        return Ok(());
    }
    let no_place = || SdnError::NoPlace { program: program.name.clone(), ifindex };
    if changes.is_dry_run() {
        if has_qdisc(socket, ifindex, "ingress")? {
            return Err(no_place());
        }
    } else {
        match socket.execute(Batch::new().add_clsact(ifindex)) {
            Ok(()) => {}
            Err(error) if !error.error.is_exists() => return Err(error.into()),
            // A plain `ingress` qdisc may have the handle; an egress filter there would see
            // received packets.
            Err(_) if has_qdisc(socket, ifindex, "clsact")? => {}
            Err(_) => return Err(no_place()),
        }
        let loaded = match loaded {
            Some(loaded) => loaded,
            none => none.insert(program.load()?),
        };
        use std::os::fd::AsFd as _;
        let mut batch = Batch::new();
        batch.replace_bpf(ifindex, program.direction, loaded.as_fd(), &program.name);
        socket.execute(&batch)?;
    }
    changes.repaired(Kind::Device, format!("attach program {} to link {ifindex}", program.name));
    Ok(())
}

fn has_qdisc(socket: &mut Socket, ifindex: u32, kind: &str) -> Result<bool, NetlinkError> {
    Ok(socket.qdiscs_of(ifindex)?.iter().any(|qdisc| qdisc.kind == kind))
}

fn configure(
    settings: &Settings,
    socket: &mut Socket,
    link: &Link,
    changes: &mut Changes,
) -> Result<(), SdnError> {
    let wrong = !link.is_up() || link.mtu_bytes != settings.mtu || link.alias.as_deref() != Some(ALIAS);
    if wrong {
        let change = LinkSet {
            up: Some(true),
            mtu_bytes: Some(settings.mtu),
            alias: Some(ALIAS.to_owned()),
            ..LinkSet::index(link.index)
        };
        changes.insist(socket, Batch::new().set_link(&change), Kind::Device)?;
    }
    // A host address: destinations without a route of their own must stay unreachable.
    let gateway = IpNet::from(std::net::IpAddr::from(settings.gateway()));
    let found = socket.addresses_of(link.index)?;
    let mut batch = Batch::new();
    for other in found.iter().filter(|found| matches!(found.net, IpNet::V4(_)) && found.net != gateway) {
        batch.delete_address(other);
    }
    if !found.iter().any(|address| address.net == gateway) {
        batch.add_address(&Address::new(link.index, gateway));
    }
    changes.execute(socket, &batch, Kind::Address);
    Ok(())
}

/// Routes that keep packets for missing pods from following the default route.
pub(super) fn unreachable_routes(settings: &Settings) -> Vec<Route> {
    let own = settings.own.trunc();
    let outside = |net: &&russet_addr::Ipv4Net| net.trunc() != own;
    let nets = settings.cluster.iter().filter(outside).map(|net| net.trunc()).chain([own]);
    let route =
        |net| Route { kind: RouteKind::Unreachable, protocol: ROUTE_PROTOCOL, ..Route::new(IpNet::V4(net)) };
    nets.map(route).collect()
}

fn unreachable(settings: &Settings, socket: &mut Socket, changes: &mut Changes) -> Result<(), SdnError> {
    let filter = russet_netlink::RouteFilter { protocol: Some(ROUTE_PROTOCOL), ..Default::default() };
    let found = socket.routes_where(russet_addr::Family::V4, filter)?;
    let mut batch = Batch::new();
    for route in unreachable_routes(settings) {
        let there = |other: &&Route| other.dst == route.dst && other.kind == RouteKind::Unreachable;
        if found.iter().find(there).is_none() {
            batch.replace_route(&route);
        }
    }
    changes.execute(socket, &batch, Kind::Route);
    Ok(())
}

/// Removes the device; returns whether it existed.
pub(super) fn withdraw(socket: &mut Socket) -> Result<bool, SdnError> {
    match socket.link_by_name(&name()?) {
        Ok(link) if link.alias.as_deref() == Some(ALIAS) => {
            socket.execute(Batch::new().delete_link(&LinkDel::Index(link.index)))?;
            Ok(true)
        }
        Ok(_) => Ok(false),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

impl From<SdnError> for OverlayError {
    fn from(error: SdnError) -> Self {
        Self::Sdn(Box::new(error))
    }
}
