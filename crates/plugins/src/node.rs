//! What plugins work with: the node's name, its store, and access to its kernel.

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

/// How DEL removes interfaces.
#[derive(Debug, Clone)]
pub enum Teardown {
    /// They are deleted before DEL answers.
    Synchronous,
    /// They are doomed, and the reaper is notified.
    Deferred(Rc<tokio::sync::Notify>),
    /// They are doomed. [`Wiring::reap_batch`] deletes them before DEL answers, together with links
    /// that other processes have doomed by then.
    Batched,
}

/// The node, as plugins see it. Clones share everything.
#[derive(Clone)]
pub struct Node {
    pub name: NodeName,
    pub store: Rc<dyn Store>,
    /// The IPAM allocator over `store`.
    pub allocator: Rc<Allocator>,
    /// Access to the kernel.
    pub wiring: Wiring,
    /// MTU of pods, in bytes; the agent updates it.
    pub mtu_bytes: Rc<Cell<u32>>,
    /// What DEL does with interfaces.
    pub teardown: Teardown,
    /// The reason why ADD cannot be served, if there is one.
    pub not_ready: Rc<dyn Fn() -> Option<NotReady>>,
    /// Datastores and locks for Calico's plugins.
    pub calico: CalicoHost,
    /// Kubernetes API servers that configurations name.
    pub clusters: Clusters,
    /// Addresses of answered DELs that are still being released.
    pub releases: Releases,
}

/// The node as the plugin `calico` sees it: name and datastore come from the network configuration.
/// Clones share everything.
#[derive(Clone)]
pub struct CalicoNode {
    /// The part that needs no kernel.
    pub host: CalicoHost,
    /// Access to the kernel.
    pub wiring: Wiring,
    /// What DEL does with interfaces.
    pub teardown: Teardown,
    /// Kubernetes API servers that configurations name.
    pub clusters: Clusters,
    /// The reason why ADD cannot be served, if there is one.
    pub not_ready: Rc<dyn Fn() -> Option<NotReady>>,
}

/// The node as plugins see it that need only its files and its kernel. Clones share everything.
#[derive(Clone)]
pub struct LocalNode {
    /// The directory below which default files lie: `/`, except in tests and demos.
    pub root: PathBuf,
    /// Access to the kernel.
    pub wiring: Wiring,
    /// What DEL does with interfaces.
    pub teardown: Teardown,
}

/// Why ADD cannot be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotReady {
    /// Text for operators.
    pub reason: String,
    /// The node has pods, and has lost its datastore or a part of its data path: their connectivity
    /// may be out of date.
    pub pods_suffer: bool,
}

// === impl Node ===

impl Node {
    /// Returns a copy for an ADD whose caller gives up at `limit`.
    pub fn for_add(&self, limit: Instant) -> Self {
        Self { wiring: self.wiring.for_add(limit), ..self.clone() }
    }

    /// The view for the plugin `calico`.
    pub fn for_calico(&self) -> CalicoNode {
        let Self { calico, wiring, teardown, clusters, not_ready, .. } = self.clone();
        CalicoNode { host: calico, wiring, teardown, clusters, not_ready }
    }

    /// The view for plugins that need no datastore.
    pub fn local(&self) -> LocalNode {
        let Self { calico, wiring, teardown, .. } = self.clone();
        LocalNode { root: calico.root, wiring, teardown }
    }
}

// === impl LocalNode ===

impl LocalNode {
    /// A node without an agent, for one request.
    pub fn for_request(root: PathBuf) -> Self {
        Self { root, wiring: Wiring::default(), teardown: Teardown::Batched }
    }
}

// === impl CalicoNode ===

impl CalicoNode {
    /// A node without an agent, for one request.
    pub fn for_request(host: CalicoHost) -> Self {
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
    /// When and how links are deleted.
    pub fn removal(&self) -> Removal {
        match self {
            Self::Synchronous => Removal::Synchronous,
            Self::Deferred(_) => Removal::Deferred,
            Self::Batched => Removal::Batched,
        }
    }

    /// Whether links are gone before DEL answers.
    pub(crate) fn is_synchronous(&self) -> bool {
        matches!(self, Self::Synchronous | Self::Batched)
    }

    /// Notifies the reaper that there may be doomed links.
    pub fn doomed(&self) {
        if let Self::Deferred(reaper) = self {
            reaper.notify_one();
        }
    }
}
