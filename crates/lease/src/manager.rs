//! The interface between the daemon and the sources of subnets.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use russet_model::flannel::{Attributes, NetworkConfig, SubnetKey};

use crate::LeaseError;

/// A boxed future. Not `Send`: the daemon's callers live on one thread.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A node's subnets and its attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub key: SubnetKey,
    /// The attributes that the node publishes; shared, because a watch and its reader both keep
    /// those of thousands of nodes.
    pub attributes: Arc<Attributes>,
    /// When it ends unless it is renewed. None for a reservation, for Kubernetes, and for the
    /// leases of other nodes, where it is not needed.
    pub expires: Option<SystemTime>,
}

/// An event of the other nodes' leases. The own lease is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// All leases: the first event of a watch, and only the first.
    Snapshot(Vec<Lease>),
    /// A lease is new, or its attributes changed.
    Put(Lease),
    /// A reported lease is gone.
    Gone(SubnetKey),
}

/// The lease that a node requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// The attributes that it publishes; they also identify its lease.
    pub attributes: Attributes,
    /// Its previous subnets, from `subnet.env`; acquired again if they are free and allowed.
    pub previous: SubnetKey,
}

/// Why a lease is lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lost {
    /// Its record is gone: it expired, or was deleted.
    Gone,
    /// Its record belongs to another node now.
    Taken(Attributes),
}

// === impl Lost ===

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone => f.write_str("its record is gone: it ran out, or was deleted"),
            Self::Taken(theirs) => write!(f, "its record is now of the node at {}", theirs.public_ip),
        }
    }
}

/// Assigns subnets to a node, and reports those of other nodes.
pub trait SubnetManager {
    /// The network's configuration, with its defaults: one attempt, which the daemon repeats while
    /// [`LeaseError::is_retryable`].
    fn network(&self) -> BoxFuture<'_, Result<NetworkConfig, LeaseError>>;

    /// Acquires subnets: those that this node has already, else its previous ones, else free ones.
    fn acquire<'a>(
        &'a self,
        config: &'a NetworkConfig,
        wish: &'a Wish,
    ) -> BoxFuture<'a, Result<Lease, LeaseError>>;

    /// Watches the other nodes' leases. It resumes by itself without losing a change; the future
    /// resolves when the first list has arrived.
    fn watch<'a>(&'a self, own: &'a SubnetKey) -> BoxFuture<'a, Result<Box<dyn LeaseWatch>, LeaseError>>;

    /// Renews the acquired lease `margin` before its end, repeatedly, and returns when it is lost.
    /// Never returns where leases do not end.
    fn keep<'a>(&'a self, lease: &'a Lease, margin: Duration) -> BoxFuture<'a, Lost>;

    /// Writes changed attributes of the acquired lease, which later renewals keep.
    fn publish<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<(), LeaseError>>;

    /// To be run once beside [`SubnetManager::keep`] when the backend works: publishes that the
    /// network is up. On a store, it writes the lease once more some seconds later, for peers that
    /// lost the first event (flannel.md section 12 item 4).
    fn ready<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<(), LeaseError>>;
}

/// A watch of leases. Dropping it ends it; dropping a pending `next` loses nothing.
pub trait LeaseWatch {
    /// The next event; the first is a snapshot. Waits until something changes, and handles errors
    /// of the store by itself.
    fn next(&mut self) -> BoxFuture<'_, Event>;
}

/// Waits for an event and takes up to `limit` queued ones, so that a thousand leases are programmed
/// as one change.
pub async fn gather(watch: &mut dyn LeaseWatch, limit: usize) -> Vec<Event> {
    let mut events = vec![watch.next().await];
    poll_fn(|context| {
        while events.len() < limit {
            match watch.next().as_mut().poll(context) {
                Poll::Ready(event) => events.push(event),
                Poll::Pending => break,
            }
        }
        Poll::Ready(())
    })
    .await;
    events
}
