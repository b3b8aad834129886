//! The allocating process of one node: ours or a model of Go's, behind one interface. It is killed
//! with its node, and its cache is lost.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use russet_addr::{IfName, NodeName};
use russet_ipam::{Allocator, ReleaseOptions, Request};
use russet_model::{HandleId, KeyKind, Prefix};
use russet_store::Store;

use crate::go::Go;
use crate::plan::Kind;
use crate::wire::{SimClock, Wire};

/// A process.
pub(crate) struct Process {
    node: NodeName,
    store: Rc<Wire>,
    inner: Inner,
}

enum Inner {
    Ours(Box<Allocator>),
    Go(Go),
}

/// What an ADD asks for.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) handle: HandleId,
    pub(crate) pod: String,
    pub(crate) interface: IfName,
    pub(crate) v4: u32,
    pub(crate) v6: u32,
}

/// How long the agent's allocator caches pools, settings and labels.
const BELIEVED: Duration = Duration::from_secs(10);

/// Why an operation failed; only printed.
pub(crate) type Problem = String;

// === impl Process ===

impl Process {
    pub(crate) fn new(node: NodeName, kind: Kind, wire: Wire) -> Self {
        let log = wire.log.clone();
        let store = Rc::new(wire);
        let clock = Rc::new(SimClock(log));
        let inner = match kind {
            Kind::Ours { remembers } => {
                let allocator = Allocator::new(store.clone(), clock);
                Inner::Ours(Box::new(if remembers { allocator.with_cache(BELIEVED) } else { allocator }))
            }
            Kind::Go(version) => Inner::Go(Go::new(store.clone(), store.clone(), node.clone(), version)),
        };
        Self { node, store, inner }
    }

    pub(crate) fn is_go(&self) -> bool {
        matches!(self.inner, Inner::Go(_))
    }

    pub(crate) async fn add(&self, wanted: &Wanted) -> Result<Vec<IpAddr>, Problem> {
        match &self.inner {
            Inner::Ours(allocator) => {
                let assigned = allocator.auto_assign(&self.request(wanted)).await.map_err(to_problem)?;
                Ok(assigned.addresses.iter().map(|net| net.addr()).collect())
            }
            Inner::Go(go) => {
                go.add(&wanted.handle, &wanted.pod, wanted.v4, wanted.v6).await.map_err(|e| e.to_string())
            }
        }
    }

    pub(crate) async fn pin(&self, wanted: &Wanted, address: IpAddr) -> Result<Vec<IpAddr>, Problem> {
        match &self.inner {
            Inner::Ours(allocator) => {
                let assigned =
                    allocator.assign_ip(&self.request(wanted), address).await.map_err(to_problem)?;
                Ok(assigned.addresses.iter().map(|net| net.addr()).collect())
            }
            Inner::Go(go) => {
                go.pin(&wanted.handle, &wanted.pod, address).await.map_err(|e| e.to_string())?;
                Ok(vec![address])
            }
        }
    }

    /// DEL of one interface, or of everything that the handle holds. The Go plugin knows only the latter.
    pub(crate) async fn del(&self, handle: &HandleId, interface: Option<&IfName>) -> Result<(), Problem> {
        match &self.inner {
            Inner::Ours(allocator) => {
                allocator.release_by_handle(handle, interface).await.map_err(to_problem).map(|_| ())
            }
            Inner::Go(go) => go.del(handle).await.map_err(|e| e.to_string()),
        }
    }

    /// Gives back one by one what the handle holds, each guarded by handle and sequence number, as garbage collectors do.
    pub(crate) async fn del_addresses(&self, handle: &HandleId) -> Result<(), Problem> {
        match &self.inner {
            Inner::Ours(allocator) => {
                let held = allocator.ips_by_handle(handle).await.map_err(to_problem)?;
                let options: Vec<ReleaseOptions> = held
                    .into_iter()
                    .map(|held| ReleaseOptions {
                        address: held.address,
                        handle: Some(handle.clone()),
                        sequence_number: Some(held.sequence_number),
                    })
                    .collect();
                allocator.release_ips(&options).await.map_err(to_problem).map(|_| ())
            }
            Inner::Go(go) => go.del_addresses(handle).await.map_err(|e| e.to_string()),
        }
    }

    /// Ends one affinity of the node.
    pub(crate) async fn release_affinity(&self, pick: u64, must_be_empty: bool) -> Result<(), Problem> {
        let mut blocks = Vec::new();
        for family in russet_addr::Family::BOTH {
            let prefix = Prefix::affinities_of(&self.node, family);
            let listed = self.store.list(&prefix).await.map_err(|e| e.to_string())?;
            blocks.extend(listed.records.into_iter().filter_map(|record| match record.key.kind() {
                KeyKind::Affinity { block, .. } => Some(block),
                _ => None,
            }));
        }
        let index = pick.checked_rem(blocks.len() as u64).unwrap_or_default() as usize;
        let Some(block) = blocks.get(index).copied() else { return Ok(()) };
        match &self.inner {
            Inner::Ours(allocator) => {
                allocator.release_affinity(&self.node, block, must_be_empty).await.map_err(to_problem)
            }
            Inner::Go(go) => {
                go.release_affinity(&self.node, block, must_be_empty).await.map_err(|e| e.to_string())
            }
        }
    }

    /// Ends all affinities of the node.
    pub(crate) async fn release_node(&self) -> Result<(), Problem> {
        match &self.inner {
            Inner::Ours(allocator) => {
                allocator.release_node_affinities(&self.node, false).await.map_err(to_problem)
            }
            Inner::Go(go) => go.release_node().await.map_err(|e| e.to_string()),
        }
    }

    fn request(&self, wanted: &Wanted) -> Request {
        let request = Request::pod(self.node.clone(), wanted.handle.clone())
            .with("pod", wanted.pod.clone())
            .with("namespace", "default")
            .with("interface", wanted.interface.to_string());
        Request { v4: wanted.v4, v6: wanted.v6, ..request }
    }
}

fn to_problem(error: russet_ipam::IpamError) -> Problem {
    error.to_string()
}
