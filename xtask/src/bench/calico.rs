//! `cargo xtask bench calico`: ADD and DEL of `calico` with `calico-ipam` on a real etcd, of one
//! pod and of 20 at once, by Russet with and without the agent; and the requests of Go's plugins,
//! in their order, on the same etcd. etcd itself counts the requests.
//!
//! Ours are real pods: `russet-cni` under the name `calico`, as installed, called as runtimes call
//! it, in namespaces of the benchmark's own. Go's are requests only, sent by crates/bench. In
//! each round all take turns in shuffled order, on the same etcd.

pub(super) mod cluster;
mod findings;
mod ours;
mod requests;

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::artifacts::{self, Profile};
use crate::bench::calico::cluster::Cluster;
use crate::bench::calico::findings::Findings;
use crate::bench::cni::caller::{self, Verb};
use crate::bench::cni::scratch::{Node, Sandbox, World, until};
use crate::bench::cni::subject::{Binaries, Subject};
use crate::bench::ipam::etcd;
use crate::bench::ipam::worker::Worker;
use crate::bench::quiet::Quiet;
use crate::bench::shuffle::Shuffler;
use crate::bench::statistics::Conditions;
use crate::bench::{self, FoundReport, Options, inside};
use crate::error::{Error, Result};
use crate::packages;

/// Samples of a single ADD and DEL that each implementation gives in a round.
const SINGLES: usize = 20;
/// Bursts that each gives in a round, and pods in a burst.
const BURSTS: usize = 3;
const BURST: usize = 20;
/// ADDs after a pause in a round.
const PAUSES: usize = 2;
/// For a second, the agent assumes that the datastore is not locked and that the network has its
/// profile.
const PAUSE: Duration = Duration::from_millis(1200);

const ADD: &str = "add";
const DEL: &str = "del";
const ADD_20: &str = "add20";
const DEL_20: &str = "del20";
const ADD_PAUSED: &str = "add-after-pause";
const OPS: [&str; 5] = [ADD, DEL, ADD_20, DEL_20, ADD_PAUSED];

const AGENT: &str = "calico-agent";
const DIRECT: &str = "calico-direct";
const GO: &str = "go-order";
const GO_CONNECT: &str = "go-order-connect";
const SUBJECTS: [&str; 4] = [AGENT, DIRECT, GO, GO_CONNECT];
/// The nodes as the datastore knows them: ours, and the worker's.
const NODES: &str = "bench-agent bench-direct bench-go";

/// Notes that explain the table.
const NOTES: [&str; 5] = [
    "a container that Kubernetes does not know, policy.type empty, one IPv4 pool, nodes with 16 pods; add20 and del20 are one sample from the first start to the last end, so that their p99 is the slowest of few",
    "calico-*: whole ADDs and DELs of real pods: process, kernel, etcd; calico-agent through the agent, calico-direct without one: russet-cni executes russet, which connects anew",
    "go-order: our replay of the requests of Go's calico and calico-ipam 3.x in their order, sequential, connections kept, host lock taken; requests alone: no process, no kernel, no TLS. Not the Go program",
    "go-order-connect: the same with a new connection for each process that Go would start: two for an ADD, two for a DEL",
    "requests: unary calls that etcd counted (grpc_server_started_total) from before a sample until after it, the agent's own upkeep included; streams (Watch, LeaseKeepAlive) are none",
];

/// One run, inside its namespaces.
struct Run<'a> {
    world: &'a World,
    cluster: &'a Cluster,
    worker: Worker,
    sides: Vec<Side>,
    /// One for each side, added and deleted outside of measurements.
    spare: Vec<Sandbox>,
    shuffler: Shuffler,
    quiet: Quiet,
    findings: Findings,
}

