//! Keeps the condition `russet.dev/Enforced` of ClusterNetworkPolicies: a policy says by itself what of it is not enforced, and what happens
//! instead. Of all kinds of policy only these have a status with conditions.
//!
//! Every agent of the cluster sees the same policies and would write the same. Each waits for a random part of a time that grows with the number
//! of nodes, reads the policy again, and writes only if no other agent has done so; a patch names the revision that it was made for.

mod book;
mod wanted;

use std::cell::{Cell, RefCell};
use std::time::{Duration, SystemTime};

use russet_kube::{CALL_DEADLINE, Client, KubeError, Piece, Request, Verb, absent_is_none};
use russet_sync::random;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Kind;
use super::source::backoff;
use book::Book;

pub use wanted::shown;

/// What keeps them.
pub struct Conditions {
    client: Client,
    book: RefCell<Book>,
    seen: Notify,
    /// A refusal was logged, and nothing has been written since.
    is_refusal_logged: Cell<bool>,
}

/// What became of a write.
#[derive(Debug)]
enum Outcome {
    Written,
    /// The policy is gone, or says what it should.
    Nothing,
    /// The server refuses to write the status of any policy.
    Closed(String),
    /// It refuses this.
    Refused(KubeError),
    Later(KubeError),
}

/// The version that signs what it has written.
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Over how long the agents of a large cluster are spread: those of 5,000 nodes then look 28 times a second.
const SPREAD_MAX: Duration = Duration::from_secs(180);
/// How often it is looked how many nodes the cluster has, by which the spread is shorter.
const LOOK: Duration = Duration::from_secs(5);
/// Attempts while other writers are faster.
const TRIES: usize = 3;
/// Before another attempt after a refusal, which an administrator has to end.
const REFUSED_PAUSE: Duration = Duration::from_secs(3600);
/// Limit of an answer: etcd stores at most 1.5 MiB of an object, and its JSON is larger.
const OBJECT_MAX_BYTES: usize = 8 << 20;

fn is_right(policy: &Value) -> bool {
    wanted::conditions(policy, VERSION, SystemTime::UNIX_EPOCH).is_none()
}

fn share() -> u32 {
    u32::try_from(random() >> 32).unwrap_or(u32::MAX)
}

// === impl Conditions ===

impl Conditions {
    pub fn new(client: Client) -> Self {
        Self { client, book: RefCell::default(), seen: Notify::new(), is_refusal_logged: Cell::new(false) }
    }

    /// Takes what the watch of the policies says.
    pub fn see(&self, piece: &Piece<Value>) {
        self.book.borrow_mut().see(piece, Instant::now(), share());
        self.seen.notify_one();
    }

    /// Writes what is due. Never returns.
    pub async fn run(&self) {
        let mut backoff = backoff();
        loop {
            let next = self.next();
            match next {
                None => self.seen.notified().await,
                Some((at, name)) if at <= Instant::now() => {
                    self.book.borrow_mut().begin(&name);
                    match self.write(&name).await {
                        Outcome::Later(error) => {
                            tracing::debug!(policy = name, %error, "the policy's status is not written yet");
                            self.again(&name, backoff.pause());
                        }
                        outcome => {
                            backoff.reset();
                            self.note(&name, outcome);
                        }
                    }
                }
                Some((at, _)) => {
                    let until = at.min(Instant::now() + LOOK);
                    tokio::select! {
                        () = tokio::time::sleep_until(until) => {}
                        () = self.seen.notified() => {}
                    }
                }
            }
        }
    }

    /// The write that is due next.
    fn next(&self) -> Option<(Instant, String)> {
        let book = self.book.borrow();
        book.next(self.client.spread(SPREAD_MAX)).map(|(at, name)| (at, name.to_owned()))
    }

    fn again(&self, name: &str, pause: Duration) {
        self.book.borrow_mut().again(name, Instant::now() + pause, share());
    }

