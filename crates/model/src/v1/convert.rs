//! A v1 endpoint as a v3 workload endpoint (calico-cni.md sections 1.5 and 2.2).

use russet_addr::{ContainerId, IfName, NodeName};
use serde_json::Value;

use super::{Endpoint, EndpointId, ORCHESTRATOR_CNI, ORCHESTRATOR_K8S, profile_name_in_v3};
use crate::json::Extra;
use crate::workload::{EndpointPort, IpNat};
use crate::{WorkloadEndpoint, WorkloadEndpointSpec};

/// The namespace of workloads that are not Kubernetes pods.
const NAMESPACE_DEFAULT: &str = "default";
/// Labels that v3 derives from namespace and orchestrator.
const NAMESPACE_LABEL: &str = "projectcalico.org/namespace";
const ORCHESTRATOR_LABEL: &str = "projectcalico.org/orchestrator";

/// The place of an endpoint in v3: its namespace, its name, and the name of the pod if it is one.
struct Place {
    namespace: String,
    name: String,
    pod: String,
}

// === impl EndpointId ===

impl EndpointId {
    /// The same endpoint in v3, without UID and creation time. An error if it can have no name
    /// there.
    pub fn to_v3(&self, endpoint: &Endpoint) -> Result<WorkloadEndpoint, String> {
        let Place { namespace, name, pod } = self.place()?;
        let other = !matches!(self.orchestrator.as_str(), ORCHESTRATOR_K8S | ORCHESTRATOR_CNI);
        let container = match self.orchestrator.as_str() {
            ORCHESTRATOR_CNI => self.workload.clone(),
            _ => endpoint.active_instance_id.clone(),
        };
        let nats = endpoint.ipv4_nat.iter().chain(&endpoint.ipv6_nat);
        let gateway = |name| endpoint.extra.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let spec = WorkloadEndpointSpec {
            orchestrator: self.orchestrator.clone(),
            workload: if other { self.workload.clone() } else { String::new() },
            node: self.node.to_string(),
            container_id: container,
            pod,
            endpoint: self.endpoint.clone(),
            ip_networks: endpoint.nets().collect(),
            ip_nats: nats.map(|nat| IpNat { internal: nat.internal, external: nat.external }).collect(),
            ipv4_gateway: gateway("ipv4_gateway"),
            ipv6_gateway: gateway("ipv6_gateway"),
            profiles: endpoint.profile_ids.iter().map(|name| profile_name_in_v3(name)).collect(),
            interface_name: Some(IfName::new(endpoint.name.as_str()).map_err(|error| error.to_string())?),
            mac: endpoint.mac,
            ports: ports(&endpoint.extra)?,
            ..WorkloadEndpointSpec::default()
        };
        let mut converted = WorkloadEndpoint::new(name, spec);
        let labels = &mut converted.metadata.labels;
        labels.clone_from(&endpoint.labels);
        labels.remove(Endpoint::NAMESPACE_LABEL);
        labels.insert(NAMESPACE_LABEL.to_owned(), namespace.clone());
        labels.insert(ORCHESTRATOR_LABEL.to_owned(), self.orchestrator.clone());
        converted.metadata.namespace = Some(namespace);
        Ok(converted)
    }

    fn place(&self) -> Result<Place, String> {
        let ifname = || IfName::new(self.endpoint.as_str()).map_err(|error| error.to_string());
        let default = |name| Place { namespace: NAMESPACE_DEFAULT.to_owned(), name, pod: String::new() };
        match self.orchestrator.as_str() {
            ORCHESTRATOR_K8S => {
                let (namespace, pod) = self
                    .workload
                    .split_once('.')
                    .ok_or_else(|| format!("workload {:?} is no <namespace>.<pod>", self.workload))?;
                let name = WorkloadEndpointSpec::k8s_name(&self.node, pod, &ifname()?);
                let name = name.map_err(|error| error.to_string())?;
                Ok(Place { namespace: namespace.to_owned(), name, pod: pod.to_owned() })
            }
            ORCHESTRATOR_CNI => {
                let container =
                    ContainerId::new(self.workload.as_str()).map_err(|error| error.to_string())?;
                let name = WorkloadEndpointSpec::cni_name(&self.node, &container, &ifname()?);
                name.map(default).map_err(|error| error.to_string())
            }
            _ => other_name(&self.node, &self.orchestrator, &self.workload, &self.endpoint).map(default),
        }
    }
}

