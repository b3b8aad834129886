//! Enforces the cluster's network policies on this node's pods (policy.md).
//!
//! [`source`] watches objects of the Kubernetes API, and [`records`] those of the agent's store. The
//! thread of [`worker`] translates them, decides, and keeps the decisions in the kernel. [`observer`] has the addresses of a pod held
//! before the pod is wired, so that no packet passes before the decisions about it are in force.
//!
//! Without any policy in the cluster, and host endpoint of this node, nothing else is watched, and the
//! kernel has no table of decisions. What was decided stays in force while the agent or the API server is away.

pub mod alone;
mod carried;
mod closed;
mod conditions;
mod drift;
mod ends;
mod felix;
mod kind;
mod logged;
mod observer;
mod openshift;
mod records;
mod source;
pub mod unenforced;
mod worker;

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use russet_addr::{EndpointId, NodeName};
use russet_attach::Wired;
use russet_journal::EndpointTable;
use russet_kube::Client;
use russet_overlay::fast_path::Carried;
use russet_policy::LoggedFlow;
use russet_store::Store;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::fast_path::{Share, Signal, View};
use crate::flows::FlowLog;
use crate::health::Readiness;
use crate::metrics::PolicyMetrics;
use alone::Marker;
use felix::Felix;
use kind::{Kind, Wants};

pub use closed::enforced_from_records;
pub use kind::Source;
pub use observer::HoldsNewPods;
pub use openshift::OpenshiftPods;
pub use records::document as record_document;
pub use worker::{unjudged_on_bridges, wired_endpoint};

/// What the thread of policies is asked for. Clones share it.
#[derive(Debug, Clone)]
pub struct Policies {
    shared: Arc<Shared>,
    changes: SyncSender<Change>,
}

#[derive(Debug)]
struct Shared {
    source: Source,
    /// Whether the addresses of a new pod have to be held: always, unless it is known that the
    /// cluster has no policy.
    holds: AtomicBool,
    /// Whether what the cluster's policies say is in force, or it is known that there are none.
    in_force: watch::Sender<bool>,
    /// The pods that OpenShift's server has attached.
    openshift: openshift::Pods,
    /// What this node's requests ask for. They come before all changes of objects.
    requests: Mutex<VecDeque<Request>>,
    /// What has to be watched besides policies.
    wants: watch::Sender<Wants>,
    /// Packets that the kernel has logged, to be named.
    logged: Mutex<VecDeque<LoggedFlow>>,
    /// What the fast path has carried, to be counted.
    carried: Mutex<VecDeque<Share>>,
    fast_path: View,
    flows: FlowLog,
    /// Whether decisions about all pods of Calico's plugins are in force, or there are none to make.
    calico_decided: AtomicBool,
    /// The host ends of Calico's plugins of whose addresses decisions are in force.
    decided_ends: watch::Sender<DecidedEnds>,
    /// Whether decisions about pods of Calico's plugins are in force, which go by their addresses.
    guards_calico: watch::Sender<bool>,
}

/// Host ends of Calico's plugins of whose addresses decisions are in force, where they are needed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DecidedEnds {
    /// It is not known yet.
    #[default]
    Nothing,
    /// Nothing has to be decided.
    Everything,
    /// The indexes of the interfaces, each with an address.
    These(BTreeSet<(u32, IpAddr)>),
}

/// A change of objects, or news of this node.
#[derive(Debug)]
enum Change {
    /// A list of a kind begins. Its objects come one by one.
    Begin(Kind),
    /// The list is complete: objects that it did not have are gone.
    Complete(Kind),
    Put(Kind, Value),
    Deleted(Kind, Value),
    /// There is a request, or an endpoint has changed.
    Wake,
}

#[derive(Debug)]
enum Request {
    /// Hold the addresses of an interface that is about to be wired.
    Hold { id: EndpointId, addresses: BTreeSet<IpAddr>, held: SyncSender<Result<(), String>> },
    /// The endpoint table says what became of this interface.
    Settled(EndpointId),
    /// Another program changed the table of decisions.
    Drifted,
    /// The host ends of Calico's plugins, or what is routed to them, have changed.
    Ends,
    /// Felix was started, or has ended.
    Felix(Felix),
    /// OpenShift's server has listed its pods.
    Listed,
    /// Connections that pass are wanted by a client.
    Sampled,
}

