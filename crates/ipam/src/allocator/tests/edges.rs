//! Small blocks, many reservations, odd names, IPv6, and stores that refuse every write (calico-ipam.md sections 1.2, 3.4 to 3.7, 7).

use std::collections::BTreeSet;

use russet_store::sim::Fault;

use super::vectors::{BLOCK, CONFIRMED, tv1};
use super::*;

const STRICT: &str = r#"{"strict_affinity":true,"auto_allocate_blocks":true}"#;

/// The addresses of `count` pods of a node, one a request; panics where one gets none.
fn fill(bench: &Bench, node_name: &str, count: usize) -> Vec<String> {
    let one =
        |index| bench.assign(&pod(node_name, &format!("{node_name}.{index}"), "p", "03:04:05")).unwrap();
    (0..count).flat_map(one).collect()
}

fn reserve(bench: &Bench, cidrs: &[String]) {
    let value = serde_json::json!({"kind": "IPReservation", "metadata": {"name": "r"}, "spec": {"reservedCIDRs": cidrs}});
    bench.put(Key::reservation("r").unwrap(), value.to_string());
}

fn last_error(bench: &Bench, node_name: &str) -> IpamError {
    let before = bench.sim.records();
    let error = bench.assign(&pod(node_name, "one-too-many", "p", "03:05:00")).unwrap_err();
    let after = bench.sim.records();
    // A lost handle raised and lowered may move revisions, but nothing is left of it.
    let values = |records: &std::collections::BTreeMap<Key, Record>| {
        records.iter().map(|(key, record)| (key.clone(), record.value.clone())).collect::<Vec<_>>()
    };
    assert_eq!(values(&before), values(&after), "a refused request leaves no trace");
    error
}

#[test]
fn a_pool_of_slash_30s_serves_its_256_addresses_and_each_node_20_blocks() {
    // calico-ipam.md sections 3.4 step 6 and 7 (calico#4861: small blocks hit the limit early)
    for bench in Bench::both() {
        let bench = bench.pool("p", "10.2.0.0/24", 30);
        let mut given = BTreeSet::new();
        for (name, pods) in [("node-a", 80), ("node-b", 80), ("node-c", 80), ("node-d", 16)] {
            given.extend(fill(&bench, name, pods));
        }
        assert_eq!(given.len(), 256);
        assert!(given.iter().all(|address| address.ends_with("/30")));
        let limited = last_error(&bench, "node-a");
        assert!(matches!(limited, IpamError::BlockLimit { limit: 20, .. }), "{limited}");
        let exhausted = last_error(&bench, "node-d");
        assert!(matches!(exhausted, IpamError::PoolExhausted { blocks: 64, assigned: 0, .. }), "{exhausted}");
        bench.check_consistent();
        // One address that comes back is one that can be had, by its block's node and by a borrower.
        bench.release("node-c.7");
        assert_eq!(bench.assign(&pod("node-d", "borrower", "p", "03:06:00")).unwrap().len(), 1);
        bench.check_consistent();
    }
}

#[test]
fn a_pool_of_one_block_is_shared_by_borrowing_in_fifo_order() {
    // calico-ipam.md sections 3.2 (FIFO), 3.4 step 8; TV10
    for bench in Bench::both() {
        let bench = bench.pool("p", "10.2.0.0/26", 26);
        assert_eq!(fill(&bench, "node-a", 40).len(), 40);
        let borrowed = fill(&bench, "node-b", 24);
        assert_eq!(borrowed.first().map(String::as_str), Some("10.2.0.40/26"));
        assert_eq!(run(bench.ipam.affinities(&node("node-b"), Family::V4)).unwrap().len(), 0);
        let error = last_error(&bench, "node-a");
        assert!(
            error.exhausted() && error.to_string().contains("all 1 blocks are taken and full"),
            "{error}"
        );
        bench.release("node-b.3");
        bench.release("node-a.5");
        assert_eq!(fill(&bench, "node-c", 2), ["10.2.0.43/26", "10.2.0.5/26"], "first back, first out");
        bench.check_consistent();
    }
    for bench in Bench::both() {
        let bench = bench.pool("p", "10.2.0.0/26", 26).config(STRICT);
        fill(&bench, "node-a", 1);
        assert!(matches!(last_error(&bench, "node-b"), IpamError::StrictAffinity { .. }));
    }
}

