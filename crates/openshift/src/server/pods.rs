//! Carries out requests (cni-runtime.md section 4.3): address, macvlan0, network ID, data path, in
//! this order. If a step fails, the earlier ones are undone. Requests for one sandbox are carried
//! out in the order of arrival, those for different sandboxes concurrently.

mod macvlan;
mod policed;
mod verbs;

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use russet_addr::{ContainerId, IfName};
use russet_cni_spec::CniResult;
use russet_linux::NetNs;
use russet_model::openshift::{Namespace, NetId};
use russet_sync::KeyedLock;
use tokio::sync::{Notify, oneshot};

use super::ipam::Ipam;
use super::metrics::{Operation, SdnMetrics};
use super::records::Records;
use super::reply;
use super::request::{Command, Pod, Request};
use super::socket::{Ask, Job, Refusal};
use super::state::NetworkState;
use crate::data_path::{Port, Sdn, SdnError, Tenancy, delete_links};
use crate::tenants::View;
use crate::{LOG, lock};

pub use macvlan::Macvlan;
pub use policed::{PodPolicies, PolicedPod, Policing};

/// A node's pods, for requests.
pub struct Pods {
    pub ipam: Ipam,
    /// The sandboxes that exist.
    pub records: Records,
    /// The data path. One request at a time uses it, on a thread that may block.
    pub sdn: Arc<Mutex<Sdn>>,
    /// The tenants in the store.
    pub view: Rc<RefCell<View>>,
    /// Notified when the view changes.
    pub changed: Rc<Notify>,
    /// Decides which pods get a macvlan0.
    pub macvlan: Macvlan,
    pub policing: Policing,
    pub metrics: SdnMetrics,
    pub state: Rc<NetworkState>,
    /// Of requests, by sandbox. A GC has all.
    pub locks: KeyedLock<ContainerId>,
    /// There is one data path. Requests wait for it here, not on a blocked thread.
    pub data_path: tokio::sync::Mutex<()>,
}

/// Limit for a request; our plugin waits 50 seconds, CRI-O one minute.
const DEADLINE: Duration = Duration::from_secs(45);
/// The sum of the stock server's pauses while it waits for a namespace's ID: 400 ms, six times,
/// each half as long again.
const NETID_TIMEOUT: Duration = Duration::from_millis(400 + 600 + 900 + 1350 + 2025 + 3038);

// === impl Pods ===

impl Pods {
    /// Carries out one request completely, unless its plugin has disconnected before it starts.
    pub async fn carry_out(self: Rc<Self>, job: Job) {
        let Job { ask, permit: _place } = job;
        let arrived = Instant::now();
        match ask {
            Ask::Pod(request, answer) => self.stock(request, answer, arrived).await,
            Ask::Other(request, answer) => {
                // The receiver may be gone.
                let _ = answer.send(self.other(request).await);
            }
        }
    }

    async fn stock(
        &self,
        request: Request,
        mut answer: oneshot::Sender<Result<Vec<u8>, Refusal>>,
        arrived: Instant,
    ) {
        let end = arrived + DEADLINE;
        let late = || Refusal::later("the requests before this one are not done yet; nothing was begun");
        let guard = tokio::select! {
            guard = tokio::time::timeout_at(end.into(), self.locks.lock([request.pod.sandbox.clone()])) => guard,
            // The plugin has disconnected, and nothing was begun.
            () = answer.closed() => return,
        };
        let began = Instant::now();
        let (done, operation) = match (&guard, &request.command) {
            (Err(_), _) => (Err(late()), None),
            (Ok(_), Command::Add { host_veth, namespace }) => {
                let done = self.set_up(&request, host_veth, namespace, end).await;
                (done.map(|result| reply::encode(&result, request.version)), Some(Operation::Setup))
            }
            (Ok(_), Command::Del) => {
                (self.tear_down(&request.pod).await.map(|()| Vec::new()), Some(Operation::Teardown))
            }
            (Ok(_), Command::Update { namespace }) => (
                self.catch_up(&request.pod.sandbox, namespace).await.map(|()| Vec::new()),
                Some(Operation::Update),
            ),
        };
        drop(guard);
        if let Some(operation) = operation {
            self.metrics.took(operation, began.elapsed(), arrived.elapsed());
        }
        if let (Err(refusal), pod) = (&done, &request.pod) {
            tracing::warn!(target: LOG, sandbox = %pod.sandbox, namespace = pod.namespace, pod = pod.name, error = refusal.text, "pod request failed");
            self.metrics.failed(operation);
        }
        self.metrics.pod_ips.set(i64::try_from(self.ipam.count()).unwrap_or(i64::MAX));
        let _ = answer.send(done);
    }

