//! The firewall of the flannel daemon (flannel.md section 7): which traffic takes the node's address on its way out, and
//! that pods' packets are forwarded. `flanneld` opens it, applies what it wants after each change, and waits in
//! [`Firewall::changed`] for somebody else's hand. The agent, which has rules of its own elsewhere, opens it for
//! [the exceptions](Firewall::exceptions) alone.
//!
//! Tables and chains have flannel's own names, so that whichever daemon comes next adopts or replaces them and nothing is
//! there twice. What is right is never touched; what is not is replaced in one transaction, so that no packet falls into a gap.

mod command;
mod compat;
mod foreign;
mod gate;
mod leftovers;
mod legacy;
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

pub use legacy::{change_legacy_nat, legacy_nat};
pub use report::{Culprit, FirewallError, Repair, Report};
pub use survey::survey;

/// What the rules are made from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The pod networks of the cluster, of both families.
    pub networks: Vec<IpNet>,
    /// This node's subnets of them.
    pub own: Vec<IpNet>,
    /// Pods' traffic to outside of the networks takes the node's address.
    pub masquerade: bool,
    /// Ports of masqueraded flows are chosen at random, not kept where possible.
    pub random_fully: bool,
    /// Packets from and to the networks are forwarded.
    pub forward: bool,
}

/// Where the rules are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// In tables of nf_tables, over netlink.
    Nft,
    /// In flannel's chains of iptables, made with the programs that are installed, of whichever flavour.
    Iptables,
}

/// Whose rules these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// The flannel daemon's.
    Flannel(Mode),
    /// The agent's, which are nowhere but in chains of others that drop what is forwarded; what flannel's daemons have is not ours.
    Agent,
}

/// The firewall of the network namespace in which this was opened; use it from threads of that namespace only.
#[derive(Debug)]
pub struct Firewall {
    role: Role,
    nft: Nft,
    monitor: Monitor,
    /// Our name in what the monitor hears.
    port: u32,
    /// The generation at which the ruleset was seen to be as wanted.
    seen: Option<(u32, Wanted)>,
    /// Chains of others of which every rule concerns us.
    watched: BTreeSet<(Table, String)>,
    compat: Compat,
    /// Rules of flannel's old versions were looked for.
    swept: bool,
    /// Tables that others own and that drop what they should not: told once, because nobody here can change it.
    owned: BTreeSet<Table>,
    /// Who made the last change that concerned us.
    culprit: Option<Culprit>,
    /// The kernel has nf_tables; where it has not there is still legacy iptables.
    nf_tables: bool,
}

/// The tables and chains of everybody, at one generation.
#[derive(Debug)]
pub(crate) struct Look {
    generation: u32,
    tables: Vec<TableInfo>,
    chains: Vec<ChainInfo>,
}

/// The comment of the agent's rules in others' chains.
pub const EXCEPTION_COMMENT: &str = "russet-agent forward";
/// Commits of others that are looked at in one go: whoever commits without end gets neither all of our time nor keeps us from our own orders.
const EVENTS_MAX: usize = 1000;
/// A check that is overtaken by others' commits is repeated this often: each repetition means that somebody else got ahead.
const TRIES: usize = 16;

// === impl Role ===

impl Role {
    /// The comment by which accepts in chains of others are known.
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
    /// Opens it in the calling thread's network namespace and begins to listen; changes nothing. In the mode of iptables its
    /// programs have to be there.
    pub fn open(mode: Mode) -> Result<Self, FirewallError> {
        Self::open_as(Role::Flannel(mode))
    }

    /// The same for exceptions alone: accepts of [`Wanted::networks`] in chains of others that drop what is forwarded, under a mark of their own. Nothing else
    /// is made, removed or masqueraded.
    pub fn exceptions() -> Result<Self, FirewallError> {
        Self::open_as(Role::Agent)
    }

