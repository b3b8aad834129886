//! One pod's interface: attaching makes the record, the guard, the verdict entries and the route,
//! in this order; detaching removes them in reverse.

use std::net::IpAddr;

use russet_addr::{ContainerId, IfName, IpNet, Mac};
use russet_linux::sysctl;
use russet_netlink::{Address, Batch, Link, LinkDel, LinkSet, Neighbour, NetlinkError, Route, Socket};

use super::device::Attachment;
use super::programs::{self, Hook};
use super::steps::wrong_sysctls;
use super::{LEAVING_GROUP, Port, ROUTE_PROTOCOL, Sdn, SdnError, Settings, alias, device};

/// The sysctls of the host end: it answers ARP for every routable address, checks sources by the
/// reverse path, and has no IPv6, for which there are no verdicts.
pub(super) const SYSCTLS: [(&str, &str); 7] = [
    ("ipv6/conf/{}/disable_ipv6", "1"),
    ("ipv6/conf/{}/accept_ra", "0"),
    ("ipv4/conf/{}/rp_filter", "1"),
    ("ipv4/conf/{}/proxy_arp", "1"),
    ("ipv4/neigh/{}/proxy_delay", "0"),
    ("ipv4/conf/{}/send_redirects", "0"),
    ("ipv4/conf/{}/forwarding", "1"),
];

pub(super) fn attach(sdn: &mut Sdn, port: &Port) -> Result<(), SdnError> {
    admit(sdn, port)?;
    let link = sdn.socket.link_by_name(&port.host_veth)?;
    record(sdn, port, &link)?;
    for (name, value) in wrong_sysctls(port.host_veth.as_str(), &SYSCTLS)? {
        sysctl::write(&name, value)?;
    }
    guard(sdn, link.index)?;
    let mut wanted = sdn.ports.clone();
    wanted.insert(port.host_veth.clone(), port.clone());
    sdn.replace_entries(wanted)?;
    let mut batch = Batch::new();
    batch.replace_address(&own_address(&sdn.settings, link.index));
    batch.replace_neighbour(&neighbour(port, link.index));
    batch.replace_route(&route(&sdn.settings, port, link.index));
    if let Err(error) = sdn.socket.execute(&batch) {
        // A port without a route is harmless; entries for an unassigned address would not be.
        forget(sdn, &port.host_veth)?;
        return Err(error.into());
    }
    Ok(())
}

/// Stops all delivery to and from the sandbox; returns its links, which the caller deletes.
pub(super) fn detach(sdn: &mut Sdn, sandbox: &ContainerId) -> Result<Vec<IfName>, SdnError> {
    let its = |port: &&Port| port.sandbox == *sandbox;
    let mut links: Vec<IfName> = sdn.ports.values().filter(its).map(|port| port.host_veth.clone()).collect();
    if links.is_empty() {
        // A failed ADD may have left a record.
        links = sdn.ports()?.iter().filter(its).map(|port| port.host_veth.clone()).collect();
    }
    // The route goes with the link, before the entries: no packet is delivered without a verdict.
    for link in &links {
        let down = LinkSet { up: Some(false), group: Some(LEAVING_GROUP), ..LinkSet::named(link.clone()) };
        ignore_missing(sdn.socket.execute(Batch::new().set_link(&down)))?;
    }
    let mut wanted = sdn.ports.clone();
    wanted.retain(|link, _| !links.contains(link));
    if wanted.len() < sdn.ports.len() {
        sdn.replace_entries(wanted)?;
    }
    Ok(links)
}

/// Deletes links of detached sandboxes. Missing ones are ignored.
pub(super) fn delete(socket: &mut Socket, links: Vec<IfName>) -> Result<(), SdnError> {
    for link in links {
        ignore_missing(socket.execute(Batch::new().delete_link(&LinkDel::Name(link))))?;
    }
    Ok(())
}

pub(super) fn forget(sdn: &mut Sdn, link: &IfName) -> Result<(), SdnError> {
    let mut wanted = sdn.ports.clone();
    wanted.remove(link);
    sdn.replace_entries(wanted)
}

