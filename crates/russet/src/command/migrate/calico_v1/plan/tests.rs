//! Plans for small clusters.

use russet_store::Revision;

use super::*;

const BLOCK: &str = r#"{"cidr":"10.1.0.0/26","affinity":null,"hostAffinity":"n1","strictAffinity":false,"allocations":[ALLOCATIONS],"unallocated":[FREE],"attributes":[{"handle_id":"net.f00d","secondary":{}}]}"#;
const ENDPOINT: &str = r#"{"state":"active","name":"calif00d","active_instance_id":"f00d","mac":null,"profile_ids":["k8s_ns.shop"],"ipv4_nets":["10.1.0.0/32"],"ipv6_nets":[]}"#;

fn block() -> String {
    let allocations: Vec<&str> = (0..64).map(|n| if n == 0 { "0" } else { "null" }).collect();
    let free: Vec<String> = (1..64).map(|n| n.to_string()).collect();
    BLOCK.replace("ALLOCATIONS", &allocations.join(",")).replace("FREE", &free.join(","))
}

fn plan(pairs: &[(&str, &str)]) -> Plan {
    let record = |(key, value): &(&str, &str)| Record {
        key: Key::from_stored(*key),
        value: value.as_bytes().to_vec(),
        revision: Revision(1),
    };
    Plan::from_records(&pairs.iter().map(record).collect::<Vec<_>>())
}

fn reasons(plan: &Plan) -> Vec<String> {
    plan.problems.iter().map(|problem| format!("{}: {}", problem.key, problem.reason)).collect()
}

