//! The agent's allocator remembers: what an ADD and a DEL cost then, and what it must not believe.

use super::*;

fn bench() -> Bench {
    let bench = Bench::new(Sim::atomic(1)).with_pool().pool("six", "fd80::/112", 122);
    let store = Rc::new(Recorder { sim: bench.sim.clone(), log: bench.log.clone() });
    let ipam = Allocator::new(store, bench.clock.clone()).with_cache(Duration::from_secs(1));
    Bench { ipam, ..bench }
}

fn dual(id: &str) -> Request {
    Request { v6: 1, ..pod("node-a", id, "p", "03:04:05") }
}

fn cost(bench: &Bench, work: impl FnOnce()) -> u64 {
    let before = bench.sim.operations();
    work();
    bench.sim.operations() - before
}

#[test]
fn an_add_with_a_warm_cache_is_one_commit_and_no_read() {
    // ARCHITECTURE.md, "Time budgets": one commit, no read.
    let bench = bench();
    bench.assign(&dual("first")).unwrap();
    let operations = cost(&bench, || {
        assert_eq!(bench.assign(&dual("second")).unwrap().len(), 2);
    });
    assert_eq!(operations, 1);
    bench.check_consistent();
    let operations = cost(&bench, || assert_eq!(bench.release("second").addresses.len(), 2));
    assert_eq!(operations, 1, "both blocks and the handle in one commit");
    bench.check_consistent();
    let operations = cost(&bench, || {
        bench.assign(&dual("third")).unwrap();
    });
    assert_eq!(operations, 1, "a release leaves the memory up to date");
}

#[test]
fn a_repeated_add_gets_the_same_address_also_from_the_cache() {
    let bench = bench();
    bench.assign(&dual("first")).unwrap();
    let got = bench.assign(&dual("second")).unwrap();
    bench.writes();
    assert_eq!(bench.assign(&dual("second")).unwrap(), got);
    assert!(bench.writes().is_empty());
}

#[test]
fn the_cache_yields_to_writes_of_other_processes() {
    let bench = bench();
    bench.assign(&dual("first")).unwrap();
    let other = Allocator::new(Rc::new(bench.sim.clone()), bench.clock.clone());
    let theirs = texts(&run(other.auto_assign(&dual("theirs"))).unwrap());
    let ours = bench.assign(&dual("ours")).unwrap();
    assert!(ours.iter().all(|net| !theirs.contains(net)), "{ours:?} {theirs:?}");
    run(other.release_by_handle(&handle("ours"), None)).unwrap();
    assert!(bench.release("ours").addresses.is_empty());
    bench.check_consistent();
}

#[test]
fn a_disabled_pool_is_cached_as_enabled_for_max_age_at_most() {
    let bench = bench();
    bench.assign(&dual("first")).unwrap();
    let mut pool = run(bench.ipam.pools()).unwrap().remove(0);
    pool.spec.disabled = true;
    bench.put(Key::pool("default-ipv4-ippool").unwrap(), pool.encode());
    assert!(bench.assign(&dual("second")).is_ok());
    bench.wait(Duration::from_secs(2));
    assert!(bench.assign(&dual("third")).is_err());
    pool.spec.disabled = false;
    bench.put(Key::pool("default-ipv4-ippool").unwrap(), pool.encode());
    bench.assign(&dual("fourth")).unwrap();
    pool.spec.disabled = true;
    bench.put(Key::pool("default-ipv4-ippool").unwrap(), pool.encode());
    bench.ipam.forget();
    assert!(bench.assign(&dual("fifth")).is_err(), "forgetting ends it at once");
    bench.check_consistent();
}

#[test]
fn the_families_of_pools_are_cached_and_dropped_with_the_rules() {
    let bench = bench();
    let families = || run(bench.ipam.pool_families()).unwrap().enabled;
    assert_eq!(families(), Family::BOTH);
    assert_eq!(cost(&bench, || assert_eq!(families(), Family::BOTH)), 0);
    bench.ipam.forget();
    assert_eq!(cost(&bench, || assert_eq!(families(), Family::BOTH)), 1);
}

#[test]
fn a_lost_answer_on_the_fast_path_is_found_on_the_slow_path() {
    for fault in [Fault::LostReply, Fault::LostRequest, Fault::Conflict, Fault::Unavailable] {
        let bench = bench();
        bench.assign(&dual("first")).unwrap();
        bench.sim.script([fault]);
        let got = bench.assign(&dual("second")).unwrap();
        let held = run(bench.ipam.ips_by_handle(&handle("second"))).unwrap();
        assert_eq!((got.len(), held.len()), (2, 2), "{fault:?}");
        bench.check_consistent();
        bench.sim.script([fault]);
        if fault != Fault::Unavailable {
            bench.release("second");
            bench.release("second");
            assert_eq!(bench.handle_text("second"), None, "{fault:?}");
        }
    }
}

#[test]
fn concurrent_requests_share_commits_and_a_dropped_one_delays_none() {
    let bench = bench();
    bench.assign(&dual("first")).unwrap();
    let requests: Vec<Request> = (0..5).map(|i| dual(&format!("pod{i}"))).collect();
    let before = bench.sim.operations();
    let mut work: Vec<_> = requests.iter().map(|request| Box::pin(bench.ipam.auto_assign(request))).collect();
    let mut context = Context::from_waker(Waker::noop());
    for future in &mut work {
        assert!(future.as_mut().poll(&mut context).is_pending());
    }
    drop(work.remove(1));
    let got: Vec<Assigned> = work.into_iter().map(|future| run(future).unwrap()).collect();
    assert_eq!(got.len(), 4);
    assert!(bench.sim.operations() - before < 4);
    bench.check_consistent();
}

#[test]
fn without_atomic_commits_an_add_is_two_writes_a_del_too_and_no_read() {
    // kubernetes.md sections 2.7 and 4.3
    let bench = Bench::new(Sim::non_atomic(1)).with_pool();
    let store = Rc::new(Recorder { sim: bench.sim.clone(), log: bench.log.clone() });
    let ipam = Allocator::new(store, bench.clock.clone()).with_cache(Duration::from_secs(1));
    let bench = Bench { ipam, ..bench };
    let asked = |id: &str| pod("node-a", id, "p", "03:04:05");
    bench.assign(&asked("first")).unwrap();
    let operations = cost(&bench, || drop(bench.assign(&asked("second")).unwrap()));
    assert_eq!(operations, 2, "the handle and the block");
    let operations = cost(&bench, || {
        let requests = ["third", "fourth", "fifth"].map(asked);
        let mut all: Vec<_> =
            requests.iter().map(|request| Box::pin(bench.ipam.auto_assign(request))).collect();
        while !all.is_empty() {
            let mut context = Context::from_waker(Waker::noop());
            all.retain_mut(|one| one.as_mut().poll(&mut context).is_pending());
        }
    });
    assert_eq!(operations, 5, "those that wait for the first one share the write of the block");
    let operations = cost(&bench, || assert_eq!(bench.release("second").addresses.len(), 1));
    assert_eq!(operations, 2, "the block and the handle");
    bench.check_consistent();
}
