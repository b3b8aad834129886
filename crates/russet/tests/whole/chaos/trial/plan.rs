//! The plan of a trial, decided by its seed beforehand: the operations of each thread, and the time
//! of each kill.
//!
//! The same seed gives the same operations in the same order within a thread, and the same kills at
//! the same operations after the same microseconds. Their interleaving is the machine's: real
//! processes cannot be replayed more exactly.

use std::time::Duration;

use russet_testkit::Random;

/// The parameters of a trial.
#[derive(Debug, Clone, Copy)]
pub struct Parameters {
    pub seed: u64,
    pub ops: usize,
    pub kills: usize,
    /// Runtime threads of all nodes together.
    pub workers: usize,
    /// Nodes, whose agents are killed.
    pub sites: usize,
    /// There is a shared store to kill.
    pub shared: bool,
}

/// One operation of a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A new pod.
    Add,
    /// ADD for the same pod again.
    AddAgain,
    Check,
    Del,
    DelTwice,
    /// The pod's namespace is deleted before its DEL.
    DelWithoutNetns,
    /// DEL of a pod that was never added.
    DelOfUnknown,
    /// DEL arrives while the ADD is in progress.
    DelInAdd,
    /// The runtime forgets the pod, as after its own crash; no DEL follows.
    Forget,
    /// As `Forget`, and the pod's namespace stays, so that only GC can detect it.
    ForgetRunning,
    /// GC with the runtime's list.
    Gc,
}

/// What a runtime does after an ADD or DEL that failed, or was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Afterwards {
    /// DEL, until it succeeds.
    Now,
    /// DEL when the round ends.
    Later,
    /// No DEL.
    Never,
    /// It keeps the pod, and continues with it.
    Again,
}

/// An operation and its parameters.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Counted over all threads.
    pub number: usize,
    /// The index of the pod among the thread's pods.
    pub slot: usize,
    pub op: Op,
    /// The plugin is killed so long after its start, unless it has ended.
    pub killed_after: Option<Duration>,
    pub afterwards: Afterwards,
    /// For operations with a second, later action.
    pub gap: Duration,
}

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    Agent(usize),
    /// etcd, or the API server.
    Store,
}

/// A kill and the restart.
#[derive(Debug, Clone, Copy)]
pub struct PlannedKill {
    pub victim: Victim,
    /// The number of operations that must have started before,
    pub at: usize,
    /// the delay after that,
    pub delay: Duration,
    /// and the time until the restart.
    pub down: Duration,
    /// The next kill does not wait for recovery.
    pub skip_recovery_wait: bool,
}

#[derive(Debug)]
pub struct Plan {
    pub workers: Vec<Vec<Step>>,
    /// In the order of their times.
    pub kills: Vec<PlannedKill>,
}

/// Pods per thread.
pub const SLOTS: usize = 4;
/// The longest time from a plugin's start until it is killed: somewhat more than most take.
pub const KILL_WITHIN: Duration = Duration::from_millis(40);
/// The longest time until an agent or the store is killed, and from then until the restart.
const PAUSE: Duration = Duration::from_millis(150);

// === impl Plan ===

impl Plan {
    pub fn of(order: Parameters) -> Self {
        let per_lane = order.ops.div_ceil(order.workers);
        let workers = (0..order.workers).map(|worker| steps(order, worker, per_lane)).collect();
        let mut plan = Self { workers, kills: Vec::new() };
        let mut random = Random::of_thread(order.seed, 0);
        for _ in 0..order.kills {
            match random.below(10) {
                0..5 => plan.kill_a_plugin(&mut random),
                9 if order.shared => plan.kill_and_restart(Victim::Store, order, &mut random),
                _ => plan.kill_and_restart(Victim::Agent(random.below(order.sites)), order, &mut random),
            }
        }
        plan.kills.sort_by_key(|kill| kill.at);
        plan
    }

    /// How many plugins are to be killed.
    pub fn plugin_kills(&self) -> usize {
        self.workers.iter().flatten().filter(|step| step.killed_after.is_some()).count()
    }

