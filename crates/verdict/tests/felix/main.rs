//! Felix' own code beside Russet's policy decisions (policy.md P95): the same documents and the same questions for both. What Calico's
//! code is, and what is not, docs/testing.md says ("Felix' calculation").

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;

mod judge;
mod peer;
mod rows;
mod states;

use peer::{Answer, Felix};
use states::States;

/// How many states are compared, or as many as the variable `RUSSET_SEEDS` says.
const STATES: u64 = 500;
/// The seed of the first state, or what the variable `RUSSET_SEED` says; the others follow it.
const SEED: u64 = 1;

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

// policy.md P95
#[test]
#[ignore = "tool: felix-verdict of `cargo xtask kubernetes`"]
fn p95_felix_gives_the_same_answers_in_random_states() {
    let (first, states) = (number("RUSSET_SEED", SEED), number("RUSSET_SEEDS", STATES));
    println!("RUSSET_SEED={first} RUSSET_SEEDS={states}");
    let mut felix = Felix::start();
    let mut counts: BTreeMap<Answer, usize> = BTreeMap::new();
    for seed in first..first + states {
        let mut random = States::new(seed);
        let (documents, probes) = (random.documents(), random.probes());
        if let Some((probe, what)) = judge::difference(&mut felix, &documents, &probes) {
            let left = judge::reduced(&mut felix, &documents, &probe, &what);
            let left: Vec<String> = left.iter().map(ToString::to_string).collect();
            panic!("RUSSET_SEED={seed} RUSSET_SEEDS=1: {what}\n{probe:?}\n{}", left.join("\n"));
        }
        for answer in judge::answers(&judge::snapshot(&documents), &probes) {
            *counts.entry(answer).or_default() += 1;
        }
    }
    println!("{counts:?}");
    if states >= STATES {
        let has_many = |answer, least| counts.get(&answer).is_some_and(|count| *count > least);
        assert!(has_many(Answer::Allowed, 10_000) && has_many(Answer::Denied, 10_000), "{counts:?}");
        assert!(has_many(Answer::GoesOn, 1_000), "{counts:?}");
    }
}
