//! The vectors of calico-ipam.md section 8 that give back, borrow, repair and refuse, by number.

use super::vectors::{BLOCK, CONFIRMED, tv4};
use super::*;
use crate::ReleaseOptions;

const BORROWED: &str = r#"{"cidr":"10.2.0.0/30","affinity":"host:node-a","affinity_claim_time":"2026-01-02T03:00:00Z","allocations":[0,0,1,null],"unallocated":[3],"attributes":[{"handle_id":"k8s-pod-network.a1","secondary":{"namespace":"default","node":"node-a","pod":"p0","timestamp":"2026-01-02 03:01:00 +0000 UTC"}},{"handle_id":"k8s-pod-network.b1","secondary":{"namespace":"default","node":"node-b","pod":"q0","timestamp":"2026-01-02 03:02:00 +0000 UTC"}}],"sequenceNumber":1767322800000000002,"sequenceNumberForAllocation":{"0":1767322800000000000,"1":1767322800000000000,"2":1767322800000000001},"deleted":false}"#;
const STRICT: &str = r#"{"strict_affinity":true,"auto_allocate_blocks":true}"#;
const LENT: &str = "10.2.0.0/30";

fn options(address: &str) -> ReleaseOptions {
    ReleaseOptions { address: address.parse().unwrap(), handle: None, sequence_number: None }
}

fn release_ips(bench: &Bench, list: &[ReleaseOptions]) -> Result<crate::Released, IpamError> {
    run(bench.ipam.release_ips(list))
}

/// TV10 before: one block of four addresses, two of them node-a's.
fn tv10_before(bench: Bench) -> Bench {
    let bench = bench.pool("p", "10.2.0.0/30", 30);
    bench.claim("node-a", LENT);
    let request = Request { v4: 2, ..pod("node-a", "a1", "p0", "03:01:00") };
    assert_eq!(bench.assign(&request).unwrap().len(), 2);
    bench.writes();
    bench
}

fn tv10(bench: Bench) -> Bench {
    let bench = tv10_before(bench);
    assert_eq!(bench.assign(&pod("node-b", "b1", "q0", "03:02:00")).unwrap(), ["10.2.0.2/30"]);
    bench
}

#[test]
fn tv8_several_addresses_at_once() {
    for bench in Bench::both().map(tv4) {
        let released = release_ips(&bench, &[options("10.1.0.18"), options("10.1.0.17")]).unwrap();
        assert_eq!(released.addresses.len(), 2);
        let block = bench.block(BLOCK);
        assert_eq!(block.unallocated, [4, 5, 6, 7, 1, 2]);
        assert_eq!(block.allocations[..4], [Some(0), None, None, Some(1)]);
        assert_eq!(block.sequence_number, S + 4);
        assert_eq!(block.sequence_numbers.unwrap().len(), 2);
        assert_eq!(bench.handle_text("bbbb"), None);
        bench.check_consistent();
    }
}

