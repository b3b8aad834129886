//! Node (calico-ipam.md section 1.8, K9; calico-cni.md section 4.6).

use std::time::SystemTime;

use russet_addr::Family;
use russet_model::time::parse_rfc3339;
use russet_model::{Node, NodeSpec, probe_annotation};
use serde_json::Value;

use super::fields::Field;
use super::fields::Shape::{List, Object, Text, TextOrNumber};
use super::{AgentState, Definition, Problems, TableContext};
use crate::output;

/// Members that only the node's own programs know; a file that omits them must not erase them:
/// without its tunnel address a node gets no packets from its peers.
const KEPT: [&str; 3] = ["wireguard", "orchRefs", "interfaces"];

impl Definition for NodeSpec {
    const WORDS: &'static [&'static str] = &["no", "nos"];
    const FIELDS: &'static [Field] = &[
        Field(
            "bgp",
            Object(&[
                Field("asNumber", TextOrNumber),
                Field("ipv4Address", Text),
                Field("ipv6Address", Text),
                Field("ipv4IPIPTunnelAddr", Text),
                Field("routeReflectorClusterID", Text),
            ]),
        ),
        Field("ipv4VXLANTunnelAddr", Text),
        Field("vxlanTunnelMACAddr", Text),
        Field("ipv6VXLANTunnelAddr", Text),
        Field("vxlanTunnelMACAddrV6", Text),
        Field("orchRefs", List(&Object(&[Field("nodeName", Text), Field("orchestrator", Text)]))),
        Field(
            "wireguard",
            Object(&[Field("interfaceIPv4Address", Text), Field("interfaceIPv6Address", Text)]),
        ),
        Field("addresses", List(&Object(&[Field("address", Text), Field("type", Text)]))),
        Field("interfaces", List(&Object(&[Field("name", Text), Field("addresses", List(&Text))]))),
    ];
    const STATUS: &'static [Field] = &[
        Field("wireguardPublicKey", Text),
        Field("wireguardPublicKeyV6", Text),
        Field("podCIDRs", List(&Text)),
    ];

    fn heading(wide: bool) -> &'static [&'static str] {
        match wide {
            true => &["NAME", "READY", "ADDRESSES", "AGE", "ASN", "IPV4", "IPV6", "VXLANV4", "VXLANV6"],
            false => &["NAME", "READY", "ADDRESSES", "AGE"],
        }
    }

    fn row(node: &Node, wide: bool, seen: &TableContext) -> Vec<String> {
        let name = node.metadata.name.clone();
        let mut row = vec![name, ready(node, seen).to_owned(), addresses(node), age(node, seen.now)];
        if wide {
            let number = node.spec.bgp.as_ref().and_then(|bgp| bgp.extra.get("asNumber"));
            row.push(
                number
                    .map(|number| number.as_str().map_or(number.to_string(), str::to_owned))
                    .unwrap_or_default(),
            );
            row.extend(Family::BOTH.map(|family| text(node.spec.address(family))));
            row.extend(Family::BOTH.map(|family| text(node.spec.vxlan_tunnel(family))));
        }
        row
    }

    fn check(node: &mut Node, problems: &mut Problems) {
        let Some(bgp) = &node.spec.bgp else { return };
        problems.unless(
            *bgp != russet_model::NodeBgp::default(),
            "spec.bgp",
            "it should not be empty; leave it out",
        );
        if let Some(number) = bgp.extra.get("asNumber") {
            problems.unless(is_as_number(number), "spec.bgp.asNumber", "1 to 4294967295 is wanted, or 1.10");
        }
        if let Some(id) = bgp.extra.get("routeReflectorClusterID").and_then(Value::as_str) {
            let good = id.parse::<std::net::Ipv4Addr>().is_ok();
            problems.unless(good, "spec.bgp.routeReflectorClusterID", "an IPv4 address is wanted");
        }
    }

    fn check_change(old: &Node, new: &mut Node, _problems: &mut Problems) {
        let (before, after) = (&old.spec, &mut new.spec);
        after.ipv4_vxlan_tunnel_addr = after.ipv4_vxlan_tunnel_addr.or(before.ipv4_vxlan_tunnel_addr);
        after.ipv6_vxlan_tunnel_addr = after.ipv6_vxlan_tunnel_addr.or(before.ipv6_vxlan_tunnel_addr);
        after.vxlan_tunnel_mac_addr = after.vxlan_tunnel_mac_addr.or(before.vxlan_tunnel_mac_addr);
        after.vxlan_tunnel_mac_addr_v6 = after.vxlan_tunnel_mac_addr_v6.or(before.vxlan_tunnel_mac_addr_v6);
        if let (Some(before), Some(after)) = (&before.bgp, &mut after.bgp) {
            after.ipv4_ipip_tunnel_addr = after.ipv4_ipip_tunnel_addr.or(before.ipv4_ipip_tunnel_addr);
        }
        for name in Family::BOTH.map(probe_annotation) {
            if let (Some(address), None) =
                (old.metadata.annotations.get(name), new.metadata.annotations.get(name))
            {
                new.metadata.annotations.insert(name.to_owned(), address.clone());
            }
        }
        let (before, after) = (&old.spec, &mut new.spec);
        for name in KEPT {
            if let (Some(value), None) = (before.extra.get(name), after.extra.get(name)) {
                after.extra.insert(name.to_owned(), value.clone());
            }
        }
    }
}

