//! What a check reads from a store, and which records prevent a result.

use super::*;
use russet_store::{Sim, Step};

fn store(records: &[(&str, &str)]) -> Sim {
    let sim = Sim::atomic(1);
    let steps = records.iter().map(|(key, value)| {
        let key = Key::from_stored(*key);
        Step::create(key, value.as_bytes().to_vec())
    });
    block_on(sim.commit(steps.collect())).unwrap();
    sim
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

const BLOCK: &str = "/calico/ipam/v2/assignment/ipv4/block/10.1.0.16-29";
const TV4: &str = r#"{"cidr":"10.1.0.16/29","affinity":"host:node-a","allocations":[0,1,1,2,null,null,null,null],"unallocated":[4,5,6,7],"attributes":[{"handle_id":"net.aaaa","secondary":{"namespace":"default","node":"node-a","pod":"web-0"}},{"handle_id":"net.bbbb","secondary":{"namespace":"default","node":"node-b","pod":"job-1"}},{"handle_id":"vxlan-tunnel-addr-node-a","secondary":{"node":"node-a","type":"vxlanTunnelAddress"}}],"sequenceNumber":1767322800000000003,"sequenceNumberForAllocation":{"0":1767322800000000000,"1":1767322800000000001,"2":1767322800000000001,"3":1767322800000000002},"deleted":false}"#;
const CLAIM: &str = "/calico/ipam/v2/host/node-a/ipv4/block/10.1.0.16-29";

fn handle(name: &str) -> String {
    format!("/calico/ipam/v2/handle/{name}")
}

fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

#[test]
fn a_node_reads_its_own_entries_in_its_own_blocks() {
    let sim = store(&[(BLOCK, TV4), (CLAIM, "{}")]);
    let allocations = block_on(own(&sim, &name("node-a"))).unwrap();
    let shown: Vec<_> =
        allocations.entries.iter().map(|it| (it.address.to_string(), it.sequence_number)).collect();
    assert_eq!(
        shown,
        [
            ("10.1.0.16".to_owned(), 1_767_322_800_000_000_000),
            ("10.1.0.19".to_owned(), 1_767_322_800_000_000_002)
        ]
    );
    // Another node's entries in its block are not its own to check, and its entries in other blocks
    // are found by a node that reads all of them.
    assert!(block_on(own(&sim, &name("node-b"))).unwrap().entries.is_empty());
    assert_eq!(block_on(all(&sim, Wanted::Of(&name("node-b")))).unwrap().entries.len(), 2);
    let known = BTreeSet::from(["node-a".to_owned()]);
    assert_eq!(block_on(all(&sim, Wanted::NotOf(&known))).unwrap().entries.len(), 2);
}

#[test]
fn a_quiet_node_costs_the_store_two_listings_of_keys_and_its_blocks() {
    let sim = store(&[(BLOCK, TV4), (CLAIM, "{}")]);
    let before = sim.operations();
    block_on(own(&sim, &name("node-a"))).unwrap();
    assert_eq!(sim.operations() - before, 3);
}

#[test]
fn handle_counts_without_addresses_are_residues() {
    // calico-ipam.md sections 1.6 and 5.1 (#8548: no release of Calico collects them)
    let sim = store(&[
        (BLOCK, TV4),
        (&BLOCK.replace("0.16", "0.24"), "{"),
        (&handle("net.aaaa"), r#"{"block":{"10.1.0.16/29":1}}"#),
        (&handle("net.bbbb"), r#"{"block":{"10.1.0.16/29":3,"10.1.0.0/29":1}}"#),
        (&handle("net.empty"), r#"{"block":{}}"#),
        (&handle("net.gone"), r#"{"block":{"10.1.0.16/29":1,"10.1.0.8/29":2}}"#),
        (&handle("net.perhaps"), r#"{"block":{"10.1.0.24/29":1}}"#),
        (&handle("net.rubbish"), "{"),
        (&handle("net.unknown"), r#"{"block":{"10.1.0.16-29":1}}"#),
    ]);
    let allocations = block_on(all(&sim, Wanted::Of(&name("node-a")))).unwrap();
    let shown: Vec<_> = allocations
        .residues
        .iter()
        .map(|it| (it.handle.to_string(), it.blocks.join(" "), it.orphan))
        .collect();
    // Too high a count for a block with an address (net.bbbb counts 3 of 2) stays.
    assert_eq!(
        shown,
        [
            ("net.bbbb".to_owned(), "10.1.0.0/29".to_owned(), false),
            ("net.empty".to_owned(), String::new(), true),
            ("net.gone".to_owned(), "10.1.0.16/29 10.1.0.8/29".to_owned(), true),
        ]
    );
}

#[test]
fn an_unreadable_record_that_might_belong_to_a_running_pod_is_an_error() {
    let endpoint = "/calico/resources/v3/projectcalico.org/workloadendpoints/default/node--a-k8s-web--0-eth0";
    let node_key = "/calico/resources/v3/projectcalico.org/nodes/node-a";
    let sim = store(&[(endpoint, "{"), (node_key, "[]")]);
    assert!(matches!(block_on(endpoints(&sim)), Err(AllocationsError::Unreadable { .. })));
    assert!(matches!(block_on(node(&sim, &name("node-a"))), Err(AllocationsError::Unreadable { .. })));
    assert!(matches!(block_on(nodes(&sim)), Err(AllocationsError::Unreadable { .. })));
    assert!(matches!(block_on(node(&sim, &name("node-b"))), Err(AllocationsError::NoNode(_))));
}

#[test]
fn each_hour_one_node_checks_the_handles_in_rotation() {
    let nodes: Vec<NodeName> = (0..10).map(|i| name(&format!("node-{i}"))).collect();
    let mut turns = vec![0; nodes.len()];
    for hour in 0..400 {
        let now: Vec<usize> = (0..10).filter(|i| checks_handles_now(&nodes[*i], &nodes, hour)).collect();
        assert_eq!(now.len(), 1, "hour {hour}");
        turns[now[0]] += 1;
    }
    assert!(turns.iter().all(|turns| *turns > 10), "{turns:?}");
    assert!(!checks_handles_now(&name("node-z"), &nodes, 1), "a node without a record never does");
}
