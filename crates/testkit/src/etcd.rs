//! Real etcd members on loopback, each in a directory and on ports of its own; ended by process id when dropped.

#![allow(clippy::unwrap_used, reason = "a broken test bench fails the test")]

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use crate::require_tool;

/// Longest wait for a member to serve, an election on a busy machine included.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// One member.
#[derive(Debug)]
pub struct Member {
    name: String,
    program: PathBuf,
    directory: PathBuf,
    arguments: Vec<String>,
    /// The address for clients: `127.0.0.1:port`.
    pub client: String,
    scheme: &'static str,
    running: Option<Child>,
    /// etcdctl's credentials.
    pub etcdctl_arguments: Vec<String>,
}

/// A cluster of one or more members.
#[derive(Debug)]
pub struct Cluster {
    /// In the order of their names.
    pub members: Vec<Member>,
    directory: TempDir,
}

/// Below the kernel's range of ephemeral ports: a connection could take a member's port while it is
/// killed.
const PORTS: std::ops::Range<u32> = 12_000..32_000;
static NEXT_PORT: AtomicU32 = AtomicU32::new(0);

/// Ports without a listener. Test processes start at different numbers, and none returns the same
/// port twice.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    let size = PORTS.end - PORTS.start;
    let candidates = std::iter::repeat_with(|| {
        let offset =
            std::process::id().wrapping_mul(97).wrapping_add(NEXT_PORT.fetch_add(1, Ordering::Relaxed));
        u16::try_from(PORTS.start + offset % size).unwrap()
    });
    candidates.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).take(count).collect()
}

// === impl Member ===

impl Member {
    /// Starts the member's process; [`Cluster::wait_for`] tells when it serves.
    pub fn start(&mut self) {
        assert!(self.running.is_none(), "{} runs already", self.name);
        let log = std::fs::File::create(self.directory.join(format!("{}.log", self.name))).unwrap();
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdout(Stdio::null()).stderr(Stdio::from(log)).stdin(Stdio::null());
        self.running = Some(command.spawn().unwrap());
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.running.as_ref().expect("the member runs").id()
    }

    fn signal(&self, signal: &str) {
        crate::run("kill", &[&format!("-{signal}"), &self.pid().to_string()]);
    }

    /// Ends it as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.running.take() {
            // A member that was stopped dies of SIGKILL all the same.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Stops the process, connections open.
    pub fn stop(&self) {
        self.signal("STOP");
    }

    /// Continues the process.
    pub fn resume(&self) {
        self.signal("CONT");
    }

    /// The end of its log.
    pub(crate) fn log(&self) -> String {
        let log = std::fs::read_to_string(self.directory.join(format!("{}.log", self.name))).unwrap();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Where clients find it, with the scheme.
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.client)
    }

    /// Runs etcdctl against this member; `None` when it fails.
    pub fn try_etcdctl(&self, arguments: &[&str]) -> Option<String> {
        let mut command = Command::new(require_tool("etcdctl"));
        command.env("ETCDCTL_API", "3").arg(format!("--endpoints={}", self.url()));
        let output = command.args(&self.etcdctl_arguments).args(arguments).output().unwrap();
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs etcdctl against this member; panics when it fails.
    #[track_caller]
    pub fn etcdctl(&self, arguments: &[&str]) -> String {
        self.try_etcdctl(arguments).unwrap_or_else(|| panic!("etcdctl {} failed", arguments.join(" ")))
    }

    /// Compacts all earlier revisions.
    pub fn compact(&self) {
        let status = self.etcdctl(&["endpoint", "status", "--write-out=json"]);
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let revision = status[0]["Status"]["header"]["revision"].as_u64().unwrap();
        // Fails if nothing was written since the last time, and then there is nothing to compact.
        let _ = self.try_etcdctl(&["compact", "--physical", &revision.to_string()]);
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

// === impl Cluster ===

impl Cluster {
    /// One member over http.
    pub fn single() -> Self {
        Self::of_program(require_tool("etcd"))
    }

    /// One member over http, of another etcd than the one that is installed.
    pub fn of_program(program: PathBuf) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::run(&program, directory, 1, "http", |_| Vec::new(), Vec::new())
    }

    /// `count` members; `more` adds arguments, given the directory; `etcdctl` is what etcdctl needs.
    pub fn start(
        count: usize,
        scheme: &'static str,
        more: impl Fn(&Path) -> Vec<String>,
        etcdctl: Vec<String>,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::start_in(directory, count, scheme, more, etcdctl)
    }

    /// The same in a directory that holds files already.
    pub fn start_in(
        directory: TempDir,
        count: usize,
        scheme: &'static str,
        more: impl Fn(&Path) -> Vec<String>,
        etcdctl: Vec<String>,
    ) -> Self {
        Self::run(&require_tool("etcd"), directory, count, scheme, more, etcdctl)
    }

    fn run(
        program: &Path,
        directory: TempDir,
        count: usize,
        scheme: &'static str,
        more: impl Fn(&Path) -> Vec<String>,
        etcdctl: Vec<String>,
    ) -> Self {
        let ports = free_ports(2 * count);
        let peer = |n: usize| format!("http://127.0.0.1:{}", ports[2 * n + 1]);
        let everybody: Vec<String> = (0..count).map(|n| format!("m{n}={}", peer(n))).collect();
        let members = (0..count).map(|n| {
            let name = format!("m{n}");
            let client = format!("127.0.0.1:{}", ports[2 * n]);
            let mut arguments = vec![
                format!("--name={name}"),
                format!("--data-dir={}", directory.path().join(&name).display()),
                format!("--listen-client-urls={scheme}://{client}"),
                format!("--advertise-client-urls={scheme}://{client}"),
                format!("--listen-peer-urls={}", peer(n)),
                format!("--initial-advertise-peer-urls={}", peer(n)),
                format!("--initial-cluster={}", everybody.join(",")),
                "--logger=zap".to_owned(),
                "--log-level=warn".to_owned(),
            ];
            arguments.extend(more(directory.path()));
            Member {
                name,
                program: program.to_owned(),
                directory: directory.path().to_owned(),
                arguments,
                client,
                scheme,
                running: None,
                etcdctl_arguments: etcdctl.clone(),
            }
        });
        let mut cluster = Self { members: members.collect(), directory };
        cluster.members.iter_mut().for_each(Member::start);
        cluster.wait();
        cluster
    }

    /// Waits until every member serves.
    pub fn wait(&self) {
        (0..self.members.len()).for_each(|index| self.wait_for(index));
    }

    /// Waits until one member serves, which needs a majority.
    pub fn wait_for(&self, index: usize) {
        let member = &self.members[index];
        let started = std::time::Instant::now();
        while member.try_etcdctl(&["endpoint", "health"]).is_none() {
            assert!(
                started.elapsed() < TIMEOUT,
                "{} is not healthy; its log:\n{}",
                member.name,
                member.log()
            );
        }
    }

    /// Where members keep their data.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The store's location for the engine: `etcd:http://127.0.0.1:p1,http://127.0.0.1:p2`.
    pub fn location(&self) -> String {
        let urls: Vec<String> = self.members.iter().map(Member::url).collect();
        format!("etcd:{}", urls.join(","))
    }

    /// Removes every record.
    pub fn clear(&self) {
        self.members[0].etcdctl(&["del", "/", "--prefix"]);
    }
}
