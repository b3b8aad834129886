//! The condition of each step on the current record (calico-ipam.md section 2.1). Used by the engines that
//! store the records themselves.

use crate::{Revision, Step, StoreError};

/// Checks one step against the record's current revision, `None` if it does not exist.
pub(crate) fn check(step: &Step, current: Option<Revision>) -> Result<(), StoreError> {
    let key = || step.key().clone();
    match (step, current) {
        (Step::Put { .. }, _) | (Step::Create { .. }, None) => Ok(()),
        (Step::Create { .. }, Some(_)) => Err(StoreError::AlreadyExists { key: key() }),
        (Step::Update { .. } | Step::Delete { .. }, None) => Err(StoreError::NotFound { key: key() }),
        (Step::Delete { revision: None, .. }, Some(_)) => Ok(()),
        (Step::Update { revision, .. } | Step::Delete { revision: Some(revision), .. }, Some(current)) => {
            if *revision == current {
                Ok(())
            } else {
                Err(StoreError::Conflict { key: key() })
            }
        }
    }
}
