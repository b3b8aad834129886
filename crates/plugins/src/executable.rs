//! Whose executable is found under a plugin's name. Ours under another plugin's request would ask the agent, which waits for that request: so
//! [`delegation`](crate::delegation) has it work in this process, and [`delegate`](crate::delegate) refuses it where that cannot be.

use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use russet_cni_spec::relay;

/// What a runtime finds under a plugin's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// No file. An agent in a container may not see the directory.
    Nothing,
    /// Our own executable, a link to it or a copy of it.
    Ours,
    /// Somebody else's.
    Foreign,
}

/// A file as it was when it was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    size_bytes: u64,
    changed: (i64, i64),
}

/// Answers about files, so that ten megabytes are not read for each request.
struct Answers(Mutex<Vec<(Identity, bool)>>);

/// What our executables are called, whatever links lead to them.
const OURS: [&str; 2] = ["russet", "russet-cni"];
/// The largest file in which our mark is looked for; the small executable has less than one megabyte, the command some ten.
const EXECUTABLE_MAX_BYTES: u64 = 64 * 1024 * 1024;
/// More than our plugins' names in a few directories; the oldest answer goes.
const ANSWERS_MAX: usize = 32;

static MARKED: Answers = Answers(Mutex::new(Vec::new()));

/// Whose a file is.
pub fn whose(path: &Path) -> Found {
    if !path.is_file() {
        return Found::Nothing;
    }
    if is_ours(path) { Found::Ours } else { Found::Foreign }
}

/// Looks for the plugin `kind` in `dirs`, the first that has it.
pub fn find(kind: &str, dirs: &[PathBuf]) -> Found {
    dirs.iter()
        .map(|dir| whose(&dir.join(kind)))
        .find(|found| *found != Found::Nothing)
        .unwrap_or(Found::Nothing)
}

fn is_ours(path: &Path) -> bool {
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if target.file_name().and_then(|name| name.to_str()).is_some_and(|name| OURS.contains(&name)) {
        return true;
    }
    let id = |path: &Path| std::fs::metadata(path).ok().map(|it| (it.dev(), it.ino()));
    id(&target).is_some_and(|it| Some(it) == id(Path::new("/proc/self/exe"))) || is_copy(&target)
}

/// What cannot be read is no copy; whoever runs it will say what is wrong with it.
fn is_copy(path: &Path) -> bool {
    let answer = || {
        let file = File::open(path).ok()?;
        let identity = Identity::of(&file.metadata().ok()?);
        MARKED.of(identity, || has_mark(file))
    };
    answer().unwrap_or(false)
}

fn has_mark(file: File) -> Option<bool> {
    let mut bytes = Vec::new();
    file.take(EXECUTABLE_MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(memchr::memmem::find(&bytes, relay::MARK.as_bytes()).is_some())
}

// === impl Identity ===

impl Identity {
    fn of(it: &Metadata) -> Self {
        let changed = (it.ctime(), it.ctime_nsec());
        Self { device: it.dev(), inode: it.ino(), size_bytes: it.size(), changed }
    }
}

// === impl Answers ===

impl Answers {
    /// The answer about a file, from `look` if it is not known; none of its is no answer.
    fn of(&self, identity: Identity, look: impl FnOnce() -> Option<bool>) -> Option<bool> {
        let known = |answers: &[(Identity, bool)]| answers.iter().find(|it| it.0 == identity).map(|it| it.1);
        if let Some(answer) = known(&self.0.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Some(answer);
        }
        let answer = look()?;
        let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A file that was replaced has another inode, one that was written to another time: their old answers are never asked for again.
        if answers.len() >= ANSWERS_MAX {
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
        assert_eq!(find("host-local", &dirs), Found::Nothing);
        std::os::unix::fs::symlink("/proc/self/exe", &path).unwrap();
        assert_eq!(find("host-local", &dirs), Found::Ours, "this very executable");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(dir.path().join("russet"), "").unwrap();
        std::os::unix::fs::symlink("russet", &path).unwrap();
        assert_eq!(find("host-local", &dirs), Found::Ours, "a link to ours");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        assert_eq!(find("host-local", &dirs), Found::Foreign);
        std::fs::remove_file(&path).unwrap();
        std::fs::copy("/proc/self/exe", &path).unwrap();
        assert_eq!(find("host-local", &dirs), Found::Ours, "a copy");
        let other = tempfile::tempdir().unwrap();
        assert_eq!(find("host-local", &[other.path().to_owned()]), Found::Nothing);
    }

    #[test]
    fn a_file_that_becomes_another_is_looked_at_again() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = [dir.path().to_owned()];
        let path = dir.path().join("bridge");
        for (text, found) in [
            ("#!/bin/sh\n".to_owned(), Found::Foreign),
            (format!("a copy: {}", relay::MARK), Found::Ours),
            ("#!/bin/bash\n".to_owned(), Found::Foreign),
        ] {
            std::fs::write(&path, &text).unwrap();
            assert_eq!([find("bridge", &dirs), find("bridge", &dirs)], [found; 2], "{text}");
        }
    }

    #[test]
    fn a_file_is_read_once_and_only_so_many_are_remembered() {
        let answers = Answers(Mutex::new(Vec::new()));
        let looks = Cell::new(0);
        let ask = |inode, answer| {
            let identity = Identity { device: 1, inode, size_bytes: 7, changed: (1, 2) };
            answers.of(identity, || {
                looks.set(looks.get() + 1);
                answer
            })
        };
        assert_eq!((ask(0, None), ask(0, Some(true)), ask(0, Some(false))), (None, Some(true), Some(true)));
        assert_eq!(looks.get(), 2, "a look that failed is repeated");
        for inode in 1..=ANSWERS_MAX as u64 {
            assert_eq!(ask(inode, Some(false)), Some(false));
        }
        assert_eq!(answers.0.lock().unwrap().len(), ANSWERS_MAX);
        assert_eq!(ask(0, Some(false)), Some(false), "the oldest was forgotten");
    }
}
