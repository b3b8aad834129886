//! Decides which kernel events may mean that a managed object has changed. Only cheap tests, which
//! may be wrong in one direction: a false alarm costs one comparison, and a change that is missed
//! is found by the loop's next comparison. Pure except for the links and inputs that it remembers.
//! Used by `kernel_events`.

mod sdn;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use russet_addr::{Family, Ipv4Net, Mac};
use russet_attach::{DOOMED_GROUP, nat};
use russet_journal::EndpointTable;
use russet_netlink::{
    Address, Change, Conf, ConfTarget, Event, FdbEntry, FdbTable, Link, Neighbour, NeighbourState, Route,
    Scope,
};
use russet_nft::monitor::Commit;
use russet_nft::{Table, TableFamily};
use russet_openshift::data_path;
use russet_overlay::{Desired, Underlay, is_ours};

use super::ControllerId;
use sdn::Sdn;

/// The desired state, and the links as the last events described them.
#[derive(Debug)]
pub(crate) struct EventFilter {
    overlay: Option<Wanted>,
    sdn: Option<Sdn>,
    pods: EndpointTable,
    links: BTreeMap<u32, LinkProperties>,
}

/// The desired overlay.
#[derive(Debug)]
struct Wanted {
    desired: Arc<Desired>,
    underlay: Underlay,
    devices: BTreeSet<u32>,
}

/// The properties of a link that matter here.
#[derive(Debug, PartialEq, Eq)]
struct LinkProperties {
    name: String,
    up: bool,
    mtu_bytes: u32,
    mac: Option<Mac>,
    alias: Option<String>,
    master: Option<u32>,
    /// OpenShift's DEL is removing it.
    leaving: bool,
}

/// What an event may concern.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Concern {
    /// The overlay may have changed.
    pub overlay: bool,
    /// Host ends of pods' interfaces may have changed.
    pub pods: bool,
    /// Their verdicts may have changed.
    pub verdicts: bool,
    /// Their masquerade or published ports may have changed.
    pub nat: bool,
    /// OpenShift's data path may have changed.
    pub sdn: bool,
    /// The underlay may have changed.
    pub underlay: bool,
}

/// The overlay's table.
const OVERLAY_TABLE: &str = "russet";
/// The verdicts' table ([`russet_policy::TABLE`]).
const VERDICTS_TABLE: &str = "russet-policy";

// === impl EventFilter ===

impl EventFilter {
    /// A filter without a desired overlay.
    pub fn new(pods: EndpointTable) -> Self {
        Self { overlay: None, sdn: None, pods, links: BTreeMap::new() }
    }

    /// Sets the desired overlay.
    pub fn expect(&mut self, desired: Arc<Desired>, underlay: Underlay) {
        let devices = self.overlay.take().map(|wanted| wanted.devices).unwrap_or_default();
        self.overlay = Some(Wanted { desired, underlay, devices });
    }

    /// There is no desired overlay any more.
    pub fn forget(&mut self) {
        self.overlay = None;
    }

    /// OpenShift's data path exists from now on, with pods' addresses in these networks.
    pub fn expect_sdn(&mut self, cluster: Vec<Ipv4Net>) {
        self.sdn = Some(Sdn { cluster });
    }

    /// Sets the existing tunnel devices.
    pub fn devices(&mut self, devices: BTreeSet<u32>) {
        if let Some(wanted) = &mut self.overlay {
            wanted.devices = devices;
        }
    }

    /// Sets the existing links. Later events are compared with them.
    pub fn learn(&mut self, links: impl IntoIterator<Item = Link>) {
        self.links = links.into_iter().map(|link| (link.index, LinkProperties::from_link(link))).collect();
    }

    /// What an event of rtnetlink may concern. `own`: the agent's own request caused it.
    pub(super) fn classify(&mut self, event: &Event, own: bool) -> Concern {
        let (change, there) = match event {
            Event::Set(change) => (change, true),
            Event::Gone(change) => (change, false),
            Event::Overrun => return Concern::EVERYTHING,
        };
        if let Change::Link(link) = change {
            let was = self.remember(link, there);
            let same = there && was.as_ref() == self.links.get(&link.index);
            return if same || own {
                Concern::default()
            } else {
                self.link_concern(link, there, was.as_ref())
            };
        }
        if own {
            return Concern::default();
        }
        let mut concern = Concern { pods: self.concerns_pods(change, there), ..Concern::default() };
        concern.sdn = self.sdn.as_ref().is_some_and(|sdn| sdn.concerns(change, there, &self.links));
        if let Some(wanted) = &self.overlay {
            concern.overlay = wanted.concerns(change, there);
            concern.underlay = matches!(change, Change::Address(address) if there && wanted.is_new(address));
        }
        concern
    }

