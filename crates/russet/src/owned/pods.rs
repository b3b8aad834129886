//! Sandboxes of ours on this node, found without those who keep them: what runs in this boot, and what an earlier one left that still has to be given back.
//! `russet owned` lists them, `russet uninstall` begins only when there are none and nobody makes any.

use std::path::{Path, PathBuf};
use std::time::Instant;

use russet_agent::Paths;
use russet_linux::file::private_dir;
use russet_linux::{FileLock, LockError};
use russet_sandbox::{Builtin, Engine as _, EngineError, SandboxId};

/// Who keeps sandboxes, each in directories of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeper {
    /// `russet sandbox`, for as long as a command runs.
    Command,
    /// `russet cri`, as long as it serves.
    Cri,
}

/// Why nobody can say which sandboxes there are.
#[derive(Debug, thiserror::Error)]
pub enum PodsError {
    /// Those that run.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Those that are written down.
    #[error("list {}: {source}", path.display())]
    Checkpoints {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

/// Locks that keep others from beginning, until this is dropped. What was made for them goes with it.
#[derive(Debug, Default)]
pub struct Held {
    locks: Vec<FileLock>,
    made: Vec<PathBuf>,
}

/// Why nobody could be kept from making sandboxes.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// Somebody is at it.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The directory of what is to be locked.
    #[error("make directory {}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

// === impl Keeper ===

impl Keeper {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Command, Self::Cri];

    /// The name of its directories.
    const fn dir(self) -> &'static str {
        match self {
            Self::Command => "sandbox",
            Self::Cri => "cri",
        }
    }

    /// Where it keeps what outlives the boot.
    pub fn state_dir(self, paths: &Paths) -> PathBuf {
        paths.state_dir().join(self.dir())
    }

    /// Where it keeps what dies with the boot.
    pub fn run_dir(self, paths: &Paths) -> PathBuf {
        paths.run_dir().join(self.dir())
    }

    /// How its sandboxes are removed.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Command => "russet sandbox rm --all, with the --engine that made them",
            // A server that is started gives back what an earlier boot left.
            Self::Cri => "crictl rmp --all --force, while russet cri runs with the --engine that made them",
        }
    }

    /// How it lets go of them.
    pub const fn end(self) -> &'static str {
        match self {
            Self::Command => "wait for the `russet sandbox` that is under way",
            Self::Cri => "systemctl stop russet-cri.service",
        }
    }

    /// Its sandboxes, whoever has them.
    pub fn sandboxes(self, paths: &Paths) -> Result<Vec<SandboxId>, PodsError> {
        let state = self.state_dir(paths);
        let mut found = Builtin::new(self.run_dir(paths)).list()?;
        let kept = russet_sandbox::kept(&state);
        found.extend(kept.map_err(|source| PodsError::Checkpoints { path: state, source })?);
        found.sort();
        found.dedup();
        Ok(found)
    }

    /// Keeps everybody from making any, also those who never did: what is to be locked is made for it. Where Russet does not even have a directory of
    /// its own, nobody is kept from anything.
    pub fn lock(self, paths: &Paths, deadline: Instant) -> Result<Held, HoldError> {
        let mut held = Held::default();
        if !paths.run_dir().is_dir() {
            return Ok(held);
        }
        let dir = self.run_dir(paths);
        let of_socket = (self == Self::Cri).then(|| paths.run_dir().join("cri.sock.lock"));
        if is_new(&dir) {
            private_dir(&dir).map_err(|source| HoldError::Directory { path: dir.clone(), source })?;
            held.made.push(dir.clone());
        }
        // The socket's first, as the server takes them.
        for file in of_socket.into_iter().chain([dir.join("lock")]) {
            held.take(file, deadline)?;
        }
        Ok(held)
    }
}

fn is_new(path: &Path) -> bool {
    path.symlink_metadata().is_err()
}

// === impl Held ===

impl Held {
    /// Takes one more lock.
    pub fn take(&mut self, file: PathBuf, deadline: Instant) -> Result<(), LockError> {
        let is_new = is_new(&file);
        self.locks.push(FileLock::exclusive(&file, deadline)?);
        self.made.extend(is_new.then_some(file));
        Ok(())
    }

    /// Whether it was made for this alone.
    pub fn has_made(&self, path: &Path) -> bool {
        self.made.iter().any(|made| made == path)
    }
}

impl Drop for Held {
    /// In reverse, and the files while they are locked: who waits for one of them sees that it is gone. What cannot go is in use by now.
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
    fn nobody_begins_to_keep_sandboxes_meanwhile_who_never_did() {
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
            // What is there is not made, and stays.
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
