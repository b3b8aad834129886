//! One node for tests: a namespace, an agent process in it on an embedded store, and pods attached
//! as a runtime would.

use std::ffi::OsStr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use russet_linux::{NetNs, process};
use russet_testkit::{Process, copy_program, eventually, http_get, links, pings_with, run, spawn_with_input};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long an agent may take until it serves, or a process until it ends. A machine with other work
/// takes more than 20 s for a readiness that follows the end of several grace periods of RCU.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A node and its agent; dropping it removes everything.
pub struct TestNode {
    root: TempDir,
    name: String,
    netns: NetNs,
    agent: Option<Process>,
    /// The arguments of its agents, besides the root.
    pub agent_args: Vec<String>,
    pub agent_env: Vec<(String, String)>,
    /// Its agents get their name from another source than the arguments.
    pub is_named: bool,
    pods: Vec<TestPod>,
}

/// A pod's empty namespace.
#[derive(Clone)]
pub struct TestPod {
    pub container: String,
    pub netns_name: String,
}

/// A process that owns an embedded store and serves it; ends with the test.
pub struct StoreProcess {
    _process: Process,
    pub socket: PathBuf,
}

/// A plugin's answer.
#[derive(Debug)]
pub struct Answer {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

/// The `PATH` of calls of plugins that start programs.
pub const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// A unique name for a namespace.
pub fn unique(what: &str) -> String {
    static TIDIED: Once = Once::new();
    TIDIED.call_once(remove_leftovers);
    format!("rstest-{}-{what}{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed))
}

/// Removes the namespaces of test processes that were killed. Their interfaces have addresses, and
/// an agent's search for leaks treats those as addresses in use.
fn remove_leftovers() {
    for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix("rstest-").and_then(|rest| rest.split_once('-'));
        if owner.is_some_and(|(pid, _)| !Path::new("/proc").join(pid).exists()) {
            let deleted = Command::new("ip").args(["netns", "del", &name]).output().unwrap();
            // Another test process may have been faster.
            assert!(deleted.status.success() || !entry.path().exists(), "{deleted:?}");
        }
    }
}

/// How soon after its start a daemon says why it waits: 3 s, and a second for a busy machine.
pub const SOON: Duration = Duration::from_secs(4);

/// The time of day at which a line was logged, in UTC; none if it begins with no time.
pub fn logged_at(line: &str) -> Option<Duration> {
    // 2026-11-28T05:56:22.123456Z
    let (_, time) = line.split_once('T')?;
    let mut parts = time.split('Z').next()?.splitn(3, ':');
    let mut next = || parts.next()?.parse::<f64>().ok();
    Some(Duration::from_secs_f64(next()? * 3600.0 + next()? * 60.0 + next()?))
}

/// From one time of day to a later one, also over midnight.
pub fn time_between(first: Duration, later: Duration) -> Duration {
    let day = Duration::from_secs(24 * 3600);
    if later < first { later + day - first } else { later - first }
}

/// How long after the first line of a log the first one with `text` was written.
#[track_caller]
pub fn logged_after(log: &str, text: &str) -> Duration {
    let first = log.lines().find_map(logged_at).unwrap_or_else(|| panic!("no time: {log}"));
    let found = log.lines().find(|line| line.contains(text)).and_then(logged_at);
    time_between(first, found.unwrap_or_else(|| panic!("no line with {text}: {log}")))
}

// === impl TestNode ===

impl TestNode {
    /// A node whose agent is started with these arguments besides its root and name.
    pub fn start(agent_args: &[&str]) -> Self {
        let mut node = Self::without_agent(agent_args);
        node.start_agent();
        node
    }

    /// A node on which no agent runs.
    pub fn without_agent(agent_args: &[&str]) -> Self {
        let name = unique("n");
        let netns = NetNs::create_named(&name).unwrap();
        netns.with(|| Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap()).unwrap();
        let agent_args = agent_args.iter().map(ToString::to_string).collect();
        let root = tempfile::tempdir().unwrap();
        let (agent_env, pods) = (Vec::new(), Vec::new());
        Self { root, name, netns, agent: None, agent_args, agent_env, is_named: false, pods }
    }

