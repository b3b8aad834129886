//! The node's half of OpenShift's network (cni-runtime.md section 4, docs/openshift.md): a server
//! from which thin plugins, the stock one and ours, request pods' addresses and data path.
//!
//! It reads the network and this node's part of it from the store, brings the data path to what is
//! attached, and only then listens and reports that pods can be attached. Running pods are not
//! affected while it is down: their state is in the kernel and in files.

mod files;
mod ipam;
mod metrics;
mod network;
mod pods;
mod records;
mod reply;
mod request;
mod sandbox_locks;
mod served;
mod server;
mod start;
mod state;

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prometheus_client::registry::Registry;
use russet_listener::Admission;
use russet_overlay::ReconcileReport;
use russet_overlay::openshift::Sdn as DataPath;
use russet_store::Store;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;

use crate::config::Config;
use crate::drift::Drift;
use crate::health::{Condition, Readiness};
use crate::openshift_tenants::{RoundReport, View, follow};
use crate::server::bind;
use files::{Files, PluginConfig};
use ipam::Ipam;
use metrics::SdnMetrics;
use pods::Pods;
use records::Records;
use sandbox_locks::SandboxLocks;
pub use served::Served;
use server::Job;
pub(crate) use server::LISTENER;
use start::{NodeNetwork, StartError};
use state::{Component, NetworkState};

pub use network::NetworkDefault;

/// Settings of the server.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The network to create in a store without one.
    pub network: Option<NetworkDefault>,
    /// Access to the Kubernetes API, which says which pods get a macvlan0.
    pub kubeconfig: Option<PathBuf>,
    /// Without the API: annotations that the runtime passes on are believed, and pods that have
    /// them count as privileged.
    pub trust_annotations: bool,
    /// MTU of pods' routes, in bytes; by default that of their interfaces.
    pub routable_mtu: Option<u32>,
    /// The cloud platform, with OpenShift's name for it.
    pub platform: String,
}

/// The server before its start.
pub struct Server {
    config: Config,
    settings: Settings,
    store: Rc<dyn Store>,
    metrics: SdnMetrics,
    readiness: Readiness,
    admission: Arc<Admission>,
    stopped: watch::Receiver<bool>,
}

/// The first and the longest pause after a failed start.
const BACKOFF_FIRST: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// Pause before a failed step is tried again.
const RETRY: Duration = Duration::from_secs(1);

// === impl Server ===

impl Server {
    /// A server for the agent's node, if it is configured.
    pub fn new(
        config: &Config,
        store: &Rc<dyn Store>,
        registry: &mut Registry,
        readiness: &Readiness,
        admission: &Arc<Admission>,
        stopped: watch::Receiver<bool>,
    ) -> Option<Self> {
        let settings = config.openshift.clone()?;
        readiness.unmet(Condition::Openshift, "not yet");
        Some(Self {
            config: config.clone(),
            settings,
            store: Rc::clone(store),
            metrics: SdnMetrics::register(registry),
            readiness: readiness.clone(),
            admission: Arc::clone(admission),
            stopped,
        })
    }

