//! Decides which of the kernel's events mean that one of our objects differs from the desired
//! state. The kernel reports our own changes, too, so only the last event of each object counts.
//! Called by `fabric`, which has the desired state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use russet_addr::{Family, IpNet, Mac};
use russet_netlink::{
    Address, Change, Event, FdbEntry, FdbTable, Link, Monitor, Neighbour, NeighbourState, Result, Route,
    Scope,
};

use super::peer_table::PeerTable;
use super::rules::Rules;
use crate::observe::FoundDevice;
use crate::owner::RouteOwner;
use crate::plan::route;

/// Events that are read in one call; if there are more, a full comparison follows instead.
const EVENTS_MAX: usize = 100_000;
/// Only events that are queued already are read.
const NO_WAIT: Duration = Duration::ZERO;

/// Differences known from events.
#[derive(Debug, Default)]
pub(crate) struct DriftDetector {
    objects: BTreeSet<Object>,
    /// Set by an event that only a full comparison can resolve.
    everything: bool,
    /// The underlay was set down: its routes are gone, and must be added again when it comes back.
    underlay_down: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Object {
    Route(IpNet),
    /// A foreign route to one of our destinations.
    ForeignRoute(IpNet),
    Neighbour(IpAddr),
    Fdb(Family, Mac),
}

/// The desired state to compare events with.
pub(crate) struct View<'a> {
    pub(crate) rules: &'a Rules,
    pub(crate) peer_table: &'a PeerTable,
    pub(crate) devices: &'a BTreeMap<Family, FoundDevice>,
}

// === impl DriftDetector ===

impl DriftDetector {
    /// Requires a full comparison.
    pub(crate) fn everything(&mut self) {
        self.everything = true;
    }

    /// Discards the events until now, because a full comparison follows.
    pub(crate) fn forget(&mut self, monitor: &mut Monitor) -> Result<()> {
        let underlay_down = self.underlay_down;
        *self = Self { underlay_down, ..Self::default() };
        for _ in 0..EVENTS_MAX {
            if monitor.next(NO_WAIT)?.is_none() {
                return Ok(());
            }
        }
        self.everything = true;
        Ok(())
    }

    /// Reads all queued events; returns whether anything differs from the desired state.
    pub(crate) fn has_drifted(&mut self, monitor: &mut Monitor, view: &View<'_>) -> Result<bool> {
        for _ in 0..EVENTS_MAX {
            let Some(event) = monitor.next(NO_WAIT)? else {
                return Ok(self.everything || !self.objects.is_empty());
            };
            self.on_event(event, view);
        }
        self.everything = true;
        Ok(true)
    }

    fn on_event(&mut self, event: Event, view: &View<'_>) {
        let (change, there) = match event {
            Event::Set(change) => (change, true),
            Event::Gone(change) => (change, false),
            Event::Overrun => return self.everything = true,
        };
        match change {
            Change::Link(link) => self.on_link(&link, there, view),
            Change::Address(address) => self.on_address(&address, there, view),
            Change::Route(route) => self.on_route(&route, there, view),
            Change::Neighbour(neighbour) => self.on_neighbour(&neighbour, there, view),
            Change::Fdb(entry) => self.on_fdb(&entry, there, view),
            Change::Rule(_) | Change::Qdisc(_) | Change::Conf(_) => {}
        }
    }

    /// The kernel removes IPv4 routes through a link that goes down without an event for each.
    fn on_link(&mut self, link: &Link, there: bool, view: &View<'_>) {
        if let Some(device) = view.devices.values().find(|device| device.ifindex == link.index) {
            let same = there && link.is_up() && link.mac == device.mac && link.mtu_bytes == device.mtu;
            self.everything |= !same;
        } else if view
            .peer_table
            .desired()
            .owner
            .names
            .iter()
            .flatten()
            .any(|name| name.as_str() == link.name)
        {
            self.everything = true;
        }
        let underlay = &view.rules.underlay;
        self.everything |= there && link.name == underlay.name.as_str() && link.index != underlay.ifindex;
        if link.index == underlay.ifindex {
            let up = there && link.is_up();
            self.everything |= up && self.underlay_down;
            self.underlay_down = !up;
        }
    }

