//! What a request gets twice, what it is refused, and in which words.

use super::vectors::BLOCK;
use super::*;

fn interface(request: Request, name: &str) -> Request {
    request.with("interface", name)
}

#[test]
fn a_repeated_add_gets_the_same_address_and_writes_nothing() {
    // calico-ipam.md section 9, SHOULD
    for bench in Bench::both() {
        let bench = bench.with_pool();
        let first = interface(pod("node-a", "aaaa", "web-0", "03:04:05"), "eth0");
        let got = bench.assign(&first).unwrap();
        bench.writes();
        let again = interface(pod("node-a", "aaaa", "web-0", "03:09:09"), "eth0");
        let assigned = run(bench.ipam.auto_assign(&again)).unwrap();
        assert_eq!((texts(&assigned), assigned.existing), (got.clone(), true));
        assert!(bench.writes().is_empty());
        let second = interface(pod("node-a", "aaaa", "web-0", "03:10:00"), "net1");
        assert_ne!(bench.assign(&second).unwrap(), got);
        bench.check_consistent();
    }
}

#[test]
fn a_release_of_one_interface_keeps_others_and_includes_entries_without_one() {
    for bench in Bench::both() {
        let bench = bench.with_pool();
        bench.assign(&interface(pod("node-a", "aaaa", "web-0", "03:04:05"), "eth0")).unwrap();
        bench.assign(&interface(pod("node-a", "aaaa", "web-0", "03:04:06"), "net1")).unwrap();
        bench.assign(&pod("node-a", "aaaa", "web-0", "03:04:07")).unwrap();
        let net1 = "net1".parse().unwrap();
        let released = run(bench.ipam.release_by_handle(&handle("aaaa"), Some(&net1))).unwrap();
        assert_eq!(released.addresses.len(), 2);
        let held = run(bench.ipam.ips_by_handle(&handle("aaaa"))).unwrap();
        assert_eq!(held.len(), 1);
        assert_eq!(held[0].attribute.get("interface"), Some("eth0"));
        bench.check_consistent();
        // DEL may come any number of times.
        assert_eq!(
            run(bench.ipam.release_by_handle(&handle("aaaa"), Some(&net1))).unwrap().addresses.len(),
            0
        );
        assert_eq!(bench.release("aaaa").addresses.len(), 1);
        assert_eq!(bench.release("aaaa").addresses.len(), 0);
        assert_eq!(bench.handle_text("aaaa"), None);
    }
}

#[test]
fn a_shortage_in_one_family_releases_the_other() {
    // calico-ipam.md section 4.2 step 6
    for bench in Bench::both() {
        let bench = bench.with_pool();
        let request = Request { v6: 1, ..pod("node-a", "aaaa", "web-0", "03:04:05") };
        let error = bench.assign(&request).unwrap_err();
        assert!(matches!(error, IpamError::NoPool { family: Family::V6, .. }), "{error}");
        assert_eq!(bench.handle_text("aaaa"), None);
        bench.check_consistent();
    }
}

#[test]
fn a_full_pool_is_reported_and_nothing_stays_allocated() {
    for bench in Bench::both() {
        let bench = bench.pool("p", "10.2.0.0/29", 30);
        let request = Request { v4: 9, ..pod("node-a", "aaaa", "web-0", "03:04:05") };
        let error = bench.assign(&request).unwrap_err().to_string();
        assert_eq!(
            error,
            "Assigned 8 out of 9 requested IPv4 addresses; No IPs available in pools: [10.2.0.0/29]: all 2 blocks are taken and full; add a pool or release addresses"
        );
        assert_eq!(bench.handle_text("aaaa"), None);
        bench.check_consistent();
        let all = Request { v4: 8, ..pod("node-a", "aaaa", "web-0", "03:04:05") };
        assert_eq!(bench.assign(&all).unwrap().len(), 8);
    }
}

#[test]
fn the_21st_block_is_refused() {
    // calico-ipam.md section 3.4 step 6
    for bench in Bench::both() {
        let bench = bench.pool("p", "10.2.0.0/24", 32);
        let request = Request { v4: 20, ..pod("node-a", "aaaa", "web-0", "03:04:05") };
        assert_eq!(bench.assign(&request).unwrap().len(), 20);
        let error = bench.assign(&pod("node-a", "bbbb", "web-1", "03:04:06")).unwrap_err();
        assert!(
            error.to_string().starts_with("cannot allocate new block due to per host block limit"),
            "{error}"
        );
    }
}

