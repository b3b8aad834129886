//! Plugins that survive the daemon that started them. An ADD whose caller was killed continues, and
//! would take its address after recovery has released the others; so such plugins are ended before
//! anything is undone.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::SandboxId;

/// Plugins start others, possibly during a scan; each scan ends at least the parents.
const SCANS_MAX: usize = 16;
/// For all of them: after SIGKILL only an uninterruptible system call keeps a process.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// More than any daemon's own environment, to which the plugin's variables are added.
const ENVIRON_MAX_BYTES: u64 = 1024 * 1024;

/// Ends every process that works for one of these sandboxes, and waits for the end of all of them.
pub(crate) fn end(ids: &BTreeSet<SandboxId>) {
    if ids.is_empty() {
        return;
    }
    let end = Instant::now() + END_TIMEOUT;
    for _ in 0..SCANS_MAX {
        let found = look(ids);
        let mut killed = Vec::new();
        for (pid, id) in &found {
            tracing::warn!(pid, sandbox = %id, "a plugin outlived its daemon and is ended");
            match kill(*pid, ids) {
                Ok(pidfd) => killed.extend(pidfd.map(|pidfd| (pidfd, *pid, id))),
                Err(error) => tracing::error!(pid, sandbox = %id, %error, "a plugin cannot be ended"),
            }
        }
        for (pidfd, pid, id) in killed {
            let left = end.saturating_duration_since(Instant::now());
            if !russet_linux::process::has_ended(&pidfd, left).unwrap_or(false) {
                tracing::error!(pid, sandbox = %id, "a plugin that was killed does not end");
            }
        }
        if found.is_empty() || Instant::now() >= end {
            return;
        }
    }
}

fn look(ids: &BTreeSet<SandboxId>) -> Vec<(i32, SandboxId)> {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let pids = names.filter_map(|name| name.to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| Some((pid, works_for(pid, ids)?))).collect()
}

/// The sandbox that a process works for, if it is one of `ids`. A dead process has no environment.
fn works_for(pid: i32, ids: &BTreeSet<SandboxId>) -> Option<SandboxId> {
    let mut environ = Vec::new();
    fs::File::open(format!("/proc/{pid}/environ"))
        .ok()?
        .take(ENVIRON_MAX_BYTES)
        .read_to_end(&mut environ)
        .ok()?;
    let value = |key: &str| {
        let found = environ.split(|byte| *byte == 0).find_map(|pair| pair.strip_prefix(key.as_bytes()));
        found.and_then(|value| std::str::from_utf8(value).ok())
    };
    value("CNI_COMMAND=")?;
    let id = value("CNI_CONTAINERID=")?.parse().ok()?;
    ids.contains(&id).then_some(id)
}

/// None if it has ended.
fn kill(pid: i32, ids: &BTreeSet<SandboxId>) -> io::Result<Option<OwnedFd>> {
    let Some(raw) = Pid::from_raw(pid) else { return Ok(None) };
    let pidfd = match pidfd_open(raw, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(None),
        opened => opened?,
    };
    // The pid may have been reused in the meantime; from now on it cannot be.
    if works_for(pid, ids).is_none() {
        return Ok(None);
    }
    match pidfd_send_signal(&pidfd, Signal::KILL) {
        Err(rustix::io::Errno::SRCH) => return Ok(None),
        sent => sent?,
    }
    Ok(Some(pidfd))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, Stdio};

    use super::*;

    fn plugin(id: &SandboxId) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "read never"]).stdin(Stdio::piped());
        command.env("CNI_COMMAND", "ADD").env("CNI_CONTAINERID", id.as_str());
        command
    }

    #[test]
    fn a_plugin_of_the_sandbox_is_ended_and_anothers_is_not() {
        let (mine, other) = (SandboxId::random().unwrap(), SandboxId::random().unwrap());
        let (mut ours, mut theirs) = (plugin(&mine).spawn().unwrap(), plugin(&other).spawn().unwrap());
        end(&[mine].into());
        assert_eq!(ours.wait().unwrap().signal(), Some(9));
        assert!(theirs.try_wait().unwrap().is_none());
        drop(theirs.stdin.take());
        theirs.wait().unwrap();
    }
}
