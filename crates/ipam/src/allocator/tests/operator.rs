//! What an operator asks for: holders, settled handles, settings.

use super::vectors::{BLOCK, tv4};
use super::*;

fn revision(bench: &Bench, id: &str) -> Revision {
    bench.sim.records()[&Key::handle(&handle(id))].revision
}

#[test]
fn a_holder_is_found_in_a_disabled_pool_and_without_a_pool() {
    // calico-ipam.md section 5.2: calicoctl reads enabled pools only
    for bench in Bench::both().map(tv4) {
        let address = "10.1.0.17".parse().unwrap();
        let mut spec = IpPoolSpec::new("10.1.0.0/24".parse().unwrap());
        (spec.disabled, spec.block_size) = (true, Some(29));
        bench.put(
            Key::pool("default-ipv4-ippool").unwrap(),
            IpPool::new("default-ipv4-ippool", spec).encode(),
        );
        let held = run(bench.ipam.holder_of(address)).unwrap().unwrap();
        assert_eq!((held.attribute.get("pod"), held.sequence_number), (Some("job-1"), S + 1));
        run(bench.sim.commit(vec![Step::delete(Key::pool("default-ipv4-ippool").unwrap(), None)])).unwrap();
        assert_eq!(run(bench.ipam.holder_of(address)).unwrap(), Some(held));
        assert_eq!(run(bench.ipam.holder_of("10.1.0.23".parse().unwrap())).unwrap(), None);
        assert_eq!(run(bench.ipam.holder_of("fd00::1".parse().unwrap())).unwrap(), None);
    }
}

#[test]
fn a_handle_is_settled_at_the_given_revision_and_keeps_correct_counts() {
    // calico-ipam.md TV8 (the orphan of 3.32), TV22
    for bench in Bench::both().map(tv4) {
        let orphan = |block: &str| format!(r#"{{"block":{{"{block}":1}},"deleted":false}}"#);
        bench.put(Key::handle(&handle("gone")), orphan(BLOCK));
        bench.put(Key::handle(&handle("lost")), orphan("10.1.0.24/29"));
        bench.put(Key::handle(&handle("empty")), r#"{"block":{},"deleted":false}"#);
        let settle = |id: &str, at: Revision| run(bench.ipam.settle_handle(&handle(id), at)).unwrap();
        assert!(!settle("gone", Revision(1)));
        assert!(bench.handle_text("gone").is_some());
        for id in ["gone", "lost", "empty"] {
            assert!(settle(id, revision(&bench, id)));
            assert_eq!(bench.handle_text(id), None);
        }
        let before = bench.handle_text("bbbb");
        assert!(settle("bbbb", revision(&bench, "bbbb")));
        assert_eq!(bench.handle_text("bbbb"), before);
        bench.check_consistent();
    }
}

#[test]
fn settings_are_changed_by_the_rules_and_keep_unknown_fields() {
    // calico-ipam.md section 1.7
    let text = |bench: &Bench| bench.value(&Key::ipam_config());
    for bench in Bench::both() {
        let refused = run(bench.ipam.configure(|config| config.max_blocks_per_host = 2));
        assert!(matches!(refused, Err(IpamError::Invalid(_))), "{refused:?}");
        run(bench.ipam.configure(|config| config.strict_affinity = false)).unwrap();
        assert_eq!(text(&bench), None);
        run(bench.ipam.configure(|config| config.strict_affinity = true)).unwrap();
        assert_eq!(text(&bench).unwrap(), r#"{"strict_affinity":true,"auto_allocate_blocks":true}"#);
    }
    for bench in Bench::both() {
        let bench =
            bench.config(r#"{"auto_allocate_blocks":true,"ipCooldownSeconds":60,"new":{"b":1,"a":2}}"#);
        // Another writer is faster, and the second answer is lost.
        bench.sim.script([Fault::Conflict, Fault::LostReply]);
        let done = run(bench.ipam.configure(|config| config.strict_affinity = true)).unwrap();
        assert!(!done.before.strict_affinity && done.after.strict_affinity);
        assert_eq!(
            text(&bench).unwrap(),
            r#"{"strict_affinity":true,"auto_allocate_blocks":true,"ipCooldownSeconds":60,"new":{"b":1,"a":2}}"#
        );
    }
}

/// calico-ipam.md section 5.2, `split`.
#[test]
fn a_pool_with_pods_is_split_on_both_kinds_of_store() {
    for sim in [Sim::atomic(1), Sim::non_atomic(1)] {
        let bench = Bench::new(sim).pool("p", "10.7.0.0/24", 26);
        let got = bench.assign(&pod("node-a", "first", "p", "03:04:05")).unwrap();
        let parts = run(bench.ipam.split_pool("p", 4)).unwrap();
        let names: Vec<String> =
            parts.iter().map(|pool| format!("{} {}", pool.metadata.name, pool.spec.cidr)).collect();
        assert_eq!(names[0], "split-p-0 10.7.0.0/26");
        assert_eq!(names[3], "split-p-3 10.7.0.192/26");
        let pools = run(bench.ipam.pools()).unwrap();
        assert_eq!(pools.len(), 4, "the old one is gone");
        assert!(pools.iter().all(|pool| !pool.spec.disabled && pool.spec.block_prefix_len() == 26));
        assert_eq!(
            bench.assign(&pod("node-a", "first", "p", "03:04:05")).unwrap(),
            got,
            "pods keep their addresses"
        );
        assert_eq!(bench.release("first").addresses.len(), 1);
    }
}

#[test]
fn an_invalid_split_changes_nothing() {
    let bench = Bench::new(Sim::atomic(1)).pool("p", "10.7.0.0/25", 26).pool("split-p-1", "10.8.0.0/24", 26);
    for (name, parts, reason) in [
        ("p", 3, "power of two"),
        ("p", 1, "power of two"),
        ("p", 4, "smaller than its blocks"),
        ("q", 2, "no pool q"),
        ("p", 2, "already"),
    ] {
        let error = run(bench.ipam.split_pool(name, parts)).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    assert!(bench.writes().is_empty());
}
