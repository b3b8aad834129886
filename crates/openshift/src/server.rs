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
mod served;
mod socket;
mod start;
mod state;

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prometheus_client::registry::Registry;
use russet_addr::{IfName, NodeName};
use russet_http::listener::{Admission, unix};
use russet_model::openshift::IsolationMode;
use russet_overlay::ReconcileReport;
use russet_store::Store;
use russet_sync::{Backoff, KeyedLock};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;

use crate::LOG;
use crate::controller::DriftRepair;
use crate::data_path::{Port, Sdn as DataPath};
use crate::tenants::{Notices, RoundReport, View, follow, follow_names, follow_objects};
use files::{Files, PluginConfig};
use ipam::Ipam;
use metrics::SdnMetrics;
use pods::{Pods, Policing};
use records::Records;
use socket::Job;
use start::{NodeNetwork, StartError};
use state::{Component, NetworkState, Publish};

pub use network::NetworkDefault;
pub use pods::{PodPolicies, PolicedPod};
pub use records::recorded_pods;
pub use served::Served;
pub use socket::LISTENER;

/// Settings of the server.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The network to create in a store without one.
    pub network: Option<NetworkDefault>,
    /// Access to the Kubernetes API, which says which pods get a macvlan0, and has
    /// EgressNetworkPolicies.
    pub kubeconfig: Option<PathBuf>,
    /// Without the API: annotations that the runtime passes on are believed, and pods that have
    /// them count as privileged.
    pub trust_annotations: bool,
    /// MTU of pods' routes, in bytes; by default that of their interfaces.
    pub routable_mtu: Option<u32>,
    /// The cloud platform, with OpenShift's name for it.
    pub platform: String,
}

/// What the agent knows of its node.
#[derive(Debug, Clone)]
pub struct Node {
    pub name: NodeName,
    /// The directory below which OpenShift's files are.
    pub root: PathBuf,
    /// Russet's directory of what a reboot removes.
    pub run_dir: PathBuf,
    /// Russet's directory of what survives a reboot.
    pub state_dir: PathBuf,
    /// The interface to the other nodes; by default the one with the default route.
    pub interface: Option<IfName>,
    /// MTU of pods, unless the cluster's network has one.
    pub mtu_bytes: Option<u32>,
}

/// The server before its start.
pub struct Server {
    node: Node,
    settings: Settings,
    store: Rc<dyn Store>,
    policies: Option<Arc<dyn PodPolicies>>,
    metrics: SdnMetrics,
    publish: Publish,
    admission: Arc<Admission>,
    stopped: watch::Receiver<bool>,
}

/// The first pause after a failure, doubled up to a limit, with jitter.
const BACKOFF_FIRST: Duration = Duration::from_millis(200);
/// The limit after a failed start, which may wait for the store.
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// The limit after a failure of the kernel or of a file, which concerns this node only.
const LOCAL_BACKOFF_MAX: Duration = Duration::from_secs(1);

// === impl Server ===

impl Server {
    /// `policies` enforces NetworkPolicies on its pods, where the cluster isolates by these. `publish` is called with the reason why pods cannot be attached, and with None once they can.
    pub fn new(
        node: Node,
        settings: Settings,
        (store, policies): (Rc<dyn Store>, Option<Arc<dyn PodPolicies>>),
        registry: &mut Registry,
        publish: impl Fn(Option<&str>) + 'static,
        admission: Arc<Admission>,
        stopped: watch::Receiver<bool>,
    ) -> Self {
        publish(Some("not yet"));
        let (metrics, publish) = (SdnMetrics::register(registry), Rc::new(publish));
        Self { node, settings, store, policies, metrics, publish, admission, stopped }
    }

