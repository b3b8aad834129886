//! `cargo xtask bench policy`: what network policies cost in a cluster of 10,000 policies and 10,000 pods,
//! of which 100 are on this node (policy.md sections 2.3 and 6.4): changes, packets, memory.
//!
//! crates/bench does the work, one measurement at a time; this side decides the order and reports. Programs
//! that make a chain for each policy load as much in the same minutes.

mod agent;

use std::path::Path;

use serde_json::Value;

use crate::artifacts::{self, Profile};
use crate::bench::ipam::worker::Worker;
use crate::bench::rows::{Goal, Rows, Table};
use crate::bench::shuffle::Shuffler;
use crate::bench::statistics::Conditions;
use crate::bench::{self, FoundReport, Options, inside};
use crate::error::{Error, Result};
use crate::packages;

const CHANGES: &str = "changes";
const PEERS: &str = "peers";
const PACKETS: &str = "packets";
const SIZE: &str = "size";
const AGENT: &str = "agent";
/// Parts that can be measured alone.
pub const PARTS: [&str; 5] = [CHANGES, PEERS, PACKETS, SIZE, AGENT];

/// What judges packets, in the worker's words.
const WAYS: [&str; 5] = ["none", "tracked", "one", "many", "linear"];
/// Programs to compare with, in the worker's words.
const PROGRAMS: [&str; 3] = ["nft", "iptables-nft", "iptables-legacy"];
/// Decisions of a node with many pods, and the most that a node may have.
const DECISIONS: [usize; 2] = [100_000, 1_000_000];
/// Connections in progress.
const FLOWS: usize = 100_000;
/// How long changes come at a fixed rate: much shorter than what the goal is about, at the same rate.
const CHURN_SECONDS: u32 = 8;

static TABLE: Table = Table { bench: "policy", goals: &GOALS, unit };

/// The goals of policy.md section 6.4.
const GOALS: [Goal; 29] = [
    goal("kernel: start", 2_000_000.0, "B1"),
    goal("engine: start", 1_000_000.0, "policy.md section 2.3"),
    goal("engine: remote pod, identical", 2.0, "P101"),
    goal("engine: active policy, identical", 2.0, "P101"),
    goal("kernel: one of 100,000 decisions", 50.0, "P108"),
    goal("kernel: remote pod, another class", 60.0, "B2"),
    goal("kernel: remote pod, another class, p99", 1_000.0, "B2"),
    goal("engine: remote pod, another class", 10.0, "policy.md section 2.3"),
    goal("kernel: local pod, same class", 10.0, "B3"),
    goal("kernel: local pod, another class", 3_000.0, "B3"),
    goal("kernel: namespace, label that rules ask for", 3_000.0, "B4"),
    goal("churn: active policies, p99", 5_000.0, "B5"),
    goal("churn: active policies, processor", 5.0, "B5"),
    goal("churn: policies, processor", 5.0, "B5"),
    goal("load: 100,000 decisions", 500.0, "B6"),
    goal("first packet: one - tracked", 2_000.0, "B7"),
    goal("further packet: one - none", 700.0, "B7"),
    goal("first packet: many / one", 1.1, "B7"),
    goal("further packet: many / one", 1.1, "B7"),
    goal("connection: many / none", 1.053, "B8: 0.95 of the rate"),
    goal("recheck: longest", 200.0, "B9"),
    goal("recheck: processor", 300.0, "B9"),
    goal("memory: engine", 40.0, "B10"),
    goal("memory: kernel, 1,000,000 decisions", 85.0, "B10"),
    goal("explain: one question", 5_000.0, "B11"),
    goal("explain: what one policy changes", 2_000_000.0, "B11"),
    goal("churn: pods, processor", 1.0, "B12"),
    goal(agent::MEMORY, 80.0, "B10, of a whole agent"),
    goal(agent::FLOOD, 5.0, "P136"),
];

const fn goal(test: &'static str, at_most: f64, reason: &'static str) -> Goal {
    Goal { test, at_most, reason }
}

fn unit(test: &str) -> &'static str {
    let ends = |end| test.ends_with(end);
    match test.split(':').next().unwrap_or_default() {
        _ if test.contains(" / ") => "times",
        "engine" | "kernel" | "explain" => "us",
        "churn" if ends(", processor") => "% CPU",
        "churn" => "us",
        "load" | "recheck" if ends("processor") => "ms CPU",
        "load" | "recheck" => "ms",
        "memory" => "MB",
        "agent" => agent::unit(test),
        "connection" => "us",
        _ => "ns",
    }
}

