//! The loop that keeps routes and tunnels as the datastore describes them.
//!
//! An event only changes the copy of the inputs; then everything is compared with the kernel.
//! Start, resync and change use the same code path.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::task::Poll;
use std::time::{Duration, Instant};

use russet_addr::{Family, IpNet, NodeName, host_net};
use russet_model::{FelixConfigurationSpec, IpPool, Key, Prefix, ResourceKind};
use russet_overlay::{
    Affinity, Borrowed, Dialect, Inputs, Pool, Reason, ReconcileReport, Tunnel, TunnelSenders,
};
use russet_plugins::Node;
use russet_store::{Event, Store, StoreError, Watch};

use crate::bootstrap::{self, BootstrapError, Known};
use crate::cluster::{Cluster, POLICIES};
use crate::config::{Config, StoreLocation};
use crate::drift::Drift;
use crate::fill;
use crate::forward_accepts::ForwardAccepts;
use crate::health::{Condition, Readiness};
use crate::isolation;
use crate::metrics::{Kind, Metrics};
use crate::route_daemons::{self, RouteDaemonDetector};
use crate::underlay::{self, Choice, UnderlayError};
use crate::unsupported;

/// Interval of full comparisons without an event.
const RESYNC: Duration = Duration::from_secs(60);
/// Interval of probing a store that sends no events.
const PROBE: Duration = Duration::from_secs(10);
/// Interval of checking whether a cluster without pods of Calico's plugin has got some. The first
/// of them may wait this long for a route to a borrowed address.
const BORROWER_LOOK: Duration = Duration::from_secs(10);
/// Interval of looking for other route daemons. For this long, two programs may keep the same
/// routes.
const ROUTE_DAEMON_INTERVAL: Duration = Duration::from_secs(5);
/// A burst ends when no event arrives for this long.
const QUIET: Duration = Duration::from_millis(5);
/// Limit of a burst: an endless one must not delay the kernel's update.
const BURST_MAX: Duration = Duration::from_millis(200);
/// How long a starting agent waits for its store before it logs that there is no answer.
const FIRST_ANSWER: Duration = Duration::from_millis(2500);
/// The first pause after a failure, doubled up to the limit.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// What VXLAN adds to a packet over IPv4 and over IPv6 (calico-cni.md section 4.7).
const VXLAN_V4_OVERHEAD_BYTES: u32 = 50;
const VXLAN_V6_OVERHEAD_BYTES: u32 = 70;

/// Limit of logged refusals of the kernel in one pass. Their number depends on what is stored.
const LOGGED_MAX: usize = 10;

/// VXLAN network identifiers have 24 bits.
const VNI_END: u32 = 1 << 24;

pub struct Loop {
    pub config: Config,
    pub node: Node,
    /// Where readiness is published.
    pub readiness: Readiness,
    pub metrics: Metrics,
    /// The kernel's side, which keeps the desired state that the loop set last.
    pub drift: Drift,
    /// Programs for which the agent stands aside in Calico's place.
    pub route_daemons: Rc<RouteDaemonDetector>,
    /// Accepts where other programs drop forwarded packets.
    pub forward_accepts: ForwardAccepts,
}

