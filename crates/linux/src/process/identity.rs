//! Which process it is: its number together with when it was started, since the kernel gives numbers again.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal};

use super::has_ended;

/// A process of this boot. Two are the same exactly when they are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Its number in the caller's PID namespace.
    pub pid: u32,
    /// When it was started, in clock ticks since the boot (field 22 of proc_pid_stat(5)).
    pub started_ticks: u64,
}

/// Fields of `/proc/PID/stat` behind the name, counted from the state.
const STARTED_FIELD: usize = 19;

// === impl Identity ===

impl Identity {
    /// The process of this number, none when there is none or it has ended and only its parent has not noticed.
    pub fn of(pid: u32) -> io::Result<Option<Self>> {
        let text = match std::fs::read(format!("/proc/{pid}/stat")) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // It ended between opening and reading.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
            Err(error) => return Err(error),
        };
        let living = parse(&text).filter(|(state, _)| !matches!(state, b'Z' | b'X'));
        Ok(living.map(|(_, started_ticks)| Self { pid, started_ticks }))
    }

    /// Whether it lives.
    pub fn is_alive(self) -> io::Result<bool> {
        Ok(Self::of(self.pid)? == Some(self))
    }

    /// Ends it, and waits until it has: SIGTERM first, SIGKILL when `patience` is over. Nothing is done to another process that has its number by now.
    /// It is reaped if it is a child of ours.
    pub fn end(self, patience: Duration) -> io::Result<()> {
        let Some(pidfd) = self.hold()? else {
            self.reap();
            return Ok(());
        };
        for signal in [Signal::TERM, Signal::KILL] {
            match pidfd_send_signal(&pidfd, signal) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(errno) => return Err(errno.into()),
            }
            if has_ended(&pidfd, patience)? {
                self.reap();
                return Ok(());
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "it does not end on SIGKILL"))
    }

    /// A handle of it, which stands for no other process whatever becomes of the number.
    pub fn hold(self) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = Pid::from_raw(self.pid.cast_signed()) else { return Ok(None) };
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(Errno::SRCH) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        // Looked at after it is held: from here the number cannot pass to another without our seeing its end.
        Ok(self.is_alive()?.then_some(pidfd))
    }

    /// A child that has ended is a zombie until its parent asks. Who has the number now, and is perhaps another child of ours, is left alone; a process
    /// that is not our child cannot be reaped, which is why the answer does not matter.
    fn reap(self) {
        let stat = std::fs::read(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        if parse(&stat) == Some((b'Z', self.started_ticks)) {
            let _ = rustix::process::waitpid(Pid::from_raw(self.pid.cast_signed()), WaitOptions::NOHANG);
        }
    }
}

/// The state and the start time. The name before them may hold anything, blanks and parentheses included.
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
    fn a_process_is_known_until_it_ends_and_is_not_ended_under_anothers_name() {
        let mut child = Command::new("sh").args(["-c", "read never"]).stdin(Stdio::piped()).spawn().unwrap();
        let identity = Identity::of(child.id()).unwrap().unwrap();
        assert!(identity.is_alive().unwrap());
        let earlier = Identity { started_ticks: identity.started_ticks - 1, ..identity };
        assert!(!earlier.is_alive().unwrap());
        earlier.end(Duration::from_secs(20)).unwrap();
        assert!(identity.is_alive().unwrap(), "another process of the number is left alone");
        identity.end(Duration::from_secs(20)).unwrap();
        assert!(!identity.is_alive().unwrap());
        identity.end(Duration::from_secs(20)).unwrap();
        assert!(child.wait().is_err(), "it is reaped");
    }

    #[test]
    fn a_zombie_does_not_live() {
        let mut child = Command::new("true").spawn().unwrap();
        super::super::tests::eventually(|| Identity::of(child.id()).unwrap().is_none());
        child.wait().unwrap();
    }

    #[test]
    fn one_that_ignores_sigterm_is_killed() {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' TERM; echo ready; read never; read never"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = [0; 6];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        Identity::of(child.id()).unwrap().unwrap().end(Duration::from_millis(50)).unwrap();
        assert!(child.wait().is_err(), "it is reaped");
    }
}