#[test]
fn a_block_of_an_older_size_is_used_and_released_and_never_overlapped() {
    // calico-ipam.md sections 3.4 step 5, 7 and 9 (libcalico-go#1377): the pool was made anew with smaller, then with larger blocks
    for size in [29, 24] {
        for bench in Bench::both() {
            let bench = bench.pool("p", "10.2.0.0/23", 26);
            assert_eq!(fill(&bench, "node-a", 1).len(), 1);
            let old = run(bench.ipam.affinities(&node("node-a"), Family::V4)).unwrap()[0].0;
            let bench = bench.pool("p", "10.2.0.0/23", size);
            let own = bench.assign(&pod("node-a", "second", "p", "03:05:00")).unwrap();
            assert!(own[0].ends_with("/26"), "its own old block still has room: {own:?}");
            let theirs = fill(&bench, "node-b", 8);
            assert!(theirs.iter().all(|net| net.ends_with(&format!("/{size}"))), "{theirs:?}");
            assert!(theirs.iter().all(|net| !old.overlaps(net.parse().unwrap())), "{old} and {theirs:?}");
            // Through the new pool's mask the address is nowhere; the blocks themselves know it.
            let address = own[0].parse::<russet_addr::IpNet>().unwrap().addr();
            let options =
                crate::ReleaseOptions { address, handle: Some(handle("second")), sequence_number: None };
            assert_eq!(run(bench.ipam.release_ips(&[options])).unwrap().addresses, [address]);
            bench.check_consistent();
        }
    }
}

#[test]
fn two_hundred_reservations_leave_all_other_addresses_and_waste_no_block() {
    // calico-ipam.md sections 1.8, 3.2: blocks that single reservations fill together are left out, as wholly reserved ones are. A node that claimed
    // them would reach its limit of 20 blocks without one address.
    for bench in Bench::both() {
        let bench = bench.pool("p", "10.2.0.0/24", 30);
        let reserved: Vec<String> = (0..200).map(|last| format!("10.2.0.{last}/32")).collect();
        reserve(&bench, &reserved);
        let mut given: Vec<std::net::IpAddr> = Vec::new();
        for net in fill(&bench, "node-a", 56) {
            given.push(net.parse::<russet_addr::IpNet>().unwrap().addr());
        }
        given.sort();
        let expected: Vec<std::net::IpAddr> =
            (200..256).map(|last| format!("10.2.0.{last}").parse().unwrap()).collect();
        assert_eq!(given, expected);
        let blocks = bench.sim.records().keys().filter(|key| matches!(key.kind(), KeyKind::Block(_))).count();
        assert_eq!(blocks, 14, "not one block was claimed for nothing");
        assert!(last_error(&bench, "node-a").exhausted());
        // A request for this address gets it all the same (calico-ipam.md section 3.7).
        let pinned = pod("node-a", "pin", "p", "03:04:06");
        assert!(run(bench.ipam.assign_ip(&pinned, "10.2.0.7".parse().unwrap())).is_ok());
        bench.check_consistent();
    }
}

#[test]
fn two_hundred_reservations_in_one_block_are_skipped_in_order() {
    // calico-ipam.md section 3.2: skipped ordinals stay in their place
    for bench in Bench::both() {
        let bench = bench.pool("p", "10.2.0.0/24", 24);
        reserve(&bench, &(0..200).map(|last| format!("10.2.0.{last}")).collect::<Vec<_>>());
        let request = Request { v4: 56, ..pod("node-a", "many", "p", "03:04:05") };
        assert_eq!(bench.assign(&request).unwrap().len(), 56);
        assert_eq!(bench.block("10.2.0.0/24").unallocated, (0..200).collect::<Vec<_>>());
        assert!(last_error(&bench, "node-b").exhausted(), "reserved ones are not lent, either");
    }
}