    /// Runs until it is asked to stop and requests in progress are done. A failed start is tried
    /// again. `repair` keeps its data path.
    pub async fn run(self, repair: impl DriftRepair) {
        let mut stopped = self.stopped.clone();
        let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX);
        loop {
            tokio::select! {
                _ = stopped.wait_for(|stop| *stop) => return,
                part = self.begin() => match part {
                    Ok(part) => return self.serve(part, repair).await,
                    Err(error) => {
                        (self.publish)(Some(&error.to_string()));
                        tracing::warn!(target: LOG, %error, "OpenShift's server cannot start");
                    }
                },
            }
            // A stop ends the pause.
            let _ = tokio::time::timeout(backoff.pause(), self.stop()).await;
        }
    }

    /// Prepares the node's part. There is no socket before the server can answer: a plugin that
    /// finds none defers a DEL, and one that gets no answer has to wait.
    async fn begin(&self) -> Result<NodeNetwork, StartError> {
        let part = start::find(&self.node, &self.settings, &*self.store).await?;
        let prepared = Files::below(&self.node.root).prepare();
        prepared.map_err(|source| StartError::Io { what: "make the directory of the socket", source })?;
        Ok(part)
    }

    async fn serve(self, part: NodeNetwork, repair: impl DriftRepair) {
        let mut background = JoinSet::new();
        let (view, changed, state): (Rc<RefCell<View>>, _, _) =
            (Rc::default(), Rc::new(Notify::new()), Rc::new(NetworkState::pending(Rc::clone(&self.publish))));
        let config = PluginConfig {
            mtu: part.sdn.settings().mtu,
            routable_mtu: self.settings.routable_mtu,
            platform: self.settings.platform.clone(),
            service: part.network.service_network,
        };
        let pods = Rc::new(Pods {
            ipam: Ipam::new(&self.node.root, &part.network, &part.subnet),
            records: Records::new(&self.node.run_dir, &self.node.state_dir),
            sdn: Arc::new(Mutex::new(part.sdn)),
            view: Rc::clone(&view),
            changed: Rc::clone(&changed),
            macvlan: part.macvlan,
            policing: self.policing(part.network.mode),
            metrics: self.metrics.clone(),
            state: Rc::clone(&state),
            locks: KeyedLock::default(),
            data_path: tokio::sync::Mutex::default(),
        });
        let notices = Notices::default();
        if let Some(client) = part.api {
            view.borrow_mut().expect_objects();
            background.spawn_local(follow_objects(client, Rc::clone(&view), Rc::clone(&notices.changed)));
        }
        background.spawn_local(open_once_policed(Rc::clone(&pods), Rc::clone(&notices.changed)));
        let resolv_conf = self.node.root.join("etc/resolv.conf");
        background.spawn_local(follow_names(resolv_conf, Rc::clone(&view), notices.clone()));
        let follower = self.follower(&pods, (view, notices), &changed, &state);
        background.spawn_local(follower);
        let maintained = Rc::new(Notify::new());
        background.spawn_local(maintain_data_path(
            Rc::clone(&pods),
            repair,
            Rc::clone(&state),
            Rc::clone(&maintained),
        ));
        let files = Files::below(&self.node.root);
        let listener = tokio::select! {
            () = self.stop() => return,
            listener = async {
                wait_until_in_force(&state, &changed, &maintained).await;
                start::recover(&pods).await;
                list_policed(&pods).await;
                retry_until_success("make the socket", || unix::replace_at(&files.socket(), unix::PRIVATE)).await
            } => listener,
        };
        let (jobs, waiting) = socket::queue();
        background.spawn(socket::serve(listener, Arc::clone(&self.admission), jobs, self.stop()));
        let service = config.service.map(tracing::field::display);
        tracing::info!(target: LOG, socket = %files.socket().display(), mtu = config.mtu, routable_mtu = config.routable_mtu, platform = config.platform, service, "OpenShift's server started");
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

    /// Who enforces NetworkPolicies on the pods of a cluster that isolates so.
    fn policing(&self, mode: IsolationMode) -> Policing {
        let why = match mode {
            IsolationMode::NetworkPolicy => return Policing(self.policies.clone()),
            IsolationMode::Multitenant => {
                "the cluster isolates by tenants (redhat/openshift-ovs-multitenant)"
            }
            IsolationMode::Subnet => "the cluster does not isolate (redhat/openshift-ovs-subnet)",
        };
        if let Some(policies) = &self.policies {
            policies.left_out(why);
        }
        Policing::default()
    }

    fn follower(
        &self,
        pods: &Pods,
        (view, notices): (Rc<RefCell<View>>, Notices),
        changed: &Rc<Notify>,
        state: &Rc<NetworkState>,
    ) -> impl Future<Output = ()> + use<> {
        let (changed, state) = (Rc::clone(changed), Rc::clone(state));
        let of_objects = Rc::clone(&notices.changed);
        let on_round = move |round: RoundReport| {
            notices.names.notify_one();
            let unknown = || round.waits_for.map(str::to_owned);
            record_problem(&state, Component::Followed, problem_of(&round.report).or_else(unknown));
            if round.renumbered > 0 {
                tracing::info!(target: LOG, ports = round.renumbered, "network IDs of pods changed");
            }
            changed.notify_waiters();
        };
        follow(
            Rc::clone(&self.store),
            self.node.name.clone(),
            Arc::clone(&pods.sdn),
            (view, of_objects),
            on_round,
        )
    }
}

