//! Named namespaces in the layout of `ip netns`: a bind mount at `/run/netns/NAME`.
//!
//! The demo, `sandbox` and the test kit create them; `ip netns list`, `exec` and `del` work on
//! them.

use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags};

use super::{NetNs, NetNsError, OWN, on_new_thread, unshare_net};

/// The directory of `ip netns`.
const DIR: &str = "/run/netns";
/// The limit for file names on common file systems.
const NAME_MAX_BYTES: usize = 255;

// === impl NetNs ===

impl NetNs {
    /// Creates `/run/netns/NAME` like `ip netns add`; its loopback is down.
    pub fn create_named(name: &str) -> Result<Self, NetNsError> {
        Self::create_named_in(Path::new(DIR), name)
    }

    /// Removes `/run/netns/NAME` like `ip netns del`: the namespace itself remains while a process
    /// or handle refers to it. Returns false if there was none, so that a second removal is no
    /// error.
    pub fn delete_named(name: &str) -> Result<bool, NetNsError> {
        Self::delete_named_in(Path::new(DIR), name)
    }

    /// Opens `/run/netns/NAME`.
    pub fn open_named(name: &str) -> Result<Self, NetNsError> {
        Self::open(checked(Path::new(DIR), name)?)
    }

    /// [`create_named`](Self::create_named) below another directory (`--root`, or in a user
    /// namespace that cannot write `/run`).
    pub fn create_named_in(dir: &Path, name: &str) -> Result<Self, NetNsError> {
        named_in(dir, name, |path| {
            on_new_thread(|| {
                unshare_net()?;
                Self::mount_own(path)
            })
        })
    }

    /// Gives the namespace of the calling thread a name below `dir`.
    pub fn name_current_in(dir: &Path, name: &str) -> Result<Self, NetNsError> {
        named_in(dir, name, Self::mount_own)
    }

    fn mount_own(path: &Path) -> Result<Self, NetNsError> {
        rustix::mount::mount_bind(OWN, path)
            .map_err(|errno| NetNsError::io("mount network namespace", path, errno))?;
        Self::open(path)
    }

    /// [`delete_named`](Self::delete_named) below another directory.
    pub fn delete_named_in(dir: &Path, name: &str) -> Result<bool, NetNsError> {
        let path = checked(dir, name)?;
        match rustix::mount::unmount(&path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            // INVAL: the file is no mount point; a creation that was killed left it.
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(errno) => return Err(NetNsError::io("unmount network namespace", &path, errno)),
        }
        match rustix::fs::unlink(&path) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(NetNsError::io("delete network namespace", &path, errno)),
        }
    }
}

/// Creates the file of a new name and has `mount` mount a namespace on it.
fn named_in(
    dir: &Path,
    name: &str,
    mount: impl FnOnce(&Path) -> Result<NetNs, NetNsError>,
) -> Result<NetNs, NetNsError> {
    let path = checked(dir, name)?;
    prepare(dir)?;
    let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match rustix::fs::open(&path, flags, Mode::empty()) {
        Ok(_) => {}
        Err(Errno::EXIST) => return Err(NetNsError::Exists { path }),
        Err(errno) => return Err(NetNsError::io("create network namespace", &path, errno)),
    }
    let made = mount(&path);
    if made.is_err() {
        // The namespace is still empty, and only the first error matters.
        let _ = NetNs::delete_named_in(dir, name);
    }
    made
}

fn checked(dir: &Path, name: &str) -> Result<PathBuf, NetNsError> {
    let rule = match name {
        "" => "it is empty",
        "." | ".." => "it must not be . or ..",
        _ if name.len() > NAME_MAX_BYTES => "it is longer than 255 bytes",
        _ if name.chars().any(|c| c == '/' || c.is_control()) => "it must not hold '/' or control characters",
        _ => return Ok(dir.join(name)),
    };
    Err(NetNsError::Name { name: name.chars().take(80).collect(), rule })
}

