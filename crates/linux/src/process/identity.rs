//! The identity of a process: its PID together with its start time, because the kernel reuses PIDs.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal};

use super::has_ended;

/// A process of this boot. Two values are equal exactly if they are the same process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// The PID in the caller's PID namespace.
    pub pid: u32,
    /// The start time in clock ticks since the boot (field 22 of proc_pid_stat(5)).
    pub started_ticks: u64,
}

/// The index of the start time in `/proc/PID/stat`, counted from the state after the name.
const STARTED_FIELD: usize = 19;

// === impl ProcessIdentity ===

impl ProcessIdentity {
    /// The process with this PID; `None` if there is none or it is a zombie.
    pub fn of(pid: u32) -> io::Result<Option<Self>> {
        let text = match std::fs::read(format!("/proc/{pid}/stat")) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // The process ended between opening and reading.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
            Err(error) => return Err(error),
        };
        let living = parse(&text).filter(|(state, _)| !matches!(state, b'Z' | b'X'));
        Ok(living.map(|(_, started_ticks)| Self { pid, started_ticks }))
    }

    /// Whether the process is alive.
    pub fn is_alive(self) -> io::Result<bool> {
        Ok(Self::of(self.pid)? == Some(self))
    }

    /// Ends the process and waits for its end: SIGTERM first, SIGKILL after `timeout`. Another
    /// process that has its PID by now is not touched. A child of ours is reaped.
    pub fn end(self, timeout: Duration) -> io::Result<()> {
        let Some(pidfd) = self.hold()? else {
            self.reap();
            return Ok(());
        };
        for signal in [Signal::TERM, Signal::KILL] {
            match pidfd_send_signal(&pidfd, signal) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(errno) => return Err(errno.into()),
            }
            if has_ended(&pidfd, timeout)? {
                self.reap();
                return Ok(());
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "it does not end on SIGKILL"))
    }

    /// A handle that refers to this process even if its PID is reused.
    pub fn hold(self) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = Pid::from_raw(self.pid.cast_signed()) else { return Ok(None) };
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(Errno::SRCH) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        // Checked while the pidfd is held: from here on the PID cannot be reused without the pidfd
        // reporting the end.
        Ok(self.is_alive()?.then_some(pidfd))
    }

    /// Reaps a child that has ended. Another process that has the PID by now, perhaps another child
    /// of ours, is left alone. A process that is not our child cannot be reaped, so the result does
    /// not matter.
    fn reap(self) {
        let stat = std::fs::read(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        if parse(&stat) == Some((b'Z', self.started_ticks)) {
            let _ = rustix::process::waitpid(Pid::from_raw(self.pid.cast_signed()), WaitOptions::NOHANG);
        }
    }
}

/// State and start time. The name before them may contain anything, including blanks and
/// parentheses.
fn parse(stat: &[u8]) -> Option<(u8, u64)> {
    let behind = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let text = std::str::from_utf8(stat.get(behind..)?).ok()?;
    let mut fields = text.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let started = fields.nth(STARTED_FIELD - 1)?.parse().ok()?;
    Some((state, started))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let stat = b"77 (a) S 1 (b) R 1 77 77 0 -1 4194560 81 0 0 0 0 0 0 0 20 0 1 0 123456 2428928 192\n";
        assert_eq!(parse(stat), Some((b'R', 123_456)));
        assert_eq!(parse(b"77 (short) R 1 2"), None);
    }

    #[test]
    fn an_identity_is_valid_until_the_end_and_never_ends_another_process() {
        let mut child = Command::new("sh").args(["-c", "read never"]).stdin(Stdio::piped()).spawn().unwrap();
        let identity = ProcessIdentity::of(child.id()).unwrap().unwrap();
        assert!(identity.is_alive().unwrap());
        let earlier = ProcessIdentity { started_ticks: identity.started_ticks - 1, ..identity };
        assert!(!earlier.is_alive().unwrap());
        earlier.end(Duration::from_secs(20)).unwrap();
        assert!(identity.is_alive().unwrap(), "another process of the number is left alone");
        identity.end(Duration::from_secs(20)).unwrap();
        assert!(!identity.is_alive().unwrap());
        identity.end(Duration::from_secs(20)).unwrap();
        assert!(child.wait().is_err(), "it is reaped");
    }

    #[test]
    fn a_zombie_is_not_alive() {
        let mut child = Command::new("true").spawn().unwrap();
        super::super::tests::eventually(|| ProcessIdentity::of(child.id()).unwrap().is_none());
        child.wait().unwrap();
    }

    #[test]
    fn a_process_that_ignores_sigterm_is_killed() {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' TERM; echo ready; read never; read never"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        ProcessIdentity::of(child.id()).unwrap().unwrap().end(Duration::from_millis(50)).unwrap();
        assert!(child.wait().is_err(), "it is reaped");
    }
}
