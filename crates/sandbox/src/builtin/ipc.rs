//! The IPC namespace of a sandbox in the node's network: mounted, as the network namespaces of
//! others are, so that programs inside are found after the holding process has ended.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

/// Its name in `/proc/PID/ns`.
pub(super) const KIND: &str = "ipc";
/// linux/magic.h
const NSFS_MAGIC: rustix::fs::FsWord = 0x6e73_6673;

fn path(dir: &Path) -> PathBuf {
    dir.join("ipc")
}

/// Mounts the namespace of a process, or of the calling thread (`thread-self`).
pub(crate) fn mount(dir: &Path, process: &str) -> io::Result<()> {
    let at = path(dir);
    File::create(&at)?;
    Ok(rustix::mount::mount_bind(format!("/proc/{process}/ns/ipc"), &at)?)
}

/// The namespace, if it is mounted.
pub(super) fn open(dir: &Path) -> Option<File> {
    let file = File::open(path(dir)).ok()?;
    let is_namespace = rustix::fs::fstatfs(&file).is_ok_and(|it| it.f_type == NSFS_MAGIC);
    is_namespace.then_some(file)
}

/// Idempotent.
pub(super) fn unmount(dir: &Path) -> io::Result<()> {
    match rustix::mount::unmount(path(dir), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        // INVAL: a file without a mount.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT | Errno::NOTDIR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
