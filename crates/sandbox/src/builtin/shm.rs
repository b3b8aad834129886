//! The sandbox's own `/dev/shm`.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

/// 64 MiB and writable for all, as Docker and every runtime of Kubernetes make it.
const OPTIONS: &std::ffi::CStr = c"mode=1777,size=65536k";

pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join("shm")
}

pub(crate) fn mount(dir: &Path) -> io::Result<()> {
    let at = path(dir);
    std::fs::create_dir(&at)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(rustix::mount::mount("shm", &at, "tmpfs", flags, Some(OPTIONS))?)
}

/// Idempotent; detached, so that a program with an open file on it does not prevent it.
pub(crate) fn unmount(dir: &Path) -> io::Result<()> {
    match rustix::mount::unmount(path(dir), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        // INVAL: a directory without a mount.
        Ok(()) | Err(Errno::INVAL | Errno::NOENT | Errno::NOTDIR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
