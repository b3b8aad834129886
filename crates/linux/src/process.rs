//! Child processes: inside a network namespace, and not outliving us.
//!
//! The demo starts its servers with these, `runtime` its plugins, tests everything else.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::{Pid, Signal};
use rustix::thread::LinkNameSpaceType;

use crate::netns::{NetNs, NetNsError};

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

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_child_dies_with_the_thread_that_started_it() {
        let start = || {
            let mut command = Command::new("sh");
            command.args(["-c", "read never"]).stdin(std::process::Stdio::piped());
            die_with_parent(&mut command).spawn().unwrap()
        };
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || send.send(start()).unwrap()).join().unwrap();
        let mut child = receive.recv().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
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