    fn on_address(&mut self, address: &Address, there: bool, view: &View<'_>) {
        if address.scope != Scope::Universe {
            return;
        }
        let desired = view.peer_table.desired();
        let family = Family::of_net(&address.net);
        if view.device(family) == Some(address.ifindex) {
            let own = desired.devices.get(&family).and_then(|device| device.address);
            let wanted = own == Some(address.net);
            self.everything |=
                if there { !wanted && desired.owner.owns_address(&address.net) } else { wanted };
        }
        self.everything |= address.ifindex == view.rules.underlay.ifindex && view.rules.depends_on_links();
    }

    fn on_route(&mut self, found: &Route, there: bool, view: &View<'_>) {
        if found.table != Route::MAIN {
            return;
        }
        let desired = view.peer_table.desired();
        let (dst, device) = (found.dst, view.device(found.family()));
        let route_owner = desired.owner.classify(found, device, &desired.routes);
        let metric = desired.metrics.get(&dst).copied();
        let wanted = desired.routes.get(&dst).map(|hop| route(dst, *hop, device, metric, &desired.owner));
        match (route_owner, wanted) {
            (Some(RouteOwner::Ours), Some(wanted)) if *found == wanted => {
                self.set(Object::Route(dst), !there)
            }
            (Some(RouteOwner::Ours), Some(_)) => self.objects.extend(there.then_some(Object::Route(dst))),
            (Some(RouteOwner::Ours), None) => self.set(Object::Route(dst), there),
            (Some(RouteOwner::Yields), Some(wanted)) => {
                let wins = found.metric.unwrap_or(0) <= wanted.metric.unwrap_or(0);
                self.set(Object::ForeignRoute(dst), there && wins);
            }
            (Some(RouteOwner::Connected), _) => self.everything = true,
            _ => {}
        }
        // A route towards peers may change whether they are directly reachable.
        let others = route_owner != Some(RouteOwner::Ours) && view.rules.depends_on_links();
        self.everything |= others && view.peer_table.has_public_in(&dst);
    }

    fn on_neighbour(&mut self, found: &Neighbour, there: bool, view: &View<'_>) {
        let family = Family::of(found.address);
        if view.device(family) != Some(found.ifindex) || found.proxy {
            return;
        }
        let permanent = found.state == NeighbourState::Permanent;
        let wrong = match view.peer_table.desired().neighbours.get(&found.address) {
            Some(mac) => !(there && permanent && found.mac == Some(*mac)),
            None => there && permanent,
        };
        self.set(Object::Neighbour(found.address), wrong);
    }

    fn on_fdb(&mut self, found: &FdbEntry, there: bool, view: &View<'_>) {
        let device = Family::BOTH.into_iter().find(|family| view.device(*family) == Some(found.ifindex));
        let Some(family) = device.filter(|_| found.table == FdbTable::Device) else { return };
        let object = Object::Fdb(family, found.mac);
        match view.peer_table.desired().fdb.get(&(family, found.mac)) {
            Some(outer) if found.dst == Some(*outer) => self.set(object, !there),
            // Another remote of a MAC that we want elsewhere: its removal does not prove that ours
            // exists.
            Some(_) => self.objects.extend(there.then_some(object)),
            None => self.set(object, there && found.permanent),
        }
    }

    fn set(&mut self, object: Object, wrong: bool) {
        if wrong {
            self.objects.insert(object);
        } else {
            self.objects.remove(&object);
        }
    }
}

// === impl View ===

impl View<'_> {
    fn device(&self, family: Family) -> Option<u32> {
        self.devices.get(&family).map(|device| device.ifindex)
    }
}
