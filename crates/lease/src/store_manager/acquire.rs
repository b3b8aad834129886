//! Acquires subnets. Every write is conditional on what was read, a lost race leads to another
//! round, and a created record is checked once more: keys with two subnets, or with subnets of
//! different lengths, can overlap without being equal.

use std::sync::Arc;

use russet_model::flannel::{NetworkConfig, SubnetKey};
use russet_store::{LeaseId, Revision, Step, StoreError, Tenure};

use super::{Held, LEASE_TTL, StoreManager, Term, store_error};
use crate::decide::{Listed, Plan, plan};
use crate::{Lease, LeaseError, Wish};

/// Number of rounds, as in flannel.
const ROUNDS: u32 = 10;

// === impl StoreManager ===

impl StoreManager {
    pub(super) async fn take(&self, config: &NetworkConfig, wish: &Wish) -> Result<Lease, LeaseError> {
        let config = config.clone().validated();
        let config =
            config.map_err(|source| LeaseError::Config { at: self.paths.config().to_string(), source })?;
        let mut spare = None;
        let taken = self.rounds(&config, wish, &mut spare).await;
        if let Some(unused) = spare {
            self.end(unused.id).await;
        }
        taken
    }

    async fn rounds(
        &self,
        config: &NetworkConfig,
        wish: &Wish,
        spare: &mut Option<Term>,
    ) -> Result<Lease, LeaseError> {
        for round in 0..ROUNDS {
            let listed = if round == 0 {
                // A lease is nearly always needed and costs a disk sync, so it is granted while the
                // list is being read.
                let (listed, term) = tokio::join!(self.list(), self.grant());
                *spare = Some(term?);
                listed?
            } else {
                self.list().await?
            };
            let plan = plan(config, wish, &listed, &mut self.rng.borrow_mut())?;
            let taken = match plan {
                Plan::Adopt(ours) => self.adopt(config, wish, ours, spare).await?,
                Plan::Create(key) => self.create(config, wish, key, spare).await?,
                Plan::Withdraw(ours) => {
                    self.withdraw(ours).await?;
                    None
                }
            };
            if let Some(lease) = taken {
                return Ok(lease);
            }
        }
        Err(LeaseError::Contended { rounds: ROUNDS })
    }

    /// The store's lease that was granted already, or a new one.
    async fn spare_or_new(&self, spare: &mut Option<Term>) -> Result<Term, LeaseError> {
        match spare.take() {
            Some(term) => Ok(term),
            None => self.grant().await,
        }
    }

    /// Writes our record again. None if another process wrote it meanwhile.
    async fn adopt(
        &self,
        config: &NetworkConfig,
        wish: &Wish,
        ours: Listed,
        spare: &mut Option<Term>,
    ) -> Result<Option<Lease>, LeaseError> {
        let operation = || format!("take lease {} again", ours.key);
        let tenure = self.store.tenure(&ours.record.key).await.map_err(store_error(operation()))?;
        let term = match tenure {
            Some((record, Tenure::Forever)) if record == ours.record => None,
            Some((record, _)) if record == ours.record => Some(self.spare_or_new(spare).await?),
            _ => return Ok(None),
        };
        let step = Step::update(ours.record.key, wish.attributes.to_json(), ours.record.revision);
        let step = match &term {
            Some(term) => step.with_lease(term.id),
            None => step,
        };
        self.write_interval.turn().await;
        match self.store.commit(vec![step]).await.map_err(StoreError::from) {
            Ok(revisions) => Ok(Some(self.hold_now(config, wish, ours.key, term, &revisions))),
            // The write may have succeeded, and the record be attached to the lease: the next round
            // adopts it, and the lease ends by itself.
            Err(error) if error.outcome_unknown() => Ok(None),
            Err(error) => self.give_up(term, error, operation()).await,
        }
    }

