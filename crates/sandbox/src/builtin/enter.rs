//! Runs a host program inside a sandbox: in its network, IPC and UTS namespaces, with the pod's own
//! `/etc/resolv.conf`, `/etc/hosts`, `/etc/hostname` and `/dev/shm` mounted over the host's.
//! `russet sandbox exec` calls it, and executes the program afterwards.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use russet_linux::namespaces::{self, NamespaceKinds};
use rustix::fs::{CWD, statfs};
use rustix::mount::{
    MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_bind, move_mount, open_tree,
    unmount,
};

use super::process::Record;
use super::{Builtin, members, shm};
use crate::{Config, SandboxId};

/// A sandbox could not be entered.
#[derive(Debug, thiserror::Error)]
pub enum EnterError {
    /// No process holds it.
    #[error("sandbox {id} is not running")]
    NotRunning { id: SandboxId },
    /// A step failed.
    #[error("{operation} {}: {source}", subject.display())]
    Io {
        /// The step, as in `mount over`.
        operation: &'static str,
        subject: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// The pod's own files, by their names in the sandbox's directory, and their paths for programs.
const FILES: [(&str, &str); 3] =
    [("resolv.conf", "/etc/resolv.conf"), ("hosts", "/etc/hosts"), ("hostname", "/etc/hostname")];

/// Directories below `/sys` that programs need and that are not sysfs.
const BELOW_SYS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/bpf"];
/// linux/magic.h
const SYSFS_MAGIC: rustix::fs::FsWord = 0x6265_6572;

// === impl Builtin ===

impl Builtin {
    /// Moves the calling thread into the sandbox for good; the caller should execute a program
    /// next. `files` is the sandbox's directory.
    ///
    /// A file that exists in the pod and not on the host is left out: there is nothing to mount it
    /// over.
    pub fn enter(&self, id: &SandboxId, config: &Config, files: &Path) -> Result<(), EnterError> {
        let dir = self.dir(id);
        let not_running = || EnterError::NotRunning { id: id.clone() };
        let io = |operation, subject: &Path| {
            let subject = subject.to_owned();
            move |source| EnterError::Io { operation, subject, source }
        };
        let record = Record::read(&dir).map_err(io("read the record in", &dir))?.ok_or_else(not_running)?;
        let living = record.living().map_err(io("look for the process of", &dir))?.ok_or_else(not_running)?;
        // Before entering: a later stop looks for this process, and the next step fails if the
        // sandbox was stopped already.
        members::note(&dir).map_err(io("note in", &dir))?;
        let process = living.hold().map_err(io("hold the process of", &dir))?.ok_or_else(not_running)?;
        namespaces::own_mounts().map_err(io("unshare mounts for", &dir))?;
        for (name, over) in FILES {
            mount_over(&files.join(name), Path::new(over))?;
        }
        if !config.host_ipc {
            mount_over(&shm::path(&dir), Path::new("/dev/shm"))?;
        }
        let kinds = NamespaceKinds {
            network: !config.host_network,
            ipc: !config.host_ipc,
            uts: !config.host_network,
        };
        if kinds != NamespaceKinds::default() {
            namespaces::join(&process, kinds).map_err(io("join the namespaces of", &dir))?;
        }
        if kinds.network {
            show_network()?;
        }
        Ok(())
    }
}

fn mount_over(what: &Path, over: &Path) -> Result<(), EnterError> {
    match mount_bind(what, over) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(errno) => Err(failed("mount over", over, errno)),
    }
}

/// `/sys/class/net` shows the network of the process that mounted `/sys`, so it is mounted again,
/// as `ip netns exec` does. Unlike there, mounts of the host below it stay.
fn show_network() -> Result<(), EnterError> {
    let sys = Path::new("/sys");
    let kept = below_sys()?;
    // If it is busy or no mount at all, the new mount hides it just as well.
    let _ = unmount(sys, UnmountFlags::DETACH);
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("sysfs", sys, "sysfs", flags, None::<&std::ffi::CStr>)
        .map_err(|errno| failed("mount", sys, errno))?;
    for (tree, at) in kept {
        let moved = move_mount(&tree, "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH);
        moved.map_err(|errno| failed("mount", Path::new(at), errno))?;
    }
    Ok(())
}

/// The mounts below `/sys`, with everything below them, and their paths.
fn below_sys() -> Result<Vec<(OwnedFd, &'static str)>, EnterError> {
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let mut kept = Vec::new();
    for at in BELOW_SYS {
        // A directory of sysfs itself has no mount of the host.
        let is_mounted = statfs(at).is_ok_and(|there| there.f_type != SYSFS_MAGIC);
        if is_mounted {
            let tree = open_tree(CWD, at, flags).map_err(|errno| failed("keep", Path::new(at), errno))?;
            kept.push((tree, at));
        }
    }
    Ok(kept)
}

fn failed(operation: &'static str, subject: &Path, errno: rustix::io::Errno) -> EnterError {
    EnterError::Io { operation, subject: subject.to_owned(), source: errno.into() }
}