    async fn set_up(
        &self,
        request: &Request,
        host_veth: &IfName,
        namespace: &Namespace,
        end: Instant,
    ) -> Result<CniResult, Refusal> {
        let pod = &request.pod;
        let netns = namespace_of(pod)?;
        self.clear(pod).await?;
        self.records
            .put(pod)
            .map_err(|error| Refusal::now(format!("write the record of the sandbox: {error}")))?;
        let done = async {
            let address = self.ipam.add(&pod.sandbox, &pod.netns).await;
            let result = address.map_err(|error| {
                Refusal::from(error.during(&format!("failed to run IPAM for {}", pod.sandbox)))
            })?;
            self.macvlan.add(request, &netns).await?;
            let netid = self.netid(namespace, end).await?;
            let port = Port {
                host_veth: host_veth.clone(),
                address: address_of(&result)?,
                netid: Some(netid),
                is_open: netid.is_global(),
                sandbox: pod.sandbox.clone(),
                namespace: namespace.clone(),
            };
            let policed = PolicedPod::new(&port, Some(pod));
            self.policing.hold(&policed).await?;
            if Instant::now() >= end {
                return Err(Refusal::later("the time limit passed; the request was undone"));
            }
            self.with_sdn(move |sdn| sdn.attach(&port)).await?;
            self.catch_up(&pod.sandbox, namespace).await?;
            self.policing.attached(policed);
            Ok(result)
        };
        match done.await {
            Ok(result) => {
                let address = result.ips.first().map(|ip| tracing::field::display(ip.address));
                tracing::info!(target: LOG, sandbox = %pod.sandbox, namespace = pod.namespace, pod = pod.name, address, "pod attached");
                Ok(result)
            }
            Err(mut refusal) => {
                if let Err(also) = self.tear_down(pod).await {
                    refusal.text = format!("{}; DEL has to clean up: {}", refusal.text, also.text);
                }
                Err(refusal)
            }
        }
    }

    /// Prepares an ADD. An attached sandbox is left as it is. What remains of an ADD that could not
    /// be undone is removed first; where there is no record, nothing was begun.
    async fn clear(&self, pod: &Pod) -> Result<(), Refusal> {
        if !self.records.has(&pod.sandbox) {
            return Ok(());
        }
        let sandbox = pod.sandbox.clone();
        if self.with_sdn(move |sdn| sdn.is_attached(&sandbox)).await? {
            return Err(Refusal::now(format!("sandbox {} is attached already", pod.sandbox)));
        }
        self.remove_all(pod).await
    }

    /// Tries every step, whether others fail or not. A step with nothing to remove succeeds.
    pub async fn tear_down(&self, pod: &Pod) -> Result<(), Refusal> {
        self.remove_all(pod).await?;
        self.records
            .remove(&pod.sandbox)
            .map_err(|error| Refusal::now(format!("remove the record of the sandbox: {error}")))
    }