#[test]
fn every_record_is_planned_and_pools_come_last() {
    let block = block();
    let plan = plan(&[
        ("/calico/v1/ipam/v4/pool/10.1.0.0-24", r#"{"cidr":"10.1.0.0/24","ipam":true}"#),
        ("/calico/v1/Ready", "true"),
        ("/calico/ipam/v2/assignment/ipv4/block/10.1.0.0-26", &block),
        ("/calico/ipam/v2/host/n1/ipv4/block/10.1.0.0-26", ""),
        ("/calico/ipam/v2/host/n2/ipv4/block/10.1.0.0-26", "{}"),
        ("/calico/ipam/v2/handle/net.f00d", r#"{"block":{"10.1.0.0/26":1}}"#),
        ("/calico/ipam/v2/config", r#"{"auto_allocate_blocks":true}"#),
        ("/calico/v1/host/n1/workload/k8s/shop.web-0/endpoint/eth0", ENDPOINT),
        ("/calico/v1/policy/profile/k8s_ns.shop/tags", r#"["k8s_ns.shop"]"#),
        ("/calico/v1/policy/profile/k8s_ns.shop/rules", r#"{"inbound_rules":[{"action":"allow"}]}"#),
        ("/calico/bgp/v1/host/n1/ip_addr_v4", "10.0.0.7"),
        ("/calico/v1/host/n1/metadata", "{}"),
        ("/calico/v1/policy/tier/default/policy/p", "{}"),
        ("/calico/v1/config/LogSeverityScreen", "info"),
    ]);
    assert_eq!(reasons(&plan), [""; 0]);
    let keys: Vec<&str> = plan.writes.iter().map(|planned| planned.key.as_str()).collect();
    let v3 = "/calico/resources/v3/projectcalico.org";
    assert_eq!(
        keys,
        [
            "/calico/ipam/v2/assignment/ipv4/block/10.1.0.0-26",
            "/calico/ipam/v2/handle/net.f00d",
            "/calico/ipam/v2/host/n1/ipv4/block/10.1.0.0-26",
            "/calico/ipam/v2/config",
            &format!("{v3}/nodes/n1"),
            &format!("{v3}/profiles/kns.shop"),
            &format!("{v3}/workloadendpoints/shop/n1-k8s-web--0-eth0"),
            &format!("{v3}/ippools/10-1-0-0-24"),
            &format!("{v3}/clusterinformations/default"),
        ]
    );
    assert_eq!(plan.writes[2].value, br#"{"state":"confirmed","deleted":false}"#);
    let left: Vec<_> = plan.left.iter().map(|(what, count)| (what.as_str(), *count)).collect();
    assert_eq!(
        left,
        [("/calico/v1/config", 1), (POLICIES_LEFT, 1), ("affinities that their block does not confirm", 1)]
    );
}

#[test]
fn invalid_and_colliding_names_are_each_reported() {
    let plan = plan(&[
        ("/calico/v1/policy/profile/k8s_ns.shop/tags", "[]"),
        ("/calico/v1/policy/profile/kns.shop/tags", "[]"),
        ("/calico/v1/policy/profile/My_Net/tags", "[]"),
        ("/calico/v1/host/Node_1/metadata", "{}"),
        ("/calico/v1/host/n1/workload/k8s/nowhere/endpoint/eth0", ENDPOINT),
        ("/calico/v1/ipam/v4/pool/10.1.0.0-16", r#"{"cidr":"10.1.0.0/16"}"#),
        ("/calico/v1/ipam/v4/pool/10.1.2.0-24", r#"{"cidr":"10.1.2.0/24"}"#),
    ]);
    let reasons = reasons(&plan);
    assert_eq!(reasons.len(), 6, "{reasons:#?}");
    for (part, count) in [("kns.shop", 2), ("My_Net", 1), ("Node_1", 1), ("nowhere", 1), ("overlaps", 1)] {
        let found = reasons.iter().filter(|reason| reason.contains(part)).count();
        assert_eq!(found, count, "{part}: {reasons:#?}");
    }
}

#[test]
fn unreadable_records_are_reported() {
    let plan = plan(&[
        ("/calico/ipam/v2/assignment/ipv4/block/10.1.0.0-26", "{"),
        ("/calico/ipam/v2/assignment/ipv4/block/10.1.0.64-26", &block()),
        ("/calico/ipam/v2/handle/net.f00d", r#"{"block":[]}"#),
        ("/calico/v1/host/n1/bird_ip", "nowhere"),
        ("/calico/v1/ipam/v4/pool/10.1.0.0-24", r#"{"cidr":"10.2.0.0/24"}"#),
        ("/calico/v1/policy/profile/p/rules", r#"{"inbound_rules":[{"action":"allow","future":1}]}"#),
    ]);
    assert_eq!(reasons(&plan).len(), 6, "{:#?}", reasons(&plan));
}

const NEWER: &str = r#"{"state":"active","name":"calif00d","active_instance_id":"c2","mac":null,"profile_ids":[],"ipv4_nets":["10.1.0.0/32"],"ipv6_nets":[]}"#;
const AT: &str = "/calico/v1/host/n1/workload/k8s/shop.web-0/endpoint/eth0";

/// A plan for the address 10.1.0.0, held under `handle` with attributes and named by the newer
/// container's endpoint.
fn reused(handle: &str, secondary: &str, more: &[(&str, &str)]) -> Plan {
    let block = block().replace("net.f00d", handle).replace(r#""secondary":{}"#, secondary);
    let at = format!("/calico/ipam/v2/handle/{handle}");
    let mut pairs = vec![
        ("/calico/ipam/v2/assignment/ipv4/block/10.1.0.0-26", block.as_str()),
        (at.as_str(), r#"{"block":{"10.1.0.0/26":1}}"#),
        (AT, NEWER),
    ];
    pairs.extend(more);
    plan(&pairs)
}

fn owner(plan: &Plan) -> russet_model::Attribute {
    let block = plan.writes.iter().find(|planned| planned.kind == Kind::Block).unwrap();
    Block::decode(&block.value).unwrap().attribute(0).unwrap().clone()
}

#[test]
fn a_reused_address_moves_from_the_old_sandbox_to_the_new_one() {
    // calico-cni.md oracle 56: v1 reuses the endpoint's address; in v3 a late DEL of c1 would free what is held under its handle
    let plan = reused("net.c1", r#""secondary":{"timestamp":"t"}"#, &[]);
    assert_eq!(reasons(&plan), [""; 0]);
    let owner = owner(&plan);
    assert_eq!(owner.handle_id.as_deref(), Some("net.c2"));
    assert_eq!(
        [owner.get("namespace"), owner.get("pod"), owner.get("timestamp")],
        ["shop", "web-0", "t"].map(Some)
    );
    let handles: Vec<_> = plan.writes.iter().filter(|planned| planned.kind == Kind::Handle).collect();
    assert_eq!(handles.len(), 1, "the old one held nothing else");
    assert_eq!(handles[0].key.as_str(), "/calico/ipam/v2/handle/net.c2");
    assert_eq!(handles[0].value, br#"{"block":{"10.1.0.0/26":1},"deleted":false}"#);
}

#[test]
fn an_address_under_the_pods_own_name_keeps_it_and_names_the_pod() {
    let plan = reused("shop.web-0", r#""secondary":{}"#, &[]);
    assert_eq!(reasons(&plan), [""; 0]);
    let owner = owner(&plan);
    assert_eq!(owner.handle_id.as_deref(), Some("shop.web-0"));
    assert_eq!([owner.get("namespace"), owner.get("pod")], ["shop", "web-0"].map(Some));
}

#[test]
fn an_address_with_an_ambiguous_user_is_a_problem() {
    let other = "/calico/v1/host/n2/workload/k8s/shop.web-1/endpoint/eth0";
    for (plan, said) in [
        (reused("net.c1", r#""secondary":{}"#, &[(other, NEWER)]), "remove those left over"),
        (reused("net.c1", r#""secondary":{"namespace":"shop","pod":"web-9"}"#, &[]), "shop/web-9"),
        (reused("lone", r#""secondary":{}"#, &[]), "no container's handle"),
    ] {
        let reasons = reasons(&plan);
        assert!(reasons.iter().any(|reason| reason.contains(said)), "{said}: {reasons:#?}");
    }
    // If two endpoints name it, the one that holds it is its user.
    let plan = reused("net.c2", r#""secondary":{}"#, &[(other, ENDPOINT)]);
    assert_eq!(reasons(&plan), [""; 0]);
}
