//! Counts this process's changes of the table. A caller with a snapshot of the table uses the count
//! to know whether the snapshot is still what our requests left, independent of kernel events,
//! which may be lost. Written by `change`, read by the agent's drift repair.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Changes of the table by this process, in any namespace.
#[derive(Debug)]
struct Changes {
    made: u64,
    in_progress: u32,
}

/// A commit in progress; it ends, and is counted, when this is dropped.
pub(super) struct InProgress(());

static CHANGES: Mutex<Changes> = Mutex::new(Changes { made: 0, in_progress: 0 });

/// Number of commits of this process, including failed ones: if the answer was lost, the result is
/// unknown. None while one is in progress, which may or may not be in the kernel.
pub fn changes() -> Option<u64> {
    let changes = counted();
    (changes.in_progress == 0).then_some(changes.made)
}

/// A commit begins.
pub(super) fn begin() -> InProgress {
    counted().in_progress += 1;
    InProgress(())
}

fn counted() -> MutexGuard<'static, Changes> {
    CHANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl InProgress ===

impl Drop for InProgress {
    fn drop(&mut self) {
        let mut changes = counted();
        changes.in_progress -= 1;
        changes.made += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_no_count_while_a_commit_is_in_progress() {
        let before = changes().unwrap();
        let (one, other) = (begin(), begin());
        drop(one);
        assert_eq!(changes(), None);
        drop(other);
        assert_eq!(changes(), Some(before + 2));
    }
}
