//! The suite over the engines of this crate.

use std::cell::RefCell;

use super::*;
use crate::embedded::Options;
use crate::remote::owner::Owner;
use crate::sim::Faults;
use crate::{Embedded, Remote, Sim};

/// An embedded store in its own directory.
struct OnDisk {
    store: Embedded,
    directory: tempfile::TempDir,
}

struct Simulated(Sim);

/// An embedded store behind its owner's socket. Each client has its own connection, and an
/// interruption restarts the owner.
struct Served {
    disk: OnDisk,
    owner: RefCell<Owner>,
}

// === impl OnDisk ===

impl OnDisk {
    fn open(options: Options) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Embedded::open_with(directory.path().join("store.redb"), options).unwrap();
        Self { store, directory }
    }

    fn socket(&self) -> std::path::PathBuf {
        self.directory.path().join("store.sock")
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

// === impl Served ===

impl Served {
    fn start(options: Options) -> Self {
        let disk = OnDisk::open(options);
        let owner = Owner::start(disk.store.clone(), &disk.socket());
        Self { disk, owner: RefCell::new(owner) }
    }
}

impl Subject for Served {
    fn store(&self) -> Rc<dyn Store> {
        Rc::new(Remote::connect_with(self.disk.socket(), TIMEOUT))
    }

    fn interrupt(&self) -> BoxFuture<'_, ()> {
        self.owner.borrow_mut().restart(self.disk.store.clone());
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

#[tokio::test]
async fn remote_passes_core() {
    core(async || Served::start(Options::default())).await;
}

#[tokio::test]
async fn remote_with_a_tiny_change_log_passes_core() {
    core(async || Served::start(Options { log_commits: 3, ..Options::default() })).await;
}

#[tokio::test]
async fn remote_passes_atomic_and_ttl() {
    atomic(async || Served::start(Options::default())).await;
    ttl(async || Served::start(Options::default())).await;
}
