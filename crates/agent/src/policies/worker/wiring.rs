//! What is wired on this node: the endpoint table, the host ends of Calico's plugins in the kernel, and what OpenShift's
//! server has attached; and whether what
//! the decisions about it depend on is known.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use russet_addr::IfName;
use russet_attach::{Dialect, Wired, naming};
use russet_openshift::PolicedPod;
use russet_policy::CALICO_PREFIX;
use russet_verdict::world::{Endpoint, EndpointKey, Update};

use super::{LEAVING, Phase, PodName, RETRY, Worker, pod_name};
use crate::policies::{Source, is_policed};

/// An interface of a pod or another container on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LocalPod {
    /// Whether it is a pod, and not another container.
    pub(super) is_pod: bool,
    /// Whether it is a host end of Calico's plugins, which have a record, or no decisions.
    pub(super) is_calico: bool,
    pub(super) host_name: IfName,
    /// The bridge that it is behind.
    pub(super) bridge: Option<IfName>,
    pub(super) addresses: BTreeSet<IpAddr>,
}

// === impl Worker ===

impl Worker {
    /// The endpoint with the addresses and the host end that it has on this node: a pod's status has
    /// its addresses only a moment after it runs.
    pub(super) fn with_wiring(&self, endpoint: Arc<Endpoint>) -> Arc<Endpoint> {
        match self.wiring_of(&endpoint) {
            Some(local) if endpoint.node == self.node => Arc::new(Endpoint {
                addresses: local.addresses.clone(),
                local: Some(local.host_name.clone()),
                ..Endpoint::clone(&endpoint)
            }),
            _ => endpoint,
        }
    }

    /// The interface of a pod: the one with its name, or else the one with its address, and, if it is a host end of
    /// Calico's, with the name that its plugin gives to that of the pod.
    fn wiring_of(&self, endpoint: &Endpoint) -> Option<&LocalPod> {
        let has_address = |local: &&LocalPod| local.is_at(endpoint);
        let without_pod = self.wired.values().filter(|local| !local.is_pod);
        let find = || self.unnamed.iter().chain(without_pod).find(has_address);
        self.wired.get(&pod_name(endpoint)).or_else(find)
    }

    /// Reads the endpoint table, and applies the endpoints whose wiring has changed.
    pub(super) fn read_wiring(&mut self) {
        self.is_stale = false;
        self.look_at_ends();
        let (wired, unnamed) = self.wiring();
        let wiring = |endpoint| self.wiring_of(endpoint).cloned();
        let known_before: BTreeMap<EndpointKey, Option<LocalPod>> =
            self.pods.iter().map(|(key, endpoint)| (key.clone(), wiring(endpoint))).collect();
        let before = std::mem::replace(&mut self.wired, wired);
        self.unnamed = unnamed;
        self.look_at_bridges();
        self.hold_leaving(&before);
        let changed: Vec<(EndpointKey, Arc<Endpoint>)> = self
            .pods
            .iter()
            .filter(|(key, endpoint)| {
                known_before.get(*key).and_then(Option::as_ref) != self.wiring_of(endpoint)
            })
            .map(|(key, endpoint)| (key.clone(), Arc::clone(endpoint)))
            .collect();
        for (key, endpoint) in changed {
            let endpoint = self.with_wiring(endpoint);
            self.engine.apply(Update::Endpoint(key, Some(endpoint)));
        }
        if self.shared.source == Source::Records {
            self.apply_unrecorded();
        }
    }

    /// The interfaces of pods with a name, and those of others. Of a pod with interfaces of both kinds, policies are about
    /// those that the node routes, and not about those behind bridges.
    pub(super) fn wiring(&self) -> (BTreeMap<PodName, LocalPod>, Vec<LocalPod>) {
        let (mut wired, mut unnamed) = (BTreeMap::<PodName, LocalPod>::new(), Vec::new());
        let mut attached = self.endpoints.attached();
        let known: BTreeSet<IfName> = attached.iter().filter_map(host_name).collect();
        attached.retain(|endpoint| endpoint.wired.as_deref().is_some_and(is_policed));
        attached
            .sort_by_key(|endpoint| endpoint.wired.as_deref().is_some_and(|wired| wired.bridge().is_some()));
        for endpoint in attached {
            let Some(interface) = endpoint.wired.as_deref() else { continue };
            let mut local = LocalPod::new(interface, endpoint.pod.is_some());
            let mut name = endpoint.pod;
            if local.is_calico {
                // Another program may have led further addresses there.
                local.addresses.extend(self.calico.addresses(&local.host_name));
            } else {
                name = name.or_else(|| self.container_name(&endpoint.subject.id));
            }
            let Some(name) = name else {
                unnamed.push(local);
                continue;
            };
            match wired.get_mut(&name) {
                Some(known) if known.bridge.is_some() == local.bridge.is_some() => {
                    known.addresses.extend(local.addresses);
                }
                Some(_) => {}
                None => _ = wired.insert(name, local),
            }
        }
        unnamed.extend(self.calico.unlisted(&known));
        for pod in self.shared.openshift.all() {
            let local = LocalPod::of_openshift(&pod);
            match pod.name {
                Some((namespace, name)) => _ = wired.insert(format!("{namespace}/{name}"), local),
                None => unnamed.push(local),
            }
        }
        (wired, unnamed)
    }

