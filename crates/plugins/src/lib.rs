//! The CNI plugins, one module each. The agent runs them for requests on its socket, and `russet
//! cni-direct` runs them on a node without an agent: the same code, on a [`Node`] that provides
//! what they work with.

#![expect(missing_docs, reason = "used by the programs of this workspace only")]

mod bandwidth;
mod bridge;
mod calico;
mod calico_conf;
mod calico_ipam;
mod calico_v1;
#[cfg(test)]
mod chain;
mod clusters;
mod datastore;
mod delegate;
mod delegation;
pub mod executable;
mod failure;
mod flannel;
mod gc;
mod host_local;
mod isolation;
#[cfg(test)]
mod lab;
mod loopback;
mod node;
mod observer;
mod openshift_sdn;
mod pause;
mod portmap;
mod releases;
mod request_log;
mod requested;
mod russet;
mod settings;
pub mod stages;
mod target;
mod threads;
mod wiring;

use russet_cni_spec::plugin::Request;
use russet_cni_spec::{CniError, CniResult, relay};

pub use calico::{PolicyWait, endpoint_status_file};
pub use calico_v1::has_v1 as has_calico_v1_data;
pub use clusters::Clusters;
pub use datastore::{CalicoHost, Datastore, Datastores};
pub use isolation::port_guard;
pub use node::{CalicoNode, Clock, LocalNode, Node, NotReady, SystemClock, Teardown};
pub use observer::InterfaceObserver;
pub use pause::Pause;
pub use releases::{Release, Releases};
pub use request_log::RequestLog;
pub use stages::{Stage, Stages};
pub use wiring::Wiring;

/// The outcome of a request.
#[derive(Debug)]
pub struct RequestOutcome {
    /// The result to print, for an ADD.
    pub result: Option<CniResult>,
    /// What an ADD still waits for before its answer, after its locks are released.
    pub policy: Option<PolicyWait>,
    /// The last part of a DEL. It may run after the answer if the caller ensures that it is
    /// completed even if this process dies.
    pub release: Option<Release>,
}

/// Names of the plugins that [`run`] knows.
pub const NAMES: [&str; 10] = [
    "russet",
    "loopback",
    calico::NAME,
    calico_ipam::NAME,
    host_local::NAME,
    bridge::NAME,
    flannel::NAME,
    portmap::NAME,
    bandwidth::NAME,
    openshift_sdn::NAME,
];

/// Executes one request of the plugin `name`; `log` is for the runtime's standard error. Once
/// started it must run to its end: dropping the future half-way may leave an address that only DEL
/// releases.
pub async fn run(
    node: &Node,
    name: &str,
    request: &Request,
    log: &RequestLog,
) -> Result<RequestOutcome, CniError> {
    let result = match name {
        calico::NAME => return run_calico(&node.for_calico(), request, log).await,
        "russet" => return run_russet(node, request, log).await,
        "loopback" => loopback::run(node, request).await,
        calico_ipam::NAME => calico_ipam::run(&node.calico, request, log).await,
        name if is_local(name) => run_local(&node.local(), name, request, log).await,
        _ => {
            let details = format!("known: {}", NAMES.join(", "));
            Err(CniError::unsupported_field(format!("type: {name:?} is not a plugin of this agent"), details))
        }
    };
    result.map(RequestOutcome::from).map_err(|error| error.in_version(request.config.cni_version))
}

async fn run_russet(node: &Node, request: &Request, log: &RequestLog) -> Result<RequestOutcome, CniError> {
    russet::run(node, request, log).await.map_err(|error| error.in_version(request.config.cni_version))
}

/// Repeats only the last part of a DEL ([`RequestOutcome::release`]), after it failed.
pub fn release(node: &Node, request: &Request) -> Result<Release, CniError> {
    match request.env.target() {
        Some(target) => Ok(russet::release(node, request, &target::Target::from_request(request, target)?)),
        None => Err(CniError::internal("nothing is released without a container", "")),
    }
}

/// Whether the plugin is Calico's main plugin, which needs no [`Node`]: [`run_calico`] runs it.
pub fn is_calico(name: &str) -> bool {
    name == calico::NAME
}

