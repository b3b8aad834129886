//! Queries the datastore when the daemon starts, and logs why there is no answer yet. Called by
//! `run`.

use std::future::Future;
use std::time::Duration;

use russet_lease::LeaseError;
use russet_store_etcd::Reach;
use tokio::time::Instant;

/// Retry policy for queries of the datastore at the start.
#[derive(Clone, Default)]
pub(crate) struct StartupQuery {
    /// Returns the first failure instead of retrying: a check must not wait.
    pub(crate) once: bool,
    /// Knows why etcd does not answer.
    pub(crate) etcd: Option<Reach>,
}

/// flannel's pause between attempts, for the configuration and for a lease.
const RETRY: Duration = Duration::from_secs(1);
/// A missing answer counts as a failure after this time, and then at the longer interval: etcd's client
/// may wait longer for a member.
const FIRST_SILENCE: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(3);

/// The failures of one query, and which of them were logged.
#[derive(Default)]
struct FailureLog {
    failures: u64,
    last_logged: Option<Instant>,
    /// Errors that were logged at once, because each was new.
    known: Vec<String>,
}

/// Interval of the log lines about errors that are known.
const REPEAT: Duration = Duration::from_secs(30);
/// How many different errors are logged at once; an error with a changing number in it must not fill the log.
const KNOWN_MAX: usize = 4;

// === impl FailureLog ===

impl FailureLog {
    fn failed(&mut self, what: &str, error: String) {
        if self.is_logged(&error) {
            tracing::error!(error, failures = self.failures, "waiting for {what}");
        }
    }

    /// Counts a failure. True if it is logged: the first one, a new error, and otherwise one every [`REPEAT`].
    fn is_logged(&mut self, error: &str) -> bool {
        self.failures += 1;
        let is_new = self.known.len() < KNOWN_MAX && !self.known.iter().any(|known| known == error);
        let is_due = self.last_logged.is_none_or(|logged| logged.elapsed() >= REPEAT);
        if is_new {
            self.known.push(error.to_owned());
        }
        if is_new || is_due {
            self.last_logged = Some(Instant::now());
        }
        is_new || is_due
    }
}

// === impl StartupQuery ===

impl StartupQuery {
    /// Queries the datastore until it answers or fails for good. Errors and missing answers are
    /// logged meanwhile.
    pub(crate) async fn until<T, Asked>(&self, ask: impl Fn() -> Asked, what: &str) -> Result<T, LeaseError>
    where
        Asked: Future<Output = Result<T, LeaseError>>,
    {
        let mut log = FailureLog::default();
        loop {
            let request = ask();
            tokio::pin!(request);
            let mut silence = FIRST_SILENCE;
            let answer = loop {
                match tokio::time::timeout(silence, &mut request).await {
                    Ok(answer) => break answer,
                    Err(_elapsed) => log.failed(what, self.reason()),
                }
                silence = SILENCE;
            };
            match answer {
                Err(error) if error.is_retryable() && !self.once => {
                    log.failed(what, error.to_string());
                    tokio::time::sleep(RETRY).await;
                }
                settled => return settled,
            }
        }
    }

    /// The reason why there is no answer.
    pub(crate) fn reason(&self) -> String {
        let known = self.etcd.as_ref().and_then(Reach::reasons);
        known.map_or_else(
            || "the datastore does not answer".to_owned(),
            |reasons| format!("the datastore does not answer: {reasons}"),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn away() -> LeaseError {
        LeaseError::NoConfig { at: "/network/config".to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_retries_until_there_is_an_answer_and_a_check_returns_the_first_error() {
        let requests = Cell::new(0);
        let ask = async || {
            requests.set(requests.get() + 1);
            if requests.get() < 4 { Err(away()) } else { Ok(requests.get()) }
        };
        assert_eq!(StartupQuery::default().until(ask, "the answer").await.unwrap(), 4);
        requests.set(0);
        let check = StartupQuery { once: true, etcd: None };
        assert!(check.until(ask, "the answer").await.is_err() && requests.get() == 1);
        assert_eq!(check.reason(), "the datastore does not answer");
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_error_is_logged_at_once_and_then_one_line_every_half_minute() {
        let mut log = FailureLog::default();
        let mut logged = 0;
        // An hour of attempts, 1.6 s apart, whose errors alternate.
        for attempt in 0..2250_u32 {
            let reason = ["refused", "the certificate has expired"][attempt as usize % 2];
            let is_logged = log.is_logged(reason);
            assert!(attempt > 1 || is_logged, "each error at once");
            logged += u32::from(is_logged);
            tokio::time::advance(Duration::from_millis(1600)).await;
        }
        assert!((110..=122).contains(&logged), "{logged} lines in an hour");
        let mut log = FailureLog::default();
        let lines = (0..1000).filter(|port| log.is_logged(&format!("refused from port {port}"))).count();
        assert_eq!(lines, KNOWN_MAX);
    }
}
