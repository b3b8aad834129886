//! Runs a plan: prepares the store, runs the nodes, kills and restarts them, and in the end deletes
//! everything and checks what is left.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

use russet_addr::NodeName;
use russet_model::{HandleId, IpPool, IpPoolSpec, IpReservation, IpReservationSpec, IpamConfig, Key};
use russet_store::sim::Faults;
use russet_store::{Sim, Step, Store};

use crate::check::Checker;
use crate::executor::{Executor, alone};
use crate::failure::{Violation, ViolationKind};
use crate::lane::{Lane, Memory, node_record};
use crate::plan::{Event, Kind, Plan};
use crate::process::{Process, Wanted};
use crate::watcher::{self, Mirror};
use crate::wire::{Log, Wire};
use crate::world::World;
use crate::{Mode, Stats};

/// The result of a failed run.
pub(crate) struct End {
    pub(crate) violation: Violation,
    /// What happened, if it was traced.
    pub(crate) trace: Vec<String>,
}

struct Cluster<'a> {
    plan: &'a Plan,
    sim: Sim,
    log: Rc<Log>,
    world: Rc<RefCell<World>>,
    checker: Checker,
    executor: Executor,
    mirror: Rc<RefCell<Mirror>>,
    names: Rc<Vec<NodeName>>,
    nodes: Vec<NodeState>,
    /// The store's operations when the rules were last checked.
    looked_at: u64,
}

struct NodeState {
    kind: Kind,
    lanes: Vec<Rc<RefCell<Memory>>>,
    /// The step until which it is down.
    down_until: Option<u64>,
    /// Its process; None before its first start.
    process: Option<Rc<Process>>,
}

/// A generous maximum of steps per operation; beyond it some process loops.
const STEPS_PER_OP_MAX: u64 = 500;
/// Steps that a run may take besides: nodes that are down, the last lane's retries.
const STEPS_BESIDES: u64 = 20_000;
/// What one step takes.
const STEP_TIME: Duration = Duration::from_millis(5);
/// Longer than a block must be idle before others take it, and than any cooldown.
const JUMP: Duration = Duration::from_secs(61);
/// How often the repair deletes everything: a runtime repeats what failed.
const REPAIR_ROUNDS: usize = 3;

/// Runs a plan to its end.
pub(crate) fn play(plan: &Plan, traced: bool) -> Result<Stats, End> {
    let log = Rc::new(Log::new(traced));
    let sim = match plan.mode {
        Mode::Atomic => Sim::atomic(plan.seed),
        Mode::NonAtomic => Sim::non_atomic(plan.seed),
    };
    let result = Cluster::new(plan, sim.clone(), log.clone()).and_then(|mut cluster| cluster.play());
    result.map_err(|violation| {
        let mut trace = log.take_lines();
        if traced {
            trace.push(sim.dump());
        }
        End { violation, trace }
    })
}

// === impl Cluster ===

impl<'a> Cluster<'a> {
    fn new(plan: &'a Plan, sim: Sim, log: Rc<Log>) -> Result<Self, Violation> {
        let names: Vec<NodeName> =
            plan.nodes.iter().map(|node| parsed(node.name)).collect::<Result<_, _>>()?;
        let state = |(index, node): (usize, &crate::plan::NodePlan)| NodeState {
            kind: node.kind,
            lanes: (0_u64..)
                .zip(&node.lanes)
                .map(|(lane, script)| {
                    let seed = plan.seed ^ ((index as u64) << 32 | lane);
                    Rc::new(RefCell::new(Memory::new(script.clone(), seed)))
                })
                .collect(),
            down_until: Some(0),
            process: None,
        };
        let nodes = plan.nodes.iter().enumerate().map(state).collect();
        let cluster = Self {
            plan,
            sim,
            log,
            world: Rc::default(),
            checker: Checker::new(always_ours(plan, &names)),
            executor: Executor::new(plan.seed.rotate_left(17)),
            mirror: Rc::default(),
            names: Rc::new(names),
            nodes,
            looked_at: 0,
        };
        cluster.prepare()?;
        Ok(cluster)
    }