/// Notes that explain the table.
const NOTES: [&str; 11] = [
    "cluster: 100 namespaces of 100 pods and 100 policies; each policy selects an application and allows another one, red namespaces and a prefix; 500 select pods of this node",
    "engine: from the update until the engine has its delta; kernel: until nf_tables has taken it too; 200 changes of each kind, the median, and p99 the 99th percentile; start: all objects at once",
    "identical: an update that says what is known; one of 100,000 decisions: a transaction that replaces its element, 200 of them, the median",
    "churn: changes at a fixed rate for 8 s (policies anywhere or of this node's pods: 100 a second; labels of other nodes' pods: 50); processor: of the whole process, the kernel's part included, without parsing objects",
    "load: N decisions for 100 addresses into an empty table; load: PROGRAM: 10,000 chains of 4 rules each by that program, its start included, and then one rule more",
    "first and further packets: 64 bytes over UDP on 250 connections at a time from pod to pod of another node (veth, no tunnel), one core, from the sender's call until the receiver's queue; further ones after an answer; judged on the receiver's node",
    "none: no table; tracked: connections are tracked and established ones accepted; one: one policy allows the pod everything, found by the fourth lookup; many: the same among 10,000; linear: 10,000 rules behind the one for established connections",
    "connection: connect, one byte there and back, reset; on one core",
    "recheck: 130 changes that forbid something with 100,000 tracked connections, of which one clears the marks of 128 epochs ago; longest: the longest of them; processor: of all",
    "memory: engine: what the worker has more after all objects; tables: the decisions as the agent keeps them twice; process: a whole worker; kernel: SUnreclaim and VmallocUsed, which others change too",
    "agent: a whole one (crates/russet/tests/whole): among 10,000 policies and as many workload endpoints in etcd, after all of them; and while a pod sends another one, which denies it, 100,000 packets a second for 10 s, as far as the machine does so",
];

/// A run, inside its namespaces.
struct Run<'a> {
    options: &'a Options,
    worker: Worker,
    shuffler: Shuffler,
    findings: Rows,
}

/// Builds the worker, then starts itself again in namespaces of its own; there, measures.
pub fn run(options: &Options) -> Result<FoundReport> {
    options.check_subjects([])?;
    inside::run(options, build, measure)
}

fn build(options: &Options) -> Result<()> {
    packages::ensure()?;
    if options.does(AGENT) {
        agent::build()?;
    }
    artifacts::dynamic(artifacts::BENCH, Profile::Optimized).map(drop)
}

fn measure(options: &Options, _: &Path) -> Result<Rows> {
    let seed = bench::seed();
    let (worker, shuffler) = (Worker::start("policy", &[])?, Shuffler::new(seed));
    let mut run = Run { options, worker, shuffler, findings: Rows::new(&TABLE) };
    let mut quiet = options.quiet();
    for round in 1..=options.rounds {
        quiet.wait();
        run.round(round == 1)?;
        eprintln!("policy: round {round} of {} done", options.rounds);
    }
    run.compare();
    let mut findings = run.findings;
    findings.conditions = Conditions::new(format!("{} rounds, seed {seed}", options.rounds), &NOTES, quiet);
    Ok(findings)
}

// === impl Run ===