#[test]
fn a_block_never_overlaps_one_of_another_size() {
    // calico-ipam.md section 9: libcalico-go#1377
    for bench in Bench::both() {
        let bench = bench.pool("p", "10.2.0.0/28", 29);
        let small = crate::block_ops::new_block(cidr("10.2.0.4/30"), &node("node-x"), bench.clock.now());
        bench.put(Key::block(small.cidr), small.encode());
        for id in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            assert!(bench.assign(&pod("node-a", id, "p", "03:04:05")).unwrap()[0].ends_with("/29"));
        }
        assert!(bench.block_text("10.2.0.0/29").is_none());
        let pinned = pod("node-a", "z", "p", "03:04:05");
        let error = run(bench.ipam.assign_ip(&pinned, "10.2.0.1".parse().unwrap())).unwrap_err();
        assert!(error.to_string().contains("overlap"), "{error}");
    }
}

#[test]
fn a_corrupt_own_block_is_reported_if_needed_and_skipped_otherwise() {
    for bench in Bench::both() {
        let bench = bench.with_pool();
        bench.claim("node-a", BLOCK);
        bench.put(Key::block(cidr(BLOCK)), "{\"cidr\":1}");
        let got = bench.assign(&pod("node-a", "aaaa", "web-0", "03:04:05")).unwrap();
        assert_ne!(got, ["10.1.0.16/29"]);
        let pinned = pod("node-a", "bbbb", "web-1", "03:04:05");
        let error = run(bench.ipam.assign_ip(&pinned, "10.1.0.17".parse().unwrap())).unwrap_err();
        assert!(error.to_string().contains("block/10.1.0.16-29 is corrupt: block at cidr"), "{error}");
        assert_eq!(bench.block_text(BLOCK).unwrap(), "{\"cidr\":1}");
    }
}

#[test]
fn pools_that_do_not_serve_are_reported() {
    for bench in Bench::both() {
        let error = bench.assign(&pod("node-a", "aaaa", "web-0", "03:04:05")).unwrap_err();
        assert!(error.to_string().contains("there is no enabled pool"), "{error}");
        let bench = bench.with_pool();
        let missing = Request {
            pools4: Some(vec!["10.7.0.0/24".parse().unwrap()]),
            ..pod("node-a", "a", "p", "03:04:05")
        };
        assert!(matches!(bench.assign(&missing), Err(IpamError::PoolMissing { .. })));
        let outside =
            run(bench.ipam.assign_ip(&pod("node-a", "a", "p", "03:04:05"), "192.0.2.1".parse().unwrap()));
        assert!(outside.unwrap_err().to_string().contains("not in a configured pool"));
        let none = Request { v4: 0, ..pod("node-a", "a", "p", "03:04:05") };
        assert!(matches!(bench.assign(&none), Err(IpamError::Invalid(_))));
    }
}

