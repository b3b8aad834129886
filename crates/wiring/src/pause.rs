//! The pause between two attempts at a record that other writers keep changing. The agent's
//! allocators use it, and those that a single request opens.

use russet_ipam::{Backoff, delay};
use russet_linux::random::random;
use russet_store::BoxFuture;

/// Pauses on the runtime's timer, at random lengths, so that two nodes do not try in step.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pause;

impl Backoff for Pause {
    fn wait(&self, attempt: u32) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(delay(attempt, u64::from_ne_bytes(random()))))
    }
}
