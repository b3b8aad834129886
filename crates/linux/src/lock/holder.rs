//! The holder of a lock, from the kernel's list, for messages to operators.

use std::fmt;
use std::path::Path;

/// The process that holds a lock, as far as it is visible: processes of other PID namespaces are
/// not, and some file systems report none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockHolder(Option<Process>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Process {
    pid: u32,
    name: String,
}

/// All file locks of the machine (proc_locks(5)).
const LOCKS: &str = "/proc/locks";

// === impl LockHolder ===

impl LockHolder {
    /// The holder of the lock on the file at `path`.
    pub fn of(path: &Path) -> Self {
        Self(find(path).map(|pid| Process { pid, name: name(pid) }))
    }
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(Process { pid, name }) => write!(f, "process {pid} ({name})"),
            None => f.write_str("another process"),
        }
    }
}

fn find(path: &Path) -> Option<u32> {
    let file = rustix::fs::stat(path).ok()?;
    let (major, minor) = (rustix::fs::major(file.st_dev), rustix::fs::minor(file.st_dev));
    let inode = format!("{major:02x}:{minor:02x}:{}", file.st_ino);
    pid_of_inode(&std::fs::read_to_string(LOCKS).ok()?, &inode)
}

/// Parses lines such as `1: FLOCK  ADVISORY  WRITE 707 00:16:1043 0 EOF`. Waiters have an arrow
/// before the kind.
fn pid_of_inode(locks: &str, inode: &str) -> Option<u32> {
    let mut lines = locks.lines().map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>());
    let line = lines.find(|words| words.first() == Some(&"FLOCK") && words.get(4) == Some(&inode))?;
    line.get(3)?.parse().ok().filter(|pid| *pid > 0)
}

/// Replaces control characters, because a process can choose any name.
fn name(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileLock;

    #[test]
    fn the_holder_of_a_lock_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("l");
        let held = FileLock::try_exclusive(&path).unwrap().unwrap();
        let pid = std::process::id();
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
        assert_eq!(LockHolder::of(&path).to_string(), format!("process {pid} ({})", name.trim_end()));
        drop(held);
        assert_eq!(LockHolder::of(&path).to_string(), "another process");
        assert_eq!(LockHolder::of(&dir.path().join("none")), LockHolder(None));
    }

    #[test]
    fn only_holders_count_and_neither_waiters_nor_invisible_processes() {
        let locks = "1: -> FLOCK  ADVISORY  WRITE 5 00:16:1043 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 6 00:16:1043 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 7 00:16:1043 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 0 00:16:1044 0 EOF\n5: FLOCK\n";
        let of = |inode| pid_of_inode(locks, inode);
        assert_eq!((of("00:16:1043"), of("00:16:1044"), of("00:16:1")), (Some(7), None, None));
    }
}
