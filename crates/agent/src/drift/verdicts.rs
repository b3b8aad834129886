//! The verdicts of pods' interfaces (`inet russet-policy`): without them nothing is kept apart, so they are put back before anything else. Used by `drift`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use russet_addr::IfName;
use russet_attach::{Dialect, Wired};
use russet_linux::watch::Call;
use russet_policy::{Answer, Keeper, KeeperError, Pending, Report, Standing, TABLE, Verdict};

use super::mirror::Mirror;
use super::{Restored, Suspicion};

/// The table's keeper, and the interfaces that it is about.
pub(super) struct Verdicts {
    keeper: Keeper,
    mirror: Mirror,
    bell: Arc<Call>,
}

/// A comparison that was asked for: a commit waits for everybody else's, and links and routes do not wait with it.
pub(super) struct Asked {
    /// None on a kernel without nf_tables.
    answer: Option<Result<Pending<Report>, KeeperError>>,
    pub suspicion: Option<Suspicion>,
    pub began: Instant,
    /// It is answered by then, whatever happens; mostly the bell rings before.
    pub limit: Instant,
}

/// What came of a comparison.
pub(super) struct Outcome {
    pub restored: Restored,
    /// All is right now.
    pub succeeded: bool,
    /// Since when.
    pub done: Instant,
    /// What it cost of a processor, by the keeper's thread.
    pub busy: Duration,
}

/// A commit waits for everybody else's; longer means that the kernel is in trouble, and the next look tries again.
const PATIENCE: Duration = Duration::from_secs(10);

// === impl Verdicts ===

impl Verdicts {
    /// `bell` is called when an answer is there.
    pub fn new(keeper: Keeper, mirror: Mirror, bell: Arc<Call>) -> Self {
        Self { keeper, mirror, bell }
    }

    /// Has put back what is missing: nothing where the kernel has no nf_tables.
    pub fn ask(&self, suspicion: Option<Suspicion>) -> Asked {
        let began = Instant::now();
        let limit = began + PATIENCE;
        let supported = !self.keeper.is_unsupported();
        let bell = Arc::clone(&self.bell);
        let answer = supported.then(|| self.keeper.begin_reconcile(limit, Arc::new(move || bell.call())));
        Asked { answer, suspicion, began, limit }
    }

    /// What differs, in words; changes nothing.
    pub fn differences(&self) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        if self.keeper.is_unsupported() {
            return Ok(lines);
        }
        for name in self.mirror.kept().iter().filter_map(|kept| judged(&kept.wired)) {
            let standing = self.keeper.standing(name.clone(), Instant::now() + PATIENCE);
            match standing.map_err(|error| error.to_string())? {
                None | Some(Standing::InForce(Verdict::Allow)) => {}
                // The same for all.
                Some(Standing::Unjudged(fault)) => {
                    return Ok(vec![format!("make table {TABLE} whole: {fault}")]);
                }
                Some(found) => lines.push(format!("put the verdict of {name}, which has: {found}")),
            }
        }
        Ok(lines)
    }
}

// === impl Asked ===

impl Asked {
    /// What came of it; none while that is not known.
    pub fn poll(&mut self) -> Option<Outcome> {
        let (restored, busy) = (Restored::default(), Duration::ZERO);
        let Some(asked) = self.answer.take() else {
            return Some(Outcome { restored, succeeded: true, done: Instant::now(), busy });
        };
        let Answer { result, at: done, busy } = match asked {
            Err(error) => Answer { result: Err(error), at: Instant::now(), busy },
            Ok(pending) => match pending.poll() {
                Some(answer) => answer,
                None => {
                    self.answer = Some(Ok(pending));
                    return None;
                }
            },
        };
        let (restored, succeeded) = match result {
            Ok(report) if report.is_clean() => (restored, true),
            Ok(report) => (Restored::of_verdicts(&report), true),
            Err(error) => (Restored::failed(&format!("make table {TABLE} right"), error.to_string()), false),
        };
        Some(Outcome { restored, succeeded, done, busy })
    }
}

/// Ports of bridges, and what Calico's plugin wires, are judged elsewhere.
fn judged(wired: &Wired) -> Option<IfName> {
    match wired {
        Wired::Routed(attachment) if attachment.dialect == Dialect::Native => {
            Some(attachment.host_name.clone())
        }
        _ => None,
    }
}

// === impl Restored ===

impl Restored {
    fn of_verdicts(report: &Report) -> Self {
        let Report { structure, added, removed, sources } = report;
        let table = structure.iter().map(|fault| format!("make table {TABLE} whole: {fault}"));
        let put = added.iter().map(|name| format!("put the verdict of {name}"));
        let gone = removed.iter().map(|name| format!("remove the verdict of {name}"));
        let sources = sources.iter().map(|name| format!("put the sources of {name}"));
        let what: Vec<String> = table.chain(put).chain(gone).chain(sources).collect();
        let kinds = vec![("verdict", what.len() as u64)];
        Self { what, kinds, errors: Vec::new() }
    }
}