    /// What another program's transaction in nf_tables may concern.
    pub(super) fn classify_commit(&self, commit: &Commit) -> Concern {
        let overlay = self.overlay.is_some() && commit.touches(&Table::inet(OVERLAY_TABLE));
        let verdicts = [TableFamily::Inet, TableFamily::Bridge]
            .into_iter()
            .any(|family| commit.touches(&Table::new(family, VERDICTS_TABLE)));
        let nat = commit.touches(&nat::table());
        let sdn = self.sdn.is_some() && commit.touches(&data_path::table());
        Concern { overlay, verdicts, nat, sdn, ..Concern::default() }
    }

    /// Stores the new properties of a link and returns the old ones. Many events change none of
    /// them.
    fn remember(&mut self, link: &Link, there: bool) -> Option<LinkProperties> {
        if there {
            self.links.insert(link.index, LinkProperties::from_link(link.clone()))
        } else {
            self.links.remove(&link.index)
        }
    }

    /// The kernel does not always say who changed a link, so changes by our own requests are
    /// recognised by their content: an ADD sets the host end up as its last step, and a DEL removes
    /// it from the endpoint table before it changes it.
    fn link_concern(&self, link: &Link, there: bool, was: Option<&LinkProperties>) -> Concern {
        let finished = was.filter(|was| was.up);
        let attached = [finished.and_then(|was| was.alias.as_deref()), link.alias.as_deref()]
            .into_iter()
            .flatten()
            .filter_map(|alias| alias.parse().ok())
            .any(|owner| self.pods.has(&owner));
        // A host end that is gone belonged to a pod that is gone; a bridge belongs to its network.
        let pods = (there && finished.is_some() && attached) || self.pods.has_bridge(&link.name);
        // The pod's namespace is gone, and the link with it. If no DEL ever comes, nothing else
        // removes the verdict.
        let verdicts = !there && was.is_some_and(LinkProperties::is_host_end) && link.group != DOOMED_GROUP;
        let overlay = self.overlay.as_ref().is_some_and(|wanted| wanted.link(link, there));
        let sdn = self.sdn.as_ref().is_some_and(|sdn| sdn.link(link, was));
        Concern { pods, verdicts, overlay, sdn, ..Concern::default() }
    }

    fn concerns_pods(&self, change: &Change, there: bool) -> bool {
        let host_end = |ifindex| self.links.get(&ifindex).is_some_and(LinkProperties::is_host_end);
        match change {
            Change::Route(route) if route.table == Route::MAIN => {
                let whole = route.dst.prefix_len() == route.dst.max_prefix_len();
                whole && self.pods.routes_to(&route.dst.addr())
            }
            Change::Neighbour(found) => {
                let right = there && found.state == NeighbourState::Permanent;
                !right && !found.proxy && self.pods.routes_to(&found.address)
            }
            Change::Address(address) if !there => {
                let name = self.links.get(&address.ifindex).map(|look| look.name.as_str());
                name.is_none_or(|name| self.pods.has_bridge(name)) && !self.pods.is_empty()
            }
            Change::Conf(Conf { of: ConfTarget::Link(ifindex), .. }) => {
                matches!(change, Change::Conf(conf) if there && is_switched_off(conf)) && host_end(*ifindex)
            }
            _ => false,
        }
    }
}

/// Whether one sysctl was set to a value that no host end has. All sysctls at once is how the
/// kernel announces a new link.
fn is_switched_off(conf: &Conf) -> bool {
    match (conf.forwarding, conf.rp_filter, conf.proxy) {
        (Some(on), None, None) | (None, None, Some(on)) => !on,
        (None, Some(filter), None) => filter != 1,
        _ => false,
    }
}

fn is_pods_alias(alias: &str) -> bool {
    alias.parse::<russet_attach::Owner>().is_ok()
}

// === impl LinkProperties ===

