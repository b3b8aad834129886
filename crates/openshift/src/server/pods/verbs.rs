//! CHECK, GC and STATUS, which the stock protocol does not have. Our plugin sends them in the
//! format of the agent's own socket (cni-runtime.md appendix A.6).

use std::collections::BTreeMap;

use russet_addr::ContainerId;
use russet_cni_spec::plugin::{Outcome, Prepared, Request, prepare};
use russet_cni_spec::relay::RelayRequest;
use russet_cni_spec::{Call, CniError, Target};

use super::Pods;
use crate::server::request::Pod;

const ABOUT: &str = "OpenShift's CNI server";

// === impl Pods ===

impl Pods {
    /// Answers as a plugin would.
    pub(super) async fn other(&self, message: RelayRequest) -> Outcome {
        match prepare(message.env, message.config, ABOUT) {
            Ok(Prepared::Answer(outcome)) => outcome,
            Ok(Prepared::Request(request)) => {
                let version = request.config.cni_version;
                let done = self.verb(&request).await.map_err(|error| error.in_version(version));
                done.map(|()| None).into()
            }
            Err(error) => Outcome::failure(&error),
        }
    }

    async fn verb(&self, request: &Request) -> Result<(), CniError> {
        match &request.env.call {
            Call::Status => self.state.status(self.attached()),
            Call::Check(target) => self.check(request, target).await,
            Call::Gc => self.collect(request).await,
            Call::Add(_) | Call::Del(_) => {
                let msg = format!("{} belongs on the path / of this socket", request.env.verb());
                Err(CniError::internal(msg, "cni-runtime.md section 4.1"))
            }
        }
    }

    /// Number of attached pods, as far as it is known without waiting.
    fn attached(&self) -> usize {
        // While the data path is locked, it exists and is in use.
        self.sdn.try_lock().map_or(1, |sdn| sdn.attached().count())
    }

    /// Whether the node still has what ADD made: the address, the port, and the network ID that its
    /// namespace has now.
    async fn check(&self, request: &Request, target: &Target) -> Result<(), CniError> {
        let _turn = self.locks.lock([target.id.container.clone()]).await;
        let previous = request.config.prev_result()?;
        let previous =
            previous.ok_or_else(|| CniError::invalid_config("CHECK needs the prevResult of ADD", ""))?;
        self.ipam.check(&target.id.container, &previous).await?;
        let sandbox = target.id.container.clone();
        let lost = |what: String| {
            Err(CniError::internal(format!("the pod's connection is not as ADD made it: {what}"), ""))
        };
        let ports = self.with_sdn(|sdn| sdn.ports()).await.map_err(|it| CniError::internal(it.text, ""))?;
        let Some(port) = ports.into_iter().find(|port| port.sandbox == sandbox) else {
            return lost("it has no port".to_owned());
        };
        if !previous.ips.iter().any(|ip| ip.address.addr() == std::net::IpAddr::from(port.address)) {
            return lost(format!("its port has the address {}", port.address));
        }
        let netid = self.view.borrow().netid(&port.namespace);
        if port.netid != netid || netid.is_none() {
            let shown = |id: Option<_>| {
                id.map_or_else(|| "none".to_owned(), |id: russet_model::openshift::NetId| id.to_string())
            };
            return lost(format!(
                "its port has network ID {}, its namespace {}",
                shown(port.netid),
                shown(netid)
            ));
        }
        Ok(())
    }

    /// Removes ports, addresses and records that no valid attachment has. No other request is in
    /// progress meanwhile.
    async fn collect(&self, request: &Request) -> Result<(), CniError> {
        let valid = request.config.required_attachments()?;
        let valid: Vec<ContainerId> = valid.into_iter().map(|it| it.container).collect();
        let _exclusive = self.locks.exclusive().await;
        let failed =
            |what: &str, error: &dyn std::fmt::Display| CniError::internal(format!("{what}: {error}"), "");
        let ports = self.with_sdn(|sdn| sdn.ports()).await.map_err(|it| failed("list ports", &it.text))?;
        let records = self.records.all().map_err(|error| failed("list records", &error))?;
        let mut known: BTreeMap<ContainerId, Pod> =
            records.into_iter().map(|pod| (pod.sandbox.clone(), pod)).collect();
        for port in ports {
            known.entry(port.sandbox.clone()).or_insert_with(|| Pod {
                sandbox: port.sandbox,
                netns: String::new(),
                namespace: port.namespace.to_string(),
                name: String::new(),
            });
        }
        let mut errors = Vec::new();
        for pod in known.values().filter(|pod| !valid.contains(&pod.sandbox)) {
            errors.extend(self.tear_down(pod).await.err().map(|refusal| refusal.text));
        }
        if errors.is_empty() {
            errors.extend(self.ipam.keep_only(&valid).await.err().map(|error| error.to_string()));
        }
        self.metrics.pod_ips.set(i64::try_from(self.ipam.count()).unwrap_or(i64::MAX));
        if errors.is_empty() {
            return Ok(());
        }
        Err(CniError::internal(
            "some attachments that are no longer valid could not be removed",
            errors.join("; "),
        ))
    }
}
