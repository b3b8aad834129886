//! Nodes (calico-ipam.md section 1.8, K9; calico-cni.md section 4.6): their addresses and tunnel
//! ends.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use russet_addr::{Family, IpNet, Mac, host_net};
use serde_json::Value;

use crate::ResourceKind;
use crate::json::{DecodeError, Extra, Fields, Object};
use crate::resource::{Resource, Spec, SpecMembers};

/// A node with its envelope.
pub type Node = Resource<NodeSpec>;

/// The annotation with the address of a family at which a node answers probes, if it has one only for that.
/// Calico's programs keep annotations that they do not know.
pub const fn probe_annotation(family: Family) -> &'static str {
    match family {
        Family::V4 => "russet.dev/probe-address-v4",
        Family::V6 => "russet.dev/probe-address-v6",
    }
}

/// The content of a node's record.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NodeSpec {
    /// Addresses of the node itself.
    pub bgp: Option<NodeBgp>,
    /// Address of its IPv4 VXLAN device.
    pub ipv4_vxlan_tunnel_addr: Option<Ipv4Addr>,
    /// MAC of its IPv4 VXLAN device if it is not the one derived from the node's name.
    pub vxlan_tunnel_mac_addr: Option<Mac>,
    /// Address of its IPv6 VXLAN device.
    pub ipv6_vxlan_tunnel_addr: Option<Ipv6Addr>,
    /// MAC of its IPv6 VXLAN device if it is not the derived one.
    pub vxlan_tunnel_mac_addr_v6: Option<Mac>,
    /// Members that we do not know.
    pub extra: Extra,
}

/// The node's own addresses.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NodeBgp {
    /// Its IPv4 address and the length of its subnet's prefix.
    pub ipv4_address: Option<IpNet>,
    /// Its IPv6 address and the length of its subnet's prefix.
    pub ipv6_address: Option<IpNet>,
    /// Address of its IPIP device.
    pub ipv4_ipip_tunnel_addr: Option<Ipv4Addr>,
    /// Members that we do not know.
    pub extra: Extra,
}

/// An address with or without a prefix length.
struct HostAddress(IpNet);

// === impl Node ===

impl Resource<NodeSpec> {
    /// The address at which the node answers probes ([`probe_annotation`]). None if the annotation holds no
    /// address of that family.
    pub fn probe_address(&self, family: Family) -> Option<IpAddr> {
        let address = self.metadata.annotations.get(probe_annotation(family))?.parse().ok()?;
        (Family::of(address) == family).then_some(address)
    }

    /// Sets the address at which the node answers probes, or removes it.
    pub fn set_probe_address(&mut self, family: Family, address: Option<IpAddr>) {
        let (annotations, name) = (&mut self.metadata.annotations, probe_annotation(family));
        match address {
            Some(address) => _ = annotations.insert(name.to_owned(), address.to_string()),
            None => _ = annotations.remove(name),
        }
    }
}

// === impl NodeSpec ===

impl NodeSpec {
    /// The node's own address in a family, with its subnet's prefix length.
    pub fn address(&self, family: Family) -> Option<IpNet> {
        let bgp = self.bgp.as_ref()?;
        match family {
            Family::V4 => bgp.ipv4_address,
            Family::V6 => bgp.ipv6_address,
        }
    }

    /// The first address of type `InternalIP` in a family: the one by which Kubernetes knows the node
    /// (kubernetes.md section 1.7). Only nodes of a Kubernetes datastore have any.
    pub fn internal_ip(&self, family: Family) -> Option<IpAddr> {
        let all = self.extra.get("addresses").and_then(Value::as_array)?.iter();
        let internal = all.filter(|entry| entry.get("type").and_then(Value::as_str) == Some("InternalIP"));
        let parsed = internal.filter_map(|entry| entry.get("address")?.as_str()?.parse().ok());
        parsed.into_iter().find(|address| Family::of(*address) == family)
    }

    /// The address of its VXLAN device in a family.
    pub fn vxlan_tunnel(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.ipv4_vxlan_tunnel_addr.map(IpAddr::V4),
            Family::V6 => self.ipv6_vxlan_tunnel_addr.map(IpAddr::V6),
        }
    }

    /// Sets the address of its VXLAN device in that address's family.
    pub fn set_vxlan_tunnel(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.ipv4_vxlan_tunnel_addr = Some(address),
            IpAddr::V6(address) => self.ipv6_vxlan_tunnel_addr = Some(address),
        }
    }

    /// The MAC of its VXLAN device in a family, where the node names one.
    pub fn vxlan_mac(&self, family: Family) -> Option<Mac> {
        match family {
            Family::V4 => self.vxlan_tunnel_mac_addr,
            Family::V6 => self.vxlan_tunnel_mac_addr_v6,
        }
    }
}

impl Spec for NodeSpec {
    const KIND: ResourceKind = ResourceKind::Node;
    const WHAT: &'static str = "node";