    /// Creates a record. None if another node has, or may have, an address of it.
    async fn create(
        &self,
        config: &NetworkConfig,
        wish: &Wish,
        key: SubnetKey,
        spare: &mut Option<Term>,
    ) -> Result<Option<Lease>, LeaseError> {
        let term = self.spare_or_new(spare).await?;
        let path = self.paths.lease(&key);
        let step = Step::create(path.clone(), wish.attributes.to_json()).with_lease(term.id);
        self.write_interval.turn().await;
        let revisions = match self.store.commit(vec![step]).await.map_err(StoreError::from) {
            Ok(revisions) => revisions,
            Err(error) => return self.give_up(Some(term), error, format!("create lease {key}")).await,
        };
        // The second of two writers is certain to see the first. Both may see each other and
        // withdraw: that is rare, and both draw again.
        let all = self.store.keys(&self.paths.subnets()).await;
        let others = all.map(|all| {
            let mut others = all.iter().filter(|other| **other != path);
            others.any(|other| other.as_str().parse().is_ok_and(|other| key.overlaps(&other)))
        });
        match others {
            Ok(false) => Ok(Some(self.hold_now(config, wish, key, Some(term), &revisions))),
            Ok(true) => {
                tracing::info!(subnet = %key, "another node took an overlapping subnet at the same time");
                self.end(term.id).await;
                Ok(None)
            }
            Err(error) => {
                self.end(term.id).await;
                Err(store_error(format!("look at lease {key} again"))(error))
            }
        }
    }

    /// Deletes our record that no longer fits, and no other that may have replaced it.
    async fn withdraw(&self, ours: Listed) -> Result<(), LeaseError> {
        tracing::info!(subnet = %ours.key, "this node's old lease does not fit the network's config: deleted");
        self.write_interval.turn().await;
        let step = Step::delete(ours.record.key, Some(ours.record.revision));
        match self.store.commit(vec![step]).await.map_err(StoreError::from) {
            Ok(_) => Ok(()),
            Err(error) if error.lost_race() || error.outcome_unknown() => Ok(()),
            Err(error) => Err(store_error(format!("delete lease {}", ours.key))(error)),
        }
    }

    /// After a failed write: decides whether another round can help. The lease is revoked, and with
    /// it the record if it was created.
    async fn give_up(
        &self,
        term: Option<Term>,
        error: StoreError,
        operation: String,
    ) -> Result<Option<Lease>, LeaseError> {
        if let Some(term) = term {
            self.end(term.id).await;
        }
        let again =
            error.lost_race() || error.outcome_unknown() || matches!(error, StoreError::NoLease { .. });
        if again { Ok(None) } else { Err(store_error(operation)(error)) }
    }

    pub(super) async fn grant(&self) -> Result<Term, LeaseError> {
        let id = self.store.grant(LEASE_TTL).await.map_err(store_error("grant lease"))?;
        Ok(Term::new(id, LEASE_TTL))
    }

    /// Revokes a lease of the store to which no record of ours may be attached; later, if that
    /// fails now.
    pub(super) async fn end(&self, id: LeaseId) {
        match self.store.revoke(id).await {
            Ok(()) | Err(StoreError::NoLease { .. }) => {}
            Err(error) => {
                tracing::debug!(lease = id.0, %error, "end lease");
                self.abandoned_leases.borrow_mut().push(id);
            }
        }
    }

    fn hold_now(
        &self,
        config: &NetworkConfig,
        wish: &Wish,
        key: SubnetKey,
        term: Option<Term>,
        revisions: &[Revision],
    ) -> Lease {
        let attributes = Arc::new(wish.attributes.clone());
        let revision = revisions.last().copied().unwrap_or_default();
        let held =
            Held { attributes: Arc::clone(&attributes), config_v4: config.enable_ipv4, term, revision };
        *self.held.borrow_mut() = Some(held);
        Lease { key, attributes, expires: term.map(|term| term.expires) }
    }
}
