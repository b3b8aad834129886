//! A machine of its own for programs that believe to be alone on theirs, as kubelet and containerd do: namespaces of network, mounts, processes and control
//! groups, and its own `/run`, `/etc`, `/opt` and `/var` in memory. What is written to `/etc`, `/opt` and `/var` stays there, and the test's machine keeps its files.
//!
//! Nothing outlives a machine: its first process ends with the test's, whatever ends that, and the kernel then kills the others and removes mounts and namespaces.
//! The control groups of a killed test are removed when the next machine starts.

#![allow(clippy::unwrap_used, reason = "a broken test bench fails the test")]

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use russet_linux::NetNs;
use rustix::thread::{LinkNameSpaceType, UnshareFlags};
use tempfile::TempDir;

use crate::{Process, require_tool};

/// A running machine; dropping it removes it with all that it holds.
#[derive(Debug)]
pub struct Machine {
    /// `unshare`, which waits for the first process. None only while the machine is dropped.
    init: Option<Process>,
    netns: String,
    group: String,
    /// In the order in which a thread enters them: what makes the others visible is last.
    namespaces: Vec<(File, LinkNameSpaceType)>,
    /// Files of the test about it. An empty directory for the machine's own memory, too.
    directory: TempDir,
}

/// In the tree of sources, which each test executable comes from.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/machine/machine.sh");
/// Puts the shell into the machine's control groups, and becomes the program.
const JOIN: &str = r#"for file in /sys/fs/cgroup/*/cgroup.procs; do echo 0 > $file; done; exec "$@""#;
static COUNTER: AtomicU32 = AtomicU32::new(0);

// === impl Machine ===

impl Machine {
    /// Starts one whose network namespace is made with this name for `ip netns`; only its loopback is up.
    #[track_caller]
    pub fn start(name: &str) -> Self {
        let netns = NetNs::create_named(name).unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("memory")).unwrap();
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let group = format!("russet-test-{}-{number}", std::process::id());
        let mut command = script("boot", &group);
        command.arg(directory.path().join("memory")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut init = Process::start(russet_linux::process::in_netns(&mut command, &netns).unwrap());
        let mut line = String::new();
        BufReader::new(init.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "the machine {name} did not start");
        let pid = first_process(init.id());
        let kinds = [
            ("net", LinkNameSpaceType::Network),
            ("pid", LinkNameSpaceType::ProcessID),
            ("cgroup", LinkNameSpaceType::ControlGroup),
            ("mnt", LinkNameSpaceType::Mount),
        ];
        let namespaces =
            kinds.map(|(file, kind)| (File::open(format!("/proc/{pid}/ns/{file}")).unwrap(), kind)).into();
        let machine = Self { init: Some(init), netns: name.to_owned(), group, namespaces, directory };
        machine.run("ip", &["link", "set", "lo", "up"]);
        machine
    }

    /// The name of its network for `ip netns`.
    pub fn netns(&self) -> &str {
        &self.netns
    }

    /// A file of the test about this machine; the machine sees it, too.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs `body` on a thread inside of the machine: files, network and processes are the machine's. What it starts is not in the machine's control groups.
    pub fn inside<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let name = std::thread::current().name().unwrap_or("test").to_owned();
        std::thread::scope(|scope| {
            let entered = || {
                self.enter();
                body()
            };
            let thread = std::thread::Builder::new().name(name).spawn_scoped(scope, entered).unwrap();
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// A command for [`Machine::spawn`], whose program is found by the PATH of the machine.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(require_tool("sh"));
        command.args(["-ec", JOIN, "sh"]).arg(program).stdin(Stdio::null());
        command
    }

    /// Starts a command of [`Machine::command`] inside.
    #[track_caller]
    pub fn spawn(&self, command: &mut Command) -> Process {
        self.inside(|| Process::start(command))
    }

    /// Runs a program inside and returns its standard output; panics with its standard error where it fails.
    #[track_caller]
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        self.inside(|| crate::run(program, arguments))
    }

    fn enter(&self) {
        // SAFETY: the thread gives up the directories that it shared with others, no memory and no file descriptor.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }.unwrap();
        for (namespace, kind) in &self.namespaces {
            rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(*kind)).unwrap();
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let Some(mut init) = self.init.take() else { return };
        // With its standard input the first process ends. `unshare` does when all processes of the machine are gone.
        drop(init.stdin.take());
        let _ = init.wait();
        self.namespaces.clear();
        let _ = NetNs::delete_named(&self.netns);
        let _ = script("remove", &self.group).status();
    }
}

/// A task of the script, in mounts of its own.
fn script(task: &str, group: &str) -> Command {
    let mut command = Command::new(require_tool("unshare"));
    command.args(["--mount", "sh"]).args([Path::new(SCRIPT), Path::new(task), Path::new(group)]);
    command
}

/// The child of `unshare`.
fn first_process(unshare: u32) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).unwrap();
    children.trim().parse().unwrap()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{eventually, in_new_netns};

    #[test]
    #[ignore = "root: makes namespaces; tool: ip, unshare"]
    fn a_machine_has_its_own_files_and_processes_and_leaves_nothing() {
        in_new_netns(|| {
            let machine = Machine::start("m1");
            let group = machine.group.clone();
            let mut sleep = machine.spawn(machine.command("sleep").arg("1000"));
            let seen = machine.inside(|| {
                std::fs::write("/etc/russet-test-machine", "x").unwrap();
                std::fs::read_to_string("/proc/sys/kernel/panic").unwrap()
            });
            assert_eq!(seen, std::fs::read_to_string("/proc/sys/kernel/panic").unwrap());
            assert_eq!(machine.run("cat", &["/proc/1/comm"]), "cat\n");
            assert!(!Path::new("/etc/russet-test-machine").exists());
            let groups = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
            eventually(Duration::from_secs(20), || groups(sleep.id()).matches(&group).count() > 1);
            // The process is killed with its machine. The kernel ends the machine only once its parent
            // has waited for it.
            let parent = std::thread::spawn(move || {
                eventually(Duration::from_secs(20), || sleep.has_ended().is_some());
            });
            drop(machine);
            parent.join().unwrap();
            let found = crate::run(
                "unshare",
                &[
                    "--mount",
                    "sh",
                    "-ec",
                    "mount -t cgroup -o memory c /mnt; find /mnt -name 'russet-test-*'",
                ],
            );
            assert!(!found.contains(&group), "{found}");
        });
    }
}
