//! The pause between two attempts at a record that somebody else keeps writing.

use russet_ipam::{Backoff, delay};
use russet_store::BoxFuture;

/// Pauses on the agent's own timer, at random lengths.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pause;

impl Backoff for Pause {
    fn wait(&self, attempt: u32) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(delay(attempt, random())))
    }
}

/// A random number, good enough to keep two nodes from trying in step.
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    // The kernel's generator does not fail once it is seeded, which is long before any network.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}
