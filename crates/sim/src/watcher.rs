//! A client that follows the whole store through a watch, with its delays and compactions, and must
//! end with the stored contents.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use russet_model::{Key, Prefix};
use russet_store::{Event, Revision, Sim, Store, StoreError};

use crate::failure::{Violation, ViolationKind};

/// The store's contents by the watch.
#[derive(Default)]
pub(crate) struct Mirror {
    records: BTreeMap<Key, (Revision, Vec<u8>)>,
    violation: Option<Violation>,
}

/// Follows the store for ever.
pub(crate) async fn follow(sim: Sim, mirror: Rc<RefCell<Mirror>>) {
    if let Err(error) = follow_on(&sim, &mirror).await {
        mirror.borrow_mut().complain(format!("the watch ended: {error}"));
    }
}

async fn follow_on(sim: &Sim, mirror: &RefCell<Mirror>) -> Result<(), StoreError> {
    let prefix = Prefix::everything();
    let mut watch = sim.watch(&prefix).await?;
    loop {
        let event = watch.next().await?;
        mirror.borrow_mut().apply(event);
    }
}

// === impl Mirror ===

impl Mirror {
    fn apply(&mut self, event: Event) {
        match event {
            Event::Snapshot(snapshot) => {
                if !self.records.is_empty() {
                    self.complain("a second snapshot".into());
                }
                for record in snapshot.records {
                    self.records.insert(record.key, (record.revision, record.value));
                }
            }
            Event::Put(record) => {
                let before = self.records.insert(record.key.clone(), (record.revision, record.value));
                if before.is_some_and(|(revision, _)| revision >= record.revision) {
                    self.complain(format!("{} at {} was reported again", record.key, record.revision.0));
                }
            }
            Event::Deleted { key, .. } => {
                if self.records.remove(&key).is_none() {
                    self.complain(format!("{key} was deleted, but not reported"));
                }
            }
        }
    }

    fn complain(&mut self, text: String) {
        self.violation.get_or_insert(Violation::new(ViolationKind::Watch, text));
    }

    /// Compares with the stored contents, once the watch has delivered everything.
    pub(crate) fn compare(&self, sim: &Sim) -> Result<(), Violation> {
        if let Some(violation) = &self.violation {
            return Err(violation.clone());
        }
        let stored: BTreeMap<Key, (Revision, Vec<u8>)> =
            sim.records().into_iter().map(|(key, record)| (key, (record.revision, record.value))).collect();
        if stored == self.records {
            return Ok(());
        }
        let keys = stored.keys().chain(self.records.keys());
        let wrong = keys.into_iter().find(|key| stored.get(*key) != self.records.get(*key));
        let text = format!("{} differs", wrong.map_or("nothing", |key| key.as_str()));
        Err(Violation::new(ViolationKind::Watch, text))
    }
}
