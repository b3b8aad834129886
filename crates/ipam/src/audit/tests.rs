//! Stores with one fault each, mostly the vectors of calico-ipam.md section 8.

use russet_model::{IpPoolSpec, Prefix};
use russet_store::Revision;

use super::*;

/// TV4's block: aaaa has one address, bbbb two, the tunnel one.
const TV4: &str = r#"{"cidr":"10.1.0.16/29","affinity":"host:node-a","allocations":[0,1,1,2,null,null,null,null],"unallocated":[4,5,6,7],"attributes":[{"handle_id":"net.aaaa","secondary":{"namespace":"default","node":"node-a","pod":"web-0"}},{"handle_id":"net.bbbb\r\neth0"},{"handle_id":"vxlan-tunnel-addr-node-a"}],"sequenceNumber":1767322800000000003,"sequenceNumberForAllocation":{"0":1767322800000000000,"1":1767322800000000001,"2":1767322800000000001,"3":1767322800000000002},"deleted":false}"#;
/// The same after bbbb was released.
const TV5: &str = r#"{"cidr":"10.1.0.16/29","affinity":"host:node-a","allocations":[0,null,null,1,null,null,null,null],"unallocated":[4,5,6,7,1,2],"attributes":[{"handle_id":"net.aaaa"},{"handle_id":"vxlan-tunnel-addr-node-a"}],"sequenceNumber":1767322800000000004,"sequenceNumberForAllocation":{"0":1767322800000000000,"3":1767322800000000002},"deleted":false}"#;
const BLOCK: &str = "/calico/ipam/v2/assignment/ipv4/block/10.1.0.16-29";
const CLAIM: &str = "/calico/ipam/v2/host/node-a/ipv4/block/10.1.0.16-29";
const CONFIRMED: &str = r#"{"state":"confirmed","deleted":false}"#;

type Store = BTreeMap<String, String>;

const ENDPOINT: &str =
    "/calico/resources/v3/projectcalico.org/workloadendpoints/default/node--a-k8s-web--0-eth0";
const NODE: &str = "/calico/resources/v3/projectcalico.org/nodes/node-a";
/// The record by which every Calico datastore is known.
const INFORMATION: &str = "/calico/resources/v3/projectcalico.org/clusterinformations/default";

fn endpoint(address: &str) -> String {
    format!(
        r#"{{"kind":"WorkloadEndpoint","metadata":{{"name":"node--a-k8s-web--0-eth0","namespace":"default"}},"spec":{{"node":"node-a","ipNetworks":["{address}/32"]}}}}"#
    )
}

