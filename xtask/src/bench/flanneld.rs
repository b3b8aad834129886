//! `cargo xtask bench flanneld`: what flannel's daemon costs: its start until `subnet.env` is there, its memory, the programming of thousands of leases, and
//! of one more.
//!
//! The real `russet flanneld`, each time in a node of its own, on a real etcd that is reached over a bridge; backend vxlan, `--ip-masq`, nf_tables. What the
//! kernel has is counted by the kernel. flannel.md section 11 has the figures of the original on like hardware; it is not run here.

mod daemon;
mod leases;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::artifacts::{self, Profile};
use crate::bench::calico::cluster::Cluster;
use crate::bench::cni::scratch::{World, until};
use crate::bench::flanneld::daemon::Daemon;
use crate::bench::flanneld::leases::Leases;
use crate::bench::ipam::etcd;
use crate::bench::quiet::Quiet;
use crate::bench::rows::{Goal, Rows, Table};
use crate::bench::statistics::Conditions;
use crate::bench::{FoundReport, Options, inside};
use crate::error::{Error, Result};
use crate::packages;

/// Starts in a round: with 5 rounds there are 20.
const STARTS: usize = 4;
/// Clusters whose leases are programmed from a snapshot.
const SNAPSHOTS: [usize; 2] = [5_000, 15_000];
/// Where memory and one more lease are measured.
const LARGE: usize = 5_000;
/// Leases put one by one in a round.
const PUTS: usize = 50;
/// Interval of puts: long enough that each is processed by itself.
const PUT_PAUSE: Duration = Duration::from_millis(50);
/// The daemon's own heartbeat, 5 s after its start, is over, and what was freed is given back.
const SETTLED: Duration = Duration::from_secs(7);
/// Everything takes a fraction of this.
const LIMIT: Duration = Duration::from_secs(60);

const START: &str = "start";
/// Until all is programmed; the part of it after `subnet.env`; the daemon's own processor time for it.
const PROGRAM: [[&str; 3]; 2] = [
    ["program-5000", "program-5000-ready", "program-5000-cpu"],
    ["program-15000", "program-15000-ready", "program-15000-cpu"],
];
const RSS: [&str; 2] = ["rss-2", "rss-5000"];
const ANON: [&str; 2] = ["anon-2", "anon-5000"];
const PEAK: [&str; 2] = ["peak-2", "peak-5000"];
const ONE_MORE: &str = "one-more";
const IDLE: &str = "idle";

/// Notes that explain the table.
const NOTES: [&str; 6] = [
    "start: from before fork and exec until subnet.env is there (inotify): a node without device, rules or lease, other starts' leases deleted before; vxlan, --ip-masq, etcd over plain http",
    "program-N: from before fork and exec until the kernel has a route to each of N leases that were there before; looked at every 5 ms. -ready: the part of it after subnet.env; -cpu: the daemon's processor time by then",
    "each lease is a route, a neighbour and a forwarding entry; afterwards all three are counted, and a sample with any missing is an error",
    "rss, anon, peak: VmRSS, RssAnon and VmHWM of /proc/PID/status 7 s after that, of the release build, which is larger than what users get (RUSSET_BENCH_DAEMON=PATH measures another one); 2 is this node and one more",
    "one-more: the daemon's own processor time, user and system, of all its threads (/proc/PID/task/*/schedstat) for one more lease at 5,000: 50 put one by one",
    "idle: the same clock over a second without any change, at 5,000",
];

static TABLE: Table = Table { bench: "flanneld", goals: &GOALS, unit };

/// With what flanneld 0.20 was measured with (flannel.md section 11).
const GOALS: [Goal; 6] = [
    Goal { test: START, at_most: 15.0, reason: "flanneld 0.20: 109" },
    Goal { test: RSS[0], at_most: 10.0, reason: "flanneld 0.20: 35" },
    Goal { test: RSS[1], at_most: 30.0, reason: "flanneld 0.20: 39 at 1,000" },
    Goal { test: PROGRAM[0][0], at_most: 300.0, reason: "flanneld 0.20: 760 for 1,000" },
    Goal { test: PROGRAM[1][0], at_most: 600.0, reason: "-" },
    Goal { test: ONE_MORE, at_most: 1.0, reason: "-" },
];

fn unit(test: &str) -> &'static str {
    match test {
        _ if [RSS, ANON, PEAK].as_flattened().contains(&test) => "MB",
        _ if PROGRAM.iter().any(|[.., cpu]| *cpu == test) => "ms CPU",
        ONE_MORE => "ms CPU",
        IDLE => "ms CPU/s",
        _ => "ms",
    }
}

/// Names the executable to measure.
const EXECUTABLE_VARIABLE: &str = "RUSSET_BENCH_DAEMON";

/// One run, inside its namespaces.
struct Run<'a> {
    world: &'a World,
    cluster: &'a Cluster,
    directory: &'a Path,
    leases: Leases,
    /// Nodes so far; each sample has a fresh one.
    nodes: usize,
    quiet: Quiet,
    findings: Rows,
}

/// Builds the daemon, then starts itself again in namespaces of its own; there, measures.
pub fn run(options: &Options) -> Result<FoundReport> {
    if let Some(name) = options.only.first() {
        return Err(Error::Usage(format!("no impl {name:?}: bench flanneld measures one daemon")));
    }
    inside::run(options, build, measure)
}

