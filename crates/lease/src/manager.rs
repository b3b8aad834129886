//! The interface between the daemon and whatever gives out subnets.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, SystemTime};

use russet_model::flannel::{Attributes, NetworkConfig, SubnetKey};

use crate::LeaseError;

/// A boxed future. Not `Send`: the daemon's callers live on one thread.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A node's subnets, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The subnets.
    pub key: SubnetKey,
    /// What the node tells of itself.
    pub attributes: Attributes,
    /// When it ends unless it is renewed. None for a reservation, for Kubernetes, and for the leases of others, of which nobody needs to know it.
    pub expires: Option<SystemTime>,
}

/// What a watch tells of the other nodes' leases. The own one is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// All of them: the first event of a watch, and only the first.
    Snapshot(Vec<Lease>),
    /// One is new, or says something else.
    Put(Lease),
    /// One that was told of is gone.
    Gone(SubnetKey),
}

/// What a node wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// What it tells of itself; also what its lease is recognised by.
    pub attributes: Attributes,
    /// What it had before, from `subnet.env`; taken again where that is free and allowed.
    pub previous: SubnetKey,
}

/// Why a lease is no longer ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lost {
    /// Its record is gone: it ran out, or somebody deleted it.
    Gone,
    /// Its record is another node's now.
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

/// Gives a node its subnets, and tells it of the others'.
pub trait SubnetManager {
    /// The network's configuration, with its defaults: one attempt, which the daemon repeats while [`LeaseError::is_retryable`].
    fn network(&self) -> BoxFuture<'_, Result<NetworkConfig, LeaseError>>;

    /// Takes subnets: those that this node has already, else those that it had, else free ones.
    fn acquire<'a>(
        &'a self,
        config: &'a NetworkConfig,
        wish: &'a Wish,
    ) -> BoxFuture<'a, Result<Lease, LeaseError>>;

    /// Follows the other nodes' leases. Resumes by itself, without losing a change; the future ends when the first listing is there.
    fn watch<'a>(&'a self, own: &'a SubnetKey) -> BoxFuture<'a, Result<Box<dyn LeaseWatch>, LeaseError>>;

    /// Renews the acquired lease `margin` before its end, again and again, and returns when it is lost. Never returns where leases do not end.
    fn keep<'a>(&'a self, lease: &'a Lease, margin: Duration) -> BoxFuture<'a, Lost>;

    /// Writes changed attributes of the acquired lease, and makes them those that are kept.
    fn publish<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<(), LeaseError>>;

    /// To be run once beside [`SubnetManager::keep`] when the backend works: tells whoever waits for that. On a store, writes the lease once more some
    /// seconds later, for peers that lost the first event (flannel.md section 12 item 4).
    fn ready<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<(), LeaseError>>;
}

/// A watch of leases. Dropping it ends it; dropping a pending `next` loses nothing.
pub trait LeaseWatch {
    /// The next event; the first is a snapshot. Waits for ever when nothing changes, and goes over trouble with the store by itself.
    fn next(&mut self) -> BoxFuture<'_, Event>;
}

/// Waits for an event and takes those along that are there already, at most `limit`: so that a thousand leases are programmed as one change.
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
