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

    /// It is not locked.
    pub fn saw_ready(&self) {
        self.ready.set(Some(Instant::now()));
    }

    /// Whether the network had its profile a moment ago.
    pub fn has_profile(&self, network: &NetworkName) -> bool {
        self.profiles.borrow().get(network).is_some_and(|seen| seen.elapsed() < MAX_AGE)
    }

    /// It has its profile.
    pub fn saw_profile(&self, network: &NetworkName) {
        let mut profiles = self.profiles.borrow_mut();
        profiles.retain(|_, seen| seen.elapsed() < MAX_AGE);
        profiles.insert(network.clone(), Instant::now());
    }
}
