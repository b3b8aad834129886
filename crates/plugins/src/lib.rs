//! The CNI plugins, one module each. The agent runs them for requests on its socket, and `russet
//! cni-direct` runs them on a node without an agent: the same code, on a [`Node`] that provides
//! what they work with.

#![expect(missing_docs, reason = "used by the programs of this workspace only")]
// They read what a container runtime sends, and rules of other programs: none of that may end the process.
#![cfg_attr(not(test), warn(clippy::indexing_slicing, clippy::expect_used, clippy::panic))]

mod bandwidth;
mod bridge;
#[cfg(test)]
mod chain;
mod delegation;
mod flannel;
pub mod host_local;
#[cfg(test)]
mod lab;
mod loopback;
mod node;
mod openshift_sdn;
mod portmap;
mod releases;
mod requested;
mod russet;
mod settings;

use russet_calico as calico;
use russet_cni_spec::plugin::Request;
use russet_cni_spec::{CniError, CniResult, table};
use russet_wiring::Target;

pub use node::{Announce, Node, PodSandbox};
pub use releases::{Release, Releases};
pub use russet_calico::{
    CalicoHost, CalicoNode, Clusters, Datastore, Datastores, KubernetesSettings, PolicyWait,
    endpoint_status_file, has_v1_data as has_calico_v1_data,
};
pub use russet_ipam::{Clock, SystemClock};
pub use russet_wiring::failure::NO_SUCH_POD;
pub use russet_wiring::{
    InterfaceObserver, LocalNode, NotReady, Pause, RequestLog, Stage, Stages, Teardown, Wiring, executable,
    port_guard, stages,
};

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

/// Executes one request of the plugin `name`; `log` is for the runtime's standard error. Once
/// started it must run to its end: dropping the future half-way may leave an address that only DEL
/// releases.
pub async fn run(
    node: &Node,
    name: &str,
    request: &Request,
    log: &RequestLog,
) -> Result<RequestOutcome, CniError> {
    match name {
        russet::NAME => in_version(request, russet::run(node, request, log).await),
        calico::plugin::NAME => {
            let done = releases::retried(&node.releases, async || {
                calico::plugin::run(&node.host, request, log).await
            });
            in_version(request, done.await.map(|outcome| RequestOutcome::of_calico(outcome, &node.releases)))
        }
        _ => run_without_store(&node.host, name, request, log).await,
    }
}

/// [`run`] for the plugins that do not work on the node's own store.
pub async fn run_without_store(
    node: &CalicoNode,
    name: &str,
    request: &Request,
    log: &RequestLog,
) -> Result<RequestOutcome, CniError> {
    match name {
        calico::plugin::NAME => {
            let done = calico::plugin::run(node, request, log).await;
            in_version(request, done.map(|outcome| RequestOutcome::of_calico(outcome, &Releases::default())))
        }
        calico::ipam::NAME => in_version(request, calico::ipam::run(&node.host, request, log).await),
        _ => run_local(&node.local(), name, request, log).await.map(RequestOutcome::from),
    }
}

/// [`run`] for the plugins that need only this machine's files and kernel.
pub async fn run_local(
    node: &LocalNode,
    name: &str,
    request: &Request,
    log: &RequestLog,
) -> Result<Option<CniResult>, CniError> {
    let done = match name {
        loopback::NAME => loopback::run(node, request).await,
        host_local::NAME => host_local::run(&node.root, request).await,
        bridge::NAME => bridge::run(node, request).await,
        flannel::NAME => flannel::run(node, request, log).await,
        portmap::NAME => portmap::run(node, request).await,
        bandwidth::NAME => bandwidth::run(node, request).await,
        openshift_sdn::NAME => openshift_sdn::run(&node.root, request).await,
        _ => Err(unknown(name)),
    };
    in_version(request, done)
}

/// The error for a name that is not in the table.
pub fn unknown(name: &str) -> CniError {
    let details = format!("known: {}", table::names());
    CniError::unsupported_field(format!("type: {name:?} is not a plugin of this agent"), details)
}

/// Gives an error the version of the request's configuration.
fn in_version<T, U: From<T>>(request: &Request, done: Result<T, CniError>) -> Result<U, CniError> {
    done.map(U::from).map_err(|error| error.in_version(request.config.cni_version))
}

/// Repeats only the last part of a DEL ([`RequestOutcome::release`]), after it failed.
pub fn release(node: &Node, name: &str, request: &Request) -> Result<Release, CniError> {
    match request.env.target() {
        Some(_) if name == calico::plugin::NAME => {
            Ok(Release::new(&node.releases, calico::plugin::release(&node.host, request).remove()))
        }
        Some(target) => Ok(russet::release(node, request, &Target::from_request(request, target)?)),
        None => Err(CniError::internal("nothing is released without a container", "")),
    }
}

// === impl RequestOutcome ===

impl From<Option<CniResult>> for RequestOutcome {
    fn from(result: Option<CniResult>) -> Self {
        Self { result, policy: None, release: None }
    }
}

impl RequestOutcome {
    fn of_calico(outcome: calico::Outcome, releases: &Releases) -> Self {
        let calico::Outcome { result, policy, release } = outcome;
        Self { result, policy, release: release.map(|records| Release::new(releases, records.remove())) }
    }

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

    #[test]
    fn every_plugin_is_documented() {
        let page = include_str!("../../../docs/plugins.md");
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
        for plugin in &table::PLUGINS {
            let name = format!("`{}`", plugin.name);
            let first = |row: &&&str| row.split('|').nth(1).is_some_and(|cell| cell.contains(&name));
            assert!(rows.iter().any(|row| first(&row)), "{name} has no row in docs/plugins.md");
        }
    }
}
