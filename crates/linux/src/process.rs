//! Child processes: start inside a network namespace, termination with the parent, identity, and
//! waiting for the end.
//!
//! The demo starts its servers with these functions, `runtime` its plugins, and tests their
//! programs; the flannel daemon waits for the end of its predecessor.

mod identity;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use rustix::thread::LinkNameSpaceType;

use crate::netns::{NetNs, NetNsError};

pub use identity::ProcessIdentity;

/// Makes `command` run inside `netns`. The parent's threads stay in their namespaces.
pub fn in_netns<'a>(command: &'a mut Command, netns: &NetNs) -> Result<&'a mut Command, NetNsError> {
    let netns = netns.try_clone()?;
    let enter = move || {
        rustix::thread::move_into_link_name_space(netns.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(io::Error::from)
    };
    // SAFETY: between fork and exec the closure makes one system call; it neither allocates nor locks.
    unsafe { command.pre_exec(enter) };
    Ok(command)
}

/// Has the kernel kill `command` when the *thread* that starts it ends: start it on a thread that
/// lives long enough. Also covers a parent that dies between fork and exec.
pub fn die_with_parent(command: &mut Command) -> &mut Command {
    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec the closure makes two system calls; it neither allocates nor locks.
    unsafe { command.pre_exec(move || die_when_orphaned(parent)) }
}

fn die_when_orphaned(parent: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The signal is sent only for deaths after the call above.
    if rustix::process::getppid() == Some(parent) {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::ESRCH))
    }
}

/// Waits up to `timeout` for the end of the process behind a pidfd; returns whether it has ended.
/// Signals do not shorten the wait.
pub fn has_ended(pidfd: impl AsFd, timeout: Duration) -> io::Result<bool> {
    let end = Instant::now() + timeout;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let poll_timeout =
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&poll_timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Stdio;
    use std::sync::mpsc;

    use rustix::process::PidfdFlags;

    use super::*;

    /// Waits for a condition that the kernel makes true shortly.
    pub(crate) fn eventually(mut is_so: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !is_so() {
            assert!(Instant::now() < end, "the condition did not become true");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_child_dies_with_the_thread_that_started_it() {
        let start = || {
            let mut command = Command::new("sh");
            command.args(["-c", "read never"]).stdin(Stdio::piped());
            die_with_parent(&mut command).spawn().unwrap()
        };
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || send.send(start()).unwrap()).join().unwrap();
        let mut child = receive.recv().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn has_ended_reports_the_end_and_not_before() {
        let mut child = Command::new("sh").args(["-c", "read never"]).stdin(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap();
        assert!(!has_ended(&pidfd, Duration::from_millis(1)).unwrap());
        drop(child.stdin.take());
        assert!(has_ended(&pidfd, Duration::from_secs(60)).unwrap());
        child.wait().unwrap();
    }

    #[test]
    #[ignore = "kernel: unshare(CLONE_NEWNET) needs root"]
    fn a_child_runs_inside_the_namespace_and_we_stay_outside() {
        let netns = NetNs::create_unnamed().unwrap();
        let home = NetNs::current().unwrap();
        let mut command = Command::new("stat");
        command.args(["-Lc", "%i", "/proc/self/ns/net"]);
        let output = in_netns(&mut command, &netns).unwrap().output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), netns.id().inode.to_string());
        assert!(NetNs::current().unwrap().same_as(&home));
    }
}
