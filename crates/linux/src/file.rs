//! Writes files such that readers see either the old or the new contents: result caches,
//! configurations, journals.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The file could not be written. The old one is unchanged, unless the operation is `sync directory
/// of`.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {}: {source}", path.display())]
pub struct FileError {
    /// The step that failed, as in `write` or `rename to`.
    pub operation: &'static str,
    /// Its subject.
    pub path: PathBuf,
    /// The kernel's reason.
    pub source: io::Error,
}

/// Readable by the owner only, because state may contain secrets (ARCHITECTURE.md, invariant 7).
pub const PRIVATE: u32 = 0o600;
/// The same for a directory.
const PRIVATE_DIR: u32 = 0o700;
/// For files that other programs read, such as `subnet.env` and conflists.
pub const READABLE: u32 = 0o644;

static SERIAL: AtomicU64 = AtomicU64::new(0);

/// Replaces `path` with `bytes`, mode 0600: readers see all of it or the old file, even after a
/// power failure. Costs two fsyncs.
pub fn write_atomic(path: impl AsRef<Path>, bytes: &[u8]) -> Result<(), FileError> {
    write_atomic_with_mode(path, bytes, PRIVATE)
}

/// [`write_atomic`] with another mode, independent of the umask.
pub fn write_atomic_with_mode(path: impl AsRef<Path>, bytes: &[u8], mode: u32) -> Result<(), FileError> {
    let path = path.as_ref();
    let temporary = temporary_beside(path)?;
    let written = write_new(&temporary, bytes, mode).and_then(|()| {
        std::fs::rename(&temporary, path).map_err(|source| FileError::new("rename to", path, source))
    });
    if written.is_err() {
        // Only the first error matters; there may be nothing to remove.
        let _ = std::fs::remove_file(&temporary);
    }
    written?;
    sync_directory_of(path)
}

/// Creates a file for writing: never opens an existing file or link that another process placed
/// there. A leftover of a dead process with the same number is removed first.
pub fn create_exclusive(path: &Path, mode: u32) -> io::Result<File> {
    match create_new(path, mode) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            std::fs::remove_file(path).and_then(|()| create_new(path, mode))
        }
        created => created,
    }
}

/// Replaces `path` with `bytes` atomically for readers, through `temporary` in the same directory;
/// after a power failure the file may be empty or missing. For state that does not outlive the
/// boot.
pub fn replace_unsynced(path: &Path, temporary: &Path, bytes: &[u8]) -> io::Result<()> {
    let written = create_exclusive(temporary, PRIVATE)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| std::fs::rename(temporary, path));
    if written.is_err() {
        // Only the first error matters; there may be nothing to remove.
        let _ = std::fs::remove_file(temporary);
    }
    written
}

/// Creates a directory with its parents, and makes it accessible to its owner only, even if it
/// exists already.
pub fn private_dir(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    DirBuilder::new().mode(PRIVATE_DIR).recursive(true).create(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(PRIVATE_DIR))
}

/// Makes the creation, renaming or removal of `path` survive a power failure.
pub fn sync_directory_of(path: &Path) -> Result<(), FileError> {
    let dir = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(|source| FileError::new("sync directory of", path, source))
}

// === impl FileError ===

impl FileError {
    fn new(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self { operation, path: path.to_owned(), source }
    }
}

/// A name in the same directory, hence on the same file system; the leading dot and the suffix keep
/// programs that read whole directories (conflists end in `.conflist`) from reading it.
fn temporary_beside(path: &Path) -> Result<PathBuf, FileError> {
    let name = path.file_name().ok_or_else(|| {
        FileError::new("write", path, io::Error::new(io::ErrorKind::InvalidInput, "it has no file name"))
    })?;
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}-{serial}.tmp", std::process::id()));
    Ok(path.with_file_name(temporary))
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), FileError> {
    let mut file = create_exclusive(path, mode).map_err(|source| FileError::new("create", path, source))?;
    file.write_all(bytes)
        .and_then(|()| file.set_permissions(Permissions::from_mode(mode)))
        .map_err(|source| FileError::new("write", path, source))?;
    file.sync_all().map_err(|source| FileError::new("sync", path, source))
}

fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    // `create_new` is O_EXCL, which follows no link either.
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode_of(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    fn names_in(dir: &Path) -> Vec<std::ffi::OsString> {
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    #[test]
    fn an_existing_directory_becomes_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("above/state");
        for mode in [0o700, 0o755] {
            private_dir(&path).unwrap();
            assert_eq!(mode_of(&path), 0o700);
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
        private_dir(&path).unwrap();
        assert_eq!(mode_of(&path), 0o700);
    }

    #[test]
    fn a_file_is_replaced_whole_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        std::fs::write(&path, "old and longer").unwrap();
        write_atomic(&path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(mode_of(&path), 0o600);
        write_atomic_with_mode(&path, b"shown", READABLE).unwrap();
        assert_eq!(mode_of(&path), 0o644);
        assert_eq!(names_in(dir.path()), ["state"]);
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_no_temporary() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        std::fs::create_dir_all(path.join("full")).unwrap();
        let error = write_atomic(&path, b"new").unwrap_err();
        assert!(error.to_string().starts_with(&format!("rename to {}: ", path.display())), "{error}");
        assert_eq!(names_in(dir.path()), ["state"]);
    }

    #[test]
    fn a_link_with_the_name_of_the_temporary_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (target, temporary, path) =
            (dir.path().join("target"), dir.path().join(".new"), dir.path().join("state"));
        std::fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, &temporary).unwrap();
        replace_unsynced(&path, &temporary, b"new").unwrap();
        assert_eq!(
            (std::fs::read(&target).unwrap(), std::fs::read(&path).unwrap()),
            (b"kept".into(), b"new".into())
        );
        assert_eq!(mode_of(&path), 0o600);
        std::os::unix::fs::symlink(dir.path().join("dangling"), &temporary).unwrap();
        replace_unsynced(&path, &temporary, b"newer").unwrap();
        let mut names = names_in(dir.path());
        names.sort();
        assert_eq!(names, ["state", "target"]);
    }

    #[test]
    fn a_path_without_a_name_is_refused() {
        assert_eq!(write_atomic("/", b"").unwrap_err().operation, "write");
    }
}
