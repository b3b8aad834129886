//! What is believed of a datastore for a moment without asking again: that it is not locked, and that a network has its profile. The agent keeps its
//! datastores open from request to request; pods that come in a crowd then cost no request for either.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use russet_addr::NetworkName;

/// What was seen lately.
#[derive(Debug, Default)]
pub struct Recent {
    ready: Cell<Option<Instant>>,
    profiles: RefCell<BTreeMap<NetworkName, Instant>>,
}

/// As long as the agent's allocator believes pools: an operator who locks the datastore waits longer than that for what is under way.
const MAX_AGE: Duration = Duration::from_secs(1);

// === impl Recent ===

impl Recent {
    /// Whether the datastore was not locked a moment ago.
    pub fn is_ready(&self) -> bool {
        self.ready.get().is_some_and(|seen| seen.elapsed() < MAX_AGE)
    }

    /// It was not locked when it was asked, at `asked` or later: an answer that took long is believed for less long.
    pub fn saw_ready(&self, asked: Instant) {
        self.ready.set(self.ready.get().max(Some(asked)));
    }

    /// Whether the network had its profile a moment ago.
    pub fn has_profile(&self, network: &NetworkName) -> bool {
        self.profiles.borrow().get(network).is_some_and(|seen| seen.elapsed() < MAX_AGE)
    }

    /// It had its profile when that was asked for, at `asked` or later.
    pub fn saw_profile(&self, network: &NetworkName, asked: Instant) {
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
    fn what_was_asked_for_a_second_ago_is_not_believed_however_late_the_answer_came() {
        let (recent, network) = (Recent::default(), "net1".parse().unwrap());
        let long_ago = Instant::now().checked_sub(MAX_AGE).unwrap();
        recent.saw_ready(long_ago);
        recent.saw_profile(&network, long_ago);
        assert!(!recent.is_ready() && !recent.has_profile(&network));
        // What came back earlier, and was asked for later, counts.
        let later = Instant::now() + MAX_AGE;
        for asked in [later, long_ago] {
            recent.saw_ready(asked);
            recent.saw_profile(&network, asked);
        }
        assert!(recent.is_ready() && recent.has_profile(&network));
        assert!(!recent.has_profile(&"net2".parse().unwrap()));
    }
}
