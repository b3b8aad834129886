//! Leases in a store: etcd v3 or v2 shared with real `flanneld` nodes, or the embedded one of a
//! single machine.

mod acquire;
mod keep;
mod watch;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use russet_model::flannel::{Attributes, NetworkConfig, SubnetKey};
use russet_store::{LeaseId, Record, Revision, Store, StoreError};
use russet_sync::{Rng, random};
use tokio::time::Instant;

use crate::decide::Listed;
use crate::path::Paths;
use crate::write_interval::WriteInterval;
use crate::{BoxFuture, Lease, LeaseError, LeaseWatch, Lost, SubnetManager, Wish};
use watch::StoreWatch;

/// Lifetime of a lease that is not renewed: flannel's, on which its peers rely.
pub const LEASE_TTL: Duration = Duration::from_secs(86_400);

/// The keys' prefix and the seed.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The prefix of all keys.
    pub prefix: String,
    /// Seed for drawing free subnets; none: random.
    pub seed: Option<u64>,
}

/// Leases in a store.
pub struct StoreManager {
    store: Rc<dyn Store>,
    paths: Paths,
    rng: RefCell<Rng>,
    write_interval: WriteInterval,
    held: RefCell<Option<Held>>,
    /// Leases of the store that may still be attached to an abandoned record; revoked when the
    /// store answers again.
    abandoned_leases: RefCell<Vec<LeaseId>>,
}

/// The acquired lease, as it should be in the store.
#[derive(Debug, Clone)]
struct Held {
    attributes: Arc<Attributes>,
    config_v4: bool,
    /// None for a reservation.
    term: Option<Term>,
    /// The revision of this process's last write of the record.
    revision: Revision,
}

/// The store's lease to which the record is attached.
#[derive(Debug, Clone, Copy)]
struct Term {
    id: LeaseId,
    until: Instant,
    /// Its end on the system clock, which continues while the machine sleeps.
    expires: SystemTime,
}

fn store_error(operation: impl Into<String>) -> impl FnOnce(StoreError) -> LeaseError {
    let operation = operation.into();
    |source| LeaseError::Store { operation, source }
}

// === impl Settings ===

impl Settings {
    pub fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), seed: None }
    }

    /// Settings for a prefix with a leading `/`: for etcd's v2 API, which adds one anyway.
    pub fn rooted(prefix: &str) -> Self {
        Self::new(format!("/{prefix}"))
    }
}

// === impl Term ===

impl Term {
    fn new(id: LeaseId, ttl: Duration) -> Self {
        Self { id, until: Instant::now() + ttl, expires: SystemTime::now() + ttl }
    }
}

// === impl StoreManager ===

impl StoreManager {
    pub fn new(store: Rc<dyn Store>, settings: Settings) -> Self {
        // It need not be unpredictable: two nodes should not draw the same subnet, and lose only a
        // round if they do.
        let seed = settings.seed.unwrap_or_else(random);
        Self {
            store,
            paths: Paths::new(&settings.prefix),
            rng: RefCell::new(Rng::new(seed)),
            write_interval: WriteInterval::default(),
            held: RefCell::default(),
            abandoned_leases: RefCell::default(),
        }
    }

    async fn read_network(&self) -> Result<NetworkConfig, LeaseError> {
        let key = self.paths.config();
        let at = || key.to_string();
        let record = self.store.get(&key).await.map_err(store_error("read network config"))?;
        let record = record.ok_or_else(|| LeaseError::NoConfig { at: at() })?;
        let config = NetworkConfig::parse(&record.value).and_then(NetworkConfig::validated);
        config.map_err(|source| LeaseError::Config { at: at(), source })
    }

    /// Parses a record below the subnets' prefix. Warns once of garbage.
    fn read_lease(&self, record: Record) -> Option<Listed> {
        let Ok(key) = record.key.as_str().parse::<SubnetKey>() else {
            self.warn(&record, "its key names no subnet");
            return None;
        };
        let attributes = match Attributes::from_json(&record.value) {
            Ok(attributes) => Some(attributes),
            Err(error) => {
                self.warn(&record, &error.to_string());
                None
            }
        };
        Some(Listed { in_place: self.paths.lease(&key) == record.key, record, key, attributes })
    }

    fn warn(&self, record: &Record, reason: &str) {
        russet_store::refused("a record among the leases is passed over", &record.key, reason);
    }

    async fn list(&self) -> Result<Vec<Listed>, LeaseError> {
        let snapshot = self.store.list(&self.paths.subnets()).await.map_err(store_error("list leases"))?;
        Ok(snapshot.records.into_iter().filter_map(|record| self.read_lease(record)).collect())
    }
}

impl SubnetManager for StoreManager {
    fn network(&self) -> BoxFuture<'_, Result<NetworkConfig, LeaseError>> {
        Box::pin(self.read_network())
    }

    fn acquire<'a>(
        &'a self,
        config: &'a NetworkConfig,
        wish: &'a Wish,
    ) -> BoxFuture<'a, Result<Lease, LeaseError>> {
        Box::pin(self.take(config, wish))
    }

    fn watch<'a>(&'a self, own: &'a SubnetKey) -> BoxFuture<'a, Result<Box<dyn LeaseWatch>, LeaseError>> {
        Box::pin(async move {
            let watch = StoreWatch::open(self.store.clone(), self.paths.clone(), *own).await?;
            Ok(Box::new(watch) as Box<dyn LeaseWatch>)
        })
    }

    fn keep<'a>(&'a self, lease: &'a Lease, margin: Duration) -> BoxFuture<'a, Lost> {
        Box::pin(self.hold(lease, margin))
    }

    fn publish<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<(), LeaseError>> {
        Box::pin(async move {
            if let Some(held) = &mut *self.held.borrow_mut() {
                held.attributes = Arc::clone(&lease.attributes);
            }
            self.write(&lease.key).await
        })
    }

    fn ready<'a>(&'a self, lease: &'a Lease) -> BoxFuture<'a, Result<(), LeaseError>> {
        Box::pin(self.beat(&lease.key))
    }
}
