//! A node of a trial, and the expected state of its pods.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, RwLock};

use russet_testkit::Disk;
use serde_json::Value;

use crate::chaos::site::Site;
use crate::chaos::worker::Alive;
use crate::node::TestPod;

/// A node and its runtime's memory.
pub struct TrackedNode {
    /// The disk of `/var`, if its power is to be cut; dropped before the directory in which it is
    /// mounted.
    pub disk: Option<Disk>,
    /// The power is off. Plugins that had started still run for a moment, and their answers mean
    /// nothing.
    pub dark: AtomicBool,
    pub site: Site,
    /// Held for writing during GC: a runtime does nothing else meanwhile (CNI specification, GC).
    pub quiet: RwLock<()>,
    /// By container; deleted pods are in no list.
    pods: Mutex<BTreeMap<String, Entry>>,
}

/// A pod that is not known to be deleted.
#[derive(Clone)]
pub struct Entry {
    pub pod: TestPod,
    pub state: PodState,
}

/// The expected state of a pod.
#[derive(Clone)]
pub enum PodState {
    /// Its ADD succeeded, and no DEL has started: it must exist. With the result.
    There(Alive, Value),
    /// An ADD or DEL is in progress, or was killed, or failed: it may exist, also in part.
    Maybe,
    /// The same, and the runtime will send another DEL at the end of the round.
    Dead,
    /// The runtime does not know it.
    Forgotten,
}

// === impl TrackedNode ===

impl TrackedNode {
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

    pub fn set(&self, pod: &TestPod, state: PodState) {
        self.pods().insert(pod.container.clone(), Entry { pod: pod.clone(), state });
    }

    /// It must be gone from now on.
    pub fn gone(&self, pod: &TestPod) {
        self.pods().remove(&pod.container);
    }

    pub fn get(&self, container: &str) -> Option<Entry> {
        self.pods().get(container).cloned()
    }

    /// The pods whose state matches.
    pub fn those(&self, such: impl Fn(&PodState) -> bool) -> Vec<TestPod> {
        self.pods().values().filter(|entry| such(&entry.state)).map(|entry| entry.pod.clone()).collect()
    }

    /// The pods that must exist.
    pub fn alive(&self) -> Vec<(Alive, Value)> {
        let pods = self.pods();
        let there = pods.values().filter_map(|entry| match &entry.state {
            PodState::There(alive, result) => Some((alive.clone(), result.clone())),
            _ => None,
        });
        there.collect()
    }

    /// The runtime's list of valid pods.
    pub fn valid(&self) -> Vec<TestPod> {
        self.those(|state| matches!(state, PodState::There(..) | PodState::Maybe))
    }

    pub fn is_dark(&self) -> bool {
        self.dark.load(Ordering::Relaxed)
    }

    /// Removes and returns all pods, as after a power cut.
    pub fn forget_all(&self) -> Vec<Entry> {
        std::mem::take(&mut *self.pods()).into_values().collect()
    }
}
