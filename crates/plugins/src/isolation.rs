//! No interface of ours carries a packet before its verdict is in force: the gate of every ADD, and what DEL, GC and CHECK have to do with verdicts.
//!
//! Judged are the host ends of our own wiring, `russ*`. Ports of bridges are the bridge's, and what Calico's plugins wire is Felix's to judge.

use std::sync::Arc;
use std::time::{Duration, Instant};

use russet_addr::IfName;
use russet_attach::{
    AttachError, Attached, Dialect, Executor, Hooks, Mismatch, Newborn, OwnedLink, Pending, Plan, Refusal,
    Removal, Side,
};
use russet_linux::NetNs;
use russet_netlink::{NetlinkError, Socket};
use russet_policy::{Entry, Keeper, KeeperError, PREFIX, Report, Standing};

use crate::stages::{self, Stage};

/// How long an ADD waits for its verdict at most; where its caller waits less, so does it. A commit takes a tenth of a millisecond, unless somebody else
/// commits a ruleset of hundreds of thousands of rules: those are done in seconds, and the few ADDs that wait hold up all others.
pub const GATE_PATIENCE: Duration = Duration::from_secs(10);
/// How long a DEL waits until a verdict is gone. It is removed in its turn whoever waits, and an interface that is gone carries nothing anyway.
const LEAVE_PATIENCE: Duration = Duration::from_secs(2);
/// How long the whole table may take; thousands of entries take a tenth of a second.
const WHOLE_PATIENCE: Duration = Duration::from_secs(20);

/// Keeps interfaces apart from everything until they have a verdict. Clones share the keeper.
#[derive(Debug, Clone)]
pub(crate) struct Isolation {
    keeper: Keeper,
    /// When the request's caller gives up.
    until: Option<Instant>,
}

/// The gate of one interface.
struct Gate<'g> {
    keeper: &'g Keeper,
    entry: Entry,
    limit: Instant,
    outcome: Outcome,
}

/// What became of an interface at the gate.
enum Outcome {
    NotReached,
    Reached {
        /// Whether the veth was there before.
        reused: bool,
        /// Whether the time was up, so that the verdict may still come.
        late: bool,
    },
}

// === impl Isolation ===

impl Default for Isolation {
    fn default() -> Self {
        Self { keeper: Keeper::new(Arc::new(running)), until: None }
    }
}

impl Isolation {
    /// With a keeper of the test's own.
    #[cfg(test)]
    pub fn kept_by(keeper: Keeper) -> Self {
        Self { keeper, until: None }
    }

    /// The same for a request whose caller gives up then.
    pub fn until(&self, limit: Instant) -> Self {
        Self { until: Some(limit), ..self.clone() }
    }

    /// Who works on the table.
    pub const fn keeper(&self) -> &Keeper {
        &self.keeper
    }

    /// Whether the request's caller has given up.
    pub fn is_late(&self) -> bool {
        self.until.is_some_and(|until| until <= Instant::now())
    }

    /// Wires an interface that carries nothing before its verdict is in force. When that does not come in time everything is undone.
    pub fn attach(
        &self,
        socket: &mut Socket,
        plan: &Plan,
        netns: &NetNs,
        newborn: Option<Newborn>,
    ) -> Result<Attached, AttachError> {
        let mut executor = Executor::new(socket).go_on_with(newborn);
        let is_port = plan.bridge().is_some();
        if plan.dialect != Dialect::Native || is_port {
            if is_port {
                self.guard_ports();
            }
            return executor.attach(plan, netns);
        }
        let latest = Instant::now() + GATE_PATIENCE;
        let limit = self.until.map_or(latest, |until| until.min(latest));
        let entry = Entry::allow(plan.host_name.clone());
        let mut gate = Gate { keeper: &self.keeper, entry, limit, outcome: Outcome::NotReached };
        let done = executor.attach_with(plan, netns, &mut gate);
        match gate.outcome {
            _ if done.is_ok() => {}
            // It was there before, and stays.
            Outcome::Reached { reused: true, .. } => {}
            // In its turn: nobody has to wait for nf_tables once more.
            Outcome::Reached { late: true, .. } => self.forget(&plan.host_name, Removal::Deferred),
            Outcome::Reached { .. } => self.forget(&plan.host_name, Removal::Synchronous),
            // Somebody who compared the table may have seen the interface.
            Outcome::NotReached => self.leave_name(socket, &plan.host_name, Removal::Synchronous),
        }
        done
    }