    /// Writes pools, reservations, settings and nodes.
    fn prepare(&self) -> Result<(), Violation> {
        let mut steps = Vec::new();
        for (name, cidr, block_len, selector) in &self.plan.shape.pools {
            let mut spec = IpPoolSpec::new(parsed(cidr)?);
            spec.block_size = Some(*block_len);
            spec.node_selector = selector.map(str::to_owned);
            let key = Key::pool(name).map_err(setup)?;
            steps.push(Step::create(key, IpPool::new(*name, spec).encode()));
        }
        if !self.plan.shape.reserved.is_empty() {
            let cidrs = self.plan.shape.reserved.iter().map(|net| (*net).to_owned()).collect();
            let spec = IpReservationSpec { reserved_cidrs: cidrs, ..IpReservationSpec::default() };
            let key = Key::reservation("r").map_err(setup)?;
            steps.push(Step::create(key, IpReservation::new("r", spec).encode()));
        }
        if self.plan.shape.strict || self.plan.shape.cooldown_s > 0 {
            let config = IpamConfig {
                strict_affinity: self.plan.shape.strict,
                ip_cooldown_seconds: self.plan.shape.cooldown_s,
                ..IpamConfig::default()
            };
            steps.push(Step::create(Key::ipam_config(), config.encode()));
        }
        for (name, node) in self.names.iter().zip(&self.plan.nodes) {
            steps.push(node_record(name, node.zone));
        }
        match alone(self.sim.commit(steps)) {
            Some(Ok(_)) => Ok(()),
            _ => Err(setup("the store refuses the first records")),
        }
    }

    fn play(&mut self) -> Result<Stats, Violation> {
        self.sim.set_faults(self.plan.faults);
        self.executor.spawn(None, watcher::follow(self.sim.clone(), self.mirror.clone()));
        self.work()?;
        self.sim.set_faults(Faults::default());
        self.repair()?;
        while self.executor.step() {}
        self.mirror.borrow().compare(&self.sim)?;
        let mut stats = self.world.borrow().stats;
        self.checker.check_nothing_left(&self.sim, &self.world.borrow(), &mut stats)?;
        self.use_again()?;
        stats.runs = 1;
        stats.steps = self.log.step.get();
        stats.shared_commits = self.log.shared_commits.get();
        stats.store_operations = self.sim.operations();
        Ok(stats)
    }

    /// Until all scripts are done.
    fn work(&mut self) -> Result<(), Violation> {
        let mut events = self.plan.events.iter().peekable();
        let ops = self.plan.nodes.iter().flat_map(|node| &node.lanes).map(Vec::len).sum::<usize>() as u64;
        let steps_max = ops * STEPS_PER_OP_MAX + STEPS_BESIDES;
        loop {
            let step = self.log.step.get() + 1;
            self.log.step.set(step);
            self.log.advance(STEP_TIME);
            while let Some((_, event)) = events.next_if(|(at, _)| *at <= step) {
                self.happen(*event)?;
            }
            self.start_nodes()?;
            let polled = self.executor.step();
            self.look()?;
            if !self.executor.is_busy() && self.nodes.iter().all(|node| node.down_until.is_none()) {
                return Ok(());
            }
            if !polled && self.nodes.iter().all(|node| node.down_until.is_none()) {
                return Err(Violation::new(ViolationKind::Stuck, "every task waits for another"));
            }
            if step > steps_max {
                return Err(Violation::new(ViolationKind::Stuck, "the scripts do not come to an end"));
            }
        }
    }

