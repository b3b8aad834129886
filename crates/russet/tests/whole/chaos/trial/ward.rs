//! A node of a trial, and what is known of its pods.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, RwLock};

use russet_testkit::Disk;
use serde_json::Value;

use crate::chaos::lane::Alive;
use crate::chaos::site::Site;
use crate::node::TestPod;

/// A node and its runtime's memory.
pub struct Ward {
    /// Where `/var` is, if its power is to be cut; it goes before the directory in which it is mounted.
    pub disk: Option<Disk>,
    /// The power is off. Plugins that had begun still run for a moment, and what they answer tells nothing any more.
    pub dark: AtomicBool,
    pub site: Site,
    /// Held for writing during GC: a runtime does nothing else meanwhile (CNI specification, GC).
    pub quiet: RwLock<()>,
    /// By container; those that are gone are in no list.
    pods: Mutex<BTreeMap<String, Entry>>,
}

/// A pod that is not gone for certain.
#[derive(Clone)]
pub struct Entry {
    pub pod: TestPod,
    pub state: State,
}

/// What must be true of a pod.
#[derive(Clone)]
pub enum State {
    /// Its ADD succeeded, and no DEL has begun: it must be there. With the result.
    There(Alive, Value),
    /// An ADD or DEL is under way, or was killed, or failed: it may be there, also in part.
    Maybe,
    /// The same, and the runtime means to send another DEL when things are quiet.
    Dead,
    /// The runtime knows nothing of it.
    Forgotten,
}

// === impl Ward ===

impl Ward {
    pub fn new(site: Site) -> Self {
        Self {
            disk: None,
            dark: AtomicBool::new(false),
            site,
            quiet: RwLock::default(),
            pods: Mutex::default(),
        }
    }

    fn pods(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Entry>> {
        self.pods.lock().unwrap()
    }

    pub fn set(&self, pod: &TestPod, state: State) {
        self.pods().insert(pod.container.clone(), Entry { pod: pod.clone(), state });
    }

    /// It must be gone from now on.
    pub fn gone(&self, pod: &TestPod) {
        self.pods().remove(&pod.container);
    }

    pub fn get(&self, container: &str) -> Option<Entry> {
        self.pods().get(container).cloned()
    }

    /// Those whose state is such.
    pub fn those(&self, such: impl Fn(&State) -> bool) -> Vec<TestPod> {
        self.pods().values().filter(|entry| such(&entry.state)).map(|entry| entry.pod.clone()).collect()
    }

    /// Those that must be there.
    pub fn alive(&self) -> Vec<(Alive, Value)> {
        let pods = self.pods();
        let there = pods.values().filter_map(|entry| match &entry.state {
            State::There(alive, result) => Some((alive.clone(), result.clone())),
            _ => None,
        });
        there.collect()
    }

    /// What the runtime has in its list.
    pub fn valid(&self) -> Vec<TestPod> {
        self.those(|state| matches!(state, State::There(..) | State::Maybe))
    }

    pub fn is_dark(&self) -> bool {
        self.dark.load(Ordering::Relaxed)
    }

    /// Everybody that was not gone, as after a power cut, when only a memory of them is left.
    pub fn forget_all(&self) -> Vec<Entry> {
        std::mem::take(&mut *self.pods()).into_values().collect()
    }
}
