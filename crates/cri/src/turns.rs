//! Whose turn it is at a pod. Whoever wants to change one waits here, where waiting costs nothing and can be given up, and has no worker's place
//! meanwhile: calls about one pod that hangs must not take the places that all others need. Nor has whoever waits for a place a turn.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as Lock, PoisonError};

use tokio::sync::{Mutex, OwnedMutexGuard};

/// One queue for each pod that somebody is at, or waits for.
#[derive(Debug, Clone, Default)]
pub struct Turns(Arc<Lock<HashMap<String, Arc<Mutex<()>>>>>);

/// The pod is the holder's until this is dropped.
#[must_use]
pub struct Turn(OwnedMutexGuard<()>);

// === impl Turns ===

impl Turns {
    /// Waits until nobody else is at `pod`, in the order of coming.
    pub async fn at(&self, pod: String) -> Turn {
        Turn(self.queue(pod).lock_owned().await)
    }

    /// If nobody else is at `pod` now.
    pub fn try_at(&self, pod: String) -> Option<Turn> {
        self.queue(pod).try_lock_owned().ok().map(Turn)
    }

    fn queue(&self, pod: String) -> Arc<Mutex<()>> {
        let mut queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody is at these any more.
        queues.retain(|_, queue| Arc::strong_count(queue) > 1);
        Arc::clone(queues.entry(pod).or_default())
    }
}

// === impl Turn ===

impl Turn {
    /// Lets the next one.
    pub fn end(self) {
        drop(self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn one_at_a_time_at_a_pod_and_who_gives_up_is_not_waited_for() {
        let turns = Turns::default();
        let first = turns.at("a".to_owned()).await;
        let _other = turns.at("b".to_owned()).await;
        let short = Duration::from_millis(20);
        assert!(tokio::time::timeout(short, turns.at("a".to_owned())).await.is_err());
        first.end();
        turns.at("a".to_owned()).await.end();
        turns.at("c".to_owned()).await.end();
        // Those that nobody is at are forgotten when the next one comes.
        let _last = turns.at("d".to_owned()).await;
        assert_eq!(turns.0.lock().unwrap().len(), 2, "b and d");
    }
}
