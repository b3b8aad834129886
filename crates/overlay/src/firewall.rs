//! The firewall of the flannel daemon (flannel.md section 7): which traffic takes the node's address on its way out, and
//! that pods' packets are forwarded. `flanneld` opens it, applies what it wants after each change, and waits in
//! [`Firewall::changed`] for somebody else's hand.
//!
//! Tables and chains have flannel's own names, so that whichever daemon comes next adopts or replaces them and nothing is
//! there twice. What is right is never touched; what is not is replaced in one transaction, so that no packet falls into a gap.

mod native;
mod report;
mod rules;

use std::time::Duration;

use russet_addr::IpNet;
use russet_nft::monitor::{Commit, Event};
use russet_nft::{Monitor, Nft};

pub use report::{FirewallError, Repair, Report};

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
}

/// The firewall of the network namespace in which this was opened; use it from threads of that namespace only.
#[derive(Debug)]
pub struct Firewall {
    mode: Mode,
    nft: Nft,
    monitor: Monitor,
    /// Our name in what the monitor hears.
    port: u32,
    /// The generation at which the ruleset was seen to be as wanted.
    seen: Option<(u32, Wanted)>,
}

/// A check that is overtaken by others' commits is repeated this often: each repetition means that somebody else got ahead.
const TRIES: usize = 8;

// === impl Firewall ===

impl Firewall {
    /// Opens it in the calling thread's network namespace and begins to listen; changes nothing.
    pub fn open(mode: Mode) -> Result<Self, FirewallError> {
        let monitor = Monitor::open()?;
        let nft = Nft::open()?;
        let port = nft.port().map_err(FirewallError::Port)?;
        Ok(Self { mode, nft, monitor, port, seen: None })
    }

    /// Where the rules are.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Compares what is there with what should be, and repairs the difference. Does nothing where nothing is wrong.
    pub fn apply(&mut self, wanted: &Wanted) -> Report {
        let mut report = Report::default();
        for _ in 0..TRIES {
            match self.attempt(wanted, &mut report) {
                Ok(true) => return report,
                Ok(false) => {}
                Err(error) => {
                    report.failed.push(error);
                    return report;
                }
            }
        }
        report.failed.push(FirewallError::Overtaken(TRIES));
        report
    }

    /// Waits until somebody else changed what may concern us, and returns true; false when `timeout` passed first.
    pub fn changed(&mut self, timeout: Duration) -> Result<bool, FirewallError> {
        let end = std::time::Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(std::time::Instant::now());
            match self.monitor.next(left)? {
                None => return Ok(false),
                Some(event) if self.concerns(&event) => break,
                Some(_) => {}
            }
        }
        // One look covers all that has happened until now.
        while self.monitor.next(Duration::ZERO)?.is_some() {}
        Ok(true)
    }

    /// Removes everything that is ours.
    pub fn withdraw(&mut self) -> Report {
        self.apply(&Wanted::default())
    }

    /// Removes what an earlier run, of us or of flannel, left for another network or subnet. Call it after the first `apply`.
    pub fn recycle(&mut self, _previous: &Wanted) -> Report {
        // The tables were replaced as a whole.
        Report::default()
    }

    /// One look and one transaction; false when somebody else committed in between.
    fn attempt(&mut self, wanted: &Wanted, report: &mut Report) -> Result<bool, FirewallError> {
        let generation = self.nft.generation()?;
        if self.seen.as_ref().is_some_and(|(seen, was)| *seen == generation && was == wanted) {
            return Ok(true);
        }
        let mut change = native::difference(&mut self.nft, wanted)?;
        if change.transaction.is_empty() {
            self.seen = Some((generation, wanted.clone()));
            return Ok(true);
        }
        match self.nft.commit(change.transaction.only_at(generation)) {
            Ok(()) => report.repaired.append(&mut change.repairs),
            Err(error) if error.is_stale() || error.outcome_unknown() => {}
            Err(error) => return Err(error.into()),
        }
        // Looks again: what was sent is what is there.
        Ok(false)
    }

    fn concerns(&self, event: &Event) -> bool {
        match event {
            Event::Overrun => true,
            Event::Committed(commit) if commit.port == self.port => false,
            Event::Committed(commit) => self.touches(commit),
        }
    }

    fn touches(&self, commit: &Commit) -> bool {
        native::tables().iter().any(|table| commit.touches(table))
    }
}