#[test]
fn tv9_sequence_and_handle_guards() {
    for bench in Bench::both().map(tv4) {
        bench.writes();
        let before = bench.block_text(BLOCK);
        let wrong = ReleaseOptions { sequence_number: Some(5), ..options("10.1.0.18") };
        let error = release_ips(&bench, &[wrong]).unwrap_err();
        assert!(
            matches!(error, IpamError::BadSequence { expected: 5, found, .. } if found == S + 1),
            "{error}"
        );
        let wrong = ReleaseOptions { handle: Some(handle("other")), ..options("10.1.0.18") };
        assert!(matches!(release_ips(&bench, &[wrong]).unwrap_err(), IpamError::BadHandle { .. }));
        let twice = release_ips(&bench, &[options("10.1.0.23"), options("10.1.0.23")]).unwrap();
        assert_eq!((twice.unallocated.len(), twice.addresses.len()), (1, 0));
        assert_eq!((bench.block_text(BLOCK), bench.writes().len()), (before, 0));

        let right = ReleaseOptions {
            handle: Some(handle("bbbb")),
            sequence_number: Some(S + 1),
            ..options("10.1.0.18")
        };
        assert_eq!(release_ips(&bench, std::slice::from_ref(&right)).unwrap().addresses.len(), 1);
        let block = bench.block(BLOCK);
        assert_eq!(block.allocations, [Some(0), Some(1), None, Some(2), None, None, None, None]);
        assert_eq!(block.unallocated, [4, 5, 6, 7, 2]);
        assert_eq!(block.attributes().len(), 3);
        assert_eq!(bench.handle_text("bbbb").unwrap(), r#"{"block":{"10.1.0.16/29":1},"deleted":false}"#);
        let error = release_ips(&bench, &[right]).unwrap_err();
        assert!(matches!(error, IpamError::BadSequence { found: 0, .. }), "{error}");
    }
}

#[test]
fn tv10_borrowing_and_strict_refusal() {
    for bench in Bench::both().map(tv10) {
        assert_eq!(bench.block_text(LENT).unwrap(), BORROWED);
        assert_eq!(bench.affinity_text("node-b", LENT), None);
        assert_eq!(bench.handle_text("b1").unwrap(), r#"{"block":{"10.2.0.0/30":1},"deleted":false}"#);
    }
    for bench in Bench::both().map(tv10_before) {
        let bench = bench.config(STRICT);
        let error = bench.assign(&pod("node-b", "b1", "q0", "03:02:00")).unwrap_err();
        assert!(
            error.to_string().starts_with("No more free affine blocks and strict affinity enabled"),
            "{error}"
        );
        assert!(error.exhausted() && !error.retryable());
        assert!(bench.writes().is_empty());
    }
}

#[test]
fn tv11_releasing_the_affinity_of_a_block_in_use_then_draining_it() {
    for bench in Bench::both().map(tv10) {
        let refused = run(bench.ipam.release_affinity(&node("node-a"), cidr(LENT), true)).unwrap_err();
        assert!(matches!(refused, IpamError::NotEmpty { .. }), "{refused}");
        assert_eq!(bench.affinity_text("node-a", LENT).unwrap(), CONFIRMED);

        bench.writes();
        run(bench.ipam.release_affinity(&node("node-a"), cidr(LENT), false)).unwrap();
        assert_eq!(bench.affinity_text("node-a", LENT), None);
        if !bench.atomic() {
            let writes = bench.writes();
            assert_eq!(writes[0], r#"affinity 10.2.0.0-30 {"state":"pendingDeletion","deleted":false}"#);
            assert!(writes[1].starts_with("block 10.2.0.0-30 {"), "{writes:?}");
            assert_eq!(writes[2..], ["affinity 10.2.0.0-30 deleted"]);
        }
        let expected = BORROWED
            .replace(
                r#""affinity":"host:node-a","affinity_claim_time":"2026-01-02T03:00:00Z""#,
                r#""affinity":null"#,
            )
            .replace(r#""sequenceNumber":1767322800000000002"#, r#""sequenceNumber":1767322800000000003"#);
        assert_eq!(bench.block_text(LENT).unwrap(), expected);

        bench.release("a1");
        let block = bench.block(LENT);
        assert_eq!((block.allocations, block.unallocated), (vec![None, None, Some(0), None], vec![3, 0, 1]));
        assert_eq!(block.sequence_number, S + 4);
        bench.release("b1");
        assert_eq!((bench.block_text(LENT), bench.handle_text("b1")), (None, None));
    }
}

#[test]
fn tv12_pending_deletion_is_reverted() {
    for bench in Bench::both().map(tv10_before) {
        bench.put_affinity("node-a", LENT, r#"{"state":"pendingDeletion","deleted":false}"#);
        assert_eq!(bench.assign(&pod("node-a", "a2", "p1", "03:03:00")).unwrap(), ["10.2.0.2/30"]);
        assert_eq!(bench.affinity_text("node-a", LENT).unwrap(), CONFIRMED);
        let block = bench.block(LENT);
        assert_eq!((block.sequence_number, block.sequence_number_of(2)), (S + 3, S + 2));
        if !bench.atomic() {
            let kinds: Vec<String> =
                bench.writes().iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
            assert_eq!(kinds, ["affinity", "block", "affinity", "handle", "block"]);
        }
    }
}

#[test]
fn tv14_a_windows_block_is_removed_with_its_host() {
    for bench in Bench::both() {
        bench.put_block(r#"{"cidr":"10.3.0.0/28","affinity":"host:win-1","affinity_claim_time":"2026-01-02T03:00:00Z","allocations":[0,0,0,null,null,null,null,null,null,null,null,null,null,null,null,0],"unallocated":[3,4,5,6,7,8,9,10,11,12,13,14],"attributes":[{"handle_id":"windows-reserved-ipam-handle","secondary":{"note":"windows host rsvd"}}],"sequenceNumber":1767322800000000000,"sequenceNumberForAllocation":{},"deleted":false}"#);
        bench.put_affinity("win-1", "10.3.0.0/28", CONFIRMED);
        run(bench.ipam.release_affinity(&node("win-1"), cidr("10.3.0.0/28"), true)).unwrap();
        assert!(bench.sim.records().is_empty());
    }
}

#[test]
fn tv17_an_address_in_cooldown_is_not_assigned_and_not_dropped() {
    for bench in Bench::both() {
        let bench = bench.pool("p", "10.9.0.0/31", 31);
        bench.put_block(r#"{"cidr":"10.9.0.0/31","affinity":"host:node-a","allocations":[0,null],"unallocated":[1],"attributes":[{"releasedAt":"2026-01-02T03:10:00Z"}],"sequenceNumber":7,"sequenceNumberForAllocation":{"0":5},"deleted":false}"#);
        bench.put_affinity("node-a", "10.9.0.0/31", CONFIRMED);
        assert_eq!(bench.assign(&pod("node-a", "a", "p", "03:03:00")).unwrap(), ["10.9.0.1/31"]);
        assert!(bench.assign(&pod("node-a", "b", "p", "03:03:00")).unwrap_err().exhausted());
        assert!(
            bench.block_text("10.9.0.0/31").unwrap().contains(r#"{"releasedAt":"2026-01-02T03:10:00Z"}"#)
        );
        assert_eq!(release_ips(&bench, &[options("10.9.0.0")]).unwrap().unallocated.len(), 1);
    }
}

fn foreign_block(bench: &Bench, block: &str, owner: &str) {
    let text = format!(
        r#"{{"cidr":"{block}","affinity":{owner},"allocations":[null,null,null,null,null,null,null,null],"unallocated":[0,1,2,3,4,5,6,7],"attributes":null,"sequenceNumber":5,"sequenceNumberForAllocation":{{}},"deleted":false}}"#
    );
    bench.put_block(&text);
}

#[test]
fn tv19_and_tv20_a_block_of_another_node_is_not_used() {
    for owner in ["\"host:node-b\"", "\"host:node-aa\"", "\"virtual:node-a\"", "null"] {
        for state in [r#"{"state":"pending","deleted":false}"#, CONFIRMED, ""] {
            for bench in Bench::both() {
                let bench = bench.with_pool();
                foreign_block(&bench, BLOCK, owner);
                let before = bench.block_text(BLOCK);
                bench.put_affinity("node-a", BLOCK, state);
                let got = bench.assign(&pod("node-a", "aaaa", "web-0", "03:04:05")).unwrap();
                assert_ne!(got, ["10.1.0.16/29"], "{owner} {state}");
                assert_eq!(bench.affinity_text("node-a", BLOCK), None, "{owner} {state}");
                assert_eq!(bench.block_text(BLOCK), before);
            }
        }
    }
}

#[test]
fn tv21_a_confirmed_affinity_without_block_gets_its_block() {
    for bench in Bench::both() {
        let bench = bench.with_pool();
        bench.put_affinity("node-a", BLOCK, CONFIRMED);
        assert_eq!(bench.assign(&pod("node-a", "aaaa", "web-0", "03:04:05")).unwrap(), ["10.1.0.16/29"]);
        assert_eq!(bench.affinity_text("node-a", BLOCK).unwrap(), CONFIRMED);
        assert_eq!(bench.block(BLOCK).sequence_number, S + 1);
        bench.check_consistent();
    }
}

#[test]
fn tv22_a_lost_race_leaves_no_count() {
    for bench in Bench::both().map(super::vectors::tv1) {
        let request = pod("node-a", "aaaa", "web-0", "03:04:05");
        // On the engine that executes one by one the first fault falls to the handle, the second to the block.
        let faults = if bench.atomic() { vec![Fault::Conflict] } else { vec![Fault::None, Fault::Conflict] };
        bench.sim.script(faults);
        run(bench.ipam.assign_ip(&request, "10.1.0.20".parse().unwrap())).unwrap();
        assert_eq!(bench.handle_text("aaaa").unwrap(), r#"{"block":{"10.1.0.16/29":1},"deleted":false}"#);
        bench.check_consistent();
    }
}

#[test]
fn tv23_an_idle_block_is_reclaimed_and_a_young_one_is_not() {
    for bench in Bench::both() {
        let bench = bench.pool("p", "10.5.0.0/29", 30);
        bench.claim("node-a", "10.5.0.0/30");
        let full = Request { v4: 4, ..pod("node-a", "a", "p", "03:01:00") };
        bench.assign(&full).unwrap();
        bench.claim("node-c", "10.5.0.4/30");
        bench.wait(Duration::from_secs(30));
        assert_eq!(bench.assign(&pod("node-b", "b0", "q", "03:02:00")).unwrap(), ["10.5.0.4/30"]);
        assert!(bench.block("10.5.0.4/30").serves(&node("node-c")), "young: borrowed");
        bench.release("b0");
        bench.wait(Duration::from_secs(600));
        bench.writes();
        assert_eq!(bench.assign(&pod("node-b", "b1", "q", "03:12:00")).unwrap(), ["10.5.0.4/30"]);
        assert!(bench.block("10.5.0.4/30").serves(&node("node-b")), "old: reclaimed");
        assert_eq!(bench.affinity_text("node-c", "10.5.0.4/30"), None);
        if !bench.atomic() {
            let kinds: Vec<String> =
                bench.writes().iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
            assert_eq!(
                kinds,
                ["affinity", "block", "affinity", "affinity", "block", "affinity", "handle", "block"]
            );
        }
        bench.check_consistent();
    }
}

#[test]
fn tv24_the_config_is_read_as_in_calico() {
    for bench in Bench::both() {
        let bench = bench.with_pool().config("{}");
        let error = bench.assign(&pod("node-a", "aaaa", "web-0", "03:04:05")).unwrap_err();
        assert!(error.to_string().starts_with("failed to find or claim a block"), "{error}");
        bench.claim("node-a", BLOCK);
        assert!(bench.assign(&pod("node-a", "aaaa", "web-0", "03:04:05")).is_ok());
    }
    for bench in Bench::both() {
        let config = r#"{"strict_affinity":true,"auto_allocate_blocks":true,"maxBlocksPerHost":2}"#;
        let bench = bench.with_pool().config(config);
        let request = Request { v4: 16, ..pod("node-a", "aaaa", "web-0", "03:04:05") };
        assert_eq!(bench.assign(&request).unwrap().len(), 16);
        let error = bench.assign(&pod("node-a", "bbbb", "web-1", "03:04:06")).unwrap_err();
        assert!(matches!(error, IpamError::BlockLimit { limit: 2, .. }), "{error}");
    }
}