/// [`run`] for a plugin that [`is_calico`].
pub async fn run_calico(
    node: &CalicoNode,
    request: &Request,
    log: &RequestLog,
) -> Result<RequestOutcome, CniError> {
    let done = calico::run(node, request, log).await;
    done.map_err(|error| error.in_version(request.config.cni_version))
}

/// Whether the plugin needs only this machine's files and kernel, and neither agent nor datastore:
/// [`run_local`] runs it.
pub fn is_local(name: &str) -> bool {
    relay::LOCAL.contains(&name) || name == openshift_sdn::NAME
}

/// [`run`] for a plugin that [`is_local`].
pub async fn run_local(
    node: &LocalNode,
    name: &str,
    request: &Request,
    log: &RequestLog,
) -> Result<Option<CniResult>, CniError> {
    let done = match name {
        host_local::NAME => host_local::run(&node.root, request).await,
        bridge::NAME => bridge::run(node, request).await,
        flannel::NAME => flannel::run(node, request, log).await,
        portmap::NAME => portmap::run(node, request).await,
        bandwidth::NAME => bandwidth::run(node, request).await,
        openshift_sdn::NAME => openshift_sdn::run(&node.root, request).await,
        _ => Err(CniError::internal(format!("{name} is no plugin of this machine alone"), "")),
    };
    done.map_err(|error| error.in_version(request.config.cni_version))
}

/// Whether the plugin is an IPAM plugin. It is called in the middle of another plugin's request and
/// must not wait for any; it needs no [`Node`]: [`run_ipam`] or [`run_local`] runs it.
pub fn is_ipam(name: &str) -> bool {
    name == calico_ipam::NAME || name == host_local::NAME
}

/// Whether the plugin creates interfaces.
pub fn creates_interfaces(name: &str) -> bool {
    ["russet", calico::NAME, bridge::NAME, flannel::NAME].contains(&name)
}

/// Whether the plugin leaves state that only its own DEL removes. The callers of IPAM plugins call
/// their DEL, and `loopback` leaves nothing.
pub fn needs_own_del(name: &str) -> bool {
    takes_container_lock(name) && name != "loopback"
}

/// Whether the plugin waits for other requests for its container.
fn takes_container_lock(name: &str) -> bool {
    NAMES.contains(&name) && !is_ipam(name)
}

/// [`run`] for a plugin that [`is_ipam`] and not [`is_local`].
pub async fn run_ipam(
    host: &CalicoHost,
    request: &Request,
    log: &RequestLog,
) -> Result<Option<CniResult>, CniError> {
    let done = calico_ipam::run(host, request, log).await;
    done.map_err(|error| error.in_version(request.config.cni_version))
}

// === impl RequestOutcome ===

impl From<Option<CniResult>> for RequestOutcome {
    fn from(result: Option<CniResult>) -> Self {
        Self { result, policy: None, release: None }
    }
}

impl RequestOutcome {
    /// Runs the rest of a DEL, while the caller still holds the container's lock.
    pub async fn released(mut self) -> Result<Self, CniError> {
        match self.release.take() {
            Some(release) => release.run().await.map(|()| self),
            None => Ok(self),
        }
    }

    /// The result, after everything that it waits for. The caller holds no lock.
    pub async fn settled(self) -> Result<Option<CniResult>, CniError> {
        let done = self.released().await?;
        if let Some(policy) = done.policy {
            stages::during(Stage::Policy, policy.wait()).await;
        }
        Ok(done.result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab::{Lab, Pod};

    #[test]
    fn every_plugin_that_needs_no_agent_is_one_of_ours() {
        let lab = Lab::with_path("/nowhere");
        let no_pod = Pod { container: "", ifname: "", netns: "" };
        for name in relay::LOCAL {
            assert!(NAMES.contains(&name), "{name}");
            let config = serde_json::json!({"cniVersion": "1.1.0", "name": "net", "type": name});
            let done = lab.ours(name, "STATUS", no_pod, &config);
            let unknown = done.is_err_and(|error| error.msg.contains("no plugin of this machine"));
            assert!(!unknown, "{name}");
        }
    }
}
