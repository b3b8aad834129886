//! The node daemon. It serves CNI on a socket, keeps routes and tunnels as the datastore describes
//! them, removes what deleted pods left, and reports its state. When it stops, the data path keeps
//! working.

#![expect(missing_docs, reason = "internal to Russet; comments are for what the names do not say")]

mod announce;
mod between;
mod big_tcp;
pub mod bootstrap;
mod cluster;
mod cni_kubeconfig;
mod config;
pub mod conflists;
pub mod controllers;
mod datastores;
mod direct;
pub mod drift;
mod endpoint_status;
pub mod fast_path;
mod fill;
pub mod flows;
mod guards;
mod health;
mod health_record;
mod heap;
mod isolation;
mod measured;
mod metrics;
mod node_lock;
mod node_status;
mod openshift_server;
mod operations;
pub mod page;
pub mod peers;
mod pods;
mod policies;
mod probe_addresses;
mod reaper;
mod reconcile;
mod recovery;
pub mod repair;
mod route_daemons;
mod server;
mod spread;
pub mod status;
mod stores;
mod unsupported;
mod watched;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use russet_http::health::{Content, Site};
use russet_http::listener::Admission;
use russet_ipam::Allocator;
use russet_journal::{EndpointTable, History, Journal, JournalContents};
use russet_kube::{Client, Heartbeat};
use russet_linux::FileLock;
use russet_linux::notify::ServiceManager;
use russet_plugins::{
    CalicoHost, CalicoNode, Clusters, Datastore, InterfaceObserver, Node, Pause, SystemClock, Teardown,
};
use russet_store::Store;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinSet, LocalSet};

pub use announce::Annotate;
pub use between::{Loss, LossPlace};
pub use big_tcp::BigTcpMode;
pub use config::{
    Config, DEFAULT_HEALTH, DefaultPools, Encapsulation, IpamMode, Paths, PolicyMode, SettingError,
    StoreLocation,
};
pub use direct::{Direct, direct};
pub use health::{Condition, Readiness};
pub use health_record::{CountedNode, HealthRecord};
pub use node_lock::Taken;
pub use peers::{PeerSettings, ProbeSettings};
pub use policies::{enforced_from_records, record_document, unjudged_on_bridges, wired_endpoint};
pub use reconcile::{LoopError as OverlayInputsError, overlay_inputs};
pub use route_daemons::has_felix;
pub use russet_http::health::Address as HealthAddress;
pub use russet_overlay::fast_path::FastPathMode;
pub use russet_plugins::{RequestLog, Stages};
pub use russet_store_etcd::{Secret, Settings as EtcdSettings, SettingsError as EtcdSettingsError};
pub use stores::{Opened, open as open_store, own as own_store};

use announce::Announcer;
use cni_kubeconfig::CniKubeconfig;
use controllers::Controllers;
use datastores::{OpenDatastores, OwnDatastore};
use health_record::Publisher;
use measured::Measured;
use metrics::{Listeners, Metrics};
use node_lock::Timeouts;
use node_status::NodeStatus;
use operations::Operations;
use page::cluster::ClusterView;
use page::{Pages, Sources};
use peers::{Observers, PeerProbes};
use pods::Pods;
use policies::alone::Marker;
use policies::{HoldsNewPods, Policies, Source};
use reconcile::Loop;
use repair::{LeakFinder, RepairQueue, Repairs, UnheldQueue};
use server::Shown;
use status::{Observed, StatusSource};
use watched::WatchedStore;