/// Makes `dir` a shared mount, so that names are created and deleted in all mount namespaces;
/// otherwise a container's copy of the mount would keep a namespace alive. The lock is the one that
/// `ip netns` takes.
fn prepare(dir: &Path) -> Result<(), NetNsError> {
    let io = |operation| move |errno| NetNsError::io(operation, dir, errno);
    std::fs::create_dir_all(dir).map_err(|source| NetNsError::Io {
        operation: "create directory",
        path: dir.to_owned(),
        source,
    })?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let lock = rustix::fs::open(dir, flags, Mode::empty()).map_err(io("open"))?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(io("lock"))?;
    let share =
        || rustix::mount::mount_change(dir, MountPropagationFlags::SHARED | MountPropagationFlags::REC);
    match share() {
        Err(Errno::INVAL) => {}
        other => return other.map_err(io("share mount")),
    }
    // Not a mount point yet. Recursive, because in a user namespace the mounts below are locked,
    // and a bind mount without them is refused.
    rustix::mount::mount_bind_recursive(dir, dir).map_err(io("bind mount"))?;
    share().map_err(io("share mount"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_the_directory() {
        for bad in ["", ".", "..", "a/b", "../x", "a\nb", "a\0b", &"x".repeat(256)] {
            assert!(matches!(NetNs::create_named(bad), Err(NetNsError::Name { .. })), "{bad:?}");
            assert!(matches!(NetNs::delete_named(bad), Err(NetNsError::Name { .. })), "{bad:?}");
        }
    }

    /// Runs `body` in a new mount namespace, so that no mount is left on the host.
    fn in_new_mount_namespace(body: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            let run = move || {
                // SAFETY: NEWNS changes the thread's mount namespace, neither memory nor file
                // descriptors.
                unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }.unwrap();
                let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
                rustix::mount::mount_change("/", private).unwrap();
                body();
            };
            scope.spawn(run).join().unwrap();
        });
    }

    #[test]
    #[ignore = "root: mounts below a temporary directory"]
    fn a_named_namespace_can_be_opened_until_deleted_and_deleted_twice() {
        in_new_mount_namespace(|| {
            let dir = tempfile::tempdir().unwrap();
            let made = NetNs::create_named_in(dir.path(), "blue").unwrap();
            assert!(made.same_as(&NetNs::open(dir.path().join("blue")).unwrap()));
            assert!(!made.same_as(&NetNs::current().unwrap()));
            let again = NetNs::create_named_in(dir.path(), "blue").unwrap_err();
            assert!(matches!(again, NetNsError::Exists { .. }), "{again}");
            assert!(NetNs::delete_named_in(dir.path(), "blue").unwrap());
            assert!(!NetNs::delete_named_in(dir.path(), "blue").unwrap());
            rustix::mount::unmount(dir.path(), UnmountFlags::DETACH).unwrap();
        });
    }

    #[test]
    #[ignore = "tool: ip netns, root"]
    fn ip_netns_lists_enters_and_deletes_what_we_create() {
        in_new_mount_namespace(|| {
            let ip = |args: &[&str]| std::process::Command::new("ip").args(args).output().unwrap();
            rustix::mount::mount(
                "none",
                "/run",
                "tmpfs",
                rustix::mount::MountFlags::empty(),
                None::<&std::ffi::CStr>,
            )
            .unwrap();
            let made = NetNs::create_named("russet-test").unwrap();
            assert!(String::from_utf8_lossy(&ip(&["netns", "list"]).stdout).contains("russet-test"));
            let exec = ip(&["netns", "exec", "russet-test", "stat", "-Lc", "%i", "/proc/self/ns/net"]).stdout;
            assert_eq!(String::from_utf8_lossy(&exec).trim(), made.id().inode.to_string());
            assert!(ip(&["netns", "del", "russet-test"]).status.success());
            assert!(matches!(NetNs::open_named("russet-test"), Err(NetNsError::Missing { .. })));
            assert!(ip(&["netns", "add", "theirs"]).status.success());
            assert!(NetNs::open_named("theirs").is_ok());
            assert!(NetNs::delete_named("theirs").unwrap());
        });
    }

    #[test]
    #[ignore = "tool: unshare, root: re-executes itself in a user namespace"]
    fn named_namespaces_work_inside_a_user_namespace() {
        if std::env::var_os("RUSSET_TEST_IN_USERNS").is_some() {
            let dir = tempfile::tempdir().unwrap();
            NetNs::create_named_in(dir.path(), "inner").unwrap();
            assert!(NetNs::delete_named_in(dir.path(), "inner").unwrap());
            rustix::mount::unmount(dir.path(), UnmountFlags::DETACH).unwrap();
            return;
        }
        let me = std::env::current_exe().unwrap();
        let name = "netns::named::tests::named_namespaces_work_inside_a_user_namespace";
        let output = std::process::Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "--net"])
            .arg(me)
            .args(["--exact", name, "--include-ignored"])
            .env("RUSSET_TEST_IN_USERNS", "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
    }
}
