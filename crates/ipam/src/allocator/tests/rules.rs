//! The rules of calico-ipam.md section 9, and what sections 3.4 to 3.10 say of pools, limits, settings and affinities, as far as no vector shows them.

use super::vectors::{BLOCK, CONFIRMED, tv1, tv4};
use super::*;
use crate::ReleaseOptions;

/// A pool with whatever a test needs said.
fn special(bench: &Bench, name: &str, cidr: &str, change: impl FnOnce(&mut IpPoolSpec)) {
    let mut spec = IpPoolSpec::new(cidr.parse().unwrap());
    spec.block_size = Some(29);
    change(&mut spec);
    bench.put(Key::pool(name).unwrap(), IpPool::new(name, spec).encode());
}

fn pin(bench: &Bench, node_name: &str, id: &str, address: &str) -> Result<Vec<String>, IpamError> {
    let request = pod(node_name, id, "pin-0", "03:04:05");
    run(bench.ipam.assign_ip(&request, address.parse().unwrap())).map(|assigned| texts(&assigned))
}

fn vacant(cidr: &str, affinity: &str) -> String {
    format!(
        r#"{{"cidr":"{cidr}","affinity":{affinity},"allocations":[null,null,null,null,null,null,null,null],"unallocated":[0,1,2,3,4,5,6,7],"attributes":null,"sequenceNumber":5,"sequenceNumberForAllocation":{{}},"deleted":false}}"#
    )
}

fn options(address: &str) -> ReleaseOptions {
    ReleaseOptions { address: address.parse().unwrap(), handle: None, sequence_number: None }
}

#[test]
fn pools_are_used_in_the_order_of_their_names_or_of_the_request() {
    // calico-ipam.md section 3.4 step 4
    for bench in Bench::both() {
        for (name, cidr) in [("b", "10.1.0.0/29"), ("c", "10.2.0.0/29"), ("a", "10.3.0.0/29")] {
            special(&bench, name, cidr, |_| ());
        }
        let request = Request { v4: 20, ..pod("node-a", "many", "p", "03:04:05") };
        let got = bench.assign(&request).unwrap();
        let order: Vec<&str> = got.iter().map(|net| &net[..5]).collect();
        assert_eq!((order[0], order[8], order[16]), ("10.3.", "10.1.", "10.2."), "{got:?}");
        bench.release("many");
        let named = Some(["10.2.0.0/29", "10.3.0.0/29"].map(|cidr| cidr.parse().unwrap()).to_vec());
        let request = Request { v4: 9, pools4: named, ..pod("node-b", "named", "p", "03:04:05") };
        // All of the blocks are node-a's by now, so these are borrowed, pool by pool in the request's order.
        let got = bench.assign(&request).unwrap();
        assert!(
            got[..8].iter().all(|net| net.starts_with("10.2.")) && got[8].starts_with("10.3."),
            "{got:?}"
        );
        bench.check_consistent();
    }
}

#[test]
fn the_affine_blocks_are_used_in_the_order_of_their_keys() {
    // calico-ipam.md section 3.4 step 5: the text order of the datastore's list
    for bench in Bench::both() {
        let bench = bench.pool("p", "10.1.0.0/24", 26);
        for block in ["10.1.0.64/26", "10.1.0.128/26"] {
            bench.claim("node-a", block);
        }
        assert_eq!(bench.assign(&pod("node-a", "a", "p", "03:04:05")).unwrap(), ["10.1.0.128/26"]);
    }
}

