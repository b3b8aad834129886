//! Tends one lease for as long as it is this node's: keeps it, follows the others', and keeps the kernel as they want it. One loop; events
//! of the kernel only mark that a look is due.

use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::time::Duration;

use russet_lease::{Lease, LeaseWatch, Lost, gather};
use tokio::time::Instant;

use crate::carrier::Carrier;
use crate::peers::{Delta, Peers};
use crate::run::{Daemon, Place};
use crate::telling::Telling;

/// A lease at work.
pub(crate) struct Tending<'a> {
    daemon: &'a Daemon,
    place: &'a Place,
    carrier: &'a mut Carrier,
    lease: &'a Lease,
    telling: Telling<'a>,
    peers: Peers,
    /// When the kernel is to be compared with what should be.
    look: Instant,
    /// When that happened last.
    looked: Instant,
    /// Whether the other nodes' leases are known: before that, what the kernel has of them must not be taken for leftovers.
    listed: bool,
    /// When the store is to be told again what the lease should say, while it does not know.
    unpublished: Option<Instant>,
}

/// Events taken in one go.
const EVENTS_MAX: usize = 10_000;
/// The kernel is compared with what should be at least this often.
const RESYNC: Duration = Duration::from_secs(60);
/// The next look after one that could not put everything right; what is refused for good is logged no more often than this.
const UNSETTLED: Duration = Duration::from_secs(15);
/// A look soon after something stirred, so that what belongs together is seen together.
const SOON: Duration = Duration::from_millis(20);
/// Shortest pause between looks: somebody may fight for our objects.
const FIGHT_PAUSE: Duration = Duration::from_millis(500);
/// Pause before another try at something that the datastore refused.
const RETRY: Duration = Duration::from_secs(1);

// === impl Tending ===

impl<'a> Tending<'a> {
    pub(crate) fn new(
        daemon: &'a Daemon,
        place: &'a Place,
        carrier: &'a mut Carrier,
        lease: &'a Lease,
        telling: Telling<'a>,
    ) -> Self {
        let peers = Peers::new(place.backend.clone(), &lease.key, &place.external);
        let now = Instant::now();
        Self {
            daemon,
            place,
            carrier,
            lease,
            telling,
            peers,
            look: now + RESYNC,
            looked: now,
            listed: false,
            unpublished: None,
        }
    }

    /// Runs until the lease is lost.
    pub(crate) async fn run(mut self) -> Lost {
        let daemon = self.daemon;
        let lease = self.lease;
        let mut lost = daemon.leases.keep(lease, daemon.margin);
        let ready = async {
            if let Err(error) = daemon.leases.ready(lease).await {
                tracing::warn!(%error, "say that the network is up");
            }
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            lost = &mut lost => lost,
            never = ready => match never {},
            never = self.follow() => match never {},
        }
    }

    /// Follows leases and kernel; never ends.
    async fn follow(&mut self) -> Infallible {
        let daemon = self.daemon;
        let mut watch = self.watch().await;
        if watch.is_none() {
            // Nobody else's lease matters; what another backend left goes.
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
                () = self.carrier.stirred() => {
                    self.look = self.look.min((Instant::now() + SOON).max(self.looked + FIGHT_PAUSE));
                }
                // A flush takes the guard of the tunnel with the rules.
                () = daemon.status.rules_repaired.notified() => {
                    self.look = self.look.min((Instant::now() + SOON).max(self.looked + FIGHT_PAUSE));
                }
                () = tokio::time::sleep_until(self.look), if self.listed => self.resync().await,
                () = tokio::time::sleep_until(publish_at.unwrap_or(self.look)), if publish_at.is_some() => {
                    self.publish().await;
                }
                () = self.telling.due() => self.telling.tell(),
            }
        }
    }

    /// The watch of the other leases; none where nobody needs one.
    async fn watch(&self) -> Option<Box<dyn LeaseWatch>> {
        if !self.place.backend.watches() {
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
                self.looked = Instant::now();
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
            self.look = self.look.min(Instant::now() + RETRY);
        }
    }

    async fn resync(&mut self) {
        self.looked = Instant::now();
        let (settled, news) = self.carrier.resync(&self.daemon.status).await;
        self.look = Instant::now() + if settled { RESYNC } else { UNSETTLED };
        if news {
            tracing::warn!("this node's tunnel has another MAC than was told: it is told anew");
            self.publish().await;
        }
    }

    /// Writes what the lease should say; to be called again until the store takes it.
    async fn publish(&mut self) {
        let attributes = self.place.attributes(self.carrier.announced());
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
