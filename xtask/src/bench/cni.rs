//! `cargo xtask bench cni`: ADD and DEL of one pod, and of 30 at once, by us and by others (dataplane.md section 3.2).
//!
//! The caller is the same for all: spawn with `CNI_*` and the configuration on stdin, read stdout to its end, wait.
//! Every sample has a fresh named namespace. Within a round the implementations take turns in shuffled order; the
//! namespaces go all at once at the round's end, so that no sample runs beside the teardown of another. Everything
//! happens in network and mount namespaces made for the benchmark, each implementation on a node of its own.

pub(super) mod agent;
pub(super) mod caller;
mod direct;
mod floor;
mod go;
pub(super) mod scratch;
pub(super) mod subject;

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use crate::artifacts::{self, Profile};
use crate::bench::cni::caller::Verb;
use crate::bench::cni::scratch::{Node, Sandbox, World};
use crate::bench::cni::subject::{Binaries, Subject};
use crate::bench::quiet::Quiet;
use crate::bench::report::{Goal, Report};
use crate::bench::shuffle::Shuffler;
use crate::bench::{Found, Options, inside};
use crate::error::{Error, Result};
use crate::packages;

/// Samples of a single ADD and DEL that each implementation gives in a round.
const SINGLES: usize = 15;
/// Pods in a burst.
const BURST: usize = 30;

const OPS: [&str; 4] = ["add", "del", "burst30-add", "burst30-del"];

const AGENT: &str = "russet-agent-embedded";
const DIRECT: &str = "russet-direct-embedded";
const AGENT_BRIDGE: &str = "russet-agent-bridge-host-local";
const GO_BRIDGE: &str = "go-bridge-host-local";
const GO_PTP: &str = "go-ptp-host-local";
const FLOOR: &str = "floor";
const SUBJECTS: [&str; 6] = [AGENT, DIRECT, AGENT_BRIDGE, GO_BRIDGE, GO_PTP, FLOOR];

const GOALS: &[Goal] = &[
    Goal { op: "add", ours: AGENT, theirs: GO_BRIDGE, at_most: 0.3 },
    Goal { op: "add", ours: AGENT, theirs: FLOOR, at_most: 2.0 },
    Goal { op: "add", ours: AGENT_BRIDGE, theirs: GO_BRIDGE, at_most: 0.3 },
    Goal { op: "del", ours: AGENT_BRIDGE, theirs: GO_BRIDGE, at_most: 0.1 },
    Goal { op: "del", ours: AGENT, theirs: GO_BRIDGE, at_most: 0.1 },
    Goal { op: "burst30-add", ours: AGENT, theirs: GO_PTP, at_most: 0.35 },
];

/// One run of the benchmark, inside its namespaces.
struct Run<'a> {
    world: &'a World,
    subjects: Vec<(Node, Box<dyn Subject>)>,
    shuffler: Shuffler,
    quiet: Quiet,
    report: Report,
}

/// A round's namespaces.
struct Pods {
    /// Turn by turn, one for each subject.
    singles: Vec<Vec<Sandbox>>,
    /// For each subject its burst.
    bursts: Vec<Vec<Sandbox>>,
}

/// Builds what is measured, then starts itself again in namespaces of its own; there, measures. The report is
/// printed by whoever has it.
pub fn run(options: &Options) -> Result<Found> {
    if let Some(name) = options.only.iter().find(|name| !SUBJECTS.contains(&name.as_str())) {
        return Err(Error::Usage(format!("no impl {name:?}; there are: {}", SUBJECTS.join(", "))));
    }
    match &options.inside {
        Some(directory) => Ok(Some(Box::new(measure(options, directory)?))),
        None => inside::enter(options, || build(options)).map(|()| None),
    }
}

fn build(options: &Options) -> Result<()> {
    packages::ensure()?;
    if [AGENT, DIRECT, AGENT_BRIDGE].iter().any(|name| options.wants(name)) {
        artifacts::dynamic("russet", Profile::Release)?;
        artifacts::statically("russet-cni", Profile::Release)?;
    }
    if options.wants(FLOOR) {
        artifacts::statically("russet-bench-floor", Profile::Release)?;
    }
    Ok(())
}

fn measure(options: &Options, directory: &Path) -> Result<Report> {
    let world = World::set_up()?;
    let binaries = Binaries::built()?;
    let subjects = start(options, &world, &binaries, directory)?;
    let seed = SystemTime::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64);
    let report = Report::new("cni", GOALS);
    let mut run =
        Run { world: &world, subjects, shuffler: Shuffler::new(seed), quiet: Quiet::default(), report };
    eprintln!("cni: {} rounds, seed {seed}", options.rounds);
    run.warm_up()?;
    for round in 1..=options.rounds {
        run.round(round)?;
        eprintln!("cni: round {round} of {} done", options.rounds);
    }
    let Run { mut report, quiet, .. } = run;
    report.sort(&OPS, &SUBJECTS);
    report.notes.push(format!("{} rounds, seed {seed}", options.rounds));
    report.notes.extend(quiet.told());
    report.foreign_cpu = quiet.foreign;
    Ok(report)
}