    /// What a power cut removes and a boot makes again, when all of the node's processes are dead:
    /// its namespace with everything in it, and `/run`.
    pub fn reboot(&mut self) {
        NetNs::delete_named(&self.name).unwrap();
        self.netns = NetNs::create_named(&self.name).unwrap();
        self.netns.with(|| Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap()).unwrap();
        std::fs::remove_dir_all(self.path("run")).unwrap();
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn netns(&self) -> &NetNs {
        &self.netns
    }

    /// Its name for `ip netns`.
    pub fn netns_name(&self) -> &str {
        &self.name
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.root().join("agent.log")).unwrap_or_default()
    }

    pub fn start_agent(&mut self) {
        self.start_agent_by(Command::new(env!("CARGO_BIN_EXE_russet")));
    }

    /// Starts the agent by a command that wants the agent's arguments yet.
    pub fn start_agent_by(&mut self, command: Command) {
        self.agent = Some(self.spawn_agent_by(command));
        eventually(TIMEOUT, || {
            let exited = self.agent.as_mut().unwrap().has_ended();
            assert!(exited.is_none(), "the agent ended:\n{}", self.log());
            self.status().status == 0
        });
    }

    /// An agent that the caller owns; does not wait until it serves.
    pub fn spawn_agent(&self) -> Process {
        self.spawn_agent_by(Command::new(env!("CARGO_BIN_EXE_russet")))
    }

    /// The same by this command, to which the agent's arguments are added.
    pub fn spawn_agent_by(&self, mut command: Command) -> Process {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.root().join("agent.log"));
        command.arg("agent").arg("--root").arg(self.root()).args(&self.agent_args);
        if !self.is_named && !self.agent_args.iter().any(|arg| arg == "--node-name") {
            command.args(["--node-name", "node-a"]);
        }
        command.envs(self.agent_env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log.unwrap());
        Process::start(process::in_netns(&mut command, &self.netns).unwrap())
    }

    /// The agent's process.
    pub fn agent_pid(&self) -> u32 {
        self.agent.as_ref().unwrap().id()
    }

    /// The number of unfinished operations in the journal.
    pub fn unfinished(&self) -> usize {
        self.russet(&["journal", "-o", "json"]).result()["unfinished"].as_array().unwrap().len()
    }

    /// Whether the agent's process has ended, because it was killed.
    pub fn has_lost_its_agent(&mut self) -> bool {
        self.agent.as_mut().is_none_or(|agent| agent.has_ended().is_some())
    }

    /// Waits for the end of an agent that was killed.
    pub fn wait_for_agents_death(&mut self) {
        self.agent.take().unwrap().wait().unwrap();
    }

    /// Whether the agent lives: it answers, or it is dead, and reaped.
    pub fn agent_lives(&mut self) -> bool {
        eventually(TIMEOUT, || {
            self.agent.take_if(|agent| agent.has_ended().is_some());
            self.agent.is_none() || self.status().status == 0
        });
        self.agent.is_some()
    }

    /// Ends the agent as a crash would.
    pub fn kill_agent(&mut self) {
        drop(self.agent.take().unwrap());
    }

    /// Sends the agent a signal.
    pub fn signal_agent(&self, signal: Signal) {
        self.agent.as_ref().unwrap().signal(signal);
    }

    /// Stops the agent, and waits until it has ended.
    pub fn stop_agent(&mut self) {
        if let Some(agent) = self.agent.take() {
            let status = agent.end(Signal::TERM);
            assert!(status.success(), "{status}:\n{}", self.log());
        }
    }

    /// A new pod's namespace.
    pub fn pod(&mut self) -> TestPod {
        let netns_name = unique("p");
        NetNs::create_named(&netns_name).unwrap();
        // The `calico` plugin names a host end by the first 11 characters.
        let number = netns_name.rsplit_once('-').unwrap().1;
        let pod = TestPod { container: format!("{number}-c{}", std::process::id()), netns_name };
        self.pods.push(pod.clone());
        pod
    }

