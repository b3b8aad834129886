//! The pods of OpenShift's server, which are in no endpoint table: it reports them (policy.md section 1.10).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use russet_addr::{ContainerId, EndpointId, IfName, NameError, NetworkName};
use russet_openshift::{PodPolicies, PolicedPod};
use tokio::sync::watch;

use super::Policies;
use crate::health::Readiness;

/// What OpenShift's server has reported.
#[derive(Debug)]
pub struct Pods(Mutex<Reported>);

#[derive(Debug)]
struct Reported {
    /// The server has listed the pods that were attached when it started, or there is none.
    are_listed: bool,
    pods: BTreeMap<ContainerId, PolicedPod>,
}

/// Enforces policies on pods of OpenShift's server.
pub struct OpenshiftPods {
    policies: Policies,
    readiness: Readiness,
}

/// The network's name in the configuration that the server writes for runtimes, and the interface of its pods.
const NETWORK: &str = "openshift-sdn";
const IFNAME: &str = "eth0";
/// The remark about policies that are not enforced.
const SUBJECT: &str = "policies on OpenShift's pods";

// === impl Pods ===

impl Pods {
    /// No pods; whether a server will list some.
    pub const fn new(are_expected: bool) -> Self {
        Self(Mutex::new(Reported { are_listed: !are_expected, pods: BTreeMap::new() }))
    }

    pub fn are_listed(&self) -> bool {
        self.lock().are_listed
    }

    pub fn all(&self) -> Vec<PolicedPod> {
        self.lock().pods.values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Reported> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl OpenshiftPods ===

impl OpenshiftPods {
    pub fn new(policies: Policies, readiness: Readiness) -> Self {
        Self { policies, readiness }
    }

    fn settled(&self, sandbox: &ContainerId) {
        // The names are constants that fit.
        if let Ok(id) = id(sandbox) {
            self.policies.settled(&id);
        }
    }

    fn list(&self, pods: Vec<PolicedPod>) {
        let mut reported = self.policies.shared.openshift.lock();
        reported.are_listed = true;
        reported.pods.extend(pods.into_iter().map(|pod| (pod.sandbox.clone(), pod)));
        drop(reported);
        self.policies.request(super::Request::Listed);
    }
}

impl PodPolicies for OpenshiftPods {
    fn hold(&self, pod: &PolicedPod) -> Result<(), String> {
        let id = id(&pod.sandbox).map_err(|error| error.to_string())?;
        self.policies.hold(&id, [IpAddr::V4(pod.address)].into())
    }

    fn attached(&self, pod: PolicedPod) {
        let sandbox = pod.sandbox.clone();
        self.policies.shared.openshift.lock().pods.insert(sandbox.clone(), pod);
        self.settled(&sandbox);
    }

    fn detached(&self, sandbox: &ContainerId) {
        self.policies.shared.openshift.lock().pods.remove(sandbox);
        self.settled(sandbox);
    }

    fn listed(&self, pods: Vec<PolicedPod>) {
        self.readiness.remark(SUBJECT, None);
        self.list(pods);
    }

    fn in_force(&self) -> watch::Receiver<bool> {
        self.policies.shared.in_force.subscribe()
    }

    fn left_out(&self, why: &str) {
        self.readiness.remark(SUBJECT, Some(format!("NOT ENFORCED: {why}, as openshift-sdn does there")));
        self.list(Vec::new());
    }
}

fn id(sandbox: &ContainerId) -> Result<EndpointId, NameError> {
    let (network, ifname) = (NetworkName::new(NETWORK)?, IfName::new(IFNAME)?);
    Ok(EndpointId { network, container: sandbox.clone(), ifname })
}
