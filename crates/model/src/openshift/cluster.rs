//! The cluster's network: where pods and services have their addresses, and how nodes isolate.

use ipnet::Ipv4Net;
use serde_json::Value;

use super::{envelope, network, open};
use crate::json::{DecodeError, Extra, Object, encode};

/// The network of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterNetwork {
    /// Where pods have their addresses, at least one network.
    pub networks: Vec<PodNetwork>,
    /// Where services have theirs.
    pub service_network: Option<Ipv4Net>,
    /// The UDP port of VXLAN.
    pub vxlan_port: u16,
    /// The MTU of pods, if it is not derived from the underlay.
    pub mtu: Option<u32>,
    /// How nodes isolate.
    pub mode: IsolationMode,
    /// Members that we do not know.
    pub extra: Extra,
}

/// One network of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodNetwork {
    /// The network.
    pub cidr: Ipv4Net,
    /// Bits of a node's subnet: 9 makes a /23.
    pub host_subnet_length: u8,
}

/// The meaning of network IDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IsolationMode {
    /// All pods reach each other.
    Subnet,
    /// Pods of one network ID reach each other.
    Multitenant,
    /// Policies decide; every namespace has its own ID.
    NetworkPolicy,
}

/// The port assigned by IANA, and OpenShift's default.
pub const VXLAN_PORT: u16 = 4789;
const KIND: &str = "ClusterNetwork";
const MODE_PREFIX: &str = "redhat/openshift-ovs-";
/// Limit of the networks of pods; each is a route and an element of sets.
const NETWORKS_MAX: usize = 64;
/// The minimum MTU of an IPv4 link.
const MTU_MIN_BYTES: u64 = 576;
const MTU_MAX_BYTES: u64 = 65_535;

// === impl ClusterNetwork ===

impl ClusterNetwork {
    /// The name of the only one.
    pub const DEFAULT: &'static str = "default";

    /// Reads what a store holds.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (mut fields, _) = open("ClusterNetwork", KIND, bytes)?;
        let mut networks = Vec::new();
        for mut entry in fields.objects("clusterNetworks")?.unwrap_or_default() {
            let cidr = network(&mut entry, "CIDR")?.ok_or_else(|| entry.error("CIDR", "it is missing"))?;
            networks.push(PodNetwork::checked(cidr, entry.unsigned("hostSubnetLength")?, |problem| {
                entry.error("hostSubnetLength", problem)
            })?);
        }
        // The form of OpenShift 3: one network.
        let (cidr, bits) = (network(&mut fields, "network")?, fields.unsigned("hostsubnetlength")?);
        if let (true, Some(cidr)) = (networks.is_empty(), cidr) {
            networks
                .push(PodNetwork::checked(cidr, bits, |problem| fields.error("hostsubnetlength", problem))?);
        }
        if networks.is_empty() || networks.len() > NETWORKS_MAX {
            return Err(fields.error("clusterNetworks", format!("there are 1 to {NETWORKS_MAX}")));
        }
        let service_network = network(&mut fields, "serviceNetwork")?;
        let vxlan_port = match fields.unsigned("vxlanPort")? {
            None => VXLAN_PORT,
            Some(port) => u16::try_from(port)
                .ok()
                .filter(|port| *port != 0)
                .ok_or_else(|| fields.error("vxlanPort", format!("{port} is no port")))?,
        };
        let mtu = fields.unsigned("mtu")?.filter(|mtu| *mtu != 0);
        if let Some(mtu) = mtu.filter(|mtu| !(MTU_MIN_BYTES..=MTU_MAX_BYTES).contains(mtu)) {
            return Err(fields.error("mtu", format!("{mtu} is not from {MTU_MIN_BYTES} to {MTU_MAX_BYTES}")));
        }
        let mode = match fields.string("pluginName")? {
            None => IsolationMode::Multitenant,
            Some(name) => IsolationMode::from_plugin(&name)
                .ok_or_else(|| fields.error("pluginName", format!("{name:?} is not known")))?,
        };
        let mtu = mtu.and_then(|mtu| u32::try_from(mtu).ok());
        Ok(Self { networks, service_network, vxlan_port, mtu, mode, extra: fields.rest() })
    }

    /// The bytes for the store.
    pub fn encode(&self) -> Vec<u8> {
        let networks: Vec<Value> = self.networks.iter().copied().map(PodNetwork::to_value).collect();
        let object = envelope(KIND, Self::DEFAULT)
            .put("clusterNetworks", networks)
            .put_text("serviceNetwork", self.service_network)
            .put("pluginName", format!("{MODE_PREFIX}{}", self.mode.label()))
            .put("vxlanPort", self.vxlan_port)
            .put_some("mtu", self.mtu);
        encode(&object.finish(&self.extra))
    }
}

