//! A node in the v1 model: several keys of plain text, and the v3 node that they make up.

use std::net::{IpAddr, Ipv4Addr};

use russet_addr::{Family, IpNet, host_net};
use serde_json::Value;

use crate::json::{DecodeError, Extra};
use crate::v1::{BgpMember, V1Key};
use crate::{NodeBgp, NodeSpec};

/// One node, assembled from its keys.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NodeData {
    /// Its IPv4 address.
    pub v4: Option<IpAddr>,
    /// The network of its IPv4 address.
    pub v4_network: Option<IpNet>,
    /// Its IPv6 address.
    pub v6: Option<IpAddr>,
    /// The network of its IPv6 address.
    pub v6_network: Option<IpNet>,
    /// Its AS number, `64512` or `1.0`, unchanged.
    pub as_number: Option<String>,
    /// The address of its IPIP device.
    pub tunnel: Option<Ipv4Addr>,
    /// Its names with its orchestrators, `[{"orchestrator":"k8s","nodeName":"n1"}]`, unchanged.
    pub orchestrators: Option<Value>,
}

// === impl NodeData ===

impl NodeData {
    /// Adds one of the node's keys. Empty text counts as a missing key: Calico clears values like
    /// that.
    pub fn read(&mut self, key: &V1Key, bytes: &[u8]) -> Result<(), DecodeError> {
        let text = String::from_utf8_lossy(bytes);
        let text = text.trim();
        if text.is_empty() {
            return Ok(());
        }
        match key {
            // The address of Felix; that of BGP, if there is one, is the same and is preferred.
            V1Key::HostIp(_) => self.v4 = self.v4.or(Some(parse(text)?)),
            V1Key::HostTunnel(_) => self.tunnel = Some(parse(text)?),
            V1Key::HostOrchestrators(_) => self.orchestrators = Some(parse(text)?),
            V1Key::Bgp { member: BgpMember::Address(Family::V4), .. } => self.v4 = Some(parse(text)?),
            V1Key::Bgp { member: BgpMember::Address(Family::V6), .. } => self.v6 = Some(parse(text)?),
            V1Key::Bgp { member: BgpMember::Network(Family::V4), .. } => self.v4_network = Some(parse(text)?),
            V1Key::Bgp { member: BgpMember::Network(Family::V6), .. } => self.v6_network = Some(parse(text)?),
            V1Key::Bgp { member: BgpMember::AsNumber, .. } => self.as_number = Some(text.to_owned()),
            _ => {}
        }
        Ok(())
    }

    /// The node in v3. An address without a network has no prefix length.
    pub fn to_v3(&self) -> NodeSpec {
        let with = |address: Option<IpAddr>, network: Option<IpNet>, family| {
            let address = address.filter(|address| Family::of(*address) == family)?;
            let len =
                network.filter(|network| network.contains(&address)).map(|network| network.prefix_len());
            IpNet::new(address, len?).ok().or(Some(host_net(address)))
        };
        let alone = |address: Option<IpAddr>, family| {
            address.filter(|address| Family::of(*address) == family).map(host_net)
        };
        let mut bgp = NodeBgp {
            ipv4_address: with(self.v4, self.v4_network, Family::V4).or(alone(self.v4, Family::V4)),
            ipv6_address: with(self.v6, self.v6_network, Family::V6).or(alone(self.v6, Family::V6)),
            ipv4_ipip_tunnel_addr: self.tunnel,
            extra: Extra::new(),
        };
        if let Some(number) = self.as_number.as_deref().and_then(as_number) {
            bgp.extra.insert("asNumber".to_owned(), number.into());
        }
        let mut spec = NodeSpec { bgp: Some(bgp), ..NodeSpec::default() };
        if let Some(orchestrators) = &self.orchestrators {
            spec.extra.insert("orchRefs".to_owned(), orchestrators.clone());
        }
        spec
    }
}

fn parse<T>(text: &str) -> Result<T, DecodeError>
where
    T: std::str::FromStr,
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error| DecodeError {
        what: "v1 node",
        at: String::new(),
        problem: format!("{text:.60?}: {error}"),
    })
}

/// An AS number, which may also be two halves with a dot.
fn as_number(text: &str) -> Option<u32> {
    match text.split_once('.') {
        None => text.parse().ok(),
        Some((high, low)) => {
            Some(u32::from(high.parse::<u16>().ok()?) << 16 | u32::from(low.parse::<u16>().ok()?))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;

    fn read(pairs: &[(&str, &str)]) -> NodeData {
        let mut node = NodeData::default();
        for (path, text) in pairs {
            let key = V1Key::parse(&Key::from_stored(*path)).unwrap();
            node.read(&key, text.as_bytes()).unwrap();
        }
        node
    }

    #[test]
    fn a_node_is_put_together_from_its_keys() {
        let spec = read(&[
            ("/calico/bgp/v1/host/n1/ip_addr_v4", "10.0.0.7"),
            ("/calico/bgp/v1/host/n1/network_v4", "10.0.0.0/24"),
            ("/calico/bgp/v1/host/n1/ip_addr_v6", ""),
            ("/calico/bgp/v1/host/n1/as_num", "1.2"),
            ("/calico/v1/host/n1/bird_ip", "10.0.0.8"),
            ("/calico/v1/host/n1/config/IpInIpTunnelAddr", "10.1.0.9"),
            ("/calico/v1/host/n1/metadata", "{}"),
        ])
        .to_v3();
        let bgp = spec.bgp.unwrap();
        assert_eq!(bgp.ipv4_address, Some("10.0.0.7/24".parse().unwrap()));
        assert_eq!((bgp.ipv6_address, bgp.ipv4_ipip_tunnel_addr), (None, Some("10.1.0.9".parse().unwrap())));
        assert_eq!(bgp.extra["asNumber"], 65_538);
    }

    #[test]
    fn an_address_without_a_network_stands_alone() {
        let spec = read(&[("/calico/v1/host/n1/bird_ip", "10.0.0.8")]).to_v3();
        assert_eq!(spec.bgp.unwrap().ipv4_address, Some("10.0.0.8/32".parse().unwrap()));
    }

    #[test]
    fn rubbish_is_named() {
        let key = V1Key::parse(&Key::from_stored("/calico/v1/host/n1/bird_ip")).unwrap();
        let error = NodeData::default().read(&key, b"not an address").unwrap_err();
        assert!(error.to_string().contains("not an address"));
    }
}
