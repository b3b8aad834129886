//! What a trial does, decided by its seed before it begins: the operations of each lane, and when who is killed.
//!
//! The same seed gives the same operations in the same order within a lane, and the same kills at the same operations after the same microseconds. What
//! these meet is the machine's affair: real processes are as near to a replay as real processes come.

use std::time::Duration;

use russet_testkit::Random;

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    pub seed: u64,
    pub ops: usize,
    pub kills: usize,
    /// Lanes of all nodes together.
    pub lanes: usize,
    /// Nodes, whose agents are killed.
    pub sites: usize,
    /// There is an etcd to be killed.
    pub etcd: bool,
}

/// One operation of a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A new pod.
    Add,
    /// The same pod once more.
    AddAgain,
    Check,
    Del,
    DelTwice,
    /// The pod's namespace is gone before its DEL comes.
    DelWithoutNetns,
    /// DEL of a pod that was never added.
    DelOfNobody,
    /// DEL comes while the ADD is under way.
    DelInAdd,
    /// The runtime forgets the pod, as after a crash of its own; no DEL comes.
    Forget,
    /// As `Forget`, and the pod's namespace stays, so that only GC can tell.
    ForgetRunning,
    /// The runtime's list.
    Gc,
}

/// What a runtime does when an ADD or DEL failed, or was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Afterwards {
    /// DEL, until it succeeds.
    Now,
    /// DEL when things are quiet.
    Later,
    /// Nothing.
    Never,
    /// It keeps the pod, and comes back to it.
    Again,
}

/// An operation in its place.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Counted over all lanes.
    pub number: usize,
    /// Which of the lane's pods it is about.
    pub slot: usize,
    pub op: Op,
    /// The plugin is killed so long after its start, unless it has ended.
    pub killed_after: Option<Duration>,
    pub afterwards: Afterwards,
    /// For operations in which something comes a little later.
    pub gap: Duration,
}

/// Who is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    Agent(usize),
    Etcd,
}

/// Something is killed, and started again.
#[derive(Debug, Clone, Copy)]
pub struct Blow {
    pub victim: Victim,
    /// When so many operations have begun,
    pub at: usize,
    /// so long after that,
    pub delay: Duration,
    /// and it stays away for so long.
    pub down: Duration,
    /// The next blow does not wait until all is well.
    pub hasty: bool,
}

/// All of it.
#[derive(Debug)]
pub struct Plan {
    pub lanes: Vec<Vec<Step>>,
    /// By their time.
    pub blows: Vec<Blow>,
}

/// Pods of a lane.
pub const SLOTS: usize = 4;
/// The longest time from a plugin's start to its being killed: somewhat more than most take.
pub const KILL_WITHIN: Duration = Duration::from_millis(40);
/// The longest time until an agent or etcd is killed, and from then until it is started again.
const PAUSE: Duration = Duration::from_millis(150);

// === impl Plan ===

impl Plan {
    pub fn of(order: Order) -> Self {
        let per_lane = order.ops.div_ceil(order.lanes);
        let lanes = (0..order.lanes).map(|lane| steps(order, lane, per_lane)).collect();
        let mut plan = Self { lanes, blows: Vec::new() };
        let mut random = Random::of_thread(order.seed, 0);
        for _ in 0..order.kills {
            match random.below(10) {
                0..5 => plan.kill_a_plugin(&mut random),
                9 if order.etcd => plan.strike(Victim::Etcd, order, &mut random),
                _ => plan.strike(Victim::Agent(random.below(order.sites)), order, &mut random),
            }
        }
        plan.blows.sort_by_key(|blow| blow.at);
        plan
    }

    /// How many plugins are to be killed.
    pub fn plugin_kills(&self) -> usize {
        self.lanes.iter().flatten().filter(|step| step.killed_after.is_some()).count()
    }

    /// One that no other kill has chosen, as long as there is one.
    fn kill_a_plugin(&mut self, random: &mut Random) {
        let all = self.lanes.iter().map(Vec::len).sum();
        let first = random.below(all);
        let delay = random.delay(KILL_WITHIN);
        let lanes = self.lanes.len();
        for number in (first..all).chain(0..first) {
            let step = &mut self.lanes[number % lanes][number / lanes];
            if step.killed_after.is_none() {
                step.killed_after = Some(delay);
                return;
            }
        }
    }

    fn strike(&mut self, victim: Victim, order: Order, random: &mut Random) {
        let (at, hasty) = (random.below(order.ops), random.once_in(3));
        let (delay, down) = (random.delay(PAUSE), random.delay(PAUSE));
        self.blows.push(Blow { victim, at, delay, down, hasty });
    }

    /// The part of the plan for one of so many rounds.
    pub fn round(&self, round: usize, rounds: usize) -> Self {
        let lanes: Vec<Vec<Step>> = self
            .lanes
            .iter()
            .map(|steps| steps[steps.len() * round / rounds..steps.len() * (round + 1) / rounds].to_vec())
            .collect();
        let numbers = lanes.iter().flatten().map(|step| step.number);
        let (first, last) = (numbers.clone().min().unwrap_or(0), numbers.max().unwrap_or(0));
        let blows = self.blows.iter().filter(|blow| (first..=last).contains(&blow.at)).copied().collect();
        Self { lanes, blows }
    }
}

fn steps(order: Order, lane: usize, count: usize) -> Vec<Step> {
    let mut random = Random::of_thread(order.seed, lane as u64 + 1);
    let mut occupied = [false; SLOTS];
    (0..count)
        .map(|index| {
            let slot = random.below(SLOTS);
            let op = match occupied[slot] {
                false => op_without_pod(&mut random),
                true => op_with_pod(&mut random),
            };
            occupied[slot] = matches!(op, Op::Add | Op::AddAgain | Op::Check)
                || occupied[slot] && matches!(op, Op::Gc | Op::DelOfNobody | Op::DelInAdd);
            let afterwards = match random.below(8) {
                0..3 => Afterwards::Now,
                3..5 => Afterwards::Again,
                5..7 => Afterwards::Later,
                _ => Afterwards::Never,
            };
            let number = index * order.lanes + lane;
            Step { number, slot, op, killed_after: None, afterwards, gap: random.delay(KILL_WITHIN) }
        })
        .collect()
}

fn op_without_pod(random: &mut Random) -> Op {
    match random.below(16) {
        0 => Op::DelOfNobody,
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
    let order = Order { seed: 7, ops: 500, kills: 25, lanes: 4, sites: 2, etcd: true };
    let (one, two) = (Plan::of(order), Plan::of(order));
    assert_eq!(format!("{one:?}"), format!("{two:?}"));
    assert_ne!(format!("{one:?}"), format!("{:?}", Plan::of(Order { seed: 8, ..order })));
    assert_eq!(one.plugin_kills() + one.blows.len(), 25);
    assert_eq!(one.lanes.iter().flatten().count(), 500);
    let rounds: Vec<Plan> = (0..3).map(|round| one.round(round, 3)).collect();
    let count = |plan: &Plan| (plan.lanes.iter().flatten().count(), plan.blows.len());
    let (steps, blows) = rounds.iter().map(count).fold((0, 0), |sum, more| (sum.0 + more.0, sum.1 + more.1));
    assert_eq!((steps, blows), (500, one.blows.len()));
}
