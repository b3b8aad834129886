//! The `calico` plugin: allocates addresses by any IPAM plugin, wires the pod as Calico does, and
//! writes a workload endpoint to the datastore, from which Felix and the other nodes learn of the
//! pod (calico-cni.md sections 1 to 3). `calico-ipam` runs in this process.

mod add;
mod addresses;
mod annotations;
mod check;
mod del;
mod draft;
mod endpoint;
mod gc;
pub(crate) mod ipam_config;
pub(crate) mod labels;
mod own_ipam;
mod pod_cidr;
mod profile;
mod qos;
mod ready;
mod recent;
mod status_file;
mod wire;
mod workload;

use std::fmt;
use std::path::Path;
use std::rc::Rc;

use russet_cni_spec::plugin::Request;
use russet_cni_spec::{Call, CniError, CniResult, Target as CniTarget};
use russet_kube::{KubeError, Kubernetes};
use russet_store::BoxFuture;
use russet_wiring::{RequestLog, Target, failure};
use serde_json::{Map, Value};

use crate::conf::{CalicoConf, DatastoreKind};
use crate::v1::{self, DataModel};
use crate::{CalicoNode, Datastore};
pub(crate) use addresses::one_of_a_family;
pub(crate) use annotations::PodOptions;
pub use recent::RecentChecks;
pub use status_file::{PolicyWait, endpoint_status_file};
use wire::Kernel;
use workload::Workload;

/// The plugin's name.
pub const NAME: &str = "calico";

/// The outcome of a request.
#[derive(Debug)]
pub struct Outcome {
    /// The result to print, for an ADD.
    pub result: Option<CniResult>,
    /// What an ADD still waits for before its answer, after its locks are released.
    pub policy: Option<PolicyWait>,
    /// The rest of a DEL: the pod's endpoint, and its addresses.
    pub release: Option<Records>,
}

/// The removal of a container's records. Nothing happens until it is run.
#[must_use = "the records stay"]
pub struct Records(BoxFuture<'static, Result<(), CniError>>);

/// The context of one request on v3 data.
struct RequestContext<'a> {
    node: &'a CalicoNode,
    request: &'a Request,
    target: &'a Target,
    conf: &'a CalicoConf,
    workload: Workload,
    datastore: Datastore,
    log: &'a RequestLog,
    /// The configuration for IPAM plugins.
    stdin: Vec<u8>,
}

/// Executes one request.
pub async fn run(node: &CalicoNode, request: &Request, log: &RequestLog) -> Result<Outcome, CniError> {
    if let Call::Del(target) = &request.env.call {
        // First, because it needs neither configuration nor datastore: the interface is removed
        // even if the rest fails.
        del::detach(node, &Target::from_request(request, target)?).await?;
    }
    let conf = CalicoConf::read(request)?;
    log.set_level(conf.log.level);
    for remark in conf.remarks() {
        log.warn(remark);
    }
    if matches!(request.env.call, Call::Del(_)) && is_deferred(&conf) {
        let release = release(node, request);
        return Ok(Outcome { release: Some(release), ..Outcome::from(None) });
    }
    let done = run_on(node, request, &conf, log).await;
    if let Err(error) = &done {
        log.error(error);
    }
    conf.log.save(log).await;
    done
}

/// Whether a DEL is answered once the interface is gone: with data in the Kubernetes API, a pod must be
/// deleted while the API server is away (kubernetes.md section 2.7, K46). Other IPAM plugins are
/// executed while the runtime waits.
fn is_deferred(conf: &CalicoConf) -> bool {
    conf.datastore.kind == DatastoreKind::Kubernetes && matches!(conf.ipam.kind.as_str(), "calico-ipam")
}

/// Removes the records of a DEL's container, after its interface is gone. May be repeated.
pub fn release(node: &CalicoNode, request: &Request) -> Records {
    let (node, request) = (node.clone(), request.clone());
    Records(Box::pin(async move {
        let conf = CalicoConf::read(&request)?;
        let log = RequestLog::new(NAME);
        log.set_level(conf.log.level);
        let done = run_on(&node, &request, &conf, &log).await;
        if let Err(error) = &done {
            log.error(error);
        }
        conf.log.save(&log).await;
        done.map(drop)
    }))
}

async fn run_on(
    node: &CalicoNode,
    request: &Request,
    conf: &CalicoConf,
    log: &RequestLog,
) -> Result<Outcome, CniError> {
    match model(node, conf).await? {
        DataModel::V1(etcd) => v1::run(node, request, conf, *etcd, log).await.map(Outcome::from),
        DataModel::V3 => run_v3(node, request, conf, log).await,
    }
}