// === impl PodNetwork ===

impl PodNetwork {
    fn checked(
        cidr: Ipv4Net,
        bits: Option<u64>,
        error: impl Fn(String) -> DecodeError,
    ) -> Result<Self, DecodeError> {
        let bits = bits.ok_or_else(|| error("it is missing".to_owned()))?;
        let most = u64::from(32 - cidr.prefix_len());
        match u8::try_from(bits) {
            Ok(host_subnet_length) if (2..=most).contains(&bits) => Ok(Self { cidr, host_subnet_length }),
            _ => Err(error(format!("{bits} is not from 2 to {most}, what {cidr} has"))),
        }
    }

    fn to_value(self) -> Value {
        let object = Object::default().put("CIDR", self.cidr.to_string());
        object.put("hostSubnetLength", self.host_subnet_length).finish(&Extra::new())
    }
}

// === impl IsolationMode ===

impl IsolationMode {
    /// The suffix of OpenShift's name of the plugin.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Subnet => "subnet",
            Self::Multitenant => "multitenant",
            Self::NetworkPolicy => "networkpolicy",
        }
    }

    fn from_plugin(name: &str) -> Option<Self> {
        let end = name.strip_prefix(MODE_PREFIX)?;
        [Self::Subnet, Self::Multitenant, Self::NetworkPolicy].into_iter().find(|mode| mode.label() == end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_a_cluster_network_are_read() {
        let new = r#"{"kind":"ClusterNetwork","apiVersion":"network.openshift.io/v1","metadata":{"name":"default"},"clusterNetworks":[{"CIDR":"10.128.0.0/14","hostSubnetLength":9}],"serviceNetwork":"172.30.0.0/16","pluginName":"redhat/openshift-ovs-multitenant","vxlanPort":4789,"mtu":1450}"#;
        let network = ClusterNetwork::decode(new.as_bytes()).unwrap();
        assert_eq!((network.mtu, network.mode), (Some(1450), IsolationMode::Multitenant));
        assert_eq!(String::from_utf8(network.encode()).unwrap(), new);
        let old = br#"{"network":"10.128.0.0/14","hostsubnetlength":9,"serviceNetwork":"172.30.0.0/16"}"#;
        assert_eq!(ClusterNetwork::decode(old).unwrap().networks, network.networks);
    }

    #[test]
    fn a_network_that_cannot_be_is_refused() {
        for text in [
            r#"{}"#,
            r#"{"network":"10.128.0.0/14"}"#,
            r#"{"network":"10.128.0.0/14","hostsubnetlength":1}"#,
            r#"{"network":"10.128.0.0/14","hostsubnetlength":19}"#,
            r#"{"network":"10.128.0.1/14","hostsubnetlength":9}"#,
            r#"{"network":"fd00::/64","hostsubnetlength":9}"#,
            r#"{"network":"10.128.0.0/14","hostsubnetlength":9,"serviceNetwork":"172.30.0.0/99"}"#,
            r#"{"network":"10.128.0.0/14","hostsubnetlength":9,"vxlanPort":65536}"#,
            r#"{"network":"10.128.0.0/14","hostsubnetlength":9,"mtu":100}"#,
            r#"{"network":"10.128.0.0/14","hostsubnetlength":9,"pluginName":"x"}"#,
        ] {
            assert!(ClusterNetwork::decode(text.as_bytes()).is_err(), "{text}");
        }
    }
}