#[test]
fn node_names_are_used_byte_for_byte() {
    // calico-ipam.md section 1.2: raw, no escaping, no lower-casing; `node1` does not match `node10`
    let names = [
        "Node-A.Example.COM",
        "node-a.example.com",
        "node",
        "node1",
        "node10",
        "-n.",
        "a_b--c",
        "10.1.0.16-29",
    ];
    for bench in Bench::both() {
        let bench = bench.with_pool();
        let mut blocks = BTreeSet::new();
        for name in names {
            fill(&bench, name, 3);
            let own = run(bench.ipam.affinities(&node(name), Family::V4)).unwrap();
            assert_eq!(own.len(), 1, "{name} has one block");
            let cidr = own[0].0;
            assert!(blocks.insert(cidr), "{name} has a block of its own");
            let key =
                format!("/calico/ipam/v2/host/{name}/ipv4/block/{}", cidr.to_string().replace('/', "-"));
            assert!(bench.sim.records().keys().any(|stored| stored.as_str() == key), "{key}");
            assert_eq!(bench.block(&cidr.to_string()).affinity, Some(format!("host:{name}")));
            assert_eq!(bench.affinity_text(name, &cidr.to_string()).unwrap(), CONFIRMED);
            assert_eq!(run(bench.ipam.held_by_node(&node(name))).unwrap().len(), 3);
        }
        for name in names {
            run(bench.ipam.remove_node(&node(name))).unwrap();
            (0..3).for_each(|index| drop(bench.release(&format!("{name}.{index}"))));
        }
        assert!(
            bench.sim.records().keys().all(|key| matches!(key.kind(), KeyKind::Pool(_))),
            "{}",
            bench.sim.dump()
        );
    }
}

fn six(node_name: &str, id: &str) -> Request {
    Request { v4: 0, v6: 1, ..pod(node_name, id, "p", "03:04:05") }
}

#[test]
fn an_ipv6_pool_of_one_slash_122_is_full_after_64_addresses() {
    // calico-ipam.md section 1.3: the smallest pool that a default block fits into
    for bench in Bench::both() {
        let bench = bench.pool("six", "fd80:24e2:f998:72d6::40/122", 122);
        let mut given = BTreeSet::new();
        for index in 0..64 {
            let name = if index % 2 == 0 { "node-a" } else { "node-b" };
            given.extend(bench.assign(&six(name, &format!("{index}"))).unwrap());
        }
        assert_eq!(given.len(), 64);
        assert!(
            given.contains("fd80:24e2:f998:72d6::40/122") && given.contains("fd80:24e2:f998:72d6::7f/122")
        );
        let error = bench.assign(&six("node-a", "64")).unwrap_err();
        assert!(error.exhausted() && error.to_string().contains("IPv6"), "{error}");
        bench.check_consistent();
    }
}

#[test]
fn an_ipv6_pool_of_a_slash_64_gives_nodes_blocks_of_their_own_under_canonical_keys() {
    // calico-ipam.md section 1.2: RFC 5952 text, or a peer makes a second block for the same range
    for bench in Bench::both() {
        let bench = bench.pool("six", "fd80:24e2:f998::/64", 122);
        let mut blocks = BTreeSet::new();
        for name in ["node-a", "node-b", "node-c"] {
            let request = Request { v6: 65, ..six(name, name) };
            assert_eq!(bench.assign(&request).unwrap().len(), 65);
            let own = run(bench.ipam.affinities(&node(name), Family::V6)).unwrap();
            assert_eq!(own.len(), 2, "64 in the first, one in the second");
            blocks.extend(own.into_iter().map(|(cidr, _)| cidr));
        }
        assert_eq!(blocks.len(), 6);
        for key in bench.sim.records().keys().filter(|key| matches!(key.kind(), KeyKind::Block(_))) {
            let text = key.as_str().rsplit('/').next().unwrap().replace("-122", "");
            assert_eq!(text.parse::<std::net::Ipv6Addr>().unwrap().to_string(), text);
        }
        // All but the last block reserved: 2^58 - 1 blocks are left out at once.
        let last = "fd80:24e2:f998:0:ffff:ffff:ffff:ffc0";
        let all_but_last: Vec<String> =
            (65..=122).map(|len| format!("{}/{len}", first_of_sibling(last, len))).collect();
        reserve(&bench, &all_but_last);
        assert_eq!(bench.assign(&six("node-d", "d")).unwrap(), [format!("{last}/122")]);
        bench.check_consistent();
    }
}