    /// The plugin's configuration; members of `extra` are added to it.
    pub fn config(&self, extra: Value) -> Value {
        let mut config = json!({
            "cniVersion": "1.1.0", "name": "testnet", "type": "russet",
            "agent_socket": self.root().join("run/russet/cni.sock"),
            "russet_path": env!("CARGO_BIN_EXE_russet"),
            "root": self.root(),
        });
        config.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        config
    }

    pub fn status(&self) -> Answer {
        self.run(&[("CNI_COMMAND", "STATUS")], self.config(json!({})).to_string().as_bytes())
    }

    pub fn add(&self, pod: &TestPod) -> Answer {
        self.verb("ADD", pod, "eth0", json!({}))
    }

    /// ADD of a pod with a name, as a kubelet's runtime sends it.
    pub fn add_named(&self, pod: &TestPod, namespace: &str, name: &str) -> Answer {
        let mut command = pod.call(env!("CARGO_BIN_EXE_russet"), "ADD", "/opt/cni/bin");
        command.env("CNI_ARGS", format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}"));
        self.output(&mut command, self.config(json!({})).to_string())
    }

    pub fn del(&self, pod: &TestPod) -> Answer {
        self.verb("DEL", pod, "eth0", json!({}))
    }

    pub fn verb(&self, verb: &str, pod: &TestPod, ifname: &str, extra: Value) -> Answer {
        let netns = pod.path();
        let env = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", pod.container.as_str()),
            ("CNI_NETNS", netns.to_str().unwrap()),
            ("CNI_IFNAME", ifname),
        ];
        self.run(&env, self.config(extra).to_string().as_bytes())
    }

    /// Runs the plugin as a runtime in the node's namespace does.
    pub fn run(&self, env: &[(&str, &str)], stdin: &[u8]) -> Answer {
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.env_clear().env("CNI_PATH", "/opt/cni/bin").envs(env.iter().copied());
        self.output(&mut command, stdin)
    }

    /// Starts a command in the node's network and writes its standard input.
    pub fn spawn(&self, command: &mut Command, stdin: impl AsRef<[u8]>) -> Child {
        spawn_with_input(process::in_netns(command, &self.netns).unwrap(), stdin)
    }

    /// The output of a command in the node's network, with this standard input.
    pub fn output(&self, command: &mut Command, stdin: impl AsRef<[u8]>) -> Answer {
        self.spawn(command, stdin).wait_with_output().unwrap().into()
    }

    /// The output of `ip` in the node's network.
    #[track_caller]
    pub fn ip(&self, args: &[&str]) -> String {
        run("ip", &[&["-n", &self.name], args].concat())
    }

    /// The output of a program in the node's network; it has to succeed.
    #[track_caller]
    pub fn inside(&self, program: &str, args: &[&str]) -> String {
        self.netns.with(|| run(program, args)).unwrap()
    }

    /// The answer of the agent's health address, with its heading; empty if it does not serve.
    pub fn get(&self, path: &str) -> String {
        self.netns.with(|| http_get("127.0.0.1:9471", path)).unwrap().unwrap_or_default()
    }

    /// A process in the node's network that has another program's name and does nothing.
    pub fn decoy(&self, name: &str) -> Process {
        let program = self.path(name);
        copy_program(Path::new("/bin/sleep"), &program);
        let mut command = Command::new(program);
        command.arg("300").stdin(Stdio::null()).stdout(Stdio::null());
        Process::start(process::in_netns(&mut command, &self.netns).unwrap())
    }

    /// Names of links in the node's namespace, without `lo`.
    pub fn links(&self) -> Vec<String> {
        let names = links(Some(&self.name)).into_iter();
        names.filter(|name| name != "lo" && !name.starts_with("vxlan")).collect()
    }

    /// Runs a verb of `russet` on this node.
    pub fn russet(&self, args: &[&str]) -> Answer {
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args(args).arg("--root").arg(self.root()).output().unwrap().into()
    }

    /// The same within the node's network.
    pub fn russet_inside(&self, args: &[&str]) -> Answer {
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args(args).arg("--root").arg(self.root());
        process::in_netns(&mut command, &self.netns).unwrap().output().unwrap().into()
    }

    /// Runs `russet store ...` on this node's store. The agent must be stopped, or serve it.
    fn run_store(&self, verb: &str, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args(["store", verb, "--root"]).arg(self.root()).args(args).output().unwrap()
    }

    fn store(&self, verb: &str, args: &[&str]) -> String {
        let output = self.run_store(verb, args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Writes a record, whether it exists or not.
    pub fn store_put(&self, key: &str, value: &str) {
        self.store("put", &[key, value]);
    }

    /// The same, if it may be refused.
    pub fn try_store_put(&self, key: &str, value: &str) -> bool {
        self.run_store("put", &[key, value]).status.success()
    }

    /// The records under a prefix, as JSON.
    pub fn store_get(&self, prefix: &str) -> String {
        self.store("dump", &["--prefix", prefix])
    }

    /// How many addresses pods hold, once all answered requests are complete: a DEL's release
    /// follows its answer.
    pub fn allocated(&self) -> usize {
        if self.agent.is_some() {
            eventually(TIMEOUT, || self.unfinished() == 0);
        }
        let records: Value = serde_json::from_str(&self.store_get("/calico/ipam/v2/assignment/")).unwrap();
        let is_pod =
            |attribute: &&Value| attribute["handle_id"].as_str().is_some_and(|h| h.starts_with("testnet."));
        let used = |record: &Value| {
            record["value"]["attributes"].as_array().map_or(0, |all| all.iter().filter(is_pod).count())
        };
        records["records"].as_array().unwrap().iter().map(used).sum()
    }

    /// A file below the node's root.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.root().join(relative)
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- agent log\n{}", self.log());
        }
        self.agent = None;
        for pod in &self.pods {
            let _ = NetNs::delete_named(&pod.netns_name);
        }
        let _ = NetNs::delete_named(&self.name);
    }
}

