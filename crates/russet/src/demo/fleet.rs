//! The demo's processes: the store's owner and an agent in each node's namespace.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use russet_linux::process;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::datastore::Datastore;
use super::lab::{self, DIR, Fabric, Lab, Node};
use super::report::{BlockReport, NodeReport, PodReport};
use super::{DemoError, Interrupt, flannel, leftovers};
use crate::cli::DemoMode;

/// The member that runs the datastore, or forwards to it.
const STORE: &str = "store";
/// How long the store and the agents may take until they are ready.
const READY_DEADLINE: Duration = Duration::from_secs(30);
/// How often readiness is polled.
const READY_INTERVAL: Duration = Duration::from_millis(10);
/// How long a process may take to end after SIGTERM.
const STOP_DEADLINE: Duration = Duration::from_secs(5);
/// How much of a dead agent's log an error repeats.
const LOG_TAIL_LINES: usize = 5;

/// Processes that this demo started.
pub struct Fleet {
    /// The agents' datastore.
    pub datastore: Datastore,
    members: Vec<Member>,
    /// The processes must outlive the demo.
    keep: bool,
}

struct Member {
    name: String,
    process: Child,
}

/// Where the output of a node's agent goes.
pub fn log_path(name: &str) -> PathBuf {
    Path::new(DIR).join(format!("{name}.log"))
}

// === impl Fleet ===

impl Fleet {
    /// Starts nothing yet.
    pub fn new(datastore: Datastore, keep: bool) -> Self {
        Self { datastore, members: Vec::new(), keep }
    }

    /// Starts everything and waits until every node is ready.
    pub fn start(&mut self, lab: &Lab, interrupt: &Interrupt) -> Result<(), DemoError> {
        leftovers::create_dir()?;
        let store = self.datastore.command(self.russet()?)?;
        self.spawn(STORE, store)?;
        let datastore = self.datastore.clone();
        self.until(interrupt, &datastore.describe(), READY_DEADLINE, || datastore.is_up())?;
        if let Fabric::Flannel(backend) = lab.fabric {
            flannel::configure(&datastore, backend)?;
        }
        for node in &lab.nodes {
            self.start_daemon(lab, node)?;
        }
        super::pods::configure(lab, super::pods::conflist_path)?;
        for node in &lab.nodes {
            let what = format!("the {} of {}", lab.fabric.daemon(), node.name);
            self.until(interrupt, &what, READY_DEADLINE, || match lab.fabric {
                Fabric::Russet(_) => super::pods::ready(lab, node),
                Fabric::Flannel(_) => flannel::subnet_file(node).exists(),
            })?;
        }
        Ok(())
    }

    /// Starts the agent, or flannel's daemon, of a node.
    pub fn start_daemon(&mut self, lab: &Lab, node: &Node) -> Result<(), DemoError> {
        let mut daemon = match lab.fabric {
            Fabric::Russet(mode) => self.agent(node, mode, &self.datastore.location())?,
            Fabric::Flannel(_) => flannel::daemon(self.russet()?, node, &self.datastore),
        };
        let started = process::in_netns(&mut daemon, &node.netns()?).map(drop);
        started.map_err(|e| DemoError::step(format!("start in {}", node.namespace), e))?;
        self.spawn(&node.name, daemon)
    }

    /// Ends a process as a crash would.
    pub fn kill(&mut self, name: &str) -> Result<(), DemoError> {
        let Some(at) = self.members.iter().position(|member| member.name == name) else { return Ok(()) };
        let mut member = self.members.remove(at);
        member.signal(Signal::KILL);
        member.process.wait().map(drop).map_err(|source| DemoError::io(format!("kill {name}"), source))
    }

    /// The agent of a node, with its data in `store`.
    pub fn agent(&self, node: &Node, mode: DemoMode, store: &str) -> Result<Command, DemoError> {
        let mut agent = self.russet()?;
        let encapsulation = match mode {
            DemoMode::Vxlan => "vxlan",
            DemoMode::Routed => "none",
        };
        agent.arg("agent").arg("--root").arg(node.paths().root());
        agent.args([
            "--node-name",
            &node.name,
            "--interface",
            lab::UNDERLAY,
            "--encapsulation",
            encapsulation,
        ]);
        agent.args(["--store", store]);
        Ok(agent)
    }

    /// This executable, with an environment that has none of the caller's settings.
    pub fn russet(&self) -> Result<Command, DemoError> {
        let program =
            std::env::current_exe().map_err(|source| DemoError::io("find the running program", source))?;
        let mut command = Command::new(program);
        command.env_clear();
        if let Some(level) = std::env::var_os("RUSSET_LOG_LEVEL") {
            command.env("RUSSET_LOG_LEVEL", level);
        }
        Ok(command)
    }

