//! The engine against the evaluator, over the policy sets of truth tables.

use super::{Direction, Limits, Twins, Verdict};
use crate::generate::{State, cases, flows};

/// As many policy sets are judged.
const CASES: usize = 300;
/// As many flows are drawn in each state.
const FLOWS: usize = 60;
/// A failure prints its case, and this seed makes the same cases.
const SEED: u64 = 0x7a11;

#[test]
fn the_table_of_each_generated_policy_set_says_what_the_evaluator_says() {
    let mut random = russet_testkit::Random::new(SEED);
    let flows = flows();
    let mut answers = [0_usize; 2];
    for case in cases(CASES, &mut |below| random.below(below)) {
        let mut twins = Twins::new(Limits::default());
        for State { updates, documents } in case.states() {
            updates.iter().for_each(|update| twins.apply(update));
            twins.flush();
            for _ in 0..FLOWS {
                let (name, flow) = &flows[random.below(flows.len())];
                let ends = [(Direction::Egress, flow.source), (Direction::Ingress, flow.destination)];
                for (direction, address) in ends {
                    let wanted = twins.judge(direction, address, flow);
                    twins.judge_around(direction, address, flow, name);
                    let found = twins.model.judge(direction, address, flow);
                    let found = found.map(|word| (word.verdict == Verdict::Allow, word.log));
                    assert_eq!(found, wanted, "{case}\n{direction:?} of {name} in {documents:#?}");
                    wanted.into_iter().for_each(|(allowed, _)| answers[usize::from(allowed)] += 1);
                }
            }
        }
    }
    assert!(answers.iter().all(|count| *count > 3_000), "{answers:?}");
}
