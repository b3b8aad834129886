//! `cargo xtask bench ipam`: addresses given and taken back a second, by our allocator on the embedded store and on etcd, against the order
//! of requests of Go's plugin replayed on the same etcd; by one caller and by 32, on this disk and on one whose syncs take 5 ms more.
//!
//! The work is done by crates/bench, one burst at a time; this side starts it and the etcds, decides the order, and reports. Within a
//! round all implementations take turns in shuffled order. A burst is 32 addresses for 32 pods, on a node that has 16 pods already.

pub(super) mod etcd;
mod findings;
pub(super) mod worker;

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::artifacts::{self, Profile};
use crate::bench::ipam::etcd::Etcd;
use crate::bench::ipam::findings::{Findings, Row};
use crate::bench::ipam::worker::Worker;
use crate::bench::quiet::Quiet;
use crate::bench::shuffle::Shuffler;
use crate::bench::statistics::Conditions;
use crate::bench::{self, FoundReport, Options};
use crate::error::{Error, Result};
use crate::packages;

/// Samples that each implementation gives in a round, on each disk and with each number of callers.
const TURNS: u32 = 4;
/// Additional time of a sync on the slow disk: edge flash.
pub(super) const SYNC_DELAY_US: u64 = 5000;

const LOOPBACK: &str = "127.0.0.1";
const PLAIN: &str = "plain";
const SLOW: &str = "slow";
const DISKS: [&str; 2] = [PLAIN, SLOW];

const EMBEDDED: &str = "russet-embedded";
const ETCD: &str = "russet-etcd";
const FORGOTTEN: &str = "russet-etcd-forgotten";
const GO: &str = "go-order";
const GO_CONNECT: &str = "go-order-connect";
const GO_UNLOCKED: &str = "go-order-unlocked";

/// Each implementation and the numbers of callers for which it is measured.
const SUBJECTS: [(&str, &[u32]); 6] = [
    (EMBEDDED, &[1, 32]),
    (ETCD, &[1, 32]),
    (FORGOTTEN, &[1]),
    (GO, &[1, 32]),
    (GO_CONNECT, &[1, 32]),
    (GO_UNLOCKED, &[32]),
];

/// Notes that explain the table.
const NOTES: [&str; 7] = [
    "a sample: 32 addresses for 32 pods of a node that has 16; 1 caller asks for one after the other, 32 callers ask once each and all at the same time",
    "russet-*: the agent's allocator, one for all callers, with its memory; warm: it has served an ADD before",
    "russet-etcd-forgotten: the same, its memory emptied before each ADD (what the first ADD of an agent pays)",
    "go-order: our replay of the requests of Go's calico-ipam 3.x in their order, sequential, connections kept, host lock taken; not the Go program: no process start",
    "go-order-connect: the same with a new connection for each ADD and DEL, as each process has its own; go-order-unlocked: without the host lock, as before 3.18",
    "callers share one machine with etcd; commits and reads are requests to the store, syncs those of its log (x go-order: against the same callers and disk)",
    "slow: 5 ms more in each fdatasync and fsync: in etcd's by strace's injection, in the embedded store's by a sleep in its disk backend",
];

/// One run.
struct Run {
    worker: Worker,
    cases: Vec<Case>,
    shuffler: Shuffler,
    quiet: Quiet,
    findings: Findings,
}

/// What a sample is taken of.
#[derive(Clone, Copy)]
struct Case {
    subject: &'static str,
    disk: &'static str,
    callers: u32,
}

/// Builds the worker, starts two etcds, measures.
pub fn run(options: &Options) -> Result<FoundReport> {
    options.check_subjects(SUBJECTS.map(|(name, _)| name))?;
    if !options.no_build {
        packages::ensure()?;
        artifacts::dynamic(artifacts::BENCH, Profile::Optimized)?;
    }
    let directory = artifacts::target_dir().join("bench/ipam");
    // Leftovers of a killed run; usually there are none.
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).map_err(Error::io(format!("create {}", directory.display())))?;
    etcd::refuse_memory(&directory)?;
    let findings = measure(options, &directory);
    match &findings {
        Ok(_) => _ = fs::remove_dir_all(&directory),
        Err(_) => eprintln!("what was written stays in {}", directory.display()),
    }
    Ok(Some(Box::new(findings?)))
}

