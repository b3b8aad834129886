//! A store for trials: writes are kept in memory in front of the real store, and dropped with it.
//! Used by `why`, so that the code of the real request decides the trial.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use russet_model::{Key, Prefix};
use russet_store::{
    BoxFuture, Claims, CommitError, Record, Revision, Snapshot, Step, Store, StoreError, Watch, check_steps,
};

/// The real store, and the writes of the trial.
pub struct TrialStore {
    real: Rc<dyn Store>,
    /// What was written; none: deleted.
    written: RefCell<BTreeMap<Key, Option<Record>>>,
    last: RefCell<Revision>,
}

/// Above every revision of a real store; visible only in the trial.
const FIRST: Revision = Revision(1 << 62);

// === impl TrialStore ===

impl TrialStore {
    /// A trial without any write.
    pub fn of(real: Rc<dyn Store>) -> Self {
        Self { real, written: RefCell::default(), last: RefCell::new(FIRST) }
    }

    async fn find(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        if let Some(written) = self.written.borrow().get(key) {
            return Ok(written.clone());
        }
        self.real.get(key).await
    }

    async fn carry_out(&self, steps: Vec<Step>) -> Result<Vec<Revision>, CommitError> {
        check_steps(&steps)?;
        for (failed, step) in steps.iter().enumerate() {
            let refused = |error| CommitError { done: 0, failed, error };
            let found = self.find(step.key()).await.map_err(refused)?;
            check_guard(step, found.as_ref()).map_err(refused)?;
        }
        let revision = {
            let mut last = self.last.borrow_mut();
            last.0 += 1;
            *last
        };
        let mut written = self.written.borrow_mut();
        for step in &steps {
            let key = step.key().clone();
            let record =
                step.value().map(|value| Record { key: key.clone(), value: value.to_vec(), revision });
            written.insert(key, record);
        }
        Ok(vec![revision; steps.len()])
    }
}

/// Checks a step's guard.
fn check_guard(step: &Step, found: Option<&Record>) -> Result<(), StoreError> {
    let key = || step.key().clone();
    match (step, found) {
        (Step::Create { .. }, Some(_)) => Err(StoreError::AlreadyExists { key: key() }),
        (Step::Update { .. } | Step::Delete { .. }, None) => Err(StoreError::NotFound { key: key() }),
        (Step::Update { revision, .. } | Step::Delete { revision: Some(revision), .. }, Some(found))
            if found.revision != *revision =>
        {
            Err(StoreError::Conflict { key: key() })
        }
        _ => Ok(()),
    }
}

impl Store for TrialStore {
    fn claims(&self) -> Claims {
        Claims { ttl: false, ..self.real.claims() }
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(self.find(key))
    }

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(async move {
            let Snapshot { records, revision } = self.real.list(prefix).await?;
            let mut all: BTreeMap<Key, Option<Record>> =
                records.into_iter().map(|record| (record.key.clone(), Some(record))).collect();
            let written = self.written.borrow();
            let covered = written.iter().filter(|(key, _)| prefix.covers(key));
            all.extend(covered.map(|(key, record)| (key.clone(), record.clone())));
            Ok(Snapshot { records: all.into_values().flatten().collect(), revision })
        })
    }

    fn keys<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Vec<Key>, StoreError>> {
        Box::pin(async move {
            let mut keys: std::collections::BTreeSet<Key> =
                self.real.keys(prefix).await?.into_iter().collect();
            for (key, record) in self.written.borrow().iter().filter(|(key, _)| prefix.covers(key)) {
                match record {
                    Some(_) => keys.insert(key.clone()),
                    None => keys.remove(key),
                };
            }
            Ok(keys.into_iter().collect())
        })
    }

    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        Box::pin(self.carry_out(steps))
    }

    fn watch<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        let operation = format!("watch {prefix} on trial");
        Box::pin(async move { Err(StoreError::Unsupported { operation }) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::tests::run;
    use russet_store::Sim;

    #[test]
    fn writes_are_visible_in_the_trial_only() {
        run(async {
            let real: Rc<dyn Store> = Rc::new(Sim::atomic(1));
            let key = |name: &str| Key::from_stored(format!("/t/{name}"));
            let prefix = Prefix::from_stored("/t/");
            let made =
                real.commit(vec![Step::create(key("a"), "1"), Step::create(key("b"), "1")]).await.unwrap();
            let trial_store = TrialStore::of(real.clone());
            let tried = trial_store
                .commit(vec![
                    Step::update(key("a"), "2", made[0]),
                    Step::delete(key("b"), None),
                    Step::create(key("c"), "3"),
                ])
                .await
                .unwrap();
            let seen = |snapshot: Snapshot| -> Vec<(String, Vec<u8>)> {
                snapshot.records.into_iter().map(|r| (r.key.as_str().to_owned(), r.value)).collect()
            };
            let of = |name: &str, value: &str| (format!("/t/{name}"), value.as_bytes().to_vec());
            assert_eq!(seen(trial_store.list(&prefix).await.unwrap()), [of("a", "2"), of("c", "3")]);
            assert_eq!(trial_store.keys(&prefix).await.unwrap(), [key("a"), key("c")]);
            assert_eq!(seen(real.list(&prefix).await.unwrap()), [of("a", "1"), of("b", "1")]);
            let stale = trial_store.commit(vec![Step::update(key("a"), "4", made[0])]).await.unwrap_err();
            assert!(matches!(stale.error, StoreError::Conflict { .. }));
            let again = trial_store.commit(vec![Step::create(key("c"), "4")]).await.unwrap_err();
            assert!(matches!(again.error, StoreError::AlreadyExists { .. }));
            trial_store.commit(vec![Step::update(key("a"), "4", tried[0])]).await.unwrap();
        });
    }
}
