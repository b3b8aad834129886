//! Blocks of calico-ipam.md section 8 as fixtures, and blocks that must be refused.

use super::*;

const TV1: &str = r#"{"cidr":"10.1.0.16/29","affinity":"host:node-a","affinity_claim_time":"2026-01-02T03:00:00Z","allocations":[null,null,null,null,null,null,null,null],"unallocated":[0,1,2,3,4,5,6,7],"attributes":null,"sequenceNumber":1767322800000000000,"sequenceNumberForAllocation":{},"deleted":false}"#;
const TV2: &str = r#"{"cidr":"10.1.0.16/29","affinity":"host:node-a","affinity_claim_time":"2026-01-02T03:00:00Z","allocations":[0,null,null,null,null,null,null,null],"unallocated":[1,2,3,4,5,6,7],"attributes":[{"handle_id":"k8s-pod-network.aaaa","secondary":{"namespace":"default","node":"node-a","pod":"web-0","timestamp":"2026-01-02 03:04:05.678901234 +0000 UTC"}}],"sequenceNumber":1767322800000000001,"sequenceNumberForAllocation":{"0":1767322800000000000},"deleted":false}"#;
const TV10: &str = r#"{"cidr":"10.2.0.0/30","affinity":"host:node-a","affinity_claim_time":"2026-01-02T03:00:00Z","allocations":[0,0,1,null],"unallocated":[3],"attributes":[{"handle_id":"k8s-pod-network.a1","secondary":{"namespace":"default","node":"node-a","pod":"p0","timestamp":"2026-01-02 03:01:00 +0000 UTC"}},{"handle_id":"k8s-pod-network.b1","secondary":{"namespace":"default","node":"node-b","pod":"q0","timestamp":"2026-01-02 03:02:00 +0000 UTC"}}],"sequenceNumber":1767322800000000002,"sequenceNumberForAllocation":{"0":1767322800000000000,"1":1767322800000000000,"2":1767322800000000001},"deleted":false}"#;
const TV14: &str = r#"{"cidr":"10.3.0.0/28","affinity":"host:win-1","affinity_claim_time":"2026-01-02T03:00:00Z","allocations":[0,0,0,null,null,null,null,null,null,null,null,null,null,null,null,0],"unallocated":[3,4,5,6,7,8,9,10,11,12,13,14],"attributes":[{"handle_id":"windows-reserved-ipam-handle","secondary":{"note":"windows host rsvd"}}],"sequenceNumber":1767322800000000000,"sequenceNumberForAllocation":{},"deleted":false}"#;
const TV15: &str = r#"{"cidr":"10.1.0.24/29","affinity":"host:node-a","allocations":[null,null,0,null,0,null,null,null],"unallocated":[0,1,3,5,6,7],"attributes":[{"handle_id":"k8s-pod-network.aaaa"}],"sequenceNumber":1767322800000000008,"sequenceNumberForAllocation":{"2":1767322800000000007,"4":1767322800000000007},"deleted":false}"#;
const TV16_AFTER: &str = r#"{"cidr":"10.4.0.0/30","affinity":"host:node-a","allocations":[0,2,1,null],"unallocated":[3],"attributes":[{},{"handle_id":"default.old-pod"},{"handle_id":"k8s-pod-network.ffff","secondary":{"namespace":"default","node":"node-a","pod":"new-0","timestamp":"2026-01-02 03:09:00 +0000 UTC"}}],"sequenceNumber":1,"sequenceNumberForAllocation":{"1":0},"deleted":false}"#;
const TV17: &str = r#"{"cidr":"10.9.0.0/31","affinity":null,"allocations":[0,null],"unallocated":[1],"attributes":[{"releasedAt":"2026-01-02T03:10:00Z"}],"sequenceNumber":7,"sequenceNumberForAllocation":{"0":5},"deleted":false}"#;
const TV18: &str = r#"{"cidr":"10.9.0.0/32","affinity":"host:node-a","affinity_claim_time":"2026-01-02T03:00:00Z","allocations":[0],"unallocated":[],"attributes":[{"handle_id":"k8s-pod-network.z"}],"sequenceNumber":1767322800000000001,"sequenceNumberForAllocation":{"0":1767322800000000000},"deleted":false}"#;
const UNKNOWN: &str = r#"{"cidr":"10.9.0.0/32","affinity":null,"allocations":[0],"unallocated":[],"attributes":[{"handle_id":"z","alternateOwnerAttrs":{"pod":"p"},"zeta":1,"alpha":{"y":[1.5],"x":null}}],"sequenceNumber":18446744073709551615,"sequenceNumberForAllocation":null,"deleted":false,"hostAffinity":"old","zeta":{"b":1,"a":2},"alpha":true}"#;

