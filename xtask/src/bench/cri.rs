//! `cargo xtask bench cri`: 200 sandboxes made and taken down through CRI, 20 at a time, by `russet cri` with its built-in engine: on our plugin and
//! agent, and on Debian's `bridge` with `host-local`.
//!
//! The caller is a gRPC client of its own process (`russet-bench cri`), as kubelet is; its time counts, too. Each server has a node of its own with a
//! tmpfs on `/run`, as nodes have. Within a round they take turns in shuffled order.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::artifacts::{self, Profile};
use crate::bench::cni::agent::{self, Store};
use crate::bench::cni::go;
use crate::bench::cni::scratch::{Node, World, until};
use crate::bench::cni::subject::{Binaries, Subject};
use crate::bench::ipam::etcd;
use crate::bench::report::{Goal, Of, Report};
use crate::bench::shuffle::Shuffler;
use crate::bench::statistics::Conditions;
use crate::bench::{self, FoundReport, Options, inside};
use crate::error::{Error, Result};
use crate::{packages, process};

const RUSSET: &str = "russet-cri";
const GO_BRIDGE: &str = "russet-cri-go-bridge-host-local";
const SUBJECTS: [&str; 2] = [RUSSET, GO_BRIDGE];

const RUN: &str = "run";
const END: &str = "end";
const RUN_ALL: &str = "run200/200";
const END_ALL: &str = "end200/200";
const OPS: [&str; 4] = [RUN, END, RUN_ALL, END_ALL];

/// Sandboxes of a round, and how many of them are under way at any time.
const SANDBOXES: u32 = 200;
const AT_ONCE: u32 = 20;
/// A hundred a second.
const GOAL_MS: f64 = 10.0;

const GOALS: &[Goal] = &[
    Goal { ours: Of::median(RUN_ALL, RUSSET), theirs: Of::median(RUN_ALL, GO_BRIDGE), at_most: 0.5 },
    Goal { ours: Of::median(END_ALL, RUSSET), theirs: Of::median(END_ALL, GO_BRIDGE), at_most: 0.5 },
];

/// Notes that explain the table.
const NOTES: [&str; 4] = [
    "run: one RunPodSandbox, with 19 others under way; end: StopPodSandbox and RemovePodSandbox of one",
    "run200/200, end200/200: the time of all 200, divided by 200; one sample a round",
    "russet-cri: built-in engine, our plugin in the server's process, an agent with the embedded store; go-bridge: the same server with Debian's bridge and host-local, two processes for each ADD",
    "the client's processor time is in all of it",
];

/// Opening a fresh store takes milliseconds; a busy machine takes longer.
const START_LIMIT: Duration = Duration::from_secs(20);
/// What the kernel and the agent do after the last answer.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);
/// The server's directories for sandboxes; all are empty when no sandbox is left.
const PLACES: [&str; 6] = [
    "run/russet/cri/netns",
    "run/russet/cri/engine",
    "run/russet/cri/live",
    "run/russet/cri/sandboxes",
    "var/lib/russet/cri/checkpoints",
    "var/lib/cni/results",
];

/// A server on its node; it ends when this value is dropped.
struct Server {
    name: &'static str,
    node: Node,
    root: PathBuf,
    process: Child,
    /// Ends after the server, which would complain.
    agent: Option<Subject>,
}

/// Builds what is measured, then starts itself again in namespaces of its own; there, measures.
pub fn run(options: &Options) -> Result<FoundReport> {
    options.check_subjects(SUBJECTS)?;
    inside::run(options, build, measure)
}

fn build(_: &Options) -> Result<()> {
    packages::ensure()?;
    artifacts::dynamic("russet", Profile::Optimized)?;
    artifacts::dynamic(artifacts::BENCH, Profile::Optimized).map(drop)
}

fn measure(options: &Options, directory: &Path) -> Result<Report> {
    etcd::refuse_memory(directory)?;
    let world = World::set_up()?;
    let binaries = Binaries::built()?;
    let mut servers = Vec::new();
    for name in SUBJECTS.into_iter().filter(|name| options.wants(name)) {
        let root = directory.join(name);
        let node = world.node(&format!("node{}", servers.len()))?;
        servers.push(Server::start(name, node, root, &binaries)?);
        world.enter()?;
    }
    let seed = bench::seed();
    let mut shuffler = Shuffler::new(seed);
    let mut quiet = options.quiet();
    let mut report = Report::new("cri", GOALS);
    eprintln!("cri: {} rounds, seed {seed}", options.rounds);
    for server in &servers {
        // Not counted: files come into memory, bridges and blocks come into being.
        server.run_sandboxes(AT_ONCE)?;
    }
    for number in 1..=options.rounds {
        for which in shuffler.order(servers.len()) {
            quiet.wait();
            servers[which].round(&mut report)?;
            world.enter()?;
            world.drain()?;
        }
        eprintln!("cri: round {number} of {} done", options.rounds);
    }
    figures(&mut report);
    report.sort(&OPS, &SUBJECTS);
    let run = format!("{} rounds, seed {seed}, {}", options.rounds, binaries.russet.display());
    report.conditions = Conditions::new(run, &NOTES, quiet);
    Ok(report)
}

