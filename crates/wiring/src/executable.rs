//! Finds out whether the executable under a plugin's name is Russet's. Executing ours from another
//! plugin's request would deadlock: it would ask the agent, which waits for that request. So
//! plugins run such a plugin in this process, and [`Delegate`](crate::Delegate) refuses it where that
//! is not possible.

use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use russet_cni_spec::relay;

/// What a runtime finds under a plugin's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecutableOwner {
    /// There is no file. An agent in a container may not see the directory.
    Nothing,
    /// Our own executable, a link to it or a copy of it.
    Ours,
    /// Another vendor's executable.
    Foreign,
}

/// Identifies a version of a file's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    inode: u64,
    size_bytes: u64,
    changed: (i64, i64),
}

/// Caches whether files are copies of ours, so that ten megabytes are not read for each request.
struct OwnershipCache(Mutex<Vec<(FileIdentity, bool)>>);

/// File names of our executables, after links are resolved.
const OURS: [&str; 2] = ["russet", "russet-cni"];
/// The largest file that is searched for our mark; the small executable has less than one megabyte,
/// the full command about ten.
const EXECUTABLE_MAX_BYTES: u64 = 64 * 1024 * 1024;
/// More than the names of our plugins in a few directories; the oldest entry is dropped.
const CACHE_MAX: usize = 32;

static MARKED: OwnershipCache = OwnershipCache(Mutex::new(Vec::new()));

/// Whether there is a file at `path`, and whether it is ours.
pub fn owner_of(path: &Path) -> ExecutableOwner {
    if !path.is_file() {
        return ExecutableOwner::Nothing;
    }
    if is_ours(path) { ExecutableOwner::Ours } else { ExecutableOwner::Foreign }
}

/// Looks for the plugin `kind` in `dirs`; the first directory that has it decides.
pub fn find(kind: &str, dirs: &[PathBuf]) -> ExecutableOwner {
    dirs.iter()
        .map(|dir| owner_of(&dir.join(kind)))
        .find(|found| *found != ExecutableOwner::Nothing)
        .unwrap_or(ExecutableOwner::Nothing)
}

fn is_ours(path: &Path) -> bool {
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if target.file_name().and_then(|name| name.to_str()).is_some_and(|name| OURS.contains(&name)) {
        return true;
    }
    let id = |path: &Path| std::fs::metadata(path).ok().map(|it| (it.dev(), it.ino()));
    id(&target).is_some_and(|it| Some(it) == id(Path::new("/proc/self/exe"))) || is_copy(&target)
}

/// A file that cannot be read counts as foreign: executing it will report the error.
fn is_copy(path: &Path) -> bool {
    let answer = || {
        let file = File::open(path).ok()?;
        let identity = FileIdentity::from_metadata(&file.metadata().ok()?);
        MARKED.get_or_look(identity, || has_mark(file))
    };
    answer().unwrap_or(false)
}

fn has_mark(file: File) -> Option<bool> {
    let mut bytes = Vec::new();
    file.take(EXECUTABLE_MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(memchr::memmem::find(&bytes, relay::MARK.as_bytes()).is_some())
}

// === impl FileIdentity ===

impl FileIdentity {
    fn from_metadata(it: &Metadata) -> Self {
        let changed = (it.ctime(), it.ctime_nsec());
        Self { device: it.dev(), inode: it.ino(), size_bytes: it.size(), changed }
    }
}

// === impl OwnershipCache ===

impl OwnershipCache {
    /// The cached answer for a file, or that of `look`, which is cached unless it is `None`.
    fn get_or_look(&self, identity: FileIdentity, look: impl FnOnce() -> Option<bool>) -> Option<bool> {
        let known =
            |answers: &[(FileIdentity, bool)]| answers.iter().find(|it| it.0 == identity).map(|it| it.1);
        if let Some(answer) = known(&self.0.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Some(answer);
        }
        let answer = look()?;
        let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A replaced file has another inode, a rewritten one another change time: entries of old
        // versions are never read again.
        if answers.len() >= CACHE_MAX {
            answers.remove(0);
        }
        answers.push((identity, answer));
        Some(answer)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn only_a_file_that_is_not_our_executable_is_foreign() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = [dir.path().to_owned()];
        let path = dir.path().join("host-local");
        assert_eq!(find("host-local", &dirs), ExecutableOwner::Nothing);
        std::os::unix::fs::symlink("/proc/self/exe", &path).unwrap();
        assert_eq!(find("host-local", &dirs), ExecutableOwner::Ours, "this very executable");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(dir.path().join("russet"), "").unwrap();
        std::os::unix::fs::symlink("russet", &path).unwrap();
        assert_eq!(find("host-local", &dirs), ExecutableOwner::Ours, "a link to ours");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        assert_eq!(find("host-local", &dirs), ExecutableOwner::Foreign);
        std::fs::remove_file(&path).unwrap();
        std::fs::copy("/proc/self/exe", &path).unwrap();
        assert_eq!(find("host-local", &dirs), ExecutableOwner::Ours, "a copy");
        let other = tempfile::tempdir().unwrap();
        assert_eq!(find("host-local", &[other.path().to_owned()]), ExecutableOwner::Nothing);
    }

    #[test]
    fn a_replaced_file_is_examined_again() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = [dir.path().to_owned()];
        let path = dir.path().join("bridge");
        for (text, found) in [
            ("#!/bin/sh\n".to_owned(), ExecutableOwner::Foreign),
            (format!("a copy: {}", relay::MARK), ExecutableOwner::Ours),
            ("#!/bin/bash\n".to_owned(), ExecutableOwner::Foreign),
        ] {
            std::fs::write(&path, &text).unwrap();
            assert_eq!([find("bridge", &dirs), find("bridge", &dirs)], [found; 2], "{text}");
        }
    }

    #[test]
    fn ownership_is_cached_with_a_limit() {
        let answers = OwnershipCache(Mutex::new(Vec::new()));
        let looks = Cell::new(0);
        let ask = |inode, answer| {
            let identity = FileIdentity { device: 1, inode, size_bytes: 7, changed: (1, 2) };
            answers.get_or_look(identity, || {
                looks.set(looks.get() + 1);
                answer
            })
        };
        assert_eq!((ask(0, None), ask(0, Some(true)), ask(0, Some(false))), (None, Some(true), Some(true)));
        assert_eq!(looks.get(), 2, "a look that failed is repeated");
        for inode in 1..=CACHE_MAX as u64 {
            assert_eq!(ask(inode, Some(false)), Some(false));
        }
        assert_eq!(answers.0.lock().unwrap().len(), CACHE_MAX);
        assert_eq!(ask(0, Some(false)), Some(false), "the oldest was forgotten");
    }
}
