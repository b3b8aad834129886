//! Child processes: inside a network namespace, and not outliving us; which process one is, and the end of any.
//!
//! The demo starts its servers with these, `runtime` its plugins, tests everything else; the flannel daemon waits for its predecessor's end.

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

pub use identity::Identity;

/// Makes `command` run inside `netns`. The parent's threads stay where they are.
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

/// Has the kernel kill `command` when the *thread* that starts it ends: start it on a thread that lives as long as it
/// should. A parent that dies between fork and exec is noticed, too.
pub fn die_with_parent(command: &mut Command) -> &mut Command {
    let parent = rustix::process::getpid();
    // SAFETY: between fork and exec the closure makes two system calls; it neither allocates nor locks.
    unsafe { command.pre_exec(move || die_when_orphaned(parent)) }
}

fn die_when_orphaned(parent: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The signal is only sent for deaths after the call above.
    if rustix::process::getppid() == Some(parent) {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::ESRCH))
    }
}

/// Whether the process behind a pidfd has ended, for which this waits up to `patience`. Signals that come meanwhile change nothing.
pub fn has_ended(pidfd: impl AsFd, patience: Duration) -> io::Result<bool> {
    let end = Instant::now() + patience;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout)) {
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

    /// Waits for what the kernel does a moment later.
    pub(crate) fn eventually(mut is_so: impl FnMut() -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while !is_so() {
            assert!(Instant::now() < end, "it is still not so");
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
    fn the_end_of_a_process_is_seen_and_not_before() {
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