/// An agent's state is known on its own node only; the datastore has no state of other nodes'
/// agents.
fn ready(node: &Node, seen: &TableContext) -> &'static str {
    match &seen.this_node {
        Some((name, state)) if *name == node.metadata.name => match state {
            AgentState::Ready => "yes",
            AgentState::NotReady => "no",
            AgentState::NotRunning => "no agent",
        },
        _ => "unknown",
    }
}

/// The addresses by which other nodes reach it, without prefix lengths.
fn addresses(node: &Node) -> String {
    let known = Family::BOTH.into_iter().filter_map(|family| node.spec.address(family));
    let texts: Vec<String> =
        known.map(|address| address.to_string().split('/').next().unwrap_or_default().to_owned()).collect();
    if texts.is_empty() { "-".to_owned() } else { texts.join(",") }
}

fn age(node: &Node, now: SystemTime) -> String {
    let created = node.metadata.creation_timestamp.as_deref().and_then(parse_rfc3339);
    created.map_or_else(|| "-".to_owned(), |at| output::age(now.duration_since(at).unwrap_or_default()))
}

fn text(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Whether it is a number of 32 bits, plain or as two halves of 16 bits.
fn is_as_number(value: &Value) -> bool {
    let text = match value {
        Value::Number(number) => {
            return number.as_u64().is_some_and(|number| (1..=u64::from(u32::MAX)).contains(&number));
        }
        Value::String(text) => text,
        _ => return false,
    };
    match text.split_once('.') {
        None => text.parse::<u32>().is_ok_and(|number| number > 0),
        Some((high, low)) => high.parse::<u16>().is_ok() && low.parse::<u16>().is_ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(spec: Value) -> Node {
        Node::decode(
            json!({ "kind": "Node", "metadata": { "name": "n" }, "spec": spec }).to_string().as_bytes(),
        )
        .unwrap()
    }

    #[test]
    fn members_that_a_node_sets_survive_a_file_without_them() {
        let old = node(json!({
            "bgp": { "ipv4Address": "10.0.0.1/24", "ipv4IPIPTunnelAddr": "10.1.0.9" }, "ipv4VXLANTunnelAddr": "10.1.0.1",
            "vxlanTunnelMACAddr": "66:93:7f:54:d5:53", "orchRefs": [{ "nodeName": "n", "orchestrator": "k8s" }]
        }));
        let mut new = node(
            json!({ "bgp": { "ipv4Address": "10.0.0.2/24", "asNumber": 64512 }, "ipv4VXLANTunnelAddr": "10.1.0.2" }),
        );
        NodeSpec::check_change(&old, &mut new, &mut Problems::default());
        assert_eq!(
            new.to_value()["spec"],
            json!({ "bgp": { "ipv4Address": "10.0.0.2/24", "ipv4IPIPTunnelAddr": "10.1.0.9", "asNumber": 64512 },
                "ipv4VXLANTunnelAddr": "10.1.0.2", "vxlanTunnelMACAddr": "66:93:7f:54:d5:53",
                "orchRefs": [{ "nodeName": "n", "orchestrator": "k8s" }] })
        );
        assert_eq!(
            NodeSpec::row(&new, true, &TableContext::elsewhere()),
            ["n", "unknown", "10.0.0.2", "-", "64512", "10.0.0.2/24", "", "10.1.0.2", ""]
        );
    }

    #[test]
    fn a_nodes_addresses_for_probes_survive_a_file_without_annotations() {
        let (mut old, mut new) = (node(json!({})), node(json!({})));
        let address = "10.1.0.9".parse().unwrap();
        old.set_probe_address(Family::V4, Some(address));
        old.metadata.annotations.insert("other".to_owned(), "gone".to_owned());
        NodeSpec::check_change(&old, &mut new, &mut Problems::default());
        assert_eq!(new.probe_address(Family::V4), Some(address));
        assert_eq!(new.metadata.annotations.len(), 1);
    }

    #[test]
    fn a_node_is_listed_with_readiness_addresses_and_age() {
        let mut one = node(json!({ "bgp": { "ipv4Address": "10.0.0.2/24", "ipv6Address": "fd00::2/64" } }));
        one.metadata.creation_timestamp = Some("2026-11-21T09:00:00Z".to_owned());
        let now = parse_rfc3339("2026-11-23T12:00:00Z").unwrap();
        for (state, text) in
            [(AgentState::Ready, "yes"), (AgentState::NotReady, "no"), (AgentState::NotRunning, "no agent")]
        {
            let here = TableContext { now, this_node: Some(("n".to_owned(), state)) };
            assert_eq!(NodeSpec::row(&one, false, &here), ["n", text, "10.0.0.2,fd00::2", "2d3h"]);
        }
        let other = TableContext { now, this_node: Some(("m".to_owned(), AgentState::Ready)) };
        assert_eq!(NodeSpec::row(&one, false, &other)[1], "unknown");
    }

    #[test]
    fn an_empty_bgp_and_invalid_as_numbers_are_refused() {
        let problems = |bgp: Value| {
            let mut problems = Problems::default();
            NodeSpec::check(&mut node(json!({ "bgp": bgp })), &mut problems);
            problems.to_string()
        };
        assert!(problems(json!({})).contains("spec.bgp"));
        for number in [json!(0), json!(4_294_967_296_u64), json!("70000.1"), json!("x"), json!(true)] {
            assert!(problems(json!({ "asNumber": number })).contains("asNumber"), "{number}");
        }
        assert_eq!(problems(json!({ "asNumber": "1.10", "routeReflectorClusterID": "1.1.1.1" })), "");
        assert!(problems(json!({ "routeReflectorClusterID": "one" })).contains("routeReflectorClusterID"));
    }
}
