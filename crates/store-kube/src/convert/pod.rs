//! Workload endpoints, which are pods: read from a pod's spec, status and annotations, and written as
//! annotations through its status (kubernetes.md sections 1.8 and 2.4).

use std::net::IpAddr;

use russet_addr::{IfName, IpNet, NodeName, host_net};
use russet_kube::{ContainerPort, Pod};
use russet_model::{EndpointPort, IpNat, Key, WorkloadEndpoint, WorkloadEndpointSpec};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{ConvertError, Converted, text, wrong};
use crate::names::interface_name;

const CONTAINER_ID: &str = "cni.projectcalico.org/containerID";
const POD_IP: &str = "cni.projectcalico.org/podIP";
const POD_IPS: &str = "cni.projectcalico.org/podIPs";
const AWS_POD_IPS: &str = "vpc.amazonaws.com/pod-ips";
const FLOATING_IPS: &str = "cni.projectcalico.org/floatingIPs";
const SOURCE_PREFIXES: &str = "cni.projectcalico.org/allowedSourcePrefixes";
const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
/// The interface inside the pod; Calico knows no other on Kubernetes.
const INTERFACE: &str = "eth0";
/// A service account with a name of this length or more is no label.
const LABEL_MAX_BYTES: usize = 63;

/// The endpoint of a pod; none if it has no node yet, or uses its node's network.
pub(super) fn to_record(object: &Value, prefix: &str) -> Result<Option<Converted>, ConvertError> {
    let pod = Pod::deserialize(object).map_err(wrong)?;
    if pod.spec.node_name.is_empty() || pod.spec.host_network {
        return Ok(None);
    }
    let node = NodeName::new(pod.spec.node_name.as_str()).map_err(wrong)?;
    let meta = &pod.metadata;
    let interface: IfName = INTERFACE.parse().map_err(wrong)?;
    let name = WorkloadEndpointSpec::k8s_name(&node, &meta.name, &interface).map_err(wrong)?;
    let key = Key::workload_endpoint(&meta.namespace, &name).map_err(wrong)?;
    let ip_networks = networks(&pod)?;
    let mut spec = WorkloadEndpointSpec {
        orchestrator: "k8s".to_owned(),
        node: node.as_str().to_owned(),
        container_id: meta.annotations.get(CONTAINER_ID).cloned().unwrap_or_default(),
        pod: meta.name.clone(),
        endpoint: INTERFACE.to_owned(),
        service_account_name: pod.spec.service_account_name.clone(),
        ip_nats: nats(&pod, &ip_networks)?,
        ip_networks,
        profiles: vec![format!("kns.{}", meta.namespace)],
        interface_name: Some(interface_name(prefix, &meta.namespace, &meta.name).parse().map_err(wrong)?),
        ports: ports(&pod),
        allow_spoofed_source_prefixes: list(&pod, SOURCE_PREFIXES)?,
        ..WorkloadEndpointSpec::default()
    };
    if !spec.service_account_name.is_empty() {
        spec.profiles.push(format!("ksa.{}.{}", meta.namespace, spec.service_account_name));
    }
    let mut endpoint = WorkloadEndpoint::new(name, spec);
    let metadata = &mut endpoint.metadata;
    metadata.namespace = Some(meta.namespace.clone());
    metadata.generate_name = Some(meta.generate_name.clone()).filter(|name| !name.is_empty());
    metadata.uid = Some(meta.uid.clone());
    metadata.creation_timestamp = text(object, "/metadata/creationTimestamp").map(str::to_owned);
    metadata.labels = meta.labels.clone();
    let mut label = |name: &str, value: &str| {
        metadata.labels.insert(format!("projectcalico.org/{name}"), value.to_owned());
    };
    label("namespace", &meta.namespace);
    label("orchestrator", "k8s");
    if (1..LABEL_MAX_BYTES).contains(&pod.spec.service_account_name.len()) {
        label("serviceaccount", &pod.spec.service_account_name);
    }
    let status = meta.annotations.get_key_value(NETWORK_STATUS);
    metadata.annotations.extend(status.map(|(name, status)| (name.clone(), status.clone())));
    Ok(Some(Converted { key, value: Some(endpoint.encode()) }))
}

/// The key of a pod's endpoint, even if other members are invalid; none if it has no endpoint.
pub(crate) fn key(object: &Value) -> Option<Key> {
    if object.pointer("/spec/hostNetwork").and_then(Value::as_bool) == Some(true) {
        return None;
    }
    let node = NodeName::new(text(object, "/spec/nodeName")?).ok()?;
    let interface: IfName = INTERFACE.parse().ok()?;
    let name = WorkloadEndpointSpec::k8s_name(&node, text(object, "/metadata/name")?, &interface).ok()?;
    Key::workload_endpoint(text(object, "/metadata/namespace")?, &name).ok()
}

