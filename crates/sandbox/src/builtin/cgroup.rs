//! The control group of a sandbox's process: a leaf below the pod's group, which kubelet makes and
//! limits. So the sandbox's usage counts for the pod, and no process of the pod is in the server's
//! own group.
//!
//! Only if `/sys/fs/cgroup` is version 2. On a node of version 1, which has one hierarchy for each
//! controller, the process stays in the server's group.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{Duration, Instant};

use crate::{EngineError, SandboxId};

/// The usual mount point.
const ROOT: &str = "/sys/fs/cgroup";
/// `CGROUP2_SUPER_MAGIC` of linux/magic.h.
const CGROUP2_MAGIC: rustix::fs::FsWord = 0x6367_7270;
/// The file with the group's path, in the sandbox's directory.
const FILE: &str = "cgroup";
const SLICE: &str = ".slice";
/// A process that has ended is in its group for a moment longer.
const EMPTY_TIMEOUT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(1);

/// Moves process `pid` into a group of its own below `parent`: a path below the root, or the name
/// of a systemd slice. Does nothing if it is empty.
pub(super) fn join(dir: &Path, id: &SandboxId, parent: &str, pid: u32) -> Result<(), EngineError> {
    static WARNED: Once = Once::new();
    let root = Path::new(ROOT);
    if parent.is_empty() {
        return Ok(());
    }
    if !is_version_2(root) {
        WARNED.call_once(|| {
            tracing::warn!("{ROOT} is not of version 2: cgroup_parent of sandboxes has no effect")
        });
        return Ok(());
    }
    join_below(root, dir, id, parent, pid)
}

fn join_below(root: &Path, dir: &Path, id: &SandboxId, parent: &str, pid: u32) -> Result<(), EngineError> {
    let refused = |why: String| EngineError::new("find the control group", parent.to_owned(), why);
    let parent = match slice(parent).map_err(refused)? {
        Some(slice) => {
            let parent = root.join(slice);
            if !parent.is_dir() {
                let why = "there is no such slice; systemd makes slices, on behalf of who names one here";
                return Err(EngineError::new("find the control group", parent.display().to_string(), why));
            }
            parent
        }
        None => root.join(parent.trim_start_matches('/')),
    };
    let leaf = parent.join(format!("russet-{id}"));
    // Before there is anything to remove.
    let note = dir.join(FILE);
    fs::write(&note, leaf.as_os_str().as_encoded_bytes()).map_err(|error| failed("write", &note, error))?;
    fs::create_dir_all(&leaf).map_err(|error| failed("make the control group", &leaf, error))?;
    let moved = fs::write(leaf.join("cgroup.procs"), pid.to_string());
    moved.map_err(|error| failed("move the sandbox's process into", &leaf, error))
}

/// Removes the group that was made, once no process is in it. The groups above belong to the
/// caller.
pub(super) fn leave(dir: &Path) -> Result<(), EngineError> {
    let note = dir.join(FILE);
    let leaf = match fs::read_to_string(&note) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        leaf => PathBuf::from(leaf.map_err(|error| failed("read", &note, error))?),
    };
    remove(&leaf).map_err(|error| failed("remove the control group", &leaf, error))?;
    fs::remove_file(&note).map_err(|error| failed("remove", &note, error))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the kernel reports that a group is empty only through an open file, and it takes a moment at most"
)]
fn remove(leaf: &Path) -> io::Result<()> {
    let deadline = Instant::now() + EMPTY_TIMEOUT;
    loop {
        match fs::remove_dir(leaf) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) if error.kind() == ErrorKind::ResourceBusy && Instant::now() < deadline => {
                std::thread::sleep(PAUSE);
            }
            removed => return removed,
        }
    }
}

