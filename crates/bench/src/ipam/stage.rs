//! The stores that are measured, each as a small cluster's: one pool, two nodes with pods that stay.

use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use russet_addr::{Family, NodeName};
use russet_ipam::{Allocator, DefaultPool, Request, SystemClock};
use russet_model::{Block, EncapMode, IpamConfig, Key, Node, NodeSpec, Prefix};
use russet_store::embedded::Options;
use russet_store::{Embedded, Step, Store};
use russet_store_etcd::{Etcd, Settings};
use serde_json::{Value, json};

use crate::Result;
use crate::ipam::burst::Pod;
use crate::ipam::syncs::{self, Syncs};

/// Whose blocks our allocator takes from.
pub const RUSSET_NODE: &str = "bench-russet";
/// Whose blocks the Go order takes from.
pub const GO_NODE: &str = "bench-go";

/// All stores.
pub struct Stage {
    places: Vec<Rc<Place>>,
}

/// One store on one disk.
pub struct Place {
    store_name: &'static str,
    disk: &'static str,
    engine: Engine,
}

enum Engine {
    Embedded(Embedded),
    Etcd { store: Etcd, url: String },
}

/// The names of the disks: as they are, and with a delay in each sync.
const PLAIN: &str = "plain";
const SLOW: &str = "slow";

const POOL: &str = "10.96.0.0/16";
/// Pods that a node has when a sample begins. With a sample's they stay below the 64 addresses of a block.
const PODS_THAT_STAY: usize = 16;
/// Small commits of a probe.
const PROBES: u32 = 40;

// === impl Stage ===

impl Stage {
    /// Opens and fills the stores.
    pub async fn set(directory: &Path, delay_us: u64, plain: &str, slow: &str) -> Result<Self> {
        let mut places = Vec::new();
        for (disk, delay_us, url) in [(PLAIN, 0, plain), (SLOW, delay_us, slow)] {
            let options = Options { sync_delay: Duration::from_micros(delay_us), ..Options::default() };
            let embedded = Embedded::open_with(directory.join(format!("{disk}.redb")), options)?;
            let store = Etcd::connect(Settings::for_endpoints(url)?)?;
            let etcd = Engine::Etcd { store, url: url.to_owned() };
            for (store_name, engine) in [("embedded", Engine::Embedded(embedded)), ("etcd", etcd)] {
                let place = Place { store_name, disk, engine };
                fill(&place.store(), &[RUSSET_NODE, GO_NODE]).await?;
                places.push(Rc::new(place));
            }
        }
        Ok(Self { places })
    }

    /// One of them.
    pub fn place(&self, store: &str, disk: &str) -> Result<Rc<Place>> {
        let found = self.places.iter().find(|place| place.store_name == store && place.disk == disk);
        Ok(Rc::clone(found.ok_or_else(|| format!("no store {store} on a {disk} disk"))?))
    }
}

// === impl Place ===

impl Place {
    /// The store itself, on a connection that all who ask share.
    pub fn store(&self) -> Rc<dyn Store> {
        match &self.engine {
            Engine::Embedded(store) => Rc::new(store.clone()),
            Engine::Etcd { store, .. } => Rc::new(store.clone()),
        }
    }

    /// How others connect to it.
    pub fn settings(&self) -> Result<Settings> {
        match &self.engine {
            Engine::Embedded(_) => Err("the embedded store has no address".into()),
            Engine::Etcd { url, .. } => Ok(Settings::for_endpoints(url)?),
        }
    }

    /// Its syncs so far.
    pub fn syncs(&self) -> Result<Syncs> {
        match &self.engine {
            Engine::Embedded(store) => Ok(Syncs { count: store.stats().syncs, seconds: None }),
            Engine::Etcd { url, .. } => syncs::of_etcd(url.trim_start_matches("http://")),
        }
    }

    /// What a small commit costs, one after the other, and a sync: the check that the slow disk is slow.
    pub async fn probe(&self) -> Result<Value> {
        let (store, before) = (self.store(), self.syncs()?);
        let key = Key::from_stored("/russet/bench/probe");
        let began = Instant::now();
        for number in 0..PROBES {
            store
                .commit(vec![Step::put(key.clone(), number.to_string())])
                .await
                .map_err(|error| error.error)?;
        }
        let commit_us = began.elapsed().as_secs_f64() * 1e6 / f64::from(PROBES);
        let after = self.syncs()?;
        let syncs = after.count - before.count;
        let sync_us =
            after.seconds.zip(before.seconds).map(|(after, before)| (after - before) * 1e6 / syncs as f64);
        Ok(json!({
            "store": self.store_name,
            "disk": self.disk,
            "commit_us": commit_us,
            "syncs_per_commit": syncs as f64 / f64::from(PROBES),
            "sync_us": sync_us,
        }))
    }

    /// Addresses that are taken in a node's blocks.
    pub async fn held(&self, node: &NodeName) -> Result<usize> {
        let mut held = 0;
        for record in self.store().list(&Prefix::blocks(Some(Family::V4))).await?.records {
            let block = Block::decode(&record.value)?;
            if block.serves(node) {
                held += block.allocations.iter().flatten().count();
            }
        }
        Ok(held)
    }
}

/// Makes a store a cluster's, whose nodes have pods already.
pub async fn fill(store: &Rc<dyn Store>, nodes: &[&str]) -> Result<()> {
    let allocator = Allocator::new(Rc::clone(store), Rc::new(SystemClock));
    let pool = DefaultPool {
        name: "default-ipv4-ippool".into(),
        cidr: POOL.parse()?,
        vxlan_mode: EncapMode::Never,
        nat_outgoing: true,
    };
    allocator.ensure_pools(&[pool]).await?;
    let config = Step::put(Key::ipam_config(), IpamConfig::default().encode());
    store.commit(vec![config]).await.map_err(|error| error.error)?;
    for name in nodes.iter().copied() {
        let node: NodeName = name.parse()?;
        let mut record = Node::new(name, NodeSpec::default());
        record.metadata.labels.insert("kubernetes.io/hostname".into(), name.into());
        let step = Step::put(Key::node(&node), record.encode());
        store.commit(vec![step]).await.map_err(|error| error.error)?;
        settle_pods(&allocator, &node).await?;
    }
    Ok(())
}

async fn settle_pods(allocator: &Allocator, node: &NodeName) -> Result<()> {
    for pod in Pod::resident(node.as_str()).take(PODS_THAT_STAY) {
        let request = Request { borrow: false, ..Request::pod(node.clone(), pod.handle()?) };
        let request = request.with("interface", "eth0").with("namespace", "default").with("pod", pod.name());
        allocator.auto_assign(&request).await?;
    }
    Ok(())
}
