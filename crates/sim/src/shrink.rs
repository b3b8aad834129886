//! Reduces a failing run: leaves out pieces of the plan as long as a rule of the same kind is
//! violated.

use russet_store::sim::Faults;

use crate::Options;
use crate::cluster::{self, End};
use crate::failure::{Failure, Violation, ViolationKind};
use crate::plan::Plan;

/// Runs that shrinking may take; a run takes some milliseconds.
const ATTEMPTS_MAX: usize = 1500;
/// A smaller run has another order of steps, so a few of those are tried.
const ORDERS: u64 = 4;

struct Shrinker {
    best: Plan,
    kind: ViolationKind,
    attempts: usize,
}

/// The failure with the smallest run that could be found, traced.
pub(crate) fn explain(seed: u64, options: Options, plan: &Plan, violation: Violation) -> Failure {
    let mut shrinker = Shrinker { best: plan.clone(), kind: violation.kind, attempts: 0 };
    while shrinker.attempts < ATTEMPTS_MAX && shrinker.round() {}
    let trace = match cluster::play(&shrinker.best, true) {
        Err(End { violation, mut trace }) => {
            trace.push(violation.to_string());
            trace
        }
        Ok(_) => {
            vec!["the smallest run does not fail when traced: the simulation is not deterministic".into()]
        }
    };
    let (shrunk, attempts) = (shrinker.best.to_string(), shrinker.attempts);
    Failure { seed, options, violation, shrunk, attempts, trace }
}

// === impl Shrinker ===

impl Shrinker {
    /// Tries each way once; false when none helped.
    fn round(&mut self) -> bool {
        let mut better = false;
        for node in 0..self.best.nodes.len() {
            for lane in 0..self.best.nodes[node].lanes.len() {
                better |= self.shrink_lane(node, lane);
            }
        }
        for index in (0..self.best.events.len()).rev() {
            let mut smaller = self.best.clone();
            smaller.events.remove(index);
            better |= self.try_plan(smaller);
        }
        for change in FAULTS {
            let mut smaller = self.best.clone();
            change(&mut smaller.faults);
            if smaller.faults.total() < self.best.faults.total() {
                better |= self.try_plan(smaller);
            }
        }
        better
    }

    /// Leaves out runs of operations, long ones first.
    fn shrink_lane(&mut self, node: usize, lane: usize) -> bool {
        let mut better = false;
        let mut length = self.best.nodes[node].lanes[lane].len();
        while length > 0 {
            let mut from = 0;
            while from < self.best.nodes[node].lanes[lane].len() {
                let mut smaller = self.best.clone();
                let script = &mut smaller.nodes[node].lanes[lane];
                let to = (from + length).min(script.len());
                script.drain(from..to);
                if self.try_plan(smaller) {
                    better = true;
                } else {
                    from += length;
                }
            }
            length /= 2;
        }
        better
    }

    fn try_plan(&mut self, plan: Plan) -> bool {
        for order in 0..ORDERS {
            if self.attempts >= ATTEMPTS_MAX {
                return false;
            }
            self.attempts += 1;
            let candidate = Plan { seed: plan.seed.wrapping_add(order), ..plan.clone() };
            if matches!(cluster::play(&candidate, false), Err(end) if end.violation.kind == self.kind) {
                self.best = candidate;
                return true;
            }
        }
        false
    }
}

const FAULTS: [fn(&mut Faults); 5] = [
    |faults| faults.conflict = 0,
    |faults| faults.lost_reply = 0,
    |faults| faults.lost_request = 0,
    |faults| faults.unavailable = 0,
    |faults| (faults.delayed_event, faults.compaction) = (0, 0),
];

trait Total {
    fn total(&self) -> u32;
}

impl Total for Faults {
    fn total(&self) -> u32 {
        self.conflict
            + self.lost_reply
            + self.lost_request
            + self.unavailable
            + self.delayed_event
            + self.compaction
    }
}