/// The name of an endpoint of an orchestrator that v3 does not have.
fn other_name(node: &NodeName, orchestrator: &str, workload: &str, endpoint: &str) -> Result<String, String> {
    let prefix = WorkloadEndpointSpec::name_prefix(node, orchestrator, workload);
    let prefix = prefix.map_err(|error| error.to_string())?;
    if endpoint.is_empty() || endpoint.starts_with('-') || endpoint.ends_with('-') {
        return Err(format!("endpoint {endpoint:?} cannot be part of a name"));
    }
    Ok(prefix + &endpoint.replace('-', "--"))
}

fn ports(extra: &Extra) -> Result<Vec<EndpointPort>, String> {
    let Some(Value::Array(ports)) = extra.get("ports") else { return Ok(Vec::new()) };
    let read = |port: &Value| {
        let name = port.get("name").and_then(Value::as_str)?.to_owned();
        let number = u16::try_from(port.get("port").and_then(Value::as_u64)?).ok()?;
        let protocol = match port.get("protocol")? {
            Value::String(name) => Value::from(name.to_uppercase()),
            number => number.clone(),
        };
        Some(EndpointPort { name, protocol, port: number, host_port: 0, host_ip: String::new() })
    };
    ports.iter().map(|port| read(port).ok_or_else(|| format!("port {port} cannot be read"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        let text = r#"{"state":"active","name":"calia4fc3c48bd8","active_instance_id":"4be1","mac":"8e:01:7c:aa:10:f3","profile_ids":["k8s_ns.shop"],"ipv4_nets":["10.65.7.13/32"],"ipv6_nets":[],"labels":{"app":"web","calico/k8s_ns":"shop"},"ports":[{"name":"http","protocol":"tcp","port":80}]}"#;
        Endpoint::decode(text.as_bytes()).unwrap()
    }

    fn id(orchestrator: &str, workload: &str) -> EndpointId {
        EndpointId::new("worker-1".parse().unwrap(), orchestrator, workload, "eth0").unwrap()
    }

    #[test]
    fn a_pod_is_what_the_v3_plugin_would_have_written() {
        // calico-cni.md sections 2.2.1 and 2.2.2
        let converted = id("k8s", "shop.web-0").to_v3(&endpoint()).unwrap();
        assert_eq!(
            String::from_utf8(converted.encode()).unwrap(),
            r#"{"kind":"WorkloadEndpoint","apiVersion":"projectcalico.org/v3","metadata":{"name":"worker--1-k8s-web--0-eth0","namespace":"shop","creationTimestamp":null,"labels":{"app":"web","projectcalico.org/namespace":"shop","projectcalico.org/orchestrator":"k8s"}},"spec":{"orchestrator":"k8s","node":"worker-1","containerID":"4be1","pod":"web-0","endpoint":"eth0","ipNetworks":["10.65.7.13/32"],"profiles":["kns.shop"],"interfaceName":"calia4fc3c48bd8","mac":"8e:01:7c:aa:10:f3","ports":[{"name":"http","protocol":"TCP","port":80,"hostPort":0,"hostIP":""}]}}"#
        );
    }

    #[test]
    fn a_container_and_somebody_elses_workload_have_names_of_their_own() {
        let converted = id("cni", "f00d").to_v3(&endpoint()).unwrap();
        assert_eq!(converted.metadata.name, "worker--1-cni-f00d-eth0");
        assert_eq!(
            (converted.spec.container_id.as_str(), converted.metadata.namespace.as_deref()),
            ("f00d", Some("default"))
        );
        let converted = id("mesos", "a-b").to_v3(&endpoint()).unwrap();
        assert_eq!(
            (converted.metadata.name.as_str(), converted.spec.workload.as_str()),
            ("worker--1-mesos-a--b-eth0", "a-b")
        );
    }

    #[test]
    fn what_can_have_no_name_in_v3_says_why() {
        for (orchestrator, workload) in
            [("k8s", "no-namespace"), ("k8s", "shop.web-"), ("cni", "a/b"), ("x", "-")]
        {
            assert!(id(orchestrator, workload).to_v3(&endpoint()).is_err(), "{workload}");
        }
    }
}
