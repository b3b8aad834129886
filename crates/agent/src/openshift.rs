//! The node's half of OpenShift's network (cni-runtime.md section 4, docs/openshift.md): a server that thin plugins ask for pods' addresses and ways,
//! stock ones and ours.
//!
//! It learns from the store what the network is and which part of it is this node's, brings the data path to what is attached, and only then listens and
//! says that pods can come. Pods that run while it is away notice nothing: what it needs of them is in the kernel and in files.

mod door;
mod files;
mod ipam;
mod metrics;
mod network;
mod pods;
mod records;
mod reply;
mod request;
mod served;
mod start;
mod state;
mod turns;

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prometheus_client::registry::Registry;
use russet_listener::Admission;
use russet_overlay::Report;
use russet_overlay::openshift::Sdn as DataPath;
use russet_store::Store;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;

use crate::config::Config;
use crate::drift::Drift;
use crate::health::{Condition, Readiness};
use crate::openshift_tenants::{Told, View, follow};
use crate::server::bind;
use door::Job;
pub(crate) use door::LISTENER;
use files::{Files, PluginConfig};
use ipam::Ipam;
use metrics::SdnMetrics;
use pods::Pods;
use records::Records;
pub use served::Served;
use start::{Part as NodesPart, StartError};
use state::{Part, State};
use turns::Turns;

pub use network::NetworkDefault;

/// What can be set.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The network that a store gets that has none.
    pub network: Option<NetworkDefault>,
    /// How the Kubernetes API is reached, which says which pods get a macvlan0.
    pub kubeconfig: Option<PathBuf>,
    /// Without the API: annotations that the runtime hands on are believed, and pods that have them to be privileged.
    pub trust_annotations: bool,
    /// MTU of pods' routes, in bytes; by default that of their interfaces.
    pub routable_mtu: Option<u32>,
    /// The cloud, as OpenShift calls it.
    pub platform: String,
}

/// The server, before it has begun.
pub struct Server {
    config: Config,
    settings: Settings,
    store: Rc<dyn Store>,
    metrics: SdnMetrics,
    readiness: Readiness,
    admission: Arc<Admission>,
    stopped: watch::Receiver<bool>,
}

/// The first pause after a start that failed, and the longest.
const BACKOFF_FIRST: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// Before what failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

// === impl Server ===

impl Server {
    /// A server for the agent's node, if it is to have one.
    pub fn of(
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

    /// Runs until it is told to stop, and requests under way are done; what keeps it from beginning is tried again. `drift` keeps its
    /// data path.
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
                        tracing::warn!(%error, "OpenShift's server cannot begin");
                    }
                },
            }
            // Nobody is to wait for the end of a pause.
            let _ = tokio::time::timeout(backoff, self.stop()).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// The node's part. There is no socket until somebody serves it: a plugin that finds none puts a DEL off, and one that is not answered must wait.
    async fn begin(&self) -> Result<NodesPart, StartError> {
        let part = start::find(&self.config, &self.settings, &*self.store).await?;
        let prepared = Files::below(self.config.paths.root()).prepare();
        prepared.map_err(|source| StartError::Io { what: "make the directory of the socket", source })?;
        Ok(part)
    }

    async fn serve(self, part: NodesPart, drift: Drift) {
        let mut background = JoinSet::new();
        let (view, changed, state) =
            (Rc::default(), Rc::new(Notify::new()), Rc::new(State::pending(self.readiness.clone())));
        let config = PluginConfig {
            mtu: part.sdn.settings().mtu,
            routable_mtu: self.settings.routable_mtu,
            platform: self.settings.platform.clone(),
            service: part.network.service_network,
        };
        let pods = Rc::new(Pods {
            ipam: Ipam::new(self.config.paths.root(), &part.network, &part.subnet),
            records: Records::of(&self.config.paths),
            sdn: Arc::new(Mutex::new(part.sdn)),
            view: Rc::clone(&view),
            changed: Rc::clone(&changed),
            macvlan: part.macvlan,
            metrics: self.metrics.clone(),
            state: Rc::clone(&state),
            turns: Turns::default(),
        });
        let follower = self.follower(&pods, view, &changed, &state);
        background.spawn_local(follower);
        let tended = Rc::new(Notify::new());
        background.spawn_local(tend(Rc::clone(&pods), drift, Rc::clone(&state), Rc::clone(&tended)));
        let files = Files::below(self.config.paths.root());
        let listener = tokio::select! {
            () = self.stop() => return,
            listener = async {
                in_force(&state, &changed, &tended).await;
                start::recover(&pods).await;
                again_and_again("make the socket", || bind(&files.socket())).await
            } => listener,
        };
        let (jobs, waiting) = door::queue();
        background.spawn(door::serve(listener, Arc::clone(&self.admission), jobs, self.stop()));
        let settings = format!("{config:?}");
        tracing::info!(socket = %files.socket().display(), settings, "OpenShift's server started");
        background.spawn_local(async move {
            again_and_again("tell plugins that the server is here", || files.tell_plugins(&config)).await;
            again_and_again("tell runtimes that pods can come", || files.tell_runtimes()).await;
        });
        carry_out(pods, waiting).await;
    }

    /// Until the agent stops, or is gone.
    fn stop(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stopped = self.stopped.clone();
        async move { _ = stopped.wait_for(|stop| *stop).await }
    }

    fn follower(
        &self,
        pods: &Pods,
        view: Rc<RefCell<View>>,
        changed: &Rc<Notify>,
        state: &Rc<State>,
    ) -> impl Future<Output = ()> + use<> {
        let (changed, state) = (Rc::clone(changed), Rc::clone(state));
        let told = move |told: Told| {
            follow_up(&state, Part::Followed, problem_of(&told.report));
            if told.renumbered > 0 {
                tracing::info!(ports = told.renumbered, "pods have other network IDs");
            }
            changed.notify_waiters();
        };
        follow(Rc::clone(&self.store), self.config.node_name.clone(), Arc::clone(&pods.sdn), view, told)
    }
}