    /// Kills a plugin that no other kill has chosen, as long as there is one.
    fn kill_a_plugin(&mut self, random: &mut Random) {
        let all = self.workers.iter().map(Vec::len).sum();
        let first = random.below(all);
        let delay = random.delay(KILL_WITHIN);
        let workers = self.workers.len();
        for number in (first..all).chain(0..first) {
            let step = &mut self.workers[number % workers][number / workers];
            if step.killed_after.is_none() {
                step.killed_after = Some(delay);
                return;
            }
        }
    }

    fn kill_and_restart(&mut self, victim: Victim, order: Parameters, random: &mut Random) {
        let (at, skip_recovery_wait) = (random.below(order.ops), random.once_in(3));
        let (delay, down) = (random.delay(PAUSE), random.delay(PAUSE));
        self.kills.push(PlannedKill { victim, at, delay, down, skip_recovery_wait });
    }

    /// The part of the plan for one of so many rounds.
    pub fn round(&self, round: usize, rounds: usize) -> Self {
        let workers: Vec<Vec<Step>> = self
            .workers
            .iter()
            .map(|steps| steps[steps.len() * round / rounds..steps.len() * (round + 1) / rounds].to_vec())
            .collect();
        let numbers = workers.iter().flatten().map(|step| step.number);
        let (first, last) = (numbers.clone().min().unwrap_or(0), numbers.max().unwrap_or(0));
        let kills = self.kills.iter().filter(|kill| (first..=last).contains(&kill.at)).copied().collect();
        Self { workers, kills }
    }
}

fn steps(order: Parameters, worker: usize, count: usize) -> Vec<Step> {
    let mut random = Random::of_thread(order.seed, worker as u64 + 1);
    let mut occupied = [false; SLOTS];
    (0..count)
        .map(|index| {
            let slot = random.below(SLOTS);
            let op = match occupied[slot] {
                false => op_without_pod(&mut random),
                true => op_with_pod(&mut random),
            };
            occupied[slot] = matches!(op, Op::Add | Op::AddAgain | Op::Check)
                || occupied[slot] && matches!(op, Op::Gc | Op::DelOfUnknown | Op::DelInAdd);
            let afterwards = match random.below(8) {
                0..3 => Afterwards::Now,
                3..5 => Afterwards::Again,
                5..7 => Afterwards::Later,
                _ => Afterwards::Never,
            };
            let number = index * order.workers + worker;
            Step { number, slot, op, killed_after: None, afterwards, gap: random.delay(KILL_WITHIN) }
        })
        .collect()
}

fn op_without_pod(random: &mut Random) -> Op {
    match random.below(16) {
        0 => Op::DelOfUnknown,
        1..3 => Op::DelInAdd,
        _ => Op::Add,
    }
}

fn op_with_pod(random: &mut Random) -> Op {
    match random.below(40) {
        0..12 => Op::Check,
        12..17 => Op::AddAgain,
        17..27 => Op::Del,
        27..32 => Op::DelTwice,
        32..36 => Op::DelWithoutNetns,
        36 => Op::Forget,
        37 => Op::ForgetRunning,
        _ => Op::Gc,
    }
}

#[test]
fn a_seed_decides_every_operation_and_every_kill() {
    let order = Parameters { seed: 7, ops: 500, kills: 25, workers: 4, sites: 2, shared: true };
    let (one, two) = (Plan::of(order), Plan::of(order));
    assert_eq!(format!("{one:?}"), format!("{two:?}"));
    assert_ne!(format!("{one:?}"), format!("{:?}", Plan::of(Parameters { seed: 8, ..order })));
    assert_eq!(one.plugin_kills() + one.kills.len(), 25);
    assert_eq!(one.workers.iter().flatten().count(), 500);
    let rounds: Vec<Plan> = (0..3).map(|round| one.round(round, 3)).collect();
    let count = |plan: &Plan| (plan.workers.iter().flatten().count(), plan.kills.len());
    let (steps, kills) = rounds.iter().map(count).fold((0, 0), |sum, more| (sum.0 + more.0, sum.1 + more.1));
    assert_eq!((steps, kills), (500, one.kills.len()));
}
