//! The controller of the data path: compares everything with its desired state and repairs it, when
//! an agent starts, and when another program changed our objects.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use russet_addr::Family;
use russet_netlink::{Address, Link, LinkSet, Neighbour, Route, RouteFilter, RouteKind};
use russet_overlay::controller::{Comparison, Controller, Result, Round};
use russet_overlay::ruleset::ObservedTable;
use russet_overlay::{Reason, ReconcileReport, Refusal, Subject};

use super::device::{self, Attachment, DeviceState};
use super::programs::{self, Hook};
use super::steps::{Action, Difference, Stage, Steps, wrong_sysctls};
use super::{DEVICE, LEAVING_GROUP, Port, Ports, ROUTE_PROTOCOL, Sdn, SdnError, alias, kind, peers, port};

/// The data path in the kernel.
#[derive(Debug)]
pub struct SdnState {
    pub(super) links: BTreeMap<String, Link>,
    /// Routes of our protocol.
    pub(super) routes: Vec<Route>,
    pub(super) neighbours: Vec<Neighbour>,
    pub(super) addresses: Vec<Address>,
    table: ObservedTable,
    /// The attached ports whose links exist.
    ports: Ports,
    /// None if the tunnel device cannot be compared.
    device: Option<DeviceState>,
    /// The guards of pods' links, by index. Those that cannot be read are missing.
    guards: BTreeMap<u32, Attachment>,
    /// Sysctls of pods' links with other values than they should have.
    sysctls: Vec<(String, &'static str)>,
}

impl Controller for Sdn {
    type Desired = Ports;
    type Observed = SdnState;
    type Difference = Difference;

    /// What a new device lacks is known when it exists.
    const ROUNDS_MAX: usize = 2;

    /// The attached ports; the rest are settings, and the last known peers.
    fn desired(&mut self) -> Result<Option<Ports>> {
        Ok(Some(self.ports.clone()))
    }

    fn observe(&mut self, desired: &Ports, report: &mut ReconcileReport) -> Result<SdnState> {
        Ok(self.state(desired, report)?)
    }

    /// Removes stale routes, then installs verdicts, then adds routes. No route exists before the
    /// verdict that filters it.
    fn diff(&self, _: &Ports, state: &SdnState, report: &mut ReconcileReport) -> Vec<Difference> {
        let mut steps = Steps::new(&self.socket);
        let tunnel = state.links.get(DEVICE).map(|link| link.index);
        let routes: HashSet<Route> =
            state.ports.values().filter_map(|port| self.route_of(port, state)).collect();
        let is_pods =
            |route: &Route| route.kind == RouteKind::Unicast && (tunnel.is_none() || route.oif != tunnel);
        let stale = state.routes.iter().filter(|route| is_pods(route) && !routes.contains(*route));
        steps.extend(Stage::Stale, stale.cloned().map(Action::DeleteRoute));
        if !self.verdicts.is_in_force(&self.settings, &state.ports, &state.table) {
            steps.push(Stage::Table, Action::Table);
        }
        if let Some(device) = &state.device
            && let Err(error) = device::diff(&self.settings, state, device, &mut steps, report)
        {
            report.fail(error);
        }
        self.diff_ports(state, &mut steps, report);
        if let (Some(_), Some(ifindex)) = (&state.device, tunnel) {
            peers::diff_known(self, state, ifindex, &mut steps);
        }
        let sysctls = state.sysctls.iter().cloned().map(|(path, value)| Action::Sysctl(path, value));
        steps.extend(Stage::Sysctls, sysctls);
        steps.finish()
    }

    fn apply(&mut self, comparison: Comparison<Self>, report: &mut ReconcileReport) -> Result<Round> {
        let Comparison { observed: state, differences, .. } = comparison;
        let failed = self.carry_out(&state.ports, &differences, report)?;
        self.ports = state.ports;
        if differences.iter().any(Difference::creates_device) {
            return Ok(if failed.contains(&Stage::Device) { Round::Complete } else { Round::Again });
        }
        if state.device.is_some() {
            peers::settle(self, &failed);
        }
        Ok(Round::Complete)
    }
}

impl Sdn {
    fn state(&mut self, desired: &Ports, report: &mut ReconcileReport) -> Result<SdnState, SdnError> {
        let links = self.socket.links()?.into_iter().map(|link| (link.name.clone(), link));
        let links: BTreeMap<String, Link> = links.collect();
        let there = |port: &Port| links.get(port.host_veth.as_str()).is_some_and(|link| is_of(port, link));
        let ports = desired.iter().filter(|(_, port)| there(port) && self.settings.is_pods(port.address));
        let ports: Ports = ports.map(|(name, port)| (name.clone(), port.clone())).collect();
        let table = self.verdicts.observe()?;
        let device = device::observe(&self.settings, &mut self.socket, links.get(DEVICE));
        let device = device.map_err(|error| report.fail(error)).ok();
        let (mut guards, mut sysctls) = (BTreeMap::new(), Vec::new());
        let guard = programs::for_hook(Hook::ToPod);
        for name in ports.keys() {
            if let Some(link) = links.get(name.as_str()) {
                match device::attachment(&mut self.socket, link.index, &guard) {
                    Ok(attachment) => _ = guards.insert(link.index, attachment),
                    Err(error) => report.fail(error),
                }
            }
            match wrong_sysctls(name.as_str(), &port::SYSCTLS) {
                Ok(wrong) => sysctls.extend(wrong),
                Err(error) => report.fail(error),
            }
        }
        let routes = self.socket.routes_where(Family::V4, filter())?;
        let (neighbours, addresses) = (self.socket.neighbours(Family::V4)?, self.socket.addresses()?);
        Ok(SdnState { links, routes, neighbours, addresses, table, ports, device, guards, sysctls })
    }

