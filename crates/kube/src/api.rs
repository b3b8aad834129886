//! The interface that callers use. Its implementation speaks HTTP to an API server.

use std::future::Future;
use std::pin::Pin;

use crate::{KubeError, Namespace, Node, Pod, StatusPatch};

/// A boxed future. Not `Send`: callers live on one thread.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Our calls to a Kubernetes API server. Every call has a deadline; reads are repeated within it,
/// patches are not.
pub trait Kubernetes {
    /// Reads one node.
    fn node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Node, KubeError>>;

    /// Reads one namespace.
    fn namespace<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Namespace, KubeError>>;

    /// Reads one pod.
    fn pod<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Pod, KubeError>>;

    /// Patches a pod's annotations or conditions through its `status` subresource, the only patch
    /// that a CNI plugin's account permits (calico-cni.md sections 1.9 and 2.2.4), and returns the
    /// resulting pod.
    fn patch_pod_status<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        patch: &'a StatusPatch,
    ) -> BoxFuture<'a, Result<Pod, KubeError>>;

    /// The same for a node (flannel.md section 5.2, steps 5 and 6).
    fn patch_node_status<'a>(
        &'a self,
        name: &'a str,
        patch: &'a StatusPatch,
    ) -> BoxFuture<'a, Result<Node, KubeError>>;

    /// Watches all nodes: a snapshot first, then changes (flannel.md section 5.2, step 3).
    fn watch_nodes(&self) -> BoxFuture<'_, Result<Box<dyn NodeWatch>, KubeError>>;
}

/// A watch of all nodes. It survives lost connections, the server's own time limits and 410 Gone by
/// itself. Dropping it ends it; dropping a pending `next` loses nothing.
pub trait NodeWatch {
    /// The next event; the first is always a snapshot. Waits until something changes. After an
    /// error (the server is unreachable, or refuses us) the caller may wait and call again: the
    /// watch then resumes.
    fn next(&mut self) -> BoxFuture<'_, Result<NodeEvent, KubeError>>;
}

/// An event of a watch of nodes.
pub type NodeEvent = ObjectEvent<Node>;

/// An event of a watch of objects.
#[derive(Debug, Clone, PartialEq)]
pub enum ObjectEvent<T> {
    /// All existing objects. Objects that it lacks are gone, even without a `Deleted` event. It comes
    /// first, and again whenever the server has forgotten the events since the last one (410 Gone).
    Snapshot(Vec<T>),
    /// An object was added or changed.
    Changed(T),
    /// An object is gone; this is its last known state.
    Deleted(T),
}