/// Why an agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Another agent of this node runs, or a plugin does not release the node lock.
    #[error(transparent)]
    Taken(#[from] node_lock::Taken),
    #[error("open the store: {0}")]
    Store(#[from] russet_store::StoreError),
    /// An operation on a socket or file failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: String,
        source: std::io::Error,
    },
    /// An invalid setting.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The netlink socket could not be opened.
    #[error("open a netlink socket: {0}")]
    Netlink(#[from] russet_netlink::NetlinkError),
}

/// How long requests in progress may take when the agent is asked to stop. Later ones are cut off,
/// and DEL cleans up.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// How long an edit of a pool may stay unseen by ADDs if the watch is late; the loop clears the
/// allocator's cache when it sees one. Blocks do not depend on this cache: each commit is guarded
/// by the block's revision.
const CACHE_MAX_AGE: Duration = Duration::from_secs(30);
/// The MTU of pods before the underlay is known.
const MTU_UNTIL_KNOWN_BYTES: u32 = 1450;

/// The node lock of an agent. To be held until no work of [`run`] is in progress, which may be
/// later than its return, because blocking work continues. The next agent then gets the lock and
/// undoes what this one has begun.
#[derive(Debug)]
pub struct NodeLock(FileLock);

/// Takes the node lock. Waits for plugins that work without an agent.
pub fn take_node(config: &Config) -> Result<NodeLock, AgentError> {
    russet_linux::file::private_dir(config.paths.run_dir()).map_err(io("make the run directory"))?;
    Ok(NodeLock(node_lock::lock_for_agent(&config.paths, Timeouts::default())?))
}

fn io(what: &str) -> impl FnOnce(std::io::Error) -> AgentError {
    let what = what.to_owned();
    move |source| AgentError::Io { what, source }
}

/// Runs the agent until `stop` resolves.
pub async fn run(
    config: Config,
    node_lock: &NodeLock,
    stop: impl Future<Output = ()>,
) -> Result<(), AgentError> {
    if let Some(fault) = config.pools.fault().or_else(|| config.ipam_fault()) {
        return Err(fault.into());
    }
    tracing::debug!(lock = %node_lock.0.path().display(), "the node is ours");
    let readiness = Readiness::pending();
    let (metrics, mut registry) = Metrics::with_readiness(&readiness);
    let store = stores::open_and_serve(&config, &metrics.listeners.store).await?;
    let doomed = Rc::new(Notify::new());
    let (journal, found) = journal(&config, &metrics).map_err(io("read the boot's ID"))?;
    let (measured, pods) = measured(&config, &store, &metrics);
    let node = node(&config, Rc::clone(&measured), teardown(&config, &doomed), &readiness);
    let flows = fast_path::Signal::default();
    let policies = start_policies(&config, (&journal, &flows), &metrics, &readiness)?;
    let node = configured(node, &config, &readiness, (&journal, policies.as_ref()), pods.as_ref());
    let listener = server::bind(&config.paths.cni_socket()).map_err(io("make the CNI socket"))?;
    let listeners = metrics.listeners.clone();
    let (stopping, stopped) = watch::channel(false);
    let reports = (&mut registry, &readiness, &listeners);
    let openshift = openshift_server::new(&config, (&measured, policies.as_ref()), reports, stopped.clone());
    let ((jobs, requests), (repair_queue, repair_jobs)) = (server::queue(), RepairQueue::new());
    let (unheld_queue, unheld_queries) = UnheldQueue::new();
    let history = History::at(config.paths.history_file());
    let operations = Rc::new(Operations::new(node.clone(), metrics.clone(), history, Rc::clone(&journal)));

    let local = LocalSet::new();
    local
        .run_until(async {
            reaper::delete_precreated(&node).await;
            let history = config.paths.history_file();
            let kernel = recovery::KernelState::look(&node, &journal, &history).await;
            // The endpoint table is complete now.
            let controllers = start_controllers(&config, &journal, &node, (&metrics, &readiness), &flows)?;
            let status = start_status(&config, &controllers, &journal, &metrics, &readiness)?;
            isolation::guard_known_ports(&node.host.wiring.verdicts(), journal.table());
            isolation::begin(&node, &readiness).await;
            let mut background = JoinSet::new();
            background.spawn_local(isolation::insist(node.clone(), Rc::clone(&operations), readiness.clone()));
            let repairs = Repairs::new(leak_finder(&config, &node), node.clone(), Rc::clone(&operations), metrics.clone());
            start_leak_repair(&mut background, repairs, repair_jobs, config.leak_repair, found.fresh);
            background.spawn_local(repair::answer_unheld_queries(Rc::clone(&node.allocator), unheld_queries));
            maintain(&mut background, &node, &operations, (doomed, &flows), &metrics);
            let client = pods.as_ref().map(Pods::client);
            policies.iter().for_each(|policies| policies.watch(&mut background, &node.store, client.as_ref()));
            start_kubernetes(&mut background, &config, pods, (&readiness, &status), &operations).map_err(io("read the boot's ID"))?;
            let pages = start_shown(&mut background, (&node, client.clone()), (&status, &controllers, journal.table(), operations.recent()), policies.as_ref().map(Policies::flows));
            let keep = Loop::new(config.clone(), node, readiness.clone(), metrics, controllers.clone(), store.kubernetes);
            start_for_calicos_pods(&mut background, &keep, policies.as_ref(), client.as_ref());
            background.spawn_local(big_tcp::Keeper::new(&keep, journal.table()).run());
            background.spawn_local(keep.run());
            store.service.into_iter().for_each(|service| _ = background.spawn_local(service));
            recovery::run(&operations, found, &kernel).await;
            background.spawn_local(carry_out(Rc::clone(&operations), requests));
            let openshift = openshift.map(|server| tokio::task::spawn_local(server.run(controllers.clone())));
            let drift = (controllers, unheld_queue, readiness.clone());
            start_health(&config, readiness, (registry, &listeners), &pages, stop_requested(stopped.clone()))?;
            let shown = Shown { repairs: repair_queue, drift, flow_log: policies.as_ref().map(Policies::flows), fast_path: flows, status };
            let cni = tokio::spawn(server::serve(listener, listeners.cni, jobs, shown, stop_requested(stopped)));
            notify_service_manager(&mut background);
            tracing::info!(node = %config.node_name, store = %config.store, socket = %config.paths.cni_socket().display(), "agent started");
            stop.await;
            wind_down(stopping, cni, openshift, &operations).await;
            Ok(())
        })
        .await
}

/// The store as all users of the agent see it, and this node's pods if they are objects of the
/// Kubernetes API.
fn measured(config: &Config, store: &Opened, metrics: &Metrics) -> (Rc<dyn Store>, Option<Pods>) {
    let measured: Rc<dyn Store> = Measured::over(&store.store, &metrics.store);
    let Some(kubernetes) = &store.kubernetes else { return (measured, None) };
    let pods = Pods::new(kubernetes, &config.node_name);
    (WatchedStore::over(measured, &config.node_name, pods.clone()), Some(pods))
}

/// Starts what shows this node to people elsewhere: its record in the store, and its page.
fn start_shown(
    background: &mut JoinSet<()>,
    (node, kubernetes): (&Node, Option<Client>),
    (status, controllers, endpoints, operations): (
        &StatusSource,
        &Controllers,
        &EndpointTable,
        operations::RecentOperations,
    ),
    flows: Option<flows::FlowLog>,
) -> Pages {
    background.spawn_local(Publisher::new(node, status).run());
    let cluster = ClusterView::default();
    background.spawn_local(cluster.clone().run(node.clone(), kubernetes));
    let (status, controllers, endpoints) = (status.clone(), controllers.clone(), endpoints.clone());
    Pages::new(Sources { status, controllers, endpoints, flows, operations, cluster })
}

/// Tells the service manager that the agent is ready, and from then on that it works.
fn notify_service_manager(background: &mut JoinSet<()>) {
    let service_manager = ServiceManager::from_env();
    background.spawn_local(async move {
        service_manager.ready();
        // In this task, so that notifications stop when the loop that serves plugins hangs.
        match service_manager.keep_alive().await {}
    });
}

/// Starts the background work of the node: recovery of interrupted requests, deletion of links,
/// metrics, memory.
fn maintain(
    background: &mut JoinSet<()>,
    node: &Node,
    operations: &Rc<Operations>,
    (doomed, flows): (Rc<Notify>, &fast_path::Signal),
    metrics: &Metrics,
) {
    background.spawn_local(recovery::serve(Rc::clone(operations)));
    background.spawn_local(reaper::run(node.clone(), doomed, flows.clone(), metrics.clone()));
    background.spawn_local(fill::run(node.clone(), metrics.pools.clone()));
    background.spawn_local(heap::run());
    background.spawn_local(guards::run(metrics.clone()));
}

/// Starts what an agent with a store in the Kubernetes API does besides.
fn start_kubernetes(
    background: &mut JoinSet<()>,
    config: &Config,
    pods: Option<Pods>,
    (readiness, status): (&Readiness, &StatusSource),
    operations: &Operations,
) -> std::io::Result<()> {
    let Some(pods) = pods else { return Ok(()) };
    let client = pods.client();
    let boot = russet_linux::host::boot_id()?;
    let (heartbeat, source) = (Heartbeat::new(client.clone(), config.node_name.as_str()), status.clone());
    let health = move || HealthRecord::annotation(&source);
    background.spawn_local(heartbeat.with_annotation(HealthRecord::ANNOTATION, health).run());
    background.spawn_local(NodeStatus::new(client.clone(), config, readiness, &boot).run());
    if config.calico {
        background.spawn_local(pods.clone().run_namespaces());
        if let Some(path) = config.calico_kubeconfig.clone() {
            background.spawn_local(CniKubeconfig::new(client.clone(), path).run());
        }
    }
    operations.follow_contacts(client.contacts());
    background.spawn_local(pods.run());
    Ok(())
}

/// Starts what Felix does elsewhere, and what says which policies are missing.
fn start_in_calicos_place(
    background: &mut JoinSet<()>,
    keep: &Loop,
    policies: Option<&Policies>,
    client: Option<&Client>,
) {
    let decided = policies.map(Policies::decided_ends);
    background.spawn_local(endpoint_status::Files::new(keep, decided).run());
    if policies.is_none()
        && let Some(client) = client
    {
        keep.unenforced.watch(background, client);
    }
}

/// Starts what pods of Calico's plugins need: in Calico's place more than guards of their host ends, which the loop keeps there.
fn start_for_calicos_pods(
    background: &mut JoinSet<()>,
    keep: &Loop,
    policies: Option<&Policies>,
    client: Option<&Client>,
) {
    if keep.config.calico {
        return start_in_calicos_place(background, keep, policies, client);
    }
    // Without policies an earlier agent may have guarded them.
    let wanted = policies.map(Policies::guards_calico);
    let wanted = wanted.unwrap_or_else(|| watch::Sender::new(false).subscribe());
    background.spawn_local(isolation::guard_policed_calico_ends(keep.node.clone(), wanted));
}

/// Starts to serve health and metrics. If the address is taken, pods can still be attached.
fn start_health(
    config: &Config,
    readiness: Readiness,
    (registry, listeners): (prometheus_client::registry::Registry, &Listeners),
    pages: &Pages,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), AgentError> {
    let site = |address, admission: &Arc<Admission>, content| Site {
        address,
        admission: Arc::clone(admission),
        content,
    };
    // The socket is for root; whatever else the settings name has no pages, because any process may reach it.
    let socket = HealthAddress::Unix(config.paths.health_socket());
    let mut sites = vec![site(socket.clone(), &listeners.health, Content::HealthAndPages(pages.router()))];
    if config.health != socket {
        sites.insert(0, site(config.health.clone(), &listeners.health, Content::Health));
    }
    if let Some(address) = config.ui {
        let gate = page::guarded(pages, address, &config.paths).map_err(io("make the token of the page"))?;
        sites.push(site(address.into(), &listeners.ui, Content::Guarded(gate)));
    } else {
        // An earlier agent's, whose token nothing takes any more.
        let _ = std::fs::remove_file(config.paths.ui_url_file());
    }
    russet_http::health::start_sites(sites, readiness, registry, stop)
        .map_err(io("start the thread of health and metrics"))
}

/// Repairs leaks on request, at an interval, and soon after a boot.
fn start_leak_repair(
    background: &mut JoinSet<()>,
    repairs: Repairs,
    jobs: mpsc::Receiver<repair::RepairJob>,
    every: Option<Duration>,
    after_boot: bool,
) {
    let repairs = Rc::new(repairs);
    background.spawn_local(Rc::clone(&repairs).serve(jobs));
    if let Some(every) = every {
        if after_boot {
            background.spawn_local(Rc::clone(&repairs).after_boot(every));
        }
        background.spawn_local(repairs.run(every));
    }
}

/// Carries out plugins' requests, each as its own task.
async fn carry_out(operations: Rc<Operations>, mut requests: mpsc::Receiver<server::Job>) {
    while let Some(server::Job { request, mut answer, permit }) = requests.recv().await {
        let operations = Rc::clone(&operations);
        tokio::task::spawn_local(async move {
            let _permit = permit;
            let outcome = operations.execute(request, answer.closed()).await;
            // If the caller is gone, the runtime will request DEL.
            let _ = answer.send(outcome);
        });
    }
}

/// Waits for requests in progress, and for what DELs do after their answers. The wait is bounded:
/// the next agent completes the rest.
async fn finish(cni: tokio::task::JoinHandle<()>, operations: &Operations) {
    let end = tokio::time::Instant::now() + STOP_TIMEOUT;
    match tokio::time::timeout_at(end, cni).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the CNI server was interrupted"),
        Err(_elapsed) => tracing::warn!("requests in progress were cut off"),
    }
    if tokio::time::timeout_at(end, operations.exclusive()).await.is_err() {
        tracing::warn!("the next agent releases the addresses of deleted pods");
    }
}

