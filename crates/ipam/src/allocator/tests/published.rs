//! The block of Calico's published example, 192.168.102.128/26, as v1.11 wrote it: its queue is out of order, an owner has no handle, and it still has
//! the member `strictAffinity` (calico-ipam.md sections 1.3, 1.4, 1.9 and 3.2). What a rewrite keeps, byte for byte.

use super::*;
use crate::ReleaseOptions;

const CIDR: &str = "192.168.102.128/26";

/// Ordinals 0, 2 and 4 to 8 are taken: one by an owner without a handle, the others by pods. 9 is the head of the queue, and 3 and 1 came back last.
fn allocations(ninth: &str) -> String {
    let taken = ["0", "null", "1", "null", "2", "2", "3", "3", "4", ninth];
    taken.into_iter().chain(std::iter::repeat_n("null", 54)).collect::<Vec<_>>().join(",")
}

fn queue(first: usize) -> String {
    (first..64).chain([3, 1]).map(|ordinal| ordinal.to_string()).collect::<Vec<_>>().join(",")
}

/// v1.11.6: no sequence numbers, no claim time, no `deleted`; nothing where there is nothing is spelled `null`.
fn published(strict: bool) -> String {
    format!(
        r#"{{"cidr":"{CIDR}","affinity":"host:k8s-node-1","strictAffinity":{strict},"allocations":[{}],"unallocated":[{}],"attributes":[{{"handle_id":null,"secondary":null}},{{"handle_id":"kube-system.kube-dns-1","secondary":null}},{{"handle_id":"default.web-0","secondary":{{}}}},{{"handle_id":"k8s-pod-network.c1","secondary":null}},{{"handle_id":"k8s-pod-network.c2","secondary":null}}]}}"#,
        allocations("null"),
        queue(9)
    )
}

/// The owners as every release since 3.32 spells them.
const OWNERS: &str = r#"{},{"handle_id":"kube-system.kube-dns-1"},{"handle_id":"default.web-0"},{"handle_id":"k8s-pod-network.c1"},{"handle_id":"k8s-pod-network.c2"}"#;
const NEW: &str = r#"{"handle_id":"k8s-pod-network.c3","secondary":{"namespace":"default","node":"k8s-node-1","pod":"web-9","timestamp":"2026-01-02 03:04:05 +0000 UTC"}}"#;

