use std::sync::{Arc, Mutex, mpsc};

use russet_policy::{Entry, Keeper, Load};
use russet_testkit::{eventually, in_new_netns};

use super::*;
use crate::drift::Mirror;
use crate::metrics::Metrics;

const SECOND: Duration = Duration::from_secs(1);

/// Everything became suspect now.
fn suspicion(now: Instant) -> Suspicion {
    Suspicion { since: now, parts: Part::ALL.into(), traces: Traces::default() }
}

#[test]
fn without_verdicts_everything_is_let_through_so_they_come_first_and_what_may_wait_long_comes_last() {
    let order: Vec<Part> = BTreeSet::from(Part::ALL).into_iter().collect();
    assert_eq!(order, [Part::Verdicts, Part::Sdn, Part::Pods, Part::Overlay, Part::Nat]);
}

/// Found by a reader: a flood of others' routes, overdrawn by 100,000 of them, left pods unjudged for five seconds.
#[test]
fn what_has_overdrawn_the_budget_of_one_purse_makes_nothing_of_another_wait() {
    let (now, none) = (Instant::now(), BTreeSet::new());
    let all = BTreeSet::from(Part::ALL);
    for spender in Purse::ALL {
        let mut works = Works::new(now);
        (0..100).for_each(|_| works.budget(spender).spend(Duration::from_secs(1)));
        for purse in Purse::ALL {
            let own: Vec<Part> = Part::ALL.into_iter().filter(|part| part.purse() == purse).collect();
            assert!(!own.is_empty());
            let (parts, pause) = works.begin(purse, &all, &none, now);
            assert_eq!(
                (parts.is_empty(), !pause.is_zero()),
                (purse == spender, purse == spender),
                "{purse:?}"
            );
            // What is due does not wait for any budget.
            let (parts, _) = works.begin(purse, &all, &all, now);
            assert_eq!(parts.into_keys().collect::<Vec<_>>(), own);
        }
        assert!(works.begin(spender, &none, &none, now).1.is_zero(), "nothing is suspect");
    }
    let others = Part::ALL.into_iter().filter(|part| part.purse() == Purse::Others);
    assert_eq!(
        others.collect::<Vec<_>>(),
        [Part::Pods, Part::Overlay],
        "what a flood of others' routes overdraws"
    );
}

#[test]
#[ignore = "kernel: nf_tables, root"]
fn verdicts_are_put_back_while_a_flood_has_overdrawn_the_rest_and_what_that_costs_is_charged_to_them() {
    in_new_netns(|| {
        let start = Instant::now();
        let load: Load = Arc::new(|| {
            let began = busy_time();
            while busy_time() < began + Duration::from_millis(600) {}
            Ok(vec![Entry::allow("russ1".parse().unwrap())])
        });
        let shared = Shared::open(Metrics::new().0, Mirror::default(), Keeper::new(load)).unwrap();
        let mut works = Works::new(start);
        (0..100).for_each(|_| works.budget(Purse::Others).spend(Duration::from_secs(1)));
        shared.keep(suspicion(start));
        shared.work(&mut works);
        assert!(works.asked.is_some());
        let left = lock(&shared.suspicion).as_ref().map(|kept| kept.parts.clone()).unwrap_or_default();
        assert!(!left.contains(&Part::Verdicts) && left.contains(&Part::Overlay), "{left:?}");
        eventually(Duration::from_secs(20), || {
            shared.work(&mut works);
            works.asked.is_none()
        });
        assert_eq!(lock(&shared.log).report(Vec::new()).repairs_total, 1);
        // A full budget minus what the keeper's thread was busy, and as much as the full one has: seen from the start, when nothing was earned.
        let budget = works.budget(Purse::Verdicts);
        (0..2).for_each(|_| budget.spend(Duration::from_secs(1)));
        assert!(!budget.wait(start).is_zero());
    });
}

/// Found by a reader: while somebody held nf_tables, the thread waited ten seconds for it and heard nothing.
#[test]
#[ignore = "kernel: nf_tables, root"]
fn nothing_waits_for_the_answer_about_verdicts_and_it_is_told_when_it_is_there() {
    in_new_netns(|| {
        let (release, hang) = mpsc::channel::<()>();
        let hang = Mutex::new(hang);
        let load: Load = Arc::new(move || {
            let _ = lock(&hang).recv();
            Ok(vec![Entry::allow("russ1".parse().unwrap())])
        });
        let shared = Shared::open(Metrics::new().0, Mirror::default(), Keeper::new(load)).unwrap();
        let mut works = Works::new(Instant::now());
        let report = || lock(&shared.log).report(Vec::new());
        let left = || lock(&shared.suspicion).as_ref().map(|kept| kept.parts.clone());
        shared.keep(suspicion(Instant::now()));
        assert_eq!(shared.work(&mut works), WAIT_MAX, "nobody looks every other moment whether it is there");
        assert!(works.asked.is_some());
        // Links and routes have been compared; pods' masquerade would wait for the same thing.
        assert_eq!(left(), Some(BTreeSet::from([Part::Nat])));
        // What is heard meanwhile is compared when this is over, and not forgotten.
        shared.keep(suspicion(Instant::now()));
        shared.work(&mut works);
        assert_eq!((left(), report().repairs_total), (Some(BTreeSet::from([Part::Verdicts, Part::Nat])), 0));
        lock(&shared.due).soon(Part::Nat, Instant::now() - SECOND);
        assert_eq!(shared.work(&mut works), WAIT_MAX, "what cannot be compared now is not due, either");
        assert!(!shared.bell.wait(NO_WAIT).unwrap());
        drop(release);
        // The answer, and the one about what was heard meanwhile.
        for _ in 0..2 {
            assert!(shared.bell.wait(20 * SECOND).unwrap());
            shared.bell.hush();
            shared.work(&mut works);
        }
        assert!(works.asked.is_none());
        eventually(20 * SECOND, || {
            shared.work(&mut works);
            left().is_none()
        });
        let repairs = report().repairs;
        assert!(repairs.len() == 1 && repairs[0].kinds.contains_key("verdict"), "{repairs:?}");
    });
}
