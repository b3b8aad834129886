//! Tracks whether the cluster answers. Both engines report every exchange here; the log gets one
//! line when the cluster is lost and one when it is back, independent of the number of failing
//! calls and watches.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::failure::{Class, Failure};

/// Whether a cluster answers, and why not. Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct Reach(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Whether the last exchange was answered; then a further answer changes nothing and takes no
    /// lock.
    fine: AtomicBool,
    trouble: Mutex<Trouble>,
}

#[derive(Debug, Default)]
struct Trouble {
    /// Whether it ever answered. The caller reports a start without etcd.
    answered: bool,
    /// The first failure since the last answer.
    since: Option<Instant>,
    warned: bool,
    /// The last error of each endpoint.
    reasons: BTreeMap<String, String>,
}

/// A cluster without an answer for this long counts as lost. Longer than an election and a member's
/// restart.
const LOST_AFTER: Duration = Duration::from_secs(10);

// === impl Reach ===

impl Reach {
    /// Whether attempts have failed for at least 10 s.
    pub fn is_lost(&self) -> bool {
        self.0.trouble().since.is_some_and(|since| since.elapsed() >= LOST_AFTER)
    }

    /// Why endpoints did not answer, since the last answer of any of them.
    pub fn reasons(&self) -> Option<String> {
        let trouble = self.0.trouble();
        (!trouble.reasons.is_empty()).then(|| trouble.text())
    }

    /// A member answered, possibly with a refusal.
    pub(crate) fn answered(&self) {
        if self.0.fine.load(Ordering::Relaxed) {
            return;
        }
        let mut trouble = self.0.trouble();
        self.0.fine.store(true, Ordering::Relaxed);
        let (since, warned) = (trouble.since.take(), trouble.warned);
        *trouble = Trouble { answered: true, ..Trouble::default() };
        drop(trouble);
        if let (Some(since), true) = (since, warned) {
            tracing::warn!(seconds = since.elapsed().as_secs(), "etcd answers again");
        }
    }

    /// An exchange failed.
    pub(crate) fn failed(&self, failure: &Failure) {
        if !matches!(failure.class, Class::NotDone | Class::Ambiguous) {
            return self.answered();
        }
        let mut trouble = self.0.trouble();
        self.0.fine.store(false, Ordering::Relaxed);
        let since = *trouble.since.get_or_insert_with(Instant::now);
        let (endpoint, said) = failure.error.parts();
        trouble.reasons.insert(endpoint.to_owned(), said.to_owned());
        if trouble.answered && !trouble.warned && since.elapsed() >= LOST_AFTER {
            trouble.warned = true;
            let reasons = trouble.text();
            drop(trouble);
            tracing::warn!(
                error = reasons,
                "etcd has not answered for 10 s: nothing new is learned or written"
            );
        }
    }
}

// === impl Shared ===

impl Shared {
    fn trouble(&self) -> MutexGuard<'_, Trouble> {
        // Every change leaves the value consistent, so poisoning does not matter.
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Trouble ===

impl Trouble {
    fn text(&self) -> String {
        let reasons = self.reasons.iter().map(|(endpoint, said)| format!("{endpoint}: {said}"));
        reasons.collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(endpoint: &str) -> Failure {
        Failure::unreachable(endpoint, "connection refused")
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_is_lost_after_ten_seconds_of_failures_until_the_first_answer() {
        let reach = Reach::default();
        reach.answered();
        reach.failed(&refused("http://a:1"));
        assert!(!reach.is_lost());
        tokio::time::advance(LOST_AFTER / 2).await;
        reach.failed(&refused("http://b:1"));
        assert_eq!(
            reach.reasons().unwrap(),
            "http://a:1: connection refused; http://b:1: connection refused"
        );
        tokio::time::advance(LOST_AFTER / 2).await;
        assert!(reach.is_lost() && !reach.0.trouble().warned);
        reach.failed(&refused("http://a:1"));
        assert!(reach.0.trouble().warned);
        let refusal = Failure::new(Class::Refused, "http://a:1", "permission denied".to_owned(), false);
        reach.failed(&refusal);
        assert!(!reach.is_lost() && reach.reasons().is_none() && !reach.0.trouble().warned);
    }

    #[tokio::test(start_paused = true)]
    async fn an_election_is_no_loss_and_a_start_without_etcd_logs_no_warning() {
        let reach = Reach::default();
        for _ in 0..30 {
            reach.failed(&refused("http://a:1"));
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert!(reach.is_lost() && !reach.0.trouble().warned);
        reach.answered();
        for _ in 0..10 {
            reach.failed(&refused("http://a:1"));
            tokio::time::advance(LOST_AFTER - Duration::from_secs(1)).await;
            reach.answered();
            assert!(!reach.is_lost() && !reach.0.trouble().warned);
        }
    }
}
