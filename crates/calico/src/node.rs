//! The node as Calico's main plugin sees it.

use std::rc::Rc;

use russet_wiring::{LocalNode, NotReady, Teardown, Wiring};

use crate::clusters::Clusters;
use crate::datastore::CalicoHost;

/// The node as plugins see it that do not work on its own store: for `calico`, name and datastore
/// come from the network configuration. Clones share everything.
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

    /// The view for plugins that need no datastore.
    pub fn local(&self) -> LocalNode {
        let Self { host, wiring, teardown, .. } = self.clone();
        LocalNode { root: host.root, wiring, teardown }
    }
}