/// Names the attached pods to what enforces NetworkPolicies on them, with what the records say.
async fn list_policed(pods: &Pods) {
    let Some(policies) = &pods.policing.0 else { return };
    let attached = pods.with_sdn(|sdn| Ok(sdn.attached().cloned().collect::<Vec<Port>>())).await;
    let attached = match attached {
        Ok(attached) => attached,
        // What was decided about them stays in force.
        Err(refusal) => {
            return tracing::error!(target: LOG, error = refusal.text, "no policy is enforced anew: pods are not known");
        }
    };
    let known = retry_until_success("read the records of pods", || pods.records.all()).await;
    let of = |port: &Port| PolicedPod::new(port, known.iter().find(|pod| pod.sandbox == port.sandbox));
    policies.listed(attached.iter().map(of).collect());
}

/// Has network IDs keep pods apart no longer once NetworkPolicies do, which may be so since an earlier server.
async fn open_once_policed(pods: Rc<Pods>, changed: Rc<Notify>) {
    let are_enforced = match &pods.policing.0 {
        None => false,
        Some(policies) => policies.in_force().wait_for(|is_in_force| *is_in_force).await.is_ok(),
    };
    pods.view.borrow_mut().set_policies(are_enforced);
    changed.notify_one();
}

/// Tries until it succeeds: a file system may be full or read-only for a while.
async fn retry_until_success<T, E: std::fmt::Display>(
    what: &'static str,
    mut work: impl FnMut() -> Result<T, E>,
) -> T {
    let mut backoff = local_backoff();
    loop {
        match work() {
            Ok(done) => return done,
            Err(error) => {
                tracing::warn!(target: LOG, %error, what, "OpenShift's server could not be prepared and tries again")
            }
        }
        tokio::time::sleep(backoff.pause()).await;
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

/// Brings the data path to its desired state. From then on the repair thread keeps it so, and
/// this task records its problems.
async fn maintain_data_path(
    pods: Rc<Pods>,
    repair: impl DriftRepair,
    state: Rc<NetworkState>,
    maintained: Rc<Notify>,
) {
    let (mut problem, mut backoff) = (keep(&pods.sdn, &repair).await, local_backoff());
    loop {
        let repair = repair.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || repair.reconcile()).await {
            tracing::error!(target: LOG, %error, "a comparison of OpenShift's data path was interrupted");
        }
        let now = problem.borrow_and_update().clone();
        let failed = now.is_some();
        record_problem(&state, Component::DataPath, now);
        maintained.notify_waiters();
        if !failed {
            break;
        }
        tokio::time::sleep(backoff.pause()).await;
    }
    // The channel ends with the agent.
    while problem.changed().await.is_ok() {
        let now = problem.borrow_and_update().clone();
        record_problem(&state, Component::DataPath, now);
        maintained.notify_waiters();
    }
}

/// Hands the data path over to drift repair. Runs on its own thread, because the path's lock may
/// be held: a commit of nf_tables waits for those of other programs, and requests must not wait
/// with it.
async fn keep(path: &Arc<Mutex<DataPath>>, repair: &impl DriftRepair) -> watch::Receiver<Option<String>> {
    let mut backoff = local_backoff();
    loop {
        let (path, repair) = (Arc::clone(path), repair.clone());
        match tokio::task::spawn_blocking(move || repair.keep(&path)).await {
            Ok(problem) => return problem,
            Err(error) => {
                tracing::error!(target: LOG, %error, "OpenShift's data path is not watched for drift yet")
            }
        }
        tokio::time::sleep(backoff.pause()).await;
    }
}

fn local_backoff() -> Backoff {
    Backoff::new(BACKOFF_FIRST, LOCAL_BACKOFF_MAX)
}

fn problem_of(report: &ReconcileReport) -> Option<String> {
    let first = || report.errors.first().map_or_else(|| "it was interrupted".to_owned(), ToString::to_string);
    (report.failed > 0).then(first)
}

/// Records why a part is not in force, if so.
fn record_problem(state: &NetworkState, part: Component, problem: Option<String>) {
    match problem {
        None if state.good(part) => {
            tracing::info!(target: LOG, part = part.name(), "OpenShift's data path is in force")
        }
        None => {}
        Some(error) if state.bad(part, error.clone()) => {
            tracing::warn!(target: LOG, part = part.name(), error, "OpenShift's data path is not in force");
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