    /// Checks the rules if a step may have written.
    fn look(&mut self) -> Result<(), Violation> {
        let world = self.world.borrow();
        if let Some(violation) = &world.violation {
            return Err(violation.clone());
        }
        let operations = self.sim.operations();
        let written = self.log.written.replace(false) && operations != self.looked_at;
        if written || self.log.answered.replace(false) {
            self.looked_at = operations;
            self.checker.check(&self.sim, &world)?;
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Result<(), Violation> {
        self.log.note("cluster", || format!("{event:?}"));
        match event {
            Event::Jump => self.log.advance(JUMP),
            Event::HangUp { node, lane } => self.hang_up(node, lane)?,
            Event::Crash { node, down, changes_sides } => {
                let until = self.log.step.get() + down;
                let Some(state) = self.nodes.get_mut(node) else { return Ok(()) };
                self.executor.kill(node);
                state.down_until = Some(until);
                if changes_sides {
                    state.kind = other_side(state.kind);
                }
                state.process = None;
                self.world.borrow_mut().stats.crashes += 1;
            }
        }
        Ok(())
    }

    /// Cancels the current operation of a lane; its process continues.
    fn hang_up(&mut self, node: usize, lane: usize) -> Result<(), Violation> {
        let process = self.nodes.get(node).and_then(|state| state.process.clone());
        if let Some(process) = process.filter(|process| !process.is_go())
            && self.executor.hang_up((node, lane))
        {
            self.world.borrow_mut().stats.hang_ups += 1;
            self.start_lane(node, lane, process)?;
        }
        Ok(())
    }

    fn start_nodes(&mut self) -> Result<(), Violation> {
        let step = self.log.step.get();
        for index in 0..self.nodes.len() {
            if self.nodes[index].down_until.is_some_and(|until| until <= step) {
                self.nodes[index].down_until = None;
                self.start(index)?;
            }
        }
        Ok(())
    }

    fn start(&mut self, index: usize) -> Result<(), Violation> {
        let process = Rc::new(self.process(index, self.nodes[index].kind));
        self.nodes[index].process = Some(process.clone());
        for lane in 0..self.nodes[index].lanes.len() {
            self.start_lane(index, lane, process.clone())?;
        }
        Ok(())
    }

    fn start_lane(&mut self, index: usize, number: usize, process: Rc<Process>) -> Result<(), Violation> {
        let lane = Lane {
            name: format!("{}/{number}", self.names[index]),
            process,
            memory: self.nodes[index].lanes[number].clone(),
            world: self.world.clone(),
            log: self.log.clone(),
            sim: self.sim.clone(),
            pool: parsed(self.plan.shape.pools[0].1)?,
            node_names: self.names.clone(),
            is_healthy: self.plan.is_healthy(),
        };
        self.executor.spawn(Some((index, number)), lane.work());
        Ok(())
    }

    fn process(&self, index: usize, kind: Kind) -> Process {
        let who = self.names[index].to_string();
        let wire = Wire { sim: self.sim.clone(), who, log: self.log.clone() };
        Process::new(self.names[index].clone(), kind, wire)
    }

    /// Deletes every container, like a runtime that has restarted. Those of the Go model are
    /// deleted by it.
    fn repair(&mut self) -> Result<(), Violation> {
        self.log.note("cluster", || "repair".into());
        self.world.borrow_mut().live.clear();
        let ours = self.process(0, Kind::Ours { remembers: false });
        let go = self.process(0, Kind::Go(crate::go::Version::V333));
        let pods: Vec<(HandleId, bool)> =
            self.world.borrow().pods.values().map(|pod| (pod.handle.clone(), pod.go)).collect();
        for _ in 0..REPAIR_ROUNDS {
            for (handle, is_go) in &pods {
                let process = if *is_go { &go } else { &ours };
                let refused = |problem: String| Violation::new(ViolationKind::Refused, problem);
                match alone(process.del(handle, None)) {
                    Some(Ok(())) => {}
                    Some(Err(_)) if *is_go => {}
                    Some(Err(problem)) => return Err(refused(format!("DEL of {handle}: {problem}"))),
                    None => return Err(refused(format!("DEL of {handle} waits for ever"))),
                }
                self.checker.check(&self.sim, &self.world.borrow())?;
            }
        }
        Ok(())
    }

    /// With everything deleted, each of our nodes can get an address. If the Go model leaked, the
    /// pool may be full.
    fn use_again(&mut self) -> Result<(), Violation> {
        if self.nodes.iter().any(|node| matches!(node.kind, Kind::Go(_))) || self.plan.shape.cooldown_s > 0 {
            return Ok(());
        }
        for index in 0..self.names.len() {
            // What the node before this one claimed is idle by now.
            self.log.advance(JUMP);
            let process = self.process(index, Kind::Ours { remembers: false });
            let handle = HandleId::new(format!("net.last-{index}")).map_err(setup)?;
            let wanted = Wanted {
                handle: handle.clone(),
                pod: format!("last-{index}"),
                interface: parsed("eth0")?,
                v4: 1,
                v6: 1,
            };
            let any = self
                .plan
                .shape
                .pools
                .iter()
                .any(|(_, cidr, _, selector)| selector.is_none() && cidr.contains('.'));
            match alone(process.add(&wanted)) {
                Some(Ok(_)) => {}
                Some(Err(problem)) if any => {
                    let text =
                        format!("ADD on {} after everything was deleted: {problem}", self.names[index]);
                    return Err(Violation::new(ViolationKind::Refused, text));
                }
                _ => {}
            }
            if !matches!(alone(process.del(&handle, None)), Some(Ok(()))) {
                return Err(Violation::new(ViolationKind::Refused, format!("DEL of {handle}")));
            }
        }
        let mut stats = Stats::default();
        self.checker.check_nothing_left(&self.sim, &self.world.borrow(), &mut stats)
    }
}

/// The nodes that never run the Go model.
fn always_ours(plan: &Plan, names: &[NodeName]) -> BTreeSet<NodeName> {
    let changes = |index: usize| {
        let mut events = plan.events.iter();
        events.any(
            |(_, event)| matches!(event, Event::Crash { node, changes_sides: true, .. } if *node == index),
        )
    };
    let nodes = plan.nodes.iter().enumerate();
    let ours = nodes.filter(|(index, node)| matches!(node.kind, Kind::Ours { .. }) && !changes(*index));
    ours.filter_map(|(index, _)| names.get(index).cloned()).collect()
}

/// The other implementation, for a node that changes sides.
fn other_side(kind: Kind) -> Kind {
    match kind {
        Kind::Ours { .. } => Kind::Go(crate::go::Version::V333),
        Kind::Go(_) => Kind::Ours { remembers: true },
    }
}

fn parsed<T: FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, Violation> {
    text.parse().map_err(|error| setup(format!("{text}: {error}")))
}

fn setup(problem: impl std::fmt::Display) -> Violation {
    Violation::new(ViolationKind::Setup, problem.to_string())
}
