use std::sync::{Mutex, mpsc};

use russet_journal::EndpointTable;
use russet_policy::{Entry, Keeper, Load};
use russet_testkit::{eventually, in_new_netns};

use super::*;
use crate::drift::Dirty;
use crate::metrics::Metrics;

const SECOND: Duration = Duration::from_secs(1);

/// All controllers became dirty now.
fn dirty(now: Instant) -> Dirty {
    Dirty::all(now)
}

#[test]
fn verdicts_are_compared_first_and_masquerade_last() {
    let order: Vec<ControllerId> = BTreeSet::from(ControllerId::ALL).into_iter().collect();
    assert_eq!(
        order,
        [
            ControllerId::Verdicts,
            ControllerId::Openshift,
            ControllerId::Endpoints,
            ControllerId::Overlay,
            ControllerId::Nat
        ]
    );
}

/// Regression: a flood of foreign routes, which overdrew the budget by 100,000 routes, left pods
/// without verdicts for five seconds.
#[test]
fn an_overdrawn_budget_of_one_class_does_not_delay_another_class() {
    let (now, none) = (Instant::now(), BTreeSet::new());
    let all = BTreeSet::from(ControllerId::ALL);
    for spender in BudgetClass::ALL {
        let mut state = RepairState::new(now);
        (0..100).for_each(|_| state.budget(spender).spend(Duration::from_secs(1)));
        for class in BudgetClass::ALL {
            let own: Vec<_> = ControllerId::ALL.into_iter().filter(|id| id.budget_class() == class).collect();
            assert!(!own.is_empty());
            let (controllers, pause) = state.begin(class, &all, &none, now);
            assert_eq!(
                (controllers.is_empty(), !pause.is_zero()),
                (class == spender, class == spender),
                "{class:?}"
            );
            // What is due does not wait for a budget.
            let (controllers, _) = state.begin(class, &all, &all, now);
            assert_eq!(controllers.into_keys().collect::<Vec<_>>(), own);
        }
        assert!(state.begin(spender, &none, &none, now).1.is_zero(), "nothing is dirty");
    }
    let others = ControllerId::ALL.into_iter().filter(|id| id.budget_class() == BudgetClass::Others);
    assert_eq!(
        others.collect::<Vec<_>>(),
        [ControllerId::Endpoints, ControllerId::Overlay],
        "what a flood of others' routes overdraws"
    );
}

#[test]
#[ignore = "kernel: nf_tables, root"]
fn verdicts_are_restored_while_other_budgets_are_overdrawn_and_their_cost_is_charged() {
    in_new_netns(|| {
        let start = Instant::now();
        let load: Load = Arc::new(|| {
            let began = busy_time();
            while busy_time() < began + Duration::from_millis(600) {}
            Ok(vec![Entry::allow("russ1".parse().unwrap())])
        });
        let shared = Shared::open(Metrics::new().0, EndpointTable::default(), Keeper::new(load)).unwrap();
        let mut state = RepairState::new(start);
        (0..100).for_each(|_| state.budget(BudgetClass::Others).spend(Duration::from_secs(1)));
        shared.drift.mark(dirty(start));
        shared.work(&mut state);
        assert!(state.pending.is_some());
        let left = shared.drift.dirty();
        assert!(!left.contains(&ControllerId::Verdicts) && left.contains(&ControllerId::Overlay), "{left:?}");
        eventually(Duration::from_secs(20), || {
            shared.work(&mut state);
            state.pending.is_none()
        });
        assert_eq!(shared.drift.report(Vec::new()).repairs_total, 1);
        // A full budget minus the keeper's processor time, compared with a full budget, both at the
        // start, when nothing has been earned.
        let budget = state.budget(BudgetClass::Verdicts);
        (0..2).for_each(|_| budget.spend(Duration::from_secs(1)));
        assert!(!budget.wait(start).is_zero());
    });
}

/// Regression: while another program held nf_tables, the thread waited ten seconds for it and read
/// no events.
#[test]
#[ignore = "kernel: nf_tables, root"]
fn the_thread_does_not_wait_for_the_answer_about_verdicts_and_logs_it_when_it_arrives() {
    in_new_netns(|| {
        let (release, hang) = mpsc::channel::<()>();
        let hang = Mutex::new(hang);
        let load: Load = Arc::new(move || {
            let _ = lock(&hang).recv();
            Ok(vec![Entry::allow("russ1".parse().unwrap())])
        });
        let shared = Shared::open(Metrics::new().0, EndpointTable::default(), Keeper::new(load)).unwrap();
        let mut state = RepairState::new(Instant::now());
        let report = || shared.drift.report(Vec::new());
        let left = || shared.drift.dirty();
        shared.drift.mark(dirty(Instant::now()));
        assert_eq!(shared.work(&mut state), WAIT_MAX, "the thread does not poll for the answer");
        assert!(state.pending.is_some());
        // Links and routes have been compared; pods' masquerade would wait for the same lock.
        assert_eq!(left(), BTreeSet::from([ControllerId::Nat]));
        // Events that arrive meanwhile are handled when this is over.
        shared.drift.mark(dirty(Instant::now()));
        shared.work(&mut state);
        assert_eq!(
            (left(), report().repairs_total),
            (BTreeSet::from([ControllerId::Verdicts, ControllerId::Nat]), 0)
        );
        shared.drift.schedule().soon(ControllerId::Nat, Instant::now() - SECOND);
        assert_eq!(shared.work(&mut state), WAIT_MAX, "a controller that cannot compare now is not due");
        assert!(!shared.answer_ready.wait(NO_WAIT).unwrap());
        drop(release);
        // The answer, and the one about the events that arrived meanwhile.
        for _ in 0..2 {
            assert!(shared.answer_ready.wait(20 * SECOND).unwrap());
            shared.answer_ready.reset();
            shared.work(&mut state);
        }
        assert!(state.pending.is_none());
        eventually(20 * SECOND, || {
            shared.work(&mut state);
            left().is_empty()
        });
        let repairs = report().repairs;
        assert!(repairs.len() == 1 && repairs[0].kinds.contains_key("verdict"), "{repairs:?}");
    });
}