impl Run<'_> {
    fn round(&mut self, is_first: bool) -> Result<()> {
        if self.options.does(CHANGES) {
            self.changes()?;
        }
        if self.options.does(PEERS) {
            self.peers()?;
        }
        if self.options.does(PACKETS) {
            self.packets()?;
        }
        // What takes long, and differs little from round to round.
        match is_first {
            true => self.once(),
            false => Ok(()),
        }
    }

    fn changes(&mut self) -> Result<()> {
        for place in ["engine", "kernel"] {
            let costs = self.worker.ask(place)?;
            for (change, cost) in costs.as_object().into_iter().flatten() {
                self.add(&format!("{place}: {change}"), cost, "p50")?;
                if change != "start" {
                    self.add(&format!("{place}: {change}, p99"), cost, "p99")?;
                }
            }
        }
        let [count, _] = DECISIONS;
        let load = self.worker.ask(&format!("load {count}"))?;
        self.add("load: 100,000 decisions", &load, "ms")?;
        let flip = self.worker.ask(&format!("flip {count}"))?;
        self.add("kernel: one of 100,000 decisions", &flip, "p50_us")?;
        self.add("kernel: one of 100,000 decisions, p99", &flip, "p99_us")?;
        let explain = self.worker.ask("explain")?;
        self.add("explain: one question", &explain, "p50_us")?;
        let what_if = self.worker.ask("what-if")?;
        self.add("explain: what one policy changes", &what_if, "us")
    }

    fn peers(&mut self) -> Result<()> {
        for program in PROGRAMS {
            let found = self.worker.ask(&format!("peer {program}"))?;
            self.add(&format!("load: {program}"), &found, "all_ms")?;
            self.add(&format!("load: {program}, one rule more"), &found, "more_ms")?;
        }
        Ok(())
    }

    fn packets(&mut self) -> Result<()> {
        for which in self.shuffler.order(WAYS.len()) {
            let way = WAYS[which];
            let cost = self.worker.ask(&format!("packets {way}"))?;
            self.add(&format!("first packet: {way}"), &cost, "first_ns")?;
            self.add(&format!("further packet: {way}"), &cost, "further_ns")?;
            let connection = self.worker.ask(&format!("connect {way}"))?;
            self.add(&format!("connection: {way}"), &connection, "us")?;
        }
        Ok(())
    }

    fn once(&mut self) -> Result<()> {
        if self.options.does(CHANGES) {
            for (name, kind) in [("policies", "policies"), ("active policies", "active"), ("pods", "pods")] {
                let churn = self.worker.ask(&format!("churn {kind} {CHURN_SECONDS}"))?;
                self.add(&format!("churn: {name}, processor"), &churn, "cpu_percent")?;
                self.add(&format!("churn: {name}, p99"), &churn, "p99_us")?;
            }
        }
        if self.options.does(PACKETS) {
            let recheck = self.worker.ask(&format!("recheck {FLOWS}"))?;
            self.add("recheck: median", &recheck, "p50_ms")?;
            self.add("recheck: longest", &recheck, "longest_ms")?;
            self.add("recheck: processor", &recheck, "cpu_ms")?;
            self.findings.details.push(("recheck", recheck));
        }
        if self.options.does(SIZE) {
            self.sizes()?;
        }
        if self.options.does(AGENT) {
            agent::measure(&mut self.findings)?;
        }
        Ok(())
    }

    /// A worker of its own for each: what another measurement freed is not given back.
    fn sizes(&mut self) -> Result<()> {
        let memory = Worker::start("policy", &[])?.ask("memory")?;
        for part in ["engine", "tables", "process"] {
            self.add(&format!("memory: {part}"), &memory, &format!("{part}_mb"))?;
        }
        self.findings.details.push(("memory", memory));
        let [_, most] = DECISIONS;
        let elements = Worker::start("policy", &[])?.ask(&format!("elements {most}"))?;
        self.add("memory: kernel, 1,000,000 decisions", &elements, "kernel_mb")?;
        self.add("load: 1,000,000 decisions", &elements, "ms")
    }

    fn add(&mut self, test: &str, found: &Value, member: &str) -> Result<()> {
        let missing = || Error::Found(format!("{test}: the worker's {found} has no number {member:?}"));
        let value = found[member].as_f64().ok_or_else(missing)?;
        self.findings.add(test, value);
        Ok(())
    }

    /// Adds differences and ratios of medians.
    fn compare(&mut self) {
        for packet in ["first packet", "further packet", "connection"] {
            let of = |way: &str| self.findings.median(&format!("{packet}: {way}"));
            let [none, tracked, one, many, linear] = WAYS.map(of);
            let less = |from: Option<f64>, what: Option<f64>| Some(from? - what?);
            let ratio = |of: Option<f64>, to: Option<f64>| Some(of? / to?);
            let found = [
                ("one - none", less(one, none)),
                ("one - tracked", less(one, tracked)),
                ("linear - tracked", less(linear, tracked)),
                ("many / one", ratio(many, one)),
                ("many / none", ratio(many, none)),
            ];
            for (name, value) in found {
                value.into_iter().for_each(|value| self.findings.add(&format!("{packet}: {name}"), value));
            }
        }
        let ours = self.findings.median("load: 100,000 decisions");
        for program in PROGRAMS {
            if let (Some(ours), Some(theirs)) = (ours, self.findings.median(&format!("load: {program}"))) {
                self.findings.add(&format!("load: 100,000 decisions / {program}"), ours / theirs);
            }
        }
    }
}