/// Stops the servers and waits for requests in progress.
async fn wind_down(
    stopping: watch::Sender<bool>,
    cni: tokio::task::JoinHandle<()>,
    openshift: Option<tokio::task::JoinHandle<()>>,
    operations: &Operations,
) {
    // An error means that no server listens any more, which is the goal.
    let _ = stopping.send(true);
    ServiceManager::from_env().stopping();
    finish(cni, operations).await;
    finish_openshift(openshift).await;
    tracing::info!("agent stopped; the data path keeps working");
}

/// Waits for the end of the OpenShift server, if there is one.
async fn finish_openshift(server: Option<tokio::task::JoinHandle<()>>) {
    if let Some(server) = server
        && tokio::time::timeout(STOP_TIMEOUT, server).await.is_err()
    {
        tracing::warn!("requests of OpenShift's plugin were cut off");
    }
}

/// Resolves when the agent is asked to stop.
async fn stop_requested(mut stopped: watch::Receiver<bool>) {
    // An error means that the agent has ended.
    let _ = stopped.wait_for(|stop| *stop).await;
}

fn teardown(config: &Config, doomed: &Rc<Notify>) -> Teardown {
    if config.sync_delete { Teardown::Synchronous } else { Teardown::Deferred(Rc::clone(doomed)) }
}