fn rewritten(text: &str) -> String {
    String::from_utf8(Block::decode(text.as_bytes()).unwrap().encode()).unwrap()
}

#[test]
fn every_block_of_the_vectors_survives_a_round_trip_byte_for_byte() {
    // calico-ipam.md section 8
    for text in [TV1, TV2, TV10, TV14, TV15, TV16_AFTER, TV17, TV18] {
        assert_eq!(rewritten(text), text);
    }
}

#[test]
fn unknown_members_and_large_numbers_survive_a_rewrite() {
    // calico-ipam.md section 1.10
    assert_eq!(rewritten(UNKNOWN), UNKNOWN);
}

#[test]
fn tv16_a_pre_3_14_block_is_rewritten_in_the_new_form() {
    let before = r#"{"cidr":"10.4.0.0/30","affinity":"host:node-a","strictAffinity":false,"allocations":[0,null,1,null],"unallocated":[1,3],"attributes":[{"handle_id":null,"secondary":null},{"handle_id":"default.old-pod","secondary":null}]}"#;
    let block = Block::decode(before.as_bytes()).unwrap();
    assert_eq!((block.sequence_number, block.sequence_number_of(0)), (0, 0));
    assert_eq!(
        rewritten(before),
        r#"{"cidr":"10.4.0.0/30","affinity":"host:node-a","allocations":[0,null,1,null],"unallocated":[1,3],"attributes":[{},{"handle_id":"default.old-pod"}],"sequenceNumber":0,"sequenceNumberForAllocation":null,"deleted":false}"#
    );
}

