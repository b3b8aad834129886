//! Kills an agent at a system call of its work, or has calls of one of its threads fail, by strace.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use russet_testkit::{Process, eventually, let_pass, require_tool};
use rustix::process::Signal;

use crate::node::TIMEOUT;

/// More steps of one kind than any request or change has.
pub const STEPS_MAX: usize = 200;
/// The system calls that write to files, the journal among them, and to the kernel's netlink. Each
/// thread's are counted separately.
pub const KINDS: [&str; 3] = ["pwrite64", "sendto", "sendmsg"];

/// Kills the agent as it is about to make its `nth` system call of a kind.
pub struct SyscallKiller(Process);

/// Has every system call of a kind fail that one thread of the agent makes.
pub struct FailingCalls(SyscallKiller);

// === impl FailingCalls ===

impl FailingCalls {
    /// Of the thread with this name; waits until it is traced.
    pub fn of(agent: u32, thread: &str, kind: &str, error: &str) -> Self {
        let tasks = std::fs::read_dir(format!("/proc/{agent}/task")).unwrap().flatten();
        let named = |path: &std::path::PathBuf| {
            std::fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == thread)
        };
        let task = tasks.map(|task| task.path()).find(named).unwrap_or_else(|| panic!("no thread {thread}"));
        let inject = format!("inject={kind}:error={error}");
        let mut command = strace(kind, &inject);
        command.arg(task.file_name().unwrap());
        let it = Self(SyscallKiller(Process::start(&mut command)));
        let status = || std::fs::read_to_string(task.join("status")).unwrap();
        eventually(TIMEOUT, || !status().contains("TracerPid:\t0\n"));
        it
    }

    /// They succeed again.
    pub fn end(self) {
        self.0.detach();
    }
}

/// Traces what the caller names by its last argument.
fn strace(kind: &str, inject: &str) -> Command {
    let mut command = Command::new(require_tool("strace"));
    command.args(["-q", "-o", "/dev/null", "-e", &format!("trace={kind}"), "-e", inject, "-p"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

// === impl SyscallKiller ===

impl SyscallKiller {
    /// Waits until all of the agent's threads are traced.
    pub fn wait_for(agent: u32, kind: &str, nth: usize) -> Self {
        let inject = format!("inject={kind}:signal=SIGKILL:when={nth}");
        let mut command = strace(kind, &inject);
        command.arg(agent.to_string()).arg("-f");
        let it = Self(Process::start(&mut command));
        let traced = || {
            let tasks = std::fs::read_dir(format!("/proc/{agent}/task")).unwrap().flatten();
            // A thread may end between the two reads.
            let mut states =
                tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
            states.all(|status| !status.contains("TracerPid:\t0\n"))
        };
        eventually(TIMEOUT, traced);
        it
    }

    /// Detaches from the agent, unless it reaches that step in this very moment.
    pub fn detach(mut self) {
        self.0.signal(Signal::INT);
        // When strace detaches from an agent that is just dying, it waits for its first thread,
        // which the kernel reaps last: for ever.
        self.ends();
    }

    /// It has killed the agent.
    pub fn done(mut self) {
        assert!(self.ends(), "the agent refused, and lives");
    }

    fn ends(&mut self) -> bool {
        let began = Instant::now();
        while began.elapsed() < TIMEOUT {
            if self.0.try_wait().unwrap().is_some() {
                return true;
            }
            let_pass(Duration::from_millis(5));
        }
        false
    }
}