/// What is measured: the release build, unless the environment names another executable, say the one that `cargo xtask dist` made.
fn executable() -> PathBuf {
    let named = std::env::var_os(EXECUTABLE_VARIABLE).map(PathBuf::from);
    named.unwrap_or_else(|| artifacts::dynamic_path("russet", Profile::Optimized))
}

fn build(_: &Options) -> Result<()> {
    packages::ensure()?;
    artifacts::dynamic("russet", Profile::Optimized).map(drop)
}

fn measure(options: &Options, directory: &Path) -> Result<Rows> {
    etcd::refuse_memory(directory)?;
    let world = World::set_up()?;
    let cluster = Cluster::start(directory)?;
    let leases = Leases::new(cluster.url())?;
    leases.configure()?;
    let (quiet, findings) = (options.quiet(), Rows::new(&TABLE));
    let mut run = Run { world: &world, cluster: &cluster, directory, leases, nodes: 0, quiet, findings };
    // Once without counting: the file is read from the disk.
    run.start()?.stop()?;
    for round in 1..=options.rounds {
        run.round()?;
        eprintln!("flanneld: round {round} of {} done", options.rounds);
    }
    let Run { mut findings, quiet, .. } = run;
    let run = format!("{} rounds of {}", options.rounds, executable().display());
    findings.conditions = Conditions::new(run, &NOTES, quiet);
    Ok(findings)
}

// === impl Run ===

impl Run<'_> {
    fn round(&mut self) -> Result<()> {
        self.quiet.wait();
        for _ in 0..STARTS {
            self.leases.fill(0)?;
            let daemon = self.start()?;
            self.findings.add(START, daemon.ready.as_secs_f64() * 1e3);
            daemon.stop()?;
        }
        self.leases.fill(1)?;
        let small = self.start()?;
        self.programmed(&small, 1)?;
        self.memory(&small, 0)?;
        small.stop()?;
        for (count, [whole, rest, cpu]) in SNAPSHOTS.into_iter().zip(PROGRAM) {
            self.leases.fill(count)?;
            self.quiet.wait();
            let large = self.start()?;
            let took = self.programmed(&large, count)?;
            self.findings.add(cpu, large.cpu()?.as_secs_f64() * 1e3);
            self.findings.add(whole, took.as_secs_f64() * 1e3);
            self.findings.add(rest, took.saturating_sub(large.ready).as_secs_f64() * 1e3);
            if count == LARGE {
                self.memory(&large, 1)?;
                self.idle(&large)?;
                self.one_more(&large)?;
            }
            large.stop()?;
        }
        Ok(())
    }

    /// A daemon on a fresh node; it has written `subnet.env`.
    fn start(&mut self) -> Result<Daemon> {
        let number = self.nodes;
        self.nodes += 1;
        let node = self.cluster.node(self.world, number)?;
        let own = self.directory.join(format!("node{number}"));
        let binary = executable();
        let daemon = node.inside(|| Daemon::start(&binary, &own, number, self.cluster.url(), LIMIT));
        self.world.enter()?;
        daemon
    }

    /// Waits until the kernel has as many leases; how long that was after the start.
    fn programmed(&self, daemon: &Daemon, count: usize) -> Result<Duration> {
        let there = until(LIMIT, || Ok(daemon.routes()? >= count))?;
        let took = daemon.begun.elapsed();
        let found = daemon.programmed()?;
        match there && found == [count; 3] {
            true => Ok(took),
            false => Err(Error::Found(format!(
                "{count} leases: the kernel has {found:?} routes, neighbours and forwarding entries after {took:?}; see {}",
                daemon.log.display()
            ))),
        }
    }

    fn memory(&mut self, daemon: &Daemon, size: usize) -> Result<()> {
        until(SETTLED, || Ok(false))?;
        self.findings.add(RSS[size], daemon.memory("VmRSS:")?);
        self.findings.add(ANON[size], daemon.memory("RssAnon:")?);
        self.findings.add(PEAK[size], daemon.memory("VmHWM:")?);
        Ok(())
    }

    fn idle(&mut self, daemon: &Daemon) -> Result<()> {
        let (before, begun) = (daemon.cpu()?, Instant::now());
        until(Duration::from_secs(3), || Ok(false))?;
        let spent = daemon.cpu()?.saturating_sub(before);
        self.findings.add(IDLE, spent.as_secs_f64() * 1e3 / begun.elapsed().as_secs_f64());
        Ok(())
    }

    fn one_more(&mut self, daemon: &Daemon) -> Result<()> {
        let before = daemon.cpu()?;
        for more in 1..=PUTS {
            self.leases.put(LARGE + more)?;
            let there = until(LIMIT, || Ok(daemon.routes()? >= LARGE + more))?;
            if !there {
                return Err(Error::Found(format!(
                    "lease {more} is not programmed: {}",
                    daemon.log.display()
                )));
            }
            until(PUT_PAUSE, || Ok(false))?;
        }
        let spent = daemon.cpu()?.saturating_sub(before);
        self.findings.add(ONE_MORE, spent.as_secs_f64() * 1e3 / PUTS as f64);
        self.programmed(daemon, LARGE + PUTS).map(drop)
    }
}