    /// Runs until it is asked to stop and requests in progress are done. A failed start is tried
    /// again. `drift` keeps its data path.
    pub async fn run(self, drift: Drift) {
        let mut stopped = self.stopped.clone();
        let mut backoff = BACKOFF_FIRST;
        loop {
            tokio::select! {
                _ = stopped.wait_for(|stop| *stop) => return,
                part = self.begin() => match part {
                    Ok(part) => return self.serve(part, drift).await,
                    Err(error) => {
                        self.readiness.unmet(Condition::Openshift, &error);
                        tracing::warn!(%error, "OpenShift's server cannot start");
                    }
                },
            }
            // A stop ends the pause.
            let _ = tokio::time::timeout(backoff, self.stop()).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// Prepares the node's part. There is no socket before the server can answer: a plugin that
    /// finds none defers a DEL, and one that gets no answer has to wait.
    async fn begin(&self) -> Result<NodeNetwork, StartError> {
        let part = start::find(&self.config, &self.settings, &*self.store).await?;
        let prepared = Files::below(self.config.paths.root()).prepare();
        prepared.map_err(|source| StartError::Io { what: "make the directory of the socket", source })?;
        Ok(part)
    }

    async fn serve(self, part: NodeNetwork, drift: Drift) {
        let mut background = JoinSet::new();
        let (view, changed, state) =
            (Rc::default(), Rc::new(Notify::new()), Rc::new(NetworkState::pending(self.readiness.clone())));
        let config = PluginConfig {
            mtu: part.sdn.settings().mtu,
            routable_mtu: self.settings.routable_mtu,
            platform: self.settings.platform.clone(),
            service: part.network.service_network,
        };
        let pods = Rc::new(Pods {
            ipam: Ipam::new(self.config.paths.root(), &part.network, &part.subnet),
            records: Records::new(&self.config.paths),
            sdn: Arc::new(Mutex::new(part.sdn)),
            view: Rc::clone(&view),
            changed: Rc::clone(&changed),
            macvlan: part.macvlan,
            metrics: self.metrics.clone(),
            state: Rc::clone(&state),
            locks: SandboxLocks::default(),
        });
        let follower = self.follower(&pods, view, &changed, &state);
        background.spawn_local(follower);
        let maintained = Rc::new(Notify::new());
        background.spawn_local(maintain_data_path(
            Rc::clone(&pods),
            drift,
            Rc::clone(&state),
            Rc::clone(&maintained),
        ));
        let files = Files::below(self.config.paths.root());
        let listener = tokio::select! {
            () = self.stop() => return,
            listener = async {
                wait_until_in_force(&state, &changed, &maintained).await;
                start::recover(&pods).await;
                retry_until_success("make the socket", || bind(&files.socket())).await
            } => listener,
        };
        let (jobs, waiting) = server::queue();
        background.spawn(server::serve(listener, Arc::clone(&self.admission), jobs, self.stop()));
        let settings = format!("{config:?}");
        tracing::info!(socket = %files.socket().display(), settings, "OpenShift's server started");
        background.spawn_local(async move {
            retry_until_success("write the plugins' settings", || files.write_plugin_config(&config)).await;
            retry_until_success("write the runtimes' configuration", || files.write_runtime_config()).await;
        });
        carry_out(pods, waiting).await;
    }

    /// Resolves when the agent stops or has ended.
    fn stop(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stopped = self.stopped.clone();
        async move { _ = stopped.wait_for(|stop| *stop).await }
    }

    fn follower(
        &self,
        pods: &Pods,
        view: Rc<RefCell<View>>,
        changed: &Rc<Notify>,
        state: &Rc<NetworkState>,
    ) -> impl Future<Output = ()> + use<> {
        let (changed, state) = (Rc::clone(changed), Rc::clone(state));
        let on_round = move |round: RoundReport| {
            record_problem(&state, Component::Followed, problem_of(&round.report));
            if round.renumbered > 0 {
                tracing::info!(ports = round.renumbered, "network IDs of pods changed");
            }
            changed.notify_waiters();
        };
        follow(Rc::clone(&self.store), self.config.node_name.clone(), Arc::clone(&pods.sdn), view, on_round)
    }
}

/// Tries until it succeeds: a file system may be full or read-only for a while.
async fn retry_until_success<T, E: std::fmt::Display>(
    what: &'static str,
    mut work: impl FnMut() -> Result<T, E>,
) -> T {
    loop {
        match work() {
            Ok(done) => return done,
            Err(error) => {
                tracing::warn!(%error, what, "OpenShift's server could not be prepared and tries again")
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Carries requests out, each as its own task, until no request can arrive any more and all are
/// done.
async fn carry_out(pods: Rc<Pods>, mut waiting: mpsc::Receiver<Job>) {
    let mut under_way = JoinSet::new();
    while let Some(job) = waiting.recv().await {
        while under_way.try_join_next().is_some() {}
        under_way.spawn_local(Rc::clone(&pods).carry_out(job));
    }
    while under_way.join_next().await.is_some() {}
}

/// Brings the data path to its desired state. From then on the listening thread keeps it so, and
/// this task records its problems.
async fn maintain_data_path(pods: Rc<Pods>, drift: Drift, state: Rc<NetworkState>, maintained: Rc<Notify>) {
    let mut problem = keep(&pods.sdn, &drift).await;
    loop {
        let drift = drift.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || drift.look_at_sdn()).await {
            tracing::error!(%error, "a comparison of OpenShift's data path was interrupted");
        }
        let now = problem.borrow_and_update().clone();
        let failed = now.is_some();
        record_problem(&state, Component::DataPath, now);
        maintained.notify_waiters();
        if !failed {
            break;
        }
        tokio::time::sleep(RETRY).await;
    }
    // The channel ends with the agent.
    while problem.changed().await.is_ok() {
        let now = problem.borrow_and_update().clone();
        record_problem(&state, Component::DataPath, now);
        maintained.notify_waiters();
    }
}

/// Hands the data path over to drift detection. Runs on its own thread, because the path's lock may
/// be held: a commit of nf_tables waits for those of other programs, and requests must not wait
/// with it.
async fn keep(path: &Arc<Mutex<DataPath>>, drift: &Drift) -> watch::Receiver<Option<String>> {
    loop {
        let (path, drift) = (Arc::clone(path), drift.clone());
        match tokio::task::spawn_blocking(move || drift.keep_sdn(&path)).await {
            Ok(problem) => return problem,
            Err(error) => tracing::error!(%error, "OpenShift's data path is not watched for drift yet"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

fn problem_of(report: &ReconcileReport) -> Option<String> {
    let first = || report.errors.first().map_or_else(|| "it was interrupted".to_owned(), ToString::to_string);
    (report.failed > 0).then(first)
}

/// Records why a part is not in force, if so.
fn record_problem(state: &NetworkState, part: Component, problem: Option<String>) {
    match problem {
        None if state.good(part) => tracing::info!(?part, "OpenShift's data path is in force"),
        None => {}
        Some(error) if state.bad(part, error.clone()) => {
            tracing::warn!(?part, error, "OpenShift's data path is not in force");
        }
        Some(_) => {}
    }
}

/// Waits until everything is in force: a pod that is attached earlier would have no connection.
async fn wait_until_in_force(state: &NetworkState, changed: &Notify, maintained: &Notify) {
    loop {
        let (changed, maintained) = (changed.notified(), maintained.notified());
        tokio::pin!(changed, maintained);
        changed.as_mut().enable();
        maintained.as_mut().enable();
        if state.is_good() {
            return;
        }
        tokio::select! { () = changed => {} () = maintained => {} }
    }
}

#[cfg(test)]
mod tests;