    /// A host end is about to go, and nobody who gets its name finds its verdict. Says which name that is, where it is judged. With a deferred removal nobody
    /// waits for nf_tables: the link goes down whatever its verdict says, and the keeper takes the verdict away before it puts another one under that name.
    pub fn leave(&self, link: &OwnedLink, removal: Removal) -> Option<IfName> {
        let name = judged(link)?;
        self.forget(&name, removal);
        Some(name)
    }

    /// What a host end left that went without us, if there is none of that name. Whoever asks keeps the name from being used meanwhile.
    pub fn leave_name(&self, socket: &mut Socket, name: &IfName, removal: Removal) {
        let gone = |error: &russet_netlink::NetlinkError| error.is_not_found();
        if name.as_str().starts_with(PREFIX) && socket.link_by_name(name).is_err_and(|error| gone(&error)) {
            self.forget(name, removal);
        }
    }

    /// How the verdict of a host end differs from what it should be.
    pub fn check(&self, host_name: &IfName) -> Result<Option<Mismatch>, KeeperError> {
        let entry = Entry::allow(host_name.clone());
        let found = self.keeper.standing(host_name.clone(), Instant::now() + GATE_PATIENCE)?;
        let differs = found.filter(|found| *found != Standing::InForce(entry.verdict));
        Ok(differs.map(|found| Mismatch {
            side: Side::Host,
            subject: format!("verdict of {host_name}"),
            wanted: entry.verdict.to_string(),
            found: found.to_string(),
        }))
    }

    /// Makes the table right for all interfaces that there are. Nobody else on the node may be at work on one without us.
    pub fn reconcile(&self) -> Result<Report, KeeperError> {
        let report = self.keeper.reconcile(Instant::now() + WHOLE_PATIENCE)?;
        if links().is_ok_and(|links| links.iter().any(|link| link.bridged && !link.doomed)) {
            self.guard_ports();
        }
        Ok(report)
    }

    /// Keeps pods behind bridges from what routers and DHCP's servers send. Without nf_tables they are wired as by the reference plugin.
    fn guard_ports(&self) {
        let latest = Instant::now() + GATE_PATIENCE;
        let limit = self.until.map_or(latest, |until| until.min(latest));
        if let Err(error) = self.keeper.guard_ports(limit) {
            tracing::warn!(%error, "router advertisements and answers of DHCP servers from ports of bridges are not dropped yet");
        }
    }

    /// Takes a verdict back: in the keeper's turn, or before this returns.
    fn forget(&self, name: &IfName, removal: Removal) {
        let _gate = stages::enter(Stage::Gate);
        let done = match removal {
            Removal::Deferred => self.keeper.forget(name.clone()),
            // A process without an agent ends before the keeper would have come to it.
            Removal::Synchronous | Removal::Batched => {
                self.keeper.remove(name.clone(), Instant::now() + LEAVE_PATIENCE).map(drop)
            }
        };
        if let Err(error) = done {
            tracing::warn!(link = %name, %error, "the verdict of an interface that is not there stays until the table is compared");
        }
    }
}

/// The entries of all interfaces that are judged.
fn running() -> Result<Vec<Entry>, String> {
    let links = links().map_err(|error| error.to_string())?;
    Ok(links.iter().filter_map(judged).map(Entry::allow).collect())
}

/// The host ends of our own wiring.
fn links() -> Result<Vec<OwnedLink>, NetlinkError> {
    russet_attach::list(&mut Socket::route()?)
}

/// The name of a host end that is judged.
fn judged(link: &OwnedLink) -> Option<IfName> {
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