/// The implementations that take turns.
enum Side {
    Plugin { node: Node, subject: Subject },
    Replay(&'static str),
}

/// Builds what is measured, then starts itself again in namespaces of its own; there, measures.
pub fn run(options: &Options) -> Result<FoundReport> {
    options.check_subjects(SUBJECTS)?;
    inside::run(options, build, measure)
}

fn build(_: &Options) -> Result<()> {
    packages::ensure()?;
    artifacts::dynamic("russet", Profile::Optimized)?;
    artifacts::dynamic(artifacts::BENCH, Profile::Optimized)?;
    artifacts::statically("russet-cni", Profile::Optimized).map(drop)
}

fn measure(options: &Options, directory: &Path) -> Result<Findings> {
    etcd::refuse_memory(directory)?;
    let world = World::set_up()?;
    let cluster = Cluster::start(directory)?;
    let mut worker = Worker::start("calico", &[cluster.url().as_ref()])?;
    worker.ask(&format!("fill {NODES}"))?;
    let sides = start(options, &world, &cluster, directory)?;
    let spare = world.sandboxes("spare", sides.len(), 0)?;
    let seed = bench::seed();
    eprintln!("calico: {} rounds, seed {seed}", options.rounds);
    let (shuffler, quiet, findings) = (Shuffler::new(seed), options.quiet(), Findings::default());
    let mut run = Run { world: &world, cluster: &cluster, worker, sides, spare, shuffler, quiet, findings };
    for which in 0..run.sides.len() {
        run.warm_up(which, BURST)?;
    }
    for round in 1..=options.rounds {
        run.round(round)?;
        eprintln!("calico: round {round} of {} done", options.rounds);
    }
    let Run { mut findings, quiet, .. } = run;
    findings.finish(Conditions::new(format!("{} rounds, seed {seed}", options.rounds), &NOTES, quiet));
    Ok(findings)
}

/// Each of ours on a node of its own.
fn start(options: &Options, world: &World, cluster: &Cluster, directory: &Path) -> Result<Vec<Side>> {
    let binaries = Binaries::built()?;
    let mut sides = Vec::new();
    for (number, name) in SUBJECTS.into_iter().enumerate().filter(|(_, name)| options.wants(name)) {
        if name == GO || name == GO_CONNECT {
            sides.push(Side::Replay(name));
            continue;
        }
        let own = directory.join(name);
        fs::create_dir_all(&own).map_err(Error::io(format!("create {}", own.display())))?;
        let node = cluster.node(world, number)?;
        let subject = node.inside(|| ours::subject(name, &binaries, &own, cluster.url()))?;
        world.enter()?;
        sides.push(Side::Plugin { node, subject });
    }
    Ok(sides)
}

// === impl Run ===

impl Run<'_> {
    fn round(&mut self, round: u32) -> Result<()> {
        let count = self.sides.len();
        let mut next = 1;
        let mut take = |label: &str, count: usize| {
            let first = next;
            next += count as u32;
            self.world.sandboxes(&format!("r{round}{label}"), count, first)
        };
        let singles = (0..SINGLES).map(|_| take("s", count)).collect::<Result<Vec<_>>>()?;
        let bursts = (0..BURSTS * count).map(|_| take("b", BURST)).collect::<Result<Vec<_>>>()?;
        let paused = take("p", PAUSES)?;
        self.quiet.wait();
        self.singles(ADD, Verb::Add, &singles)?;
        self.singles(DEL, Verb::Del, &singles)?;
        for (turn, pods) in bursts.chunks(count).enumerate() {
            if turn == 0 {
                self.quiet.wait();
            }
            for which in self.shuffler.order(count) {
                self.warm_up(which, 1)?;
                self.sample(ADD_20, Verb::Add, which, &pods[which])?;
                self.sample(DEL_20, Verb::Del, which, &pods[which])?;
                self.settle(which)?;
            }
        }
        self.after_pauses(&paused)?;
        let all: Vec<Sandbox> = singles.into_iter().chain(bursts).flatten().chain(paused).collect();
        self.world.remove(&all)?;
        self.world.drain()
    }

    /// Turn by turn, each side once, in an order that differs from turn to turn.
    fn singles(&mut self, op: &'static str, verb: Verb, pods: &[Vec<Sandbox>]) -> Result<()> {
        for which in 0..self.sides.len() {
            self.warm_up(which, 1)?;
        }
        for turn in pods {
            for which in self.shuffler.order(self.sides.len()) {
                self.sample(op, verb, which, std::slice::from_ref(&turn[which]))?;
                if verb == Verb::Del {
                    self.settle(which)?;
                }
            }
        }
        Ok(())
    }

    /// Includes the reads that the agent repeats because the last ADD was long ago.
    fn after_pauses(&mut self, pods: &[Sandbox]) -> Result<()> {
        let Some(agent) = self.sides.iter().position(|side| side.name() == AGENT) else { return Ok(()) };
        for pod in pods {
            until(PAUSE, || Ok(false))?;
            self.sample(ADD_PAUSED, Verb::Add, agent, std::slice::from_ref(pod))?;
            self.ask(agent, Verb::Del, std::slice::from_ref(pod))?;
            self.settle(agent)?;
        }
        Ok(())
    }

    /// One pod, not counted: opens connections and fills caches. A replay has a connection for each
    /// caller.
    fn warm_up(&mut self, which: usize, callers: usize) -> Result<()> {
        let spare = self.spare[which].clone();
        let pods = match self.sides[which] {
            Side::Plugin { .. } => vec![spare],
            Side::Replay(_) => vec![spare; callers],
        };
        self.ask(which, Verb::Add, &pods)?;
        self.ask(which, Verb::Del, &pods)?;
        self.settle(which)
    }

    fn sample(&mut self, op: &'static str, verb: Verb, which: usize, pods: &[Sandbox]) -> Result<()> {
        let before = self.cluster.requests()?;
        let took = self.ask(which, verb, pods)?;
        let asked = self.cluster.requests()?.since(&before);
        self.findings.add(op, self.sides[which].name(), pods.len(), took, asked);
        Ok(())
    }

    fn ask(&mut self, which: usize, verb: Verb, pods: &[Sandbox]) -> Result<Duration> {
        match &self.sides[which] {
            Side::Plugin { node, subject } => node.inside(|| caller::call_at_once(subject, verb, pods)),
            Side::Replay(name) => {
                let verb = verb.name().to_ascii_lowercase();
                let line = format!("{verb} {name} {}", pods.len());
                let us = self.worker.ask(&line)?["us"].as_f64();
                let us =
                    us.ok_or_else(|| Error::Found(format!("the worker did not say how long {line:?} took")))?;
                Ok(Duration::from_secs_f64(us / 1e6))
            }
        }
    }

    /// Work that a DEL defers belongs to its side: it must not slow the next one.
    fn settle(&self, which: usize) -> Result<()> {
        match &self.sides[which] {
            Side::Plugin { node, subject } => {
                node.inside(|| subject.settle())?;
                self.world.drain()
            }
            Side::Replay(_) => Ok(()),
        }
    }
}

// === impl Side ===

impl Side {
    fn name(&self) -> &'static str {
        match self {
            Self::Plugin { subject, .. } => subject.name,
            Self::Replay(name) => name,
        }
    }
}
