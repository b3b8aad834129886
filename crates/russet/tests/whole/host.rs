//! Runs the real executable, and compares the host before and after.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

use russet_testkit::{copy_program, let_pass};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::node::TIMEOUT;

/// What must be equal before and after: namespaces, links, routes, nft tables, and our processes.
#[derive(Debug, PartialEq, Eq)]
pub struct HostState {
    namespaces: BTreeSet<String>,
    links: String,
    routes: String,
    tables: String,
    processes: BTreeSet<String>,
    files: BTreeSet<String>,
}

/// A run of the program, not yet started.
pub struct Russet {
    command: Command,
}

/// A process in progress.
pub struct Running {
    child: Child,
    progress: BufReader<ChildStderr>,
    seen: String,
}

/// The demo's names are fixed, so its tests run one at a time; the lock is a file, because tests
/// are several programs.
pub fn demo_turn() -> std::fs::File {
    let path = std::env::temp_dir().join("russet-demo-tests.lock");
    let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(path).unwrap();
    flock(&file, FlockOperation::LockExclusive).unwrap();
    file
}

fn text_of(program: &str, args: &[&str]) -> String {
    let output =
        Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program} is missing: {e}"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

// === impl HostState ===

impl HostState {
    pub fn now() -> Self {
        let names = |dir: &str| {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<BTreeSet<_>>()
        };
        Self {
            namespaces: names("/run/netns").into_iter().filter(|name| name.starts_with("rsdemo-")).collect(),
            links: text_of("ip", &["-o", "link"]),
            routes: text_of("ip", &["route", "show", "table", "all"]),
            tables: text_of("nft", &["list", "tables"]),
            processes: processes_of_ours(),
            files: names("/run").into_iter().filter(|name| name == "russet-demo").collect(),
        }
    }

    /// Waits until it is equal again: the kernel releases a killed process's objects
    /// asynchronously.
    #[track_caller]
    pub fn assert_returns(&self, when: &str) {
        let end = Instant::now() + TIMEOUT;
        while Self::now() != *self && Instant::now() < end {
            let_pass(Duration::from_millis(20));
        }
        assert_eq!(Self::now(), *self, "killed at {when:?}");
    }
}

/// Processes of the executable under test with the demo's directory among their arguments.
fn processes_of_ours() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let cmdline = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let cmdline = String::from_utf8_lossy(&cmdline).replace('\0', " ");
        if cmdline.contains("/run/russet-demo/") || cmdline.contains("/run/netns/rsdemo-") {
            found.insert(format!("{} {cmdline}", entry.file_name().to_string_lossy()));
        }
    }
    found
}

// === impl Russet ===

impl Russet {
    pub fn demo(args: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args(["demo", "-o", "json"]).args(args);
        Self { command }
    }

    /// As uid 65534, from a directory and executable that every user may read.
    pub fn by_ordinary_user(self) -> Self {
        let copy = std::env::temp_dir().join(format!("russet-under-test-{}", std::process::id()));
        copy_program(Path::new(env!("CARGO_BIN_EXE_russet")), &copy);
        let mut command = Command::new(copy);
        command.args(self.command.get_args()).uid(65534).gid(65534).current_dir("/");
        Self { command }
    }

    pub fn output(mut self) -> Output {
        self.command.stdin(Stdio::null()).output().unwrap()
    }

    /// The report of a run that must succeed.
    pub fn json(self) -> Value {
        let output = self.output();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{}\n{errors}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stdout)
        );
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub fn start(mut self) -> Running {
        self.command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = self.command.spawn().unwrap();
        let progress = BufReader::new(child.stderr.take().unwrap());
        Running { child, progress, seen: String::new() }
    }
}

// === impl Running ===

impl Running {
    /// Reads progress lines until one contains `marker`.
    pub fn wait_for_progress(&mut self, marker: &str) {
        let mut line = String::new();
        while !line.contains(marker) {
            line.clear();
            let read = self.progress.read_line(&mut line).unwrap();
            self.seen.push_str(&line);
            assert!(read > 0, "ended before {marker:?}:\n{}", self.seen);
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub fn finish(mut self) -> Output {
        self.progress.read_to_string(&mut self.seen).unwrap();
        let status = self.child.wait().unwrap();
        Output { status, stdout: Vec::new(), stderr: self.seen.into_bytes() }
    }
}

/// A file system of a given size, unmounted when dropped.
pub struct SmallDisk(std::path::PathBuf);

impl SmallDisk {
    pub fn mount(at: &std::path::Path, bytes: u64) -> Self {
        let size = format!("size={bytes}");
        text_of("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", at.to_str().unwrap()]);
        Self(at.to_owned())
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Writes zeros to `file` until nothing more fits.
pub fn fill_disk(file: &std::path::Path) {
    use std::io::Write;
    let mut file = std::fs::File::create(file).unwrap();
    for chunk in [&[0; 4096][..], &[0; 64], &[0; 1]] {
        while file.write(chunk).is_ok_and(|written| written > 0) {}
    }
}
