//! Tests of the simulated engine's faults; what every engine must do is in `conformance`.

use std::future::Future;
use std::task::{Context, Waker};

use super::*;

fn key(name: &str) -> Key {
    Key::from_stored(format!("/calico/ipam/v2/handle/{name}"))
}

fn run<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return value;
        }
    }
}

#[test]
fn a_lost_reply_is_unknown_and_took_effect() {
    let sim = Sim::atomic(1);
    sim.script([Fault::LostReply]);
    let error = run(sim.commit(vec![Step::create(key("a"), "1")])).unwrap_err();
    assert!(error.error.outcome_unknown());
    assert_eq!(sim.records().len(), 1);
}

#[test]
fn a_lost_request_is_unknown_and_had_no_effect() {
    let sim = Sim::atomic(1);
    sim.script([Fault::LostRequest]);
    let error = run(sim.commit(vec![Step::create(key("a"), "1")])).unwrap_err();
    assert!(error.error.outcome_unknown());
    assert!(sim.records().is_empty());
}

#[test]
fn an_injected_conflict_is_real_and_a_new_read_succeeds() {
    let sim = Sim::atomic(1);
    let first = run(sim.commit(vec![Step::create(key("a"), "1")])).unwrap()[0];
    sim.script([Fault::Conflict]);
    let error = run(sim.commit(vec![Step::update(key("a"), "2", first)])).unwrap_err();
    assert!(matches!(error.error, StoreError::Conflict { .. }));
    let now = run(sim.get(&key("a"))).unwrap().unwrap();
    assert_eq!(now.value, b"1");
    run(sim.commit(vec![Step::update(key("a"), "2", now.revision)])).unwrap();
}

#[test]
fn a_non_atomic_commit_that_fails_says_how_many_steps_took_effect() {
    let sim = Sim::non_atomic(1);
    sim.script([Fault::None, Fault::LostReply]);
    let steps = ["a", "b", "c"].map(|name| Step::create(key(name), "1"));
    let error = run(sim.commit(steps.into())).unwrap_err();
    assert_eq!((error.done, error.failed), (1, 1));
    assert_eq!(sim.records().len(), 2, "the second was applied, its answer lost; the third was never sent");
}

#[test]
fn a_dropped_commit_stops_at_each_possible_step() {
    let mut seen = std::collections::BTreeSet::new();
    for polls in 0..12 {
        let sim = Sim::non_atomic(1);
        let steps = ["a", "b", "c"].map(|name| Step::create(key(name), "1"));
        let mut future = sim.commit(steps.into());
        for _ in 0..polls {
            if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                break;
            }
        }
        drop(future);
        seen.insert(sim.records().len());
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let history = |seed| {
        let sim = Sim::non_atomic(seed);
        sim.set_faults(Faults {
            conflict: 100,
            lost_reply: 100,
            lost_request: 100,
            unavailable: 50,
            ..Faults::default()
        });
        for n in 0..200 {
            let name = key(&format!("h{}", n % 7));
            let current = run(sim.get(&name)).ok().flatten();
            let step = match current {
                Some(record) if n % 3 == 0 => Step::delete(name, Some(record.revision)),
                Some(record) => Step::update(name, n.to_string(), record.revision),
                None => Step::create(name, n.to_string()),
            };
            let _ = run(sim.commit(vec![step]));
        }
        sim.dump()
    };
    assert_eq!(history(7), history(7));
    assert_ne!(history(7), history(8));
}