/// The journal of this boot with its endpoint table, and what an earlier agent left in it.
fn journal(config: &Config, metrics: &Metrics) -> std::io::Result<(Rc<Journal>, JournalContents)> {
    let boot = russet_linux::host::boot_id()?;
    let (journal, found) = Journal::open(config.paths.journal_file(), boot, metrics.journal.clone());
    Ok((Rc::new(journal), found))
}

/// Starts to probe the other nodes, and returns what `/v1/status` is read from.
fn start_status(
    config: &Config,
    controllers: &Controllers,
    journal: &Journal,
    metrics: &Metrics,
    readiness: &Readiness,
) -> Result<StatusSource, AgentError> {
    let peers = start_peer_probes(config, controllers, metrics, readiness)?;
    let (store, endpoints) = (metrics.store.clone(), journal.table().clone());
    let observed = Observed { store, endpoints, controllers: controllers.clone(), peers };
    Ok(StatusSource::new(config, readiness, observed))
}

/// Starts to probe the other nodes, if that is wished.
fn start_peer_probes(
    config: &Config,
    controllers: &Controllers,
    metrics: &Metrics,
    readiness: &Readiness,
) -> Result<PeerProbes, AgentError> {
    let (metrics, readiness) = (metrics.peers.clone(), readiness.clone());
    let observers = Observers { metrics, readiness, gates_readiness: config.peers.gates_readiness };
    PeerProbes::start(config.peers.probes, controllers.clone(), observers)
        .map_err(io("start the thread that probes other nodes"))
}

