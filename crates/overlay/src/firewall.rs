//! The firewall of the flannel daemon (flannel.md section 7): it masquerades pods' traffic and lets
//! pods' packets be forwarded. `flanneld` opens it and has [`maintain`] apply
//! the wanted rules whenever they, or the kernel's, change. The agent, which has its rules
//! elsewhere, opens it only for [exceptions](Firewall::exceptions).
//!
//! Tables and chains have flannel's own names, so that the daemon that runs next adopts or replaces
//! them and no rule exists twice. Correct rules are never touched; wrong ones are replaced in one
//! transaction, so that no packet meets an incomplete ruleset.

mod command;
mod compat;
mod felix;
mod foreign;
mod gate;
mod leftovers;
mod legacy;
mod maintain;
mod native;
mod report;
mod rules;
mod survey;
mod xtables;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use russet_addr::IpNet;
use russet_nft::monitor::{Change as Heard, Commit, Event, Object};
use russet_nft::{ChainInfo, Monitor, Nft, Table, TableInfo};

use compat::Compat;
use native::Change;

pub use felix::{felix_filters, remove_felix};
pub use legacy::{change_legacy_nat, legacy_nat};
pub use maintain::{Order, maintain};
pub use report::{Culprit, FirewallError, FirewallReport, Repair};
pub use survey::survey;

/// The inputs of the rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The pod networks of the cluster, of both families.
    pub networks: Vec<IpNet>,
    /// This node's subnets of the networks.
    pub own: Vec<IpNet>,
    /// Whether pods' traffic to destinations outside of the networks takes the node's address.
    pub masquerade: bool,
    /// Whether ports of masqueraded flows are chosen at random instead of kept where possible.
    pub random_fully: bool,
    /// Whether packets from and to the networks are forwarded.
    pub forward: bool,
}

/// The backend that holds the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// In tables of nf_tables, over netlink.
    Nft,
    /// In flannel's chains of iptables, made with the installed programs, of either flavour.
    Iptables,
}

/// The daemon that owns the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The flannel daemon's.
    Flannel(Mode),
    /// The agent. Its rules are only exceptions in foreign chains that drop forwarded packets; it
    /// leaves the rules of flannel's daemons alone.
    Agent,
}

/// The firewall of the network namespace in which this was opened; use it from threads of that namespace only.
#[derive(Debug)]
pub struct Firewall {
    role: Role,
    nft: Nft,
    monitor: Monitor,
    /// The generation at which the ruleset was last seen to be as wanted.
    seen: Option<(u32, Wanted)>,
    /// Foreign chains in which every rule matters to us.
    watched: BTreeSet<(Table, String)>,
    compat: Compat,
    /// Whether rules of flannel's old versions were searched for.
    swept: bool,
    /// Foreign tables that drop forwarded packets and that only their owner can change. Each is
    /// reported once.
    owned: BTreeSet<Table>,
    /// The process that made the last relevant change.
    culprit: Option<Culprit>,
    /// Whether the kernel has nf_tables; without it there may still be legacy iptables.
    nf_tables: bool,
}

/// All tables and chains at one generation.
#[derive(Debug)]
pub(crate) struct RulesetSnapshot {
    generation: u32,
    tables: Vec<TableInfo>,
    chains: Vec<ChainInfo>,
}

/// The comment of the agent's rules in foreign chains.
pub const EXCEPTION_COMMENT: &str = "russet-agent forward";
/// Number of foreign events that are read in one call, so that a program that commits without end
/// neither takes all of our time nor delays our own changes.
const EVENTS_MAX: usize = 1000;
/// How often a check is repeated after a foreign commit overtook it.
const TRIES: usize = 16;

// === impl Role ===

impl Role {
    /// The comment that identifies our accepts in foreign chains.
    pub(crate) const fn mark(self) -> &'static str {
        match self {
            Self::Flannel(_) => "russet-flannel forward",
            Self::Agent => EXCEPTION_COMMENT,
        }
    }

    /// Whether the rules are flannel's, in its chains of iptables.
    pub(crate) fn is_iptables(self) -> bool {
        self == Self::Flannel(Mode::Iptables)
    }
}

// === impl Firewall ===

impl Firewall {
    /// Opens the firewall in the calling thread's network namespace and begins to listen; changes
    /// nothing. Mode [`Mode::Iptables`] needs the iptables programs.
    pub fn open(mode: Mode) -> Result<Self, FirewallError> {
        Self::open_as(Role::Flannel(mode))
    }