/// The patch of a pod's status that makes its endpoint hold this record.
pub(crate) fn patch(value: &[u8]) -> Result<Value, ConvertError> {
    let endpoint = WorkloadEndpoint::decode(value).map_err(wrong)?;
    let nets: Vec<String> = endpoint.spec.ip_networks.iter().map(IpNet::to_string).collect();
    let Some(first) = nets.first() else { return Ok(json!({ "metadata": {} })) };
    let mut annotations = Map::new();
    let container = Some(endpoint.spec.container_id).filter(|id| !id.is_empty());
    annotations.extend(container.map(|id| (CONTAINER_ID.to_owned(), json!(id))));
    annotations.insert(POD_IP.to_owned(), json!(first));
    annotations.insert(POD_IPS.to_owned(), json!(nets.join(",")));
    Ok(json!({ "metadata": { "annotations": annotations } }))
}

/// The patch of a pod's status that removes its addresses. The container's ID stays, so that a late
/// DEL of an older sandbox sees that the pod has moved on.
pub(crate) fn deletion() -> Value {
    json!({ "metadata": { "annotations": { POD_IP: "", POD_IPS: "" } } })
}

/// The UID of the pod that a record was read from.
pub(crate) fn uid(value: &[u8]) -> Option<String> {
    WorkloadEndpoint::decode(value).ok()?.metadata.uid.filter(|uid| !uid.is_empty())
}

/// The sandbox that has announced its addresses last, from a pod's metadata.
pub(crate) fn sandbox(metadata: &Map<String, Value>) -> Option<&str> {
    metadata.get("annotations")?.get(CONTAINER_ID)?.as_str()
}

/// The addresses of a pod: those that kubelet published, else those of the plugin.
fn networks(pod: &Pod) -> Result<Vec<IpNet>, ConvertError> {
    let annotation = |name: &str| pod.metadata.annotations.get(name);
    let emptied = |name: &str| annotation(name).is_some_and(String::is_empty);
    let is_leaving = pod.metadata.deletion_timestamp.is_some() && (emptied(POD_IP) || emptied(AWS_POD_IPS));
    if pod.finished() || pod.status.phase == "Completed" || is_leaving {
        return Ok(Vec::new());
    }
    let published: Vec<&str> = pod.status.pod_ips.iter().map(|address| address.ip.as_str()).collect();
    let single = Some(pod.status.pod_ip.as_str());
    let split =
        |name: &str| annotation(name).map(|text| text.split(',').collect::<Vec<_>>()).unwrap_or_default();
    let sources =
        [published, single.into_iter().collect(), split(POD_IPS), split(POD_IP), split(AWS_POD_IPS)];
    let first =
        sources.into_iter().find(|source| source.iter().any(|text| !text.is_empty())).unwrap_or_default();
    let first = first.into_iter().filter(|text| !text.is_empty());
    first.map(|text| net(text.trim())).collect()
}

fn net(text: &str) -> Result<IpNet, ConvertError> {
    let address = text.split('/').next().unwrap_or_default().parse::<IpAddr>();
    address.map(host_net).map_err(|error| wrong(format!("address {text:?}: {error}")))
}

/// Floating addresses, each with the pod's address of the same family.
fn nats(pod: &Pod, own: &[IpNet]) -> Result<Vec<IpNat>, ConvertError> {
    let floating: Vec<IpAddr> = list(pod, FLOATING_IPS)?;
    let pairs = floating.into_iter().flat_map(|external| {
        let own = own.iter().map(IpNet::addr).find(|internal| internal.is_ipv4() == external.is_ipv4());
        own.map(|internal| IpNat { internal, external })
    });
    Ok(pairs.collect())
}

/// An annotation that is a JSON list.
fn list<T: std::str::FromStr<Err: std::fmt::Display>>(pod: &Pod, name: &str) -> Result<Vec<T>, ConvertError> {
    let Some(annotation) = pod.metadata.annotations.get(name) else { return Ok(Vec::new()) };
    let invalid = |reason: String| ConvertError(format!("annotation {name}: {reason}"));
    let texts: Vec<String> = serde_json::from_str(annotation).map_err(|error| invalid(error.to_string()))?;
    texts.iter().map(|text| text.parse().map_err(|error| invalid(format!("{text:?}: {error}")))).collect()
}

/// The ports of containers and init containers that have a name or a port on the node.
fn ports(pod: &Pod) -> Vec<EndpointPort> {
    let containers = pod.spec.containers.iter().chain(&pod.spec.init_containers);
    let ports = containers.flat_map(|container| &container.ports);
    ports.filter(|port| !port.name.is_empty() || port.host_port != 0).map(port).collect()
}

fn port(port: &ContainerPort) -> EndpointPort {
    let protocol = if port.protocol.is_empty() { "TCP" } else { &port.protocol };
    EndpointPort {
        name: port.name.clone(),
        protocol: json!(protocol),
        port: port.container_port,
        host_port: port.host_port,
        host_ip: port.host_ip.clone(),
    }
}