impl LinkProperties {
    fn from_link(link: Link) -> Self {
        let (up, leaving) = (link.is_up(), link.group == data_path::LEAVING_GROUP);
        let Link { name, mtu_bytes, mac, alias, master, .. } = link;
        Self { name, up, mtu_bytes, mac, alias, master, leaving }
    }

    fn is_host_end(&self) -> bool {
        self.alias.as_deref().is_some_and(is_pods_alias)
    }
}

// === impl Concern ===

impl Concern {
    /// Events were lost.
    pub const EVERYTHING: Self =
        Self { overlay: true, pods: true, verdicts: true, nat: true, sdn: true, underlay: false };

    /// Whether it concerns anything.
    pub fn is_any(self) -> bool {
        self != Self::default()
    }

    /// The controllers that are dirty now.
    pub fn controllers(self) -> impl Iterator<Item = ControllerId> {
        let controllers = [
            (self.verdicts, ControllerId::Verdicts),
            (self.sdn, ControllerId::Openshift),
            (self.pods, ControllerId::Endpoints),
            (self.overlay, ControllerId::Overlay),
            (self.nat, ControllerId::Nat),
        ];
        controllers.into_iter().filter_map(|(is_dirty, controller)| is_dirty.then_some(controller))
    }
}

// === impl Wanted ===

impl Wanted {
    fn concerns(&self, change: &Change, there: bool) -> bool {
        match change {
            Change::Address(address) => self.address(address, there),
            Change::Route(route) => self.route(route, there),
            Change::Neighbour(neighbour) => self.neighbour(neighbour, there),
            Change::Fdb(entry) => self.fdb(entry, there),
            Change::Conf(conf) => self.conf(conf),
            Change::Link(_) | Change::Rule(_) | Change::Qdisc(_) => false,
        }
    }

    /// IPv4 routes through a link that goes down vanish without an event.
    fn link(&self, link: &Link, there: bool) -> bool {
        if link.index == self.underlay.ifindex {
            return there && link.is_up();
        }
        let named = self.desired.owner.names.iter().flatten().any(|name| name.as_str() == link.name);
        named || self.devices.contains(&link.index)
    }

    /// Whether the underlay has an address that it did not have. A removed address may come back in
    /// a moment, so the loop's next comparison is soon enough for that.
    fn is_new(&self, address: &Address) -> bool {
        address.ifindex == self.underlay.ifindex
            && address.scope == Scope::Universe
            && !self.underlay.addresses.contains(&address.net)
    }

    fn address(&self, address: &Address, there: bool) -> bool {
        let single = address.net.prefix_len() == address.net.max_prefix_len();
        let own = self.desired.devices.values().any(|device| device.address == Some(address.net))
            || (single && self.desired.probes.contains(&address.net.addr()));
        if there { !own && self.devices.contains(&address.ifindex) } else { own }
    }

    fn route(&self, route: &Route, there: bool) -> bool {
        if route.table != Route::MAIN {
            return false;
        }
        let device = route.oif.filter(|oif| self.devices.contains(oif));
        let marked = self.desired.owner.owned.contains(&route.protocol) && is_ours(route, device);
        marked || (there && self.desired.routes.contains_key(&route.dst))
    }

    fn neighbour(&self, found: &Neighbour, there: bool) -> bool {
        if !self.devices.contains(&found.ifindex) || found.proxy {
            return false;
        }
        let permanent = there && found.state == NeighbourState::Permanent;
        match self.desired.neighbours.get(&found.address) {
            Some(mac) => !(permanent && found.mac == Some(*mac)),
            None => permanent,
        }
    }

    /// The kernel does not say who changed a forwarding entry, so our own changes are recognised by
    /// their content.
    fn fdb(&self, found: &FdbEntry, there: bool) -> bool {
        if !self.devices.contains(&found.ifindex) || found.table != FdbTable::Device {
            return false;
        }
        let wanted = Family::BOTH.into_iter().find_map(|family| self.desired.fdb.get(&(family, found.mac)));
        match wanted {
            Some(outer) => found.dst != Some(*outer) || !there,
            None => there && found.permanent,
        }
    }

    fn conf(&self, conf: &Conf) -> bool {
        let wanted = self.desired.forwarding.contains(&conf.family);
        wanted && conf.forwarding == Some(false) && conf.of == ConfTarget::All
    }
}

#[cfg(test)]
mod tests;
