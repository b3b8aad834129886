//! Russet's sandboxes on this node, found without the programs that keep them: those that run, and
//! those that an earlier boot left and that still have to be released. `russet owned` lists them;
//! `russet uninstall` starts only when there are none and no program makes any.

use std::path::{Path, PathBuf};
use std::time::Instant;

use russet_agent::Paths;
use russet_linux::file::private_dir;
use russet_linux::{FileLock, LockError};
use russet_sandbox::{Builtin, Engine as _, EngineError, SandboxId};

use crate::install::Service;

/// The programs that keep sandboxes, each in directories of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeper {
    /// `russet sandbox`, while a command runs.
    Command,
    /// `russet cri`, while it serves.
    Cri,
}

/// Why the sandboxes could not be listed.
#[derive(Debug, thiserror::Error)]
pub enum PodsError {
    /// The engine could not list the running ones.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The checkpoints could not be listed.
    #[error("list {}: {source}", path.display())]
    Checkpoints { path: PathBuf, source: std::io::Error },
}

/// Locks that prevent others from making sandboxes, until this is dropped. Files and directories
/// that were made for the locks are removed with it.
#[derive(Debug, Default)]
pub struct KeeperLocks {
    locks: Vec<FileLock>,
    made: Vec<PathBuf>,
}

/// Why the locks could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// Another program holds the lock.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The lock's directory could not be made.
    #[error("make directory {}: {source}", path.display())]
    Directory { path: PathBuf, source: std::io::Error },
}

// === impl Keeper ===

impl Keeper {
    pub const ALL: [Self; 2] = [Self::Command, Self::Cri];

    const fn dir(self) -> &'static str {
        match self {
            Self::Command => "sandbox",
            Self::Cri => "cri",
        }
    }

    /// The directory of its files that survive a reboot.
    pub fn state_dir(self, paths: &Paths) -> PathBuf {
        paths.state_dir().join(self.dir())
    }

    /// The directory of its files that a reboot removes.
    pub fn run_dir(self, paths: &Paths) -> PathBuf {
        paths.run_dir().join(self.dir())
    }

    /// The command that removes its sandboxes.
    pub fn remedy(self, paths: &Paths) -> String {
        match self {
            Self::Command => {
                format!("{}, with the --engine that made them", paths.command("sandbox rm --all"))
            }
            // A starting server releases what an earlier boot left.
            Self::Cri => format!(
                "crictl rmp --all --force, while {} runs with the --engine that made them",
                paths.command("cri")
            ),
        }
    }

    /// How to end the program that holds its lock.
    pub fn end(self, paths: &Paths) -> String {
        match self {
            Self::Command => format!("wait for the `{}` that is in progress", paths.command("sandbox")),
            Self::Cri => Service::Cri.end(paths),
        }
    }

    /// Its sandboxes, whether it runs or not.
    pub fn sandboxes(self, paths: &Paths) -> Result<Vec<SandboxId>, PodsError> {
        let state = self.state_dir(paths);
        let mut found = Builtin::new(self.run_dir(paths)).list()?;
        let kept = russet_sandbox::kept(&state);
        found.extend(kept.map_err(|source| PodsError::Checkpoints { path: state, source })?);
        found.sort();
        found.dedup();
        Ok(found)
    }

    /// Prevents every program from making sandboxes, also before its first one: makes the
    /// directories of the locks if they are missing. Without any directory of Russet there is
    /// nothing to lock.
    pub fn lock(self, paths: &Paths, deadline: Instant) -> Result<KeeperLocks, HoldError> {
        let mut held = KeeperLocks::default();
        if !paths.run_dir().is_dir() {
            return Ok(held);
        }
        let dir = self.run_dir(paths);
        let of_socket = (self == Self::Cri).then(|| paths.run_dir().join("cri.sock.lock"));
        if is_new(&dir) {
            private_dir(&dir).map_err(|source| HoldError::Directory { path: dir.clone(), source })?;
            held.made.push(dir.clone());
        }
        // The socket's lock first, in the order of the server.
        for file in of_socket.into_iter().chain([dir.join("lock")]) {
            held.take(file, deadline)?;
        }
        Ok(held)
    }
}

fn is_new(path: &Path) -> bool {
    path.symlink_metadata().is_err()
}

// === impl KeeperLocks ===

impl KeeperLocks {
    /// Takes one more lock.
    pub fn take(&mut self, file: PathBuf, deadline: Instant) -> Result<(), LockError> {
        let is_new = is_new(&file);
        self.locks.push(FileLock::exclusive(&file, deadline)?);
        self.made.extend(is_new.then_some(file));
        Ok(())
    }

    /// Whether `path` was made only for the locks.
    pub fn has_made(&self, path: &Path) -> bool {
        self.made.iter().any(|made| made == path)
    }
}

impl Drop for KeeperLocks {
    /// In reverse order, and the files while they are locked: a program that waits for one of them
    /// sees that it was removed. A file that cannot be removed is in use by now.
    fn drop(&mut self) {
        for path in self.made.iter().rev() {
            match self.locks.iter().find(|lock| lock.path() == path) {
                Some(lock) => drop(lock.remove_file()),
                None => drop(std::fs::remove_dir(path)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_also_exclude_programs_that_never_ran() {
        let root = tempfile::tempdir().unwrap();
        let paths = Paths::new(root.path());
        for keeper in Keeper::ALL {
            let held = keeper.lock(&paths, Instant::now()).unwrap();
            assert!(held.locks.is_empty() && !paths.run_dir().exists());
        }
        std::fs::create_dir_all(paths.run_dir()).unwrap();
        for (keeper, files) in
            [(Keeper::Command, &["sandbox/lock"][..]), (Keeper::Cri, &["cri.sock.lock", "cri/lock"])]
        {
            let files: Vec<_> = files.iter().map(|file| paths.run_dir().join(file)).collect();
            let held = keeper.lock(&paths, Instant::now()).unwrap();
            for file in &files {
                assert!(FileLock::try_exclusive(file).unwrap().is_none(), "{}", file.display());
                assert!(held.has_made(file));
            }
            drop(held);
            assert_eq!(std::fs::read_dir(paths.run_dir()).unwrap().count(), 0, "it is as it was");
            // Existing directories are not ours to remove.
            private_dir(keeper.run_dir(&paths)).unwrap();
            files.iter().for_each(|file| std::fs::write(file, "").unwrap());
            let held = keeper.lock(&paths, Instant::now()).unwrap();
            assert!(!files.iter().any(|file| held.has_made(file)));
            drop(held);
            assert!(files.iter().all(|file| file.exists()));
            std::fs::remove_dir_all(paths.run_dir()).unwrap();
            std::fs::create_dir(paths.run_dir()).unwrap();
        }
    }
}