/// Limit of queued changes. A source waits while there are so many.
const QUEUE_MAX: usize = 1024;
/// Limit of logged packets that wait to be named.
const LOGGED_MAX: usize = 1024;
/// Limit of what the fast path has carried that waits to be counted: some readings.
const CARRIED_MAX: usize = 4096;
/// How long a source waits before it tries again to queue a change.
const FULL_PAUSE: Duration = Duration::from_millis(5);
/// How long an ADD waits until its addresses are held. A start with thousands of policies takes a
/// second or two.
const HOLD_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether policies are about a pod's interface: those of the plugins `russet` and `calico`, and those behind bridges.
fn is_policed(wired: &Wired) -> bool {
    match wired {
        Wired::Routed(_) => true,
        Wired::Port(port) => !port.addresses.is_empty(),
    }
}

/// Removes what an agent that enforced policies has left for the node's own interfaces, so that nothing
/// guards them that no agent keeps up to date.
pub fn leave_hosts_open() {
    match russet_policy::Hosts::open().and_then(|mut hosts| hosts.withdraw()) {
        Ok(true) => tracing::info!("policies are not enforced: the table of host endpoints is removed"),
        Err(error) if !error.is_unsupported() => {
            tracing::warn!(%error, "the table of host endpoints could not be removed");
        }
        _ => {}
    }
}

// === impl Policies ===

impl Policies {
    /// Starts the thread. It decides nothing before [`watch`](Self::watch), and with OpenShift's server not before
    /// that has listed its pods.
    pub fn start(
        node: &NodeName,
        source: Source,
        (endpoints, flows): (EndpointTable, &Signal),
        marker: Marker,
        (metrics, readiness, has_openshift): (PolicyMetrics, Readiness, bool),
    ) -> std::io::Result<Self> {
        let (changes, receiver) = sync_channel(QUEUE_MAX);
        let openshift = openshift::Pods::new(has_openshift);
        let (fast_path, log) = (flows.view().clone(), FlowLog::beside(flows.view().clone()));
        let shared = Shared { openshift, fast_path, flows: log, ..Shared::new(source) };
        let policies = Self { shared: Arc::new(shared), changes };
        let shared = Arc::clone(&policies.shared);
        let worker = worker::Worker::new(
            node.as_str(),
            (endpoints, flows),
            marker,
            shared,
            (metrics.clone(), readiness),
        );
        std::thread::Builder::new().name("policies".to_owned()).spawn(move || worker.run(&receiver))?;
        drift::start(policies.clone())?;
        ends::start(policies.clone())?;
        felix::start(policies.clone())?;
        logged::start(policies.clone(), metrics)?;
        Ok(policies)
    }

    /// The flows that were denied or allowed, with what decided.
    pub fn flows(&self) -> FlowLog {
        self.shared.flows.clone()
    }

    /// The host ends of Calico's plugins of whose addresses decisions are in force.
    pub fn decided_ends(&self) -> watch::Receiver<DecidedEnds> {
        self.shared.decided_ends.subscribe()
    }

    /// Whether there are decisions about pods of Calico's plugins. They count only if a pod cannot choose its address.
    pub fn guards_calico(&self) -> watch::Receiver<bool> {
        self.shared.guards_calico.subscribe()
    }

    /// Has packets named that the kernel has logged. Returns for how many there is no room.
    fn name(&self, flows: Vec<LoggedFlow>) -> u64 {
        let mut logged = self.shared.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let room = LOGGED_MAX.saturating_sub(logged.len());
        let refused = flows.len().saturating_sub(room);
        logged.extend(flows.into_iter().take(room));
        drop(logged);
        let _ = self.changes.try_send(Change::Wake);
        u64::try_from(refused).unwrap_or(u64::MAX)
    }