fn node(tunnel: &str) -> String {
    format!(r#"{{"kind":"Node","metadata":{{"name":"node-a"}},"spec":{{"ipv4VXLANTunnelAddr":"{tunnel}"}}}}"#)
}

fn handle(name: &str) -> String {
    format!("/calico/ipam/v2/handle/{name}")
}

fn counts(count: u64) -> String {
    format!(r#"{{"block":{{"10.1.0.16/29":{count}}},"deleted":false}}"#)
}

/// A store without a fault: pool, block, claim and handles of TV4.
fn good() -> Store {
    let pool = IpPool::new("p", IpPoolSpec::new("10.1.0.0/24".parse().unwrap())).encode();
    let pool_key = Key::pool("p").unwrap().as_str().to_owned();
    Store::from([
        (pool_key, String::from_utf8(pool).unwrap()),
        (BLOCK.into(), TV4.into()),
        (CLAIM.into(), CONFIRMED.into()),
        (handle("net.aaaa"), counts(1)),
        (handle("net.bbbb"), counts(2)),
        (handle("vxlan-tunnel-addr-node-a"), counts(1)),
    ])
}

fn run(store: &Store) -> Audit {
    let record = |(key, value): (&String, &String)| Record {
        key: Key::from_stored(key.as_str()),
        value: value.clone().into_bytes(),
        revision: Revision(7),
    };
    audit(&store.iter().map(record).collect::<Vec<_>>())
}

/// What is found in a good store after a change.
fn found(change: impl FnOnce(&mut Store)) -> Vec<String> {
    let mut store = good();
    change(&mut store);
    run(&store).findings.iter().map(|finding| format!("{}: {finding}", finding.kind())).collect()
}

#[test]
fn a_correct_store_is_counted_and_has_no_findings() {
    let audit = run(&good());
    assert_eq!((audit.blocks, audit.allocations, audit.handles, audit.affinities), (1, 4, 3, 1));
    assert_eq!(audit.findings, []);
}

#[test]
fn tv8_the_orphan_handle_of_a_3_32_peer_is_leaked() {
    // calico-ipam.md TV8: bbbb is gone from the block, its handle still counts one
    let mut store = good();
    store.insert(BLOCK.into(), TV5.into());
    store.insert(handle("net.bbbb"), counts(1));
    let findings = run(&store).findings;
    let handle = "net.bbbb".parse().unwrap();
    assert_eq!(findings, [Finding::HandleLeaked { handle, revision: 7 }]);
    assert!(findings[0].is_leak());
}

#[test]
fn tv22_too_high_a_count_is_found_and_is_no_leak() {
    // calico-ipam.md TV22: truth is 2, the handle says 3
    let mut store = good();
    store.insert(handle("net.bbbb"), counts(3));
    let findings = run(&store).findings;
    let handle = "net.bbbb".parse().unwrap();
    assert_eq!(
        findings,
        [Finding::HandleCount { handle, block: "10.1.0.16/29".into(), counted: 3, held: 2 }]
    );
    assert!(!findings[0].is_leak());
}

#[test]
fn an_empty_handle_is_leaked_and_too_low_a_count_is_reported() {
    assert_eq!(
        found(|store| _ = store.insert(handle("net.x"), r#"{"block":{}}"#.into())),
        ["handle-leaked: handle net.x holds no address; leaked"]
    );
    assert_eq!(
        found(|store| _ = store.insert(handle("net.bbbb"), counts(1))),
        ["handle-count: handle net.bbbb counts 1 of 10.1.0.16/29, which holds 2"]
    );
}

#[test]
fn an_address_without_a_handle_record_is_leaked_unless_a_record_names_it() {
    // calico-ipam.md section 3.9: "A missing handle with a live allocation makes DEL a silent no-op"
    let text = "handle-missing: 10.1.0.16: its handle has no record (handle net.aaaa, pod default/web-0, node node-a)";
    let gone = |store: &mut Store| _ = store.remove(&handle("net.aaaa"));
    assert_eq!(found(gone), [format!("{text}; leaked: no record names it")]);
    let mut named = found(|store| {
        gone(store);
        store.insert(ENDPOINT.into(), endpoint("10.1.0.16"));
    });
    named.retain(|finding| finding.starts_with("handle-missing"));
    assert_eq!(named, [text]);
    // What cannot be read might name it.
    let blind = found(|store| {
        gone(store);
        store.insert(ENDPOINT.into(), "{".into());
    });
    assert!(blind[0].starts_with("unreadable: ") && blind[1] == text, "{blind:?}");
}

#[test]
fn allocations_that_no_endpoint_names_are_found_where_pods_have_endpoints() {
    // calico-ipam.md section 5.2: allocated but unused
    let missing = |store: &Store| -> Vec<String> {
        let findings = run(store).findings;
        assert!(findings.iter().all(|it| !it.is_leak() && it.can_be_released()), "{findings:?}");
        findings.iter().map(ToString::to_string).collect()
    };
    let bbbb =
        |address: &str| format!("{address}: no endpoint's or node's record names it (handle net.bbbb)");
    let mut store = good();
    store.insert(NODE.into(), node("10.1.0.19"));
    // One endpoint is there, the other one's two addresses are left over.
    store.insert(ENDPOINT.into(), endpoint("10.1.0.16"));
    assert_eq!(missing(&store), [bbbb("10.1.0.17"), bbbb("10.1.0.18")]);
    // The last endpoint of a Calico datastore has gone.
    store.remove(ENDPOINT);
    store.insert(INFORMATION.into(), "{}".into());
    assert_eq!(missing(&store).len(), 3);
    // Services' addresses are in records that are not read here.
    store
        .insert(BLOCK.into(), TV4.replace(r#""net.bbbb\r\neth0""#, r#""net.bbbb","secondary":{"type":"x"}"#));
    assert_eq!((missing(&store).len(), run(&store).not_compared), (1, 2));
    // Where no pod has an endpoint nothing can be said, and that is said.
    store.remove(INFORMATION);
    assert_eq!((missing(&store).len(), run(&store).endpoints, run(&store).not_compared), (0, 0, 3));
}

#[test]
fn an_endpoint_whose_address_is_not_allocated_is_found_in_enabled_pools() {
    // calico-ipam.md section 5.2: in use but unallocated
    let unallocated = |findings: Vec<String>| -> Vec<String> {
        findings.into_iter().filter(|finding| finding.starts_with("allocation-missing")).collect()
    };
    let free = |store: &mut Store| {
        store.insert(ENDPOINT.into(), endpoint("10.1.0.22"));
        store.insert(NODE.into(), node("10.1.0.23"));
    };
    let text =
        |address: &str, by: &str| format!("allocation-missing: {address} is not allocated, but {by} has it");
    assert_eq!(unallocated(found(free)), [text("10.1.0.23", NODE), text("10.1.0.22", ENDPOINT)]);
    // A block that cannot be read may have it.
    let unread = found(|store| {
        free(store);
        store.insert(BLOCK.into(), "{".into());
    });
    assert_eq!(unallocated(unread), [""; 0]);
    let elsewhere = found(|store| _ = store.insert(ENDPOINT.into(), endpoint("192.168.7.7")));
    assert_eq!(unallocated(elsewhere), [""; 0]);
}

#[test]
fn overlapping_blocks_and_the_addresses_that_both_gave_away_are_found() {
    let inner = r#"{"cidr":"10.1.0.18/31","affinity":null,"allocations":[0,null],"unallocated":[1],"attributes":[{"handle_id":"net.cccc"}],"sequenceNumber":1,"sequenceNumberForAllocation":{"0":1},"deleted":false}"#;
    let findings = found(|store| {
        store.insert("/calico/ipam/v2/assignment/ipv4/block/10.1.0.18-31".into(), inner.into());
        store.insert(handle("net.cccc"), r#"{"block":{"10.1.0.18/31":1}}"#.into());
    });
    assert_eq!(
        findings,
        [
            "overlap: block 10.1.0.18/31 lies in block 10.1.0.16/29",
            "double-owner: 10.1.0.18 has 2 owners: net.bbbb in 10.1.0.16/29; net.cccc in 10.1.0.18/31;"
        ]
    );
}

#[test]
fn affinities_and_blocks_that_disagree_are_found() {
    // calico-ipam.md TV20, TV21
    let other = CLAIM.replace("node-a", "node-b");
    assert_eq!(
        found(|store| _ = store.insert(other.clone(), CONFIRMED.into())),
        ["affinity-foreign: host:node-b claims 10.1.0.16/29, which serves host:node-a"]
    );
    // A pending affinity is correct (TV19).
    assert_eq!(found(|store| _ = store.insert(other, r#"{"state":"pending"}"#.into())), [""; 0]);
    assert_eq!(
        found(|store| _ = store.insert(CLAIM.replace("0.16", "0.24"), CONFIRMED.into())),
        ["block-missing: host:node-a claims 10.1.0.24/29, which does not exist"]
    );
    assert_eq!(
        found(|store| _ = store.remove(CLAIM)),
        ["affinity-missing: block 10.1.0.16/29 serves host:node-a, who has no affinity to it"]
    );
}

#[test]
fn addresses_of_a_deleted_pool_are_outside() {
    let findings = found(|store| store.retain(|key, _| !key.starts_with(Prefix::pools().as_str())));
    assert_eq!(findings, ["outside-pools: block 10.1.0.16/29: no pool holds its 4 addresses in use"]);
}

#[test]
fn a_block_with_a_broken_invariant_is_reported_without_its_handles() {
    // calico-ipam.md section 1.3, invariant 4
    let findings = found(|store| _ = store.insert(BLOCK.into(), TV4.replace("[4,5,6,7]", "[4,4,6,7]")));
    assert_eq!(findings, [format!("unreadable: {BLOCK}: block at unallocated: ordinal 4 is listed twice")]);
    let elsewhere = found(|store| _ = store.insert(BLOCK.replace("16-29", "24-29"), TV4.into()));
    assert!(elsewhere[0].ends_with("block 10.1.0.16/29 is stored there"), "{elsewhere:?}");
}

#[test]
fn findings_keep_numbers_above_2_to_the_53_in_json() {
    let mut store = good();
    store.remove(&handle("net.aaaa"));
    store.remove(CLAIM);
    let findings = run(&store).findings;
    let text = serde_json::to_string(&findings).unwrap();
    assert!(text.contains(r#""kind":"handle-missing","address":"10.1.0.16""#), "{text}");
    assert_eq!(serde_json::from_str::<Vec<Finding>>(&text).unwrap(), findings);
}

#[test]
fn an_address_for_probes_is_named_by_its_nodes_annotation() {
    // calico-ipam.md section 5.2; no endpoint and no tunnel names it
    let text = TV4.replace("vxlan-tunnel-addr-node-a", "russet-probe-addr-node-a");
    let record = |address: &str| {
        format!(
            r#"{{"kind":"Node","metadata":{{"name":"node-a","annotations":{{"russet.dev/probe-address-v4":"{address}"}}}},"spec":{{}}}}"#
        )
    };
    let with = |address: &str| {
        found(|store| {
            store.insert(BLOCK.into(), text.clone());
            store.remove(&handle("vxlan-tunnel-addr-node-a"));
            store.insert(handle("russet-probe-addr-node-a"), counts(1));
            store.insert("/calico/resources/v3/projectcalico.org/nodes/node-a".into(), record(address));
        })
    };
    assert_eq!(with("10.1.0.19"), [""; 0]);
    // One that is not allocated is found, as a tunnel's is.
    let missing = with("10.1.0.21");
    assert!(missing.iter().any(|finding| finding.contains("10.1.0.21")), "{missing:?}");
}