/// Every implementation on a node of its own.
fn start(
    options: &Options,
    world: &World,
    binaries: &Binaries,
    directory: &Path,
) -> Result<Vec<(Node, Box<dyn Subject>)>> {
    let mut subjects = Vec::new();
    for (number, name) in SUBJECTS.into_iter().enumerate().filter(|(_, name)| options.wants(name)) {
        let own = directory.join(name);
        fs::create_dir_all(&own).map_err(Error::io(format!("create {}", own.display())))?;
        let node = world.node(&format!("node{number}"))?;
        let subject = node.inside(|| subject(name, binaries, &own))?;
        world.enter()?;
        subjects.push((node, subject));
    }
    Ok(subjects)
}

fn subject(name: &str, binaries: &Binaries, directory: &Path) -> Result<Box<dyn Subject>> {
    Ok(match name {
        AGENT => Box::new(agent::Agent::start(binaries, directory)?),
        AGENT_BRIDGE => Box::new(agent::Agent::bridge(binaries, directory)?),
        DIRECT => Box::new(direct::Direct::new(binaries, directory)?),
        GO_BRIDGE => Box::new(go::Go::bridge(directory)),
        GO_PTP => Box::new(go::Go::ptp(directory)),
        _ => Box::new(floor::Floor::new(binaries)),
    })
}

// === impl Run ===

impl Run<'_> {
    /// One pod each, not counted: files come into memory, bridges and blocks come into being.
    fn warm_up(&mut self) -> Result<()> {
        let pods = self.world.sandboxes("warm", self.subjects.len(), 0)?;
        for ((node, subject), pod) in self.subjects.iter().zip(&pods) {
            node.inside(|| {
                caller::call(subject.as_ref(), Verb::Add, pod)?;
                caller::call(subject.as_ref(), Verb::Del, pod)?;
                subject.settle()
            })?;
        }
        self.world.remove(&pods)
    }

    fn round(&mut self, round: u32) -> Result<()> {
        let pods = self.pods(round)?;
        self.quiet.wait();
        self.singles("add", Verb::Add, &pods.singles)?;
        self.quiet.wait();
        self.singles("del", Verb::Del, &pods.singles)?;
        for which in self.shuffler.order(self.subjects.len()) {
            self.quiet.wait();
            self.burst("burst30-add", Verb::Add, which, &pods.bursts[which])?;
            self.burst("burst30-del", Verb::Del, which, &pods.bursts[which])?;
            self.settle(which)?;
        }
        self.world.remove(&pods.all())?;
        self.world.drain()
    }

    fn pods(&self, round: u32) -> Result<Pods> {
        let mut next = 1;
        let mut take = |kind: &str, count: usize| {
            let first = next;
            next += count as u32;
            self.world.sandboxes(&format!("r{round}{kind}"), count, first)
        };
        let subjects = self.subjects.len();
        let singles = (0..SINGLES).map(|_| take("s", subjects)).collect::<Result<_>>()?;
        let bursts = (0..subjects).map(|_| take("b", BURST)).collect::<Result<_>>()?;
        Ok(Pods { singles, bursts })
    }

    /// Turn by turn, each subject once, in an order that differs from turn to turn.
    fn singles(&mut self, op: &'static str, verb: Verb, pods: &[Vec<Sandbox>]) -> Result<()> {
        for turn in pods {
            for which in self.shuffler.order(self.subjects.len()) {
                let (node, subject) = &self.subjects[which];
                let took = node.inside(|| caller::call(subject.as_ref(), verb, &turn[which]))?;
                self.report.add(op, subject.name(), took);
                if verb == Verb::Del {
                    self.settle(which)?;
                }
            }
        }
        Ok(())
    }

    fn burst(&mut self, op: &'static str, verb: Verb, which: usize, pods: &[Sandbox]) -> Result<()> {
        let (node, subject) = &self.subjects[which];
        let took = node.inside(|| caller::call_at_once(subject.as_ref(), verb, pods))?;
        self.report.add(op, subject.name(), took);
        Ok(())
    }

    /// What a DEL leaves for later is its subject's own affair: the next one must not pay for it.
    fn settle(&self, which: usize) -> Result<()> {
        let (node, subject) = &self.subjects[which];
        node.inside(|| subject.settle())?;
        self.world.drain()
    }
}

// === impl Pods ===

impl Pods {
    fn all(self) -> Vec<Sandbox> {
        self.singles.into_iter().chain(self.bursts).flatten().collect()
    }
}