/// The path of a slice, if `parent` names one: `a-b.slice` is in `a.slice`, as in systemd.slice(5),
/// and `-.slice` is the root. A path is not a slice.
fn slice(parent: &str) -> Result<Option<PathBuf>, String> {
    let Some(name) = parent.strip_suffix(SLICE).filter(|_| !parent.contains('/')) else { return Ok(None) };
    if name == "-" {
        return Ok(Some(PathBuf::new()));
    }
    let mut path = PathBuf::new();
    let mut whole = String::new();
    for part in name.split('-') {
        if part.is_empty() {
            return Err(format!("{parent:?} is no name of a slice"));
        }
        if !whole.is_empty() {
            whole.push('-');
        }
        whole.push_str(part);
        path.push(format!("{whole}{SLICE}"));
    }
    Ok(Some(path))
}

fn is_version_2(root: &Path) -> bool {
    rustix::fs::statfs(root).is_ok_and(|found| found.f_type == CGROUP2_MAGIC)
}

fn failed(operation: &'static str, path: &Path, error: io::Error) -> EngineError {
    EngineError::new(operation, path.display().to_string(), error)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

    use super::*;

    /// A hierarchy of version 2, mounted for the test; only the test's groups are changed.
    struct Mounted(tempfile::TempDir, String);

    impl Mounted {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            mount("none", dir.path(), "cgroup2", MountFlags::empty(), None::<&std::ffi::CStr>).unwrap();
            Self(dir, format!("russet-test-{}", std::process::id()))
        }

        fn root(&self) -> &Path {
            self.0.path()
        }
    }

    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = fs::remove_dir(self.root().join(&self.1).join("pod"));
            let _ = fs::remove_dir(self.root().join(&self.1));
            let _ = unmount(self.root(), UnmountFlags::DETACH);
        }
    }

    #[test]
    fn slices_are_in_each_other_as_systemd_has_them() {
        let path = |name: &str| slice(name).unwrap().map(|path| path.display().to_string());
        let besteffort = "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod12_3.slice";
        assert_eq!(path("kubepods-besteffort-pod12_3.slice").as_deref(), Some(besteffort));
        assert_eq!(path("system.slice").as_deref(), Some("system.slice"));
        assert_eq!(path("-.slice").as_deref(), Some(""));
        assert_eq!((path("/kubepods/pod1"), path("/a.slice/b"), path("kubepods")), (None, None, None));
        for wrong in [".slice", "a--b.slice", "-a.slice", "a-.slice"] {
            assert!(slice(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    #[ignore = "root: mounts a hierarchy of control groups"]
    fn the_process_is_in_a_leaf_of_the_pods_group_and_only_the_leaf_is_removed() {
        let mounted = Mounted::new();
        let dir = tempfile::tempdir().unwrap();
        let id = SandboxId::random().unwrap();
        let parent = format!("/{}/pod", mounted.1);
        let mut process = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        join_below(mounted.root(), dir.path(), &id, &parent, process.id()).unwrap();
        let leaf = mounted.root().join(&parent[1..]).join(format!("russet-{id}"));
        assert_eq!(fs::read_to_string(leaf.join("cgroup.procs")).unwrap().trim(), process.id().to_string());
        process.kill().unwrap();
        process.wait().unwrap();
        leave(dir.path()).unwrap();
        assert!(!leaf.exists() && leaf.parent().unwrap().is_dir(), "the pod's is kubelet's");
        leave(dir.path()).unwrap();
        // After a death between the note and the group there is nothing to remove.
        fs::write(dir.path().join(FILE), leaf.as_os_str().as_encoded_bytes()).unwrap();
        leave(dir.path()).unwrap();
    }

    #[test]
    #[ignore = "root: mounts a hierarchy of control groups"]
    fn a_missing_slice_is_an_error_that_names_it() {
        let mounted = Mounted::new();
        let (dir, id) = (tempfile::tempdir().unwrap(), SandboxId::random().unwrap());
        let refused = join_below(mounted.root(), dir.path(), &id, "russet-none.slice", 1).unwrap_err();
        assert!(refused.to_string().contains("russet.slice/russet-none.slice"), "{refused}");
        assert!(!mounted.root().join("russet.slice").exists());
    }
}