// === impl TestPod ===

impl TestPod {
    pub fn path(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.netns_name)
    }

    /// Whether a ping is answered; `arguments` end with the address.
    pub fn pings(&self, arguments: &[&str]) -> bool {
        pings_with(&self.netns_name, arguments)
    }

    /// The call of a plugin for the pod's `eth0`, as runtimes make it: with nothing of the test's environment.
    pub fn call(&self, program: impl AsRef<OsStr>, verb: &str, cni_path: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("CNI_COMMAND", verb).env("CNI_PATH", cni_path);
        command
            .env("CNI_CONTAINERID", &self.container)
            .env("CNI_NETNS", self.path())
            .env("CNI_IFNAME", "eth0");
        command
    }
}

// === impl StoreProcess ===

impl StoreProcess {
    /// That of the store below `root`.
    pub fn start(root: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args(["store", "serve", "--root"]).arg(root);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let socket = root.join("var/lib/russet/store.sock");
        let store = Self { _process: Process::start(&mut command), socket };
        eventually(TIMEOUT, || UnixStream::connect(&store.socket).is_ok());
        store
    }
}

// === impl Answer ===

impl Answer {
    /// The result of a request that must succeed.
    pub fn result(&self) -> Value {
        assert_eq!(self.status, 0, "{self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The error object of a request that must fail: one JSON document, nothing else.
    pub fn error(&self) -> Value {
        assert_eq!(self.status, 1, "{self:?}");
        let error: Value =
            serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        assert!(error["msg"].as_str().is_some_and(|msg| !msg.is_empty()), "{self:?}");
        error
    }

    /// Code and text of the error.
    pub fn code(&self) -> u64 {
        self.error()["code"].as_u64().unwrap()
    }

    pub fn addresses(&self) -> Vec<String> {
        let result = self.result();
        let ips = result["ips"].as_array().unwrap().iter();
        ips.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned()).collect()
    }
}

impl From<Output> for Answer {
    fn from(output: Output) -> Self {
        Self {
            status: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}
