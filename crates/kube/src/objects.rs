//! Nodes, namespaces and pods: the members that we need, with their names in the API (core/v1).
//! Others are skipped, and a missing or `null` member has its zero value, because servers of all
//! versions must be understood.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// The metadata of every object.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    /// Namespace; empty for nodes and namespaces.
    #[serde(deserialize_with = "null_is_default")]
    pub namespace: String,
    /// The prefix from which its name was generated, such as `web-7f5c-`; empty if the name was
    /// given.
    #[serde(deserialize_with = "null_is_default")]
    pub generate_name: String,
    /// Differs from that of an earlier object of the same name.
    #[serde(deserialize_with = "null_is_default")]
    pub uid: String,
    /// Opaque; changes with each write.
    #[serde(deserialize_with = "null_is_default")]
    pub resource_version: String,
    /// When its deletion was requested (RFC 3339); it may continue to exist for a while.
    pub deletion_timestamp: Option<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub labels: BTreeMap<String, String>,
    /// Annotations, byte for byte.
    #[serde(deserialize_with = "null_is_default")]
    pub annotations: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Name, labels, annotations.
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "null_is_default")]
    pub spec: NodeSpec,
    #[serde(deserialize_with = "null_is_default")]
    pub status: NodeStatus,
}

/// The specification of a node.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// The range of its pods; the first of `pod_cidrs`. See [`Node::pod_cidrs`].
    #[serde(rename = "podCIDR", deserialize_with = "null_is_default")]
    pub pod_cidr: String,
    /// The ranges of its pods, at most one of each family. Missing before Kubernetes 1.16.
    #[serde(rename = "podCIDRs", deserialize_with = "null_is_default")]
    pub pod_cidrs: Vec<String>,
    /// What keeps pods from being scheduled there; the order is that of the object.
    #[serde(deserialize_with = "null_is_default")]
    pub taints: Vec<Taint>,
}

/// A taint of a node.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Taint {
    pub key: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    #[serde(deserialize_with = "null_is_default")]
    pub addresses: Vec<Address>,
    /// `Ready`, `NetworkUnavailable`, ...
    #[serde(deserialize_with = "null_is_default")]
    pub conditions: Vec<Condition>,
}

/// One of a node's addresses.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Address {
    /// `InternalIP`, `ExternalIP`, `Hostname`, ...
    #[serde(rename = "type")]
    pub kind: String,
    /// An address or a name.
    pub address: String,
}

/// A condition of a node or a pod, read and written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// `NetworkUnavailable`, ...; one condition a type.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// A reason in one word, for programs.
    #[serde(deserialize_with = "null_is_default", skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// A message for people.
    #[serde(deserialize_with = "null_is_default", skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// RFC 3339, seconds, UTC: `2026-01-02T03:04:05Z`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<String>,
    /// The same, for the last change of `status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// Name, labels, annotations.
    pub metadata: ObjectMeta,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Name, namespace, labels, annotations.
    pub metadata: ObjectMeta,
    #[serde(deserialize_with = "null_is_default")]
    pub spec: PodSpec,
    #[serde(deserialize_with = "null_is_default")]
    pub status: PodStatus,
}

/// The specification of a pod.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Its node; empty until it is scheduled.
    #[serde(deserialize_with = "null_is_default")]
    pub node_name: String,
    #[serde(deserialize_with = "null_is_default")]
    pub service_account_name: String,
    /// Whether it uses its node's network namespace.
    #[serde(deserialize_with = "null_is_default")]
    pub host_network: bool,
    #[serde(deserialize_with = "null_is_default")]
    pub containers: Vec<Container>,
    /// Containers that run first; those with `restart_policy` `Always` continue beside the others
    /// (sidecars).
    #[serde(deserialize_with = "null_is_default")]
    pub init_containers: Vec<Container>,
}

/// A container of a pod.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    /// Of init containers only.
    #[serde(deserialize_with = "null_is_default")]
    pub restart_policy: String,
    /// The ports that it declares.
    #[serde(deserialize_with = "null_is_default")]
    pub ports: Vec<ContainerPort>,
    #[serde(deserialize_with = "null_is_default")]
    pub security_context: SecurityContext,
}

