//! Caches for a moment that a datastore is not locked and that a network's profile exists. The
//! agent keeps datastores open between requests, so that a burst of pods costs no reads for either.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use russet_addr::NetworkName;

/// Recent results of checks.
#[derive(Debug, Default)]
pub struct RecentChecks {
    ready: Cell<Option<Instant>>,
    profiles: RefCell<BTreeMap<NetworkName, Instant>>,
}

/// The same as for pools in the agent's allocator: an operator who locks the datastore waits longer
/// than this for requests in progress.
const MAX_AGE: Duration = Duration::from_secs(1);

// === impl RecentChecks ===

impl RecentChecks {
    /// Whether the datastore was found unlocked within the last [`MAX_AGE`].
    pub fn is_ready(&self) -> bool {
        self.ready.get().is_some_and(|seen| seen.elapsed() < MAX_AGE)
    }

    /// Records that the datastore was unlocked. `asked` is the time before the read, so that a slow
    /// answer expires earlier.
    pub fn record_ready(&self, asked: Instant) {
        self.ready.set(self.ready.get().max(Some(asked)));
    }

    /// Whether the network's profile was found within the last [`MAX_AGE`].
    pub fn has_profile(&self, network: &NetworkName) -> bool {
        self.profiles.borrow().get(network).is_some_and(|seen| seen.elapsed() < MAX_AGE)
    }

    /// Records that the profile exists. `asked` is the time before the read.
    pub fn record_profile(&self, network: &NetworkName, asked: Instant) {
        let mut profiles = self.profiles.borrow_mut();
        profiles.retain(|_, seen| seen.elapsed() < MAX_AGE);
        let seen = profiles.entry(network.clone()).or_insert(asked);
        *seen = asked.max(*seen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_expire_by_the_time_of_the_question() {
        let (recent, network) = (RecentChecks::default(), "net1".parse().unwrap());
        let long_ago = Instant::now().checked_sub(MAX_AGE).unwrap();
        recent.record_ready(long_ago);
        recent.record_profile(&network, long_ago);
        assert!(!recent.is_ready() && !recent.has_profile(&network));
        // An answer counts by the time of its question, not by its arrival.
        let later = Instant::now() + MAX_AGE;
        for asked in [later, long_ago] {
            recent.record_ready(asked);
            recent.record_profile(&network, asked);
        }
        assert!(recent.is_ready() && recent.has_profile(&network));
        assert!(!recent.has_profile(&"net2".parse().unwrap()));
    }
}
