//! The plan of a run, decided by its seed beforehand, so that a failing run can be reduced piece by
//! piece.

use std::fmt;

use russet_store::sim::{Faults, Rng};

use crate::go::Version;
use crate::{Mode, Options, Writers};

/// A whole run.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Decides the order of tasks, and the faults.
    pub(crate) seed: u64,
    pub(crate) mode: Mode,
    pub(crate) faults: Faults,
    pub(crate) shape: Shape,
    pub(crate) nodes: Vec<NodePlan>,
    pub(crate) events: Vec<(u64, Event)>,
}

/// The address space.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    /// Name, prefix, block length, node selector.
    pub(crate) pools: Vec<(&'static str, &'static str, u8, Option<&'static str>)>,
    pub(crate) reserved: Vec<&'static str>,
    pub(crate) strict: bool,
    pub(crate) cooldown_s: u64,
}

/// One node.
#[derive(Debug, Clone)]
pub(crate) struct NodePlan {
    pub(crate) name: &'static str,
    pub(crate) zone: &'static str,
    pub(crate) kind: Kind,
    pub(crate) lanes: Vec<Vec<Op>>,
}

/// Which allocator a node runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Ours { remembers: bool },
    Go(Version),
}

/// A request of a runtime, or of an operator, to a node. Containers are numbered within their lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    Add {
        pod: u32,
        interface: &'static str,
        v4: u32,
        v6: u32,
    },
    /// AssignIP of some address.
    Pin {
        pod: u32,
        index: u64,
    },
    Del {
        pod: u32,
        interface: Option<&'static str>,
    },
    /// Gives a container's addresses back one by one (ReleaseIPs).
    DelAddresses {
        pod: u32,
    },
    /// Ends an affinity of this node.
    ReleaseAffinity {
        pick: u64,
        must_be_empty: bool,
    },
    /// Ends all affinities of this node.
    ReleaseNode,
    /// Moves a node to another zone.
    Relabel {
        node: usize,
        zone: &'static str,
    },
}

/// What happens at a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// The node is killed, and comes back later, perhaps with the other implementation.
    Crash { node: usize, down: u64, changes_sides: bool },
    /// The current operation of one lane is cancelled, while its process continues: its client
    /// disconnected. The lane restarts.
    HangUp { node: usize, lane: usize },
    /// Time passes, so that idle blocks grow old.
    Jump,
}

const NAMES: [&str; 8] = ["node-a", "node-b", "worker-1", "Node.C", "n5", "n6", "n7", "n8"];
const ZONES: [&str; 2] = ["x", "y"];
/// How many times more lanes a node has in a third of the runs, so that many requests wait at once and share commits.
const BUSY: usize = 4;
/// Steps that an operation takes about, to spread the events over the run.
const STEPS_PER_OP: u64 = 30;

// === impl Plan ===

impl Plan {
    pub(crate) fn of(seed: u64, options: &Options) -> Self {
        let mut rng = Rng::new(seed ^ 0x05ee_d0fa_914a);
        let mut shape = Shape::of(&mut rng, options);
        let mut own = Rng::new(seed ^ 0x0b05_1e57_ca7e);
        let options = &match own.below(3) {
            0 => {
                shape = shape.roomy();
                Options { lanes: options.lanes * BUSY, ops: options.ops.div_ceil(2), ..*options }
            }
            _ => *options,
        };
        let count = options.nodes.clamp(1, NAMES.len());
        let mut nodes: Vec<NodePlan> = (0..count)
            .map(|index| NodePlan {
                name: NAMES[index],
                zone: pick(&mut rng, &ZONES),
                kind: kind(&mut rng, options.writers, index),
                lanes: (0..options.lanes).map(|_| script(&mut rng, options.ops, count)).collect(),
            })
            .collect();
        if shape.cooldown_s > 0 {
            // calico-ipam.md section 9: never enabled while any peer up to 3.32 writes.
            for node in nodes.iter_mut().filter(|node| matches!(node.kind, Kind::Go(_))) {
                node.kind = Kind::Go(Version::V333);
            }
        }
        let steps = (count * options.lanes * options.ops) as u64 * STEPS_PER_OP;
        let mut events = events(&mut rng, steps, count, options.writers);
        events.extend(hang_ups(&mut own, steps, count, options.lanes));
        events.sort_by_key(|(step, _)| *step);
        Self { seed, mode: options.mode, faults: faults(&mut rng), shape, nodes, events }
    }

    /// Whether the store has no faults.
    pub(crate) fn is_healthy(&self) -> bool {
        let Faults { lost_reply, lost_request, unavailable, .. } = self.faults;
        lost_reply + lost_request + unavailable == 0
    }
}

impl Shape {
    fn of(rng: &mut Rng, options: &Options) -> Self {
        let pools = match rng.below(6) {
            0 => vec![("p", "10.1.0.0/26", 29, None)],
            1 => vec![("p", "10.1.0.0/27", 30, None)],
            2 => vec![("p", "10.1.0.0/28", 30, None)],
            3 => vec![("p", "10.1.0.0/28", 32, None)],
            4 => vec![("p", "10.1.0.0/28", 30, Some("zone == 'x'")), ("q", "10.2.0.0/27", 29, None)],
            _ => vec![("p", "10.1.0.0/25", 28, None)],
        };
        let six = [("s", "fd00:1::/123", 125, None)];
        Self {
            pools: pools.into_iter().chain(six).collect(),
            reserved: match rng.below(4) {
                0 => vec!["10.1.0.0/30", "10.1.0.9/32"],
                _ => Vec::new(),
            },
            strict: rng.below(5) == 0,
            cooldown_s: if options.writers == Writers::Mixed && rng.below(6) == 0 { 60 } else { 0 },
        }
    }
}