    fn route_of(&self, port: &Port, state: &SdnState) -> Option<Route> {
        let link = state.links.get(port.host_veth.as_str())?;
        Some(port::route(&self.settings, port, link.index))
    }

    fn diff_ports(&self, state: &SdnState, steps: &mut Steps<'_>, report: &mut ReconcileReport) {
        let addresses: BTreeSet<_> = state.addresses.iter().map(|found| (found.ifindex, found.net)).collect();
        let found_neighbours: HashSet<&Neighbour> = state.neighbours.iter().collect();
        let found_routes: HashSet<&Route> = state.routes.iter().collect();
        let (mut records, mut own, mut neighbours, mut routes) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for port in state.ports.values() {
            let Some(link) = state.links.get(port.host_veth.as_str()) else { continue };
            let stage = Stage::Pod(link.index);
            let record = alias::for_port(port);
            // A failed DEL has left it in the group whose events are ignored.
            let leaving = link.group == LEAVING_GROUP;
            if !link.is_up() || leaving || link.alias.as_deref() != Some(record.as_str()) {
                let group = leaving.then_some(0);
                let change =
                    LinkSet { up: Some(true), alias: Some(record), group, ..LinkSet::index(link.index) };
                records.push((stage, Action::SetLink(change)));
            }
            let address = port::own_address(&self.settings, link.index);
            if !addresses.contains(&(address.ifindex, address.net)) {
                own.push((stage, Action::PutAddress(address)));
            }
            let neighbour = port::neighbour(port, link.index);
            if !found_neighbours.contains(&neighbour) {
                neighbours.push((stage, Action::PutNeighbour(neighbour)));
            }
            match state.guards.get(&link.index) {
                Some(Attachment::Attached) => {}
                Some(Attachment::Missing) => steps.push(stage, Action::Program(link.index, Hook::ToPod)),
                // A conflict on one pod's link, which retries do not resolve and which must not
                // delay other pods. Without the guard it keeps the route that it had; the table
                // filters its packets.
                Some(Attachment::NoPlace) => {
                    let subject = Subject::Guard(port.host_veth.clone());
                    report.refusals.push(Refusal::new(subject, None, Reason::NoPlace));
                }
                // In all other cases a pod without its guard gets no route.
                None => continue,
            }
            let route = port::route(&self.settings, port, link.index);
            if !found_routes.contains(&route) {
                routes.push((stage, Action::PutRoute(route)));
            }
        }
        for (stage, request) in [records, own, neighbours, routes].into_iter().flatten() {
            steps.push(stage, request);
        }
    }
}

/// Checks the record, because a new link may have the name of a port's deleted one.
pub(super) fn is_of(port: &Port, link: &Link) -> bool {
    let other = alias::port_of(link, &Default::default()).is_some_and(|held| held.sandbox != port.sandbox);
    link.kind.as_deref() == Some("veth") && !other
}

fn filter() -> RouteFilter {
    RouteFilter { protocol: Some(ROUTE_PROTOCOL), ..RouteFilter::default() }
}

/// Removes everything; each step runs even if others failed.
pub(super) fn withdraw(sdn: &mut Sdn) -> ReconcileReport {
    let mut report = ReconcileReport::default();
    let removed = sdn.socket.routes_where(Family::V4, filter()).map_err(SdnError::from).and_then(|routes| {
        let mut steps = Steps::new(&sdn.socket);
        steps.extend(Stage::Stale, routes.into_iter().map(Action::DeleteRoute));
        let differences = steps.finish();
        sdn.carry_out(&Ports::new(), &differences, &mut report)
    });
    let device = device::withdraw(&mut sdn.socket);
    // Last: as long as there is a route, there is a verdict.
    let table = sdn.verdicts.withdraw();
    for (removed, kind) in
        [(removed.map(|_| false), kind::ROUTE), (device, kind::DEVICE), (table, kind::TABLE)]
    {
        match removed {
            Ok(true) => report.count_as(kind),
            Ok(false) => {}
            Err(error) => report.fail(error),
        }
    }
    sdn.ports.clear();
    sdn.peers = None;
    report
}
