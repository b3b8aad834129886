//! When all is quiet: everything that is there is compared with what should be there.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use russet_testkit::{eventually, let_pass};
use serde_json::json;

use super::files;
use super::player::{Arena, remove_netns};
use super::ward::{State, Ward};
use crate::chaos::books::Books;
use crate::chaos::kernel;
use crate::chaos::lane::Alive;
use crate::node::PATIENCE;

/// How long agents may take to find by themselves what nobody has any more: two looks with the trial's grace between.
const LEAK_PATIENCE: Duration = Duration::from_secs(45);

/// What was found well.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub alive: usize,
    pub buried: usize,
    pub forgotten: usize,
}

/// The runtimes send the DELs that they owe and CHECK what they believe to live; GC or the agents' own repair finds what they forgot; then all is compared.
pub fn reckon(arena: &Arena, wards: &[Ward], by_gc: bool) -> Tally {
    let (mut tally, mut buried) = (Tally::default(), Vec::new());
    for ward in wards {
        for pod in ward.those(|state| matches!(state, State::Maybe | State::Dead)) {
            let answer = ward.site.call("DEL", &pod, None).unwrap();
            arena.diary.note(format_args!("reckoning: DEL {}: {answer:?}", pod.container));
            assert_eq!(answer.status, 0, "DEL {}: {answer:?}", pod.container);
            let left = kernel::left_inside(&pod);
            assert!(left.is_empty(), "DEL of {} left {left:?} in it", pod.container);
            ward.gone(&pod);
            buried.push(pod);
        }
        for (alive, result) in ward.alive() {
            let answer =
                ward.site.call_with("CHECK", &alive.pod, json!({"prevResult": result}), None).unwrap();
            assert_eq!(answer.status, 0, "CHECK {}: {answer:?}", alive.pod.container);
            tally.alive += 1;
        }
        tally.forgotten += find_the_forgotten(arena, ward, by_gc);
        // A DEL is answered before its addresses are back.
        eventually(PATIENCE, || ward.site.node.unfinished() == 0);
    }
    let faults = faults(wards);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    // Not before: an interface that was left would have gone with its namespace.
    buried.iter().for_each(remove_netns);
    Tally { buried: buried.len(), ..tally }
}

fn find_the_forgotten(arena: &Arena, ward: &Ward, by_gc: bool) -> usize {
    let forgotten = ward.those(|state| matches!(state, State::Forgotten));
    if by_gc {
        let valid = ward.valid();
        let answer = ward.site.gc(&valid.iter().collect::<Vec<_>>(), None).unwrap();
        arena.diary.note(format_args!("reckoning: GC with {} valid: {answer:?}", valid.len()));
        assert_eq!(answer.status, 0, "{answer:?}");
    }
    // Otherwise their namespaces are all that could speak for them.
    forgotten.iter().for_each(remove_netns);
    let began = Instant::now();
    loop {
        let books = Books::read(&ward.site).unwrap();
        let left: BTreeSet<_> = forgotten.iter().flat_map(|pod| books.addresses(&pod.container)).collect();
        if left.is_empty() {
            break;
        }
        assert!(!by_gc && began.elapsed() < LEAK_PATIENCE, "addresses of the forgotten are held: {left:?}");
        let_pass(Duration::from_millis(100));
    }
    forgotten.iter().for_each(|pod| ward.gone(pod));
    forgotten.len()
}

/// What is there and should not be, and what should be and is not; each pod's own interface, too.
fn faults(wards: &[Ward]) -> Vec<String> {
    let alive: Vec<Vec<Alive>> =
        wards.iter().map(|ward| ward.alive().into_iter().map(|(alive, _)| alive).collect()).collect();
    let mut faults = Vec::new();
    let check = wards[0].site.node.russet_inside(&["ipam", "check"]);
    if check.status != 0 {
        faults.push(format!("ipam check: {}{}", check.stdout, check.stderr));
    }
    faults.extend(Books::read(&wards[0].site).unwrap().faults(&alive.iter().flatten().collect::<Vec<_>>()));
    for (ward, alive) in wards.iter().zip(&alive) {
        faults.extend(kernel::faults(&ward.site, &alive.iter().collect::<Vec<_>>()));
        faults.extend(alive.iter().flat_map(kernel::faults_inside));
        faults.extend(files::strange(&ward.site));
    }
    faults
}
