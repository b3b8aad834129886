//! Which events may be about OpenShift's data path. Its links are known by their aliases, its routes by their protocol or by where they lead.

use std::collections::BTreeMap;

use russet_addr::{Family, IpNet, Ipv4Net};
use russet_netlink::{Change, Conf, ConfOf, Link, NeighbourState, Route};
use russet_overlay::openshift::{DEVICE, LEAVING_GROUP, ROUTE_PROTOCOL};

use super::{Look, is_switched_off};

/// What is known of the data path.
#[derive(Debug)]
pub(super) struct Sdn {
    /// Where pods have their addresses.
    pub cluster: Vec<Ipv4Net>,
}

/// What the aliases of its links begin with: `russet-sdn:...` of host ends, `russet-sdn tunnel`.
const ALIAS_PREFIX: &str = "russet-sdn";

// === impl Sdn ===

impl Sdn {
    /// Whether a change of a link is about it. An ADD makes a link one of it, and a DEL puts it into a group of its own with its first touch: neither is anybody else's doing,
    /// nor is what the kernel takes from a link of that group.
    pub fn link(&self, link: &Link, was: Option<&Look>) -> bool {
        link.name == DEVICE || (link.group != LEAVING_GROUP && was.is_some_and(Look::is_of_sdn))
    }

    pub fn concerns(&self, change: &Change, there: bool, links: &BTreeMap<u32, Look>) -> bool {
        let ours = |ifindex: u32| links.get(&ifindex).is_some_and(|look| look.is_of_sdn() && !look.leaving);
        match change {
            Change::Route(route) => self.route(route),
            // There is no IPv6: an address that comes says that somebody has switched it on, and an ADD takes those away that a new link has.
            Change::Address(address) => (there || address.net.addr().is_ipv4()) && ours(address.ifindex),
            Change::Neighbour(found) => {
                // What the kernel has learned is its own affair; it forgets with a failure.
                let settled = matches!(found.state, NeighbourState::Permanent | NeighbourState::Failed);
                found.address.is_ipv4() && !found.proxy && (!there || settled) && ours(found.ifindex)
            }
            Change::Conf(conf @ Conf { of: ConfOf::Link(ifindex), .. }) => {
                there && is_switched_off(conf) && ours(*ifindex)
            }
            // Switched off, nothing is forwarded from one pod's link to another.
            Change::Conf(Conf { of: ConfOf::All, family: Family::V4, forwarding: Some(false), .. }) => there,
            // The programs say where packets go: there are no forwarding entries.
            Change::Conf(_) | Change::Fdb(_) | Change::Link(_) | Change::Rule(_) => false,
        }
    }

    /// One that somebody puts in the place of ours has another protocol.
    fn route(&self, route: &Route) -> bool {
        let IpNet::V4(dst) = route.dst else { return false };
        let inside = || self.cluster.iter().any(|network| network.contains(&dst));
        route.table == Route::MAIN && (route.protocol == ROUTE_PROTOCOL || inside())
    }
}

// === impl Look ===

impl Look {
    pub fn is_of_sdn(&self) -> bool {
        self.alias.as_deref().is_some_and(is_alias)
    }
}

fn is_alias(alias: &str) -> bool {
    alias.starts_with(ALIAS_PREFIX)
}