    /// Holds what pods that are not wired any more had, before the decisions about it go.
    fn hold_leaving(&mut self, before: &BTreeMap<PodName, LocalPod>) {
        if self.phase != Phase::Enforcing {
            return;
        }
        let addresses = |pods: &BTreeMap<PodName, LocalPod>| -> BTreeSet<IpAddr> {
            pods.values().flat_map(|local| local.addresses.iter().copied()).collect()
        };
        let gone: BTreeSet<IpAddr> = &addresses(before) - &addresses(&self.wired);
        if gone.is_empty() {
            return;
        }
        match self.hold(&gone) {
            Ok(()) => {
                let until = Instant::now() + LEAVING;
                self.leaving.extend(gone.into_iter().map(|address| (address, until)));
            }
            Err(error) => {
                tracing::warn!(%error, "addresses of pods that end are not held; decisions are written anew");
                self.wanted.held.extend(gone);
                self.kernel.restore_at = Some(Instant::now() + RETRY);
            }
        }
    }

    /// Whether everything is known that the decisions about a held address depend on.
    pub(super) fn is_decided(&self, address: IpAddr) -> bool {
        let is_in_progress = self.in_progress.values().any(|addresses| addresses.contains(&address));
        if is_in_progress || self.leaving.contains_key(&address) {
            return false;
        }
        if self.calico.has(address) {
            return self.calico.is_recorded(address);
        }
        match self.wired.iter().find(|(_, local)| local.addresses.contains(&address)) {
            Some((name, local)) => self.unrecorded.contains_key(name) || self.is_recorded(name, local),
            // Nothing has it, or something that no policy is about.
            None => !self.awaits_its_pod(address),
        }
    }

    /// Whether a plugin without an agent gave a pod this address, and the API server does not say yet
    /// whose it is.
    fn awaits_its_pod(&self, address: IpAddr) -> bool {
        self.inherited.contains(&address)
            && self.endpoints.routes_to(&address)
            && !self.pods.values().any(|pod| pod.addresses.contains(&address))
    }
}

// === impl LocalPod ===

impl LocalPod {
    pub(super) fn new(interface: &Wired, is_pod: bool) -> Self {
        let addresses = interface.addresses().into_iter().collect();
        let is_calico = matches!(interface, Wired::Routed(it) if it.dialect == Dialect::Calico);
        Self {
            is_pod,
            is_calico,
            host_name: interface.host_name().clone(),
            bridge: interface.bridge().cloned(),
            addresses,
        }
    }

    fn of_openshift(pod: &PolicedPod) -> Self {
        Self {
            is_pod: pod.name.is_some(),
            is_calico: false,
            host_name: pod.host_veth.clone(),
            bridge: None,
            addresses: [IpAddr::V4(pod.address)].into(),
        }
    }

    /// Whether it has an address of the endpoint, and may be the endpoint's by its name.
    pub(super) fn is_at(&self, endpoint: &Endpoint) -> bool {
        !self.addresses.is_disjoint(&endpoint.addresses)
            && (!self.is_calico || is_end_of(&self.host_name, endpoint))
    }
}

/// The host end of an interface of Calico's.
fn host_name(endpoint: &russet_journal::Endpoint) -> Option<IfName> {
    match endpoint.wired.as_deref()? {
        Wired::Routed(it) if it.dialect == Dialect::Calico => Some(it.host_name.clone()),
        _ => None,
    }
}

/// Whether a host end of Calico's has the name of a pod's, or of a container's (calico-cni.md section 3.1). An operator
/// may have chosen another prefix.
fn is_end_of(host_name: &IfName, endpoint: &Endpoint) -> bool {
    let of_pod = naming::pod_suffix(endpoint.namespace.as_deref().unwrap_or_default(), &endpoint.name);
    let of_container: String = endpoint.name.chars().take(of_pod.len()).collect();
    let name = host_name.as_str();
    [of_pod, of_container].iter().any(|suffix| match name.strip_prefix(CALICO_PREFIX) {
        Some(found) => found == suffix,
        None => name.ends_with(suffix.as_str()),
    })
}

#[cfg(test)]
mod tests;
