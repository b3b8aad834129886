//! The suite over the engines of this crate.

use super::*;
use crate::embedded::Options;
use crate::sim::Faults;
use crate::{Embedded, Sim};

/// An embedded store in a directory of its own.
struct OnDisk {
    store: Embedded,
    _directory: tempfile::TempDir,
}

struct Simulated(Sim);

// === impl OnDisk ===

impl OnDisk {
    fn open(options: Options) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Embedded::open_with(directory.path().join("store.redb"), options).unwrap();
        Self { store, _directory: directory }
    }
}

impl Subject for OnDisk {
    fn store(&self) -> Rc<dyn Store> {
        Rc::new(self.store.clone())
    }
}

// === impl Simulated ===

impl Subject for Simulated {
    fn store(&self) -> Rc<dyn Store> {
        Rc::new(self.0.clone())
    }

    fn pass(&self, time: Duration) -> BoxFuture<'_, ()> {
        self.0.advance(time);
        Box::pin(async {})
    }

    fn interrupt(&self) -> BoxFuture<'_, ()> {
        self.0.compact();
        Box::pin(async {})
    }
}

fn simulated(sim: Sim) -> Simulated {
    sim.set_faults(Faults { delayed_event: 200, compaction: 100, ..Faults::default() });
    Simulated(sim)
}

#[tokio::test]
async fn embedded_passes_core() {
    core(async || OnDisk::open(Options::default())).await;
}

#[tokio::test]
async fn embedded_with_a_tiny_change_log_passes_core() {
    core(async || OnDisk::open(Options { log_commits: 3, ..Options::default() })).await;
}

#[tokio::test]
async fn embedded_passes_atomic() {
    atomic(async || OnDisk::open(Options::default())).await;
}

#[tokio::test]
async fn embedded_passes_ttl() {
    ttl(async || OnDisk::open(Options::default())).await;
}

#[tokio::test]
async fn atomic_simulation_passes_core_atomic_and_ttl() {
    core(async || simulated(Sim::atomic(1))).await;
    atomic(async || simulated(Sim::atomic(2))).await;
    ttl(async || simulated(Sim::atomic(3))).await;
}

#[tokio::test]
async fn non_atomic_simulation_passes_core_and_ttl() {
    core(async || simulated(Sim::non_atomic(1))).await;
    ttl(async || simulated(Sim::non_atomic(2))).await;
}
