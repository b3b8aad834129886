//! Nodes, namespaces and pods: the members that we read, with their names in the API (core/v1). Everything else is skipped, and what is
//! missing or `null` has its zero value, because servers of all versions must be understood.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

/// What every object carries.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// Name.
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    /// Namespace; empty for nodes and namespaces.
    #[serde(deserialize_with = "null_is_default")]
    pub namespace: String,
    /// What its name was made from, as `web-7f5c-`; empty if it was given.
    #[serde(deserialize_with = "null_is_default")]
    pub generate_name: String,
    /// Differs from that of an earlier object of the same name.
    #[serde(deserialize_with = "null_is_default")]
    pub uid: String,
    /// Opaque; changes with each write.
    #[serde(deserialize_with = "null_is_default")]
    pub resource_version: String,
    /// When it was asked to go away (RFC 3339); it may go on for a while.
    pub deletion_timestamp: Option<String>,
    /// Labels.
    #[serde(deserialize_with = "null_is_default")]
    pub labels: BTreeMap<String, String>,
    /// Annotations, byte for byte.
    #[serde(deserialize_with = "null_is_default")]
    pub annotations: BTreeMap<String, String>,
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Name, labels, annotations.
    pub metadata: ObjectMeta,
    /// What it should be.
    #[serde(deserialize_with = "null_is_default")]
    pub spec: NodeSpec,
    /// What it is.
    #[serde(deserialize_with = "null_is_default")]
    pub status: NodeStatus,
}

/// What a node should be.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// The range of its pods; the first of `pod_cidrs`. See [`Node::pod_cidrs`].
    #[serde(rename = "podCIDR", deserialize_with = "null_is_default")]
    pub pod_cidr: String,
    /// The ranges of its pods, at most one of a family. Missing before Kubernetes 1.16.
    #[serde(rename = "podCIDRs", deserialize_with = "null_is_default")]
    pub pod_cidrs: Vec<String>,
}

/// What a node is.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    /// Where it can be reached.
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
    /// One word for programs.
    #[serde(deserialize_with = "null_is_default", skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// A sentence for people.
    #[serde(deserialize_with = "null_is_default", skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// RFC 3339, seconds, UTC: `2026-01-02T03:04:05Z`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<String>,
    /// The same, for the last change of `status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<String>,
}

/// A namespace.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// Name, labels, annotations.
    pub metadata: ObjectMeta,
}

/// A pod.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Name, namespace, labels, annotations.
    pub metadata: ObjectMeta,
    /// What it should be.
    #[serde(deserialize_with = "null_is_default")]
    pub spec: PodSpec,
    /// What it is.
    #[serde(deserialize_with = "null_is_default")]
    pub status: PodStatus,
}

/// What a pod should be.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Where it runs; empty until it is scheduled.
    #[serde(deserialize_with = "null_is_default")]
    pub node_name: String,
    /// Its identity towards the API.
    #[serde(deserialize_with = "null_is_default")]
    pub service_account_name: String,
    /// Whether it lives in its node's network namespace.
    #[serde(deserialize_with = "null_is_default")]
    pub host_network: bool,
    /// Its containers.
    #[serde(deserialize_with = "null_is_default")]
    pub containers: Vec<Container>,
    /// Those that run first; with `restart_policy` `Always` they go on beside the others (sidecars).
    #[serde(deserialize_with = "null_is_default")]
    pub init_containers: Vec<Container>,
}

/// A container of a pod.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Name.
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    /// Of init containers only.
    #[serde(deserialize_with = "null_is_default")]
    pub restart_policy: String,
    /// The ports that it says it listens on.
    #[serde(deserialize_with = "null_is_default")]
    pub ports: Vec<ContainerPort>,
    /// What it may do.
    #[serde(deserialize_with = "null_is_default")]
    pub security_context: SecurityContext,
}

/// What a container may do.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecurityContext {
    /// Everything that its node's root may.
    #[serde(deserialize_with = "null_is_default")]
    pub privileged: bool,
}

/// A port of a container.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerPort {
    /// Name, may be empty.
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`; empty means `TCP`.
    #[serde(deserialize_with = "null_is_default")]
    pub protocol: String,
    /// Within the pod.
    #[serde(deserialize_with = "null_is_default")]
    pub container_port: u16,
    /// On the node; 0 is none.
    #[serde(deserialize_with = "null_is_default")]
    pub host_port: u16,
    /// The node's address that `host_port` is bound to; empty is all.
    #[serde(rename = "hostIP", deserialize_with = "null_is_default")]
    pub host_ip: String,
}

/// What a pod is.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
    #[serde(deserialize_with = "null_is_default")]
    pub phase: String,
    /// The first of `pod_ips`.
    #[serde(rename = "podIP", deserialize_with = "null_is_default")]
    pub pod_ip: String,
    /// Its addresses as kubelet told them.
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

/// Go's API machinery writes `null` for empty maps and lists in places.
fn null_is_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    input: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(input)?.unwrap_or_default())
}

// === impl Node ===

impl Node {
    /// The ranges of its pods: `podCIDRs`, or `podCIDR` of servers that do not know the former.
    pub fn pod_cidrs(&self) -> Vec<&str> {
        if self.spec.pod_cidrs.is_empty() && !self.spec.pod_cidr.is_empty() {
            return vec![&self.spec.pod_cidr];
        }
        self.spec.pod_cidrs.iter().map(String::as_str).collect()
    }
}

// === impl Pod ===

impl Pod {
    /// Whether one of its containers, or of those that run first, may do everything.
    pub fn privileged(&self) -> bool {
        let mut all = self.spec.containers.iter().chain(&self.spec.init_containers);
        all.any(|container| container.security_context.privileged)
    }

    /// Whether its containers have run to their end for good.
    pub fn finished(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_is_read_with_what_a_plugin_needs_and_the_rest_is_skipped() {
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
    fn a_nodes_addresses_are_read() {
        let status =
            json!({ "addresses": [{ "type": "InternalIP", "address": "10.0.0.1" }], "conditions": null });
        let node: Node = serde_json::from_value(json!({ "status": status })).unwrap();
        assert_eq!(node.status.addresses[0].kind, "InternalIP");
        assert_eq!(node.status.addresses[0].address, "10.0.0.1");
    }
}
