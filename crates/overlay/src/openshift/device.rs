//! The tunnel device: one for all peers and tenants, each packet says itself where it goes and whose it is. It has the node's own address among its
//! pods, their gateway: the kernel answers for that on every pod's link.

use russet_addr::{IfName, IpNet};
use russet_linux::bpf::Program;
use russet_netlink::{
    Address, Batch, Link, LinkAdd, LinkDel, LinkKind, LinkSet, NetlinkError, Route, RouteKind, Socket, Vxlan,
};

use super::programs::{Named, Place};
use super::work::Work;
use super::{DEVICE, OVERHEAD_BYTES, ROUTE_PROTOCOL, SdnError, Settings, programs};
use crate::refusal::{Reason, Refusal, Subject};
use crate::report::{Kind, OverlayError};

/// By which we know the device again.
const ALIAS: &str = "russet-sdn tunnel";
/// What the device must have; those about answers are for peers with Open vSwitch, which ask for our pods' MACs through the tunnel.
const SYSCTLS: [(&str, &str); 6] = [
    ("ipv6/conf/{}/disable_ipv6", "1"),
    ("ipv6/conf/{}/accept_ra", "0"),
    ("ipv4/conf/{}/forwarding", "1"),
    ("ipv4/conf/{}/proxy_arp", "1"),
    ("ipv4/neigh/{}/proxy_delay", "0"),
    ("ipv4/conf/{}/send_redirects", "0"),
];

/// Of the whole namespace. Links have switches of their own, which follow this one when it is set.
const FORWARDING: &str = "net/ipv4/ip_forward";

/// The device as it should be, with everything that never changes with pods and peers; whether it is there, which it is unless somebody only looks.
pub(super) fn ensure(settings: &Settings, socket: &mut Socket, work: &mut Work) -> Result<bool, SdnError> {
    let name = name()?;
    let underlay = socket.link_by_index(settings.underlay)?;
    if underlay.mtu_bytes < settings.mtu.saturating_add(OVERHEAD_BYTES) {
        let reason = Reason::MtuTooSmall(underlay.mtu_bytes);
        let refusal = Refusal::new(Subject::Device(russet_addr::Family::V4), None, reason);
        work.report().refusals.push(refusal);
    }
    // A node whose distribution forwards nothing would carry no packet from one pod's link to another, however right the rest is.
    work.sysctl(FORWARDING, "1")?;
    let Some(link) = link(settings, socket, &name, work)? else { return Ok(false) };
    // Programs first: what arrives before the device is up was not for us.
    for place in [Place::FromTunnel, Place::IntoTunnel] {
        attach(socket, link.index, &programs::of(place), &mut None, work)?;
    }
    for (pattern, value) in SYSCTLS {
        work.sysctl(&format!("net/{}", pattern.replace("{}", name.as_str())), value)?;
    }
    configure(settings, socket, &link, work)?;
    unreachable(settings, socket, work)?;
    Ok(true)
}

/// The device's name as what it is.
pub(super) fn name() -> Result<IfName, NetlinkError> {
    IfName::new(DEVICE).map_err(|_| NetlinkError::Invalid {
        operation: format!("name the tunnel device {DEVICE}"),
        reason: "it is no interface name",
    })
}