    /// Opens it for exceptions only: accepts of [`Wanted::networks`] in foreign chains that drop
    /// forwarded packets, marked by a comment of their own. Nothing else is created, removed or
    /// masqueraded.
    pub fn exceptions() -> Result<Self, FirewallError> {
        Self::open_as(Role::Agent)
    }

    fn open_as(role: Role) -> Result<Self, FirewallError> {
        let monitor = Monitor::of_other_processes()?;
        let mut nft = Nft::open()?;
        let mut compat = Compat::default();
        let nf_tables = match role {
            Role::Flannel(Mode::Nft) => nft.generation().map(|_| true)?,
            Role::Flannel(Mode::Iptables) => {
                compat.require()?;
                nft.generation().is_ok()
            }
            Role::Agent => nft.generation().is_ok(),
        };
        Ok(Self {
            role,
            nft,
            monitor,
            seen: None,
            watched: BTreeSet::new(),
            compat,
            swept: false,
            owned: BTreeSet::new(),
            culprit: None,
            nf_tables,
        })
    }

    /// Compares the ruleset with the wanted one and repairs the difference; does nothing if there
    /// is none.
    ///
    /// Rules that the other mode, or flannel itself in either of its modes, left behind are removed
    /// once the new rules are in force.
    pub fn apply(&mut self, wanted: &Wanted) -> FirewallReport {
        let mut report = FirewallReport::default();
        // Only changes in nf_tables change the generation.
        let heard = !self.role.is_iptables() || self.compat.is_nft();
        match self.nft.generation() {
            Err(_) if !self.nf_tables => {
                if self.role.is_iptables() {
                    self.compat.chains(&mut self.nft, wanted, &mut report);
                }
            }
            Ok(now)
                if heard && self.seen.as_ref().is_some_and(|(seen, was)| *seen == now && was == wanted) => {}
            Ok(_) => self.check(wanted, &mut report),
            Err(error) => report.failed.push(error.into()),
        }
        // Legacy iptables sends no notifications.
        self.compat.legacy(wanted, self.role, &mut report);
        let culprit = self.culprit.take();
        report.culprit = if report.repaired.is_empty() { None } else { culprit };
        report
    }

    /// Waits until another program made a change that may matter and returns true. Returns false
    /// when `timeout` passed first, or after [`EVENTS_MAX`] unrelated changes. Legacy iptables
    /// sends no events, so callers also call `apply` every few seconds.
    pub fn changed(&mut self, timeout: Duration) -> Result<bool, FirewallError> {
        let end = Instant::now() + timeout;
        let mut left = EVENTS_MAX;
        loop {
            match self.monitor.next(end.saturating_duration_since(Instant::now()))? {
                None => return Ok(false),
                Some(event) if self.concerns(&event) => {
                    if let Event::Committed(Commit { pid, process, .. }) = event {
                        self.culprit = Some(Culprit { pid, process });
                    }
                    break;
                }
                Some(_) if left == 0 => return Ok(false),
                Some(_) => left -= 1,
            }
        }
        // One snapshot covers all changes until now.
        for _ in 0..EVENTS_MAX {
            if self.monitor.next(Duration::ZERO)?.is_none() {
                break;
            }
        }
        Ok(true)
    }

    /// Removes all of our rules.
    pub fn withdraw(&mut self) -> FirewallReport {
        self.apply(&Wanted::default())
    }

    /// Removes rules that an earlier run, of Russet or of any version of flannel, left for
    /// `previous`. Rules without chain and comment can be recognised only by these addresses. Call
    /// it once `apply` has put the new rules in force.
    pub fn recycle(&mut self, previous: &Wanted) -> FirewallReport {
        let mut report = FirewallReport::default();
        if previous.networks.is_empty() {
            return report;
        }
        self.compat.remember(previous);
        match self.role {
            Role::Flannel(Mode::Iptables) => match self.seen.take() {
                Some((_, wanted)) => return self.apply(&wanted),
                None => return report,
            },
            Role::Agent => return report,
            Role::Flannel(Mode::Nft) => match RulesetSnapshot::read(&mut self.nft) {
                Ok(snapshot) => {
                    let tables: Vec<Table> = snapshot.tables.into_iter().map(|info| info.table).collect();
                    self.compat.sweep(&tables, &mut report);
                }
                Err(error) => report.failed.push(error),
            },
        }
        let wanted = self.seen.as_ref().map(|(_, wanted)| wanted.clone()).unwrap_or_default();
        self.compat.legacy(&wanted, self.role, &mut report);
        report
    }

