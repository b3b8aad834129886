//! The loop that keeps routes and tunnels as the datastore describes them.
//!
//! An event only changes the copy of the inputs; then everything is compared with the kernel.
//! Start, resync and change use the same code path.

mod inputs;

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use russet_addr::Family;
use russet_model::{EncapMode, IpPool, Key, Prefix, ResourceKind};
use russet_overlay::underlay::{self, Choice, UnderlayError};
use russet_overlay::{Inputs, Reason, ReconcileReport};
use russet_plugins::Node;
use russet_store::{Event, Store, StoreError, Watch};
use russet_store_kube::KubeStore;
use russet_sync::Backoff;
use tokio::sync::watch;

use crate::big_tcp::Paths;
use crate::bootstrap::{self, BootstrapError, Known};
use crate::cluster::{Cluster, POLICIES};
use crate::config::{Config, IpamMode, PolicyMode, StoreLocation};
use crate::controllers::Controllers;
use crate::fill;
use crate::health::{Condition, Readiness};
use crate::isolation;
use crate::metrics::{Kind, Metrics};
use crate::policies::unenforced::UnenforcedPolicies;
use crate::probe_addresses::ProbeAddresses;
use crate::route_daemons::{self, RouteDaemonDetector};
use crate::{spread, unsupported};
use inputs::{inputs, pod_mtu};

/// Interval of full comparisons without an event.
const RESYNC: Duration = Duration::from_secs(60);
/// Interval of probing a store that sends no events.
const PROBE: Duration = Duration::from_secs(10);
/// Interval of checking whether a cluster without pods of Calico's plugin has got some. The first
/// of them may wait this long for a route to a borrowed address.
const BORROWER_LOOK: Duration = Duration::from_secs(10);
/// Interval at which a node registers again in the Kubernetes API although nothing has changed: each
/// time costs the server several reads, and it has thousands of nodes. A loss that the watch shows is
/// repaired within [`REGISTER_PAUSE`].
const REGISTER_INTERVAL: Duration = Duration::from_secs(600);
/// The least time between two registrations (kubernetes.md section 1.7): another writer may remove
/// again and again what this node registers.
const REGISTER_PAUSE: Duration = Duration::from_secs(8);
/// Interval of looking for other route daemons. For this long, two programs may keep the same
/// routes.
const ROUTE_DAEMON_INTERVAL: Duration = Duration::from_secs(5);
/// A burst ends when no event arrives for this long.
const QUIET: Duration = Duration::from_millis(5);
/// Limit of a burst: an endless one must not delay the kernel's update.
const BURST_MAX: Duration = Duration::from_millis(200);
/// How long a starting agent waits for its store before it logs that there is no answer.
const FIRST_ANSWER: Duration = Duration::from_millis(2500);
/// The first pause after a failure, doubled up to the limit, with jitter.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// Limit of logged refusals of the kernel in one pass. Their number depends on what is stored.
const LOGGED_MAX: usize = 10;

/// The subject of the remark that the store is away.
const STORE_REMARK: &str = "store";

pub struct Loop {
    pub config: Config,
    pub node: Node,
    /// Where readiness is published.
    pub readiness: Readiness,
    pub metrics: Metrics,
    /// The kernel's side, which keeps the desired state that the loop set last.
    pub controllers: Controllers,
    /// The store, if it is in the Kubernetes API.
    pub kubernetes: Option<KubeStore>,
    /// Programs for which the agent stands aside in Calico's place.
    pub route_daemons: Rc<RouteDaemonDetector>,
    /// The policies that this node does not enforce in Calico's place.
    pub unenforced: Rc<UnenforcedPolicies>,
    /// By which paths pods reach others. None until that is known.
    pub paths: watch::Sender<Option<Paths>>,
}