/// The goal: a hundred a second, made and taken down.
fn figures(report: &mut Report) {
    let median = |report: &Report, op| report.quantile_us(Of::median(op, RUSSET));
    let (Some(run), Some(end)) = (median(report, RUN_ALL), median(report, END_ALL)) else { return };
    for (what, us) in [("made", run), ("taken down", end)] {
        let name = format!("{RUSSET}: a sandbox {what}, of {SANDBOXES}, {AT_ONCE} at a time");
        report.figure(name, us / 1000.0, "ms", Some(GOAL_MS));
    }
    for (what, us) in [("made", run), ("taken down", end), ("made and taken down", run + end)] {
        report.figure(format!("{RUSSET}: sandboxes {what}"), (1e7 / us).round() / 10.0, "per second", None);
    }
}

// === impl Server ===

impl Server {
    fn start(name: &'static str, node: Node, root: PathBuf, binaries: &Binaries) -> Result<Self> {
        let run = root.join("run");
        fs::create_dir_all(&run).map_err(Error::io(format!("create {}", run.display())))?;
        process::output(
            Command::new("mount").args(["-t", "tmpfs", "-o", "mode=0755", "russet-bench"]).arg(&run),
        )?;
        let (process, agent) = node.inside(|| {
            let agent = match name {
                RUSSET => Some(agent::start(RUSSET, binaries, &root, Store::Embedded)?),
                _ => None,
            };
            let go = go::bridge(&root.join("networks"));
            configure(&root, &agent.as_ref().unwrap_or(&go).config)?;
            let bin_dir = go.plugin.parent().unwrap_or(Path::new("/"));
            Ok((serve(&root, bin_dir, binaries)?, agent))
        })?;
        let server = Self { name, node, root, process, agent };
        let socket = server.socket();
        match until(START_LIMIT, || Ok(UnixStream::connect(&socket).is_ok()))? {
            true => Ok(server),
            false => Err(Error::Found(format!("{} does not answer:\n{}", socket.display(), server.log()))),
        }
    }

    fn socket(&self) -> PathBuf {
        self.root.join("run/russet/cri.sock")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.root.join("cri.log")).unwrap_or_default()
    }

    fn round(&self, report: &mut Report) -> Result<()> {
        let result = self.run_sandboxes(SANDBOXES)?;
        for (phase, each_op, all_op) in [("run", RUN, RUN_ALL), ("end", END, END_ALL)] {
            for us in result[phase]["each_us"].as_array().into_iter().flatten().filter_map(Value::as_u64) {
                report.add(each_op, self.name, Duration::from_micros(us));
            }
            let all = result[phase]["all_us"].as_u64();
            let all =
                all.ok_or_else(|| Error::Found(format!("russet-bench reported no all_us: {result}")))?;
            report.add(all_op, self.name, Duration::from_micros(all / u64::from(SANDBOXES)));
        }
        Ok(())
    }

    /// Creates and removes this many sandboxes, and checks that nothing is left.
    fn run_sandboxes(&self, count: u32) -> Result<Value> {
        let mut command = Command::new(artifacts::dynamic_path(artifacts::BENCH, Profile::Optimized));
        command.arg("cri").arg(self.socket()).args([count, AT_ONCE].map(|number| number.to_string()));
        let output = self.node.inside(|| process::output(&mut command));
        let output = output.inspect_err(|_| eprintln!("{}", self.log()))?;
        let result = serde_json::from_slice(&output)
            .map_err(|error| Error::Found(format!("russet-bench printed no JSON: {error}")))?;
        if let Some(agent) = &self.agent {
            agent.settle()?;
        }
        let left = || {
            PLACES.iter().flat_map(|place| fs::read_dir(self.root.join(place)).into_iter().flatten()).count()
        };
        match until(SETTLE_LIMIT, || Ok(left() == 0))? {
            true => Ok(result),
            false => Err(Error::Found(format!("{}: {} files are left of sandboxes", self.name, left()))),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Sandboxes are not children of the server, and none is left unless russet-bench could not remove it.
        process::kill_tree(self.process.id());
        // It was killed; its exit status is irrelevant.
        let _ = self.process.wait();
    }
}

/// The plugin's configuration as a list of one, where the server looks for it.
fn configure(root: &Path, plugin: &str) -> Result<()> {
    let mut plugin: Value = serde_json::from_str(plugin)
        .map_err(|error| Error::Found(format!("the plugin's configuration is no JSON: {error}")))?;
    let (name, version) = (plugin["name"].take(), plugin["cniVersion"].take());
    if let Some(members) = plugin.as_object_mut() {
        members.retain(|_, value| !value.is_null());
    }
    let list = json!({ "cniVersion": version, "name": name, "plugins": [plugin] });
    let dir = root.join("etc/cni/net.d");
    let written =
        fs::create_dir_all(&dir).and_then(|()| fs::write(dir.join("10-bench.conflist"), list.to_string()));
    written.map_err(Error::io(format!("write the network in {}", dir.display())))
}

fn serve(root: &Path, bin_dir: &Path, binaries: &Binaries) -> Result<Child> {
    let path = root.join("cri.log");
    let log = File::create(&path).map_err(Error::io(format!("create {}", path.display())))?;
    let mut command = Command::new(&binaries.russet);
    command.args(["cri", "--root"]).arg(root).arg("--cni-bin-dir").arg(bin_dir);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    command.spawn().map_err(Error::io(process::shown(&command)))
}
