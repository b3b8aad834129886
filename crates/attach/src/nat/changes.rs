//! How often this process has changed the table: whoever keeps a picture of it knows by that whether the picture is still what requests made of it, whatever
//! the kernel told and whatever of that was lost. Written by `change`, read by the agent's repair of drift.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What this process does with the table; whichever namespace it is in.
#[derive(Debug)]
struct Changes {
    made: u64,
    under_way: u32,
}

/// A commit under way; over, and counted, when this is dropped.
pub(super) struct UnderWay(());

static CHANGES: Mutex<Changes> = Mutex::new(Changes { made: 0, under_way: 0 });

/// How many commits this process has made, also such as failed: of an answer that was lost nobody knows. None while one is under way, which may or may not
/// be in the kernel.
pub fn changes() -> Option<u64> {
    let changes = counted();
    (changes.under_way == 0).then_some(changes.made)
}

/// A commit begins.
pub(super) fn begin() -> UnderWay {
    counted().under_way += 1;
    UnderWay(())
}

fn counted() -> MutexGuard<'static, Changes> {
    CHANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl UnderWay ===

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut changes = counted();
        changes.under_way -= 1;
        changes.made += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_known_while_a_commit_is_under_way() {
        let before = changes().unwrap();
        let (one, other) = (begin(), begin());
        drop(one);
        assert_eq!(changes(), None);
        drop(other);
        assert_eq!(changes(), Some(before + 2));
    }
}
