//! The vectors of calico-ipam.md section 8 that take addresses, by number.

use super::*;

const AAAA: &str = r#"{"handle_id":"k8s-pod-network.aaaa","secondary":{"namespace":"default","node":"node-a","pod":"web-0","timestamp":"2026-01-02 03:04:05.678901234 +0000 UTC"}}"#;
const BBBB: &str = r#"{"handle_id":"k8s-pod-network.bbbb","secondary":{"namespace":"default","node":"node-a","pod":"job-1","timestamp":"2026-01-02 03:05:00 +0000 UTC"}}"#;
const CCCC: &str = r#"{"handle_id":"k8s-pod-network.cccc","secondary":{"namespace":"default","node":"node-a","pod":"web-1","timestamp":"2026-01-02 03:06:00 +0000 UTC"}}"#;
const DDDD: &str = r#"{"handle_id":"k8s-pod-network.dddd","secondary":{"namespace":"default","node":"node-a","pod":"pin-0","timestamp":"2026-01-02 03:07:00 +0000 UTC"}}"#;
const VX: &str =
    r#"{"handle_id":"vxlan-tunnel-addr-node-a","secondary":{"node":"node-a","type":"vxlanTunnelAddress"}}"#;
pub(super) const CONFIRMED: &str = r#"{"state":"confirmed","deleted":false}"#;
const PENDING: &str = r#"{"state":"pending","deleted":false}"#;
pub(super) const BLOCK: &str = "10.1.0.16/29";

/// The block of the vectors in a given state; `numbers` gives ordinal and offset from S.
pub(super) fn block(
    allocations: &str,
    unallocated: &str,
    attributes: &str,
    seq: u64,
    numbers: &[(usize, u64)],
) -> String {
    let numbers: Vec<String> =
        numbers.iter().map(|(ordinal, offset)| format!("\"{ordinal}\":{}", S + offset)).collect();
    format!(
        r#"{{"cidr":"10.1.0.16/29","affinity":"host:node-a","affinity_claim_time":"2026-01-02T03:00:00Z","allocations":[{allocations}],"unallocated":[{unallocated}],"attributes":{attributes},"sequenceNumber":{},"sequenceNumberForAllocation":{{{}}},"deleted":false}}"#,
        S + seq,
        numbers.join(",")
    )
}

pub(super) fn tv1(bench: Bench) -> Bench {
    let bench = bench.with_pool();
    bench.claim("node-a", BLOCK);
    bench
}

pub(super) fn tv2(bench: Bench) -> Bench {
    let bench = tv1(bench);
    let got = bench.assign(&pod("node-a", "aaaa", "web-0", "03:04:05.678901234")).unwrap();
    assert_eq!(got, ["10.1.0.16/29"]);
    bench
}

pub(super) fn tv3(bench: Bench) -> Bench {
    let bench = tv2(bench);
    let request = Request { v4: 2, ..pod("node-a", "bbbb", "job-1", "03:05:00") };
    assert_eq!(bench.assign(&request).unwrap(), ["10.1.0.17/29", "10.1.0.18/29"]);
    bench
}

pub(super) fn tv4(bench: Bench) -> Bench {
    let bench = tv3(bench);
    let pools = ["10.1.0.0/24".parse().unwrap()];
    let address = run(bench.ipam.ensure_tunnel_address(&node("node-a"), Family::V4, &pools)).unwrap();
    assert_eq!(address.to_string(), "10.1.0.19");
    bench
}

fn tv5(bench: Bench) -> Bench {
    let bench = tv4(bench);
    assert_eq!(bench.release("bbbb").addresses.len(), 2);
    bench
}

fn tv6(bench: Bench) -> Bench {
    let bench = tv5(bench);
    assert_eq!(bench.assign(&pod("node-a", "cccc", "web-1", "03:06:00")).unwrap(), ["10.1.0.20/29"]);
    bench
}

#[test]
fn tv1_claim_of_a_new_block() {
    for bench in Bench::both().map(tv1) {
        let block = block("null,null,null,null,null,null,null,null", "0,1,2,3,4,5,6,7", "null", 0, &[]);
        assert_eq!(bench.block_text(BLOCK).unwrap(), block);
        assert_eq!(bench.affinity_text("node-a", BLOCK).unwrap(), CONFIRMED);
        if !bench.atomic() {
            let writes = [
                format!("affinity 10.1.0.16-29 {PENDING}"),
                format!("block 10.1.0.16-29 {block}"),
                format!("affinity 10.1.0.16-29 {CONFIRMED}"),
            ];
            assert_eq!(bench.writes(), writes);
        }
    }
}

