//! OpenShift's data path while its server runs: the table of verdicts, the tunnel device, routes,
//! and pods' host ends. Used by `drift`.

use std::sync::{Arc, Mutex, Weak};

use russet_overlay::openshift::{Outcome, Sdn as DataPath};
use russet_overlay::{Kind, ReconcileReport, Refusal};
use tokio::sync::watch;

use super::{Restored, lock};

/// The server's data path, if there is one.
#[derive(Default)]
pub(super) struct Sdn(Option<KeptPath>);

struct KeptPath {
    /// Owned by the server: a path that the server has dropped is not restored.
    path: Weak<Mutex<DataPath>>,
    /// Why the path is not in force; None once it is.
    problem: watch::Sender<Option<String>>,
    /// Refusals that were logged.
    refused: Vec<Refusal>,
    /// The path was in force once. A later difference was made by another program.
    settled: bool,
}

// === impl Sdn ===

impl Sdn {
    /// Keeps this path from now on.
    pub fn keep(&mut self, path: &Arc<Mutex<DataPath>>) -> watch::Receiver<Option<String>> {
        let (problem, problems) = watch::channel(Some("not yet".to_owned()));
        self.0 = Some(KeptPath { path: Arc::downgrade(path), problem, refused: Vec::new(), settled: false });
        problems
    }

    /// Brings the path to the state that the server wants. The second value is false if some of
    /// that failed.
    pub fn restore(&mut self) -> (Restored, bool) {
        let Some((kept, path)) = self.0.as_mut().and_then(KeptPath::upgraded) else {
            return (Restored::default(), true);
        };
        let Outcome { report, what } = lock(&path).restore();
        super::overlay::note_replaced(&report);
        let succeeded = report.failed == 0;
        let restored = match kept.settled && !report.is_quiet() {
            true => Restored::from_sdn(what, &report),
            false => Restored::default(),
        };
        kept.settled |= succeeded;
        kept.log(&report);
        kept.warn(report.refusals);
        (restored, succeeded)
    }

    /// The differences as text. Changes nothing.
    pub fn differences(&mut self) -> Result<Vec<String>, String> {
        let Some((_, path)) = self.0.as_mut().and_then(KeptPath::upgraded) else { return Ok(Vec::new()) };
        let Outcome { report, what } = lock(&path).differences();
        report.errors.first().map_or(Ok(what), |error| Err(format!("OpenShift's data path: {error}")))
    }
}

// === impl KeptPath ===

impl KeptPath {
    fn upgraded(&mut self) -> Option<(&mut Self, Arc<Mutex<DataPath>>)> {
        let path = self.path.upgrade()?;
        Some((self, path))
    }

    /// Logs each refusal once.
    fn warn(&mut self, refused: Vec<Refusal>) {
        for refusal in refused.iter().filter(|refusal| !self.refused.contains(refusal)) {
            tracing::warn!("OpenShift's data path: {refusal}");
        }
        self.refused = refused;
    }

    /// Publishes the problem if it changed; an unchanged one wakes no receiver.
    fn log(&self, report: &ReconcileReport) {
        let error =
            || report.errors.first().map_or_else(|| "it was interrupted".to_owned(), ToString::to_string);
        let now = (report.failed > 0).then(error);
        self.problem.send_if_modified(|problem| {
            let news = *problem != now;
            *problem = now;
            news
        });
    }
}

// === impl Restored ===

impl Restored {
    fn from_sdn(what: Vec<String>, report: &ReconcileReport) -> Self {
        let kinds = report.changed.iter().map(|(kind, count)| (label(*kind), *count as u64)).collect();
        Self { what, kinds, errors: report.errors.iter().map(ToString::to_string).collect() }
    }
}

fn label(kind: Kind) -> &'static str {
    match kind {
        Kind::Device => "sdn_device",
        Kind::Address => "sdn_address",
        Kind::Neighbour => "sdn_neighbour",
        Kind::Route => "sdn_route",
        Kind::Sysctl => "sdn_sysctl",
        Kind::Nat => "sdn_table",
        // There are none.
        Kind::Fdb | Kind::Peer => kind.label(),
    }
}
