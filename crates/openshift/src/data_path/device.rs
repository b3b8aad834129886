//! The tunnel device: one for all peers and tenants, since each packet carries its destination and
//! network ID in its metadata. It has the node's own address among its pods, their gateway: the
//! kernel answers for that address on every pod's link.

use russet_addr::{IfName, IpNet};
use russet_linux::bpf::Program;
use russet_netlink::{
    Address, Batch, Link, LinkAdd, LinkDel, LinkKind, LinkSet, NetlinkError, Route, RouteKind, Socket, Vxlan,
};
use russet_overlay::{OverlayError, Reason, ReconcileReport, Refusal, Subject};

use super::programs::{Hook, NamedProgram};
use super::reconcile::SdnState;
use super::steps::{Action, Stage, Steps, wrong_sysctls};
use super::{DEVICE, OVERHEAD_BYTES, ROUTE_PROTOCOL, SdnError, Settings, programs};

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

/// The hooks of its programs.
const HOOKS: [Hook; 2] = [Hook::FromTunnel, Hook::IntoTunnel];
/// The switch of the whole namespace. Setting it also sets the switches of the links.
const FORWARDING: (&str, &str) = ("ipv4/ip_forward", "1");

/// What is known of the device besides its link.
#[derive(Debug)]
pub(super) struct DeviceState {
    underlay_mtu: u32,
    /// Programs that are not attached.
    missing: Vec<Hook>,
    /// Sysctls with other values than they should have.
    sysctls: Vec<(String, &'static str)>,
}

/// Whether a program is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attachment {
    Attached,
    Missing,
    /// It cannot be: qdisc `ingress` has the place of `clsact`.
    NoPlace,
}

pub(super) fn name() -> Result<IfName, NetlinkError> {
    IfName::new(DEVICE).map_err(|_| NetlinkError::Invalid {
        operation: format!("name the tunnel device {DEVICE}"),
        reason: "it is no interface name",
    })
}

/// Reads the device. An error if it cannot be compared, or can never be as it should.
pub(super) fn observe(
    settings: &Settings,
    socket: &mut Socket,
    link: Option<&Link>,
) -> Result<DeviceState, SdnError> {
    let underlay_mtu = socket.link_by_index(settings.underlay)?.mtu_bytes;
    // Without forwarding, which some distributions switch off, no packet reaches a pod's link.
    let (mut missing, mut sysctls) = (Vec::new(), wrong_sysctls(DEVICE, &[FORWARDING])?);
    match link {
        Some(link) if misfit(settings, link).is_none() => {
            for hook in HOOKS {
                let program = programs::for_hook(hook);
                match attachment(socket, link.index, &program)? {
                    Attachment::Attached => {}
                    Attachment::Missing => missing.push(hook),
                    Attachment::NoPlace => return Err(no_place(socket, &program, link.index)),
                }
            }
            sysctls.extend(wrong_sysctls(DEVICE, &SYSCTLS)?);
        }
        Some(link) if link.alias.as_deref() != Some(ALIAS) => {
            let (operation, reason) =
                (format!("create link {DEVICE}"), "a link that is not ours has the name");
            return Err(NetlinkError::Invalid { operation, reason }.into());
        }
        Some(_) | None => {}
    }
    Ok(DeviceState { underlay_mtu, missing, sysctls })
}

