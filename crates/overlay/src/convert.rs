//! Converts the datastore's records to [`Inputs`](crate::Inputs). The agent calls it for each
//! record that its watches bring.

use russet_addr::{BlockCidr, Family, NodeName};
use russet_model as model;

use crate::inputs::{Addresses, Affinity, Borrowed, Encapsulation, Node, Pool};

/// How attribute `type` of a tunnel's address ends: `vxlanTunnelAddress`, `ipipTunnelAddress`, ...
/// (calico-ipam.md section 1.4). Node objects name these addresses, too, and are their source here.
const TUNNEL_TYPE_END: &str = "TunnelAddress";

// === impl Pool ===

impl Pool {
    /// Converts a pool's record. Returns none for a pool that serves neither pods nor tunnels: its
    /// addresses are not exempt from translation (calico-cni.md section 4.8).
    pub fn from_model(pool: &model::IpPoolSpec) -> Option<Self> {
        let serves = pool.allows(model::AddressUse::Workload) || pool.allows(model::AddressUse::Tunnel);
        serves.then(|| Self {
            cidr: pool.cidr,
            encapsulation: Encapsulation::from_modes(pool.vxlan_mode, pool.ipip_mode),
            nat_outgoing: pool.nat_outgoing,
        })
    }
}

// === impl Encapsulation ===

impl Encapsulation {
    fn from_modes(vxlan: model::EncapMode, ipip: model::EncapMode) -> Self {
        match (vxlan, ipip) {
            (model::EncapMode::Always, _) => Encapsulation::Vxlan,
            (model::EncapMode::CrossSubnet, _) => Encapsulation::VxlanCrossSubnet,
            (model::EncapMode::Never, model::EncapMode::Never) => Encapsulation::None,
            (model::EncapMode::Never, _) => Encapsulation::Ipip,
        }
    }
}

// === impl Node ===

impl From<&model::Node> for Node {
    fn from(node: &model::Node) -> Self {
        let spec = &node.spec;
        let of = |family| Addresses {
            underlay: spec.address(family),
            tunnel: spec.vxlan_tunnel(family),
            mac: spec.vxlan_mac(family),
            probe: node.probe_address(family),
        };
        Self { v4: of(Family::V4), v6: of(Family::V6) }
    }
}

// === impl Affinity ===

impl Affinity {
    /// Converts a node's claim of a block, from its key and its record; none when the record is
    /// marked as deleted.
    pub fn from_model(node: &NodeName, block: BlockCidr, claim: &model::Affinity) -> Option<Self> {
        (!claim.deleted).then(|| Self { block, node: node.clone(), state: claim.state })
    }
}

// === impl Borrowed ===

impl Borrowed {
    /// The addresses of `block` whose pods are on another node than the block's, or on any node
    /// when the block has no affinity.
    pub fn of_block(block: &model::Block) -> impl Iterator<Item = Self> + '_ {
        let owner = block.node();
        (0..block.cidr.size()).filter_map(move |ordinal| {
            let attribute = block.attribute(ordinal)?;
            let tunnel = attribute.get("type").is_some_and(|kind| kind.ends_with(TUNNEL_TYPE_END));
            let node = attribute.get("node").and_then(|name| NodeName::new(name).ok())?;
            let away = !tunnel && attribute.released_at.is_none() && owner.as_ref() != Some(&node);
            Some(Self { address: block.cidr.address(ordinal)?, node }).filter(|_| away)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(vxlan: &str, ipip: &str, uses: &str) -> Option<Pool> {
        let text = format!(
            r#"{{"kind":"IPPool","metadata":{{"name":"p"}},"spec":{{"cidr":"10.1.0.0/16","vxlanMode":"{vxlan}","ipipMode":"{ipip}","natOutgoing":true,"allowedUses":[{uses}]}}}}"#
        );
        Pool::from_model(&model::IpPool::decode(text.as_bytes()).unwrap().spec)
    }

    #[test]
    fn modes_become_one_encapsulation() {
        // calico-cni.md section 4.3
        for (vxlan, ipip, expected) in [
            ("Always", "Never", Encapsulation::Vxlan),
            ("CrossSubnet", "Never", Encapsulation::VxlanCrossSubnet),
            ("Never", "Never", Encapsulation::None),
            ("Never", "CrossSubnet", Encapsulation::Ipip),
        ] {
            assert_eq!(pool(vxlan, ipip, "").unwrap().encapsulation, expected);
        }
        assert_eq!(pool("Never", "Never", r#""LoadBalancer""#), None);
        assert!(pool("Never", "Never", r#""LoadBalancer","Tunnel""#).unwrap().nat_outgoing);
    }

    #[test]
    fn a_node_brings_both_families() {
        // calico-cni.md section 4.6
        let text = br#"{"kind":"Node","metadata":{"name":"a","annotations":{"russet.dev/probe-address-v4":"10.1.0.20","russet.dev/probe-address-v6":"10.1.0.21"}},"spec":{"bgp":{"ipv4Address":"10.0.0.7/24","ipv6Address":"fd00::7/64"},"ipv4VXLANTunnelAddr":"10.1.0.19","vxlanTunnelMACAddr":"66:93:7f:54:d5:53","ipv6VXLANTunnelAddr":"fd10::1"}}"#;
        let node = Node::from(&model::Node::decode(text).unwrap());
        assert_eq!(node.v4.underlay, Some("10.0.0.7/24".parse().unwrap()));
        assert_eq!(node.v4.mac, Some("66:93:7f:54:d5:53".parse().unwrap()));
        assert_eq!((node.v6.tunnel, node.v6.mac), (Some("fd10::1".parse().unwrap()), None));
        assert_eq!((node.v4.probe, node.v6.probe), (Some("10.1.0.20".parse().unwrap()), None));
    }

    #[test]
    fn only_pods_away_from_home_are_borrowed() {
        // calico-ipam.md section 1.4; ordinals: at home, away, away's tunnel, cooling down, without node
        let text = br#"{"cidr":"10.1.0.16/29","affinity":"host:node-a","allocations":[0,1,2,3,4,null,null,null],"unallocated":[5,6,7],"attributes":[{"handle_id":"a","secondary":{"node":"node-a"}},{"handle_id":"b","secondary":{"node":"node-b"}},{"handle_id":"c","secondary":{"node":"node-b","type":"vxlanTunnelAddress"}},{"handle_id":"d","secondary":{"node":"node-b"},"releasedAt":"2026-01-01T00:00:00Z"},{"handle_id":"e","secondary":null}],"sequenceNumber":1,"sequenceNumberForAllocation":{},"deleted":false}"#;
        let mut block = model::Block::decode(text).unwrap();
        let found: Vec<_> = Borrowed::of_block(&block).map(|b| format!("{} {}", b.address, b.node)).collect();
        let cooling = block.attributes()[3].released_at.is_some();
        assert!(cooling, "the test's spelling of releasedAt is the model's");
        assert_eq!(found, ["10.1.0.17 node-b"]);
        block.affinity = None;
        assert_eq!(
            Borrowed::of_block(&block).count(),
            2,
            "in a block without affinity every pod counts as borrowed"
        );
    }
}
