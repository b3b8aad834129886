//! `cargo xtask bench kubernetes`: what an agent costs in a large cluster whose datastore is the Kubernetes API: its memory, its processor time, the time
//! from a change to the kernel, and its requests.
//!
//! The API server is the test server of `russet-kube`, in the agent's network namespace: it has 5,000 nodes and 150,000 pods, which no real one could hold on a
//! machine of two cores. It serves what a real one would to the agent's requests; its own cost says nothing.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::artifacts::{self, Profile};
use crate::bench::cni::scratch::{World, until};
use crate::bench::ipam::worker::Worker;
use crate::bench::rows::{Goal, Rows, Table};
use crate::bench::statistics::Conditions;
use crate::bench::{FoundReport, Options, inside, proc};
use crate::error::{Error, Result};
use crate::{packages, process};

/// The cluster.
const NODES: usize = 5_000;
const PODS: usize = 150_000;
/// Pods that change each second, anywhere in the cluster, and for how long.
const CHANGES_PER_SECOND: u32 = 100;
const CHURN_SECONDS: u64 = 30;
/// Blocks that are claimed one by one.
const CLAIMS: usize = 100;
/// What was freed after the start is given back by then.
const SETTLED: Duration = Duration::from_secs(7);
/// Everything takes a fraction of this.
const LIMIT: Duration = Duration::from_secs(120);

const PROGRAM: [&str; 2] = ["program", "program-cpu"];
const RSS: [&str; 3] = ["rss", "peak", "rss-after-churn"];
const CHURN: &str = "churn-cpu";
const CHANGE: &str = "change";

static TABLE: Table = Table { bench: "kubernetes", goals: &GOALS, unit };

const GOALS: [Goal; 2] = [
    Goal { test: RSS[0], at_most: 60.0, reason: "an agent in a cluster of 5,000 nodes" },
    Goal { test: RSS[2], at_most: 60.0, reason: "an agent in a cluster of 5,000 nodes" },
];

fn unit(test: &str) -> &'static str {
    match test {
        _ if RSS.contains(&test) => "MB",
        CHURN => "ms CPU/s",
        _ if test == PROGRAM[1] => "ms CPU",
        _ => "ms",
    }
}

/// Notes that explain the table.
const NOTES: [&str; 5] = [
    "cluster: 5,000 nodes with a block each and objects of 8 kB, 150,000 pods; the test server of russet-kube, over http on loopback",
    "program: from before fork and exec until the kernel has a route to each node's block, looked at every 5 ms; -cpu: the agent's processor time by then",
    "rss, peak: VmRSS and VmHWM of /proc/PID/status 7 s after that, of the release build; rss-after-churn: after the churn",
    "churn-cpu: the agent's processor time of a second in which 100 pods of the cluster change and kubelets report as every 5 minutes",
    "change: from before a new affinity is written to the test server until the kernel has its route (looked at without pause, on the other core)",
];

/// A running agent; it ends when this value is dropped.
struct Agent {
    process: Child,
    begun: Instant,
    log: PathBuf,
    /// Prefixes in the node's main table before its start.
    others: usize,
}

/// Builds the agent and the worker, then starts itself again in namespaces of its own; there, measures.
pub fn run(options: &Options) -> Result<FoundReport> {
    options.check_subjects([])?;
    inside::run(options, build, measure)
}

fn build(_: &Options) -> Result<()> {
    packages::ensure()?;
    artifacts::dynamic("russet", Profile::Optimized)?;
    artifacts::dynamic(artifacts::BENCH, Profile::Optimized).map(drop)
}

fn measure(options: &Options, directory: &Path) -> Result<Rows> {
    let world = World::set_up()?;
    let (mut quiet, mut findings) = (options.quiet(), Rows::new(&TABLE));
    for round in 1..=options.rounds {
        quiet.wait();
        let node = world.node(&format!("node{round}"))?;
        node.inside(|| measure_round(&directory.join(format!("round{round}")), &mut findings))?;
        world.enter()?;
        eprintln!("kubernetes: round {round} of {} done", options.rounds);
    }
    findings.conditions = Conditions::new(format!("{} rounds", options.rounds), &NOTES, quiet);
    Ok(findings)
}

fn measure_round(directory: &Path, findings: &mut Rows) -> Result<()> {
    fs::create_dir_all(directory).map_err(Error::io(format!("create {}", directory.display())))?;
    let mut server = Worker::start("kubernetes", &[])?;
    let kubeconfig = directory.join("kubeconfig");
    server.ask(&format!("kubeconfig {}", kubeconfig.display()))?;
    server.ask(&format!("fill {NODES} {PODS}"))?;
    let agent = Agent::start(directory, &kubeconfig)?;
    let routes = NODES - 1;
    agent.programmed(routes)?;
    findings.add(PROGRAM[0], agent.begun.elapsed().as_secs_f64() * 1e3);
    findings.add(PROGRAM[1], agent.cpu()?.as_secs_f64() * 1e3);
    until(SETTLED, || Ok(false))?;
    findings.add(RSS[0], agent.memory("VmRSS:")?);
    findings.add(RSS[1], agent.memory("VmHWM:")?);
    let (before, begun) = (agent.cpu()?, Instant::now());
    server.ask(&format!("churn {CHANGES_PER_SECOND} {CHURN_SECONDS}"))?;
    let spent = agent.cpu()?.saturating_sub(before);
    findings.add(CHURN, spent.as_secs_f64() * 1e3 / begun.elapsed().as_secs_f64());
    findings.add(RSS[2], agent.memory("VmRSS:")?);
    let before = agent.routes()?;
    for number in 1..=CLAIMS {
        let begun = Instant::now();
        server.ask(&format!("claim {number}"))?;
        while agent.routes()? < before + number {
            if begun.elapsed() > LIMIT {
                return Err(Error::Found(format!(
                    "block {number} has no route: see {}",
                    agent.log.display()
                )));
            }
        }
        findings.add(CHANGE, begun.elapsed().as_secs_f64() * 1e3);
    }
    findings.details = vec![("requests", server.ask("requests")?)];
    Ok(())
}

// === impl Agent ===

impl Agent {
    /// Starts it in the calling thread's namespace.
    fn start(directory: &Path, kubeconfig: &Path) -> Result<Self> {
        let log = directory.join("agent.log");
        let output = File::create(&log).map_err(Error::io(format!("create {}", log.display())))?;
        let mut command = Command::new(artifacts::dynamic_path("russet", Profile::Optimized));
        command.arg("agent").arg("--root").arg(directory);
        command.args(["--node-name", "node-0", "--interface", "uplink0"]);
        command.arg(format!("--store=kubernetes:{}", kubeconfig.display()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output);
        let others = proc::prefixes("thread-self")?;
        let begun = Instant::now();
        let process = command.spawn().map_err(Error::io(process::shown(&command)))?;
        Ok(Self { process, begun, log, others })
    }

    /// Waits until the kernel has that many more prefixes.
    fn programmed(&self, count: usize) -> Result<()> {
        match until(LIMIT, || Ok(self.routes()? >= count))? {
            true => Ok(()),
            false => Err(Error::Found(format!(
                "{} of {count} routes after {LIMIT:?}: see {}",
                self.routes()?,
                self.log.display()
            ))),
        }
    }

    fn routes(&self) -> Result<usize> {
        Ok(proc::prefixes(&self.process.id().to_string())?.saturating_sub(self.others))
    }

    fn memory(&self, name: &str) -> Result<f64> {
        proc::memory(self.process.id(), name)
    }

    fn cpu(&self) -> Result<Duration> {
        proc::cpu(self.process.id())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended by itself; its exit status is irrelevant.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