/// What ends a pass of the loop; the next one starts from the beginning.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    #[error(transparent)]
    Underlay(#[from] UnderlayError),
    #[error("a kernel task was interrupted: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// What the node was registered for.
struct Registration {
    at: Instant,
    choice: Choice,
    pools: BTreeMap<String, IpPool>,
}

struct Watches {
    all: Vec<Box<dyn Watch>>,
    blocks: Blocks,
}

/// Whether blocks are watched. They change with every pod. Our own plugin borrows no addresses, so
/// block affinities say where its pods are; pods of Calico's plugin may have addresses of other
/// nodes' blocks, whichever program served their ADD (calico-cni.md section 4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blocks {
    /// No pod can borrow, because Calico's plugin cannot use this store.
    Never,
    /// The cluster has no programs of Calico, as far as its information says.
    UnlessPeers,
    /// The cluster had no pods of Calico's plugin at the time of the last check.
    Unless(Instant),
    Watched,
}

// === impl LoopError ===

impl LoopError {
    /// The condition that the error makes unmet.
    fn condition(&self) -> Condition {
        match self {
            Self::Underlay(_)
            | Self::Bootstrap(
                BootstrapError::Underlay(_) | BootstrapError::Corrupt { .. } | BootstrapError::NoNode(_),
            ) => Condition::Node,
            Self::Store(_) | Self::Bootstrap(_) => Condition::Store,
            Self::Task(_) => Condition::Programmed,
        }
    }

    fn is_store_away(&self) -> bool {
        match self {
            Self::Store(error) | Self::Bootstrap(BootstrapError::Store(error)) => error.retryable(),
            Self::Bootstrap(BootstrapError::Tunnel(error)) => error.retryable(),
            _ => false,
        }
    }
}

// === impl Registration ===

impl Registration {
    fn now(cluster: &Cluster, choice: &Choice) -> Self {
        Self { at: Instant::now(), choice: choice.clone(), pools: cluster.pools.clone() }
    }
}

// === impl Loop ===

impl Loop {
    /// The loop of this node, without any desired state yet.
    pub fn new(
        config: Config,
        node: Node,
        readiness: Readiness,
        metrics: Metrics,
        controllers: Controllers,
        kubernetes: Option<KubeStore>,
    ) -> Self {
        let unenforced = UnenforcedPolicies::new(readiness.clone());
        let (route_daemons, paths) = (Rc::default(), watch::Sender::new(None));
        Self { config, node, readiness, metrics, controllers, kubernetes, route_daemons, unenforced, paths }
    }

