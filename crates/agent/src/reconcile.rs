//! The loop that keeps routes and tunnels as the datastore wants them.
//!
//! An event only changes the copy of the inputs; then everything is compared with the kernel. Start, resync and change are one path.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use russet_addr::Family;
use russet_model::{IpPool, Key, Prefix};
use russet_overlay::{Affinity, Inputs, Pool, Reconciler, Report};
use russet_plugins::Node;
use russet_store::{Event, Store, StoreError, Watch};

use crate::bootstrap::{self, BootstrapError};
use crate::cluster::Cluster;
use crate::config::Config;
use crate::health::{Condition, Readiness};
use crate::metrics::{Kind, Metrics};
use crate::underlay::{self, Choice, UnderlayError};

/// Everything is compared anew this often, even if nobody said that something changed.
const RESYNC: Duration = Duration::from_secs(60);
/// How often a store that tells nothing new is asked whether it is there.
const PROBE: Duration = Duration::from_secs(10);
/// After the first event of a burst this long is waited for the next one.
const QUIET: Duration = Duration::from_millis(5);
/// A burst is cut off after this long: an endless one must not keep the kernel waiting.
const BURST_MAX: Duration = Duration::from_millis(200);
/// The first pause after a failure; doubled up to the limit.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// What VXLAN adds to a packet over IPv4 and over IPv6 (calico-cni.md section 4.7).
const VXLAN_V4_OVERHEAD_BYTES: u32 = 50;
const VXLAN_V6_OVERHEAD_BYTES: u32 = 70;

/// The loop's parts.
pub struct Loop {
    /// The agent's settings.
    pub config: Config,
    /// This node.
    pub node: Node,
    /// What is told about readiness.
    pub readiness: Readiness,
    /// What is counted.
    pub metrics: Metrics,
    /// The kernel's side; used by one reconciliation at a time, on a thread that may block.
    pub reconciler: Arc<Mutex<Reconciler>>,
}