/// Starts the threads that enforce network policies, where this agent does.
fn start_policies(
    config: &Config,
    (journal, flows): (&Journal, &fast_path::Signal),
    metrics: &Metrics,
    readiness: &Readiness,
) -> Result<Option<Policies>, AgentError> {
    let mut marker = Marker::new(&config.paths);
    if config.policies == PolicyMode::Off {
        // In Calico's place the policies that there are count, which are reported by themselves.
        let is_off =
            (!config.calico).then(|| "NOT ENFORCED: this agent's setting is policies = \"off\"".to_owned());
        readiness.remark("policies", is_off);
        marker.set(false);
        policies::leave_hosts_open();
        return Ok(None);
    }
    let source = match config.store {
        StoreLocation::Kubernetes(_) => Source::Kubernetes,
        _ => Source::Records,
    };
    let reports = (metrics.policies.clone(), readiness.clone(), config.openshift.is_some());
    let table = journal.table().clone();
    let started = Policies::start(&config.node_name, source, (table, flows), marker, reports);
    started.map(Some).map_err(io("start the threads of policies"))
}

/// Starts the controllers, and the fast path, which hears of the kernel's changes from them. In Calico's
/// place there is none: Felix and BIRD may decide about packets there, and say nothing of it.
fn start_controllers(
    config: &Config,
    journal: &Journal,
    node: &Node,
    (metrics, readiness): (&Metrics, &Readiness),
    flows: &fast_path::Signal,
) -> Result<Controllers, AgentError> {
    let verdicts = node.host.wiring.verdicts();
    let controllers = Controllers::start(metrics.clone(), journal.table().clone(), verdicts, flows.clone())?;
    metrics.fast_path.name_by(journal.table().clone());
    let mode = if config.calico { FastPathMode::Off } else { config.fast_path };
    fast_path::start(mode, flows, metrics.fast_path.clone(), readiness)
        .map_err(io("start the thread of the fast path"))?;
    Ok(controllers)
}

