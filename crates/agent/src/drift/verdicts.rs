//! The verdicts of pods' interfaces (table `inet russet-policy`). Without them every packet is
//! accepted, so they are restored before everything else. Used by `drift`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use russet_addr::IfName;
use russet_attach::{Dialect, Wired};
use russet_linux::watch::WakeHandle;
use russet_policy::{Answer, Keeper, KeeperError, Pending, TABLE, Verdict, VerdictReport, VerdictState};

use super::attached_interfaces::AttachedInterfaces;
use super::{DirtyParts, Restored};

/// The keeper of the table, and the interfaces that it covers.
pub(super) struct Verdicts {
    keeper: Keeper,
    interfaces: AttachedInterfaces,
    answer_ready: Arc<WakeHandle>,
}

/// A comparison in progress. Its commit may wait for other programs' commits; links and routes do
/// not wait for it.
pub(super) struct PendingComparison {
    /// None on a kernel without nf_tables.
    answer: Option<Result<Pending<VerdictReport>, KeeperError>>,
    pub dirty: Option<DirtyParts>,
    pub began: Instant,
    /// The answer arrives by this time in any case; mostly `answer_ready` is called before.
    pub limit: Instant,
}

/// The result of a comparison.
pub(super) struct VerdictResult {
    pub restored: Restored,
    /// No difference is left.
    pub succeeded: bool,
    /// When that was so.
    pub done: Instant,
    /// Processor time of the keeper's thread.
    pub busy: Duration,
}

/// Limit for a commit, which waits for those of all other programs. A longer wait means that the
/// kernel is in trouble; the next comparison tries again.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(10);

// === impl Verdicts ===

impl Verdicts {
    /// `answer_ready` is called when an answer has arrived.
    pub fn new(keeper: Keeper, interfaces: AttachedInterfaces, answer_ready: Arc<WakeHandle>) -> Self {
        Self { keeper, interfaces, answer_ready }
    }

    /// Starts to restore what is missing. Does nothing on a kernel without nf_tables.
    pub fn start(&self, dirty: Option<DirtyParts>) -> PendingComparison {
        let began = Instant::now();
        let limit = began + COMMIT_TIMEOUT;
        let supported = !self.keeper.is_unsupported();
        let answer_ready = Arc::clone(&self.answer_ready);
        let answer =
            supported.then(|| self.keeper.begin_reconcile(limit, Arc::new(move || answer_ready.call())));
        PendingComparison { answer, dirty, began, limit }
    }

    /// The differences as text. Changes nothing.
    pub fn differences(&self) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        if self.keeper.is_unsupported() {
            return Ok(lines);
        }
        for name in self.interfaces.entries().iter().filter_map(|entry| verdict_name(&entry.wired)) {
            let verdict_state = self.keeper.verdict_state(name.clone(), Instant::now() + COMMIT_TIMEOUT);
            match verdict_state.map_err(|error| error.to_string())? {
                None | Some(VerdictState::InForce(Verdict::Allow)) => {}
                // The same fault applies to all interfaces.
                Some(VerdictState::Unjudged(fault)) => {
                    return Ok(vec![format!("repair table {TABLE}: {fault}")]);
                }
                Some(found) => lines.push(format!("put the verdict of {name}, which has: {found}")),
            }
        }
        Ok(lines)
    }
}

// === impl PendingComparison ===

impl PendingComparison {
    /// The result, once it is known.
    pub fn poll(&mut self) -> Option<VerdictResult> {
        let (restored, busy) = (Restored::default(), Duration::ZERO);
        let Some(pending) = self.answer.take() else {
            return Some(VerdictResult { restored, succeeded: true, done: Instant::now(), busy });
        };
        let Answer { result, at: done, busy } = match pending {
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
            Ok(report) => (Restored::from_verdicts(&report), true),
            Err(error) => (Restored::failed(&format!("restore table {TABLE}"), error.to_string()), false),
        };
        Some(VerdictResult { restored, succeeded, done, busy })
    }
}

/// The interface's name if it has a verdict here. Other tables cover ports of bridges and what
/// Calico's plugin wires.
fn verdict_name(wired: &Wired) -> Option<IfName> {
    match wired {
        Wired::Routed(attachment) if attachment.dialect == Dialect::Native => {
            Some(attachment.host_name.clone())
        }
        _ => None,
    }
}

// === impl Restored ===

impl Restored {
    fn from_verdicts(report: &VerdictReport) -> Self {
        let VerdictReport { structure, added, removed, sources } = report;
        let table = structure.iter().map(|fault| format!("repair table {TABLE}: {fault}"));
        let put = added.iter().map(|name| format!("put the verdict of {name}"));
        let gone = removed.iter().map(|name| format!("remove the verdict of {name}"));
        let sources = sources.iter().map(|name| format!("put the sources of {name}"));
        let what: Vec<String> = table.chain(put).chain(gone).chain(sources).collect();
        let kinds = vec![("verdict", what.len() as u64)];
        Self { what, kinds, errors: Vec::new() }
    }
}