    /// Has `russet apply` store documents; `name` is that of their file.
    pub fn apply(&self, name: &str, documents: &str) -> Result<(), DemoError> {
        let file = Path::new(DIR).join(name);
        let failed = |source| DemoError::io(format!("apply {}", file.display()), source);
        fs::write(&file, documents).map_err(failed)?;
        let mut apply = self.russet()?;
        apply.args(["apply", "--store", &self.datastore.location(), "-f"]).arg(&file);
        apply.arg("--root").arg(lab::store_paths().root()).stdin(Stdio::null());
        // A terminal's Ctrl-C ends the demo, which removes what this stores.
        apply.process_group(0);
        self.datastore.reach(&mut apply)?;
        let output = apply.output().map_err(failed)?;
        if output.status.success() {
            return Ok(());
        }
        let error = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(DemoError::Refused(format!("apply {}: {error}", file.display())))
    }

    /// Starts a process that ends with the demo; its log gets its name.
    pub fn spawn(&mut self, name: &str, mut command: Command) -> Result<(), DemoError> {
        let failed = |source| DemoError::io(format!("start {name}"), source);
        let log = File::create(log_path(name)).map_err(failed)?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        // A terminal sends Ctrl-C to a whole process group; the demo ends these processes itself.
        command.process_group(0);
        if !self.keep {
            process::die_with_parent(&mut command);
        }
        let process = command.spawn().map_err(failed)?;
        let pid = process.id();
        self.members.push(Member { name: name.to_owned(), process });
        leftovers::record_process(pid)
    }

    /// Waits for `condition`; fails if a process ends meanwhile.
    pub fn until(
        &mut self,
        interrupt: &Interrupt,
        what: &str,
        deadline: Duration,
        mut condition: impl FnMut() -> bool,
    ) -> Result<(), DemoError> {
        let started = Instant::now();
        while !condition() {
            self.check_alive()?;
            if started.elapsed() > deadline {
                return Err(self.late(what, deadline));
            }
            interrupt.wait(READY_INTERVAL)?;
        }
        Ok(())
    }

    /// The error of a wait that was too long, with the ends of all logs.
    pub fn late(&self, what: &str, deadline: Duration) -> DemoError {
        let logs = self.members.iter().map(|member| log_tail(&member.name)).collect::<Vec<_>>().join("\n");
        DemoError::Refused(format!("{what} is not ready after {deadline:?}; the logs end with:\n{logs}"))
    }

    /// Fails if a process has ended.
    pub fn check_alive(&mut self) -> Result<(), DemoError> {
        for member in &mut self.members {
            if let Ok(Some(status)) = member.process.try_wait() {
                let tail = log_tail(&member.name);
                return Err(DemoError::Refused(format!(
                    "{} ended with {status}; its log ends with:\n{tail}",
                    member.name
                )));
            }
        }
        Ok(())
    }

    /// The nodes, with their agents' processes.
    pub fn reports(&self, lab: &Lab) -> Vec<NodeReport> {
        let pid =
            |name: &str| self.members.iter().find(|member| member.name == name).map_or(0, |m| m.process.id());
        let report = |node: &Node| NodeReport {
            name: node.name.clone(),
            netns: lab::namespace_path(&node.namespace).display().to_string(),
            agent_pid: pid(&node.name),
            ips: node.underlay().iter().map(|net| net.addr().to_string()).collect(),
        };
        lab.nodes.iter().map(report).collect()
    }

    /// The blocks, or subnets, that are in the store now.
    pub fn blocks(&self, lab: &Lab, pods: &[PodReport]) -> Result<Vec<BlockReport>, DemoError> {
        match lab.fabric {
            Fabric::Russet(_) => super::pods::blocks(&self.datastore),
            Fabric::Flannel(_) => flannel::subnets(&self.datastore, lab, pods),
        }
    }

    /// Leaves the processes running after this one.
    pub fn keep(self) -> Result<(), DemoError> {
        leftovers::mark_kept()
    }

    /// Ends every process: with SIGTERM first, then with SIGKILL.
    pub fn stop(mut self) {
        for member in self.members.iter().rev() {
            member.signal(Signal::TERM);
        }
        let started = Instant::now();
        for member in &mut self.members {
            if !member.ended_within(STOP_DEADLINE.saturating_sub(started.elapsed())) {
                member.signal(Signal::KILL);
            }
            // Reaps; a process that was killed cannot refuse.
            let _ = member.process.wait();
        }
    }
}

// === impl Member ===

impl Member {
    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw) {
            // The process is our child and not reaped, so the pid cannot be another's; at worst it
            // has ended already.
            let _ = kill_process(pid, signal);
        }
    }

    /// Whether the process ended by itself within `time`; false if that cannot be observed.
    fn ended_within(&self, time: Duration) -> bool {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        pidfd.is_some_and(|pidfd| process::has_ended(pidfd, time).unwrap_or(false))
    }
}

fn log_tail(name: &str) -> String {
    let log = fs::read_to_string(log_path(name)).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
}