/// The observers of interfaces.
fn observer(journal: &Rc<Journal>, policies: Option<&Policies>) -> Rc<dyn InterfaceObserver> {
    let journal = Rc::clone(journal) as Rc<dyn InterfaceObserver>;
    match policies {
        Some(policies) => Rc::new(HoldsNewPods::new(policies.clone(), journal)),
        None => journal,
    }
}

/// Finds and repairs leaks on this node.
fn leak_finder(config: &Config, node: &Node) -> LeakFinder {
    LeakFinder {
        node: config.node_name.clone(),
        store: Rc::clone(&node.store),
        allocator: Rc::clone(&node.allocator),
        clock: Rc::new(SystemClock),
        read_machine: repair::machine_reader(config.cni_caches.clone()),
    }
}

/// The node with its observers, and with what the agent knows of it.
fn configured(
    mut node: Node,
    config: &Config,
    readiness: &Readiness,
    (journal, policies): (&Rc<Journal>, Option<&Policies>),
    pods: Option<&Pods>,
) -> Node {
    node.host.wiring = node.host.wiring.with_observer_and_precreation(observer(journal, policies));
    let (ready, endpoints) = (readiness.clone(), journal.table().clone());
    node.host.not_ready = Rc::new(move || ready.not_ready(!endpoints.is_empty()));
    if let Some(mtu) = direct::published_mtu(config) {
        // Pods that are attached before the underlay is first read get the MTU that the previous
        // agent computed.
        node.mtu_bytes.set(mtu);
    }
    node.pair = fast_path::pair(config.fast_path);
    match pods {
        Some(pods) => with_pods(node, config, pods),
        None => node,
    }
}

/// The node, whose pods are objects of the Kubernetes API.
pub(crate) fn with_pods(mut node: Node, config: &Config, pods: &Pods) -> Node {
    let announcer = Announcer::new(pods.clone(), Rc::clone(&node.store), config.annotate);
    node.announce = Some(Rc::new(announcer));
    if let StoreLocation::Kubernetes(location) = &config.store {
        let is_own = datastores::leads_to(location, config.calico_kubeconfig.clone());
        node.host.clusters = Clusters::with_own(Rc::new(pods.clone()), is_own);
    }
    node
}

/// This node, as the plugins see it.
fn node(config: &Config, store: Rc<dyn Store>, teardown: Teardown, readiness: &Readiness) -> Node {
    let readiness = readiness.clone();
    let allocator = Allocator::new(Rc::clone(&store), Rc::new(SystemClock));
    let allocator = Rc::new(allocator.with_backoff(Rc::new(Pause)).with_cache(CACHE_MAX_AGE));
    let datastore = || Datastore::with_allocator(Rc::clone(&store), Rc::clone(&allocator));
    let own = match &config.store {
        StoreLocation::Etcd(settings) => Some(OwnDatastore::Etcd(*settings.clone(), datastore())),
        StoreLocation::Kubernetes(location) => {
            let is_own = datastores::leads_to(location, config.calico_kubeconfig.clone());
            Some(OwnDatastore::Kubernetes(is_own, datastore()))
        }
        StoreLocation::Embedded | StoreLocation::Unix(_) => None,
    };
    let datastores = Rc::new(OpenDatastores::of_agent(own));
    Node {
        name: config.node_name.clone(),
        allocator,
        store,
        mtu_bytes: Rc::new(Cell::new(config.mtu_bytes.unwrap_or(MTU_UNTIL_KNOWN_BYTES))),
        packet_sizes: Default::default(),
        pair: Default::default(),
        host: CalicoNode {
            teardown,
            not_ready: Rc::new(move || readiness.not_ready(false)),
            ..CalicoNode::for_request(CalicoHost::new(config.paths.root(), datastores))
        },
        releases: Default::default(),
        announce: None,
    }
}