/// Until it succeeds: a file system may be full or read-only for a while.
async fn again_and_again<T, E: std::fmt::Display>(
    what: &'static str,
    mut work: impl FnMut() -> Result<T, E>,
) -> T {
    loop {
        match work() {
            Ok(done) => return done,
            Err(error) => tracing::warn!(%error, what, "OpenShift's server tries again"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Carries requests out, each as a task of its own, until nobody can ask any more and all are done.
async fn carry_out(pods: Rc<Pods>, mut waiting: mpsc::Receiver<Job>) {
    let mut under_way = JoinSet::new();
    while let Some(job) = waiting.recv().await {
        while under_way.try_join_next().is_some() {}
        under_way.spawn_local(Rc::clone(&pods).carry_out(job));
    }
    while under_way.join_next().await.is_some() {}
}

/// Brings the data path to what it should be. From then on it is kept so by the thread that listens to the kernel, and what that says of it is taken down.
async fn tend(pods: Rc<Pods>, drift: Drift, state: Rc<State>, tended: Rc<Notify>) {
    let mut problem = keep(&pods.sdn, &drift).await;
    loop {
        let drift = drift.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || drift.look_at_sdn()).await {
            tracing::error!(%error, "a look at OpenShift's data path broke off");
        }
        let now = problem.borrow_and_update().clone();
        let failed = now.is_some();
        follow_up(&state, Part::DataPath, now);
        tended.notify_waiters();
        if !failed {
            break;
        }
        tokio::time::sleep(RETRY).await;
    }
    // It ends with the agent.
    while problem.changed().await.is_ok() {
        let now = problem.borrow_and_update().clone();
        follow_up(&state, Part::DataPath, now);
        tended.notify_waiters();
    }
}

/// Has the data path kept from now on. Somebody may be at work on it: a commit of nf_tables waits for everybody else's, and requests do not wait with it.
async fn keep(path: &Arc<Mutex<DataPath>>, drift: &Drift) -> watch::Receiver<Option<String>> {
    loop {
        let (path, drift) = (Arc::clone(path), drift.clone());
        match tokio::task::spawn_blocking(move || drift.keep_sdn(&path)).await {
            Ok(problem) => return problem,
            Err(error) => tracing::error!(%error, "OpenShift's data path is not kept yet"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

fn problem_of(report: &Report) -> Option<String> {
    let first = || report.errors.first().map_or_else(|| "it broke off".to_owned(), ToString::to_string);
    (report.failed > 0).then(first)
}

/// Takes down what keeps a part from being in force, if anything does.
fn follow_up(state: &State, part: Part, problem: Option<String>) {
    match problem {
        None if state.good(part) => tracing::info!(?part, "OpenShift's data path is in force"),
        None => {}
        Some(error) if state.bad(part, error.clone()) => {
            tracing::warn!(?part, error, "OpenShift's data path is not in force");
        }
        Some(_) => {}
    }
}

/// Waits until everything is in force: before that a pod would be attached to nothing.
async fn in_force(state: &State, changed: &Notify, tended: &Notify) {
    loop {
        let (changed, tended) = (changed.notified(), tended.notified());
        tokio::pin!(changed, tended);
        changed.as_mut().enable();
        tended.as_mut().enable();
        if state.is_good() {
            return;
        }
        tokio::select! { () = changed => {} () = tended => {} }
    }
}

#[cfg(test)]
mod tests;
