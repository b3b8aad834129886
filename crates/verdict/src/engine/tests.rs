//! The engine against the evaluator, over random histories of updates.

mod generated;
mod hosts;
mod model;
mod namespace;
mod oracles;
pub(super) mod random;

use std::collections::BTreeMap;

use model::Model;
use random::Random;

use super::*;
use crate::evaluator;
use crate::flow::Flow;
use crate::snapshot::Snapshot;
use crate::table::{Exceeded, Verdict};

/// An engine, what a kernel has that applied all its deltas, and what the evaluator knows.
struct Twins {
    engine: Engine,
    model: Model,
    snapshot: Snapshot,
    /// How many questions were denied, and how many allowed.
    answers: [std::cell::Cell<usize>; 2],
}

impl Twins {
    fn new(limits: Limits) -> Self {
        Self {
            engine: Engine::with_limits(limits),
            model: Model::default(),
            snapshot: Snapshot::default(),
            answers: Default::default(),
        }
    }

    fn apply(&mut self, update: &Update) {
        self.engine.apply(update.clone());
        self.snapshot.apply(update.clone());
    }

    fn flush(&mut self) -> Delta {
        let delta = self.engine.flush();
        self.model.apply(&delta);
        delta
    }

    /// Asks the table and the evaluator the same.
    fn compare(&self, random: &mut Random, probes: usize, context: &str) {
        for _ in 0..probes {
            let flow = random.flow();
            for (direction, address) in
                [(Direction::Egress, flow.source), (Direction::Ingress, flow.destination)]
            {
                let wanted = self.judge(direction, address, &flow);
                self.judge_around(direction, address, &flow, context);
                let found = self.model.judge(direction, address, &flow);
                let found = found.map(|word| (word.verdict == Verdict::Allow, word.log));
                assert_eq!(wanted, found, "{context}: {direction:?} of {address}, {flow:?}");
                if let Some((is_allowed, _)) = wanted {
                    self.answers[usize::from(is_allowed)]
                        .set(self.answers[usize::from(is_allowed)].get() + 1);
                }
            }
        }
    }

    /// What is around a flow says the same about it as everything does, step by step.
    fn judge_around(&self, direction: Direction, address: IpAddr, flow: &Flow, context: &str) {
        let Some((key, endpoint)) = self.snapshot.workload_at(address) else { return };
        if endpoint.local.is_some() {
            let around = self.engine.around(flow);
            let [found, wanted] =
                [&around, &self.snapshot].map(|it| evaluator::judge(it, key, direction, flow));
            assert_eq!(found, wanted, "{context}: {direction:?} of {address}, {flow:?}");
        }
    }

    /// No two identities stand for the same answers.
    fn check_identities(&self, context: &str) {
        let identities = &self.engine.peers.identities;
        for family in russet_addr::Family::BOTH {
            let vectors: Vec<_> = identities.of_family(family).map(|(_, vector)| vector.clone()).collect();
            let distinct: BTreeSet<_> = vectors.iter().cloned().collect();
            assert_eq!(vectors.len(), distinct.len(), "{context}");
            assert!(!distinct.contains(self.engine.peers.world(family)), "{context}");
        }
    }

    fn judge(&self, direction: Direction, address: IpAddr, flow: &Flow) -> Option<(bool, bool)> {
        let (key, endpoint) = self.snapshot.workload_at(address)?;
        endpoint.local.as_ref()?;
        evaluator::judge(&self.snapshot, key, direction, flow).map(|trace| (trace.allowed, trace.logged))
    }
}

/// How many seeds a test tries, or as many as the variable `RUSSET_SEEDS` says; each prints its own if
/// it fails.
const SEEDS: u64 = 60;

