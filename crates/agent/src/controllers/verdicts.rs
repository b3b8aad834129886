//! The verdicts of pods' interfaces (table `inet russet-policy`). Without them every packet is
//! accepted, so they are restored before everything else. Their comparison runs on the keeper's
//! thread, because its commit may wait for those of other programs. Used by `controllers`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use russet_addr::IfName;
use russet_attach::{Dialect, Wired};
use russet_journal::EndpointTable;
use russet_linux::watch::WakeHandle;
use russet_overlay::{OverlayError, ReconcileReport};
use russet_policy::{Answer, Keeper, KeeperError, Pending, TABLE, Verdict, VerdictReport, VerdictState};

use crate::drift::Dirty;

/// The keeper of the table, and the interfaces that it covers.
pub(super) struct Verdicts {
    keeper: Keeper,
    endpoints: EndpointTable,
    answer_ready: Arc<WakeHandle>,
}

/// A comparison in progress. Its commit may wait for other programs' commits; links and routes do
/// not wait for it.
pub(super) struct PendingComparison {
    /// None on a kernel without nf_tables.
    answer: Option<Result<Pending<VerdictReport>, KeeperError>>,
    pub dirty: Option<Dirty>,
    pub began: Instant,
    /// The answer arrives by this time in any case; mostly `answer_ready` is called before.
    pub limit: Instant,
}

/// The result of a comparison.
pub(super) struct VerdictResult {
    pub report: ReconcileReport,
    /// When it was known.
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
    pub fn new(keeper: Keeper, endpoints: EndpointTable, answer_ready: Arc<WakeHandle>) -> Self {
        Self { keeper, endpoints, answer_ready }
    }

    /// Starts to restore what is missing. Does nothing on a kernel without nf_tables.
    pub fn start(&self, dirty: Option<Dirty>) -> PendingComparison {
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
        let endpoints = self.endpoints.attached();
        for name in endpoints.iter().filter_map(|it| verdict_name(it.wired.as_deref()?)) {
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
        let busy = Duration::ZERO;
        let Some(pending) = self.answer.take() else {
            return Some(VerdictResult { report: ReconcileReport::default(), done: Instant::now(), busy });
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
        Some(VerdictResult { report: report(result), done, busy })
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

fn report(result: Result<VerdictReport, KeeperError>) -> ReconcileReport {
    let mut report = ReconcileReport::default();
    match result {
        Ok(VerdictReport { structure, added, removed, sources }) => {
            report.note(structure.iter().map(|fault| format!("repair table {TABLE}: {fault}")));
            report.note(added.iter().map(|name| format!("put the verdict of {name}")));
            report.note(removed.iter().map(|name| format!("remove the verdict of {name}")));
            report.note(sources.iter().map(|name| format!("put the sources of {name}")));
            let changed = usize::from(structure.is_some()) + added.len() + removed.len() + sources.len();
            (0..changed).for_each(|_| report.count_as("verdict"));
        }
        Err(error) => {
            report.note([format!("restore table {TABLE}")]);
            report.fail(OverlayError::Other(error.into()));
        }
    }
    report
}
