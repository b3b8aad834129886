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

use super::book::Book;
use super::rules::Rules;
use crate::observe::FoundDevice;
use crate::owner::Whose;
use crate::plan::route;

/// Events that are read in one call; if there are more, a full comparison follows instead.
const EVENTS_MAX: usize = 100_000;
/// Only events that are queued already are read.
const NO_WAIT: Duration = Duration::ZERO;

/// Differences known from events.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
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
    Rival(IpNet),
    Neighbour(IpAddr),
    Fdb(Family, Mac),
}

/// The desired state to compare events with.
pub(crate) struct View<'a> {
    pub(crate) rules: &'a Rules,
    pub(crate) book: &'a Book,
    pub(crate) devices: &'a BTreeMap<Family, FoundDevice>,
}

// === impl Suspects ===

impl Suspects {
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
    pub(crate) fn judge(&mut self, monitor: &mut Monitor, view: &View<'_>) -> Result<bool> {
        for _ in 0..EVENTS_MAX {
            let Some(event) = monitor.next(NO_WAIT)? else {
                return Ok(self.everything || !self.objects.is_empty());
            };
            self.hear(event, view);
        }
        self.everything = true;
        Ok(true)
    }

    fn hear(&mut self, event: Event, view: &View<'_>) {
        let (change, there) = match event {
            Event::Set(change) => (change, true),
            Event::Gone(change) => (change, false),
            Event::Overrun => return self.everything = true,
        };
        match change {
            Change::Link(link) => self.hear_link(&link, there, view),
            Change::Address(address) => self.hear_address(&address, there, view),
            Change::Route(route) => self.hear_route(&route, there, view),
            Change::Neighbour(neighbour) => self.hear_neighbour(&neighbour, there, view),
            Change::Fdb(entry) => self.hear_fdb(&entry, there, view),
            Change::Rule(_) | Change::Conf(_) => {}
        }
    }

    /// The kernel removes IPv4 routes through a link that goes down without an event for each.
    fn hear_link(&mut self, link: &Link, there: bool, view: &View<'_>) {
        if let Some(device) = view.devices.values().find(|device| device.ifindex == link.index) {
            let same = there && link.is_up() && link.mac == device.mac && link.mtu_bytes == device.mtu;
            self.everything |= !same;
        } else if view.book.desired().owner.names.iter().flatten().any(|name| name.as_str() == link.name) {
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

    fn hear_address(&mut self, address: &Address, there: bool, view: &View<'_>) {
        if address.scope != Scope::Universe {
            return;
        }
        let desired = view.book.desired();
        let family = Family::of_net(&address.net);
        if view.device(family) == Some(address.ifindex) {
            let own = desired.devices.get(&family).and_then(|device| device.address);
            let wanted = own == Some(address.net);
            self.everything |=
                if there { !wanted && desired.owner.owns_address(&address.net) } else { wanted };
        }
        self.everything |= address.ifindex == view.rules.underlay.ifindex && view.rules.asks_for_links();
    }

    fn hear_route(&mut self, found: &Route, there: bool, view: &View<'_>) {
        if found.table != Route::MAIN {
            return;
        }
        let desired = view.book.desired();
        let (dst, device) = (found.dst, view.device(found.family()));
        let whose = desired.owner.whose(found, device, &desired.routes);
        let metric = desired.metrics.get(&dst).copied();
        let wanted = desired.routes.get(&dst).map(|hop| route(dst, *hop, device, metric, &desired.owner));
        match (whose, wanted) {
            (Some(Whose::Ours), Some(wanted)) if *found == wanted => self.set(Object::Route(dst), !there),
            (Some(Whose::Ours), Some(_)) => self.objects.extend(there.then_some(Object::Route(dst))),
            (Some(Whose::Ours), None) => self.set(Object::Route(dst), there),
            (Some(Whose::Yields), Some(wanted)) => {
                let wins = found.metric.unwrap_or(0) <= wanted.metric.unwrap_or(0);
                self.set(Object::Rival(dst), there && wins);
            }
            (Some(Whose::Connected), _) => self.everything = true,
            _ => {}
        }
        // A route towards peers may change whether they are directly reachable.
        let others = whose != Some(Whose::Ours) && view.rules.asks_for_links();
        self.everything |= others && view.book.has_public_in(&dst);
    }

    fn hear_neighbour(&mut self, found: &Neighbour, there: bool, view: &View<'_>) {
        let family = Family::of(found.address);
        if view.device(family) != Some(found.ifindex) || found.proxy {
            return;
        }
        let permanent = found.state == NeighbourState::Permanent;
        let wrong = match view.book.desired().neighbours.get(&found.address) {
            Some(mac) => !(there && permanent && found.mac == Some(*mac)),
            None => there && permanent,
        };
        self.set(Object::Neighbour(found.address), wrong);
    }

    fn hear_fdb(&mut self, found: &FdbEntry, there: bool, view: &View<'_>) {
        let device = Family::BOTH.into_iter().find(|family| view.device(*family) == Some(found.ifindex));
        let Some(family) = device.filter(|_| found.table == FdbTable::Device) else { return };
        let object = Object::Fdb(family, found.mac);
        match view.book.desired().fdb.get(&(family, found.mac)) {
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