/// What ends a pass of the loop; the next one starts from the beginning.
#[derive(Debug, thiserror::Error)]
enum LoopError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    #[error(transparent)]
    Underlay(#[from] UnderlayError),
    #[error("a kernel task was interrupted: {0}")]
    Task(#[from] tokio::task::JoinError),
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
    /// The loop of this node, without any desired state yet.
    pub fn new(config: Config, node: Node, readiness: Readiness, metrics: Metrics, drift: Drift) -> Self {
        let (route_daemons, forward_accepts) = (Rc::default(), ForwardAccepts::default());
        Self { config, node, readiness, metrics, drift, route_daemons, forward_accepts }
    }

    /// Never returns. Errors are logged, published by readiness, and retried.
    pub async fn run(self) {
        let mut backoff = BACKOFF_FIRST;
        let mut first = true;
        loop {
            let started = Instant::now();
            let Err(error) =
                if std::mem::take(&mut first) { self.follow_watched().await } else { self.follow().await };
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

    /// The first pass. If the store does not answer, this is logged long before its requests time
    /// out: an operator who has just started the agent waits for that line.
    async fn follow_watched(&self) -> Result<std::convert::Infallible, LoopError> {
        let pass = self.follow();
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

    async fn follow(&self) -> Result<std::convert::Infallible, LoopError> {
        let store = &*self.node.store;
        if !self.config.calico {
            bootstrap::ensure_pools(&self.node.allocator, &self.config.pools).await?;
        }
        let mut cluster = Cluster::default();
        let shared = matches!(self.config.store, StoreLocation::Etcd(_));
        let mut watches = Watches::open(store, self.config.calico, shared, &mut cluster).await?;
        self.met(Condition::Store);
        let mut choice = self.choose(&cluster).await?;
        let addresses: Vec<String> = choice.underlay.addresses.iter().map(ToString::to_string).collect();
        let interface = choice.name.as_deref().unwrap_or("none");
        tracing::info!(interface, why = choice.why, addresses = addresses.join(", "), "underlay");
        loop {
            let aside = self.stands_aside().await?;
            isolation::guard_calico_ends(&self.node, self.config.calico && !aside).await?;
            if aside {
                // The program that keeps the routes has registered the node and its tunnels.
                self.met(Condition::Node);
            } else {
                self.register(&choice).await?;
                self.ensure_tunnels(&cluster).await?;
            }
            let pools = cluster.pools.clone();
            self.keep(&mut cluster, &mut watches, &choice, &pools, aside).await?;
            choice = self.choose(&cluster).await?;
        }
    }

    async fn register(&self, choice: &Choice) -> Result<(), LoopError> {
        let known = if self.config.calico { Known::Keep } else { Known::Replace };
        bootstrap::register(&*self.node.store, &self.node.name, choice, known).await?;
        if self.config.calico {
            // Calico's plugin refuses to work without either.
            let etcd = match &self.config.store {
                StoreLocation::Etcd(settings) => Some(&**settings),
                StoreLocation::Embedded | StoreLocation::Unix(_) => None,
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
        let aside = self.route_daemons.seen(found, Instant::now());
        if aside {
            // Before the next change, because changes of the other program are no drift from here
            // on.
            let drift = self.drift.clone();
            tokio::task::spawn_blocking(move || drift.stand_aside()).await?;
        }
        Ok(aside)
    }

    /// Compares and corrects whenever something changes. Returns when the node itself has to be
    /// checked again: after [`RESYNC`], when the pools differ from `pools`, for which there are
    /// tunnels, when this node's record was deleted, and when another route daemon starts or ends.
    async fn keep(
        &self,
        cluster: &mut Cluster,
        watches: &mut Watches,
        choice: &Choice,
        pools: &BTreeMap<String, IpPool>,
        aside: bool,
    ) -> Result<(), LoopError> {
        let resync = tokio::time::Instant::now() + RESYNC;
        let mut retry = BACKOFF_FIRST;
        let mut registered = cluster.nodes.contains_key(&self.node.name);
        // The allocator's cache may be older than the start of this pass.
        let mut rules = u64::MAX;
        let mut underlay_checked = None;
        loop {
            watches.follow_borrowers(&*self.node.store, cluster).await?;
            watches.drain(cluster).await?;
            if std::mem::replace(&mut rules, cluster.rules) != cluster.rules {
                self.node.allocator.forget();
            }
            let was_registered = registered;
            registered = cluster.nodes.contains_key(&self.node.name);
            if was_registered && !registered {
                tracing::warn!("this node's record was deleted");
                return Ok(());
            }
            if self.stands_aside().await? != aside {
                return Ok(());
            }
            self.report_policies(cluster);
            let mut until = resync;
            if aside {
                self.publish_mtu(&self.inputs(cluster, choice));
                self.forward_accepts.set_pools([]);
                self.met(Condition::Programmed);
            } else if self.reconcile(cluster, choice).await? {
                self.programmed(cluster);
                retry = BACKOFF_FIRST;
            } else {
                until = resync.min(tokio::time::Instant::now() + retry);
                retry = (retry * 2).min(RESYNC);
            }
            // Not for each event, because there may be many foreign rules.
            if underlay_checked.is_none_or(|at: Instant| at.elapsed() >= PROBE) {
                self.check_underlay(cluster).await?;
                underlay_checked = Some(Instant::now());
            }
            if cluster.pools != *pools || tokio::time::Instant::now() >= resync {
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
        while tokio::time::Instant::now() < until {
            let every = if self.config.calico { ROUTE_DAEMON_INTERVAL } else { PROBE };
            let probe = until.min(tokio::time::Instant::now() + every);
            tokio::select! {
                event = watches.next() => {
                    cluster.apply(event?);
                    break;
                }
                underlay = self.drift.disturbed() => return Ok(underlay),
                () = tokio::time::sleep_until(probe) => {}
            }
            // Checked first, because a store behind an interface that is down does not answer.
            self.check_underlay(cluster).await?;
            self.node.store.get(&Key::node(&self.node.name)).await?;
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
        let choice = self.choose(cluster).await?;
        let own = cluster.nodes.get(&self.node.name);
        let known = Family::BOTH.iter().filter_map(|family| own?.spec.address(*family));
        let known: Vec<_> = known.map(|net| net.addr()).collect();
        let drift = self.drift.clone();
        let look = move || -> Result<Option<String>, UnderlayError> {
            if let Some(fault) = underlay::fault(&choice, &known)? {
                return Ok(Some(fault));
            }
            // If the rules cannot be read now, there is no result; `russet drift` reports that.
            Ok(drift.underlay_faults().unwrap_or_default().into_iter().next())
        };
        Ok(tokio::task::spawn_blocking(look).await??)
    }

    /// A tunnel without an address makes the node unready, but everything else is still programmed.
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

    /// An unenforced policy is a dangerous surprise: the log reports each change of this, and
    /// readiness always.
    fn report_policies(&self, cluster: &Cluster) {
        let unenforced = unsupported::policies(&cluster.policies).filter(|_| !self.route_daemons.has_felix());
        let text = unenforced.clone();
        if !self.readiness.remark("policy", unenforced) {
            return;
        }
        match text {
            Some(text) => tracing::warn!(policies = cluster.policies.len(), "policy: {text}"),
            None => tracing::info!("policy: there is none that this node would have to enforce"),
        }
    }

    async fn choose(&self, cluster: &Cluster) -> Result<Choice, LoopError> {
        let wanted = self.config.interface.clone();
        let own = cluster.nodes.get(&self.node.name).filter(|_| self.config.calico);
        let address = |family| own.and_then(|node| node.spec.address(family)).map(|net| net.addr());
        let known = address(Family::V4).or_else(|| address(Family::V6));
        Ok(tokio::task::spawn_blocking(move || underlay::choose(wanted.as_ref(), known)).await??)
    }

    /// Compares and corrects. False if some of it failed.
    async fn reconcile(&self, cluster: &Cluster, choice: &Choice) -> Result<bool, LoopError> {
        let started = Instant::now();
        let inputs = self.inputs(cluster, choice);
        self.publish_mtu(&inputs);
        self.forward_accepts.set_pools(inputs.pools.iter().map(|pool| pool.cidr));
        let drift = self.drift.clone();
        let report = tokio::task::spawn_blocking(move || drift.reconcile(inputs)).await?;
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
        let unseen = !cluster.nodes.contains_key(&self.node.name)
            || report.refusals.iter().any(|refusal| refusal.reason == Reason::OwnTunnelAddressMissing);
        Ok(report.failed == 0 && !unseen)
    }

    fn publish_mtu(&self, inputs: &Inputs) {
        let mtu = self.config.mtu_bytes.unwrap_or_else(|| pod_mtu(inputs));
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

    /// The inputs of the overlay.
    fn inputs(&self, cluster: &Cluster, choice: &Choice) -> Inputs {
        let dialect = if self.config.calico { Dialect::Calico } else { Dialect::Native };
        let felix = felix(&self.node.name, cluster);
        let (tunnel, senders) = (tunnel(&felix), senders(&felix));
        Inputs { dialect, tunnel, senders, ..inputs(&self.node, cluster, choice) }
    }

    fn log_report(&self, report: &ReconcileReport, started: Instant) {
        for (kind, count) in &report.changed {
            let kind = Kind { kind: kind.label().to_owned() };
            self.metrics.changes.get_or_create(&kind).inc_by(*count as u64);
        }
        self.metrics.refusals.set(report.refusals.len() as i64);
        for refusal in &report.refusals {
            russet_store::refused("not programmed", format_args!("{:?}", refusal.subject), refusal);
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

/// Felix's settings for this node.
fn felix(node: &NodeName, cluster: &Cluster) -> FelixConfigurationSpec {
    let of = |name: &str| cluster.felix.get(name).cloned().unwrap_or_default();
    of(&FelixConfigurationSpec::name_for(node)).or(&of(FelixConfigurationSpec::CLUSTER))
}

/// Who may send encapsulated packets besides the nodes. An entry of the list that is neither an address nor a prefix admits no machine.
fn senders(felix: &FelixConfigurationSpec) -> TunnelSenders {
    let net = |text: &String| match text.parse::<IpNet>() {
        Ok(net) => Some(net.trunc()),
        Err(_) => text.parse().ok().map(host_net),
    };
    TunnelSenders {
        pods_vxlan: felix.allow_vxlan_packets_from_workloads.unwrap_or(false),
        pods_ipip: felix.allow_ipip_packets_from_workloads.unwrap_or(false),
        external: felix.external_nodes_list.iter().flatten().filter_map(net).collect(),
    }
}

/// What the cluster's settings say about tunnels; values that no device can have count as not set.
fn tunnel(felix: &FelixConfigurationSpec) -> Tunnel {
    let default = Tunnel::default();
    let vni =
        felix.vxlan_vni.and_then(|vni| u32::try_from(vni).ok()).filter(|vni| (1..VNI_END).contains(vni));
    let port = felix.vxlan_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0);
    let mtu = |set: Option<u64>| set.and_then(|mtu| u32::try_from(mtu).ok()).filter(|mtu| *mtu != 0);
    Tunnel {
        vni: vni.unwrap_or(default.vni),
        port: port.unwrap_or(default.port),
        mtu: [mtu(felix.vxlan_mtu), mtu(felix.vxlan_mtu_v6)],
    }
}

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
        borrowed: borrowed(cluster),
        dialect: Dialect::Native,
        tunnel: Tunnel::default(),
        senders: TunnelSenders::default(),
        own_pods: Default::default(),
        protected: choice.gateways.iter().copied().collect(),
    }
}

/// Pods' addresses that are routed differently from their blocks.
fn borrowed(cluster: &Cluster) -> Vec<Borrowed> {
    let strays = cluster.strays.values().flat_map(|strays| &strays.borrowed);
    strays.map(|(address, node)| Borrowed { address: *address, node: node.clone() }).collect()
}

/// The MTU that fits the path of every pool to other nodes.
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

/// Whether the cluster has pods of Calico's plugin: each has an endpoint.
async fn borrowers(store: &dyn Store) -> Result<bool, StoreError> {
    store.holds(&Prefix::workload_endpoints()).await
}

// === impl Watches ===

impl Watches {
    /// Opens all watches and applies their snapshots. `shared`: other programs may use the same
    /// store.
    async fn open(
        store: &dyn Store,
        calico: bool,
        shared: bool,
        cluster: &mut Cluster,
    ) -> Result<Self, StoreError> {
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
        let blocks = if shared { Blocks::Unless(Instant::now()) } else { Blocks::Never };
        let mut watches = Self { all: Vec::new(), blocks };
        for prefix in prefixes {
            watches.follow(store, &prefix, cluster).await?;
        }
        if calico || (shared && borrowers(store).await?) {
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
            Blocks::Unless(checked) if checked.elapsed() >= BORROWER_LOOK => {}
            Blocks::Unless(_) | Blocks::Never | Blocks::Watched => return Ok(false),
        }
        if !borrowers(store).await? {
            self.blocks = Blocks::Unless(Instant::now());
            return Ok(false);
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
                Ok(event) => cluster.apply(event?),
                Err(_quiet) => break,
            }
        }
        Ok(())
    }
}