#[test]
fn a_pool_that_must_not_be_used_is_skipped_for_each_reason() {
    // calico-ipam.md sections 1.8 and 3.4 step 4
    let pool = |spec: &str, rest: &str| {
        format!(
            r#"{{"kind":"IPPool","apiVersion":"projectcalico.org/v3","metadata":{{"name":"p"{rest}}},"spec":{{"cidr":"10.1.0.0/24"{spec}}}"#
        )
    };
    let cases = [
        pool(r#","disabled":true"#, "") + "}",
        pool("", r#","deletionTimestamp":"2026-01-02T03:00:00Z""#) + "}",
        pool("", "") + r#","status":{"conditions":[{"type":"Allocatable","status":"False"}]}}"#,
        pool(r#","assignmentMode":"Manual""#, "") + "}",
        pool(r#","nodeSelector":"has(gpu)""#, "") + "}",
        pool(r#","namespaceSelector":"team == 'a'""#, "") + "}",
        pool(r#","allowedUses":["Tunnel"]"#, "") + "}",
        pool(r#","allowedUses":["LoadBalancer"]"#, "") + "}",
    ];
    for text in cases {
        for bench in Bench::both() {
            bench
                .put(Key::node(&node("node-a")), r#"{"kind":"Node","metadata":{"name":"node-a"},"spec":{}}"#);
            bench.put(Key::pool("p").unwrap(), text.as_str());
            bench.writes();
            let error = bench.assign(&pod("node-a", "a", "p", "03:04:05")).unwrap_err();
            assert!(matches!(error, IpamError::NoPool { .. }), "{text}: {error}");
            assert!(bench.writes().is_empty());
        }
    }
    // What says nothing, or what is the default, gives.
    for text in ["", r#","status":{"conditions":[{"type":"Allocatable","status":"True"}]}"#] {
        for bench in Bench::both() {
            bench.put(Key::pool("p").unwrap(), pool("", "") + text + "}");
            assert!(bench.assign(&pod("node-a", "a", "p", "03:04:05")).is_ok(), "{text}");
        }
    }
}

#[test]
fn a_requested_address_needs_only_an_enabled_pool_and_its_use() {
    // calico-ipam.md section 3.7: selectors, mode, limit and reservations do not matter
    for bench in Bench::both() {
        special(&bench, "p", "10.1.0.0/24", |spec| {
            spec.node_selector = Some("has(gpu)".into());
            spec.namespace_selector = Some("has(team)".into());
            spec.assignment_mode = russet_model::AssignmentMode::Manual;
        });
        let bench =
            bench.config(r#"{"strict_affinity":true,"auto_allocate_blocks":true,"maxBlocksPerHost":1}"#);
        let reservation = r#"{"metadata":{"name":"r"},"spec":{"reservedCIDRs":["10.1.0.0/24"]}}"#;
        bench.put(Key::reservation("r").unwrap(), reservation);
        assert_eq!(pin(&bench, "node-a", "a", "10.1.0.1").unwrap(), ["10.1.0.1/32"]);
        assert_eq!(pin(&bench, "node-a", "b", "10.1.0.9").unwrap(), ["10.1.0.9/32"], "a second block");
        special(&bench, "t", "10.2.0.0/24", |spec| spec.allowed_uses = vec!["Tunnel".into()]);
        assert!(matches!(pin(&bench, "node-a", "c", "10.2.0.1"), Err(IpamError::NoPool { .. })));
        special(&bench, "d", "10.3.0.0/24", |spec| spec.disabled = true);
        assert!(matches!(pin(&bench, "node-a", "c", "10.3.0.1"), Err(IpamError::NotInPool { .. })));
        bench.check_consistent();
    }
}

#[test]
fn a_requested_address_may_be_in_any_block_unless_affinity_is_strict() {
    // calico-ipam.md section 3.7
    for owner in ["\"host:node-b\"", "null", "\"virtual:load-balancer\""] {
        for bench in Bench::both().map(Bench::with_pool) {
            bench.put_block(&vacant(BLOCK, owner));
            assert_eq!(pin(&bench, "node-a", "a", "10.1.0.20").unwrap(), ["10.1.0.20/32"]);
            assert!(bench.block_text(BLOCK).unwrap().contains(&format!("\"affinity\":{owner},")));
            let bench = bench.config(r#"{"strict_affinity":true,"auto_allocate_blocks":true}"#);
            let error = pin(&bench, "node-a", "b", "10.1.0.21").unwrap_err();
            assert!(matches!(error, IpamError::ForeignBlock { .. }), "{error}");
            bench.check_consistent();
        }
    }
}

#[test]
fn a_block_limit_fails_a_request_even_if_borrowing_would_succeed() {
    // calico-ipam.md sections 3.4 steps 6 and 7, 1.7: settings that break the rules of writing them hold all the same
    for bench in Bench::both().map(Bench::with_pool) {
        let bench = bench.config(r#"{"auto_allocate_blocks":true,"maxBlocksPerHost":2}"#);
        bench.claim("node-b", BLOCK);
        let all = Request { v4: 16, ..pod("node-a", "all", "p", "03:04:05") };
        assert_eq!(bench.assign(&all).unwrap().len(), 16);
        let error = bench.assign(&pod("node-a", "more", "p", "03:04:05")).unwrap_err();
        assert!(matches!(error, IpamError::BlockLimit { limit: 2, .. }), "{error}");
        // The request's own limit only makes it smaller.
        for (asked, limit) in [(1, 1), (7, 2)] {
            let request = Request { v4: 17, max_blocks: asked, ..pod("node-c", "c", "p", "03:04:05") };
            let error = bench.assign(&request).unwrap_err();
            assert!(matches!(error, IpamError::BlockLimit { limit: l, .. } if l == limit), "{error}");
        }
        bench.check_consistent();
    }
}

#[test]
fn unreadable_settings_are_an_error_and_have_no_default() {
    // calico-ipam.md sections 1.2 and 1.7: Get fails where a list would drop the record; strict affinity may stand in it
    for text in ["", "null", "[]", r#"{"strict_affinity":"true"}"#, r#"{"maxBlocksPerHost":1.0}"#] {
        for bench in Bench::both().map(Bench::with_pool) {
            let bench = bench.config(text);
            let request = pod("node-a", "a", "p", "03:04:05");
            for error in [
                run(bench.ipam.auto_assign(&request)).unwrap_err(),
                run(bench.ipam.assign_ip(&request, "10.1.0.20".parse().unwrap())).unwrap_err(),
            ] {
                assert!(
                    error.to_string().starts_with("/calico/ipam/v2/config is corrupt: IPAM config"),
                    "{error}"
                );
            }
            bench.check_consistent();
        }
    }
}

#[test]
fn the_block_limit_counts_blocks_of_pools_that_may_serve_the_request() {
    // calico-ipam.md section 3.4 step 6: per family, and only in the pools eligible for this request
    for bench in Bench::both() {
        let bench =
            bench.pool("a", "10.1.0.0/24", 29).pool("b", "10.2.0.0/24", 29).pool("s", "fd80::/64", 122);
        let bench =
            bench.config(r#"{"strict_affinity":true,"auto_allocate_blocks":true,"maxBlocksPerHost":1}"#);
        for (id, pool) in [("a", "10.1.0.0/24"), ("b", "10.2.0.0/24")] {
            let pools4 = Some(vec![pool.parse().unwrap()]);
            let request = Request { pools4, v6: u32::from(id == "a"), ..pod("node-a", id, "p", "03:04:05") };
            assert!(bench.assign(&request).is_ok(), "one block of each pool and family");
        }
        let many = Request { v4: 15, ..pod("node-a", "c", "p", "03:04:05") };
        assert!(matches!(bench.assign(&many), Err(IpamError::BlockLimit { limit: 1, .. })));
    }
}

#[test]
fn a_block_without_an_affinity_record_is_used_by_its_node() {
    // calico-ipam.md section 3.5, findUsableBlock: present, ours, with room
    for bench in Bench::both() {
        let bench = bench.pool("p", "10.1.0.0/28", 29);
        bench.put_block(&vacant("10.1.0.0/29", "\"host:node-a\""));
        bench.claim("node-b", "10.1.0.8/29");
        assert_eq!(bench.assign(&pod("node-a", "a", "p", "03:04:05")).unwrap(), ["10.1.0.0/29"]);
        assert_eq!(bench.affinity_text("node-a", "10.1.0.0/29").unwrap(), CONFIRMED);
        bench.check_consistent();
    }
}

/// A store that records what was listed, and runs a function once, right after the blocks were listed.
struct Meanwhile {
    sim: Sim,
    lists: RefCell<Vec<String>>,
    event: RefCell<Option<Box<dyn FnOnce()>>>,
}

impl Meanwhile {
    fn new(bench: &Bench) -> Rc<Self> {
        Rc::new(Self { sim: bench.sim.clone(), lists: RefCell::default(), event: RefCell::default() })
    }
}

impl Store for Meanwhile {
    forward_store!(self.sim: claims get commit watch);

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(async move {
            self.lists.borrow_mut().push(prefix.to_string());
            let listed = self.sim.list(prefix).await;
            if *prefix == Prefix::blocks(Some(Family::V4))
                && let Some(event) = self.event.take()
            {
                event();
            }
            listed
        })
    }
}

#[test]
fn tv23_an_idle_block_that_is_used_again_is_not_reclaimed() {
    // calico-ipam.md sections 8 and 9, MUST NOT: only empty, and only at the sequence number that was seen; then node-b borrows
    for bench in Bench::both() {
        let bench = bench.pool("p", "10.5.0.0/29", 30);
        bench.claim("node-a", "10.5.0.0/30");
        bench.assign(&Request { v4: 4, ..pod("node-a", "a", "p", "03:01:00") }).unwrap();
        bench.claim("node-c", "10.5.0.4/30");
        bench.wait(Duration::from_secs(600));
        let other = Allocator::new(Rc::new(bench.sim.clone()), bench.clock.clone());
        let wake = move || drop(run(other.auto_assign(&pod("node-c", "c", "p", "03:11:00"))).unwrap());
        let store = Meanwhile::new(&bench);
        *store.event.borrow_mut() = Some(Box::new(wake));
        let ours = Allocator::new(store, bench.clock.clone());
        let got = run(ours.auto_assign(&pod("node-b", "b", "q", "03:12:00"))).unwrap();
        assert_eq!(texts(&got), ["10.5.0.5/30"]);
        assert!(bench.block("10.5.0.4/30").serves(&node("node-c")));
        assert_eq!(bench.affinity_text("node-c", "10.5.0.4/30").unwrap(), CONFIRMED);
        assert_eq!(bench.affinity_text("node-b", "10.5.0.4/30"), None);
        bench.check_consistent();
    }
}

#[test]
fn an_idle_block_without_a_claim_time_counts_as_very_old() {
    // calico-ipam.md section 3.5: peers up to 3.31 drop the claim time when they write
    for bench in Bench::both() {
        let bench = bench.pool("p", "10.1.0.16/29", 29);
        bench.put_block(&vacant(BLOCK, "\"host:node-c\""));
        bench.put_affinity("node-c", BLOCK, CONFIRMED);
        assert!(bench.assign(&pod("node-b", "b", "p", "03:04:05")).is_ok());
        assert!(bench.block(BLOCK).serves(&node("node-b")));
        assert_eq!(bench.affinity_text("node-c", BLOCK), None);
    }
}

#[test]
fn addresses_are_released_without_pool_or_block_and_free_ones_are_reported() {
    // calico-ipam.md section 3.8: all pools count, disabled ones too; without a pool the blocks are looked through
    for bench in Bench::both().map(tv4) {
        special(&bench, "default-ipv4-ippool", "10.1.0.0/24", |spec| spec.disabled = true);
        let released = run(bench.ipam.release_ips(&[options("10.1.0.17")])).unwrap();
        assert_eq!((released.addresses.len(), released.unallocated.len()), (1, 0));
        bench.put(
            Key::pool("default-ipv4-ippool").unwrap(),
            IpPool::new("default-ipv4-ippool", IpPoolSpec::new("10.7.0.0/24".parse().unwrap())).encode(),
        );
        let list = ["10.1.0.18", "10.1.0.23", "10.1.0.99", "192.0.2.1", "fd80::1", "10.7.0.1"].map(options);
        let released = run(bench.ipam.release_ips(&list)).unwrap();
        assert_eq!(released.addresses, ["10.1.0.18".parse::<std::net::IpAddr>().unwrap()]);
        assert_eq!(released.unallocated.len(), 5);
        bench.check_consistent();
    }
}

#[test]
fn an_empty_block_is_kept_unless_an_enabled_pool_excludes_its_known_node() {
    // calico-ipam.md section 3.10, ensureConsistentAffinity
    let label = r#"{"kind":"Node","metadata":{"name":"node-a","labels":{"gpu":"1"}},"spec":{}}"#;
    let plain = r#"{"kind":"Node","metadata":{"name":"node-a"},"spec":{}}"#;
    type Change = fn(&mut IpPoolSpec);
    let cases: [(&str, Option<&str>, Change, bool); 6] = [
        ("it selects the node", Some(label), |spec| spec.node_selector = Some("has(gpu)".into()), true),
        ("the node is not known", None, |spec| spec.node_selector = Some("has(gpu)".into()), true),
        (
            "the pool is disabled",
            Some(plain),
            |spec| {
                spec.node_selector = Some("has(gpu)".into());
                spec.disabled = true;
            },
            true,
        ),
        (
            "namespaces do not matter",
            Some(plain),
            |spec| spec.namespace_selector = Some("has(team)".into()),
            true,
        ),
        ("the selector is no selector", Some(plain), |spec| spec.node_selector = Some("gpu".into()), true),
        ("it turns the node away", Some(plain), |spec| spec.node_selector = Some("has(gpu)".into()), false),
    ];
    for (name, record, change, kept) in cases {
        for by_handle in [true, false] {
            for bench in Bench::both().map(tv1) {
                bench.assign(&pod("node-a", "a", "p", "03:04:05")).unwrap();
                if let Some(record) = record {
                    bench.put(Key::node(&node("node-a")), record);
                }
                special(&bench, "default-ipv4-ippool", "10.1.0.0/24", change);
                if by_handle {
                    bench.release("a");
                } else {
                    run(bench.ipam.release_ips(&[options("10.1.0.16")])).unwrap();
                }
                assert_eq!(bench.block_text(BLOCK).is_some(), kept, "{name}");
                assert_eq!(bench.affinity_text("node-a", BLOCK).is_some(), kept, "{name}");
            }
        }
    }
}

#[test]
fn removing_a_node_or_a_pool_removes_its_affinities() {
    // calico-ipam.md section 3.10: RemoveIPAMHost, ReleasePoolAffinities
    for bench in Bench::both().map(tv4) {
        bench.put(Key::ipam_host(&node("node-b")), "{}");
        bench.claim("node-b", "10.1.0.24/29");
        run(bench.ipam.remove_node(&node("node-b"))).unwrap();
        assert!(
            bench.sim.records().keys().all(|key| !key.as_str().contains("node-b")),
            "{}",
            bench.sim.dump()
        );
        bench.claim("node-c", "10.1.0.32/29");
        run(bench.ipam.release_pool_affinities("10.1.0.0/24".parse().unwrap())).unwrap();
        assert!(bench.sim.records().keys().all(|key| !matches!(key.kind(), KeyKind::Affinity { .. })));
        assert_eq!(bench.block(BLOCK).affinity, None, "in use: it stays without affinity");
        assert_eq!(bench.block_text("10.1.0.32/29"), None);
        bench.check_consistent();
    }
}

#[test]
fn records_are_read_once_for_a_request_and_only_for_its_families() {
    // calico-ipam.md section 9, SHOULD
    for bench in Bench::both() {
        let bench = bench.with_pool().pool("six", "fd80::/64", 122);
        let store = Meanwhile::new(&bench);
        let ipam = Allocator::new(store.clone(), bench.clock.clone());
        run(ipam.auto_assign(&pod("node-a", "four", "p", "03:04:05"))).unwrap();
        let lists = store.lists.take();
        assert!(lists.iter().all(|prefix| !prefix.contains("ipv6")), "{lists:?}");
        let both = Request { v6: 1, ..pod("node-a", "both", "p", "03:04:05") };
        assert_eq!(run(ipam.auto_assign(&both)).unwrap().addresses.len(), 2);
        let lists = store.lists.take();
        for once in ["/ippools/", "/ipreservations/"] {
            assert_eq!(lists.iter().filter(|prefix| prefix.ends_with(once)).count(), 1, "{lists:?}");
        }
    }
}

#[test]
fn handles_count_allocated_and_not_requested_addresses() {
    // calico-ipam.md section 9, SHOULD: Go counts the request's whole number in each block
    for bench in Bench::both().map(tv4) {
        let request = Request { v4: 6, ..pod("node-a", "many", "p", "03:04:05") };
        assert_eq!(bench.assign(&request).unwrap().len(), 6);
        let counted = Handle::decode(bench.handle_text("many").unwrap().as_bytes()).unwrap().block;
        assert_eq!(counted.values().copied().collect::<Vec<_>>(), [4, 2]);
        bench.check_consistent();
    }
}

#[test]
fn api_objects_are_not_read_and_no_record_has_a_lease() {
    // calico-ipam.md sections 1.1 (K13, K14) and 9, MUST NOT
    for bench in Bench::both().map(Bench::with_pool) {
        let resource = |plural: &str, name: &str| {
            Key::from_stored(format!("/calico/resources/v3/projectcalico.org/{plural}/{name}"))
        };
        let off = r#"{"kind":"IPAMConfiguration","metadata":{"name":"default"},"spec":{"strictAffinity":true,"autoAllocateBlocks":false,"maxBlocksPerHost":1}}"#;
        bench.put(resource("ipamconfigurations", "default"), off);
        let affinity = r#"{"kind":"BlockAffinity","metadata":{"name":"node-a-10-1-0-0-29"},"spec":{"state":"confirmed","node":"node-a","cidr":"10.1.0.0/29"}}"#;
        bench.put(resource("blockaffinities", "node-a-10-1-0-0-29"), affinity);
        assert_eq!(
            bench.assign(&Request { v4: 24, ..pod("node-a", "a", "p", "03:04:05") }).unwrap().len(),
            24
        );
        assert!(!bench.sim.dump().contains(" lease "));
        bench.release("a");
        assert!(bench.value(&resource("blockaffinities", "node-a-10-1-0-0-29")).is_some());
    }
}