#[test]
fn a_strict_block_stays_strict_and_a_python_block_is_nobodys() {
    // calico-ipam.md sections 1.3 and 1.9
    let text = r#"{"cidr":"10.4.0.0/31","affinity":"","strictAffinity":true,"allocations":[null,null],"unallocated":[1,0],"attributes":[]}"#;
    let block = Block::decode(text.as_bytes()).unwrap();
    assert_eq!(block.affinity, None);
    assert!(rewritten(text).ends_with(r#""deleted":false,"strictAffinity":true}"#));
}

#[test]
fn a_windows_block_counts_as_empty_and_a_cooling_one_does_not() {
    // calico-ipam.md sections 3.1 and 3.3, TV14
    assert!(Block::decode(TV14.as_bytes()).unwrap().is_empty());
    assert!(!Block::decode(TV17.as_bytes()).unwrap().is_empty());
}

#[test]
fn only_the_exact_owner_is_served() {
    // calico-ipam.md section 9, MUST 5
    let block = Block::decode(TV1.as_bytes()).unwrap();
    assert!(block.serves(&"node-a".parse().unwrap()));
    assert!(!block.serves(&"node-ab".parse().unwrap()));
    assert_eq!(block.node().unwrap().as_str(), "node-a");
}

/// TV2 with one piece replaced.
fn broken(from: &str, to: &str) -> String {
    assert!(TV2.contains(from));
    Block::decode(TV2.replacen(from, to, 1).as_bytes()).unwrap_err().to_string()
}

#[test]
fn a_broken_invariant_is_named() {
    // calico-ipam.md section 1.3, invariants 1 to 5
    let cases = [
        ("[0,null,null,", "[0,null,", "block at allocations: 7 entries where the block has 8 addresses"),
        ("[0,null,null,", "[1,null,null,", "block at allocations[0]: there is no attribute 1"),
        (
            "\"attributes\":[",
            "\"attributes\":[{\"handle_id\":\"x\"},",
            "block at attributes[1]: no address refers to it",
        ),
        ("[1,2,3,", "[0,2,3,", "block at unallocated: ordinal 0 is taken"),
        ("[1,2,3,", "[2,2,3,", "block at unallocated: ordinal 2 is listed twice"),
        ("[1,2,3,", "[8,2,3,", "block at unallocated: ordinal 8 is outside the block"),
        ("[1,2,3,", "[2,3,", "block at unallocated: ordinal 1 is neither free nor taken"),
    ];
    for (from, to, message) in cases {
        assert_eq!(broken(from, to), message);
    }
}

#[test]
fn what_go_cannot_read_we_refuse() {
    // calico-ipam.md section 1.3: "Numbers must be plain integers"
    let cases = [
        ("[0,null,null,", "[0.0,null,null,", "allocations[0]"),
        ("[1,2,3,", "[1,2e0,3,", "unallocated[1]"),
        ("1767322800000000001", "1767322800000000001.0", "sequenceNumber"),
        ("1767322800000000001", "-1", "sequenceNumber"),
        ("{\"0\":1767322800000000000}", "{\"0\":\"1\"}", "sequenceNumberForAllocation.0"),
        ("\"pod\":\"web-0\"", "\"pod\":7", "attributes[0].secondary.pod"),
        ("10.1.0.16/29", "10.1.0.17/29", "cidr"),
        ("10.1.0.16/29", "", "cidr"),
    ];
    for (from, to, at) in cases {
        assert!(broken(from, to).starts_with(&format!("block at {at}: ")), "{}", broken(from, to));
    }
}

#[test]
fn a_text_that_is_longer_than_its_limit_is_refused_in_a_short_error() {
    let other_owner = TV2.replace(r#""secondary":"#, r#""alternateOwnerAttrs":"#);
    for (block, old, max) in [
        (TV2, "k8s-pod-network.aaaa", Attribute::HANDLE_MAX_BYTES),
        (TV2, "host:node-a", Block::AFFINITY_MAX_BYTES),
        (TV2, "web-0", Attribute::MEMBER_MAX_BYTES),
        (TV2, "namespace", Attribute::MEMBER_MAX_BYTES),
        (&other_owner, "web-0", Attribute::MEMBER_MAX_BYTES),
    ] {
        let with = |bytes: usize| block.replace(old, &"a".repeat(bytes)).into_bytes();
        assert!(Block::decode(&with(max)).is_ok(), "{old}");
        for bytes in [max + 1, 70_000] {
            for refused in [
                Block::decode(&with(bytes)).map(drop),
                // A verb that reads or releases is as strict.
                Block::decode_repaired(&with(bytes)).map(drop),
            ] {
                let error = refused.unwrap_err().to_string();
                let said = format!("{bytes} bytes; at most {max} are accepted");
                assert!(error.contains(&said) && error.len() < 500, "{old}: {error}");
            }
        }
    }
}

#[test]
fn cut_bytes_are_an_error_and_no_crash() {
    for end in 0..TV2.len() {
        assert!(Block::decode(&TV2.as_bytes()[..end]).is_err(), "{end}");
    }
}

#[test]
fn damaged_bytes_never_crash_and_what_is_read_is_written_the_same_again() {
    // ARCHITECTURE.md, invariant 3
    let damage = [b'0', b'9', b'-', b'.', b'"', b'{', b'}', b'[', b']', b',', b':', b'\\', b' ', 0, 0xff];
    for text in [TV2, TV10, TV14, UNKNOWN] {
        for at in 0..text.len() {
            for byte in damage {
                let mut bytes = text.as_bytes().to_vec();
                bytes[at] = byte;
                let Ok(block) = Block::decode(&bytes) else { continue };
                assert_eq!(block.validate(), Ok(()));
                assert_eq!(Block::decode(&block.encode()).unwrap(), block);
            }
        }
    }
}