/// The prefix of this length beside the one that holds `address`: the two halves of the prefix one bit shorter.
fn first_of_sibling(address: &str, len: u32) -> std::net::Ipv6Addr {
    let bits = u128::from(address.parse::<std::net::Ipv6Addr>().unwrap());
    (((bits >> (128 - len)) ^ 1) << (128 - len)).into()
}

/// Moves the clock on with each wait.
struct Seconds(Rc<TestClock>);

impl crate::Backoff for Seconds {
    fn wait(&self, _attempt: u32) -> BoxFuture<'_, ()> {
        self.0.0.set(self.0.0.get() + Duration::from_secs(1));
        Box::pin(std::future::ready(()))
    }
}

/// What is tried in the tests below: one address, found or named.
type Take = fn(&Allocator, &Request) -> Result<Assigned, IpamError>;

const TAKES: [Take; 2] = [
    |ipam, request| run(ipam.auto_assign(request)),
    |ipam, request| run(ipam.assign_ip(request, "10.1.0.20".parse().unwrap())),
];

/// TV1 with faults of the writes of the block: on the engine that executes one by one the handle is written before each.
fn faulty(bench: Bench, faults: impl IntoIterator<Item = Fault>) -> Bench {
    let bench = tv1(bench);
    let before = usize::from(!bench.atomic());
    let before = std::iter::repeat_n(Fault::None, before);
    bench.sim.script(faults.into_iter().flat_map(|fault| before.clone().chain([fault])));
    bench
}

fn assert_not_allocated(bench: &Bench) {
    assert_eq!(bench.handle_text("aaaa"), None, "the handle is lowered again");
    assert_eq!(bench.block(BLOCK).allocations, [None; 8]);
    bench.check_consistent();
}

#[test]
fn the_last_failed_attempt_reports_block_and_attempts_and_leaves_no_trace() {
    // calico-ipam.md sections 2.2 and 9, SHOULD: Go counts the handle up with each lost race
    for take in TAKES {
        for bench in Bench::both() {
            let bench = faulty(bench, [Fault::Conflict; 100]);
            let error = take(&bench.ipam, &pod("node-a", "aaaa", "web-0", "03:04:05")).unwrap_err();
            assert!(
                error
                    .to_string()
                    .ends_with("block/10.1.0.16-29: other writers were faster 100 times; try again"),
                "{error}"
            );
            assert!(error.retryable());
            assert_not_allocated(&bench);
        }
    }
}

#[test]
fn a_deadline_reports_block_and_attempts_and_leaves_no_trace() {
    // calico-ipam.md section 2.2: the request's time is over, the undoing's is not; 20 of its writes are lost, too
    for take in TAKES {
        for bench in Bench::both() {
            let clock = bench.clock.clone();
            let (store, pause) = (bench.sim.clone(), Rc::new(Seconds(clock.clone())));
            let shared = Allocator::new(Rc::new(store), clock.clone()).with_backoff(pause);
            let undoing = if bench.atomic() { 0 } else { 20 };
            let bench = faulty(bench, std::iter::repeat_n(Fault::Conflict, 6 + undoing));
            let hurried = shared.until(clock.now() + Duration::from_secs(5));
            let error = take(&hurried, &pod("node-a", "aaaa", "web-0", "03:04:05")).unwrap_err();
            assert!(
                error.to_string().ends_with("block/10.1.0.16-29: out of time after 6 tries; try again"),
                "{error}"
            );
            assert!(error.retryable());
            assert_not_allocated(&bench);
            // The allocator itself has no deadline, and goes on.
            assert!(take(&shared, &pod("node-a", "aaaa", "web-0", "03:04:05")).is_ok());
        }
    }
}

