//! The policies of a namespace that is deleted, with packets meanwhile.

use russet_testkit::Random;
use russet_verdict::table::Delta;
use serde_json::{Value, json};

use super::{Node, policy, selector};
use crate::traffic::in_a_flood_of_denied_packets;
use crate::world::*;

const POLICIES: usize = 1000;
/// Different ports of rules; more would exceed what the engine holds of one pod.
const PORTS: usize = 50;

/// One of many policies for the pod `a`: it lets the other two to some port, which is never the one of the flood.
fn one_of_many(random: &mut Random, number: usize) -> Value {
    let from = ["b", "c"][random.below(2)];
    let rule = json!([{ "from": [{ "podSelector": selector(from) }], "ports": [{ "port": 1000 + random.below(PORTS) }] }]);
    policy(
        &format!("p{number}"),
        json!({ "podSelector": selector("a"), "policyTypes": ["Ingress"], "ingress": rule }),
    )
}

/// A policy for the pod `a` that stays and denies what a flood sends; without others all else is open.
fn baseline() -> Value {
    let peer = json!({ "pods": { "namespaceSelector": {}, "podSelector": selector("c") } });
    let deny = json!([{ "action": "Deny", "from": [peer], "protocols": [{ "udp": { "destinationPort": { "number": 53 } } }] }]);
    json!({ "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": { "name": "stays" },
        "spec": { "tier": "Baseline", "priority": 5, "ingress": deny,
            "subject": { "pods": { "namespaceSelector": {}, "podSelector": selector("a") } } } })
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn nothing_passes_that_is_denied_throughout_while_a_thousand_policies_are_deleted_in_any_order() {
    // policy.md P140
    on_a_node(|| {
        let mut random = Random::new(140);
        let mut node = Node::new();
        node.put(&baseline());
        let mut left: Vec<Value> = (0..POLICIES).map(|number| one_of_many(&mut random, number)).collect();
        left.iter().for_each(|document| node.put(document));
        node.flush();
        let server = listen(Some("a"), "10.9.1.2", 80);
        connect(Some("b"), "10.9.1.2", 80, false);
        let mut flushes = 0;
        let failed = in_a_flood_of_denied_packets(POLICIES, |_| {
            for _ in 0..left.len().min(1 + random.below(40)) {
                let document = left.swap_remove(random.below(left.len()));
                node.remove(&document);
            }
            let delta = node.flush();
            flushes += usize::from(delta != Default::default());
            // The last one has gone, which opens the pod to the others.
            if left.is_empty() { Err(()) } else { Ok(()) }
        });
        assert_eq!(failed, Some(()), "{} policies are left", left.len());
        assert!(flushes > 10, "{flushes}");
        connect(Some("b"), "10.9.1.2", 80, true);
        connect(Some("c"), "10.9.1.2", 80, true);
        drop(server);
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn nothing_passes_that_is_denied_throughout_while_the_last_policy_of_a_pod_comes_and_goes() {
    /// A packet has to be judged in the middle of a commit: without the order of the phases some pass in a few hundred.
    const ROUNDS: usize = 600;
    // policy.md P140
    on_a_node(|| {
        let mut node = Node::new();
        node.put(&baseline());
        node.flush();
        let last = one_of_many(&mut Random::new(1), 0);
        let failed = in_a_flood_of_denied_packets(ROUNDS, |round| {
            if round % 2 == 0 {
                node.put(&last)
            } else {
                node.remove(&last)
            }
            if node.flush() == Delta::default() { Err(round) } else { Ok(()) }
        });
        assert_eq!(failed, None, "a change that changes nothing");
    });
}
