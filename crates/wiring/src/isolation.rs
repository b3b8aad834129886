//! Ensures that no interface of ours carries a packet before its verdict is in force: the gate of
//! every ADD, and the part of DEL, GC and CHECK that concerns verdicts.
//!
//! Verdicts exist for host interfaces of our own wiring, `russ*`. Bridge ports belong to their
//! bridge, and Felix filters what Calico's plugins wire.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use russet_addr::IfName;
use russet_attach::{
    AttachError, Attached, Dialect, Executor, Hooks, Mismatch, OwnedLink, Pending, Plan, PrecreatedVeth,
    Refusal, Removal, Side, SourceCheck, Wired,
};
use russet_linux::NetNs;
use russet_netlink::{NetlinkError, Socket};
use russet_policy::{
    Entry, Keeper, KeeperError, PREFIX, PortGuard, PortSources, VerdictReport, VerdictState,
};

use crate::stages::{self, Stage};

/// How long an ADD waits for its verdict, unless its caller gives up earlier. A commit takes a
/// tenth of a millisecond, unless another program commits a ruleset of hundreds of thousands of
/// rules, which takes seconds; the few ADDs that wait then hold up all others.
pub const GATE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a DEL waits for the removal of a verdict. The keeper removes it later in any case, and
/// an interface that is gone carries no packets.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a comparison of the whole table may take; thousands of entries take a tenth of a
/// second.
const RECONCILE_TIMEOUT: Duration = Duration::from_secs(20);

/// Keeps interfaces closed until they have a verdict. Clones share the keeper.
#[derive(Debug, Clone)]
pub(crate) struct Isolation {
    keeper: Keeper,
    /// When the request's caller gives up.
    until: Option<Instant>,
}

/// The gate of one interface during its ADD.
struct Gate<'g> {
    keeper: &'g Keeper,
    entry: Entry,
    limit: Instant,
    outcome: Outcome,
}

/// How far an interface came at its gate.
enum Outcome {
    NotReached,
    Reached {
        /// Whether the veth existed before.
        reused: bool,
        /// Whether the time was up, so that the verdict may still be committed later.
        late: bool,
    },
}

// === impl Isolation ===

impl Default for Isolation {
    fn default() -> Self {
        Self::with_keeper(Keeper::new(Arc::new(running)))
    }
}

impl Isolation {
    pub fn with_keeper(keeper: Keeper) -> Self {
        Self { keeper, until: None }
    }

    /// Returns a copy for a request whose caller gives up at `limit`.
    pub fn until(&self, limit: Instant) -> Self {
        Self { until: Some(limit), ..self.clone() }
    }

    /// The keeper of the verdict table.
    pub const fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// Whether the request's caller has given up.
    pub fn is_late(&self) -> bool {
        self.until.is_some_and(|until| until <= Instant::now())
    }

    /// Wires an interface that carries nothing before its verdict is in force. If the verdict does
    /// not come in time, everything is undone.
    pub fn attach(
        &self,
        socket: &mut Socket,
        plan: &Plan,
        netns: &NetNs,
        precreated: Option<PrecreatedVeth>,
    ) -> Result<Attached, AttachError> {
        let mut executor = Executor::new(socket).with_precreated(precreated);
        let is_port = plan.bridge().is_some();
        if plan.dialect != Dialect::Native || is_port {
            if is_port {
                self.guard_ports();
            }
            return executor.attach(plan, netns);
        }
        let latest = Instant::now() + GATE_TIMEOUT;
        let limit = self.until.map_or(latest, |until| until.min(latest));
        let entry = Entry::allow(plan.host_name.clone());
        let mut gate = Gate { keeper: &self.keeper, entry, limit, outcome: Outcome::NotReached };
        let done = executor.attach_with(plan, netns, &mut gate);
        match gate.outcome {
            _ if done.is_ok() => {}
            // A veth that existed before stays, with its verdict.
            Outcome::Reached { reused: true, .. } => {}
            // Later, by the keeper: the ADD must not wait for nf_tables a second time.
            Outcome::Reached { late: true, .. } => self.forget(&plan.host_name, Removal::Deferred),
            Outcome::Reached { .. } => self.forget(&plan.host_name, Removal::Synchronous),
            // A concurrent comparison of the table may have seen the interface and added a verdict.
            Outcome::NotReached => self.leave_name(socket, &plan.host_name, Removal::Synchronous),
        }
        done
    }

    /// Lets the port of a bridge send what `guard` says and nothing else, before it is one. False where the kernel cannot check that.
    pub fn guard_port(&self, host_name: &IfName, guard: PortGuard) -> Result<bool, KeeperError> {
        let latest = Instant::now() + GATE_TIMEOUT;
        let limit = self.until.map_or(latest, |until| until.min(latest));
        self.keeper.put_port(host_name.clone(), guard, limit)
    }

    /// Whether the port is guarded by exactly `guard`. Also true where the kernel cannot check what
    /// ports send.
    pub fn is_port_guarded(&self, host_name: &IfName, guard: PortGuard) -> Result<bool, KeeperError> {
        let limit = Instant::now() + GATE_TIMEOUT;
        Ok(self.keeper.is_port_guarded(host_name.clone(), guard, limit)?.unwrap_or(true))
    }

    /// What the port of a bridge may send is removed when the port is gone: as long as it is there, it must not be free.
    pub fn forget_port(&self, host_name: &IfName, removal: Removal) {
        let done = match removal {
            Removal::Deferred => self.keeper.forget_port(host_name.clone()),
            Removal::Synchronous | Removal::Batched => {
                self.keeper.remove_port(host_name.clone(), Instant::now() + LEAVE_TIMEOUT).map(drop)
            }
        };
        if let Err(error) = done {
            tracing::warn!(link = %host_name, %error, "what an interface that is gone may send stays in table bridge russet-policy");
        }
    }

