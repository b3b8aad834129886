//! The endpoints of this node: what plugins have attached, and which of it is wired. STATUS, the log
//! of requests, the verdicts and drift repair read this table.
//!
//! The journal ([`crate::journal`]) is the table's write-ahead log: entries are written first and
//! then applied to the [`TableState`]. An agent that starts reads them again and compares the table
//! with the kernel. Only the thread that serves requests changes the table; all threads may read it.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use russet_addr::EndpointId;
use russet_attach::{Dialect, Owner, Wired};
use serde::{Deserialize, Serialize};

use crate::journal::{Begin, EndpointPart, TableState};

/// The table. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct EndpointTable(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Held while drift repair works on an endpoint, and taken before an endpoint is removed or
    /// wired again. Taken before `state`; reading the table does not wait for it.
    repair: Mutex<()>,
    state: Mutex<TableState>,
}

/// A plugin's part of an attachment, with the interface if the plugin makes one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Endpoint {
    /// The network, interface and plugin.
    pub subject: EndpointPart,
    /// The operation that made it.
    pub op: u64,
    /// When it was made, in milliseconds since 1970. For one that was only found in the kernel:
    /// when the agent started.
    pub since_ms: u64,
    /// `namespace/name`, if there is a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// The interface, if the plugin makes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wired: Option<Box<Wired>>,
    /// The path of the pod's namespace. None for an interface that was only found in the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<PathBuf>,
    /// Its ADD has not ended, or its DEL has begun: a journal that is written anew does not list it.
    #[serde(skip)]
    pub(crate) unlisted: bool,
    #[serde(skip)]
    pub(crate) link: LinkState,
}

/// The state of an endpoint's interface, as far as this agent knows it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// There is none, or it is being removed.
    #[default]
    Absent,
    /// An ADD is wiring it again: drift repair must not touch it before it is complete.
    InProgress,
    /// It is wired. Each wiring has another number.
    Wired(u64),
}

// === impl EndpointTable ===

impl EndpointTable {
    pub(crate) fn state(&self) -> MutexGuard<'_, TableState> {
        lock(&self.0.state)
    }

    /// Whether no interface is attached.
    pub fn is_empty(&self) -> bool {
        !self.state().endpoints.values().any(Endpoint::has_link)
    }

    /// How many interfaces are attached.
    pub fn len(&self) -> usize {
        self.state().endpoints.values().filter(|it| it.has_link()).count()
    }

    /// The endpoint whose interface is attached, if it is.
    pub fn get(&self, id: &EndpointId) -> Option<Endpoint> {
        self.state().endpoints.values().find(|it| it.subject.id == *id && it.has_link()).cloned()
    }

    /// The interfaces that are wired completely, and are not being removed or wired again.
    pub fn attached(&self) -> Vec<Endpoint> {
        self.state().endpoints.values().filter(|it| it.is_attached()).cloned().collect()
    }

    /// Runs `work` while `endpoint` can neither be removed nor wired again. None if one of these has
    /// begun since the caller read it, even if it is attached again. Every DEL waits for `work`, so
    /// it has to be short.
    pub fn while_attached<T>(&self, endpoint: &Endpoint, work: impl FnOnce() -> T) -> Option<T> {
        let _repair = lock(&self.0.repair);
        let found = self.state().endpoints.get(&endpoint.subject).map(|it| it.link);
        (endpoint.is_attached() && found == Some(endpoint.link)).then(work)
    }

    /// Whether the node routes this address to a pod.
    pub fn routes_to(&self, address: &IpAddr) -> bool {
        let routes = |wired: &Wired| matches!(wired, Wired::Routed(it) if it.addresses.contains(address));
        self.state().attached().any(|it| it.wired.as_deref().is_some_and(routes))
    }

    /// Whether pods are ports of the bridge.
    pub fn has_bridge(&self, name: &str) -> bool {
        let joins = |wired: &Wired| matches!(wired, Wired::Port(it) if it.bridge.name.as_str() == name);
        self.state().endpoints.values().any(|it| it.wired.as_deref().is_some_and(joins))
    }

    /// Whether the interface that a link's alias names is attached, and not being wired or removed.
    /// True for an alias that has only a hash, because it may be.
    pub fn has(&self, owner: &Owner) -> bool {
        let Some(id) = owner.id() else { return true };
        self.state().attached().any(|it| it.subject.id.same_interface(id))
    }

    /// An ADD is about to wire an interface, possibly again. Waits while drift repair works on one.
    pub(crate) fn begin_wiring(&self, id: &EndpointId) {
        let _repair = lock(&self.0.repair);
        self.state().begin_wiring(id);
    }

    /// An interface is about to be removed. Waits while drift repair works on one.
    pub(crate) fn leave(&self, id: &EndpointId) {
        let _repair = lock(&self.0.repair);
        self.state().leave(id);
    }
}

// === impl Endpoint ===

impl Endpoint {
    /// The endpoint of an ADD that has not ended.
    pub(crate) fn of_add(add: &Begin, subject: EndpointPart, since_ms: u64) -> Self {
        let (op, pod) = (add.op, add.pod.clone());
        let link = LinkState::Absent;
        Self { subject, op, since_ms, pod, wired: None, netns: None, unlisted: true, link }
    }

    /// One that the journal does not know, from the kernel; its pod is known if the history has it.
    pub(crate) fn found(wired: Wired, pod: Option<String>, since_ms: u64) -> Self {
        let calico = matches!(&wired, Wired::Routed(it) if it.dialect == Dialect::Calico);
        let plugin = if calico { "calico" } else { "russet" }.to_owned();
        Self {
            subject: EndpointPart { id: wired.id().clone(), plugin },
            op: 0,
            since_ms,
            pod,
            wired: Some(Box::new(wired)),
            netns: None,
            unlisted: false,
            link: LinkState::Absent,
        }
    }

    /// Whether the interface exists, as far as this agent knows.
    pub(crate) fn has_link(&self) -> bool {
        self.link != LinkState::Absent
    }

    pub(crate) fn is_attached(&self) -> bool {
        matches!(self.link, LinkState::Wired(_))
    }

    /// Whether it has this interface, on any network.
    pub(crate) fn is_wired_as(&self, id: &EndpointId) -> bool {
        self.wired.is_some() && self.subject.id.same_interface(id)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(any(test, feature = "testing"))]
impl EndpointTable {
    /// Adds an endpoint of the plugin `russet` that is wired.
    pub fn put(&self, wired: Wired) {
        let endpoint = Endpoint::found(wired, None, 0);
        let (mut state, subject) = (self.state(), endpoint.subject.clone());
        state.endpoints.insert(subject.clone(), endpoint);
        state.attach(&subject);
    }
}

#[cfg(test)]
mod tests;
