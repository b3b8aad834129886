//! Keeps the acquired lease: waits until it must be renewed, renews it, and notices its loss.

use std::time::{Duration, SystemTime};

use russet_model::flannel::{Attributes, SubnetKey};
use russet_store::{Event, Record, Step, StoreError, Tenure, Watch};
use tokio::time::Instant;

use super::{Held, StoreManager, Term, store_error};
use crate::decide::is_ours;
use crate::{Lease, LeaseError, Lost};

/// Pause after a failed renewal, as in flannel.
const RETRY: Duration = Duration::from_secs(60);
/// Shortest interval of renewals, whatever lifetime the store grants.
const RENEWAL_MIN: Duration = Duration::from_secs(1);
/// Interval of clock checks, so that a machine that slept notices that its lease has aged.
const LOOK_AT_CLOCK: Duration = Duration::from_secs(60);
/// Delay of the repeated write after the backend works: by then v0.20 peers that missed the first
/// event listen again (flannel.md section 12 item 4).
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Pause after a watch that could not be opened.
const WATCH_RETRY: Duration = Duration::from_secs(1);
/// Attempts of a write whose record changed after it was read.
const PUTS_MAX: u32 = 5;

/// The state of the acquired lease's record.
enum RecordState {
    Ours(Record, Tenure),
    Lost(Lost),
}

// === impl StoreManager ===

impl StoreManager {
    pub(super) async fn hold(&self, lease: &Lease, margin: Duration) -> Lost {
        let mut watch = None;
        let mut retry = None;
        let mut warned = false;
        loop {
            tokio::select! {
                lost = self.see_lost(&lease.key, &mut watch, &mut warned) => return lost,
                () = self.until_due(margin, retry) => {}
            }
            match self.renew(&lease.key).await {
                Ok(None) => retry = None,
                Ok(Some(lost)) => return lost,
                Err(error) => {
                    tracing::warn!(subnet = %lease.key, %error, "renew lease");
                    retry = Some(Instant::now() + self.retry_after());
                }
            }
        }
    }

    /// Waits until `margin` before the lease's end, or until `retry`. For ever with a reservation.
    async fn until_due(&self, margin: Duration, retry: Option<Instant>) {
        let not_before = retry.unwrap_or_else(|| Instant::now() + RENEWAL_MIN);
        loop {
            let Some(term) = self.term() else { return std::future::pending().await };
            let now = Instant::now();
            let due = match retry {
                Some(retry) => retry,
                None => term.until.checked_sub(margin).unwrap_or(now).max(not_before),
            };
            let slept = retry.is_none() && SystemTime::now() + margin >= term.expires && now >= not_before;
            if now >= due || slept {
                return;
            }
            tokio::time::sleep(due.saturating_duration_since(now).min(LOOK_AT_CLOCK)).await;
        }
    }

    fn term(&self) -> Option<Term> {
        self.held.borrow().as_ref().and_then(|held| held.term)
    }

    /// A minute, or less if that would be too long.
    fn retry_after(&self) -> Duration {
        let left = self.term().map_or(RETRY, |term| term.until.saturating_duration_since(Instant::now()));
        (left / 3).clamp(RENEWAL_MIN, RETRY)
    }

    /// Waits until the record is gone or another node's. Errors of the store are retried. A second
    /// writer of the same lease is warned of once.
    async fn see_lost(&self, key: &SubnetKey, watch: &mut Option<Box<dyn Watch>>, warned: &mut bool) -> Lost {
        let path = self.paths.lease(key);
        // The watch also covers keys that continue with `&`, which are not ours.
        let prefix = russet_model::Prefix::from_stored(path.as_str());
        loop {
            if watch.is_none() {
                match self.store.watch(&prefix).await {
                    Ok(opened) => *watch = Some(opened),
                    Err(error) => {
                        tracing::debug!(subnet = %key, %error, "watch the own lease");
                        tokio::time::sleep(WATCH_RETRY).await;
                    }
                }
            }
            let Some(open) = watch else { continue };
            let (record, news) = match open.next().await {
                Ok(Event::Snapshot(snapshot)) => {
                    match snapshot.records.into_iter().find(|record| record.key == path) {
                        Some(record) => (record, false),
                        None => return Lost::Gone,
                    }
                }
                Ok(Event::Put(record)) if record.key == path => (record, true),
                Ok(Event::Deleted { key, .. }) if key == path => return Lost::Gone,
                Ok(_) => continue,
                Err(error) => {
                    tracing::debug!(subnet = %key, %error, "watch the own lease");
                    *watch = None;
                    tokio::time::sleep(WATCH_RETRY).await;
                    continue;
                }
            };
            if let Some(lost) = self.lost_to(&record) {
                return lost;
            }
            let expected =
                self.held.borrow().as_ref().is_none_or(|held| held.attributes.to_json() == record.value);
            if !expected {
                // Most likely a second node has the same public address: both then share the subnet
                // (flannel.md section 0 item 3).
                tracing::warn!(subnet = %key, "another process writes this node's lease; has another node its public IP?");
            } else if news && !*warned && self.is_foreign(&record).await {
                *warned = true;
                tracing::warn!(
                    subnet = %key,
                    "another process renews this node's lease: is it a second flannel daemon on this node, or has another node its public IP? One of the two has to be stopped"
                );
            }
        }
    }

