//! Releases from records that are not as they should be: a pod can always be deleted, and no address is given twice for it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use super::*;

const BLOCK: &str = "10.1.0.16/29";

type Damage = fn(&mut Block);

/// What leaves no doubt about who owns what (calico-ipam.md section 1.3, invariants 3 to 5).
const HARMLESS: [(&str, Damage); 5] = [
    ("no address refers to it", |block| block.attributes.get_or_insert_default().push(Attribute::default())),
    ("is listed twice", |block| block.unallocated.insert(0, 5)),
    ("is taken", |block| block.unallocated.splice(0..0, [1, 0]).for_each(drop)),
    ("is outside the block", |block| block.unallocated.insert(0, 8)),
    ("is neither free nor taken", |block| block.unallocated.retain(|ordinal| *ordinal != 3)),
];

/// Allocators that remember nothing, and one that remembers what was there before the damage.
fn benches() -> Vec<Bench> {
    let remembering = |bench: Bench| {
        let ipam = Allocator::new(Rc::new(bench.sim.clone()), bench.clock.clone());
        Bench { ipam: ipam.with_cache(Duration::from_secs(1)), ..bench }
    };
    let benches = Bench::both().into_iter().chain(Bench::both().map(remembering));
    benches.map(|bench| bench.with_pool().pool("six", "fd80::/112", 122)).collect()
}

