//! Random policy sets and random batches of their changes: what the kernel holds after each is what an engine
//! decides that learns of everything at once (policy.md P102, here through the kernel).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

use russet_addr::IpNet;
use russet_policy::Decisions;
use russet_testkit::{Random, in_netns_with_loopback};
use russet_verdict::engine::Engine;
use russet_verdict::generate;
use russet_verdict::ir::Direction;
use russet_verdict::table::{Identity, Part, SourceRange, Word};
use russet_verdict::world::Update;

use crate::world::*;

/// How many policy sets a seed goes through, and how many seeds there are unless `RUSSET_SEEDS` says.
const SETS: usize = 12;
const SEEDS: u64 = 3;
/// The most updates that are decided together.
const BATCH_MAX: usize = 6;

/// A peer by what has its identity: numbers depend on the order in which identities were needed.
type Peer = Option<IpNet>;
type DecisionKey = (Direction, IpAddr, Peer, Part);

/// Decisions without the numbers of identities.
#[derive(Debug, PartialEq)]
struct Canonical {
    peers: BTreeMap<IpNet, Peer>,
    decisions: BTreeMap<DecisionKey, Word>,
    wide: BTreeMap<DecisionKey, Vec<SourceRange>>,
    defaults: BTreeMap<(Direction, IpAddr), Word>,
    held: BTreeSet<IpAddr>,
}

// === impl Canonical ===

impl Canonical {
    fn of(decisions: &Decisions) -> Self {
        let mut first: BTreeMap<Identity, IpNet> = BTreeMap::new();
        for (net, identity) in &decisions.identities {
            first.entry(*identity).or_insert(*net);
        }
        let peer = |identity: &Identity| first.get(identity).copied();
        let key = |key: &russet_verdict::table::Key| (key.direction, key.local, peer(&key.peer), key.part);
        Self {
            peers: decisions.identities.iter().map(|(net, identity)| (*net, peer(identity))).collect(),
            decisions: decisions.decisions.iter().map(|(at, word)| (key(at), *word)).collect(),
            wide: decisions.wide.iter().map(|(at, ranges)| (key(at), ranges.clone())).collect(),
            defaults: decisions.defaults.clone(),
            held: decisions.held.clone(),
        }
    }
}

/// What an engine decides that learns of all updates at once.
fn from_scratch(updates: &[Update]) -> Canonical {
    let mut engine = Engine::default();
    updates.iter().for_each(|update| engine.apply(update.clone()));
    let mut decisions = Decisions::default();
    decisions.apply(&engine.flush(), &BTreeSet::new());
    Canonical::of(&decisions)
}

/// The cluster, and then sets after sets, each in place of the one before.
fn history(random: &mut Random) -> Vec<Update> {
    let mut updates = generate::cluster();
    for case in generate::cases(SETS, &mut |below| random.below(below)).into_iter().take(SETS) {
        updates.extend(case.states().into_iter().flat_map(|state| state.updates));
    }
    updates
}

#[test]
#[ignore = "kernel: nf_tables, root"]
fn after_any_batches_of_changes_the_kernel_holds_what_is_decided_from_scratch() {
    let seeds = std::env::var("RUSSET_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS);
    let (mut compared, mut most) = (0, 0);
    for seed in 0..seeds {
        in_netns_with_loopback(|| {
            let mut random = Random::new(seed);
            let history = history(&mut random);
            let (mut engine, mut policies, mut done) = (Engine::default(), open(), 0);
            while done < history.len() {
                let next = (done + 1 + random.below(BATCH_MAX)).min(history.len());
                history[done..next].iter().for_each(|update| engine.apply(update.clone()));
                done = next;
                let delta = engine.flush();
                policies.apply(&delta, &BTreeSet::new(), Instant::now()).unwrap();
                // As a process that starts now reads it.
                let mut started = open();
                let context = format!("seed {seed}, after {done} updates");
                assert_eq!(Canonical::of(started.current()), from_scratch(&history[..done]), "{context}");
                assert_eq!(started.faults().unwrap(), Default::default(), "{context}");
                (compared, most) = (compared + 1, most.max(started.current().decisions.len()));
            }
        });
    }
    println!("{compared} states, at most {most} decisions");
    assert!(compared > 20 * usize::try_from(seeds).unwrap() && most > 20, "{compared} {most}");
}