fn measure(options: &Options, directory: &Path) -> Result<Findings> {
    let [plain, slow] = etcd::free_ports()?;
    let plain = Etcd::start(&directory.join(PLAIN), LOOPBACK, plain, None)?;
    let slow = Etcd::start(&directory.join(SLOW), LOOPBACK, slow, Some(SYNC_DELAY_US))?;
    // The etcd on the plain disk comes first.
    let delay_us = SYNC_DELAY_US.to_string();
    let arguments = [directory.as_ref(), delay_us.as_ref(), plain.url.as_ref(), slow.url.as_ref()];
    let worker = Worker::start("ipam", &arguments)?;
    let seed = bench::seed();
    let (cases, findings) = (cases(options), Findings::default());
    let mut run = Run { worker, cases, shuffler: Shuffler::new(seed), quiet: options.quiet(), findings };
    eprintln!("ipam: {} rounds, seed {seed}", options.rounds);
    run.probe()?;
    run.warm_up()?;
    for round in 1..=options.rounds {
        run.round()?;
        eprintln!("ipam: round {round} of {} done", options.rounds);
    }
    // Once more, so that a delay that went away in between shows.
    run.probe()?;
    let Run { mut findings, quiet, .. } = run;
    let run = format!("{} rounds of {TURNS} samples, seed {seed}", options.rounds);
    findings.conditions = Conditions::new(run, &NOTES, quiet);
    Ok(findings)
}

/// In the order of the report.
fn cases(options: &Options) -> Vec<Case> {
    let wanted = || SUBJECTS.iter().filter(|(subject, _)| options.wants(subject));
    let of_disk = |disk: &'static str| {
        let of_callers = move |callers: u32| {
            let has = move |(_, numbers): &&(&str, &[u32])| numbers.contains(&callers);
            wanted().filter(has).map(move |(subject, _)| Case { subject, disk, callers })
        };
        [1, 32].into_iter().flat_map(of_callers)
    };
    DISKS.into_iter().flat_map(of_disk).collect()
}

/// A slow disk on which a commit is faster than the delay of its one sync is not slow.
fn check(probe: &Value, disk: &str) -> Result<()> {
    let commit_us = probe["commit_us"].as_f64().unwrap_or_default();
    match disk == SLOW && commit_us < SYNC_DELAY_US as f64 {
        false => Ok(()),
        true => Err(Error::Found(format!("the delay of {SYNC_DELAY_US} us is not there: {probe}"))),
    }
}

// === impl Run ===

impl Run {
    fn probe(&mut self) -> Result<()> {
        for store in ["embedded", "etcd"] {
            for disk in DISKS {
                let probe = self.worker.ask(&format!("probe {store} {disk}"))?;
                check(&probe, disk)?;
                self.findings.probes.push(probe);
            }
        }
        Ok(())
    }

    /// One sample each, not counted: connections and blocks come into being.
    fn warm_up(&mut self) -> Result<()> {
        for case in self.cases.clone() {
            self.worker.ask(&case.command())?;
            self.findings
                .rows
                .extend(["add", "del"].map(|op| Row::new(op, case.disk, case.callers, case.subject)));
        }
        Ok(())
    }

    fn round(&mut self) -> Result<()> {
        for _ in 0..TURNS {
            self.quiet.wait();
            for which in self.shuffler.order(self.cases.len()) {
                let case = self.cases[which];
                let sample = self.worker.ask(&case.command())?;
                self.findings.add(case.disk, case.callers, case.subject, &sample)?;
            }
        }
        Ok(())
    }
}

// === impl Case ===

impl Case {
    fn command(self) -> String {
        format!("sample {} {} {}", self.subject, self.disk, self.callers)
    }
}