#[test]
fn an_allocation_in_doubt_is_read_before_giving_up_and_keeps_its_handle() {
    // calico-ipam.md section 9, SHOULD (calico#5203): the last try is in doubt
    for take in TAKES {
        for bench in Bench::both() {
            let faults = std::iter::repeat_n(Fault::Conflict, 99).chain([Fault::LostReply]);
            let bench = faulty(bench, faults);
            let assigned = take(&bench.ipam, &pod("node-a", "aaaa", "web-0", "03:04:05")).unwrap();
            let stored = run(bench.ipam.ips_by_handle(&handle("aaaa"))).unwrap();
            assert_eq!(stored.len(), 1);
            assert_eq!(stored[0].address, assigned.addresses[0].addr(), "what is answered is what is stored");
            bench.check_consistent();
        }
        for bench in Bench::both() {
            let bench = tv1(bench);
            // The block stays as it was, and the handle is raised once.
            let before = std::iter::repeat_n(Fault::None, usize::from(!bench.atomic()));
            bench.sim.script(before.chain([Fault::LostRequest; 100]));
            let error = take(&bench.ipam, &pod("node-a", "aaaa", "web-0", "03:04:05")).unwrap_err();
            assert!(matches!(&error, IpamError::Store { source, .. } if source.outcome_unknown()), "{error}");
            assert!(error.to_string().contains("block/10.1.0.16-29"), "{error}");
            // The write may still arrive: its handle must be there until a DEL has looked at the block.
            bench.release("aaaa");
            assert_not_allocated(&bench);
        }
    }
}

/// A store that reads everything but the pools.
struct NoPools(Sim);

impl Store for NoPools {
    forward_store!(self.0: claims get commit watch);

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        if *prefix == Prefix::pools() {
            let cause = russet_store::Cause::text("the pools' shelf is broken");
            let error = StoreError::Unavailable { operation: "list pools".into(), source: cause };
            return Box::pin(std::future::ready(Err(error)));
        }
        self.0.list(prefix)
    }
}

#[test]
fn unreadable_pools_are_a_store_error_and_not_a_missing_pool() {
    // calico-ipam.md section 2.1: what cannot be read is not absent; only then may an operator look for a pool to create
    for bench in Bench::both().map(tv1) {
        let blind = Allocator::new(Rc::new(NoPools(bench.sim.clone())), bench.clock.clone());
        let request = pod("node-a", "aaaa", "web-0", "03:04:05");
        let address = "10.1.0.20".parse().unwrap();
        let options = crate::ReleaseOptions { address, handle: None, sequence_number: None };
        let pools = ["10.1.0.0/24".parse().unwrap()];
        let errors = [
            run(blind.auto_assign(&request)).unwrap_err(),
            run(blind.assign_ip(&request, address)).unwrap_err(),
            run(blind.release_ips(&[options])).unwrap_err(),
            run(blind.ensure_tunnel_address(&node("node-a"), Family::V4, &pools)).unwrap_err(),
        ];
        for error in errors {
            assert!(matches!(error, IpamError::Store { .. }) && error.retryable(), "{error}");
            assert!(error.to_string().contains("/ippools/"), "{error}");
            assert!(!error.to_string().contains("not in a configured pool"), "{error}");
        }
        assert_not_allocated(&bench);
    }
}

#[test]
fn an_unreadable_pool_is_reported_if_a_pool_is_missing_and_skipped_otherwise() {
    // calico-ipam.md section 1.2: peers drop what does not parse; a request for the address must get the reason
    for bench in Bench::both() {
        bench.put(Key::pool("broken").unwrap(), r#"{"kind":"IPPool","spec":{"cidr":"10.1.0.0/33"}}"#);
        let request = pod("node-a", "aaaa", "web-0", "03:04:05");
        let named = Request { pools4: Some(vec!["10.1.0.0/24".parse().unwrap()]), ..request.clone() };
        for error in [
            run(bench.ipam.auto_assign(&request)).unwrap_err(),
            run(bench.ipam.auto_assign(&named)).unwrap_err(),
            run(bench.ipam.assign_ip(&request, "10.1.0.20".parse().unwrap())).unwrap_err(),
        ] {
            assert!(matches!(error, IpamError::Corrupt { .. }), "{error}");
            assert!(error.to_string().contains("ippools/broken is corrupt"), "{error}");
        }
        let bench = bench.pool("whole", "10.2.0.0/24", 29);
        assert!(bench.assign(&request).unwrap()[0].starts_with("10.2.0."));
        assert!(
            run(bench.ipam.assign_ip(&pod("node-a", "b", "p", "03:04:05"), "10.2.0.9".parse().unwrap()))
                .is_ok()
        );
        bench.check_consistent();
    }
}
