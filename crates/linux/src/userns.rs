//! Root privileges in a new user namespace, for programs that build networks without being root on
//! the host.

use std::io;

use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

/// Makes the process root of a new user namespace, with new network and mount namespaces and an
/// empty `/run`.
///
/// Only a single-threaded process may call it; the kernel answers others with `EINVAL`. If user
/// namespaces are not allowed, it answers `EPERM` or `ENOSPC`.
pub fn become_root() -> io::Result<()> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    // SAFETY: unshare takes no pointers; the process has a single thread, so that no other thread
    // is affected.
    if unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWNET) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Without this, the kernel refuses gid_map from unprivileged users (user_namespaces(7)).
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("0 {uid} 1\n"))?;
    std::fs::write("/proc/self/gid_map", format!("0 {gid} 1\n"))?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    mount("tmpfs", "/run", "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=0755"))?;
    Ok(())
}
