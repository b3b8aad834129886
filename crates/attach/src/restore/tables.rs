//! The node's tables in one reading, as far as they concern pods' host ends.

use std::collections::{BTreeMap, BTreeSet};

use russet_addr::{Family, IfName, IpNet};
use russet_netlink::{
    Conf, ConfTarget, Link, Neighbour, NeighbourState, NetlinkError, Route, RouteFilter, Socket,
};

use crate::executor::wire_route;
use crate::inspect;
use crate::owner::Owner;
use crate::plan::{Bridge, Op, Plan, Setting};

/// The content of the tables.
#[derive(Debug, Default)]
pub struct Tables {
    links: BTreeMap<String, Link>,
    /// By link.
    neighbours: BTreeMap<u32, Vec<Neighbour>>,
    /// By link; main table.
    routes: BTreeMap<u32, Vec<Route>>,
    addresses: BTreeMap<u32, BTreeSet<IpNet>>,
    confs: BTreeMap<(Family, u32), Conf>,
}

// === impl Tables ===

impl Tables {
    /// Reads them: one dump for each, whatever the number of pods. Links come last: one that exists
    /// then existed all the time, so what it lacks was not missing because it was being removed.
    pub fn read(host: &mut Socket) -> Result<Self, NetlinkError> {
        let mut tables = Self::default();
        for address in host.addresses()? {
            tables.addresses.entry(address.ifindex).or_default().insert(address.net);
        }
        for family in Family::BOTH {
            let filter = RouteFilter { table: Some(Route::MAIN), ..RouteFilter::default() };
            for route in listed(host.routes_where(family, filter))? {
                if let Some(oif) = route.oif {
                    tables.routes.entry(oif).or_default().push(route);
                }
            }
            for neighbour in listed(host.neighbours(family))? {
                if neighbour.state == NeighbourState::Permanent && !neighbour.proxy {
                    tables.neighbours.entry(neighbour.ifindex).or_default().push(neighbour);
                }
            }
            for conf in listed(host.confs(family))? {
                if let ConfTarget::Link(ifindex) = conf.of {
                    tables.confs.insert((family, ifindex), conf);
                }
            }
        }
        for link in host.links()? {
            tables.links.insert(link.name.clone(), link);
        }
        Ok(tables)
    }

    pub(super) fn link(&self, name: &IfName) -> Option<&Link> {
        self.links.get(name.as_str())
    }

    pub(super) fn owned(&self, owner: &Owner) -> Option<&Link> {
        self.links.values().find(|link| inspect::owner(link).as_ref() == Some(owner))
    }

    pub(super) fn has_bridge(&self, bridge: &Bridge) -> bool {
        let Some(link) = self.link(&bridge.name) else { return false };
        let addresses = self.addresses.get(&link.index);
        let has = |gateway: &IpNet| addresses.is_some_and(|all| all.contains(gateway));
        link.is_up() && bridge.gateways.iter().all(has)
    }

    pub(super) fn has(&self, op: &Op, link: &Link, plan: &Plan) -> bool {
        match op {
            Op::LinkUp => link.is_up(),
            Op::Join => {
                let bridge = plan.bridge().and_then(|bridge| self.link(&bridge.name));
                bridge.is_some_and(|bridge| link.master == Some(bridge.index))
            }
            Op::Port(port) => link.bridge_port == Some(*port),
            Op::Neighbour(wanted) => self
                .neighbours
                .get(&link.index)
                .into_iter()
                .flatten()
                .any(|found| found.address == wanted.address && found.mac == Some(wanted.mac)),
            Op::Route(route) => {
                let wanted = wire_route(route, link.index, plan.protocol);
                // Any protocol is accepted; the kernel shows IPv6 routes with the metric that it
                // chose.
                self.routes.get(&link.index).into_iter().flatten().any(|found| {
                    found.dst == wanted.dst
                        && found.table == wanted.table
                        && found.gateway == wanted.gateway
                        && wanted.metric.is_none_or(|metric| found.metric == Some(metric))
                })
            }
            // No plan has these on the node's side.
            Op::Address(_) | Op::Rule(_) => true,
        }
    }

    /// Whether a sysctl of the link has the desired value, if netlink reports it.
    pub(super) fn setting(&self, link: &Link, setting: &Setting) -> Option<bool> {
        let (rest, knob) = setting.path.rsplit_once('/')?;
        let family = match rest.strip_suffix(link.name.as_str())? {
            "net/ipv4/conf/" => Family::V4,
            "net/ipv6/conf/" => Family::V6,
            _ => return None,
        };
        let conf = self.confs.get(&(family, link.index))?;
        let switch = |on: Option<bool>| Some(if on? { "1" } else { "0" } == setting.value);
        match knob {
            "forwarding" => switch(conf.forwarding),
            "proxy_arp" | "proxy_ndp" => switch(conf.proxy),
            "rp_filter" => Some(conf.rp_filter?.to_string() == setting.value),
            _ => None,
        }
    }
}

/// A kernel without IPv6 has no entries.
fn listed<T>(result: Result<Vec<T>, NetlinkError>) -> Result<Vec<T>, NetlinkError> {
    match result {
        Err(error) if error.is_unsupported() => Ok(Vec::new()),
        result => result,
    }
}
