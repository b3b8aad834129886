//! `cargo xtask bench cni`: ADD and DEL of one pod, of 30 and of 100 at once, by Russet and by
//! others (dataplane.md section 3.2); on a node with 500 pods, on a disk with slow syncs, beside
//! bulk work on the kernel; and the cost of an idle agent.
//!
//! The caller is the same for all: spawn with `CNI_*` and the configuration on stdin, read stdout
//! to its end, wait. Every sample has a fresh named namespace. In each round the implementations
//! take turns in shuffled order; the namespaces are removed together at the round's end, so that no
//! sample runs beside the teardown of another. Everything happens in network and mount namespaces
//! made for the benchmark, each implementation on a node of its own.

pub(super) mod agent;
mod bulk;
pub(super) mod caller;
mod crowd;
mod direct;
mod floor;
mod full;
pub(super) mod go;
mod goals;
mod idle;
mod rounds;
pub(super) mod scratch;
mod slow;
mod status;
pub(super) mod subject;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::artifacts::{self, Profile};
use crate::bench::cni::agent::Store;
use crate::bench::cni::caller::Verb;
use crate::bench::cni::scratch::{Node, Sandbox, World, until};
use crate::bench::cni::subject::{Binaries, Subject};
use crate::bench::ipam::etcd;
use crate::bench::quiet::Quiet;
use crate::bench::report::Report;
use crate::bench::shuffle::Shuffler;
use crate::bench::statistics::Conditions;
use crate::bench::{self, FoundReport, Options, inside};
use crate::error::{Error, Result};
use crate::packages;

const AGENT: &str = "russet-agent-embedded";
const AGENT_ETCD: &str = "russet-agent-etcd";
const DIRECT: &str = "russet-direct-embedded";
const AGENT_BRIDGE: &str = "russet-agent-bridge-host-local";
const GO_BRIDGE: &str = "go-bridge-host-local";
const GO_PTP: &str = "go-ptp-host-local";
const FLOOR: &str = "floor";
const SUBJECTS: [&str; 7] = [AGENT, AGENT_ETCD, DIRECT, AGENT_BRIDGE, GO_BRIDGE, GO_PTP, FLOOR];

const ROUNDS: &str = "rounds";
const FULL: &str = "full";
const SLOW: &str = "slow";
const BULK: &str = "bulk";
const STATUS: &str = "status";
const IDLE: &str = "idle";
/// What `--only` takes.
pub(super) const PARTS: [&str; 6] = [ROUNDS, FULL, SLOW, BULK, STATUS, IDLE];

/// Notes that explain the table.
const NOTES: [&str; 7] = [
    "add, del: one pod, from spawn to exit of the plugin; add30, add100 and so on: as many at once, one sample from the first spawn to the last exit, so that their p99 is the slowest of few",
    "@0, @500: on nodes with no and with 500 pods, turn by turn; @5ms: each fdatasync and fsync of the agent and of etcd takes 5 ms more (strace's injection)",
    "@routes: ADDs while the agent programs 15,000 routes that were removed; @group: ADDs while it deletes the links of 200 pods; @calm: ADDs on the same nodes while it has nothing to do",
    "floor: one static process that sends the same netlink messages and does nothing else: no addresses, no agent, no store",
    "status@metrics: STATUS while 31 clients read /metrics without pause, each on one connection after the other",
    "version: the plugin's own answer to VERSION, without the agent: what its process costs",
    "rss, anon: VmRSS and RssAnon of /proc/PID/status; idle: processor time of all threads (/proc/PID/task/*/schedstat) over a minute; of the release build, RUSSET_BENCH_DAEMON=PATH measures another one",
];

/// One run of the benchmark, inside its namespaces.
struct Run<'a> {
    options: &'a Options,
    world: &'a World,
    binaries: Binaries,
    directory: &'a Path,
    /// Nodes so far.
    nodes: usize,
    /// Sandboxes so far: numbers and names are never used twice.
    sandboxes: u32,
    shuffler: Shuffler,
    quiet: Quiet,
    report: Report,
}

