//! The node daemon. It serves CNI on a socket, keeps routes and tunnels as the datastore wants them, removes what
//! deleted pods left, and says how it is. Stopping it leaves the data path as it is.

pub mod attachments;
pub mod bootstrap;
mod cluster;
mod config;
mod datastores;
mod direct;
pub mod drift;
mod health;
mod history;
pub mod journal;
mod metrics;
pub mod openshift_tenants;
mod operations;
mod passage;
mod reaper;
mod reconcile;
pub mod repair;
mod rivals;
mod server;
mod stores;
mod turn;
mod underlay;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use russet_ipam::Allocator;
use russet_linux::LockError;
use russet_overlay::Reconciler;
use russet_plugins::{CalicoHost, Datastore, Node, Pause, SystemClock, Teardown};
use russet_store::Store;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{JoinSet, LocalSet};

pub use config::{Config, DEFAULT_HEALTH, DefaultPools, Encapsulation, Paths, SettingError, StoreLocation};
pub use direct::{Direct, direct};
pub use health::{Condition, Readiness};
pub use history::{History, Tenure};
pub use russet_plugins::RequestLog;
pub use russet_store_etcd::{Secret, Settings as EtcdSettings, SettingsError as EtcdSettingsError};
pub use stores::{Opened, open as open_store, own as own_store};

use datastores::EtcdDatastores;
use health::serve as serve_health;
use metrics::Metrics;
use operations::Operations;
use reconcile::Loop;
use repair::{Crew, Door, Repairs};

/// What keeps an agent from running.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Another agent of this node runs, or a plugin never lets go.
    #[error("another agent of this node is running: {0}")]
    Lock(#[from] LockError),
    /// The store cannot be opened.
    #[error("open the store: {0}")]
    Store(#[from] russet_store::StoreError),
    /// A socket or file.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The kernel's netlink.
    #[error("open a netlink socket: {0}")]
    Netlink(#[from] russet_netlink::NetlinkError),
}

/// Plugins that work without an agent share the node lock for a request each, and new ones do not join them; longer means another agent.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);
/// How long requests under way may take when the agent is told to stop. Then they are cut off, and DEL cleans up.
const STOP_PATIENCE: Duration = Duration::from_secs(15);
/// How long an edit of a pool may take to be seen by the next ADD where the watch is late; the loop makes the allocator forget when it sees one. Blocks
/// are not trusted that way: each commit is guarded by the block's revision.
const CACHE_MAX_AGE: Duration = Duration::from_secs(30);
/// The MTU until the underlay is known.
const MTU_UNTIL_KNOWN_BYTES: u32 = 1450;

/// Runs the agent until `stop` resolves.
pub async fn run(config: Config, stop: impl Future<Output = ()>) -> Result<(), AgentError> {
    let io = |what: &str| {
        let what = what.to_owned();
        move |source| AgentError::Io { what, source }
    };
    config::private_dir(&config.paths.run_dir()).map_err(io("make the run directory"))?;
    let _lock = turn::of_agent(&config.paths, LOCK_PATIENCE)?;
    let store = stores::open_and_serve(&config).await?;
    let (metrics, registry) = Metrics::new();
    let readiness = Readiness::pending();
    let doomed = Rc::new(Notify::new());
    let node = node(&config, Rc::clone(&store.store), teardown(&config, &doomed), &readiness);
    if let Some(mtu) = direct::published_mtu(&config) {
        // Pods that are attached before the first look at the underlay get what the agent before this one computed.
        node.mtu_bytes.set(mtu);
    }
    let reconciler = Arc::new(Mutex::new(Reconciler::new()?));
    let listener = server::bind(&config.paths.cni_socket()).map_err(io("make the CNI socket"))?;
    let (stopping, stopped) = watch::channel(false);
    let (jobs, requests) = server::queue();
    let (door, repair_jobs) = Door::new();
    let operations =
        Rc::new(Operations::new(node.clone(), metrics.clone(), History::at(config.paths.history_file())));

    let local = LocalSet::new();
    local
        .run_until(async {
            reaper::newborn(&node).await;
            let mut background = JoinSet::new();
            let repairs = Rc::new(Repairs::new(crew(&config, &node), Rc::clone(&operations), metrics.clone()));
            background.spawn_local(Rc::clone(&repairs).serve(repair_jobs));
            if let Some(every) = config.leak_repair {
                background.spawn_local(repairs.run(every));
            }
            background.spawn_local(reaper::run(node.clone(), doomed, metrics.clone()));
            let keep = Loop {
                config: config.clone(),
                node,
                readiness: readiness.clone(),
                metrics,
                reconciler,
                rivals: Default::default(),
                passage: Default::default(),
            };
            background.spawn_local(keep.run());
            if let Some(service) = store.service {
                background.spawn_local(service);
            }
            background.spawn_local(carry_out(operations, requests));
            let health = tokio::spawn(serve_health(config.health, readiness, registry, told(stopped.clone())));
            let cni = tokio::spawn(server::serve(listener, jobs, door, told(stopped)));
            tracing::info!(node = %config.node_name, store = %config.store, socket = %config.paths.cni_socket().display(), "agent started");
            let early = tokio::select! {
                () = stop => None,
                died = health => Some((died, "serve health")),
            };
            if let Some((Ok(Err(source)), what)) = early {
                return Err(AgentError::Io { what: format!("{what} on {}", config.health), source });
            }
            // Nobody may be listening any more; that is the aim.
            let _ = stopping.send(true);
            finish(cni).await;
            tracing::info!("agent stopped; the data path stays as it is");
            Ok(())
        })
        .await
}

/// Carries out plugins' requests, each as a task of its own.
async fn carry_out(operations: Rc<Operations>, mut requests: mpsc::Receiver<server::Job>) {
    while let Some(server::Job { request, answer }) = requests.recv().await {
        let operations = Rc::clone(&operations);
        // Not tied to the connection: a request whose caller went away is still carried out to its end.
        tokio::task::spawn_local(async move {
            let outcome = operations.execute(request).await;
            // The caller may be gone; the runtime will ask for DEL.
            let _ = answer.send(outcome);
        });
    }
}

/// Waits for the requests under way, but not for ever.
async fn finish(cni: tokio::task::JoinHandle<std::io::Result<()>>) {
    match tokio::time::timeout(STOP_PATIENCE, cni).await {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(error))) => tracing::warn!(%error, "the CNI server ended with an error"),
        Ok(Err(error)) => tracing::warn!(%error, "the CNI server stopped half-way"),
        Err(_elapsed) => tracing::warn!("requests under way were cut off"),
    }
}

