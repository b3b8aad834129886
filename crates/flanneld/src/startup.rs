//! Queries the datastore when the daemon starts, and logs why there is no answer yet. Called by
//! `run`.

use std::future::Future;
use std::time::Duration;

use russet_lease::LeaseError;
use russet_store_etcd::Reach;

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
/// The first log line about a missing answer comes after this time, and the next ones at the longer
/// interval: etcd's client may wait longer for a member.
const FIRST_SILENCE: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(3);

// === impl StartupQuery ===

impl StartupQuery {
    /// Queries the datastore until it answers or fails for good. Errors and missing answers are
    /// logged meanwhile.
    pub(crate) async fn until<T, Asked>(&self, ask: impl Fn() -> Asked, what: &str) -> Result<T, LeaseError>
    where
        Asked: Future<Output = Result<T, LeaseError>>,
    {
        loop {
            let request = ask();
            tokio::pin!(request);
            let mut silence = FIRST_SILENCE;
            let answer = loop {
                match tokio::time::timeout(silence, &mut request).await {
                    Ok(answer) => break answer,
                    Err(_elapsed) => tracing::warn!(error = self.reason(), "waiting for {what}"),
                }
                silence = SILENCE;
            };
            match answer {
                Err(error) if error.is_retryable() && !self.once => {
                    tracing::error!(%error, "waiting for {what}");
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
}
