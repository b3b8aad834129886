//! Several kinds of namespaces at once, for `sandbox`. [`crate::netns`] handles network namespaces
//! alone.

use std::io;
use std::os::fd::AsFd;

use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::thread::{ThreadNameSpaceType, UnshareFlags, move_into_thread_name_spaces};

/// Kinds of namespaces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NamespaceKinds {
    /// Interfaces, addresses, routes, `net.*` sysctls.
    pub network: bool,
    /// System V and POSIX message queues, semaphores and shared memory.
    pub ipc: bool,
    /// The host name.
    pub uts: bool,
}

/// Runs `body` on a new thread in new, empty namespaces of these kinds; child processes inherit
/// them.
pub fn in_new<T: Send>(kinds: NamespaceKinds, body: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let inside = || {
            unshare(kinds.unshare_flags())?;
            body()
        };
        let thread = std::thread::Builder::new().name("namespaces".to_owned()).spawn_scoped(scope, inside)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Moves the calling thread permanently into the namespaces of these kinds of the process behind
/// `pidfd` (Linux 5.8).
pub fn join(pidfd: impl AsFd, kinds: NamespaceKinds) -> io::Result<()> {
    Ok(move_into_thread_name_spaces(pidfd.as_fd(), kinds.join_flags())?)
}

/// Gives the calling thread a mount namespace of its own: its mounts are invisible to others, and
/// later mounts of others are visible to it.
pub fn own_mounts() -> io::Result<()> {
    unshare(UnshareFlags::NEWNS)?;
    Ok(mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?)
}

fn unshare(flags: UnshareFlags) -> io::Result<()> {
    if flags.is_empty() {
        return Ok(());
    }
    // SAFETY: these flags change the thread's namespaces, and with NEWNS its working directory
    // becomes its own; neither memory nor file descriptors.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}

// === impl NamespaceKinds ===

impl NamespaceKinds {
    fn unshare_flags(self) -> UnshareFlags {
        let mut flags = UnshareFlags::empty();
        flags.set(UnshareFlags::NEWNET, self.network);
        flags.set(UnshareFlags::NEWIPC, self.ipc);
        flags.set(UnshareFlags::NEWUTS, self.uts);
        flags
    }

    fn join_flags(self) -> ThreadNameSpaceType {
        let mut flags = ThreadNameSpaceType::empty();
        flags.set(ThreadNameSpaceType::NETWORK, self.network);
        flags.set(ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION, self.ipc);
        flags.set(ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME, self.uts);
        flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(kind: &str) -> std::path::PathBuf {
        std::fs::read_link(format!("/proc/thread-self/ns/{kind}")).unwrap()
    }

    #[test]
    #[ignore = "kernel: unshare needs root"]
    fn a_thread_gets_new_namespaces_of_the_requested_kinds_only() {
        let home = ["net", "ipc", "uts"].map(link);
        let kinds = NamespaceKinds { network: true, ipc: false, uts: true };
        let inside = in_new(kinds, || Ok(["net", "ipc", "uts"].map(link))).unwrap();
        assert_ne!(home[0], inside[0]);
        assert_eq!(home[1], inside[1]);
        assert_ne!(home[2], inside[2]);
        assert_eq!(home, ["net", "ipc", "uts"].map(link));
    }

    #[test]
    #[ignore = "kernel: unshare and setns need root"]
    fn a_thread_joins_a_process() {
        let kinds = NamespaceKinds { network: true, ipc: true, uts: true };
        let (paused, there) = in_new(kinds, || {
            rustix::system::sethostname(b"there")?;
            Ok((crate::pause::start(c"joined")?, ["net", "ipc", "uts"].map(link)))
        })
        .unwrap();
        let pid = rustix::process::Pid::from_raw(paused.pid().cast_signed()).unwrap();
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        std::thread::spawn(move || {
            own_mounts().unwrap();
            join(&pidfd, kinds).unwrap();
            assert_eq!(["net", "ipc", "uts"].map(link), there);
            assert_eq!(rustix::system::uname().nodename(), c"there");
        })
        .join()
        .unwrap();
    }
}
