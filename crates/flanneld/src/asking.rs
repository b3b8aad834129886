//! Asks the datastore at the start, and says meanwhile why there is no answer. Called by `run`.

use std::future::Future;
use std::time::Duration;

use russet_lease::LeaseError;
use russet_store_etcd::Reach;

/// How the datastore is asked at the start.
#[derive(Clone, Default)]
pub(crate) struct Asking {
    /// The first failure ends it: a check does not wait.
    pub(crate) once: bool,
    /// Says why etcd does not answer while it is waited for.
    pub(crate) etcd: Option<Reach>,
}

/// flannel's pause between tries, for the configuration and for a lease.
const RETRY: Duration = Duration::from_secs(1);
/// After this long without any answer a line of the log says so, and again and again: etcd's client may wait for a member for longer.
const FIRST_SILENCE: Duration = Duration::from_secs(1);
const SILENCE: Duration = Duration::from_secs(3);

// === impl Asking ===

impl Asking {
    /// Asks the datastore until it has an answer or can never have one. What it says meanwhile, and that it says nothing, are lines of the log.
    pub(crate) async fn until<T, Asked>(&self, ask: impl Fn() -> Asked, what: &str) -> Result<T, LeaseError>
    where
        Asked: Future<Output = Result<T, LeaseError>>,
    {
        loop {
            let asked = ask();
            tokio::pin!(asked);
            let mut silence = FIRST_SILENCE;
            let answer = loop {
                match tokio::time::timeout(silence, &mut asked).await {
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

    /// Why there is no answer.
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
    async fn a_start_asks_until_there_is_an_answer_and_a_check_takes_the_first() {
        let asked = Cell::new(0);
        let ask = async || {
            asked.set(asked.get() + 1);
            if asked.get() < 4 { Err(away()) } else { Ok(asked.get()) }
        };
        assert_eq!(Asking::default().until(ask, "the answer").await.unwrap(), 4);
        asked.set(0);
        let check = Asking { once: true, etcd: None };
        assert!(check.until(ask, "the answer").await.is_err() && asked.get() == 1);
        assert_eq!(check.reason(), "the datastore does not answer");
    }
}