    /// Whether another process wrote a record with our attributes, as a second daemon on this node
    /// does: it is attached to a lease that is not ours. Our own write may be reported before its
    /// answer arrives.
    async fn is_foreign(&self, record: &Record) -> bool {
        for _ in 0..2 {
            let Some(Held { term, revision, .. }) = self.held.borrow().clone() else { return false };
            if record.revision == revision {
                return false;
            }
            match (self.store.tenure(&record.key).await, term) {
                (Ok(Some((now, Tenure::Leased(id)))), Some(term)) if now.revision == record.revision => {
                    if id == Some(term.id) {
                        return false;
                    }
                }
                _ => return false,
            }
            tokio::time::sleep(WATCH_RETRY).await;
        }
        true
    }

    /// None for a record that is ours, or that cannot be parsed: the next renewal writes that one
    /// again.
    fn lost_to(&self, record: &Record) -> Option<Lost> {
        let held = self.held.borrow();
        let held = held.as_ref()?;
        let theirs = Attributes::from_json(&record.value).ok()?;
        (!is_ours(held.config_v4, &held.attributes, &theirs)).then_some(Lost::Taken(theirs))
    }

    async fn find(&self, key: &SubnetKey) -> Result<RecordState, StoreError> {
        Ok(match self.store.tenure(&self.paths.lease(key)).await? {
            None => RecordState::Lost(Lost::Gone),
            Some((record, tenure)) => match self.lost_to(&record) {
                Some(lost) => RecordState::Lost(lost),
                None => RecordState::Ours(record, tenure),
            },
        })
    }

    /// Renews the store's lease, and writes the record again if it differs.
    async fn renew(&self, key: &SubnetKey) -> Result<Option<Lost>, LeaseError> {
        self.end_abandoned_leases().await;
        let found = self.find(key).await.map_err(store_error(format!("look at lease {key}")))?;
        let (record, tenure) = match found {
            RecordState::Lost(lost) => return Ok(Some(lost)),
            RecordState::Ours(record, tenure) => (record, tenure),
        };
        let Some(Held { attributes, term, .. }) = self.held.borrow().clone() else { return Ok(None) };
        let as_it_should_be = record.value == attributes.to_json();
        match (tenure, term) {
            (Tenure::Forever, _) if as_it_should_be => self.set_term(None),
            (Tenure::Leased(Some(id)), Some(term)) if id == term.id && as_it_should_be => {
                match self.store.keep_alive(id).await {
                    Ok(ttl) => self.set_term(Some(Term::new(id, ttl))),
                    // Checked again at once: most likely the record is gone with it.
                    Err(StoreError::NoLease { .. }) => self.write(key).await?,
                    Err(error) => return Err(store_error(format!("renew lease {key}"))(error)),
                }
            }
            _ => {
                tracing::warn!(subnet = %key, "another process wrote this node's lease: written again");
                self.write(key).await?;
            }
        }
        tracing::debug!(subnet = %key, "lease renewed");
        Ok(None)
    }

    fn set_term(&self, term: Option<Term>) {
        if let Some(held) = &mut *self.held.borrow_mut() {
            held.term = term;
        }
    }

    /// Writes the wanted record, attached to the current lease, or to a new one if that has ended.
    /// A reservation stays one.
    pub(super) async fn write(&self, key: &SubnetKey) -> Result<(), LeaseError> {
        let operation = || format!("write lease {key}");
        for _ in 0..PUTS_MAX {
            // Before the record is read: on the v2 API a renewal changes the revision that the
            // write must name.
            let alive = self.renew_term().await.map_err(store_error(operation()))?;
            let found = self.find(key).await.map_err(store_error(operation()))?;
            let RecordState::Ours(record, tenure) = found else {
                return Err(LeaseError::NotOurs { key: *key });
            };
            let Some(Held { attributes, .. }) = self.held.borrow().clone() else {
                return Err(LeaseError::NotOurs { key: *key });
            };
            let term = match (tenure, alive) {
                (Tenure::Forever, _) => None,
                (Tenure::Leased(_), Some(term)) => Some(term),
                (Tenure::Leased(_), None) => Some(self.grant().await?),
            };
            let step = Step::update(record.key, attributes.to_json(), record.revision);
            let step = match &term {
                Some(term) => step.with_lease(term.id),
                None => step,
            };
            self.write_interval.turn().await;
            match self.store.commit(vec![step]).await.map_err(StoreError::from) {
                Ok(revisions) => {
                    if let Some(held) = &mut *self.held.borrow_mut() {
                        held.term = term;
                        held.revision = revisions.last().copied().unwrap_or(held.revision);
                    }
                    return Ok(());
                }
                // The write may have succeeded; then the next check finds it so, and writing it
                // again is harmless.
                Err(error) if error.lost_race() || error.outcome_unknown() => {}
                Err(StoreError::NoLease { .. }) => {}
                Err(error) => return Err(store_error(operation())(error)),
            }
        }
        Err(LeaseError::Contended { rounds: PUTS_MAX })
    }

    /// Renews the store's lease; none if there is none, or it has ended.
    async fn renew_term(&self) -> Result<Option<Term>, StoreError> {
        let Some(term) = self.term() else { return Ok(None) };
        match self.store.keep_alive(term.id).await {
            Ok(ttl) => Ok(Some(Term::new(term.id, ttl))),
            Err(StoreError::NoLease { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn beat(&self, key: &SubnetKey) -> Result<(), LeaseError> {
        tokio::time::sleep(HEARTBEAT).await;
        self.write(key).await
    }

    async fn end_abandoned_leases(&self) {
        let abandoned_leases = std::mem::take(&mut *self.abandoned_leases.borrow_mut());
        for id in abandoned_leases {
            self.end(id).await;
        }
    }
}
