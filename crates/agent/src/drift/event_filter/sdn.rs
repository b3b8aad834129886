//! Which events may concern OpenShift's data path. Its links are recognised by their aliases, its
//! routes by their protocol or destination.

use std::collections::BTreeMap;

use russet_addr::{Family, IpNet, Ipv4Net};
use russet_netlink::{Change, Conf, ConfTarget, Link, NeighbourState, Route};
use russet_openshift::data_path::{DEVICE, LEAVING_GROUP, ROUTE_PROTOCOL};

use super::{LinkProperties, is_switched_off};

/// What is known of the data path.
#[derive(Debug)]
pub(super) struct Sdn {
    /// The networks of pods' addresses.
    pub cluster: Vec<Ipv4Net>,
}

/// Prefix of its links' aliases: `russet-sdn:...` of host ends, `russet-sdn tunnel`.
const ALIAS_PREFIX: &str = "russet-sdn";

// === impl Sdn ===

impl Sdn {
    /// Whether a change of a link concerns the data path. An ADD makes the link part of it, and the
    /// first change of a DEL moves the link into a group of its own. Neither is drift, nor is what
    /// the kernel removes from a link of that group.
    pub fn link(&self, link: &Link, was: Option<&LinkProperties>) -> bool {
        link.name == DEVICE || (link.group != LEAVING_GROUP && was.is_some_and(LinkProperties::is_of_sdn))
    }

    pub fn concerns(&self, change: &Change, there: bool, links: &BTreeMap<u32, LinkProperties>) -> bool {
        let ours = |ifindex: u32| links.get(&ifindex).is_some_and(|look| look.is_of_sdn() && !look.leaving);
        match change {
            Change::Route(route) => self.route(route),
            // The links have no IPv6. A new IPv6 address means that another program has enabled it;
            // addresses that an ADD removes from a new link do not count.
            Change::Address(address) => (there || address.net.addr().is_ipv4()) && ours(address.ifindex),
            Change::Neighbour(found) => {
                // The kernel manages entries that it has learned itself; it forgets them after a
                // failure.
                let settled = matches!(found.state, NeighbourState::Permanent | NeighbourState::Failed);
                found.address.is_ipv4() && !found.proxy && (!there || settled) && ours(found.ifindex)
            }
            Change::Conf(conf @ Conf { of: ConfTarget::Link(ifindex), .. }) => {
                there && is_switched_off(conf) && ours(*ifindex)
            }
            // Without forwarding, no packet passes from one pod's link to another.
            Change::Conf(Conf {
                of: ConfTarget::All, family: Family::V4, forwarding: Some(false), ..
            }) => there,
            // The BPF programs choose the destination; there are no forwarding entries.
            Change::Conf(_) | Change::Fdb(_) | Change::Link(_) | Change::Rule(_) | Change::Qdisc(_) => false,
        }
    }

    /// A foreign route in the place of ours has another protocol.
    fn route(&self, route: &Route) -> bool {
        let IpNet::V4(dst) = route.dst else { return false };
        let inside = || self.cluster.iter().any(|network| network.contains(&dst));
        route.table == Route::MAIN && (route.protocol == ROUTE_PROTOCOL || inside())
    }
}

// === impl LinkProperties ===

impl LinkProperties {
    pub fn is_of_sdn(&self) -> bool {
        self.alias.as_deref().is_some_and(is_alias)
    }
}

fn is_alias(alias: &str) -> bool {
    alias.starts_with(ALIAS_PREFIX)
}