/// An implementation on its node. Its processes end with this value; the node's namespace stays.
struct Side {
    name: &'static str,
    node: Node,
    subject: Subject,
}

/// Builds what is measured, then starts itself again in namespaces of its own; there, measures. The
/// process that has the report prints it.
pub fn run(options: &Options) -> Result<FoundReport> {
    options.check_subjects(SUBJECTS)?;
    inside::run(options, build, measure)
}

fn build(options: &Options) -> Result<()> {
    packages::ensure()?;
    if [AGENT, AGENT_ETCD, DIRECT, AGENT_BRIDGE].iter().any(|name| options.wants(name)) {
        artifacts::dynamic("russet", Profile::Optimized)?;
        artifacts::statically("russet-cni", Profile::Optimized)?;
    }
    if options.wants(FLOOR) {
        artifacts::statically(artifacts::FLOOR, Profile::Optimized)?;
    }
    Ok(())
}

fn measure(options: &Options, directory: &Path) -> Result<Report> {
    etcd::refuse_memory(directory)?;
    let world = World::set_up()?;
    let seed = bench::seed();
    let mut run = Run {
        options,
        world: &world,
        binaries: Binaries::built()?,
        directory,
        nodes: 0,
        sandboxes: 0,
        shuffler: Shuffler::new(seed),
        quiet: options.quiet(),
        report: Report::new("cni", goals::GOALS),
    };
    eprintln!("cni: {} rounds, seed {seed}", options.rounds);
    for (part, measure) in parts() {
        if options.does(part) {
            measure(&mut run)?;
            eprintln!("cni: {part} done");
        }
    }
    let Run { mut report, quiet, binaries, .. } = run;
    goals::derive(&mut report);
    report.sort(&goals::OPS, &SUBJECTS);
    let run = format!("{} rounds, seed {seed}, {}", options.rounds, binaries.russet.display());
    report.conditions = Conditions::new(run, &NOTES, quiet);
    Ok(report)
}

