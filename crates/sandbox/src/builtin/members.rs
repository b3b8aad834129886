//! Programs that were started inside a sandbox: processes in the sandbox's own namespaces. They end
//! with it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use russet_linux::NetNs;
use russet_linux::process::{ProcessIdentity, has_ended};
use rustix::process::{Signal, pidfd_send_signal};

use super::ipc;

/// Identifies the members of a sandbox.
#[derive(Default)]
pub(super) struct Members {
    own: Vec<Own>,
}

/// A namespace that only members have. While it is held open, the kernel does not reuse its number.
struct Own {
    kind: &'static str,
    inode: u64,
    _held: OwnedFd,
}

/// A program inside, and the handle by which it is ended.
pub(crate) struct Member {
    pub(crate) pid: u32,
    pub(crate) pidfd: OwnedFd,
}

const ENTERED: &str = "entered";
/// How long all programs together may take to end after SIGTERM, and after SIGKILL.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// A program may start others during the search. If it never stops doing so, that is an error.
const ROUNDS_MAX: usize = 10;

/// Records that a program is about to enter.
pub(super) fn note(dir: &Path) -> io::Result<()> {
    std::fs::write(dir.join(ENTERED), b"")
}

// === impl Members ===

impl Members {
    /// The sandbox's own namespaces that are still held: by its mounts, and by `holder`, whose
    /// namespaces of the kinds `own` were made for it. Call it while that process lives, if it
    /// does.
    pub(super) fn find(
        dir: &Path,
        netns: &Path,
        holder: Option<ProcessIdentity>,
        own: &[&'static str],
    ) -> Self {
        let mut members = Self::default();
        if let Ok(namespace) =
            NetNs::open(netns).map_err(io::Error::other).and_then(|it| it.as_fd().try_clone_to_owned())
        {
            members.push("net", namespace);
        }
        if let Some(namespace) = ipc::open(dir) {
            members.push(ipc::KIND, namespace.into());
        }
        let Some(holder) = holder else { return members };
        let mut of_holder = Self::default();
        for kind in own {
            if let Ok(namespace) = File::open(format!("/proc/{}/ns/{kind}", holder.pid)) {
                of_holder.push(kind, namespace.into());
            }
        }
        // They are its own only if the pid was not reused meanwhile.
        if holder.is_alive().unwrap_or(false) {
            members.own.append(&mut of_holder.own);
        }
        members
    }

    fn push(&mut self, kind: &'static str, held: OwnedFd) {
        if let Ok(stat) = rustix::fs::fstat(&held) {
            self.own.push(Own { kind, inode: stat.st_ino, _held: held });
        }
    }

    /// Ends all of them: SIGTERM to each, and SIGKILL to those that have not ended in time. Call it
    /// when no process can enter any more; those that entered have recorded it before.
    pub(super) fn end(&self, dir: &Path) -> io::Result<()> {
        if self.own.is_empty() || !dir.join(ENTERED).exists() {
            return Ok(());
        }
        for _ in 0..ROUNDS_MAX {
            let members = self.now()?;
            if members.is_empty() {
                return Ok(());
            }
            end_all(members)?;
        }
        Err(io::Error::other("they start others faster than they are ended"))
    }

    fn now(&self) -> io::Result<Vec<Member>> {
        let mut members = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            if !self.has(pid) {
                continue;
            }
            let Some(pidfd) = ProcessIdentity::of(pid)?.map(ProcessIdentity::hold).transpose()?.flatten()
            else {
                continue;
            };
            // The pid may have been reused since; from now on it cannot be.
            if self.has(pid) {
                members.push(Member { pid, pidfd });
            }
        }
        Ok(members)
    }

    fn has(&self, pid: u32) -> bool {
        self.own.iter().any(|own| {
            let its = std::fs::metadata(format!("/proc/{pid}/ns/{}", own.kind));
            its.is_ok_and(|its| its.ino() == own.inode)
        })
    }
}

/// SIGTERM to each, and SIGKILL to those that have not ended in time. Tries all, even if some fail.
pub(crate) fn end_all(mut members: Vec<Member>) -> io::Result<()> {
    let mut failed = None;
    for signal in [Signal::TERM, Signal::KILL] {
        for member in &members {
            match pidfd_send_signal(&member.pidfd, signal) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(errno) => failed = Some(with_pid(member, errno.into())),
            }
        }
        let end = Instant::now() + END_TIMEOUT;
        members.retain(|member| {
            let left = end.saturating_duration_since(Instant::now());
            !has_ended(&member.pidfd, left).unwrap_or(false)
        });
        if members.is_empty() {
            return Ok(());
        }
    }
    let late = || io::Error::new(io::ErrorKind::TimedOut, "it does not end on SIGKILL");
    failed = failed.or_else(|| members.first().map(|member| with_pid(member, late())));
    failed.map_or(Ok(()), Err)
}

fn with_pid(member: &Member, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("process {}: {error}", member.pid))
}
