//! The requests that are in progress and the last that have ended, for people who look at the agent's page. In memory only; what has to survive
//! is in the journal.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};

use russet_cni_spec::{Call, CniError, CniResult, Request};
use russet_model::time::rfc3339;
use russet_view::page::OperationRow;

use crate::drift::lock;

/// Requests that have ended and are kept: the pods of a node that is drained.
const ENDED_MAX: usize = 100;
/// Rows in one page, of each kind.
const SHOWN_MAX: usize = 50;
/// Requests in progress that are kept: more than the agent works on at a time.
const OPEN_MAX: usize = 1024;
/// A reason may name any text of the kernel or of the store.
const REASON_MAX_CHARS: usize = 300;
/// The interface that every container has; runtimes attach it before each pod's network.
const LOOPBACK: &str = "lo";

/// The requests. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct RecentOperations(Arc<Mutex<Recent>>);

#[derive(Debug, Default)]
struct Recent {
    last: u64,
    open: BTreeMap<u64, OperationRow>,
    ended: VecDeque<OperationRow>,
}

/// A request in progress. It is interrupted if this is dropped before it has ended.
#[derive(Debug)]
pub(super) struct Running {
    recent: RecentOperations,
    number: u64,
    began: Instant,
}

// === impl RecentOperations ===

impl RecentOperations {
    /// A request begins. None for those that every runtime makes all the time.
    pub(super) fn begin(&self, plugin: &str, request: &Request) -> Option<Running> {
        let (verb, target) = match &request.env.call {
            Call::Add(target) => ("ADD", Some(target)),
            Call::Del(target) => ("DEL", Some(target)),
            Call::Check(target) => ("CHECK", Some(target)),
            Call::Gc => ("GC", None),
            Call::Status => return None,
        };
        if target.is_some_and(|target| target.id.ifname.as_str() == LOOPBACK) {
            return None;
        }
        let pod = request.env.args.pod().map(|pod| format!("{}/{}", pod.namespace, pod.name));
        let interface = target.map(|target| target.id.to_string());
        let subject = match (pod, interface) {
            (Some(pod), Some(interface)) => format!("{pod} ({interface})"),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => request.config.name.to_string(),
        };
        self.start(OperationRow {
            began: rfc3339(SystemTime::now()),
            verb: verb.to_owned(),
            plugin: plugin.to_owned(),
            subject,
            outcome: None,
            ms: None,
        })
    }

    fn start(&self, row: OperationRow) -> Option<Running> {
        let mut recent = lock(&self.0);
        if recent.open.len() >= OPEN_MAX {
            return None;
        }
        recent.last += 1;
        let number = recent.last;
        recent.open.insert(number, row);
        drop(recent);
        Some(Running { recent: self.clone(), number, began: Instant::now() })
    }

    /// Those in progress, and then those that have ended, each with the newest first.
    pub fn rows(&self) -> Vec<OperationRow> {
        let recent = lock(&self.0);
        let open = recent.open.values().rev().take(SHOWN_MAX);
        open.chain(recent.ended.iter().take(SHOWN_MAX)).cloned().collect()
    }

    fn end(&self, number: u64, outcome: String, began: Instant) {
        let mut recent = lock(&self.0);
        let Some(row) = recent.open.remove(&number) else { return };
        let ms = u64::try_from(began.elapsed().as_millis()).ok();
        recent.ended.push_front(OperationRow { outcome: Some(outcome), ms, ..row });
        recent.ended.truncate(ENDED_MAX);
    }
}

// === impl Running ===

impl Running {
    pub(super) fn ended(self, done: &Result<Option<CniResult>, CniError>) {
        let outcome = match done {
            Ok(_) => "done".to_owned(),
            Err(error) => error.to_string().chars().take(REASON_MAX_CHARS).collect(),
        };
        self.recent.end(self.number, outcome, self.began);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // No effect if it has ended.
        self.recent.end(self.number, "interrupted".to_owned(), self.began);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(subject: &str) -> OperationRow {
        let text = || "x".to_owned();
        OperationRow {
            began: text(),
            verb: text(),
            plugin: text(),
            subject: subject.to_owned(),
            outcome: None,
            ms: None,
        }
    }

    #[test]
    fn those_in_progress_come_first_and_none_stays_for_ever() {
        let recent = RecentOperations::default();
        let first = recent.start(row("first")).unwrap();
        let second = recent.start(row("second")).unwrap();
        drop(recent.start(row("third")).unwrap());
        let subjects = || recent.rows().into_iter().map(|row| (row.subject, row.outcome)).collect::<Vec<_>>();
        let entry = |subject: &str, outcome: Option<&str>| (subject.to_owned(), outcome.map(str::to_owned));
        assert_eq!(
            subjects(),
            [entry("second", None), entry("first", None), entry("third", Some("interrupted"))]
        );
        second.ended(&Ok(None));
        first.ended(&Err(CniError::internal("no", "\u{e9}".repeat(9000))));
        let ended = subjects();
        assert_eq!(ended[1], entry("second", Some("done")));
        assert_eq!(ended[0].1.as_ref().unwrap().chars().count(), REASON_MAX_CHARS);
        for n in 0..1000 {
            recent.start(row(&n.to_string())).unwrap().ended(&Ok(None));
        }
        assert_eq!(lock(&recent.0).ended.len(), ENDED_MAX);
        assert_eq!(lock(&recent.0).open.len(), 0);
        assert_eq!(recent.rows().len(), SHOWN_MAX);
        let open: Vec<_> = (0..OPEN_MAX).map(|n| recent.start(row(&n.to_string())).unwrap()).collect();
        assert!(recent.start(row("more")).is_none());
        drop(open);
        assert_eq!(lock(&recent.0).open.len(), 0);
    }
}