/// What ends one pass of the loop; the next one begins from the start.
#[derive(Debug, thiserror::Error)]
enum LoopError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    #[error(transparent)]
    Underlay(#[from] UnderlayError),
    #[error("a kernel task stopped half-way: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// The three things that are watched.
struct Watches {
    nodes: Box<dyn Watch>,
    pools: Box<dyn Watch>,
    affinities: Box<dyn Watch>,
}

// === impl LoopError ===

impl LoopError {
    /// What is not as it should be.
    fn condition(&self) -> Condition {
        match self {
            Self::Underlay(_)
            | Self::Bootstrap(BootstrapError::Underlay(_) | BootstrapError::Corrupt { .. }) => {
                Condition::Node
            }
            Self::Store(_) | Self::Bootstrap(_) => Condition::Store,
            Self::Task(_) => Condition::Programmed,
        }
    }
}

// === impl Loop ===

impl Loop {
    /// Runs for ever; what fails is logged, told by readiness, and tried again.
    pub async fn run(self) {
        let mut backoff = BACKOFF_FIRST;
        loop {
            let started = Instant::now();
            let Err(error) = self.follow().await;
            if started.elapsed() > BACKOFF_MAX {
                backoff = BACKOFF_FIRST;
            }
            if self.readiness.unmet(error.condition(), &error) || backoff >= BACKOFF_MAX {
                tracing::warn!(%error, retry_ms = backoff.as_millis() as u64, "the loop starts again");
            }
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    async fn follow(&self) -> Result<std::convert::Infallible, LoopError> {
        let store = &*self.node.store;
        bootstrap::ensure_pools(&self.node.allocator, &self.config.pools).await?;
        self.met(Condition::Store);
        let mut choice = self.choose().await?;
        tracing::info!(interface = choice.name.as_deref().unwrap_or("none"), why = choice.why, addresses = ?choice.underlay.addresses, "underlay");
        bootstrap::register(store, &self.node.name, &choice).await?;
        let mut cluster = Cluster::default();
        let mut watches = Watches::open(store, &mut cluster).await?;
        loop {
            let pools = cluster.pools.clone();
            self.ensure_tunnels(&cluster).await?;
            self.keep(&mut cluster, &mut watches, &choice, &pools).await?;
            choice = self.choose().await?;
            bootstrap::register(store, &self.node.name, &choice).await?;
        }
    }

    /// Compares and corrects whenever something changes. Ends when the node itself has to be looked at again: after [`RESYNC`], when
    /// pools are others than `pools`, for which there are tunnels, and when somebody deleted this node's record.
    async fn keep(
        &self,
        cluster: &mut Cluster,
        watches: &mut Watches,
        choice: &Choice,
        pools: &BTreeMap<String, IpPool>,
    ) -> Result<(), LoopError> {
        let resync = tokio::time::Instant::now() + RESYNC;
        let mut retry = BACKOFF_FIRST;
        let mut registered = cluster.nodes.contains_key(&self.node.name);
        loop {
            watches.drain(cluster).await?;
            let was_registered = registered;
            registered = cluster.nodes.contains_key(&self.node.name);
            if was_registered && !registered {
                tracing::warn!("somebody deleted this node's record");
                return Ok(());
            }
            let mut until = resync;
            if self.reconcile(cluster, choice).await? {
                self.met(Condition::Programmed);
                retry = BACKOFF_FIRST;
            } else {
                until = resync.min(tokio::time::Instant::now() + retry);
                retry = (retry * 2).min(RESYNC);
            }
            if cluster.pools != *pools || tokio::time::Instant::now() >= resync {
                return Ok(());
            }
            self.wait(cluster, watches, until).await?;
        }
    }

    /// Waits for an event, which it takes over, or until `until`. A watch waits for a store that is away; a question does not.
    async fn wait(
        &self,
        cluster: &mut Cluster,
        watches: &mut Watches,
        until: tokio::time::Instant,
    ) -> Result<(), LoopError> {
        while tokio::time::Instant::now() < until {
            let probe = until.min(tokio::time::Instant::now() + PROBE);
            if let Ok(event) = tokio::time::timeout_at(probe, watches.next()).await {
                cluster.apply(event?);
                break;
            }
            self.node.store.get(&Key::node(&self.node.name)).await?;
        }
        Ok(())
    }

    /// A tunnel without an address makes the node unready, but what can be programmed still is.
    async fn ensure_tunnels(&self, cluster: &Cluster) -> Result<(), LoopError> {
        let Node { store, allocator, name, .. } = &self.node;
        let pools: Vec<IpPool> = cluster.pools.values().cloned().collect();
        match bootstrap::ensure_tunnels(&**store, allocator, name, &pools, cluster.nodes.get(name)).await {
            Ok(()) => self.met(Condition::Node),
            Err(error @ BootstrapError::Tunnel(_)) => {
                if self.readiness.unmet(Condition::Node, &error) {
                    tracing::warn!(%error, "not ready");
                }
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn met(&self, condition: Condition) {
        if self.readiness.met(condition) {
            tracing::info!(?condition, "met");
        }
    }

    async fn choose(&self) -> Result<Choice, LoopError> {
        let wanted = self.config.interface.clone();
        Ok(tokio::task::spawn_blocking(move || underlay::choose(wanted.as_ref())).await??)
    }

    /// Compares and corrects. False if some of it failed.
    async fn reconcile(&self, cluster: &Cluster, choice: &Choice) -> Result<bool, LoopError> {
        let started = Instant::now();
        let inputs = inputs(&self.node, cluster, choice);
        self.publish_mtu(&inputs);
        let reconciler = Arc::clone(&self.reconciler);
        let work = move || reconciler.lock().unwrap_or_else(PoisonError::into_inner).reconcile(&inputs);
        let report = tokio::task::spawn_blocking(work).await?;
        self.metrics.nodes.set(cluster.nodes.len() as i64);
        self.metrics.reconcile_seconds.observe(started.elapsed().as_secs_f64());
        self.tell(&report, started);
        Ok(report.failed == 0)
    }

    fn publish_mtu(&self, inputs: &Inputs) {
        let mtu = self.config.mtu_bytes.unwrap_or_else(|| pod_mtu(inputs));
        if self.node.mtu_bytes.replace(mtu) != mtu {
            let file = self.config.paths.mtu_file();
            if let Err(error) = russet_linux::file::write_atomic(&file, format!("{mtu}\n").as_bytes()) {
                tracing::warn!(%error, "the pods' MTU cannot be written for plugins that work without the agent");
            }
        }
    }

    fn tell(&self, report: &Report, started: Instant) {
        for (kind, count) in &report.changed {
            let kind = Kind { kind: kind.label().to_owned() };
            self.metrics.changes.get_or_create(&kind).inc_by(*count as u64);
        }
        if self.metrics.refusals.set(report.refusals.len() as i64) != report.refusals.len() as i64 {
            for refusal in &report.refusals {
                tracing::warn!(%refusal, "not programmed");
            }
        }
        for error in &report.errors {
            tracing::warn!(%error, "the kernel refused a change");
        }
        if report.failed > 0 {
            self.metrics.reconcile_errors.inc();
        }
        let changes: usize = report.changed.values().sum();
        if changes > 0 {
            tracing::info!(changes, ms = started.elapsed().as_millis() as u64, "reconciled");
        }
    }
}

/// Everything that the overlay is computed from.
fn inputs(node: &Node, cluster: &Cluster, choice: &Choice) -> Inputs {
    Inputs {
        node: node.name.clone(),
        underlay: choice.underlay.clone(),
        nodes: cluster.nodes.iter().map(|(name, node)| (name.clone(), (&node.spec).into())).collect(),
        pools: cluster.pools.values().filter_map(|pool| Pool::from_model(&pool.spec)).collect(),
        affinities: cluster
            .affinities
            .iter()
            .filter_map(|((node, block), claim)| Affinity::from_model(node, *block, claim))
            .collect(),
        borrowed: Vec::new(),
        own_pods: Default::default(),
        protected: choice.gateways.iter().copied().collect(),
    }
}

/// The MTU that fits through every pool's way to other nodes.
fn pod_mtu(inputs: &Inputs) -> u32 {
    let tunnelled = |family| {
        inputs
            .pools
            .iter()
            .any(|pool| Family::of_net(&pool.cidr) == family && pool.encapsulation.needs_tunnel())
    };
    let overhead = match (tunnelled(Family::V4), tunnelled(Family::V6)) {
        (_, true) => VXLAN_V6_OVERHEAD_BYTES,
        (true, false) => VXLAN_V4_OVERHEAD_BYTES,
        (false, false) => 0,
    };
    inputs.underlay.mtu.saturating_sub(overhead)
}

// === impl Watches ===

impl Watches {
    /// Opens all three, and takes their snapshots over.
    async fn open(store: &dyn Store, cluster: &mut Cluster) -> Result<Self, StoreError> {
        let mut watches = Self {
            nodes: store.watch(&Prefix::nodes()).await?,
            pools: store.watch(&Prefix::pools()).await?,
            affinities: store.watch(&Prefix::all_affinities()).await?,
        };
        cluster.apply(watches.nodes.next().await?);
        cluster.apply(watches.pools.next().await?);
        cluster.apply(watches.affinities.next().await?);
        Ok(watches)
    }

    async fn next(&mut self) -> Result<Event, StoreError> {
        tokio::select! {
            event = self.nodes.next() => event,
            event = self.pools.next() => event,
            event = self.affinities.next() => event,
        }
    }

    /// Takes over what follows at once.
    async fn drain(&mut self, cluster: &mut Cluster) -> Result<(), StoreError> {
        let end = Instant::now() + BURST_MAX;
        while Instant::now() < end {
            match tokio::time::timeout(QUIET, self.next()).await {
                Ok(event) => cluster.apply(event?),
                Err(_quiet) => break,
            }
        }
        Ok(())
    }
}