/// The device's link, made where there is none; one of ours that cannot become what it should is made anew.
fn link(
    settings: &Settings,
    socket: &mut Socket,
    name: &IfName,
    work: &mut Work,
) -> Result<Option<Link>, SdnError> {
    match socket.link_by_name(name) {
        Ok(link) if fits(settings, &link) => return Ok(Some(link)),
        Ok(link) if link.alias.as_deref() == Some(ALIAS) => {
            work.insist(socket, Batch::new().delete_link(&LinkDel::Index(link.index)), Kind::Device)?;
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
    work.insist(socket, Batch::new().add_link(&add), Kind::Device)?;
    if work.looks_only() { Ok(None) } else { Ok(Some(socket.link_by_name(name)?)) }
}

fn fits(settings: &Settings, link: &Link) -> bool {
    link.vxlan.as_ref().is_some_and(|vxlan| vxlan.collect_metadata && vxlan.port == settings.vxlan_port)
}

/// Attaches a program where it belongs at a link, unless it is there under its name, which has a digest of it. `loaded` is for whoever attaches it often.
pub(super) fn attach(
    socket: &mut Socket,
    ifindex: u32,
    program: &Named,
    loaded: &mut Option<Program>,
    work: &mut Work,
) -> Result<(), SdnError> {
    if socket.bpf_filters(ifindex, program.direction)?.iter().any(|filter| filter.is_ours(&program.name)) {
        return Ok(());
    }
    let no_place = || SdnError::NoPlace { program: program.name.clone(), ifindex };
    if work.looks_only() {
        if has_qdisc(socket, ifindex, "ingress")? {
            return Err(no_place());
        }
    } else {
        match socket.execute(Batch::new().add_clsact(ifindex)) {
            Ok(()) => {}
            Err(error) if !error.error.is_exists() => return Err(error.into()),
            // A plain `ingress` may have the handle: a filter for what is sent would look at what is received there.
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
    work.mended(Kind::Device, format!("attach program {} to link {ifindex}", program.name));
    Ok(())
}

fn has_qdisc(socket: &mut Socket, ifindex: u32, kind: &str) -> Result<bool, NetlinkError> {
    Ok(socket.qdiscs_of(ifindex)?.iter().any(|qdisc| qdisc.kind == kind))
}

fn configure(settings: &Settings, socket: &mut Socket, link: &Link, work: &mut Work) -> Result<(), SdnError> {
    let wrong = !link.is_up() || link.mtu_bytes != settings.mtu || link.alias.as_deref() != Some(ALIAS);
    if wrong {
        let change = LinkSet {
            up: Some(true),
            mtu_bytes: Some(settings.mtu),
            alias: Some(ALIAS.to_owned()),
            ..LinkSet::index(link.index)
        };
        work.insist(socket, Batch::new().set_link(&change), Kind::Device)?;
    }
    // The address alone, without a network: what has no route of its own is nowhere.
    let gateway = IpNet::from(std::net::IpAddr::from(settings.gateway()));
    let found = socket.addresses_of(link.index)?;
    let mut batch = Batch::new();
    for other in found.iter().filter(|found| matches!(found.net, IpNet::V4(_)) && found.net != gateway) {
        batch.delete_address(other);
    }
    if !found.iter().any(|address| address.net == gateway) {
        batch.add_address(&Address::new(link.index, gateway));
    }
    work.execute(socket, &batch, Kind::Address);
    Ok(())
}

/// Addresses of pods that are nowhere do not follow the default route.
pub(super) fn unreachable_routes(settings: &Settings) -> Vec<Route> {
    let own = settings.own.trunc();
    let outside = |net: &&russet_addr::Ipv4Net| net.trunc() != own;
    let nets = settings.cluster.iter().filter(outside).map(|net| net.trunc()).chain([own]);
    let route =
        |net| Route { kind: RouteKind::Unreachable, protocol: ROUTE_PROTOCOL, ..Route::new(IpNet::V4(net)) };
    nets.map(route).collect()
}

fn unreachable(settings: &Settings, socket: &mut Socket, work: &mut Work) -> Result<(), SdnError> {
    let filter = russet_netlink::RouteFilter { protocol: Some(ROUTE_PROTOCOL), ..Default::default() };
    let found = socket.routes_where(russet_addr::Family::V4, filter)?;
    let mut batch = Batch::new();
    for route in unreachable_routes(settings) {
        let there = |other: &&Route| other.dst == route.dst && other.kind == RouteKind::Unreachable;
        if found.iter().find(there).is_none() {
            batch.replace_route(&route);
        }
    }
    work.execute(socket, &batch, Kind::Route);
    Ok(())
}

/// Takes the device out; whether it was there.
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