/// Resolves when the agent is told to stop.
async fn told(mut stopped: watch::Receiver<bool>) {
    // An error means that the agent is gone already.
    let _ = stopped.wait_for(|stop| *stop).await;
}

fn teardown(config: &Config, doomed: &Rc<Notify>) -> Teardown {
    if config.sync_delete { Teardown::Synchronous } else { Teardown::Deferred(Rc::clone(doomed)) }
}

/// Who looks for leaks on this node.
fn crew(config: &Config, node: &Node) -> Crew {
    Crew {
        node: config.node_name.clone(),
        store: Rc::clone(&node.store),
        allocator: Rc::clone(&node.allocator),
        clock: Rc::new(SystemClock),
        sight: repair::sight(config.cni_caches.clone()),
    }
}

/// This node, as plugins see it.
fn node(config: &Config, store: Rc<dyn Store>, teardown: Teardown, readiness: &Readiness) -> Node {
    let readiness = readiness.clone();
    let allocator = Allocator::new(Rc::clone(&store), Rc::new(SystemClock));
    let allocator = Rc::new(allocator.with_backoff(Rc::new(Pause)).with_cache(CACHE_MAX_AGE));
    let own = match &config.store {
        StoreLocation::Etcd(settings) => {
            Some((*settings.clone(), Datastore::of(Rc::clone(&store), Rc::clone(&allocator))))
        }
        StoreLocation::Embedded | StoreLocation::Unix(_) => None,
    };
    let datastores = Rc::new(EtcdDatastores::of_agent(own));
    Node {
        name: config.node_name.clone(),
        calico: CalicoHost::new(config.paths.root(), datastores),
        allocator,
        store,
        wiring: Default::default(),
        mtu_bytes: Rc::new(Cell::new(config.mtu_bytes.unwrap_or(MTU_UNTIL_KNOWN_BYTES))),
        teardown,
        clusters: Default::default(),
        not_ready: Rc::new(move || readiness.not_ready()),
    }
}