fn seeds() -> u64 {
    std::env::var("RUSSET_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS)
}

#[test]
fn p103_after_every_flush_the_table_says_what_the_evaluator_says() {
    // policy.md P103
    let mut answers = [0, 0];
    for seed in 0..seeds() {
        let mut random = Random::new(seed);
        let mut twins = Twins::new(Limits::default());
        for step in 0..25 {
            for _ in 0..=random.below(12) {
                twins.apply(&random.update());
            }
            let before = twins.model.clone();
            let delta = twins.flush();
            let context = format!("seed {seed}, step {step}");
            twins.model.check(&context);
            twins.compare(&mut random, 64, &context);
            twins.check_identities(&context);
            assert!(
                delta.tightens || !twins.model.forbids_more_than(&before, &mut random),
                "{context}: something is forbidden that was not, and the delta does not say so"
            );
        }
        answers = [0, 1].map(|i| answers[i] + twins.answers[i].get());
    }
    let all: usize = answers.iter().sum();
    assert!(answers.iter().all(|count| count * 10 > all), "one answer is too rare: {answers:?}");
}

#[test]
fn p101_the_same_update_twice_changes_nothing() {
    // policy.md P101
    for seed in 0..seeds() {
        let mut random = Random::new(seed);
        let mut twins = Twins::new(Limits::default());
        let updates: Vec<Update> = (0..200).map(|_| random.update()).collect();
        updates.iter().for_each(|update| twins.apply(update));
        twins.flush();
        assert_eq!(twins.flush(), Delta::default());
        for update in last_of_each(&updates) {
            twins.apply(&update);
            assert_eq!(twins.flush(), Delta::default(), "seed {seed}: {update:?}");
        }
    }
}

#[test]
fn p100_updates_in_any_order_give_the_same_table() {
    // policy.md P100
    // A cluster of 2,012 objects; and few names with all that an object can have.
    let scale = crate::scale::Scale { namespaces: 10, pods: 100, policies: 100 };
    let mut random = Random::new(7);
    assert!(compare_orders(&scale.updates(), &mut random, "a cluster") > 0);
    for seed in 0..seeds() / 10 {
        let mut random = Random::new(seed);
        let updates: Vec<Update> = (0..2000).map(|_| random.update()).collect();
        compare_orders(&last_of_each(&updates), &mut random, &format!("seed {seed}"));
    }
}

/// Applies updates of different objects in order and in another order. How many decisions there are.
fn compare_orders(updates: &[Update], random: &mut Random, context: &str) -> usize {
    let of = |updates: &[Update]| {
        let mut twins = Twins::new(Limits::default());
        updates.iter().for_each(|update| twins.apply(update));
        twins.flush();
        twins
    };
    let (in_order, shuffled) = (of(updates), of(&random.shuffled(updates)));
    assert_eq!(in_order.model.canonical(), shuffled.model.canonical(), "{context}");
    assert_eq!(in_order.engine.usage(), shuffled.engine.usage(), "{context}");
    in_order.engine.usage().decisions
}

#[test]
fn p102_updates_flushed_together_or_one_by_one_give_the_same_table() {
    // policy.md P102
    for seed in 0..seeds() {
        let mut random = Random::new(seed);
        let updates = last_of_each(&(0..200).map(|_| random.update()).collect::<Vec<_>>());
        let (mut batch, mut single) = (Twins::new(Limits::default()), Twins::new(Limits::default()));
        updates.iter().for_each(|update| batch.apply(update));
        batch.flush();
        for update in random.shuffled(&updates) {
            single.apply(&update);
            single.flush();
        }
        assert_eq!(batch.model.canonical(), single.model.canonical(), "seed {seed}");
        assert_eq!(batch.engine.usage(), single.engine.usage(), "seed {seed}");
    }
}

#[test]
fn p105_nothing_is_left_when_everything_is_removed() {
    // policy.md P105
    for seed in 0..seeds() {
        let mut random = Random::new(seed);
        let mut twins = Twins::new(Limits::default());
        let updates: Vec<Update> = (0..200).map(|_| random.update()).collect();
        updates.iter().for_each(|update| twins.apply(update));
        twins.flush();
        for removal in random.shuffled(&last_of_each(&updates)).iter().map(removal) {
            twins.apply(&removal);
            if random.below(3) == 0 {
                twins.flush();
            }
        }
        twins.flush();
        assert_eq!(twins.model, Model::default(), "seed {seed}");
        assert_eq!(twins.engine.usage(), Usage::default(), "seed {seed}");
        assert!(twins.engine.locals.is_empty(), "seed {seed}");
    }
}

/// The last update of each object.
fn last_of_each(updates: &[Update]) -> Vec<Update> {
    let by_object: BTreeMap<String, &Update> =
        updates.iter().map(|update| (format!("{:?}", removal(update)), update)).collect();
    by_object.into_values().cloned().collect()
}

/// The update that deletes the object of another one.
fn removal(update: &Update) -> Update {
    match update.clone() {
        Update::Policy(key, _) => Update::Policy(key, None),
        Update::Tier(key, _) => Update::Tier(key, None),
        Update::Profile(key, _) => Update::Profile(key, None),
        Update::Endpoint(key, _) => Update::Endpoint(key, None),
        Update::NetworkSet(key, _) => Update::NetworkSet(key, None),
        Update::Service(key, _) => Update::Service(key, None),
        Update::Node(key, _) => Update::Node(key, None),
        Update::EgressFirewall(namespace, name, _) => Update::EgressFirewall(namespace, name, None),
        Update::Felix(name, _) => Update::Felix(name, None),
        Update::Config(_) => Update::Config(Config::default()),
    }
}

#[test]
fn the_engine_may_live_in_a_thread_of_its_own() {
    fn may_move<T: Send>(_: &T) {}
    may_move(&Engine::default());
}

#[test]
#[ignore = "prints times, which only an optimised build makes meaningful"]
fn the_cost_of_changes_in_a_large_cluster() {
    let start = std::time::Instant::now();
    let (engine, costs) = crate::scale::Scale::LARGE.measure(&mut || start.elapsed());
    for cost in costs {
        let (p50, p99) = (cost.percentile(50), cost.percentile(99));
        eprintln!("{:45} {p50:>12.1?} {p99:>12.1?} {:>7} elements", cost.name, cost.elements);
    }
    eprintln!("{:?}", engine.usage());
}

#[test]
fn a_change_in_a_cluster_writes_only_what_it_concerns() {
    let scale = crate::scale::Scale { namespaces: 5, pods: 40, policies: 40 };
    let (engine, costs) = scale.measure(&mut || std::time::Duration::ZERO);
    let elements = |name: &str| costs.iter().find(|cost| cost.name == name).unwrap().elements;
    for name in ["remote pod, identical", "remote pod, label that nothing asks for", "local pod, same class"]
    {
        assert_eq!(elements(name), 0, "{name}");
    }
    for name in ["active policy, identical", "inactive policy", "tier, order", "active policy, order"] {
        assert_eq!(elements(name), 0, "{name}");
    }
    assert!(elements("remote pod, another class") <= 200, "one element for each of 200 pods");
    let of_ports = elements("active policy, port");
    assert!(
        (400..=800).contains(&of_ports),
        "{of_ports}: one is removed and one added for each of two peers"
    );
    assert_eq!(engine.usage().classes, 5 + 1, "one for ingress in each namespace, and one for egress");
}
