//! Chooses the interface that leads to the other nodes.

use std::net::IpAddr;

use russet_addr::{Family, IfName, IpNet};
use russet_netlink::{Address, Link, NetlinkError, Route, RouteFilter, RouteKind, Scope, Socket};

use crate::inputs::Underlay;

/// The interface, and why it was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The properties that the overlay needs.
    pub underlay: Underlay,
    /// Its name; none on a node without a network.
    pub name: Option<String>,
    /// Why this one, for the log.
    pub why: &'static str,
    /// The next hops of the default routes.
    pub gateways: Vec<IpAddr>,
    /// Whether it is up and has a carrier.
    pub is_running: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum UnderlayError {
    #[error("look for the underlay: {0}")]
    Netlink(#[from] NetlinkError),
    /// The configured interface does not exist.
    #[error("interface {0} does not exist; see `ip link`, and --interface")]
    Missing(IfName),
}

/// The MTU without an interface.
const MTU_WITHOUT_UNDERLAY_BYTES: u32 = 1500;

/// Finds the interface: the `wanted` one, else the one with the address by which other nodes know
/// this one, else the one with the default route, IPv4 before IPv6.
pub fn choose(wanted: Option<&IfName>, known: Option<IpAddr>) -> Result<Choice, UnderlayError> {
    let mut socket = Socket::route()?;
    let defaults = default_routes(&mut socket)?;
    let gateways = defaults.iter().filter_map(|route| route.gateway).collect();
    let (link, why) = match wanted {
        Some(name) => {
            let found = socket.link_by_name(name);
            if found.as_ref().is_err_and(NetlinkError::is_not_found) {
                return Err(UnderlayError::Missing(name.clone()));
            }
            (Some(found?), "it is the configured one")
        }
        None => match with_address(&mut socket, known)? {
            Some(link) => (Some(link), "it has the node's address"),
            None => (with_default_route(&mut socket, &defaults)?, "it has the default route"),
        },
    };
    let Some(link) = link else { return Ok(Choice::nothing(gateways)) };
    let addresses = usable(socket.addresses()?, link.index);
    let underlay = Underlay { ifindex: link.index, mtu: link.mtu_bytes, addresses };
    let is_running = link.is_up() && link.is_running();
    Ok(Choice { underlay, name: Some(link.name), why, gateways, is_running })
}

/// Why other nodes cannot be reached through this interface, if so. `known` are the addresses by
/// which the other nodes know this one.
pub fn fault(choice: &Choice, known: &[IpAddr]) -> Result<Option<String>, UnderlayError> {
    if let Some(name) = &choice.name {
        return Ok(if !choice.is_running {
            Some(down(name))
        } else if choice.underlay.addresses.is_empty() {
            Some(without_address(name))
        } else {
            None
        });
    }
    let Some(first) = known.first() else { return Ok(None) };
    let mut socket = Socket::route()?;
    let addresses = socket.addresses()?;
    let mut carrier_lost = None;
    for address in addresses.iter().filter(|address| known.contains(&address.net.addr())) {
        let link = socket.link_by_index(address.ifindex)?;
        if link.is_up() && link.is_running() {
            return Ok(None);
        }
        carrier_lost.get_or_insert(link.name);
    }
    Ok(Some(carrier_lost.map_or_else(
        || format!("there is no default route, and no interface has the address {first} by which other nodes know this one; restore it, or give --interface"),
        |name| down(&name),
    )))
}

/// The message for an interface that is down.
pub fn down(name: &str) -> String {
    format!("interface {name} to the other nodes is down, or has no carrier; see `ip link show {name}`")
}

/// The message for an interface without an address.
pub fn without_address(name: &str) -> String {
    format!("interface {name} has no address that other nodes can use; see `ip address show {name}`")
}

/// Default routes, best first.
fn default_routes(socket: &mut Socket) -> Result<Vec<Route>, NetlinkError> {
    let filter = RouteFilter { table: Some(Route::MAIN), ..RouteFilter::default() };
    let mut found = Vec::new();
    for family in Family::BOTH {
        let mut routes = socket.routes_where(family, filter)?;
        routes.retain(|route| route.dst.prefix_len() == 0 && route.kind == RouteKind::Unicast);
        routes.sort_by_key(|route| route.metric.unwrap_or(0));
        found.append(&mut routes);
    }
    Ok(found)
}

fn with_address(socket: &mut Socket, known: Option<IpAddr>) -> Result<Option<Link>, NetlinkError> {
    let Some(known) = known else { return Ok(None) };
    match socket.addresses()?.into_iter().find(|address| address.net.addr() == known) {
        Some(address) => socket.link_by_index(address.ifindex).map(Some),
        None => Ok(None),
    }
}

fn with_default_route(socket: &mut Socket, defaults: &[Route]) -> Result<Option<Link>, NetlinkError> {
    match defaults.iter().find_map(|route| route.oif) {
        Some(index) => socket.link_by_index(index).map(Some),
        None => Ok(None),
    }
}

/// The addresses that other nodes can use, IPv4 first.
pub fn usable(addresses: Vec<Address>, index: u32) -> Vec<IpNet> {
    let on_link =
        addresses.into_iter().filter(|address| address.ifindex == index && address.scope == Scope::Universe);
    let mut nets: Vec<IpNet> = on_link.map(|address| address.net).collect();
    nets.sort_by_key(Family::of_net);
    nets
}

// === impl Choice ===

impl Choice {
    /// A node without a network: its pods reach only each other.
    fn nothing(gateways: Vec<IpAddr>) -> Self {
        let underlay = Underlay { ifindex: 0, mtu: MTU_WITHOUT_UNDERLAY_BYTES, addresses: Vec::new() };
        Self {
            underlay,
            name: None,
            why: "there is no default route; give one with --interface",
            gateways,
            is_running: false,
        }
    }

    /// The address of this node in `family`: the first one.
    pub fn address(&self, family: Family) -> Option<IpNet> {
        self.underlay.addresses.iter().copied().find(|net| Family::of_net(net) == family)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(name: Option<&str>, is_running: bool, addresses: &[&str]) -> Choice {
        let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
        let underlay = Underlay { ifindex: 7, mtu: 1500, addresses };
        Choice { underlay, name: name.map(str::to_owned), why: "", gateways: Vec::new(), is_running }
    }

    #[test]
    fn an_interface_must_be_up_and_have_an_address() {
        let fault = |choice: &Choice| fault(choice, &[]).unwrap();
        assert_eq!(fault(&choice(Some("eth0"), true, &["10.0.0.1/24"])), None);
        assert!(
            fault(&choice(Some("eth0"), false, &["10.0.0.1/24"]))
                .unwrap()
                .contains("eth0 to the other nodes is down")
        );
        assert!(fault(&choice(Some("eth0"), true, &[])).unwrap().contains("eth0 has no address"));
        // A node without a known address needs no interface.
        assert_eq!(fault(&choice(None, false, &[])), None);
    }

    #[test]
    fn an_address_that_other_nodes_know_must_exist_here() {
        let unknown = fault(&choice(None, false, &[]), &["192.0.2.77".parse().unwrap()]).unwrap();
        assert!(unknown.unwrap().contains("192.0.2.77"));
    }
}