/// The privileges of a container.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecurityContext {
    /// Whether it may do everything that its node's root may.
    #[serde(deserialize_with = "null_is_default")]
    pub privileged: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    /// Name, may be empty.
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`; empty means `TCP`.
    #[serde(deserialize_with = "null_is_default")]
    pub protocol: String,
    /// The port in the pod.
    #[serde(deserialize_with = "null_is_default")]
    pub container_port: u16,
    /// The port on the node; 0 is none.
    #[serde(deserialize_with = "null_is_default")]
    pub host_port: u16,
    /// The node's address that `host_port` is bound to; empty is all.
    #[serde(rename = "hostIP", deserialize_with = "null_is_default")]
    pub host_ip: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    #[serde(deserialize_with = "null_is_default")]
    pub phase: String,
    /// The first of `pod_ips`.
    #[serde(rename = "podIP", deserialize_with = "null_is_default")]
    pub pod_ip: String,
    /// Its addresses, published by kubelet.
    #[serde(rename = "podIPs", deserialize_with = "null_is_default")]
    pub pod_ips: Vec<PodIp>,
}

/// One address of a pod.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PodIp {
    /// The address.
    pub ip: String,
}

/// Go's API machinery writes `null` for some empty maps and lists.
fn null_is_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    input: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(input)?.unwrap_or_default())
}

// === impl Node ===

impl Node {
    /// The ranges of its pods: `podCIDRs`, or `podCIDR` of servers that lack the former.
    pub fn pod_cidrs(&self) -> Vec<&str> {
        if self.spec.pod_cidrs.is_empty() && !self.spec.pod_cidr.is_empty() {
            return vec![&self.spec.pod_cidr];
        }
        self.spec.pod_cidrs.iter().map(String::as_str).collect()
    }
}

// === impl Pod ===

impl Pod {
    /// Whether one of its containers, or of its init containers, is privileged.
    pub fn privileged(&self) -> bool {
        let mut all = self.spec.containers.iter().chain(&self.spec.init_containers);
        all.any(|container| container.security_context.privileged)
    }

    /// Whether its containers have ended for good.
    pub fn finished(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_is_parsed_with_the_needed_members_and_the_rest_is_skipped() {
        let pod: Pod = serde_json::from_value(json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": { "name": "web-0", "namespace": "shop", "generateName": "web-", "uid": "0d3f", "resourceVersion": "41",
                "labels": { "app": "web" }, "annotations": null, "managedFields": [{ "manager": "kubelet" }],
                "deletionTimestamp": "2026-01-02T03:04:05Z", "creationTimestamp": null },
            "spec": { "nodeName": "n1", "serviceAccountName": "default", "hostNetwork": true, "volumes": [],
                "containers": [{ "name": "c", "image": "x", "ports": [
                    { "name": "http", "containerPort": 80, "hostPort": 8080, "hostIP": "10.0.0.1", "protocol": "TCP" },
                    { "containerPort": 53, "protocol": "UDP" }] }, { "name": "d", "ports": null }] },
            "status": { "phase": "Succeeded", "podIP": "10.1.0.1", "podIPs": [{ "ip": "10.1.0.1" }, { "ip": "fd00::1" }] }
        }))
        .unwrap();
        assert_eq!((pod.metadata.name.as_str(), pod.metadata.namespace.as_str()), ("web-0", "shop"));
        assert_eq!((pod.metadata.uid.as_str(), pod.metadata.resource_version.as_str()), ("0d3f", "41"));
        assert_eq!(pod.metadata.deletion_timestamp.as_deref(), Some("2026-01-02T03:04:05Z"));
        assert_eq!(pod.metadata.labels["app"], "web");
        assert!(pod.metadata.annotations.is_empty());
        assert_eq!((pod.spec.node_name.as_str(), pod.spec.service_account_name.as_str()), ("n1", "default"));
        let port = &pod.spec.containers[0].ports[0];
        assert_eq!((port.container_port, port.host_port, port.host_ip.as_str()), (80, 8080, "10.0.0.1"));
        assert!(pod.spec.containers[1].ports.is_empty() && pod.spec.host_network && pod.finished());
        assert_eq!(pod.status.pod_ips[1].ip, "fd00::1");
    }

    #[test]
    fn the_ranges_of_a_node_come_from_either_member() {
        let node = |spec| serde_json::from_value::<Node>(json!({ "spec": spec })).unwrap();
        let both = json!({ "podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00::/64"] });
        assert_eq!(node(both).pod_cidrs(), ["10.1.0.0/24", "fd00::/64"]);
        assert_eq!(node(json!({ "podCIDR": "10.1.0.0/24", "podCIDRs": null })).pod_cidrs(), ["10.1.0.0/24"]);
        assert!(node(json!({})).pod_cidrs().is_empty());
        assert!(node(json!(null)).pod_cidrs().is_empty());
    }

    #[test]
    fn a_nodes_addresses_are_parsed() {
        let status =
            json!({ "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }], "conditions": null });
        let node: Node = serde_json::from_value(json!({ "status": status })).unwrap();
        assert_eq!(node.status.addresses[0].kind, "InternalIP");
        assert_eq!(node.status.addresses[0].address, "10.0.0.1");
    }
}
