//! The etcd v2 engine: the store over the keys API of etcd 2.x to 3.5 (`/v2/keys`; 3.4 and 3.5 need
//! `--enable-v2`), for peers without support for v3: Calico's plugins up to 1.11 and flannel up to
//! v0.17. The v2 store and the v3 store are disjoint even in one server.
//!
//! It supports leases but not atomic commits: steps are single requests in order. A revision is a
//! key's `modifiedIndex`; guards are `prevExist` and `prevIndex`; reads require a majority
//! (`quorum=true`). Differences to v3: records are in a tree of directories, so that no key can be
//! below another one, and values are text; renewing a lease changes the revision of its records
//! without an event for watches.

mod answer;
mod client;
mod http;
mod lease;
mod path;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use russet_model::{Key, Prefix};
use russet_store::{
    BoxFuture, Claims, CommitError, LeaseId, Record, Revision, Snapshot, Step, Store, StoreError, Tenure,
    Watch, check_steps,
};

use crate::failure::{Effect, Failure};
use crate::{Reach, Settings, SettingsError};
use answer::{Reply, Why};
use client::Client;
use http::Question;
use lease::{Leases, Written};

/// A store on the v2 API of an etcd cluster. Cloning is cheap; clones share connections and leases.
#[derive(Clone)]
pub struct EtcdV2 {
    client: Arc<Client>,
    leases: Arc<Leases>,
}

/// The remaining lifetime of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// No time to live was set.
    Forever,
    /// Approximately this long, unless it is renewed.
    For(Duration),
}

// === impl EtcdV2 ===

impl EtcdV2 {
    /// Creates a client of the cluster. Fails on settings that cannot work; connects when first
    /// used, inside a tokio runtime.
    pub fn connect(settings: Settings) -> Result<Self, SettingsError> {
        Ok(Self { client: Arc::new(Client::new(settings)?), leases: Arc::default() })
    }

    /// Whether the cluster answers, as seen by all calls and watches of this engine.
    pub fn reach(&self) -> Reach {
        self.client.reach.clone()
    }

    /// The version of the cluster as a whole, such as `3.4.0`. A cluster of etcd 2 certainly has no
    /// v3 API.
    pub async fn cluster_version(&self) -> Result<String, StoreError> {
        let question = Question::get("/version".to_owned());
        let version = self.client.call_for(Effect::Read, &question, answer::version).await;
        version.map_err(|failure| failure.into_store_error("ask etcd's version".to_owned(), Effect::Read))
    }

    /// Reads one record and its remaining lifetime, by which peers distinguish leases from
    /// reservations (flannel.md section 3.1a).
    pub async fn get_with_life(&self, key: &Key) -> Result<Option<(Record, Life)>, StoreError> {
        let operation = || format!("get {key}");
        let target = target(key, operation)?;
        let question = Question::get(format!("{target}?quorum=true"));
        let reply = self.client.call(Effect::Read, &question).await;
        match reply.map_err(|failure| failure.into_store_error(operation(), Effect::Read))? {
            Reply::Done(done) => {
                let life = done.node.life();
                Ok(done.node.record().map(|record| (Record { key: key.clone(), ..record }, life)))
            }
            Reply::Refused(refusal) => match refusal.why() {
                // If a component of the path is a key, the record cannot exist.
                Some(Why::NotFound | Why::NoDirectory) => Ok(None),
                _ => Err(invalid(operation(), &refusal.to_string())),
            },
        }
    }

    /// Reads all records under a prefix, at one index, with their remaining lifetimes.
    pub async fn list_with_life(
        &self,
        prefix: &Prefix,
    ) -> Result<(Vec<(Record, Life)>, Revision), StoreError> {
        listed(&self.client, prefix).await
    }

    /// Removes an empty directory; returns whether there was one. Deleting records leaves their
    /// directories, which the v2 API keeps for ever.
    pub async fn remove_empty_directory(&self, directory: &Key) -> Result<bool, StoreError> {
        let operation = || format!("remove directory {directory}");
        let target = format!("{}?dir=true", target(directory, operation)?);
        let question = Question { method: Method::DELETE, target, form: None, large: false };
        let reply = self.client.call(Effect::Idempotent, &question).await;
        match reply.map_err(|failure| failure.into_store_error(operation(), Effect::Idempotent))? {
            Reply::Done(_) => Ok(true),
            Reply::Refused(_) => Ok(false),
        }
    }

    async fn commit_steps(&self, steps: Vec<Step>) -> Result<Vec<Revision>, CommitError> {
        check_steps(&steps)?;
        // All steps are checked before the first is executed.
        for (failed, step) in steps.iter().enumerate() {
            writable(step).map_err(|error| CommitError { done: 0, failed, error })?;
        }
        let mut revisions = Vec::with_capacity(steps.len());
        for (done, step) in steps.into_iter().enumerate() {
            let revision = self.step(step).await;
            revisions.push(revision.map_err(|error| CommitError { done, failed: done, error })?);
        }
        Ok(revisions)
    }