    fn open_as(role: Role) -> Result<Self, FirewallError> {
        let monitor = Monitor::open()?;
        let mut nft = Nft::open()?;
        let port = nft.port().map_err(FirewallError::Port)?;
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
            port,
            seen: None,
            watched: BTreeSet::new(),
            compat,
            swept: false,
            owned: BTreeSet::new(),
            culprit: None,
            nf_tables,
        })
    }

    /// Compares what is there with what should be, and repairs the difference. Does nothing where nothing is wrong.
    ///
    /// What the other mode, or flannel itself in either of its modes, has left is removed once the new rules are in force.
    pub fn apply(&mut self, wanted: &Wanted) -> Report {
        let mut report = Report::default();
        // Only what is in nf_tables changes its generation.
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
        // Legacy iptables tells nobody about its changes.
        self.compat.legacy(wanted, self.role, &mut report);
        let culprit = self.culprit.take();
        report.culprit = if report.repaired.is_empty() { None } else { culprit };
        report
    }

    /// Waits until somebody else changed what may concern us, and returns true; false when `timeout` passed first, or a great many changes
    /// that do not concern us. Changes of legacy iptables are not heard: call `apply` every few seconds, too.
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
        // One look covers all that has happened until now.
        for _ in 0..EVENTS_MAX {
            if self.monitor.next(Duration::ZERO)?.is_none() {
                break;
            }
        }
        Ok(true)
    }

    /// Removes everything that is ours.
    pub fn withdraw(&mut self) -> Report {
        self.apply(&Wanted::default())
    }

    /// Removes what an earlier run, of us or of any version of flannel, left for `previous`, of which rules without chain and
    /// comment can be recognised only by their addresses. Call it once `apply` has put the new rules in force.
    pub fn recycle(&mut self, previous: &Wanted) -> Report {
        let mut report = Report::default();
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
            Role::Flannel(Mode::Nft) => match Look::at(&mut self.nft) {
                Ok(look) => {
                    let tables: Vec<Table> = look.tables.into_iter().map(|info| info.table).collect();
                    self.compat.sweep(&tables, &mut report);
                }
                Err(error) => report.failed.push(error),
            },
        }
        let wanted = self.seen.as_ref().map(|(_, wanted)| wanted.clone()).unwrap_or_default();
        self.compat.legacy(&wanted, self.role, &mut report);
        report
    }

    fn check(&mut self, wanted: &Wanted, report: &mut Report) {
        if self.role.is_iptables() {
            self.compat.chains(&mut self.nft, wanted, report);
        }
        let begun = report.failed.len();
        for _ in 0..TRIES {
            report.failed.truncate(begun);
            // In the mode of iptables that is the replacement of our tables.
            match self.attempt(wanted, begun == 0, report) {
                Ok(Some(generation)) => {
                    // With a failure everything is looked at again next time.
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

    /// One look, and a transaction for each difference. The generation of the look when there was nothing to do. What is no
    /// longer wanted stays while its replacement is not in force.
    fn attempt(
        &mut self,
        wanted: &Wanted,
        mut in_force: bool,
        report: &mut Report,
    ) -> Result<Option<u32>, FirewallError> {
        let look = Look::at(&mut self.nft)?;
        self.watched = foreign::watched(&look);
        let empty = Wanted::default();
        let native = if self.role == Role::Flannel(Mode::Nft) { wanted } else { &empty };
        let ours = self.role != Role::Agent;
        if in_force && ours {
            let change = native::difference(&mut self.nft, &look, native)?;
            if !self.commit(change, &look, report)? {
                return Ok(None);
            }
        }
        let mut owned = BTreeSet::new();
        for table in &look.tables {
            let change = foreign::difference(&mut self.nft, &look, table, wanted, self.role);
            match change.and_then(|change| self.commit(change, &look, report)) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                // The tables of others are not worth less for that.
                Err(FirewallError::Owned(table)) => drop(owned.insert(table)),
                Err(error) => {
                    in_force = false;
                    report.failed.push(error);
                }
            }
        }
        // Only now: a jump of flannel may have been what let packets through.
        if in_force && ours && (!self.role.is_iptables() || !self.compat.is_nft()) {
            let change = leftovers::difference(&mut self.nft, &look, !self.swept)?;
            if !self.commit(change, &look, report)? {
                return Ok(None);
            }
            self.swept = true;
        }
        report.failed.extend(owned.difference(&self.owned).cloned().map(FirewallError::Owned));
        self.owned = owned;
        Ok(Some(look.generation))
    }

    /// Whether there was nothing to commit; what was is looked at again, as is what somebody else overtook.
    fn commit(
        &mut self,
        mut change: Change,
        look: &Look,
        report: &mut Report,
    ) -> Result<bool, FirewallError> {
        if change.transaction.is_empty() {
            return Ok(true);
        }
        match self.nft.commit(change.transaction.only_at(look.generation)) {
            Ok(()) => report.repaired.append(&mut change.repairs),
            Err(error) if error.is_stale() || error.outcome_unknown() => {}
            Err(error) => return Err(error.into()),
        }
        Ok(false)
    }

    fn concerns(&self, event: &Event) -> bool {
        match event {
            Event::Overrun => true,
            Event::Committed(commit) if commit.port == self.port => false,
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
            // A whole table of others may have held accepts of ours, or sleep no more.
            || change.object == Object::Table && !change.gone
            || self.role.is_iptables() && flannel.contains(&change.name.as_str())
    }
}

// === impl Look ===

impl Look {
    fn at(nft: &mut Nft) -> Result<Self, FirewallError> {
        Ok(Self { generation: nft.generation()?, tables: nft.tables()?, chains: nft.all_chains()? })
    }
}
