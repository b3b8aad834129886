//! Workload endpoints: one interface of one pod, for peers that enforce policy (calico-cni.md section 2.2, K10).

use russet_addr::{ContainerId, IfName, IpNet, Mac, NodeName};
use serde_json::Value;

use crate::ResourceKind;
use crate::json::{DecodeError, Extra, Object};
use crate::resource::{Resource, Spec, SpecMembers};

/// A workload endpoint with its envelope.
pub type WorkloadEndpoint = Resource<WorkloadEndpointSpec>;

/// What an endpoint says. All members are left out when empty; ports, NATs and QoS stay in `extra`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WorkloadEndpointSpec {
    /// `k8s`, `cni` or another.
    pub orchestrator: String,
    /// The workload, for other orchestrators.
    pub workload: String,
    /// The node's name.
    pub node: String,
    /// The container's ID.
    pub container_id: String,
    /// The pod's name.
    pub pod: String,
    /// The interface's name inside the pod.
    pub endpoint: String,
    /// The pod's service account.
    pub service_account_name: String,
    /// Its addresses, as /32 and /128.
    pub ip_networks: Vec<IpNet>,
    /// Profiles whose rules and labels it has.
    pub profiles: Vec<String>,
    /// The interface's name on the node.
    pub interface_name: Option<IfName>,
    /// The interface's MAC inside the pod.
    pub mac: Option<Mac>,
    /// Members that we do not know.
    pub extra: Extra,
}

/// A name part that peers would refuse.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{part:.80?} cannot be part of a workload endpoint's name: it is empty or begins or ends with '-'")]
pub struct WorkloadNameError {
    /// The part.
    pub part: String,
}

// === impl WorkloadEndpointSpec ===

impl WorkloadEndpointSpec {
    /// The name of a Kubernetes pod's endpoint: `<node>-k8s-<pod>-<ifname>`, each `-` of a part doubled.
    pub fn k8s_name(node: &NodeName, pod: &str, ifname: &IfName) -> Result<String, WorkloadNameError> {
        joined([node.as_str(), "k8s", pod, ifname.as_str()])
    }

    /// The name of any other container's endpoint: `<node>-cni-<container ID>-<ifname>`.
    pub fn cni_name(
        node: &NodeName,
        container: &ContainerId,
        ifname: &IfName,
    ) -> Result<String, WorkloadNameError> {
        joined([node.as_str(), "cni", container.as_str(), ifname.as_str()])
    }
}

fn joined(parts: [&str; 4]) -> Result<String, WorkloadNameError> {
    let bad = |part: &&str| part.is_empty() || part.starts_with('-') || part.ends_with('-');
    match parts.iter().find(|part| bad(part)) {
        Some(part) => Err(WorkloadNameError { part: (*part).to_owned() }),
        None => Ok(parts.map(|part| part.replace('-', "--")).join("-")),
    }
}

impl Spec for WorkloadEndpointSpec {
    const KIND: ResourceKind = ResourceKind::WorkloadEndpoint;
    const WHAT: &'static str = "workload endpoint";

    fn from_members(SpecMembers(mut fields): SpecMembers) -> Result<Self, DecodeError> {
        let mut text = |name| fields.string(name).map(Option::unwrap_or_default);
        let mut spec = Self {
            orchestrator: text("orchestrator")?,
            workload: text("workload")?,
            node: text("node")?,
            container_id: text("containerID")?,
            pod: text("pod")?,
            endpoint: text("endpoint")?,
            service_account_name: text("serviceAccountName")?,
            ..Self::default()
        };
        for (index, text) in fields.strings("ipNetworks")?.into_iter().enumerate() {
            let net = text.parse().map_err(|_| {
                fields.error(&format!("ipNetworks[{index}]"), format!("{text:.60?} is no address prefix"))
            })?;
            spec.ip_networks.push(net);
        }
        spec.profiles = fields.strings("profiles")?;
        spec.interface_name = fields.text("interfaceName")?;
        spec.mac = fields.text("mac")?;
        spec.extra = fields.rest();
        Ok(spec)
    }

    fn to_value(&self) -> Value {
        Object::default()
            .put_string("orchestrator", &self.orchestrator)
            .put_string("workload", &self.workload)
            .put_string("node", &self.node)
            .put_string("containerID", &self.container_id)
            .put_string("pod", &self.pod)
            .put_string("endpoint", &self.endpoint)
            .put_string("serviceAccountName", &self.service_account_name)
            .put_list("ipNetworks", &self.ip_networks)
            .put_list("profiles", &self.profiles)
            .put_text("interfaceName", self.interface_name.as_ref())
            .put_text("mac", self.mac)
            .finish(&self.extra)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_calicos() {
        // calico-cni.md section 2.2.1
        let name = |node: &str, pod, ifname: &str| {
            WorkloadEndpointSpec::k8s_name(&node.parse().unwrap(), pod, &ifname.parse().unwrap())
        };
        assert_eq!(name("worker-1", "web-0", "eth0").unwrap(), "worker--1-k8s-web--0-eth0");
        assert_eq!(
            name("ip-10-0-0-1.ec2.internal", "a--b", "net1").unwrap(),
            "ip--10--0--0--1.ec2.internal-k8s-a----b-net1"
        );
        let cni = WorkloadEndpointSpec::cni_name(
            &"n1".parse().unwrap(),
            &"f00d".parse().unwrap(),
            &"eth0".parse().unwrap(),
        );
        assert_eq!(cni.unwrap(), "n1-cni-f00d-eth0");
        assert!(name("n1", "web-", "eth0").is_err() && name("n1", "", "eth0").is_err());
    }

    #[test]
    fn an_endpoint_survives_a_round_trip_byte_for_byte() {
        // calico-cni.md section 2.2.2
        let text = r#"{"kind":"WorkloadEndpoint","apiVersion":"projectcalico.org/v3","metadata":{"name":"worker--1-k8s-web--0-eth0","generateName":"web-","namespace":"shop","uid":"0d3f","creationTimestamp":"2026-08-22T10:00:00Z","labels":{"app":"web"}},"spec":{"orchestrator":"k8s","node":"worker-1","containerID":"4be1","pod":"web-0","endpoint":"eth0","serviceAccountName":"web-sa","ipNetworks":["10.65.7.13/32","fd00:65::7:d/128"],"profiles":["kns.shop","ksa.shop.web-sa"],"interfaceName":"calia4fc3c48bd8","mac":"8e:01:7c:aa:10:f3","ports":[{"name":"http","protocol":"TCP","port":8080,"hostPort":0,"hostIP":""}]}}"#;
        let endpoint = WorkloadEndpoint::decode(text.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(endpoint.encode()).unwrap(), text);
    }
}