    /// Has what the fast path has carried counted for the policies that let it pass. What there is no room for is counted
    /// as of no known policy.
    fn count_carried(&self, shares: Vec<Share>) {
        if shares.is_empty() {
            return;
        }
        let mut carried = self.shared.carried.lock().unwrap_or_else(PoisonError::into_inner);
        let room = CARRIED_MAX.saturating_sub(carried.len());
        let mut shares = shares.into_iter();
        carried.extend(shares.by_ref().take(room));
        if let (Some(last), Some(rest)) =
            (carried.back_mut(), shares.map(|share| share.carried).reduce(Carried::plus))
        {
            (last.flow, last.carried) = (None, last.carried.plus(rest));
        }
        drop(carried);
        let _ = self.changes.try_send(Change::Wake);
    }

    /// Starts the watches. The endpoint table has to be complete.
    pub fn watch(&self, background: &mut JoinSet<()>, store: &Rc<dyn Store>, client: Option<&Client>) {
        source::start(background, store, client, self);
        let (policies, mut sampled) = (self.clone(), self.shared.flows.sampled());
        background.spawn_local(async move {
            while sampled.changed().await.is_ok() {
                policies.request(Request::Sampled);
            }
        });
        background.spawn_local(carried::run(self.clone(), self.shared.fast_path.clone()));
    }

    /// Queues a change once there is room.
    async fn send(&self, mut change: Change) {
        while let Err(error) = self.changes.try_send(change) {
            match error {
                TrySendError::Full(back) => change = back,
                TrySendError::Disconnected(_) => return,
            }
            tokio::time::sleep(FULL_PAUSE).await;
        }
    }

    /// Queues a list of a kind.
    async fn send_all(&self, kind: Kind, objects: impl IntoIterator<Item = Value>) {
        self.send(Change::Begin(kind)).await;
        for object in objects {
            self.send(Change::Put(kind, object)).await;
        }
        self.send(Change::Complete(kind)).await;
    }

    fn request(&self, request: Request) {
        self.shared.requests.lock().unwrap_or_else(PoisonError::into_inner).push_back(request);
        // If there is no room, the thread is about to look anyway.
        let _ = self.changes.try_send(Change::Wake);
    }

    /// Holds the addresses of an interface that is about to be wired, unless the cluster has no
    /// policy. They are held until decisions about its pod are in force.
    fn hold(&self, id: &EndpointId, addresses: BTreeSet<IpAddr>) -> Result<(), String> {
        if addresses.is_empty() || !self.shared.holds.load(Ordering::Acquire) {
            return Ok(());
        }
        let (held, answer) = sync_channel(1);
        self.request(Request::Hold { id: id.clone(), addresses, held });
        let done = answer
            .recv_timeout(HOLD_TIMEOUT)
            .unwrap_or_else(|_| Err(format!("policies did not take the addresses within {HOLD_TIMEOUT:?}")));
        if done.is_err() {
            self.settled(id);
        }
        done
    }

    /// The endpoint table says from now on what became of an interface. While nothing is held, the thread is not woken:
    /// it reads the table once something is.
    fn settled(&self, id: &EndpointId) {
        if self.shared.holds.load(Ordering::Acquire) {
            self.request(Request::Settled(id.clone()));
        }
    }
}

// === impl Shared ===

impl Shared {
    fn new(source: Source) -> Self {
        Self {
            source,
            holds: AtomicBool::new(true),
            in_force: watch::Sender::new(false),
            openshift: openshift::Pods::new(false),
            requests: Mutex::default(),
            wants: watch::Sender::new(Wants::default()),
            logged: Mutex::default(),
            carried: Mutex::default(),
            fast_path: View::default(),
            flows: FlowLog::default(),
            calico_decided: AtomicBool::new(false),
            decided_ends: watch::Sender::default(),
            guards_calico: watch::Sender::new(false),
        }
    }

    fn take_requests(&self) -> VecDeque<Request> {
        std::mem::take(&mut *self.requests.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// At most `max` packets that the kernel has logged.
    fn take_logged(&self, max: usize) -> Vec<LoggedFlow> {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let count = logged.len().min(max);
        logged.drain(..count).collect()
    }

    /// At most `max` of what the fast path has carried.
    fn take_carried(&self, max: usize) -> Vec<Share> {
        let mut carried = self.carried.lock().unwrap_or_else(PoisonError::into_inner);
        let count = carried.len().min(max);
        carried.drain(..count).collect()
    }

    /// Whether packets or flows wait to be named.
    fn has_unnamed(&self) -> bool {
        !self.logged.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
            || !self.carried.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}