    fn note(&self, name: &str, outcome: Outcome) {
        match outcome {
            Outcome::Written => {
                self.is_refusal_logged.set(false);
                tracing::info!(policy = name, "the policy's status says how far it is enforced");
            }
            Outcome::Closed(reason) => {
                self.book.borrow_mut().close(Instant::now() + REFUSED_PAUSE);
                self.again(name, Duration::ZERO);
                self.report(&reason);
            }
            Outcome::Refused(error) => {
                self.again(name, REFUSED_PAUSE);
                self.report(&error.to_string());
            }
            Outcome::Nothing | Outcome::Later(_) => {}
        }
    }

    /// Logs a refusal once.
    fn report(&self, reason: &str) {
        if !self.is_refusal_logged.replace(true) {
            tracing::warn!(
                reason,
                "the status of ClusterNetworkPolicies cannot say what of them is not enforced; russet policy ls does. Apply Russet's manifest and the policies' definition of this version"
            );
        }
    }

    async fn write(&self, name: &str) -> Outcome {
        let mut overtaken = None;
        for _ in 0..TRIES {
            let policy = match absent_is_none(self.read(name).await) {
                Ok(Some(policy)) => policy,
                Ok(None) => return Outcome::Nothing,
                Err(error) => return Outcome::of(error),
            };
            let Some(conditions) = wanted::conditions(&policy, VERSION, SystemTime::now()) else {
                return Outcome::Nothing;
            };
            match self.patch(name, &policy, &conditions).await {
                Ok(()) => return Outcome::Written,
                Err(error @ (KubeError::Conflict(_) | KubeError::NotFound(_))) => overtaken = Some(error),
                Err(error) => return Outcome::of(error),
            }
        }
        match overtaken {
            // The policy itself was there each time.
            Some(KubeError::NotFound(said)) => {
                Outcome::Closed(format!("{}: the definition has no status subresource", said.operation))
            }
            Some(error) => Outcome::Later(error),
            None => Outcome::Nothing,
        }
    }

    async fn read(&self, name: &str) -> Result<Value, KubeError> {
        self.request("get", Verb::Read, &[name], Vec::new()).await
    }

    async fn patch(&self, name: &str, policy: &Value, conditions: &[Value]) -> Result<(), KubeError> {
        let revision = policy.pointer("/metadata/resourceVersion");
        let patch =
            json!({ "metadata": { "resourceVersion": revision }, "status": { "conditions": conditions } });
        let body = patch.to_string().into_bytes();
        self.request("patch status of", Verb::Merge, &[name, "status"], body).await.map(drop)
    }

    async fn request(
        &self,
        what: &str,
        verb: Verb,
        path: &[&str],
        body: Vec<u8>,
    ) -> Result<Value, KubeError> {
        let (version, plural) = Kind::ClusterNetworkPolicies.resource();
        let operation = format!("{what} {plural}/{}", path.first().unwrap_or(&""));
        let segments = ["apis"].into_iter().chain(version.split('/')).chain([plural]);
        let segments = segments.chain(path.iter().copied()).map(str::to_owned).collect();
        let (query, deadline, limit_bytes) = (Vec::new(), CALL_DEADLINE, OBJECT_MAX_BYTES);
        let request = Request { operation, verb, segments, query, body, deadline, limit_bytes };
        let answer = self.client.request(&request).await.map_err(|failure| failure.error)?;
        serde_json::from_slice(&answer.body).map_err(|error| {
            let message = format!("the answer makes no sense: {error}");
            KubeError::Invalid(russet_kube::Said { operation: request.operation, message })
        })
    }
}

// === impl Outcome ===

impl Outcome {
    fn of(error: KubeError) -> Self {
        match error {
            KubeError::Forbidden(said) => Self::Closed(said.to_string()),
            KubeError::Invalid(_) => Self::Refused(error),
            error => Self::Later(error),
        }
    }
}

#[cfg(test)]
mod tests;