/// What the device lacks that does not depend on pods and peers. A missing device is created; what
/// it lacks then is compared in another round.
pub(super) fn diff(
    settings: &Settings,
    state: &SdnState,
    device: &DeviceState,
    steps: &mut Steps<'_>,
    report: &mut ReconcileReport,
) -> Result<(), NetlinkError> {
    if device.underlay_mtu < settings.mtu.saturating_add(OVERHEAD_BYTES) {
        let reason = Reason::MtuTooSmall(device.underlay_mtu);
        report.refusals.push(Refusal::new(Subject::Device(russet_addr::Family::V4), None, reason));
    }
    let sysctl = |(path, value): &(String, &'static str)| Action::Sysctl(path.clone(), value);
    let (forwarding, own): (Vec<_>, Vec<_>) =
        device.sysctls.iter().partition(|(path, _)| path.ends_with("ip_forward"));
    steps.extend(Stage::Device, forwarding.into_iter().map(sysctl));
    let link = state.links.get(DEVICE);
    let misfit = link.and_then(|link| misfit(settings, link));
    let Some(link) = link.filter(|_| misfit.is_none()) else {
        report.replaced.extend(misfit.map(|why| format!("{DEVICE}: {why}")));
        steps.extend(Stage::Device, link.map(|link| Action::DeleteLink(link.index)));
        steps.push(Stage::Device, Action::AddLink(new_link(settings)?));
        return Ok(());
    };
    // Programs first: packets that arrive before the device is up are not for us.
    steps.extend(Stage::Device, device.missing.iter().map(|hook| Action::Program(link.index, *hook)));
    steps.extend(Stage::Device, own.into_iter().map(sysctl));
    let wrong = !link.is_up() || link.mtu_bytes != settings.mtu || link.alias.as_deref() != Some(ALIAS);
    if wrong {
        let (up, mtu_bytes, alias) = (Some(true), Some(settings.mtu), Some(ALIAS.to_owned()));
        let change = LinkSet { up, mtu_bytes, alias, ..LinkSet::index(link.index) };
        steps.push(Stage::Device, Action::SetLink(change));
    }
    addresses(settings, state, link.index, steps);
    let there = |route: &Route| {
        state.routes.iter().any(|other| other.dst == route.dst && other.kind == RouteKind::Unreachable)
    };
    let missing = unreachable_routes(settings).into_iter().filter(|route| !there(route));
    steps.extend(Stage::Tunnel, missing.map(Action::PutRoute));
    Ok(())
}

fn new_link(settings: &Settings) -> Result<LinkAdd, NetlinkError> {
    let vxlan = Vxlan { collect_metadata: true, udp_csum: true, ..Vxlan::new(0, settings.vxlan_port) };
    Ok(LinkAdd { mtu_bytes: Some(settings.mtu), ..LinkAdd::new(name()?, LinkKind::Vxlan(vxlan)) })
}

/// A host address: destinations without a route of their own must stay unreachable.
fn addresses(settings: &Settings, state: &SdnState, ifindex: u32, steps: &mut Steps<'_>) {
    let gateway = IpNet::from(std::net::IpAddr::from(settings.gateway()));
    let found = || state.addresses.iter().filter(|found| found.ifindex == ifindex);
    let others = found().filter(|found| matches!(found.net, IpNet::V4(_)) && found.net != gateway);
    steps.extend(Stage::Tunnel, others.cloned().map(Action::DeleteAddress));
    if !found().any(|address| address.net == gateway) {
        steps.push(Stage::Tunnel, Action::PutAddress(Address::new(ifindex, gateway)));
    }
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

/// Whether a program is attached under its name, which contains a digest of its code.
pub(super) fn attachment(
    socket: &mut Socket,
    ifindex: u32,
    program: &NamedProgram,
) -> Result<Attachment, NetlinkError> {
    let filters = socket.bpf_filters(ifindex, program.direction)?;
    Ok(match filters.iter().any(|filter| filter.is_ours(&program.name)) {
        true => Attachment::Attached,
        false if has_qdisc(socket, ifindex, "ingress")? => Attachment::NoPlace,
        false => Attachment::Missing,
    })
}

/// Attaches a program to its hook of a link. `delivery` caches the program that many links have.
pub(super) fn attach(
    socket: &mut Socket,
    ifindex: u32,
    hook: Hook,
    delivery: &mut Option<Program>,
) -> Result<(), SdnError> {
    let program = programs::for_hook(hook);
    match socket.execute(Batch::new().add_clsact(ifindex)) {
        Ok(()) => {}
        Err(error) if !error.error.is_exists() => return Err(error.into()),
        // A plain `ingress` qdisc may have the handle; an egress filter there would see received
        // packets.
        Err(_) if has_qdisc(socket, ifindex, "clsact")? => {}
        Err(_) => return Err(no_place(socket, &program, ifindex)),
    }
    let own;
    let loaded = match (hook, delivery) {
        (Hook::ToPod, Some(loaded)) => &*loaded,
        (Hook::ToPod, none) => &*none.insert(program.load()?),
        (Hook::FromTunnel | Hook::IntoTunnel, _) => {
            own = program.load()?;
            &own
        }
    };
    use std::os::fd::AsFd as _;
    let mut batch = Batch::new();
    batch.replace_bpf(ifindex, program.direction, loaded.as_fd(), &program.name);
    Ok(socket.execute(&batch)?)
}

fn no_place(socket: &Socket, program: &NamedProgram, ifindex: u32) -> SdnError {
    SdnError::NoPlace { program: program.name.clone(), link: socket.interface_name(ifindex) }
}

fn has_qdisc(socket: &mut Socket, ifindex: u32, kind: &str) -> Result<bool, NetlinkError> {
    Ok(socket.qdiscs_of(ifindex)?.iter().any(|qdisc| qdisc.kind == kind))
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
        Self::Other(Box::new(error))
    }
}
