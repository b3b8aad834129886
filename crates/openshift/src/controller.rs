//! OpenShift's data path while its server runs: the table of verdicts, the tunnel device, routes,
//! and pods' host ends. The agent calls it when another program may have changed them.

use std::sync::{Arc, Mutex, Weak};

use russet_overlay::{ReconcileReport, Refusal};
use tokio::sync::watch;

use crate::data_path::Sdn;
use crate::{LOG, lock};

/// The agent's drift repair, as the server sees it. Its methods block.
pub trait DriftRepair: Clone + Send + 'static {
    /// Keeps the data path for as long as its server exists. Returns why the path is not in force,
    /// or None once it is.
    fn keep(&self, path: &Arc<Mutex<Sdn>>) -> watch::Receiver<Option<String>>;

    /// Compares the data path now, and restores it.
    fn reconcile(&self);
}

/// The server's data path, if there is one.
#[derive(Default)]
pub struct DataPathController(Option<KeptPath>);

struct KeptPath {
    /// Owned by the server: a path that the server has dropped is not restored.
    path: Weak<Mutex<Sdn>>,
    /// Why the path is not in force; None once it is.
    problem: watch::Sender<Option<String>>,
    /// Refusals that were logged.
    refused: Vec<Refusal>,
    /// The path was in force once. A later difference was made by another program.
    settled: bool,
}

// === impl DataPathController ===

impl DataPathController {
    /// Keeps this path from now on.
    pub fn keep(&mut self, path: &Arc<Mutex<Sdn>>) -> watch::Receiver<Option<String>> {
        let (problem, problems) = watch::channel(Some("not yet".to_owned()));
        self.0 = Some(KeptPath { path: Arc::downgrade(path), problem, refused: Vec::new(), settled: false });
        problems
    }

    /// Brings the path to the state that the server wants. Returns what was drift, and whether
    /// everything succeeded.
    pub fn reconcile(&mut self) -> (ReconcileReport, bool) {
        let Some((kept, path)) = self.0.as_mut().and_then(KeptPath::upgraded) else {
            return (ReconcileReport::default(), true);
        };
        let mut report = lock(&path).restore();
        for device in &report.replaced {
            tracing::warn!(target: LOG, device, "a device was replaced; packets were lost meanwhile");
        }
        let succeeded = report.failed == 0;
        kept.log(&report);
        kept.warn(std::mem::take(&mut report.refusals));
        let drift = if kept.settled { report } else { ReconcileReport::default() };
        kept.settled |= succeeded;
        (drift, succeeded)
    }

    /// The differences as text. Changes nothing.
    pub fn differences(&mut self) -> Result<Vec<String>, String> {
        let Some((_, path)) = self.0.as_mut().and_then(KeptPath::upgraded) else { return Ok(Vec::new()) };
        let report = lock(&path).differences();
        report.errors.first().map_or(Ok(report.what), |error| Err(format!("OpenShift's data path: {error}")))
    }
}

// === impl KeptPath ===

impl KeptPath {
    fn upgraded(&mut self) -> Option<(&mut Self, Arc<Mutex<Sdn>>)> {
        let path = self.path.upgrade()?;
        Some((self, path))
    }

    /// Logs each refusal once.
    fn warn(&mut self, refused: Vec<Refusal>) {
        for refusal in refused.iter().filter(|refusal| !self.refused.contains(refusal)) {
            tracing::warn!(target: LOG, "OpenShift's data path: {refusal}");
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
