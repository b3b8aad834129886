//! Host endpoints of this node: what its own interfaces may carry, and what its pods may send to it
//! (policy.md section 1.8). The kernel has a table for that only while a host endpoint names this node, or
//! the action for what pods send to it is Drop.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use russet_addr::IfName;
use russet_netlink::{NetlinkError, Socket};
use russet_policy::{Hosts as Table, PolicyError, hosts_table};
use russet_verdict::engine::{Engine, Interfaces};
use russet_verdict::hosts::HostTable;
use russet_verdict::world::{Endpoint, EndpointKey, EndpointKind, EndpointToHost};

use super::{RETRY, Worker};
use crate::fast_path::Signal;

/// What the node's own interfaces may carry.
pub(super) struct Hosts {
    /// The host endpoints of this node.
    own: BTreeSet<EndpointKey>,
    links: Links,
    kernel: Option<Table>,
    /// What the kernel holds, if that is known.
    held: Option<HostTable>,
    /// The engine's version of which it holds the table.
    in_force: Option<u64>,
    /// The kernel may have a table.
    may_exist: bool,
    /// When the interfaces are looked at again, or a failed change is tried again.
    due: Option<Instant>,
}

/// What the table depends on besides objects.
#[derive(Debug, Default, PartialEq, Eq)]
struct Links {
    interfaces: Interfaces,
    /// UDP ports of VXLAN devices.
    tunnels: BTreeSet<u16>,
}

/// How soon an interface that got an address, or a tunnel, is noticed.
const LOOK: Duration = Duration::from_secs(5);

// === impl Hosts ===

impl Hosts {
    pub(super) fn new() -> Self {
        // An earlier agent may have left a table.
        let may_exist = true;
        let links = Links::default();
        Self { own: BTreeSet::new(), links, kernel: None, held: None, in_force: None, may_exist, due: None }
    }

    /// Whether a host endpoint names this node.
    pub(super) fn is_any(&self) -> bool {
        !self.own.is_empty()
    }

    /// The keys of the host endpoints of this node.
    pub(super) fn own(&self) -> &BTreeSet<EndpointKey> {
        &self.own
    }

    /// The addresses of an interface, as they were found last.
    pub(super) fn addresses(&self, interface: &IfName) -> BTreeSet<IpAddr> {
        self.links.interfaces.get(interface).cloned().unwrap_or_default()
    }

    /// Whether there is anything for a table to hold.
    fn are_needed(&self, engine: &Engine) -> bool {
        self.is_any() || engine.endpoint_to_host() == EndpointToHost::Drop
    }

    /// Whether what host endpoints and Felix's settings say is in force.
    pub(super) fn are_in_force(&self, engine: &Engine) -> bool {
        if self.are_needed(engine) { self.in_force.is_some() } else { !self.may_exist }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The kernel may hold something else than what is known.
    pub(super) fn doubt(&mut self) {
        (self.held, self.in_force, self.due, self.may_exist) = (None, None, None, true);
    }

    /// Something is to be put into force that the engine's version does not tell.
    pub(super) fn renew(&mut self) {
        (self.in_force, self.due) = (None, None);
    }

    /// Notes an endpoint of this node, or that there is none.
    pub(super) fn note(&mut self, key: &EndpointKey, own: Option<&Endpoint>) {
        let is_changed = match own.is_some_and(|own| matches!(own.kind, EndpointKind::Host { .. })) {
            true => self.own.insert(key.clone()),
            false => self.own.remove(key),
        };
        if is_changed {
            self.due = None;
        }
    }

    fn apply(&mut self, engine: &Engine, flows: &Signal) -> Result<(), Box<dyn std::error::Error>> {
        let links = Links::read()?;
        if self.in_force == Some(engine.version()) && links == self.links {
            return Ok(());
        }
        self.in_force = None;
        let wanted = engine.host_table(&links.interfaces)?;
        if self.held.as_ref() != Some(&wanted) || links.tunnels != self.links.tunnels {
            (self.held, self.may_exist) = (None, true);
            flows.raise();
            let applied = self.open()?.apply(&wanted, &links.tunnels);
            flows.raise();
            let report = applied?;
            if let Some(structure) = report.structure {
                let to_host = wanted.endpoint_to_host.name();
                tracing::info!(%structure, elements = report.elements, to_host, "host endpoints are in force");
            }
        }
        (self.held, self.links, self.in_force) = (Some(wanted), links, Some(engine.version()));
        Ok(())
    }

    fn open(&mut self) -> Result<&mut Table, PolicyError> {
        match &mut self.kernel {
            Some(table) => Ok(table),
            none => Ok(none.insert(Table::open()?)),
        }
    }

    fn withdraw(&mut self) -> Result<(), PolicyError> {
        if self.open()?.withdraw()? {
            tracing::info!(
                "nothing is decided of the node's own packets: table {} is removed",
                hosts_table()
            );
        }
        (self.held, self.may_exist) = (None, false);
        Ok(())
    }
}

// === impl Links ===

impl Links {
    fn read() -> Result<Self, NetlinkError> {
        let mut socket = Socket::route()?;
        let addresses = socket.addresses()?;
        let mut found = Self::default();
        for link in socket.links()? {
            found.tunnels.extend(link.vxlan.map(|vxlan| vxlan.port));
            let Ok(name) = IfName::new(link.name) else { continue };
            let own = addresses.iter().filter(|address| address.ifindex == link.index);
            let own: BTreeSet<IpAddr> = own.map(|address| address.net.addr()).collect();
            found.interfaces.insert(name, own);
        }
        Ok(found)
    }
}

// === impl Worker ===

impl Worker {
    /// Has the kernel hold what host endpoints decide, as of the last flush.
    pub(super) fn guard_hosts(&mut self) {
        if !self.hosts.are_needed(&self.engine) {
            return self.unguard_hosts();
        }
        let now = Instant::now();
        let is_due = self.hosts.due.is_none_or(|due| due <= now);
        let is_changed = self.hosts.in_force != Some(self.engine.version());
        let has_failed = self.hosts.in_force.is_none() && self.hosts.due.is_some();
        if !is_due && (!is_changed || has_failed) {
            return;
        }
        let done = self.hosts.apply(&self.engine, &self.kernel.flows);
        self.hosts.due = Some(now + if done.is_ok() { LOOK } else { RETRY });
        if let Err(error) = done {
            self.metrics.errors.inc();
            tracing::warn!(%error, "what host endpoints say is not in force yet; what was in force stays so, and it is tried again");
        }
    }

    /// Removes the table.
    pub(super) fn unguard_hosts(&mut self) {
        if self.hosts.in_force.take().is_some() {
            self.hosts.due = None;
        }
        let now = Instant::now();
        if !self.hosts.may_exist || self.hosts.due.is_some_and(|due| due > now) {
            return;
        }
        self.hosts.due = None;
        match self.hosts.withdraw() {
            Ok(()) => {}
            // Without nf_tables there is no table.
            Err(error) if error.is_unsupported() => self.hosts.may_exist = false,
            Err(error) => {
                tracing::warn!(%error, "table {} could not be removed; it is tried again", hosts_table());
                self.hosts.due = Some(now + RETRY);
            }
        }
    }
}

#[cfg(test)]
mod tests;