/// Decides which data model the configuration means. If it names only an etcd, that etcd is
/// examined for v1 data only if it has no v3 data.
async fn model(node: &CalicoNode, conf: &CalicoConf) -> Result<DataModel, CniError> {
    let unclear = conf.datastore.kind == DatastoreKind::EtcdV3 && !conf.datastore.explicit;
    if unclear && node.host.has_v3(conf).await? {
        return Ok(DataModel::V3);
    }
    v1::choose(conf).await
}

async fn run_v3(
    node: &CalicoNode,
    request: &Request,
    conf: &CalicoConf,
    log: &RequestLog,
) -> Result<Outcome, CniError> {
    match &request.env.call {
        Call::Add(target) => add(node, request, conf, target, log).await,
        Call::Del(target) => {
            let target = Target::from_request(request, target)?;
            let mut context = RequestContext::open(node, request, conf, &target, log).await?;
            del::remove_records(&mut context).await.map(|()| None.into())
        }
        Call::Check(target) => {
            let target = Target::from_request(request, target)?;
            let mut context = RequestContext::open(node, request, conf, &target, log).await?;
            check::run(&mut context).await.map(|()| None.into())
        }
        Call::Gc => gc::run(node, request, conf).await.map(|()| None.into()),
        Call::Status => check::status(node, request, conf).await.map(|()| None.into()),
    }
}

async fn add(
    node: &CalicoNode,
    request: &Request,
    conf: &CalicoConf,
    target: &CniTarget,
    log: &RequestLog,
) -> Result<Outcome, CniError> {
    let target = Target::from_request(request, target)?;
    let netns = target.open_netns()?;
    let mut context = RequestContext::open(node, request, conf, &target, log).await?;
    add::run(&mut context, &Kernel { wiring: node.wiring.clone(), netns }).await
}

pub(crate) fn kubernetes_failed(msg: &str, error: KubeError) -> CniError {
    if error.retryable() || matches!(error, KubeError::Unauthorized(_)) {
        CniError::try_again_later(msg, error)
    } else {
        CniError::internal(msg, error)
    }
}

pub(crate) fn absent(what: String) -> CniError {
    let details = "it was deleted while its sandbox was made, or the cluster that policy.kubeconfig leads to is another one";
    CniError::new(failure::NO_SUCH_POD, format!("{what} does not exist"), details)
}

// === impl Records ===

impl Records {
    pub async fn remove(self) -> Result<(), CniError> {
        self.0.await
    }
}

impl fmt::Debug for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Records").finish_non_exhaustive()
    }
}

// === impl Outcome ===

impl From<Option<CniResult>> for Outcome {
    fn from(result: Option<CniResult>) -> Self {
        Self { result, policy: None, release: None }
    }
}

// === impl RequestContext ===

impl<'a> RequestContext<'a> {
    /// Opens the datastore that the configuration names, and determines this node's name.
    async fn open(
        node: &'a CalicoNode,
        request: &'a Request,
        conf: &'a CalicoConf,
        target: &'a Target,
        log: &'a RequestLog,
    ) -> Result<Self, CniError> {
        conf.require_nodename_file(&node.host.root)?;
        let choice = conf.node_choice(&node.host.root)?;
        let datastore = node.host.datastore(conf).await?;
        let name = match request.env.call {
            Call::Del(_) => choice.trimmed(),
            _ => choice.resolve(&*datastore.store).await?,
        };
        let workload = Workload::from_request(request, conf, target, name);
        Ok(Self { node, request, target, conf, workload, datastore, log, stdin: request.stdin.clone() })
    }

    fn root(&self) -> &Path {
        &self.node.host.root
    }

    /// The section `ipam`, as IPAM plugins get it.
    fn ipam(&self) -> Result<Map<String, Value>, CniError> {
        ipam_config::section(&self.stdin)
    }

    /// Replaces the names of the node's pod prefixes in a `host-local` configuration by the
    /// prefixes.
    async fn fill_pod_cidrs(&mut self) -> Result<(), CniError> {
        let (clusters, node) = (&self.node.clusters, &self.workload.node);
        let filled = ipam_config::with_pod_cidrs(&self.stdin, clusters, self.conf, node, self.log).await?;
        self.stdin = filled.unwrap_or_else(|| std::mem::take(&mut self.stdin));
        Ok(())
    }

    fn kubernetes(&self) -> Result<Rc<dyn Kubernetes>, CniError> {
        self.node.clusters.open(&self.conf.kubernetes)
    }

    /// Namespace and name of the pod; empty if the request names no pod.
    fn pod_names(&self) -> (String, String) {
        let pod = self.workload.pod.as_ref();
        pod.map(|pod| (pod.namespace.clone(), pod.name.clone())).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