    /// Never returns. Errors are logged, published by readiness, and retried.
    pub async fn run(self) {
        let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX);
        let mut first = true;
        let mut probes = ProbeAddresses::default();
        if let Some(kubernetes) = &self.kubernetes {
            spread::pause(kubernetes).await;
        }
        loop {
            let started = Instant::now();
            let Err(error) = if std::mem::take(&mut first) {
                self.follow_watched(&mut probes).await
            } else {
                self.follow(&mut probes).await
            };
            if started.elapsed() > BACKOFF_MAX {
                backoff.reset();
            }
            let (log, pause) = (backoff.is_longest(), backoff.pause());
            if self.readiness.unmet(error.condition(), &error) || log {
                tracing::warn!(%error, retry_ms = pause.as_millis() as u64, "the loop starts again");
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// The first pass. If the store does not answer, this is logged long before its requests time
    /// out: an operator who has just started the agent waits for that line.
    async fn follow_watched(
        &self,
        probes: &mut ProbeAddresses,
    ) -> Result<std::convert::Infallible, LoopError> {
        let pass = self.follow(probes);
        tokio::pin!(pass);
        if let Ok(ended) = tokio::time::timeout(FIRST_ANSWER, &mut pass).await {
            return ended;
        }
        if self.readiness.is_unmet(Condition::Store) {
            let reason =
                format!("no answer from {} within {FIRST_ANSWER:?}; trying again", self.config.store);
            self.readiness.unmet(Condition::Store, &reason);
            tracing::warn!(store = %self.config.store, waited_ms = FIRST_ANSWER.as_millis() as u64, "the store does not answer yet");
        }
        pass.await
    }

    async fn follow(&self, probes: &mut ProbeAddresses) -> Result<std::convert::Infallible, LoopError> {
        let store = &*self.node.store;
        if !self.config.calico && self.config.ipam == IpamMode::Pools {
            let apply = self.config.paths.command("apply");
            bootstrap::ensure_pools(&self.node.allocator, &self.config.pools, &apply).await?;
        }
        if let Some(kubernetes) = self.kubernetes.as_ref().filter(|_| self.config.ipam == IpamMode::Pools)
            && let Err(error) = kubernetes.label_affinities(&self.node.name).await
        {
            // Programs of Calico do not find affinities without labels; this agent does.
            tracing::warn!(%error, "labels of this node's affinities could not be compared");
        }
        let mut cluster = Cluster::of(&self.node.name);
        let mut watches = Watches::open(store, &self.config, &mut cluster).await?;
        self.met(Condition::Store);
        let mut choice = choose(&self.config, &cluster).await?;
        let addresses: Vec<String> = choice.underlay.addresses.iter().map(ToString::to_string).collect();
        let interface = choice.name.as_deref().unwrap_or("none");
        tracing::info!(interface, why = choice.why, addresses = addresses.join(", "), "underlay");
        let mut registered = None;
        loop {
            let aside = self.stands_aside().await?;
            if self.config.calico {
                isolation::guard_calico_ends(&self.node, !aside).await?;
            }
            let is_due = self.has_to_register(&cluster, registered.as_ref(), &choice);
            if aside {
                // The program that keeps the routes has registered the node and its tunnels.
                self.met(Condition::Node);
            } else if is_due && self.register_node(&cluster, &choice, registered.is_some()).await? {
                registered = Some(Registration::now(&cluster, &choice));
            }
            if aside || is_due || probes.is_incomplete(&cluster) {
                self.settle_probe_addresses(probes, &cluster, &choice, aside).await;
            }
            let pools = cluster.pools.clone();
            self.keep(&mut cluster, &mut watches, (&choice, probes), &pools, aside).await?;
            choice = choose(&self.config, &cluster).await?;
        }
    }

    /// Whether this node has to be registered. Other stores are asked each time, because that costs
    /// them nothing.
    fn has_to_register(&self, cluster: &Cluster, last: Option<&Registration>, choice: &Choice) -> bool {
        let Some(last) = last.filter(|_| self.kubernetes.is_some()) else { return true };
        let is_same = last.choice == *choice && last.pools == cluster.pools;
        !is_same
            || last.at.elapsed() >= REGISTER_INTERVAL
            || !is_registered(cluster, choice)
            || self.readiness.is_unmet(Condition::Node)
    }

    /// Registers the node and its tunnels. If the API server is away, a node that `was_registered`
    /// keeps its watches, which continue by themselves: thousands of nodes must not list everything
    /// anew when the server is back (kubernetes.md section 4.2). False if it has to be done again.
    async fn register_node(
        &self,
        cluster: &Cluster,
        choice: &Choice,
        was_registered: bool,
    ) -> Result<bool, LoopError> {
        let registered = async {
            self.register(choice).await?;
            self.ensure_tunnels(cluster).await
        };
        match registered.await {
            Err(error) if self.kubernetes.is_some() && was_registered && error.is_store_away() => {
                if self.readiness.remark(STORE_REMARK, Some(error.to_string())) {
                    tracing::warn!(%error, "the node's record cannot be compared now");
                }
                Ok(false)
            }
            done => {
                self.readiness.remark(STORE_REMARK, None);
                done.map(|()| true)
            }
        }
    }

    async fn register(&self, choice: &Choice) -> Result<(), LoopError> {
        let known = if self.config.calico { Known::Keep } else { Known::Replace };
        bootstrap::register(&*self.node.store, &self.node.name, choice, known).await?;
        if self.config.calico {
            // Calico's plugin refuses to work without either.
            let etcd = match &self.config.store {
                StoreLocation::Etcd(settings) => Some(&**settings),
                StoreLocation::Embedded | StoreLocation::Unix(_) | StoreLocation::Kubernetes(_) => None,
            };
            bootstrap::ensure_cluster_information(&*self.node.store, etcd).await?;
            self.publish(&self.config.paths.calico_nodename_file(), self.node.name.as_str());
        }
        Ok(())
    }

    /// Whether another program keeps this node's routes.
    async fn stands_aside(&self) -> Result<bool, LoopError> {
        if !self.config.calico {
            return Ok(false);
        }
        let found = tokio::task::spawn_blocking(route_daemons::find).await?;
        if found.is_some() {
            // Before the next change and before the log line, because changes of the other program
            // are no drift from here on.
            let controllers = self.controllers.clone();
            tokio::task::spawn_blocking(move || controllers.stand_aside()).await?;
        }
        Ok(self.route_daemons.seen(found, Instant::now()))
    }

    /// Compares and corrects whenever something changes. Returns when the node itself has to be
    /// checked again: after [`RESYNC`], when the pools differ from `pools`, for which there are
    /// tunnels, when an address for probes is to be claimed, when this node's record was deleted, and
    /// when another route daemon starts or ends.
    async fn keep(
        &self,
        cluster: &mut Cluster,
        watches: &mut Watches,
        (choice, probes): (&Choice, &mut ProbeAddresses),
        pools: &BTreeMap<String, IpPool>,
        aside: bool,
    ) -> Result<(), LoopError> {
        let resync = tokio::time::Instant::now() + RESYNC;
        let mut retry = Backoff::new(BACKOFF_FIRST, RESYNC);
        let mut registered = cluster.own.is_some();
        // The watch may not have sent yet what this node has just written about itself.
        let mut was_complete = false;
        // The allocator's cache may be older than the start of this pass.
        let mut rules = u64::MAX;
        let mut underlay_checked = None;
        let registered_at = Instant::now();
        loop {
            watches.follow_borrowers(&*self.node.store, cluster).await?;
            watches.drain(cluster).await?;
            if std::mem::replace(&mut rules, cluster.rules) != cluster.rules {
                self.node.allocator.forget();
            }
            let was_registered = registered;
            registered = cluster.own.is_some();
            if was_registered && !registered {
                tracing::warn!("this node's record was deleted");
                return Ok(());
            }
            if self.stands_aside().await? != aside {
                return Ok(());
            }
            if self.config.policies == PolicyMode::Off {
                self.unenforced.stored(&cluster.policies, self.route_daemons.has_felix());
            }
            let mut until = resync;
            was_complete |= is_registered(cluster, choice);
            if was_complete && !aside && !is_registered(cluster, choice) {
                let again = registered_at + REGISTER_PAUSE;
                if Instant::now() >= again {
                    tracing::warn!("another writer has removed addresses from this node's record");
                    return Ok(());
                }
                until = until.min(again.into());
            }
            if aside {
                self.publish_mtu(&inputs(&self.config, cluster, choice));
                self.controllers.set_forwarded([]);
                self.met(Condition::Programmed);
            } else if self.reconcile(cluster, choice, probes).await? {
                self.programmed(cluster);
                retry.reset();
            } else {
                until = until.min(tokio::time::Instant::now() + retry.pause());
            }
            let is_incomplete = self.finish_probe_addresses(probes, cluster).await?;
            // Not for each event, because there may be many foreign rules.
            if underlay_checked.is_none_or(|at: Instant| at.elapsed() >= PROBE) {
                self.check_underlay(cluster).await?;
                underlay_checked = Some(Instant::now());
            }
            if is_incomplete || cluster.pools != *pools || tokio::time::Instant::now() >= resync {
                return Ok(());
            }
            if self.wait(cluster, watches, until, aside).await? {
                return Ok(());
            }
        }
    }

    /// Waits for an event, which it applies, for drift that could not be corrected, or until
    /// `until`. A watch keeps waiting while the store is away; a read fails. True when the underlay
    /// may have changed.
    async fn wait(
        &self,
        cluster: &mut Cluster,
        watches: &mut Watches,
        until: tokio::time::Instant,
        aside: bool,
    ) -> Result<bool, LoopError> {
        let every = if self.config.calico { ROUTE_DAEMON_INTERVAL } else { PROBE };
        let next_probe = || until.min(tokio::time::Instant::now() + every);
        let mut probe = next_probe();
        while tokio::time::Instant::now() < until {
            tokio::select! {
                event = watches.next() => match cluster.apply(event?) {
                    true => break,
                    false => continue,
                },
                underlay = self.controllers.disturbed() => return Ok(underlay),
                () = tokio::time::sleep_until(probe) => probe = next_probe(),
            }
            // Checked first, because a store behind an interface that is down does not answer.
            self.check_underlay(cluster).await?;
            if self.kubernetes.is_none() {
                // Watches of the Kubernetes API notice by themselves that it is away.
                self.node.store.get(&Key::node(&self.node.name)).await?;
            }
            let borrows = watches.follow_borrowers(&*self.node.store, cluster).await?;
            if borrows || self.stands_aside().await? != aside {
                break;
            }
        }
        Ok(false)
    }

    /// Checks whether packets can pass to and from the other nodes, as far as this node can tell. A
    /// node without peers needs none of this.
    async fn check_underlay(&self, cluster: &Cluster) -> Result<(), LoopError> {
        let mut others = cluster.nodes.keys().filter(|name| **name != self.node.name);
        let fault = match others.next() {
            Some(_) => self.underlay_fault(cluster).await?,
            None => None,
        };
        match fault {
            None => self.met(Condition::Underlay),
            Some(reason) => {
                if self.readiness.unmet(Condition::Underlay, &reason) {
                    tracing::warn!(reason, "not ready: other nodes cannot be reached");
                }
            }
        }
        Ok(())
    }

    async fn underlay_fault(&self, cluster: &Cluster) -> Result<Option<String>, LoopError> {
        let choice = choose(&self.config, cluster).await?;
        let own = cluster.own.as_ref();
        let known = Family::BOTH.iter().filter_map(|family| own?.spec.address(*family));
        let known: Vec<_> = known.map(|net| net.addr()).collect();
        let controllers = self.controllers.clone();
        let look = move || -> Result<Option<String>, UnderlayError> {
            if let Some(fault) = underlay::fault(&choice, &known)? {
                return Ok(Some(fault));
            }
            // If the rules cannot be read now, there is no result; `russet drift` reports that.
            Ok(controllers.underlay_faults().unwrap_or_default().into_iter().next())
        };
        Ok(tokio::task::spawn_blocking(look).await??)
    }

    /// A tunnel without an address makes the node unready, but everything else is still programmed,
    /// unless it is only that the store is away: that passes, and it is soon tried again.
    async fn ensure_tunnels(&self, cluster: &Cluster) -> Result<(), LoopError> {
        let Node { store, allocator, name, .. } = &self.node;
        let pools: Vec<IpPool> = cluster.pools.values().cloned().collect();
        match bootstrap::ensure_tunnels(&**store, allocator, name, &pools, cluster.own.as_ref()).await {
            Ok(()) => self.met(Condition::Node),
            Err(BootstrapError::Tunnel(error)) if !error.retryable() => {
                let error = BootstrapError::Tunnel(error);
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
            tracing::info!(condition = condition.name(), "met");
        }
    }

    /// Everything that can be programmed is; pools that cannot be carried make the node unready.
    fn programmed(&self, cluster: &Cluster) {
        match unsupported::pools(cluster.pools.values()) {
            None => self.met(Condition::Programmed),
            Some(reason) => {
                if self.readiness.unmet(Condition::Programmed, &reason) {
                    tracing::warn!(reason, "not ready");
                }
            }
        }
    }

    /// Compares and corrects. False if some of it failed.
    async fn reconcile(
        &self,
        cluster: &Cluster,
        choice: &Choice,
        probes: &ProbeAddresses,
    ) -> Result<bool, LoopError> {
        let started = Instant::now();
        let inputs = Inputs { probes: probes.own(), ..inputs(&self.config, cluster, choice) };
        self.publish_mtu(&inputs);
        Paths::of(&inputs).show(&self.paths);
        self.controllers.set_forwarded(inputs.pools.iter().map(|pool| pool.cidr));
        let (controllers, mtu) = (self.controllers.clone(), pod_mtu(&self.config, &inputs));
        let report = tokio::task::spawn_blocking(move || controllers.reconcile_overlay(inputs, mtu)).await?;
        self.metrics.nodes.set(cluster.nodes.len() as i64);
        self.metrics.pools.set_claims(&fill::claims(cluster));
        self.metrics.reconcile_seconds.observe(started.elapsed().as_secs_f64());
        self.log_report(&report, started);
        if report.failed == 0
            && let Some(waited) = cluster.reconciled()
        {
            self.metrics.store.reconciled(waited);
        }
        // The watch may not have sent yet what this node has just written about itself.
        let unseen = cluster.own.is_none()
            || report.refusals.iter().any(|refusal| refusal.reason == Reason::OwnTunnelAddressMissing);
        Ok(report.failed == 0 && !unseen)
    }

    fn publish_mtu(&self, inputs: &Inputs) {
        let mtu = pod_mtu(&self.config, inputs);
        self.node.mtu_bytes.set(mtu);
        self.publish(&self.config.paths.mtu_file(), &format!("{mtu}\n"));
        if self.config.calico {
            self.publish(&self.config.paths.calico_mtu_file(), &mtu.to_string());
        }
    }

    /// Writes a file for plugins that work without the agent.
    fn publish(&self, file: &Path, text: &str) {
        if std::fs::read(file).is_ok_and(|found| found == text.as_bytes()) {
            return;
        }
        // If the directory cannot be created, the write reports it.
        let _ = file.parent().map(std::fs::create_dir_all);
        if let Err(error) = russet_linux::file::write_atomic(file, text.as_bytes()) {
            tracing::warn!(%error, "a file for plugins that work without the agent cannot be written");
        }
    }

    fn log_report(&self, report: &ReconcileReport, started: Instant) {
        for (kind, count) in &report.changed {
            let kind = Kind { kind: (*kind).to_owned() };
            self.metrics.changes.get_or_create(&kind).inc_by(*count as u64);
        }
        self.metrics.refusals.set(report.refusals.len() as i64);
        for refusal in &report.refusals {
            russet_store::refused("not programmed", &refusal.subject, refusal);
        }
        for error in report.errors.iter().take(LOGGED_MAX) {
            tracing::warn!(%error, "the kernel refused a change");
        }
        if report.errors.len() > LOGGED_MAX {
            let left_out = report.errors.len() - LOGGED_MAX;
            tracing::warn!(left_out, "the kernel refused further changes");
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

/// Whether this node's record has an address and a tunnel of each family that needs one.
fn is_registered(cluster: &Cluster, choice: &Choice) -> bool {
    let Some(own) = &cluster.own else { return false };
    Family::BOTH.into_iter().all(|family| {
        let needs_tunnel = cluster.pools.values().any(|pool| {
            pool.spec.family() == family && pool.is_enabled() && pool.spec.vxlan_mode != EncapMode::Never
        });
        (choice.address(family).is_none() || own.spec.address(family).is_some())
            && (!needs_tunnel || own.spec.vxlan_tunnel(family).is_some())
    })
}

/// The inputs of the overlay and the MTU of pods in bytes, by one look at the store and at the host.
pub async fn overlay_inputs(config: &Config, store: &dyn Store) -> Result<(Inputs, u32), LoopError> {
    let mut cluster = Cluster::of(&config.node_name);
    Watches::open(store, config, &mut cluster).await?;
    let choice = choose(config, &cluster).await?;
    let published = |family| cluster.own.as_ref()?.probe_address(family);
    let probes = Family::BOTH.map(published);
    let inputs = Inputs { probes, ..inputs(config, &cluster, &choice) };
    let mtu_bytes = pod_mtu(config, &inputs);
    Ok((inputs, mtu_bytes))
}

async fn choose(config: &Config, cluster: &Cluster) -> Result<Choice, LoopError> {
    let wanted = config.interface.clone();
    let own = cluster.own.as_ref().filter(|_| config.calico);
    let address = |family| own.and_then(|node| node.spec.address(family)).map(|net| net.addr());
    let known = address(Family::V4).or_else(|| address(Family::V6));
    Ok(tokio::task::spawn_blocking(move || underlay::choose(wanted.as_ref(), known)).await??)
}

/// Whether the cluster has pods of Calico's plugin: each has an endpoint.
async fn borrowers(store: &dyn Store) -> Result<bool, StoreError> {
    store.holds(&Prefix::workload_endpoints()).await
}

// === impl Watches ===

impl Watches {
    /// Opens all watches and applies their snapshots.
    async fn open(store: &dyn Store, config: &Config, cluster: &mut Cluster) -> Result<Self, StoreError> {
        let calico = config.calico;
        let mut prefixes = vec![
            Prefix::nodes(),
            Prefix::pools(),
            Prefix::all_affinities(),
            Prefix::reservations(),
            Prefix::from_stored(Key::ipam_config().as_str()),
        ];
        if calico {
            prefixes.push(Prefix::resources(ResourceKind::FelixConfiguration));
            prefixes.extend(POLICIES.map(Prefix::resources));
        }
        let blocks = match &config.store {
            StoreLocation::Embedded | StoreLocation::Unix(_) => Blocks::Never,
            StoreLocation::Etcd(_) => Blocks::Unless(Instant::now()),
            StoreLocation::Kubernetes(_) => Blocks::UnlessPeers,
        };
        if blocks == Blocks::UnlessPeers {
            prefixes.push(Prefix::resources(ResourceKind::ClusterInformation));
        }
        let mut watches = Self { all: Vec::new(), blocks };
        for prefix in prefixes {
            watches.follow(store, &prefix, cluster).await?;
        }
        let may_borrow = calico
            || match blocks {
                Blocks::Unless(_) => borrowers(store).await?,
                Blocks::UnlessPeers => cluster.has_peers,
                Blocks::Never | Blocks::Watched => false,
            };
        if may_borrow {
            watches.follow_blocks(store, cluster).await?;
        }
        Ok(watches)
    }

    async fn follow(
        &mut self,
        store: &dyn Store,
        prefix: &Prefix,
        cluster: &mut Cluster,
    ) -> Result<(), StoreError> {
        // Record by record, because all blocks of a large cluster at once would need more memory
        // than the rest of the agent.
        self.all.push(store.follow(prefix, &mut |record| cluster.put(&record)).await?);
        Ok(())
    }

    async fn follow_blocks(&mut self, store: &dyn Store, cluster: &mut Cluster) -> Result<(), StoreError> {
        self.follow(store, &Prefix::blocks(None), cluster).await?;
        self.blocks = Blocks::Watched;
        Ok(())
    }

    /// Watches blocks, too, once the cluster has pods that may borrow addresses. Returns whether
    /// that is now.
    async fn follow_borrowers(
        &mut self,
        store: &dyn Store,
        cluster: &mut Cluster,
    ) -> Result<bool, StoreError> {
        match self.blocks {
            Blocks::Unless(checked) if checked.elapsed() >= BORROWER_LOOK => {
                if !borrowers(store).await? {
                    self.blocks = Blocks::Unless(Instant::now());
                    return Ok(false);
                }
            }
            Blocks::UnlessPeers if cluster.has_peers => {}
            _ => return Ok(false),
        }
        self.follow_blocks(store, cluster).await?;
        tracing::info!("the cluster has pods of Calico's plugin: addresses that they borrow are routed, too");
        Ok(true)
    }

    async fn next(&mut self) -> Result<Event, StoreError> {
        // The order rotates, so that a busy watch does not starve the others.
        self.all.rotate_left(1);
        let mut waiting: Vec<_> = self.all.iter_mut().map(|watch| watch.next()).collect();
        std::future::poll_fn(|context| {
            let ready = waiting.iter_mut().map(|next| next.as_mut().poll(context)).find(Poll::is_ready);
            ready.unwrap_or(Poll::Pending)
        })
        .await
    }

    /// Applies the events that have arrived.
    async fn drain(&mut self, cluster: &mut Cluster) -> Result<(), StoreError> {
        let end = Instant::now() + BURST_MAX;
        while Instant::now() < end {
            match tokio::time::timeout(QUIET, self.next()).await {
                Ok(event) => _ = cluster.apply(event?),
                Err(_quiet) => break,
            }
        }
        Ok(())
    }
}
