//! Maintains one lease for as long as it is this node's: renews it, follows the others', and keeps
//! the kernel in the desired state. One loop; kernel events only schedule a comparison.

use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::time::Duration;

use russet_lease::{Lease, LeaseWatch, Lost, gather};
use tokio::time::Instant;

use crate::carrier::Carrier;
use crate::peers::{Delta, Peers};
use crate::readiness::ReadinessPublisher;
use crate::run::{Daemon, NetworkContext};

/// A maintained lease.
pub(crate) struct LeaseMaintainer<'a> {
    daemon: &'a Daemon,
    context: &'a NetworkContext,
    carrier: &'a mut Carrier,
    lease: &'a Lease,
    readiness: ReadinessPublisher<'a>,
    peers: Peers,
    /// The time of the next comparison of the kernel with the desired state.
    next_resync: Instant,
    /// The time of the last comparison.
    last_resync: Instant,
    /// Whether the other nodes' leases are known: before that, their objects in the kernel must not
    /// be removed.
    listed: bool,
    /// The time of the next attempt to publish changed lease data, if the store lacks them.
    unpublished: Option<Instant>,
}

/// Limit of events taken at once.
const EVENTS_MAX: usize = 10_000;
/// The kernel is compared at least this often.
const RESYNC: Duration = Duration::from_secs(60);
/// Interval of comparisons after one that could not repair everything; it bounds how often
/// permanent errors are logged.
const RETRY_RESYNC: Duration = Duration::from_secs(15);
/// Delay of a comparison after an event, so that related events are handled together.
const RESYNC_DELAY: Duration = Duration::from_millis(20);
/// Shortest interval of comparisons, because another program may keep changing our objects.
const RESYNC_MIN_INTERVAL: Duration = Duration::from_millis(500);
/// Pause before another attempt after the datastore refused a request.
const RETRY: Duration = Duration::from_secs(1);

// === impl LeaseMaintainer ===

impl<'a> LeaseMaintainer<'a> {
    pub(crate) fn new(
        daemon: &'a Daemon,
        context: &'a NetworkContext,
        carrier: &'a mut Carrier,
        lease: &'a Lease,
        readiness: ReadinessPublisher<'a>,
    ) -> Self {
        let peers = Peers::new(context.backend.clone(), &lease.key, &context.external);
        let now = Instant::now();
        // Some of it is known only once there is a lease.
        let is_published = lease.attributes.backend_data == carrier.announced().data;
        Self {
            daemon,
            context,
            carrier,
            lease,
            readiness,
            peers,
            next_resync: now + RESYNC,
            last_resync: now,
            listed: false,
            unpublished: (!is_published).then_some(now),
        }
    }

    /// Runs until the lease is lost.
    pub(crate) async fn run(mut self) -> Lost {
        let daemon = self.daemon;
        let lease = self.lease;
        let mut lost = daemon.leases.keep(lease, daemon.margin);
        let ready = async {
            if let Err(error) = daemon.leases.ready(lease).await {
                tracing::warn!(%error, "publish that the network is up");
            }
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            lost = &mut lost => lost,
            never = ready => match never {},
            never = self.follow() => match never {},
        }
    }

    /// Follows leases and kernel; never returns.
    async fn follow(&mut self) -> Infallible {
        let daemon = self.daemon;
        let mut watch = self.watch().await;
        if watch.is_none() {
            // Other nodes' leases are not needed; leftovers of another backend are removed.
            self.apply(Delta::All).await;
        }
        loop {
            let publish_at = self.unpublished;
            let next = async {
                match &mut watch {
                    Some(watch) => gather(watch.as_mut(), EVENTS_MAX).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                events = next => {
                    let delta = self.peers.take(events);
                    self.apply(delta).await;
                }
                () = self.carrier.changed_externally() => {
                    self.next_resync = self.next_resync.min((Instant::now() + RESYNC_DELAY).max(self.last_resync + RESYNC_MIN_INTERVAL));
                }
                // A flush of the ruleset also removes the guard of the tunnel.
                () = daemon.status.rules_repaired.notified() => {
                    self.next_resync = self.next_resync.min((Instant::now() + RESYNC_DELAY).max(self.last_resync + RESYNC_MIN_INTERVAL));
                }
                () = tokio::time::sleep_until(self.next_resync), if self.listed => self.resync().await,
                () = tokio::time::sleep_until(publish_at.unwrap_or(self.next_resync)), if publish_at.is_some() => {
                    self.publish().await;
                }
                () = self.readiness.due() => self.readiness.publish(),
            }
        }
    }

    /// The watch of the other leases; none if they are not needed.
    async fn watch(&self) -> Option<Box<dyn LeaseWatch>> {
        if !self.context.backend.watches() {
            return None;
        }
        loop {
            match self.daemon.leases.watch(&self.lease.key).await {
                Ok(watch) => return Some(watch),
                Err(error) => {
                    tracing::warn!(%error, "watch the other nodes' leases");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }

    async fn apply(&mut self, delta: Delta) {
        let status = &self.daemon.status;
        let done = match delta {
            Delta::All => {
                self.listed = true;
                self.last_resync = Instant::now();
                self.carrier.reset(self.peers.all().cloned().collect(), status).await
            }
            Delta::Some { gone, put } if gone.is_empty() && put.is_empty() => true,
            Delta::Some { gone, put } => {
                for lease in &gone {
                    tracing::info!(subnet = %lease.key, "a node's lease is gone");
                }
                for lease in &put {
                    tracing::info!(subnet = %lease.key, at = %lease.attributes.public_ip, "a node's lease is new");
                }
                status.changes.fetch_add((gone.len() + put.len()) as u64, Ordering::Relaxed);
                self.carrier.change(gone, put, status).await
            }
        };
        status.peers.store(self.peers.len() as u64, Ordering::Relaxed);
        if !done {
            self.next_resync = self.next_resync.min(Instant::now() + RETRY);
        }
    }

    async fn resync(&mut self) {
        self.last_resync = Instant::now();
        let (settled, news) = self.carrier.resync(&self.daemon.status).await;
        self.next_resync = Instant::now() + if settled { RESYNC } else { RETRY_RESYNC };
        if news {
            tracing::warn!(
                "what other nodes have to know of this node's tunnel has changed: publishing it again"
            );
            self.publish().await;
        }
    }

    /// Publishes the lease data; called again until the store accepts them.
    async fn publish(&mut self) {
        let attributes = self.context.attributes(self.carrier.announced()).into();
        let lease = Lease { attributes, ..self.lease.clone() };
        match self.daemon.leases.publish(&lease).await {
            Ok(()) => self.unpublished = None,
            Err(error) => {
                self.unpublished = Some(Instant::now() + RETRY);
                tracing::warn!(%error, "publish what changed of this node");
            }
        }
    }
}