/// The block as we write it. `strictAffinity` stays where it says something: false is what its absence means to those who read it (calico-ipam.md section 1.10).
fn rewritten(allocations: &str, queue: &str, owners: &str, numbers: (u64, &str), strict: bool) -> String {
    let strict = if strict { r#","strictAffinity":true"# } else { "" };
    let (sequence, taken) = numbers;
    format!(
        r#"{{"cidr":"{CIDR}","affinity":"host:k8s-node-1","allocations":[{allocations}],"unallocated":[{queue}],"attributes":[{owners}],"sequenceNumber":{sequence},"sequenceNumberForAllocation":{taken},"deleted":false{strict}}}"#
    )
}

fn bench(bench: Bench, strict: bool) -> Bench {
    let bench = bench.pool("published", "192.168.0.0/16", 26);
    bench.put_block(&published(strict));
    bench.put_affinity("k8s-node-1", CIDR, "");
    bench
}

fn ask() -> Request {
    pod("k8s-node-1", "c3", "web-9", "03:04:05")
}

#[test]
fn the_published_block_is_read_unchanged() {
    for strict in [false, true] {
        let block = Block::decode(published(strict).as_bytes()).unwrap();
        assert_eq!((block.cidr, block.strict_affinity), (cidr(CIDR), strict));
        assert!(block.serves(&node("k8s-node-1")) && !block.is_empty());
        assert_eq!((block.unallocated[0], &block.unallocated[55..]), (9, &[3, 1][..]));
        assert_eq!(
            block.attribute(0).map(|owner| (&owner.handle_id, &owner.secondary)),
            Some((&None, &None))
        );
        assert_eq!((block.sequence_number, block.sequence_number_of(2), block.deleted), (0, 0, false));
        let as_it_was = rewritten(&allocations("null"), &queue(9), OWNERS, (0, "null"), strict);
        assert_eq!(String::from_utf8(block.encode()).unwrap(), as_it_was);
    }
}

#[test]
fn the_next_automatic_address_of_the_published_block_is_137() {
    for strict in [false, true] {
        for bench in Bench::both().map(|empty| bench(empty, strict)) {
            assert_eq!(bench.assign(&ask()).unwrap(), ["192.168.102.137/26"]);
            let owners = format!("{OWNERS},{NEW}");
            let text = rewritten(&allocations("5"), &queue(10), &owners, (1, r#"{"9":0}"#), strict);
            assert_eq!(bench.block_text(CIDR).unwrap(), text);
            assert_eq!(
                bench.affinity_text("k8s-node-1", CIDR).unwrap(),
                "",
                "an empty affinity is a confirmed one"
            );
            assert_eq!(
                bench.handle_text("c3").unwrap(),
                r#"{"block":{"192.168.102.128/26":1},"deleted":false}"#
            );
            // The freed address goes to the end of the queue, and the block is what it was but for its numbers.
            bench.release("c3");
            let back = format!("{},9", queue(10));
            assert_eq!(
                bench.block_text(CIDR).unwrap(),
                rewritten(&allocations("null"), &back, OWNERS, (2, "{}"), strict)
            );
        }
    }
}

#[test]
fn an_address_in_the_middle_of_the_published_queue_can_be_requested() {
    for bench in Bench::both().map(|empty| bench(empty, true)) {
        let assigned = run(bench.ipam.assign_ip(&ask(), "192.168.102.131".parse().unwrap())).unwrap();
        assert_eq!(texts(&assigned), ["192.168.102.131/32"]);
        let block = bench.block(CIDR);
        assert_eq!((block.unallocated[0], &block.unallocated[54..]), (9, &[63, 1][..]));
        assert_eq!(block.allocations[3], Some(5));
        assert!(block.strict_affinity);
    }
}

#[test]
fn an_address_without_a_handle_has_no_owner_and_is_not_free() {
    // calico-ipam.md sections 3.1 and 3.8
    for bench in Bench::both().map(|empty| bench(empty, false)) {
        let other = run(bench.ipam.assign_ip(&ask(), "192.168.102.128".parse().unwrap())).unwrap_err();
        assert_eq!(other.to_string(), "address 192.168.102.128 is already assigned");
        let options = |handle| ReleaseOptions {
            address: "192.168.102.128".parse().unwrap(),
            handle,
            sequence_number: None,
        };
        let wrong = run(bench.ipam.release_ips(&[options(Some(handle("c1")))])).unwrap_err();
        assert!(matches!(wrong, IpamError::BadHandle { found: None, .. }), "{wrong}");
        assert_eq!(run(bench.ipam.release_ips(&[options(None)])).unwrap().addresses.len(), 1);
        let block = bench.block(CIDR);
        assert_eq!((block.attributes().len(), block.unallocated.last()), (4, Some(&0)));
        assert_eq!(
            block.attribute(2).and_then(|owner| owner.handle_id.as_deref()),
            Some("kube-system.kube-dns-1")
        );
    }
}

#[test]
fn handles_of_the_first_plugins_are_workload_ids() {
    // calico-ipam.md section 1.6: before v1.11.2 the handle was `<namespace>.<pod>`
    for bench in Bench::both().map(|empty| bench(empty, false)) {
        let id = HandleId::new("default.web-0").unwrap();
        bench.put(Key::handle(&id), r#"{"block":{"192.168.102.128/26":2}}"#);
        assert_eq!(run(bench.ipam.release_by_handle(&id, None)).unwrap().addresses.len(), 2);
        assert_eq!(bench.value(&Key::handle(&id)), None);
        assert_eq!(bench.affinity_text("k8s-node-1", CIDR).unwrap(), "");
    }
}