    /// Removes the verdict of a host interface that is about to be deleted, so that the next
    /// interface of that name does not inherit it. Returns the name if the interface has a verdict.
    /// With a deferred removal the caller does not wait for nf_tables: the link goes down in any
    /// case, and the keeper removes the verdict before it adds another one for that name.
    pub fn leave(&self, link: &OwnedLink, removal: Removal) -> Option<IfName> {
        let name = verdict_name(link)?;
        self.forget(&name, removal);
        Some(name)
    }

    /// Removes the verdict that a vanished host interface left, if there is no link of that name.
    /// The caller ensures that the name is not used meanwhile.
    pub fn leave_name(&self, socket: &mut Socket, name: &IfName, removal: Removal) {
        let gone = |error: &russet_netlink::NetlinkError| error.is_not_found();
        if name.as_str().starts_with(PREFIX) && socket.link_by_name(name).is_err_and(|error| gone(&error)) {
            self.forget(name, removal);
            self.forget_port(name, removal);
        }
    }

    /// The difference between the verdict of a host interface and the wanted one, if any.
    pub fn check(&self, host_name: &IfName) -> Result<Option<Mismatch>, KeeperError> {
        let entry = Entry::allow(host_name.clone());
        let found = self.keeper.verdict_state(host_name.clone(), Instant::now() + GATE_TIMEOUT)?;
        let differs = found.filter(|found| *found != VerdictState::InForce(entry.verdict));
        Ok(differs.map(|found| Mismatch {
            side: Side::Host,
            subject: format!("verdict of {host_name}"),
            wanted: entry.verdict.to_string(),
            found: found.to_string(),
        }))
    }

    /// Makes the table match all existing interfaces. The caller ensures that no interface is
    /// changed meanwhile except through this type.
    pub fn reconcile(&self) -> Result<VerdictReport, KeeperError> {
        let report = self.keeper.reconcile(Instant::now() + RECONCILE_TIMEOUT)?;
        if links().is_ok_and(|links| links.iter().any(|link| link.bridged && !link.doomed)) {
            self.guard_ports();
        }
        Ok(report)
    }

    /// Drops router advertisements and DHCP answers from pods behind bridges. A failure is only
    /// logged: without nf_tables, pods are wired as by the reference plugin.
    fn guard_ports(&self) {
        let latest = Instant::now() + GATE_TIMEOUT;
        let limit = self.until.map_or(latest, |until| until.min(latest));
        if let Err(error) = self.keeper.guard_ports(limit) {
            tracing::warn!(%error, "router advertisements and answers of DHCP servers from ports of bridges are not dropped yet");
        }
    }

    /// Removes a verdict: later by the keeper if `removal` is deferred, otherwise before this
    /// returns.
    fn forget(&self, name: &IfName, removal: Removal) {
        let _gate = stages::enter(Stage::Gate);
        let done = match removal {
            Removal::Deferred => self.keeper.forget(name.clone()),
            // A process without an agent ends before the keeper would remove it later.
            Removal::Synchronous | Removal::Batched => {
                self.keeper.remove(name.clone(), Instant::now() + LEAVE_TIMEOUT).map(drop)
            }
        };
        if let Err(error) = done {
            tracing::warn!(link = %name, %error, "the verdict of a removed interface stays until the next reconciliation");
        }
    }
}

/// The name of the port that a link is, where it is one of ours.
pub(crate) fn port_of(link: &OwnedLink) -> Option<IfName> {
    let ours = link.bridged && link.name.starts_with(PREFIX);
    IfName::new(link.name.clone()).ok().filter(|_| ours)
}

/// What an interface behind a bridge may send, where that is checked. One without addresses is bound to its MAC alone.
pub fn port_guard(wired: &Wired) -> Option<(IfName, PortGuard)> {
    let Wired::Port(port) = wired else { return None };
    let addresses: BTreeSet<IpAddr> = port.addresses.iter().map(|net| net.addr()).collect();
    let sources = match &port.source_check {
        SourceCheck::Off => return None,
        SourceCheck::Addresses { allowed } if !addresses.is_empty() => {
            Some(PortSources { addresses, prefixes: allowed.clone() })
        }
        SourceCheck::Mac | SourceCheck::Addresses { .. } => None,
    };
    Some((port.host_name.clone(), PortGuard { mac: port.pod_mac(), sources }))
}

/// The entries of all interfaces that have verdicts.
fn running() -> Result<Vec<Entry>, String> {
    let links = links().map_err(|error| error.to_string())?;
    Ok(links.iter().filter_map(verdict_name).map(Entry::allow).collect())
}

/// The links that Russet owns.
fn links() -> Result<Vec<OwnedLink>, NetlinkError> {
    russet_attach::list(&mut Socket::route()?)
}

/// The name of a host interface that has a verdict.
fn verdict_name(link: &OwnedLink) -> Option<IfName> {
    let ours = !link.doomed && !link.bridged && link.name.starts_with(PREFIX);
    IfName::new(link.name.clone()).ok().filter(|_| ours)
}

// === impl Gate ===

impl Hooks for Gate<'_> {
    fn gate(&mut self, pending: &Pending<'_>) -> Result<(), Refusal> {
        let _gate = stages::enter(Stage::Gate);
        let put = self.keeper.put(self.entry.clone(), self.limit);
        let late = matches!(put, Err(KeeperError::Late(_)));
        self.outcome = Outcome::Reached { reused: pending.reused, late };
        Ok(put?)
    }
}

#[cfg(test)]
mod tests;