    /// The address is released last: as long as a route to it exists, no other pod may have it.
    async fn remove_all(&self, pod: &Pod) -> Result<(), Refusal> {
        let sandbox = pod.sandbox.clone();
        let detached = match self.with_sdn(move |sdn| sdn.detach(&sandbox)).await {
            // Without a lock, because it takes long.
            Ok(links) => blocking(move || delete_links(links)).await,
            Err(refusal) => Err(refusal),
        };
        if detached.is_ok() {
            self.policing.detached(&pod.sandbox);
        }
        let without = self.macvlan.remove(&pod.netns).await;
        let released = match &detached {
            Ok(()) => self.ipam.del(&pod.sandbox).await.map_err(Refusal::from),
            Err(_) => Ok(()),
        };
        let errors = [detached, without, released].into_iter().filter_map(Result::err);
        let all: Vec<Refusal> = errors.collect();
        if all.is_empty() {
            return Ok(());
        }
        let later = all.iter().all(|it| it.later);
        let texts: Vec<String> = all.into_iter().map(|it| it.text).collect();
        Err(Refusal { text: texts.join("; "), later })
    }

    /// Gives the port the namespace's current tenancy. The follower changes attached ports only, so it may
    /// have missed a change before this port was attached. The value written here may be old, and
    /// may overwrite the follower's, so it is checked again until nothing has changed meanwhile.
    async fn catch_up(&self, sandbox: &ContainerId, namespace: &Namespace) -> Result<(), Refusal> {
        let mut written: Option<Tenancy> = None;
        loop {
            let tenancy = self.view.borrow().tenancy(namespace);
            if tenancy.netid.is_none() {
                return Err(self.no_netid(namespace));
            }
            if Some(tenancy) == written {
                return Ok(());
            }
            let sandbox = sandbox.clone();
            self.with_sdn(move |sdn| {
                let held = sdn.attached().filter(|port| port.sandbox == sandbox);
                let ports: Vec<Port> = held
                    .map(|port| (tenancy.of(port), port))
                    .filter_map(|(wanted, port)| (wanted != *port).then_some(wanted))
                    .collect();
                if ports.is_empty() { Ok(()) } else { sdn.renumber(&ports) }
            })
            .await?;
            written = Some(tenancy);
        }
    }

    /// The namespace's network ID; waits for it, because it may be assigned only now.
    async fn netid(&self, namespace: &Namespace, end: Instant) -> Result<NetId, Refusal> {
        let end = end.min(Instant::now() + NETID_TIMEOUT);
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(netid) = self.view.borrow().netid(namespace) {
                return Ok(netid);
            }
            if tokio::time::timeout_at(end.into(), changed).await.is_err() {
                self.metrics.vnid_not_found.inc();
                return Err(self.no_netid(namespace));
            }
        }
    }

    fn no_netid(&self, namespace: &Namespace) -> Refusal {
        Refusal::now(format!("failed to find netid for namespace: {namespace} in vnid map"))
    }

    /// Runs work on the data path on its own thread.
    pub async fn with_sdn<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Sdn) -> Result<T, SdnError> + Send + 'static,
    ) -> Result<T, Refusal> {
        let _guard = self.data_path.lock().await;
        let sdn = Arc::clone(&self.sdn);
        blocking(move || work(&mut lock(&sdn))).await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SdnError> + Send + 'static,
) -> Result<T, Refusal> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| Refusal::now(error.to_string())),
        Err(error) => Err(Refusal::later(format!("work on the data path was interrupted: {error}"))),
    }
}

/// Opens the pod's namespace, which must not be the node's.
fn namespace_of(pod: &Pod) -> Result<NetNs, Refusal> {
    if pod.netns.is_empty() {
        return Err(Refusal::now("netns required for CNI_ADD"));
    }
    let netns = NetNs::open(&pod.netns).map_err(|error| Refusal::now(error.to_string()))?;
    let own = NetNs::current().map_err(|error| Refusal::now(error.to_string()))?;
    if netns.same_as(&own) {
        return Err(Refusal::now(format!("{} is the node's own network namespace", pod.netns)));
    }
    Ok(netns)
}

fn address_of(result: &CniResult) -> Result<Ipv4Addr, Refusal> {
    match result.ips.first().map(|ip| ip.address.addr()) {
        Some(IpAddr::V4(address)) => Ok(address),
        _ => Err(Refusal::now("failed to obtain IP address from CNI IPAM")),
    }
}