/// The node's address among its pods, on every pod's link: where `arp_ignore` is set (kube-proxy's
/// strictARP), the kernel answers only for addresses of the receiving link. It is also the source
/// of masqueraded traffic to the pod.
pub(super) fn own_address(settings: &Settings, ifindex: u32) -> Address {
    Address::new(ifindex, IpNet::from(IpAddr::from(settings.gateway())))
}

/// The route to a pod. Its source is the node's own address among the pods.
pub(super) fn route(settings: &Settings, port: &Port, ifindex: u32) -> Route {
    Route {
        protocol: ROUTE_PROTOCOL,
        prefsrc: Some(settings.gateway().into()),
        ..Route::dev(IpNet::from(IpAddr::from(port.address)), ifindex)
    }
}

/// The pod's MAC is computed from its address (cni-runtime.md section 4.2), so no ARP is needed.
pub(super) fn neighbour(port: &Port, ifindex: u32) -> Neighbour {
    Neighbour::permanent(ifindex, port.address.into(), mac(port.address))
}

/// `0a:58` and the four octets.
pub(super) fn mac(address: std::net::Ipv4Addr) -> Mac {
    let [a, b, c, d] = address.octets();
    Mac([0x0a, 0x58, a, b, c, d])
}

/// Attaches the program that delivers only packets with a verdict to the pod. It must precede the
/// route.
fn guard(sdn: &mut Sdn, ifindex: u32) -> Result<(), SdnError> {
    let program = programs::for_hook(Hook::ToPod);
    match device::attachment(&mut sdn.socket, ifindex, &program)? {
        Attachment::Attached => Ok(()),
        Attachment::Missing | Attachment::NoPlace => {
            device::attach(&mut sdn.socket, ifindex, Hook::ToPod, &mut sdn.delivery)
        }
    }
}

/// Checks that the address is ours to assign and not in use. A port whose link is gone is removed.
fn admit(sdn: &mut Sdn, port: &Port) -> Result<(), SdnError> {
    if !sdn.settings.is_pods(port.address) {
        let (sandbox, own) = (port.sandbox.clone(), sdn.settings.own);
        return Err(SdnError::Foreign { address: port.address, sandbox, own });
    }
    let other = |held: &&Port| {
        held.host_veth != port.host_veth && (held.address == port.address || held.sandbox == port.sandbox)
    };
    let others: Vec<Port> = sdn.ports.values().filter(other).cloned().collect();
    for held in others {
        match sdn.socket.link_by_name(&held.host_veth) {
            Ok(_) if held.sandbox != port.sandbox => {
                return Err(SdnError::Taken {
                    address: port.address,
                    sandbox: port.sandbox.clone(),
                    holder: held.sandbox,
                    link: held.host_veth,
                });
            }
            // An earlier, failed ADD of the same sandbox.
            Ok(_) => {
                let links = detach(sdn, &held.sandbox)?;
                delete(&mut sdn.socket, links)?;
            }
            Err(error) if error.is_not_found() => forget(sdn, &held.host_veth)?,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Writes the record; refuses a link that has another sandbox's record.
fn record(sdn: &mut Sdn, port: &Port, link: &Link) -> Result<(), SdnError> {
    let refuse =
        |problem| SdnError::Link { sandbox: port.sandbox.clone(), link: port.host_veth.clone(), problem };
    if link.kind.as_deref() != Some("veth") {
        return Err(refuse("is not a veth"));
    }
    let record = alias::for_port(port);
    if record.len() > alias::MAX_BYTES {
        return Err(refuse("cannot have a record of that length"));
    }
    let held = alias::port_of(link, &Default::default());
    if held.is_some_and(|held| held.sandbox != port.sandbox) {
        return Err(refuse("has the record of another sandbox"));
    }
    if link.alias.as_deref() != Some(record.as_str()) {
        let change = LinkSet { alias: Some(record), ..LinkSet::index(link.index) };
        sdn.socket.execute(Batch::new().set_link(&change))?;
    }
    Ok(())
}

fn ignore_missing(result: Result<(), russet_netlink::BatchError>) -> Result<(), NetlinkError> {
    match result {
        Err(error) if !error.error.is_not_found() => Err(error.error),
        _ => Ok(()),
    }
}