#[test]
fn empty_blocks_of_pools_that_no_longer_select_the_node_are_released() {
    // calico-ipam.md sections 3.4 step 5 and 3.10
    for bench in Bench::both() {
        let bench = bench.with_pool().pool("q", "10.2.0.0/24", 26);
        bench.put(Key::node(&node("node-a")), r#"{"kind":"Node","metadata":{"name":"node-a"},"spec":{}}"#);
        bench.claim("node-a", BLOCK);
        bench.claim("node-a", "10.1.0.64/29");
        run(bench.ipam.assign_ip(&pod("node-a", "aaaa", "p", "03:04:05"), "10.1.0.16".parse().unwrap()))
            .unwrap();
        let mut spec = IpPoolSpec::new("10.1.0.0/24".parse().unwrap());
        spec.node_selector = Some("has(gpu)".into());
        spec.block_size = Some(29);
        bench.put(
            Key::pool("default-ipv4-ippool").unwrap(),
            IpPool::new("default-ipv4-ippool", spec).encode(),
        );
        let got = bench.assign(&pod("node-a", "bbbb", "q", "03:04:06")).unwrap();
        assert!(got[0].starts_with("10.2.0."), "{got:?}");
        assert_eq!(bench.block_text("10.1.0.64/29"), None, "empty: dropped on the way");
        assert!(bench.block_text(BLOCK).is_some(), "in use: kept");
        bench.release("aaaa");
        assert_eq!((bench.block_text(BLOCK), bench.affinity_text("node-a", BLOCK)), (None, None));
    }
}

#[test]
fn a_removed_node_leaves_its_addresses_reachable() {
    for bench in Bench::both() {
        let bench = bench.with_pool();
        bench.assign(&pod("node-a", "aaaa", "p", "03:04:05")).unwrap();
        bench.claim("node-a", BLOCK);
        run(bench.ipam.remove_node(&node("node-a"))).unwrap();
        assert_eq!(run(bench.ipam.affinities(&node("node-a"), Family::V4)).unwrap().len(), 0);
        assert_eq!(bench.block_text(BLOCK), None);
        bench.check_consistent();
        bench.release("aaaa");
        assert!(bench.sim.records().keys().all(|key| matches!(key.kind(), KeyKind::Pool(_))));
    }
}

#[test]
fn pools_are_created_once_and_never_overlap() {
    for bench in Bench::both() {
        let default = |name: &str, cidr: &str| DefaultPool {
            name: name.into(),
            cidr: cidr.parse().unwrap(),
            vxlan_mode: russet_model::EncapMode::Always,
            nat_outgoing: true,
        };
        let defaults =
            [default("default-ipv4", "10.244.0.0/16"), default("default-ipv6", "fd72:7573:7365::/48")];
        assert_eq!(run(bench.ipam.ensure_pools(&defaults)).unwrap(), ["default-ipv4", "default-ipv6"]);
        assert!(run(bench.ipam.ensure_pools(&defaults)).unwrap().is_empty());
        let pool =
            IpPool::decode(bench.value(&Key::pool("default-ipv4").unwrap()).unwrap().as_bytes()).unwrap();
        assert!(pool.spec.nat_outgoing && pool.metadata.uid.unwrap().len() == 36);
        let over = IpPool::new("over", IpPoolSpec::new("10.244.7.0/24".parse().unwrap()));
        assert!(matches!(run(bench.ipam.create_pool(over)), Err(IpamError::PoolOverlap { .. })));

        let request = Request { v6: 1, ..pod("node-a", "aaaa", "p", "03:04:05") };
        assert_eq!(bench.assign(&request).unwrap().len(), 2);
        run(bench.ipam.delete_pool("default-ipv4")).unwrap();
        assert_eq!(bench.value(&Key::pool("default-ipv4").unwrap()), None);
        let other = bench.pool("other", "10.7.0.0/24", 26);
        let mut finer = IpPoolSpec::new("10.244.0.0/16".parse().unwrap());
        finer.block_size = Some(28);
        let error = run(other.ipam.create_pool(IpPool::new("finer", finer))).unwrap_err();
        assert!(error.to_string().contains("still exists and is not a /28"), "{error}");
    }
}

#[test]
fn an_address_without_a_handle_record_is_found_by_its_node_and_released() {
    // calico-ipam.md section 3.9: a missing handle with a live allocation makes DEL a silent no-op
    for bench in Bench::both() {
        let bench = bench.with_pool();
        let got = bench.assign(&pod("node-a", "aaaa", "p", "03:04:05")).unwrap();
        bench.assign(&pod("node-b", "bbbb", "q", "03:04:06")).unwrap();
        run(bench.sim.commit(vec![Step::delete(Key::handle(&handle("aaaa")), None)])).unwrap();
        assert!(bench.release("aaaa").addresses.is_empty());
        let held = run(bench.ipam.held_by_node(&node("node-a"))).unwrap();
        assert_eq!(held.len(), 1);
        assert!(got[0].starts_with(&held[0].address.to_string()));
        let guarded = crate::ReleaseOptions {
            address: held[0].address,
            handle: Some(handle("aaaa")),
            sequence_number: Some(held[0].sequence_number),
        };
        assert_eq!(run(bench.ipam.release_ips(&[guarded])).unwrap().addresses.len(), 1);
        assert!(run(bench.ipam.held_by_node(&node("node-a"))).unwrap().is_empty());
        bench.check_consistent();
    }
}
