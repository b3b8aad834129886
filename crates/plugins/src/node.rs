//! What plugins work with: the node's name, its store, and access to its kernel.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use russet_addr::NodeName;
use russet_attach::Pair;
use russet_calico::CalicoNode;
use russet_cni_spec::CniError;
use russet_ipam::Allocator;
use russet_netlink::PacketSizes;
use russet_store::{BoxFuture, Store};

use crate::releases::Releases;

/// The node, as plugins see it. Clones share everything.
#[derive(Clone)]
pub struct Node {
    pub name: NodeName,
    pub store: Rc<dyn Store>,
    /// The IPAM allocator over `store`.
    pub allocator: Rc<Allocator>,
    /// MTU of pods, in bytes; the agent updates it.
    pub mtu_bytes: Rc<Cell<u32>>,
    /// The largest packets of new pods inside the kernel, if it is not the kernel's default; the agent updates it.
    pub packet_sizes: Rc<Cell<Option<PacketSizes>>>,
    /// What the interfaces of new pods are.
    pub pair: Pair,
    /// The part that plugins without `store` use, too.
    pub host: CalicoNode,
    /// Addresses of answered DELs that are still being released.
    pub releases: Releases,
    /// Publishes the addresses of pods outside the store. Only with a store in the Kubernetes API.
    pub announce: Option<Rc<dyn Announce>>,
}

/// A sandbox of a Kubernetes pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSandbox {
    pub namespace: String,
    pub name: String,
    /// The pod's UID, if the runtime says it.
    pub uid: Option<String>,
    /// The container ID.
    pub container: String,
}

/// Publishes the addresses of pods where programs of Calico read them.
pub trait Announce {
    /// The last step of an ADD: the pod has these addresses, written as prefixes.
    fn announce<'a>(
        &'a self,
        sandbox: &'a PodSandbox,
        addresses: &'a [String],
    ) -> BoxFuture<'a, Result<(), CniError>>;

    /// Before the addresses are released: no program must take them for the pod's any more. Does nothing if
    /// the pod is gone, or has another sandbox.
    fn withdraw<'a>(&'a self, sandbox: &'a PodSandbox) -> BoxFuture<'a, Result<(), CniError>>;
}

// === impl Node ===

impl Node {
    /// Returns a copy for an ADD whose caller gives up at `limit`.
    pub fn for_add(&self, limit: Instant) -> Self {
        let mut node = self.clone();
        node.host.wiring = self.host.wiring.for_add(limit);
        node
    }
}
