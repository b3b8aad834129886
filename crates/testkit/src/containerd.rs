//! Debian's containerd, alone: without CRI, with directories of its own, ended when dropped with everything that it has started.

#![allow(clippy::unwrap_used, reason = "a broken test bench fails the test")]

mod proxy;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{eventually, require_tool};

pub use proxy::{Answer, Proxy};

/// A running containerd.
#[derive(Debug)]
pub struct Containerd {
    directory: TempDir,
    server: Option<Child>,
}

/// Start and end of a daemon on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

// === impl Containerd ===

impl Containerd {
    /// Starts one in the namespaces of the calling thread.
    pub fn start() -> Self {
        for tool in ["runc", "containerd-shim-runc-v2", "ctr"] {
            require_tool(tool);
        }
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| format!("{:?}", directory.path().join(name));
        // Nothing outside of the directory; without CRI it starts in a tenth of a second.
        let config = format!(
            "version = 2\nroot = {}\nstate = {}\n\
             disabled_plugins = [\"io.containerd.grpc.v1.cri\", \"io.containerd.internal.v1.opt\"]\n\
             [grpc]\naddress = {}\n",
            at("root"),
            at("state"),
            at("c.sock")
        );
        std::fs::write(directory.path().join("config.toml"), config).unwrap();
        let mut containerd = Self { directory, server: None };
        containerd.run();
        containerd
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.path("c.sock")
    }

    /// Ends it as a crash would; what it has started goes on.
    pub fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().unwrap();
            server.wait().unwrap();
        }
    }

    /// Starts it again, on its existing data.
    pub fn run(&mut self) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = Command::new(require_tool("containerd"));
        command.arg("--config").arg(self.path("config.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.server = Some(command.spawn().unwrap());
        eventually(TIMEOUT, || self.ctr_works(&["version"]));
    }

    /// What `ctr` prints of a namespace.
    #[track_caller]
    pub fn ctr(&self, namespace: &str, args: &[&str]) -> String {
        let socket = self.socket();
        crate::run("ctr", &[&["-a", socket.to_str().unwrap(), "-n", namespace], args].concat())
    }

    /// The shim processes of its containers.
    pub fn shims(&self) -> Vec<u32> {
        let socket = self.socket();
        let is_shim = |pid: &u32| {
            let cmdline = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = cmdline.split(|byte| *byte == 0);
            words.next().is_some_and(|program| program.ends_with(b"containerd-shim-runc-v2"))
                && words.any(|word| word == socket.as_os_str().as_encoded_bytes())
        };
        let pids = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(is_shim).collect()
    }

    fn ctr_works(&self, args: &[&str]) -> bool {
        let mut command = Command::new(require_tool("ctr"));
        command.arg("-a").arg(self.socket()).args(args).stdin(Stdio::null());
        command.output().is_ok_and(|output| output.status.success())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Shims and what runs under them outlive containerd.
    fn end_containers(&self) {
        for shim in self.shims() {
            let children = format!("/proc/{shim}/task/{shim}/children");
            let children = std::fs::read_to_string(children).unwrap_or_default();
            let children = children.split_whitespace().filter_map(|pid| pid.parse().ok());
            for pid in children.chain([i32::try_from(shim).unwrap()]) {
                let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
            }
        }
        let mounts = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
        let ours = mounts.lines().filter_map(|line| line.split(' ').nth(4).map(Path::new));
        for mount in ours.filter(|mount| mount.starts_with(self.directory.path())) {
            let _ = rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "--- containerd log\n{}",
                std::fs::read_to_string(self.path("log")).unwrap_or_default()
            );
        }
        if let Some(mut server) = self.server.take() {
            let _ = kill_process(Pid::from_child(&server), Signal::TERM);
            let _ = server.wait();
        }
        self.end_containers();
    }
}