    async fn step(&self, step: Step) -> Result<Revision, StoreError> {
        let key = step.key().clone();
        if let Step::Update { revision: Revision(0), .. } | Step::Delete { revision: Some(Revision(0)), .. } =
            &step
        {
            // The API treats index 0 as "no guard". No record has this index.
            return match self.get_with_life(&key).await? {
                Some(_) => Err(StoreError::Conflict { key }),
                None => Err(StoreError::NotFound { key }),
            };
        }
        let question = self.question(&step)?;
        let operation = || format!("write {key}");
        let reply = self.client.call(Effect::Once, &question).await;
        match reply.map_err(|failure| failure.into_store_error(operation(), Effect::Once))? {
            Reply::Done(done) => {
                let revision = Revision(done.node.modified_index);
                let value = step.value().map(<[u8]>::to_vec);
                let under = step.lease().zip(value).map(|(id, value)| (id, Written { value, revision }));
                self.leases.written(&key, under);
                Ok(revision)
            }
            Reply::Refused(refusal) => match (refusal.why(), &step) {
                (Some(Why::Exists), _) => Err(StoreError::AlreadyExists { key }),
                (Some(Why::Compare), _) => Err(StoreError::Conflict { key }),
                (Some(Why::NotFound), _) => Err(StoreError::NotFound { key }),
                // A directory, or a key in the path, means that the record does not exist.
                (_, Step::Update { .. } | Step::Delete { .. }) => Err(StoreError::NotFound { key }),
                _ => Err(invalid(operation(), &refusal.to_string())),
            },
        }
    }

    /// The request that executes a step.
    fn question(&self, step: &Step) -> Result<Question, StoreError> {
        let key = step.key();
        let target = target(key, || format!("write {key}"))?;
        let (method, guard) = match step {
            Step::Create { .. } => (Method::PUT, "prevExist=false".to_owned()),
            Step::Update { revision, .. } => {
                (Method::PUT, format!("prevExist=true&prevIndex={}", revision.0))
            }
            Step::Put { .. } => (Method::PUT, String::new()),
            Step::Delete { revision: Some(revision), .. } => {
                (Method::DELETE, format!("prevIndex={}", revision.0))
            }
            Step::Delete { revision: None, .. } => (Method::DELETE, String::new()),
        };
        let mut form = step.value().map(|value| path::form("value", &String::from_utf8_lossy(value)));
        if let (Some(form), Some(lease)) = (&mut form, step.lease()) {
            let seconds = self.leases.seconds_left(lease).ok_or(StoreError::NoLease { lease })?;
            form.push_str(&format!("&ttl={seconds}"));
        }
        let target = if guard.is_empty() { target } else { format!("{target}?{guard}") };
        Ok(Question { method, target, form: form.map(Into::into), large: false })
    }
}

impl std::fmt::Debug for EtcdV2 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdV2").field("settings", &self.client.settings).finish()
    }
}

impl Store for EtcdV2 {
    fn claims(&self) -> Claims {
        Claims { atomic: false, ttl: true }
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(async move { Ok(self.get_with_life(key).await?.map(|(record, _)| record)) })
    }

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(list(&self.client, prefix))
    }

    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        Box::pin(self.commit_steps(steps))
    }

    fn watch<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        Box::pin(async move {
            let watch = watch::begin(self.client.clone(), prefix.clone()).await?;
            Ok(Box::new(watch) as Box<dyn Watch>)
        })
    }

    fn tenure<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<(Record, Tenure)>, StoreError>> {
        Box::pin(async move {
            Ok(self.get_with_life(key).await?.map(|(record, life)| {
                let tenure = match life {
                    Life::Forever => Tenure::Forever,
                    Life::For(_) => Tenure::Leased(self.leases.holding(&record)),
                };
                (record, tenure)
            }))
        })
    }

    fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<LeaseId, StoreError>> {
        Box::pin(async move { Ok(self.leases.grant(ttl)) })
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Duration, StoreError>> {
        Box::pin(self.leases.keep_alive(&self.client, lease))
    }

    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.leases.revoke(&self.client, lease))
    }
}

/// Reads all records under a prefix, at one index: the API returns a whole directory at once.
async fn list(client: &Client, prefix: &Prefix) -> Result<Snapshot, StoreError> {
    let (records, revision) = listed(client, prefix).await?;
    Ok(Snapshot { records: records.into_iter().map(|(record, _)| record).collect(), revision })
}

async fn listed(client: &Client, prefix: &Prefix) -> Result<(Vec<(Record, Life)>, Revision), StoreError> {
    let failed = |failure: Failure| failure.into_store_error(format!("list {prefix}"), Effect::Read);
    let target = format!("{}?recursive=true&quorum=true", path::of_directory(prefix));
    let question = Question { large: true, ..Question::get(target) };
    match client.call(Effect::Read, &question).await.map_err(failed)? {
        Reply::Done(done) if done.index < done.node.modified_index => {
            Err(failed(Failure::nonsense("etcd", "a listing without the store's index")))
        }
        Reply::Done(done) => {
            let revision = Revision(done.index);
            Ok((done.node.records(prefix), revision))
        }
        Reply::Refused(refusal) => match refusal.why() {
            Some(Why::NotFound | Why::NoDirectory) => Ok((Vec::new(), Revision(refusal.index))),
            _ => Err(invalid(format!("list {prefix}"), &refusal.to_string())),
        },
    }
}

/// Refuses keys and values that the API would change.
fn writable(step: &Step) -> Result<(), StoreError> {
    let key = step.key();
    target(key, || format!("write {key}"))?;
    match step.value().map(std::str::from_utf8) {
        Some(Err(_)) => Err(invalid(format!("write {key}"), "the v2 API holds text, and this value is none")),
        _ => Ok(()),
    }
}

fn target(key: &Key, operation: impl FnOnce() -> String) -> Result<String, StoreError> {
    path::of_key(key).map_err(|reason| invalid(operation(), reason))
}

fn invalid(operation: String, reason: &str) -> StoreError {
    StoreError::Invalid { operation, reason: reason.to_owned() }
}
