//! What plugins work with: this node's name, its store, and its way to the kernel.

use std::cell::Cell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use russet_addr::NodeName;
use russet_attach::Removal;
use russet_ipam::Allocator;
use russet_store::Store;

pub use russet_ipam::{Clock, SystemClock};

use crate::clusters::Clusters;
use crate::datastore::CalicoHost;
use crate::releases::Releases;
use crate::wiring::Wiring;

/// Where interfaces of deleted pods go.
#[derive(Debug, Clone)]
pub enum Teardown {
    /// They are deleted before DEL answers.
    Synchronous,
    /// They are doomed, and the reaper is told.
    Deferred(Rc<tokio::sync::Notify>),
    /// They are doomed, and [`Wiring::reap_batch`] deletes them before DEL answers, together with what other processes have doomed by then.
    Batched,
}

/// A node, as plugins see it. Clones share everything.
#[derive(Clone)]
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// The datastore.
    pub store: Rc<dyn Store>,
    /// The allocator over it.
    pub allocator: Rc<Allocator>,
    /// The way to the kernel.
    pub wiring: Wiring,
    /// MTU of pods, in bytes; the agent keeps it up to date.
    pub mtu_bytes: Rc<Cell<u32>>,
    /// What DEL does with interfaces.
    pub teardown: Teardown,
    /// Why ADD cannot be served, if it cannot.
    pub not_ready: Rc<dyn Fn() -> Option<NotReady>>,
    /// What plugins of Calico's work with.
    pub calico: CalicoHost,
    /// Kubernetes, as configurations name it.
    pub clusters: Clusters,
    /// Addresses that are on their way back.
    pub releases: Releases,
}

/// A node, as the plugin `calico` sees it: its name and its datastore are the configuration's. Clones share everything.
#[derive(Clone)]
pub struct CalicoNode {
    /// What needs no kernel.
    pub host: CalicoHost,
    /// The way to the kernel.
    pub wiring: Wiring,
    /// What DEL does with interfaces.
    pub teardown: Teardown,
    /// Kubernetes, as configurations name it.
    pub clusters: Clusters,
    /// Why ADD cannot be served, if it cannot.
    pub not_ready: Rc<dyn Fn() -> Option<NotReady>>,
}

/// A node, as plugins see it that work on its files and its kernel alone. Clones share everything.
#[derive(Clone)]
pub struct LocalNode {
    /// Below which default files lie: `/`, except in tests and demos.
    pub root: PathBuf,
    /// The way to the kernel.
    pub wiring: Wiring,
    /// What DEL does with interfaces.
    pub teardown: Teardown,
}

/// Why ADD cannot be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotReady {
    /// For people.
    pub reason: String,
    /// The node has pods, and has lost its datastore or a part of its data path: what they reach may no longer follow the cluster.
    pub pods_suffer: bool,
}

// === impl Node ===

impl Node {
    /// The same node for an ADD whose caller gives up then.
    pub fn of_add(&self, limit: Instant) -> Self {
        Self { wiring: self.wiring.of_add(limit), ..self.clone() }
    }

    /// The same node for the plugin `calico`.
    pub fn for_calico(&self) -> CalicoNode {
        let Self { calico, wiring, teardown, clusters, not_ready, .. } = self.clone();
        CalicoNode { host: calico, wiring, teardown, clusters, not_ready }
    }

    /// The same node for plugins that need no datastore.
    pub fn local(&self) -> LocalNode {
        let Self { calico, wiring, teardown, .. } = self.clone();
        LocalNode { root: calico.root, wiring, teardown }
    }
}

// === impl LocalNode ===

impl LocalNode {
    /// A node without an agent, for one request.
    pub fn of_request(root: PathBuf) -> Self {
        Self { root, wiring: Wiring::default(), teardown: Teardown::Batched }
    }
}

// === impl CalicoNode ===

impl CalicoNode {
    /// A node without an agent, for one request.
    pub fn of_request(host: CalicoHost) -> Self {
        Self {
            host,
            wiring: Wiring::default(),
            teardown: Teardown::Batched,
            clusters: Clusters::default(),
            not_ready: Rc::new(|| None),
        }
    }
}

// === impl Teardown ===

impl Teardown {
    /// When links go.
    pub fn removal(&self) -> Removal {
        match self {
            Self::Synchronous => Removal::Synchronous,
            Self::Deferred(_) => Removal::Deferred,
            Self::Batched => Removal::Batched,
        }
    }

    /// Whether links go before DEL answers.
    pub(crate) fn is_synchronous(&self) -> bool {
        matches!(self, Self::Synchronous | Self::Batched)
    }

    /// Tells the reaper that there may be something to do.
    pub fn doomed(&self) {
        if let Self::Deferred(reaper) = self {
            reaper.notify_one();
        }
    }
}