impl Shape {
    /// The same with blocks in which there is room for many requests at once.
    fn roomy(self) -> Self {
        let six = [("s", "fd00:1::/121", 124, None)];
        Self { pools: [("p", "10.1.0.0/24", 27, None)].into_iter().chain(six).collect(), ..self }
    }
}

fn pick<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.below(choices.len() as u64) as usize]
}

fn kind(rng: &mut Rng, writers: Writers, index: usize) -> Kind {
    let go = match (writers, index) {
        (Writers::Ours, _) | (Writers::Mixed, 0) => false,
        (Writers::Mixed, 1) => true,
        (Writers::Mixed, _) => rng.below(2) == 0,
    };
    match go {
        true => Kind::Go(pick(rng, &[Version::V331, Version::V332, Version::V333])),
        false => Kind::Ours { remembers: rng.below(2) == 0 },
    }
}

fn faults(rng: &mut Rng) -> Faults {
    // A third of the runs has no faults: then only the order of steps and the crashes matter.
    let heavy = [0, 1, 3][rng.below(3) as usize];
    Faults {
        conflict: heavy * rng.below(30) as u32,
        lost_reply: heavy * rng.below(25) as u32,
        lost_request: heavy * rng.below(20) as u32,
        unavailable: heavy * rng.below(8) as u32,
        delayed_event: 200,
        compaction: 50,
    }
}

fn events(rng: &mut Rng, steps: u64, nodes: usize, writers: Writers) -> Vec<(u64, Event)> {
    let mut events = Vec::new();
    for _ in 0..rng.below(8) {
        let node = rng.below(nodes as u64) as usize;
        let changes_sides = writers == Writers::Mixed && rng.below(4) == 0;
        events.push((rng.below(steps), Event::Crash { node, down: rng.below(300), changes_sides }));
    }
    for _ in 0..rng.below(4) {
        events.push((rng.below(steps), Event::Jump));
    }
    events
}

/// In half of the runs clients disconnect.
fn hang_ups(rng: &mut Rng, steps: u64, nodes: usize, lanes: usize) -> Vec<(u64, Event)> {
    let count = if rng.below(2) == 0 { 0 } else { rng.below(4 * lanes as u64) };
    let mut hang_up = || {
        let node = rng.below(nodes as u64) as usize;
        (rng.below(steps), Event::HangUp { node, lane: rng.below(lanes as u64) as usize })
    };
    (0..count).map(|_| hang_up()).collect()
}

/// The operations of one lane. Containers come and go; some get a repeated ADD, some have two
/// interfaces.
fn script(rng: &mut Rng, ops: usize, nodes: usize) -> Vec<Op> {
    let mut script = Vec::new();
    let mut alive: Vec<Op> = Vec::new();
    let mut next = 0;
    while script.len() < ops {
        let op = match rng.below(26) {
            0..=8 => {
                let v6 = u32::from(rng.below(4) == 0);
                let v4 = if rng.below(8) == 0 { 2 } else { 1 };
                next += 1;
                Op::Add { pod: next, interface: "eth0", v4, v6 }
            }
            9 => {
                next += 1;
                Op::Pin { pod: next, index: rng.below(64) }
            }
            10 | 11 if !alive.is_empty() => alive[rng.below(alive.len() as u64) as usize].clone(),
            12 | 13 if !alive.is_empty() => match alive[rng.below(alive.len() as u64) as usize] {
                Op::Add { pod, v4, v6, .. } => Op::Add { pod, interface: "net1", v4, v6 },
                ref pin => pin.clone(),
            },
            14 => Op::ReleaseAffinity { pick: rng.next_u64(), must_be_empty: rng.below(2) == 0 },
            15 if rng.below(3) == 0 => Op::ReleaseNode,
            16 if rng.below(3) == 0 => {
                Op::Relabel { node: rng.below(nodes as u64) as usize, zone: pick(rng, &ZONES) }
            }
            _ if !alive.is_empty() => {
                let (pod, interface) = alive[rng.below(alive.len() as u64) as usize].container();
                match rng.below(6) {
                    0 => Op::DelAddresses { pod },
                    1 => Op::Del { pod, interface: None },
                    _ => Op::Del { pod, interface: Some(interface) },
                }
            }
            _ => continue,
        };
        match &op {
            Op::Add { .. } | Op::Pin { .. } if !alive.contains(&op) => alive.push(op.clone()),
            Op::Del { pod, interface: Some(interface) } => {
                alive.retain(|held| held.container() != (*pod, interface));
            }
            Op::Del { pod, .. } | Op::DelAddresses { pod } => {
                alive.retain(|held| held.container().0 != *pod);
            }
            _ => {}
        }
        script.push(op);
    }
    script
}

// === impl Op ===

impl Op {
    /// The container and interface that an ADD is about.
    fn container(&self) -> (u32, &'static str) {
        match self {
            Self::Add { pod, interface, .. } => (*pod, interface),
            Self::Pin { pod, .. } => (*pod, "eth0"),
            _ => (0, ""),
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {:?}, order by {}, {:?}", self.mode, self.seed, self.faults)?;
        writeln!(f, "  {:?}", self.shape)?;
        for node in &self.nodes {
            for (index, lane) in node.lanes.iter().enumerate().filter(|(_, lane)| !lane.is_empty()) {
                writeln!(f, "  {}/{index} ({:?}, zone {}): {lane:?}", node.name, node.kind, node.zone)?;
            }
        }
        for (step, event) in &self.events {
            writeln!(f, "  at step {step}: {event:?}")?;
        }
        Ok(())
    }
}
