//! `Etcd`: the store over an etcd v3 cluster.

use std::sync::Arc;
use std::time::Duration;

use russet_model::{Key, Prefix};
use russet_store::{
    BoxFuture, Claims, CommitError, LeaseId, Record, Revision, Snapshot, Step, Store, StoreError, Tenure,
    Watch, check_steps,
};

use crate::client::{Client, Line};
use crate::failure::{Class, Effect};
use crate::guard::Transaction;
use crate::{Reach, Settings, SettingsError, lease, range, watch};

/// A store in an etcd v3 cluster. Cloning is cheap; clones share connections and token.
///
/// Reads return what a majority has agreed upon. A commit is one transaction. If its answer does
/// not come in time, the result is `Unknown` and the transaction is not repeated. A stalled member
/// may even execute it later, so after an `Unknown` callers must rely on guards and not on a single
/// read.
#[derive(Clone)]
pub struct Etcd {
    client: Arc<Client>,
}

// === impl Etcd ===

impl Etcd {
    /// Creates a client of the cluster. Fails on settings that cannot work; connects when first
    /// used, inside a tokio runtime.
    pub fn connect(settings: Settings) -> Result<Self, SettingsError> {
        Ok(Self { client: Client::new(settings)? })
    }

    /// Whether the cluster answers, as seen by all calls and watches of this engine.
    pub fn reach(&self) -> Reach {
        self.client.reach.clone()
    }

    async fn commit_steps(&self, steps: Vec<Step>) -> Result<Vec<Revision>, CommitError> {
        check_steps(&steps)?;
        let Some(first) = steps.first().map(|step| step.key().clone()) else { return Ok(Vec::new()) };
        let count = steps.len();
        let transaction = Transaction::new(steps);
        let ask = |line: Line| {
            let request = line.request(transaction.request.clone());
            async move { Ok(line.kv().txn(request).await?.into_inner()) }
        };
        match self.client.call(Effect::Once, ask).await {
            Ok(answer) if !answer.succeeded => Err(transaction.verdict(&answer)),
            Ok(answer) => {
                let revision = answer.header.map_or(0, |header| header.revision);
                Ok(vec![range::revision(revision); count])
            }
            Err(failure) if failure.class == Class::NoLease => {
                match lease::missing(&self.client, &transaction.leases).await {
                    Some((failed, lease)) => {
                        Err(CommitError { done: 0, failed, error: StoreError::NoLease { lease } })
                    }
                    None => Err(failure
                        .into_store_error(format!("commit {count} steps from {first}"), Effect::Once)
                        .into()),
                }
            }
            Err(failure) => Err(failure
                .into_store_error(format!("commit {count} steps from {first}"), Effect::Once)
                .into()),
        }
    }
}

impl std::fmt::Debug for Etcd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Etcd").field("settings", &self.client.settings).finish()
    }
}

impl Store for Etcd {
    fn claims(&self) -> Claims {
        Claims { atomic: true, ttl: true }
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(range::get(&self.client, key))
    }

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(range::list(&self.client, prefix))
    }

    fn scan<'a>(
        &'a self,
        prefix: &'a Prefix,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(range::scan(&self.client, prefix, take))
    }

    fn scan_marked<'a>(
        &'a self,
        prefix: &'a Prefix,
        marks: &'a mut dyn FnMut(&Key) -> Vec<Key>,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(range::scan_marked(&self.client, prefix, marks, take))
    }

    fn keys<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Vec<Key>, StoreError>> {
        Box::pin(range::keys(&self.client, prefix))
    }

    fn holds<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(range::holds(&self.client, prefix))
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

    fn follow<'a>(
        &'a self,
        prefix: &'a Prefix,
        take: &'a mut dyn FnMut(Record),
    ) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        Box::pin(async move {
            let watch = watch::begin_with(self.client.clone(), prefix.clone(), take).await?;
            Ok(Box::new(watch) as Box<dyn Watch>)
        })
    }

    fn tenure<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<(Record, Tenure)>, StoreError>> {
        Box::pin(range::tenure(&self.client, key))
    }

    fn grant(&self, ttl: Duration) -> BoxFuture<'_, Result<LeaseId, StoreError>> {
        Box::pin(lease::grant(&self.client, ttl))
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Duration, StoreError>> {
        Box::pin(lease::keep_alive(&self.client, lease))
    }

    fn revoke(&self, lease: LeaseId) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(lease::revoke(&self.client, lease))
    }
}
