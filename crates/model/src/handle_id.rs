//! Handle IDs: the name under which an owner's addresses are allocated (calico-ipam.md section
//! 1.6).

use std::fmt;
use std::str::FromStr;

use russet_addr::{ContainerId, Family, NameError, NetworkName, NodeName};

/// The name under which addresses of a pod or a tunnel are allocated. It is a key segment, so it
/// has no `/`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandleId(String);

/// Longer than any handle of a peer: a network name and a container ID, or a tunnel's prefix and a node name.
const HANDLE_MAX_BYTES: usize = 512;

// === impl HandleId ===

impl HandleId {
    /// The handle of reservations by Windows peers. It is only in blocks and never has a record of
    /// its own.
    pub const WINDOWS_RESERVED: &'static str = "windows-reserved-ipam-handle";

    /// Checks `id` and keeps it.
    pub fn new(id: impl Into<String>) -> Result<Self, NameError> {
        let id = id.into();
        match Self::broken_rule(&id) {
            None => Ok(Self(id)),
            Some(rule) => Err(NameError { kind: "handle ID", name: id, rule }),
        }
    }

    /// Whether `id` may be a handle's name, without keeping it.
    pub fn is_valid(id: &str) -> bool {
        Self::broken_rule(id).is_none()
    }

    fn broken_rule(id: &str) -> Option<&'static str> {
        match id {
            "" => Some("it is empty"),
            _ if id.len() > HANDLE_MAX_BYTES => Some("it is longer than 512 bytes"),
            // Handles of the usual form need no check of each character.
            _ if id.bytes().all(|byte| byte > b'/' && byte < 0x7f || byte == b'.' || byte == b'-') => None,
            _ if id.contains('/') => Some("it must not hold '/': peers would not list it"),
            _ if id.chars().any(char::is_control) => Some("it must not hold control characters"),
            _ => None,
        }
    }

    /// A container's handle: `<network>.<container ID>`. All its interfaces on that network share it.
    pub fn pod(network: &NetworkName, container: &ContainerId) -> Self {
        Self(format!("{network}.{container}"))
    }

    /// The handle that CNI plugins before v1.11.2 used for pods: `<namespace>.<pod>`.
    pub fn workload(namespace: &str, pod: &str) -> Result<Self, NameError> {
        Self::new(format!("{namespace}.{pod}"))
    }

    /// The handle of a node's VXLAN tunnel address.
    pub fn vxlan_tunnel(node: &NodeName, family: Family) -> Self {
        match family {
            Family::V4 => Self(format!("vxlan-tunnel-addr-{node}")),
            Family::V6 => Self(format!("vxlan-v6-tunnel-addr-{node}")),
        }
    }

    /// The handle of the addresses that a node has only for probes by other nodes.
    pub fn probes(node: &NodeName) -> Self {
        Self(format!("russet-probe-addr-{node}"))
    }

    /// The handle of a node's IPIP tunnel address.
    pub fn ipip_tunnel(node: &NodeName) -> Self {
        Self(format!("ipip-tunnel-addr-{node}"))
    }

    /// The handle as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `stored`, from a block of a peer, is this handle: what follows a CR there is garbage
    /// (calico-ipam.md section 1.4).
    pub fn is(&self, stored: &str) -> bool {
        Self::sanitized(stored) == self.0
    }

    /// A handle as stored in a block, without the garbage after a CR.
    pub fn sanitized(stored: &str) -> &str {
        stored.split('\r').next().unwrap_or(stored)
    }
}

impl FromStr for HandleId {
    type Err = NameError;

    fn from_str(id: &str) -> Result<Self, NameError> {
        Self::new(id)
    }
}

impl fmt::Display for HandleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for HandleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl serde::Serialize for HandleId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> serde::Deserialize<'de> for HandleId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_have_calicos_shapes() {
        // calico-ipam.md section 1.6
        let node = NodeName::new("node-a").unwrap();
        let pod = HandleId::pod(&"k8s-pod-network".parse().unwrap(), &"aaaa".parse().unwrap());
        assert_eq!(pod.as_str(), "k8s-pod-network.aaaa");
        assert_eq!(HandleId::vxlan_tunnel(&node, Family::V4).as_str(), "vxlan-tunnel-addr-node-a");
        assert_eq!(HandleId::vxlan_tunnel(&node, Family::V6).as_str(), "vxlan-v6-tunnel-addr-node-a");
        assert_eq!(HandleId::workload("default", "web-0").unwrap().as_str(), "default.web-0");
    }

    #[test]
    fn a_handle_is_compared_up_to_the_first_cr() {
        // calico-ipam.md section 1.4
        let id = HandleId::new("k8s-pod-network.aaaa").unwrap();
        assert!(id.is("k8s-pod-network.aaaa\r\neth0"));
        assert!(!id.is("k8s-pod-network.aaaab"));
    }

    #[test]
    fn a_handle_that_would_break_its_key_is_refused() {
        for bad in ["", "a/b", "a\nb", &"a".repeat(513)] {
            assert!(HandleId::new(bad).is_err(), "{bad:?}");
        }
    }
}