    fn check(&mut self, wanted: &Wanted, report: &mut FirewallReport) {
        if self.role.is_iptables() {
            self.compat.chains(&mut self.nft, wanted, report);
        }
        let begun = report.failed.len();
        for _ in 0..TRIES {
            report.failed.truncate(begun);
            // In mode iptables this removes our nf_tables tables.
            match self.attempt(wanted, begun == 0, report) {
                Ok(Some(generation)) => {
                    // After a failure the next call checks everything again.
                    let good = report.failed.is_empty();
                    self.seen = good.then(|| (generation, wanted.clone()));
                    return;
                }
                Ok(None) => {}
                Err(error) => return report.failed.push(error),
            }
        }
        report.failed.push(FirewallError::Overtaken(TRIES));
    }

    /// Takes one snapshot and commits a transaction for each difference. Returns the snapshot's
    /// generation when there was nothing to do. Rules that are no longer wanted stay until their
    /// replacement is in force.
    fn attempt(
        &mut self,
        wanted: &Wanted,
        mut in_force: bool,
        report: &mut FirewallReport,
    ) -> Result<Option<u32>, FirewallError> {
        let snapshot = RulesetSnapshot::read(&mut self.nft)?;
        self.watched = foreign::watched(&snapshot);
        let empty = Wanted::default();
        let native = if self.role == Role::Flannel(Mode::Nft) { wanted } else { &empty };
        let ours = self.role != Role::Agent;
        if in_force && ours {
            let change = native::difference(&mut self.nft, &snapshot, native)?;
            if !self.commit(change, &snapshot, report)? {
                return Ok(None);
            }
        }
        let mut owned = BTreeSet::new();
        for table in &snapshot.tables {
            let change = foreign::difference(&mut self.nft, &snapshot, table, wanted, self.role);
            match change.and_then(|change| self.commit(change, &snapshot, report)) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                // A failure in our tables must not keep foreign chains from being checked.
                Err(FirewallError::Owned(table)) => drop(owned.insert(table)),
                Err(error) => {
                    in_force = false;
                    report.failed.push(error);
                }
            }
        }
        // Last, because a jump of flannel's may have been what let packets through.
        if in_force && ours && (!self.role.is_iptables() || !self.compat.is_nft()) {
            let change = leftovers::difference(&mut self.nft, &snapshot, !self.swept)?;
            if !self.commit(change, &snapshot, report)? {
                return Ok(None);
            }
            self.swept = true;
        }
        report.failed.extend(owned.difference(&self.owned).cloned().map(FirewallError::Owned));
        self.owned = owned;
        Ok(Some(snapshot.generation))
    }

    /// Returns whether there was nothing to commit. After a commit, and after another program's
    /// commit overtook ours, the caller takes a new snapshot.
    fn commit(
        &mut self,
        mut change: Change,
        snapshot: &RulesetSnapshot,
        report: &mut FirewallReport,
    ) -> Result<bool, FirewallError> {
        if change.transaction.is_empty() {
            return Ok(true);
        }
        match self.nft.commit(change.transaction.only_at(snapshot.generation)) {
            Ok(()) => report.repaired.append(&mut change.repairs),
            Err(error) if error.is_stale() || error.outcome_unknown() => {}
            Err(error) => return Err(error.into()),
        }
        Ok(false)
    }

    fn concerns(&self, event: &Event) -> bool {
        match event {
            Event::Overrun => true,
            Event::Committed(Commit { complete, changes, .. }) => {
                !complete || changes.iter().any(|change| self.is_ours(change))
            }
        }
    }

    fn is_ours(&self, change: &Heard) -> bool {
        let flannel = [xtables::FLANNEL_POSTROUTING, gate::FLANNEL_FORWARD, "POSTROUTING"];
        native::tables().contains(&change.table)
            || change.base
            || self.watched.contains(&(change.table.clone(), change.name.clone()))
            // A foreign table that changed as a whole may have held our accepts, or may no longer
            // be dormant.
            || change.object == Object::Table && !change.gone
            || self.role.is_iptables() && flannel.contains(&change.name.as_str())
    }
}

// === impl RulesetSnapshot ===

impl RulesetSnapshot {
    fn read(nft: &mut Nft) -> Result<Self, FirewallError> {
        Ok(Self { generation: nft.generation()?, tables: nft.tables()?, chains: nft.all_chains()? })
    }
}