    fn from_members(SpecMembers(mut fields): SpecMembers) -> Result<Self, DecodeError> {
        let bgp = match fields.object("bgp")? {
            Some(bgp) => Some(NodeBgp::from_fields(bgp)?),
            None => None,
        };
        Ok(Self {
            bgp,
            ipv4_vxlan_tunnel_addr: fields.text("ipv4VXLANTunnelAddr")?,
            vxlan_tunnel_mac_addr: fields.text("vxlanTunnelMACAddr")?,
            ipv6_vxlan_tunnel_addr: fields.text("ipv6VXLANTunnelAddr")?,
            vxlan_tunnel_mac_addr_v6: fields.text("vxlanTunnelMACAddrV6")?,
            extra: fields.rest(),
        })
    }

    fn to_value(&self) -> Value {
        Object::default()
            .put_some("bgp", self.bgp.as_ref().map(NodeBgp::to_value))
            .put_text("ipv4VXLANTunnelAddr", self.ipv4_vxlan_tunnel_addr)
            .put_text("vxlanTunnelMACAddr", self.vxlan_tunnel_mac_addr)
            .put_text("ipv6VXLANTunnelAddr", self.ipv6_vxlan_tunnel_addr)
            .put_text("vxlanTunnelMACAddrV6", self.vxlan_tunnel_mac_addr_v6)
            .finish(&self.extra)
    }
}

// === impl NodeBgp ===

impl NodeBgp {
    fn from_fields(mut fields: Fields) -> Result<Self, DecodeError> {
        let mut own = |name: &str, family: Family| match fields.text::<HostAddress>(name)? {
            Some(HostAddress(net)) if Family::of_net(&net) == family => Ok(Some(net)),
            Some(HostAddress(net)) => Err(fields.error(name, format!("{net} is not {family}"))),
            None => Ok(None),
        };
        Ok(Self {
            ipv4_address: own("ipv4Address", Family::V4)?,
            ipv6_address: own("ipv6Address", Family::V6)?,
            ipv4_ipip_tunnel_addr: fields.text("ipv4IPIPTunnelAddr")?,
            extra: fields.rest(),
        })
    }

    fn to_value(&self) -> Value {
        Object::default()
            .put_text("ipv4Address", self.ipv4_address)
            .put_text("ipv6Address", self.ipv6_address)
            .put_text("ipv4IPIPTunnelAddr", self.ipv4_ipip_tunnel_addr)
            .finish(&self.extra)
    }
}

impl std::str::FromStr for HostAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = "an address with or without a prefix length is wanted";
        match text.parse() {
            Ok(net) => Ok(Self(net)),
            Err(_) => text.parse().map(|address| Self(host_net(address))).map_err(|_| wrong),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: &str = r#"{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"node-a","creationTimestamp":null,"labels":{"zone":"a"}},"spec":{"bgp":{"ipv4Address":"10.0.0.7/24","ipv6Address":"fd00::7/64","asNumber":64512},"ipv4VXLANTunnelAddr":"10.1.0.19","vxlanTunnelMACAddr":"66:93:7f:54:d5:53","orchRefs":[{"nodeName":"k-a","orchestrator":"k8s"}]}}"#;

    #[test]
    fn a_node_survives_a_round_trip_byte_for_byte() {
        // calico-cni.md section 4.6
        let node = Node::decode(NODE.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(node.encode()).unwrap(), NODE);
        assert_eq!(node.spec.address(Family::V4), Some("10.0.0.7/24".parse().unwrap()));
        assert_eq!(node.spec.vxlan_tunnel(Family::V4), Some("10.1.0.19".parse().unwrap()));
        assert_eq!(node.spec.vxlan_tunnel(Family::V6), None);
    }

    #[test]
    fn an_address_for_probes_is_an_annotation_and_must_be_one_of_its_family() {
        let mut node = Node::decode(NODE.as_bytes()).unwrap();
        let address = "10.1.0.20".parse().unwrap();
        node.set_probe_address(Family::V4, Some(address));
        let text = String::from_utf8(node.encode()).unwrap();
        assert!(text.contains(r#""annotations":{"russet.dev/probe-address-v4":"10.1.0.20"}"#), "{text}");
        assert_eq!(Node::decode(text.as_bytes()).unwrap().probe_address(Family::V4), Some(address));
        for hostile in ["fd00::1", "10.1.0.20/32", "10.1.0.20 ", "", "node-b"] {
            let text = text.replace(r#""10.1.0.20""#, &format!("{hostile:?}"));
            assert_eq!(Node::decode(text.as_bytes()).unwrap().probe_address(Family::V4), None, "{hostile}");
        }
        node.set_probe_address(Family::V4, None);
        assert_eq!(String::from_utf8(node.encode()).unwrap(), NODE);
    }

    #[test]
    fn an_address_without_a_prefix_stands_alone() {
        let node = Node::decode(NODE.replace("10.0.0.7/24", "10.0.0.7").as_bytes()).unwrap();
        assert_eq!(node.spec.address(Family::V4), Some("10.0.0.7/32".parse().unwrap()));
    }

    #[test]
    fn a_wrong_address_is_named() {
        let cases = [
            ("10.0.0.7/24", "fd00::1/64", "node at spec.bgp.ipv4Address: fd00::1/64 is not IPv4"),
            ("10.1.0.19", "10.1.0", "node at spec.ipv4VXLANTunnelAddr: \"10.1.0\""),
            ("66:93:7f:54:d5:53", "66:93", "node at spec.vxlanTunnelMACAddr: \"66:93\""),
        ];
        for (from, to, message) in cases {
            let error = Node::decode(NODE.replace(from, to).as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }
}