type PartFn = fn(&mut Run<'_>) -> Result<()>;

/// Each part and what it does.
fn parts() -> [(&'static str, PartFn); PARTS.len()] {
    [
        (ROUNDS, rounds::measure),
        (FULL, full::measure),
        (SLOW, slow::measure),
        (BULK, bulk::measure),
        (STATUS, status::measure),
        (IDLE, idle::measure),
    ]
}

fn subject(name: &'static str, binaries: &Binaries, directory: &Path) -> Result<Subject> {
    Ok(match name {
        AGENT => agent::start(AGENT, binaries, directory, Store::Embedded)?,
        AGENT_ETCD => agent::start(AGENT_ETCD, binaries, directory, Store::Etcd)?,
        AGENT_BRIDGE => agent::bridge(binaries, directory)?,
        DIRECT => direct::subject(binaries, directory)?,
        GO_BRIDGE => go::bridge(directory),
        GO_PTP => go::ptp(directory),
        _ => floor::subject(binaries),
    })
}

// === impl Run ===

impl Run<'_> {
    /// An implementation on a fresh node, warm: it has served a pod.
    fn side(&mut self, name: &'static str) -> Result<Side> {
        self.side_of(name, subject)
    }

    fn side_of<S>(&mut self, name: &'static str, make: S) -> Result<Side>
    where
        S: FnOnce(&'static str, &Binaries, &Path) -> Result<Subject>,
    {
        let (node, own) = self.fresh_node(name)?;
        let subject = node.inside(|| make(name, &self.binaries, &own))?;
        self.world.enter()?;
        let side = Side { name, node, subject };
        self.warm_up(&side)?;
        Ok(side)
    }

    /// A node, and a directory for what runs there.
    fn fresh_node(&mut self, name: &str) -> Result<(Node, PathBuf)> {
        let number = self.nodes;
        self.nodes += 1;
        let own = self.directory.join(format!("{number}-{name}"));
        fs::create_dir_all(&own).map_err(Error::io(format!("create {}", own.display())))?;
        Ok((self.world.node(&format!("node{number}"))?, own))
    }

    /// One pod, not counted: loads files into memory, and creates bridges and blocks. An agent
    /// refuses it until it has its first pools.
    fn warm_up(&mut self, side: &Side) -> Result<()> {
        let pods = self.pods(1)?;
        if !until(READY_LIMIT, || Ok(side.call(Verb::Add, &pods).is_ok()))? {
            side.call(Verb::Add, &pods)?;
        }
        side.call(Verb::Del, &pods)?;
        side.settle()?;
        self.world.remove(&pods)
    }

    /// Fresh namespaces.
    fn pods(&mut self, count: usize) -> Result<Vec<Sandbox>> {
        self.world.enter()?;
        let first = self.sandboxes + 1;
        self.sandboxes += count as u32;
        self.world.sandboxes("p", count, first)
    }

    fn sample(&mut self, op: &'static str, side: &Side, verb: Verb, pods: &[Sandbox]) -> Result<Duration> {
        let took = side.call(verb, pods)?;
        self.report.add(op, side.name, took);
        Ok(took)
    }

    /// Turn by turn, each side once, in an order that differs from turn to turn; work that DELs
    /// defer is done at each turn's end.
    fn turns(&mut self, ops: [&'static str; 2], sides: &[Side], pods: &[Vec<Sandbox>]) -> Result<()> {
        let named: Vec<_> = sides.iter().map(|side| (ops, side)).collect();
        self.named_turns(&named, pods)
    }

    /// [`turns`](Self::turns), each side under names of its own for its ADDs and DELs.
    fn named_turns(&mut self, sides: &[([&'static str; 2], &Side)], pods: &[Vec<Sandbox>]) -> Result<()> {
        for (which, verb) in [Verb::Add, Verb::Del].into_iter().enumerate() {
            self.quiet.wait();
            for turn in pods {
                for number in self.shuffler.order(sides.len()) {
                    let (ops, side) = sides[number];
                    self.sample(ops[which], side, verb, std::slice::from_ref(&turn[number]))?;
                }
                if verb == Verb::Del {
                    self.settle(sides.iter().map(|(_, side)| *side))?;
                }
            }
        }
        Ok(())
    }

    /// ADDs and DELs of all `pods` at once.
    fn burst(&mut self, ops: [&'static str; 2], side: &Side, pods: &[Sandbox]) -> Result<()> {
        self.sample(ops[0], side, Verb::Add, pods)?;
        self.sample(ops[1], side, Verb::Del, pods)?;
        self.settle([side])
    }

    /// The group delete belongs to its side: it must not slow the next one.
    fn settle<'s>(&self, sides: impl IntoIterator<Item = &'s Side>) -> Result<()> {
        sides.into_iter().try_for_each(Side::settle)?;
        self.world.enter()?;
        self.world.drain()
    }
}

// === impl Side ===

impl Side {
    /// Calls for all pods before any answer is read; the time until the last plugin has ended.
    fn call(&self, verb: Verb, pods: &[Sandbox]) -> Result<Duration> {
        self.node.inside(|| caller::call_at_once(&self.subject, verb, pods))
    }

    /// Waits for what DELs left for later.
    fn settle(&self) -> Result<()> {
        self.node.inside(|| self.subject.settle())
    }

    /// Gives the node `pods`, some at a time.
    fn fill(&self, pods: &[Sandbox]) -> Result<()> {
        pods.chunks(FILL_AT_ONCE).try_for_each(|some| self.call(Verb::Add, some).map(drop))
    }
}

/// An agent answers before it is ready.
const READY_LIMIT: Duration = Duration::from_secs(20);
/// Pods that come at once while a node is filled: more would only wait for each other.
const FILL_AT_ONCE: usize = 20;