#[test]
fn tv2_first_auto_assign() {
    for bench in Bench::both().map(tv2) {
        let text = block(
            "0,null,null,null,null,null,null,null",
            "1,2,3,4,5,6,7",
            &format!("[{AAAA}]"),
            1,
            &[(0, 0)],
        );
        assert_eq!(bench.block_text(BLOCK).unwrap(), text);
        assert_eq!(bench.handle_text("aaaa").unwrap(), r#"{"block":{"10.1.0.16/29":1},"deleted":false}"#);
        let kinds: Vec<String> =
            bench.writes().iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
        assert!(
            kinds.ends_with(&["handle".to_owned(), "block".to_owned()]),
            "the handle comes first: {kinds:?}"
        );
    }
}

#[test]
fn tv3_two_addresses_in_one_call_share_one_attribute() {
    for bench in Bench::both().map(tv3) {
        let text = block(
            "0,1,1,null,null,null,null,null",
            "3,4,5,6,7",
            &format!("[{AAAA},{BBBB}]"),
            2,
            &[(0, 0), (1, 1), (2, 1)],
        );
        assert_eq!(bench.block_text(BLOCK).unwrap(), text);
        assert_eq!(bench.handle_text("bbbb").unwrap(), r#"{"block":{"10.1.0.16/29":2},"deleted":false}"#);
    }
}

#[test]
fn tv4_tunnel_address() {
    for bench in Bench::both().map(tv4) {
        let text = block(
            "0,1,1,2,null,null,null,null",
            "4,5,6,7",
            &format!("[{AAAA},{BBBB},{VX}]"),
            3,
            &[(0, 0), (1, 1), (2, 1), (3, 2)],
        );
        assert_eq!(bench.block_text(BLOCK).unwrap(), text);
        bench.writes();
        let pools = ["10.1.0.0/24".parse().unwrap()];
        let again = run(bench.ipam.ensure_tunnel_address(&node("node-a"), Family::V4, &pools)).unwrap();
        assert_eq!((again.to_string().as_str(), bench.writes().len()), ("10.1.0.19", 0));
    }
}

#[test]
fn tv5_release_by_handle_with_index_compaction() {
    for bench in Bench::both().map(tv5) {
        let text = block(
            "0,null,null,1,null,null,null,null",
            "4,5,6,7,1,2",
            &format!("[{AAAA},{VX}]"),
            4,
            &[(0, 0), (3, 2)],
        );
        assert_eq!(bench.block_text(BLOCK).unwrap(), text);
        assert_eq!(bench.handle_text("bbbb"), None);
        let writes = bench.writes();
        let last: Vec<&str> =
            writes.iter().rev().take(2).map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(last, ["handle", "block"], "the handle goes last");
    }
}

#[test]
fn tv6_freed_ordinals_are_not_reused_first() {
    for bench in Bench::both().map(tv6) {
        let text = block(
            "0,null,null,1,2,null,null,null",
            "5,6,7,1,2",
            &format!("[{AAAA},{VX},{CCCC}]"),
            5,
            &[(0, 0), (3, 2), (4, 4)],
        );
        assert_eq!(bench.block_text(BLOCK).unwrap(), text);
    }
}

#[test]
fn tv7_assign_ip_takes_from_the_middle() {
    for bench in Bench::both().map(tv6) {
        let request = pod("node-a", "dddd", "pin-0", "03:07:00");
        let assigned = run(bench.ipam.assign_ip(&request, "10.1.0.22".parse().unwrap())).unwrap();
        assert_eq!((texts(&assigned), assigned.existing), (vec!["10.1.0.22/32".to_owned()], false));
        let text = block(
            "0,null,null,1,2,null,3,null",
            "5,7,1,2",
            &format!("[{AAAA},{VX},{CCCC},{DDDD}]"),
            6,
            &[(0, 0), (3, 2), (4, 4), (6, 5)],
        );
        assert_eq!(bench.block_text(BLOCK).unwrap(), text);
        assert_eq!(bench.handle_text("dddd").unwrap(), r#"{"block":{"10.1.0.16/29":1},"deleted":false}"#);
        bench.writes();
        // Another owner is refused and nothing is written; the same one has it already.
        let other = pod("node-a", "eeee", "pin-1", "03:08:00");
        let refused = run(bench.ipam.assign_ip(&other, "10.1.0.22".parse().unwrap())).unwrap_err();
        assert!(matches!(refused, IpamError::AlreadyAssigned { .. }), "{refused}");
        assert!(run(bench.ipam.assign_ip(&request, "10.1.0.22".parse().unwrap())).unwrap().existing);
        let bench = bench.config(r#"{"strict_affinity":true,"auto_allocate_blocks":true}"#);
        let foreign = pod("node-b", "ffff", "q", "03:08:00");
        let refused = run(bench.ipam.assign_ip(&foreign, "10.1.0.21".parse().unwrap())).unwrap_err();
        assert!(refused.to_string().starts_with("Block host affinity does not match"), "{refused}");
        bench.check_consistent();
        if bench.atomic() {
            assert!(bench.writes().is_empty());
        }
    }
}

#[test]
fn tv13_ipv6() {
    for bench in Bench::both() {
        let bench = bench.with_pool().pool("six", "fd80:24e2:f998:72d6::/64", 122);
        bench.claim("node-a", BLOCK);
        bench.wait(Duration::from_nanos(5));
        bench.claim("node-a", "fd80:24e2:f998:72d6::/122");
        let key = "/calico/ipam/v2/assignment/ipv6/block/fd80:24e2:f998:72d6::-122";
        assert!(bench.sim.records().contains_key(&Key::from_stored(key)));
        let new = bench.block("fd80:24e2:f998:72d6::/122");
        assert_eq!((new.allocations, new.unallocated), (vec![None; 64], (0..64).collect()));
        assert_eq!(new.sequence_number, S + 5);
        let request = Request { v6: 1, ..pod("node-a", "aaaa", "web-0", "03:04:05.678901234") };
        assert_eq!(bench.assign(&request).unwrap(), ["10.1.0.16/29", "fd80:24e2:f998:72d6::/122"]);
        let six = bench.block("fd80:24e2:f998:72d6::/122");
        assert_eq!((six.allocations[0], six.unallocated.len(), six.sequence_number), (Some(0), 63, S + 6));
        assert_eq!((six.sequence_number_of(0), six.unallocated.first()), (S + 5, Some(&1)));
        assert_eq!(
            bench.handle_text("aaaa").unwrap(),
            r#"{"block":{"10.1.0.16/29":1,"fd80:24e2:f998:72d6::/122":1},"deleted":false}"#
        );
    }
}

#[test]
fn tv15_reservations_skip_but_keep_the_order() {
    for bench in Bench::both() {
        let bench = bench.with_pool();
        bench.wait(Duration::from_nanos(7));
        bench.claim("node-a", "10.1.0.24/29");
        let reservation = r#"{"kind":"IPReservation","metadata":{"name":"r"},"spec":{"reservedCIDRs":["10.1.0.24/31","10.1.0.27/32"]}}"#;
        bench.put(Key::reservation("r").unwrap(), reservation);
        let request = Request { v4: 2, ..pod("node-a", "aaaa", "web-0", "03:04:05") };
        assert_eq!(bench.assign(&request).unwrap(), ["10.1.0.26/29", "10.1.0.28/29"]);
        let block = bench.block("10.1.0.24/29");
        assert_eq!(block.unallocated, [0, 1, 3, 5, 6, 7]);
        assert_eq!(block.sequence_number, S + 8);
        assert_eq!((block.sequence_number_of(2), block.sequence_number_of(4)), (S + 7, S + 7));
        let pinned = pod("node-a", "bbbb", "web-1", "03:04:06");
        assert!(run(bench.ipam.assign_ip(&pinned, "10.1.0.24".parse().unwrap())).is_ok());
    }
}

#[test]
fn tv16_a_pre_3_14_block_is_used_and_its_affinity_unchanged() {
    for bench in Bench::both() {
        let bench = bench.pool("p", "10.4.0.0/24", 30);
        bench.put_block(r#"{"cidr":"10.4.0.0/30","affinity":"host:node-a","strictAffinity":false,"allocations":[0,null,1,null],"unallocated":[1,3],"attributes":[{"handle_id":null,"secondary":null},{"handle_id":"default.old-pod","secondary":null}]}"#);
        bench.put_affinity("node-a", "10.4.0.0/30", "");
        assert_eq!(bench.assign(&pod("node-a", "ffff", "new-0", "03:09:00")).unwrap(), ["10.4.0.1/30"]);
        assert_eq!(bench.affinity_text("node-a", "10.4.0.0/30").unwrap(), "");
        assert_eq!(
            bench.block_text("10.4.0.0/30").unwrap(),
            r#"{"cidr":"10.4.0.0/30","affinity":"host:node-a","allocations":[0,2,1,null],"unallocated":[3],"attributes":[{},{"handle_id":"default.old-pod"},{"handle_id":"k8s-pod-network.ffff","secondary":{"namespace":"default","node":"node-a","pod":"new-0","timestamp":"2026-01-02 03:09:00 +0000 UTC"}}],"sequenceNumber":1,"sequenceNumberForAllocation":{"1":0},"deleted":false}"#
        );
    }
}

#[test]
fn tv18_blocks_of_one_address() {
    for bench in Bench::both() {
        let bench = bench.pool("p", "10.9.0.0/30", 32);
        let mut got = Vec::new();
        for id in ["a", "b", "c", "d"] {
            got.extend(bench.assign(&pod("node-a", id, "p", "03:04:05")).unwrap());
        }
        got.sort();
        assert_eq!(got, ["10.9.0.0/32", "10.9.0.1/32", "10.9.0.2/32", "10.9.0.3/32"]);
        assert!(bench.block_text("10.9.0.0/32").unwrap().contains(r#""allocations":[0],"unallocated":[],"#));
        bench.check_consistent();
    }
}
