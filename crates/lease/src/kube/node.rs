//! The subnets in a node object. Pure.

use ipnet::IpNet;
use russet_kube::Node;
use russet_model::flannel::{NetworkConfig, SubnetKey};

use super::annotations::AnnotationPrefix;
use crate::Lease;

/// The parts of the configuration that matter for reading nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) v4: bool,
    pub(super) v6: bool,
    /// Whether other nodes are not needed.
    pub(super) alone: bool,
}

/// A node has at most one range of each family.
const RANGES_MAX: usize = 2;

// === impl Wanted ===

impl Wanted {
    pub(super) fn of(config: &NetworkConfig) -> Self {
        let kind = config.backend.kind.as_str();
        // Other backends do not support IPv6, whatever is configured (flannel.md section 5.1).
        let dual = matches!(kind, "vxlan" | "wireguard" | "host-gw" | "extension");
        Self { v4: config.enable_ipv4 || !dual, v6: config.enable_ipv6 && dual, alone: kind == "alloc" }
    }
}

/// The subnets assigned to a node, of the wanted families; an error text if they are invalid.
pub(super) fn subnets(node: &Node, wanted: Wanted) -> Result<SubnetKey, String> {
    let ranges = node.pod_cidrs();
    if ranges.len() > RANGES_MAX {
        return Err(format!("it has {} pod CIDRs; one, or one of each family, is wanted", ranges.len()));
    }
    let mut key = SubnetKey::default();
    for text in ranges {
        let range: IpNet = text.parse().map_err(|_| format!("pod CIDR {text:?} is no network"))?;
        match range.trunc() {
            IpNet::V4(net) if wanted.v4 && key.v4.is_none() => key.v4 = Some(net),
            IpNet::V6(net) if wanted.v6 && key.v6.is_none() => key.v6 = Some(net),
            _ => {}
        }
    }
    match key.is_empty() {
        true => Err("pod cidr not assigned".to_owned()),
        false => Ok(key),
    }
}

/// Checks that the subnets are inside of the networks, if these are configured: flannel does not
/// validate the file (flannel.md section 5.2).
pub(super) fn within(key: &SubnetKey, config: &NetworkConfig) -> Result<(), String> {
    let outside =
        |subnet: IpNet, network: IpNet| format!("pod CIDR {subnet} is not within the network {network}");
    if let Some((subnet, network)) = key.v4.zip(config.network)
        && !network.contains(&subnet)
    {
        return Err(outside(subnet.into(), network.into()));
    }
    if let Some((subnet, network)) = key.v6.zip(config.ipv6_network)
        && !network.contains(&subnet)
    {
        return Err(outside(subnet.into(), network.into()));
    }
    Ok(())
}

/// Converts a node to a peer's lease; an error text if that is impossible.
pub(super) fn lease(node: &Node, prefix: &AnnotationPrefix, wanted: Wanted) -> Result<Lease, String> {
    let key = subnets(node, wanted)?;
    let attributes = prefix.attributes(&node.metadata.annotations, key.v4.is_some(), key.v6.is_some())?;
    Ok(Lease { key, attributes: attributes.into(), expires: None })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DUAL: Wanted = Wanted { v4: true, v6: true, alone: false };

    fn of(ranges: &[&str], wanted: Wanted) -> Result<String, String> {
        let node = serde_json::from_value(json!({ "spec": { "podCIDRs": ranges } })).unwrap();
        subnets(&node, wanted).map(|key| key.to_string())
    }

    #[test]
    fn pod_cidrs_of_the_families_that_are_on_are_the_subnets() {
        // flannel.md section 5.2, step 4.
        let v4 = Wanted { v6: false, ..DUAL };
        assert_eq!(of(&["10.1.2.0/24", "fd00:1::/64"], DUAL).unwrap(), "10.1.2.0-24&fd00:1::-64");
        assert_eq!(of(&["fd00:1::/64", "10.1.2.0/24"], v4).unwrap(), "10.1.2.0-24");
        assert_eq!(of(&["10.1.2.7/24"], DUAL).unwrap(), "10.1.2.0-24", "host bits are masked");
        assert_eq!(of(&["fd00:1::/64"], v4).unwrap_err(), "pod cidr not assigned");
        assert_eq!(of(&[], v4).unwrap_err(), "pod cidr not assigned");
        assert!(of(&["10.1.2.0/24", "10.1.3.0/24", "fd00::/64"], DUAL).unwrap_err().contains("3 pod CIDRs"));
        assert!(of(&["10.1.2.0"], DUAL).unwrap_err().contains("is no network"));
        let old = serde_json::from_value(json!({ "spec": { "podCIDR": "10.1.2.0/24" } })).unwrap();
        assert_eq!(subnets(&old, v4).unwrap().to_string(), "10.1.2.0-24");
    }

    #[test]
    fn without_a_configured_network_every_subnet_is_accepted() {
        let config = |text: &str| NetworkConfig::parse(text.as_bytes()).unwrap();
        let key: SubnetKey = "10.1.2.0-24&fd00:1::-64".parse().unwrap();
        assert!(within(&key, &config("{}")).is_ok());
        assert!(within(&key, &config(r#"{"Network":"10.1.0.0/16","IPv6Network":"fd00:1::/48"}"#)).is_ok());
        let error = within(&key, &config(r#"{"Network":"10.2.0.0/16"}"#)).unwrap_err();
        assert_eq!(error, "pod CIDR 10.1.2.0/24 is not within the network 10.2.0.0/16");
        assert!(within(&key, &config(r#"{"IPv6Network":"fd00:2::/48"}"#)).is_err());
    }

    #[test]
    fn only_some_backends_support_ipv6() {
        let wanted = |kind: &str| {
            let text = format!(r#"{{"EnableIPv6":true,"EnableIPv4":false,"Backend":{{"Type":"{kind}"}}}}"#);
            Wanted::of(&NetworkConfig::parse(text.as_bytes()).unwrap())
        };
        assert_eq!(wanted("vxlan"), Wanted { v4: false, v6: true, alone: false });
        assert_eq!(wanted("udp"), Wanted { v4: true, v6: false, alone: false });
        assert_eq!(wanted("alloc"), Wanted { v4: true, v6: false, alone: true });
    }
}