/// Three pods of which `aaaa` has an address of each family.
fn with_pods(bench: &Bench) {
    bench.claim("node-a", BLOCK);
    let dual = Request { v6: 1, ..pod("node-a", "aaaa", "web-0", "03:04:05") };
    assert_eq!(bench.assign(&dual).unwrap().len(), 2);
    for id in ["bbbb", "cccc"] {
        bench.assign(&pod("node-a", id, id, "03:04:05")).unwrap();
    }
    assert_eq!(bench.block(BLOCK).unallocated, [3, 4, 5, 6, 7]);
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn a_release_repairs_harmless_damage_and_no_address_is_assigned_twice() {
    for (problem, damage) in HARMLESS {
        for bench in benches() {
            with_pods(&bench);
            let mut broken = bench.block(BLOCK);
            damage(&mut broken);
            bench.put(Key::block(cidr(BLOCK)), broken.encode());
            // An ADD does not use it.
            let pinned = pod("node-a", "pinned", "p", "03:04:05");
            let error = run(bench.ipam.assign_ip(&pinned, address("10.1.0.21"))).unwrap_err();
            assert!(error.to_string().contains(problem), "{problem}: {error}");
            let released = bench.release("aaaa");
            assert!(released.addresses.contains(&address("10.1.0.16")), "{problem}: {released:?}");
            assert_eq!((released.addresses.len(), released.unreadable.len()), (2, 0), "{problem}");
            bench.check_consistent();
            // The rest of the block, each address once, those that live apart; the released one last, but for what was hidden.
            let mut given = BTreeSet::from([address("10.1.0.17"), address("10.1.0.18")]);
            for number in 0..6 {
                let request = pod("node-a", &format!("new{number}"), "n", "03:05:00");
                let assigned = run(bench.ipam.auto_assign(&request)).unwrap();
                assert!(given.insert(assigned.addresses[0].addr()), "{problem}: {assigned:?} twice");
            }
            assert!(given.iter().all(|address| cidr(BLOCK).ordinal(*address).is_some()), "{given:?}");
            bench.check_consistent();
        }
    }
}

#[test]
fn individual_addresses_are_released_from_a_damaged_block_too() {
    for (problem, damage) in HARMLESS {
        for bench in Bench::both().map(Bench::with_pool) {
            bench.claim("node-a", BLOCK);
            bench.assign(&pod("node-a", "aaaa", "web-0", "03:04:05")).unwrap();
            let mut broken = bench.block(BLOCK);
            damage(&mut broken);
            // These ordinals are not allocated here.
            broken.unallocated.retain(|ordinal| *ordinal != 1 || problem != "is taken");
            bench.put(Key::block(cidr(BLOCK)), broken.encode());
            let held = run(bench.ipam.ips_by_handle(&handle("aaaa"))).unwrap();
            assert_eq!(held.len(), 1, "{problem}");
            let options = crate::ReleaseOptions {
                address: held[0].address,
                handle: Some(handle("aaaa")),
                sequence_number: Some(held[0].sequence_number),
            };
            assert_eq!(run(bench.ipam.release_ips(&[options])).unwrap().addresses, [held[0].address]);
            bench.check_consistent();
        }
    }
}

#[test]
fn an_unreadable_block_does_not_prevent_a_release() {
    // STYLE: DEL must succeed from any state (k8s#52331)
    let short = r#"{"cidr":"10.1.0.16/29","allocations":[0]}"#;
    let dangling = r#"{"cidr":"10.1.0.16/29","allocations":[7,null,null,null,null,null,null,null],"unallocated":[1,2,3,4,5,6,7]}"#;
    for text in ["", "{\"cidr\":1}", short, dangling] {
        for bench in benches() {
            with_pods(&bench);
            bench.put(Key::block(cidr(BLOCK)), text);
            for first in [true, false] {
                let released = bench.release("aaaa");
                // The other family's address is free.
                assert_eq!(released.addresses.len(), usize::from(first), "{text}: {released:?}");
                let [unreadable] = &released.unreadable[..] else { panic!("{released:?}") };
                assert!(unreadable.contains("block/10.1.0.16-29 is corrupt"), "{unreadable}");
            }
            assert_eq!(bench.block_text(BLOCK).unwrap(), text, "it is unchanged");
            // Its handle still counts the addresses, for when the block is repaired.
            assert_eq!(bench.handle_text("aaaa").unwrap(), r#"{"block":{"10.1.0.16/29":1},"deleted":false}"#);
        }
    }
}

#[test]
fn an_unreadable_handle_does_not_prevent_the_release_of_its_addresses() {
    for bench in benches() {
        with_pods(&bench);
        bench.put(Key::handle(&handle("aaaa")), "[]");
        // Somewhere else in the cluster is a block that cannot be read, either.
        bench.put(Key::block(cidr("10.1.0.32/29")), "");
        let fresh = Allocator::new(Rc::new(bench.sim.clone()), bench.clock.clone());
        let error = run(fresh.auto_assign(&pod("node-a", "aaaa", "web-0", "03:06:00"))).unwrap_err();
        assert!(matches!(error, IpamError::Corrupt { .. }), "{error}");
        assert_eq!(run(fresh.ips_to_free(&handle("aaaa"))).unwrap().len(), 2);
        let released = bench.release("aaaa");
        assert_eq!(released.addresses.len(), 2, "{released:?}");
        let [unreadable] = &released.unreadable[..] else { panic!("{released:?}") };
        assert!(unreadable.contains("handle/k8s-pod-network.aaaa is corrupt"), "{unreadable}");
        assert_eq!(bench.handle_text("aaaa").unwrap(), "[]", "it is unchanged");
        let block = bench.block(BLOCK);
        assert_eq!(
            block.ordinals_of(&handle("bbbb")).count() + block.ordinals_of(&handle("cccc")).count(),
            2
        );
        assert_eq!(bench.release("aaaa").addresses.len(), 0);
    }
}

#[test]
fn an_unreadable_handle_releases_only_the_addresses_of_the_interface() {
    // calico-ipam.md section 9
    for bench in benches() {
        for name in ["eth0", "net1"] {
            bench.assign(&pod("node-a", "aaaa", "web-0", "03:04:05").with("interface", name)).unwrap();
        }
        bench.put(Key::handle(&handle("aaaa")), "[]");
        let net1 = "net1".parse().unwrap();
        let released = run(bench.ipam.release_by_handle(&handle("aaaa"), Some(&net1))).unwrap();
        assert_eq!(released.addresses.len(), 1);
        assert_eq!(run(bench.ipam.ips_to_free(&handle("aaaa"))).unwrap().len(), 1);
    }
}
