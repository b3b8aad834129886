//! What a run does, decided by its seed beforehand, so that a failing run can be made smaller piece by piece.

use std::fmt;

use russet_store::sim::{Chance, Faults};

use crate::go::Version;
use crate::{Mode, Options, Writers};

/// A whole run.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Whose turn it is, and which fault when.
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

/// One thing that a runtime, or an operator, asks of a node. Containers are numbered within their lane.
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
    /// What one lane is at is dropped where it stands, while its process lives on: its client hung up. It begins anew.
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
        let mut chance = Chance::new(seed ^ 0x05ee_d0fa_914a);
        let mut shape = Shape::of(&mut chance, options);
        let mut own = Chance::new(seed ^ 0x0b05_1e57_ca7e);
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
                zone: pick(&mut chance, &ZONES),
                kind: kind(&mut chance, options.writers, index),
                lanes: (0..options.lanes).map(|_| script(&mut chance, options.ops, count)).collect(),
            })
            .collect();
        if shape.cooldown_s > 0 {
            // calico-ipam.md section 9: never enabled while any peer up to 3.32 writes.
            for node in nodes.iter_mut().filter(|node| matches!(node.kind, Kind::Go(_))) {
                node.kind = Kind::Go(Version::V333);
            }
        }
        let steps = (count * options.lanes * options.ops) as u64 * STEPS_PER_OP;
        let mut events = events(&mut chance, steps, count, options.writers);
        events.extend(hang_ups(&mut own, steps, count, options.lanes));
        events.sort_by_key(|(step, _)| *step);
        Self { seed, mode: options.mode, faults: faults(&mut chance), shape, nodes, events }
    }

    /// Whether the store answers each request, and truly.
    pub(crate) fn is_healthy(&self) -> bool {
        let Faults { lost_reply, lost_request, unavailable, .. } = self.faults;
        lost_reply + lost_request + unavailable == 0
    }
}

impl Shape {
    fn of(chance: &mut Chance, options: &Options) -> Self {
        let pools = match chance.below(6) {
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
            reserved: match chance.below(4) {
                0 => vec!["10.1.0.0/30", "10.1.0.9/32"],
                _ => Vec::new(),
            },
            strict: chance.below(5) == 0,
            cooldown_s: if options.writers == Writers::Mixed && chance.below(6) == 0 { 60 } else { 0 },
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

fn pick<T: Copy>(chance: &mut Chance, choices: &[T]) -> T {
    choices[chance.below(choices.len() as u64) as usize]
}

fn kind(chance: &mut Chance, writers: Writers, index: usize) -> Kind {
    let go = match (writers, index) {
        (Writers::Ours, _) | (Writers::Mixed, 0) => false,
        (Writers::Mixed, 1) => true,
        (Writers::Mixed, _) => chance.below(2) == 0,
    };
    match go {
        true => Kind::Go(pick(chance, &[Version::V331, Version::V332, Version::V333])),
        false => Kind::Ours { remembers: chance.below(2) == 0 },
    }
}

fn faults(chance: &mut Chance) -> Faults {
    // A third of the runs has no faults: then only the order of steps and the crashes matter.
    let heavy = [0, 1, 3][chance.below(3) as usize];
    Faults {
        conflict: heavy * chance.below(30) as u32,
        lost_reply: heavy * chance.below(25) as u32,
        lost_request: heavy * chance.below(20) as u32,
        unavailable: heavy * chance.below(8) as u32,
        delayed_event: 200,
        compaction: 50,
    }
}

fn events(chance: &mut Chance, steps: u64, nodes: usize, writers: Writers) -> Vec<(u64, Event)> {
    let mut events = Vec::new();
    for _ in 0..chance.below(8) {
        let node = chance.below(nodes as u64) as usize;
        let changes_sides = writers == Writers::Mixed && chance.below(4) == 0;
        events.push((chance.below(steps), Event::Crash { node, down: chance.below(300), changes_sides }));
    }
    for _ in 0..chance.below(4) {
        events.push((chance.below(steps), Event::Jump));
    }
    events
}

/// Half of the runs has clients that hang up.
fn hang_ups(chance: &mut Chance, steps: u64, nodes: usize, lanes: usize) -> Vec<(u64, Event)> {
    let count = if chance.below(2) == 0 { 0 } else { chance.below(4 * lanes as u64) };
    let mut hang_up = || {
        let node = chance.below(nodes as u64) as usize;
        (chance.below(steps), Event::HangUp { node, lane: chance.below(lanes as u64) as usize })
    };
    (0..count).map(|_| hang_up()).collect()
}

/// What one lane does. Containers come and go; some are asked for again, some have two interfaces.
fn script(chance: &mut Chance, ops: usize, nodes: usize) -> Vec<Op> {
    let mut script = Vec::new();
    let mut alive: Vec<Op> = Vec::new();
    let mut next = 0;
    while script.len() < ops {
        let op = match chance.below(26) {
            0..=8 => {
                let v6 = u32::from(chance.below(4) == 0);
                let v4 = if chance.below(8) == 0 { 2 } else { 1 };
                next += 1;
                Op::Add { pod: next, interface: "eth0", v4, v6 }
            }
            9 => {
                next += 1;
                Op::Pin { pod: next, index: chance.below(64) }
            }
            10 | 11 if !alive.is_empty() => alive[chance.below(alive.len() as u64) as usize].clone(),
            12 | 13 if !alive.is_empty() => match alive[chance.below(alive.len() as u64) as usize] {
                Op::Add { pod, v4, v6, .. } => Op::Add { pod, interface: "net1", v4, v6 },
                ref pin => pin.clone(),
            },
            14 => Op::ReleaseAffinity { pick: chance.next_u64(), must_be_empty: chance.below(2) == 0 },
            15 if chance.below(3) == 0 => Op::ReleaseNode,
            16 if chance.below(3) == 0 => {
                Op::Relabel { node: chance.below(nodes as u64) as usize, zone: pick(chance, &ZONES) }
            }
            _ if !alive.is_empty() => {
                let (pod, interface) = alive[chance.below(alive.len() as u64) as usize].container();
                match chance.below(6) {
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
