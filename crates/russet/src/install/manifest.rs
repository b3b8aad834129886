//! What an installation has written, so that it can be taken away again. Written before the files: one that was cut off names more than there is.

use std::path::{Path, PathBuf};

use russet_linux::file;
use serde::{Deserialize, Serialize};

use super::{InstallError, Plan, Step};

/// The files of an installation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Grows when a member changes its meaning.
    pub schema: u32,
    /// What we put there.
    pub files: Vec<PathBuf>,
    /// What was there before.
    pub saved: Vec<Saved>,
}

/// A file of somebody else's, kept under another name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Where it was.
    pub path: PathBuf,
    /// Where it is.
    pub saved: PathBuf,
}

/// Its file, below the node's state directory.
pub const RECORD: &str = "installed.json";
/// More than any installation names; a longer file is not ours.
const FILE_MAX_BYTES: u64 = 1024 * 1024;

// === impl Manifest ===

impl Manifest {
    /// Where it lies, on the node with this root.
    pub fn path(root: &Path) -> PathBuf {
        russet_agent::Paths::new(root).state_dir().join(RECORD)
    }

    /// What was installed on the node with this root.
    pub fn read(root: &Path) -> Result<Self, InstallError> {
        let path = Self::path(root);
        let io = |source| InstallError::Io { operation: "read", path: path.clone(), source };
        let bytes = match std::fs::File::open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self { schema: 1, ..Self::default() });
            }
            file => {
                use std::io::Read as _;
                let mut bytes = Vec::new();
                file.map_err(io)?.take(FILE_MAX_BYTES).read_to_end(&mut bytes).map_err(io)?;
                bytes
            }
        };
        serde_json::from_slice(&bytes).map_err(|source| InstallError::Manifest { path, source })
    }

    /// Adds what `plan` will write. True if that is news.
    pub fn add(&mut self, plan: &Plan) -> bool {
        let before = self.clone();
        for step in plan.steps.iter().chain(&plan.last) {
            match step {
                Step::Copy { path, .. } | Step::Write { path, .. } if !self.files.contains(path) => {
                    self.files.push(path.clone());
                }
                Step::Save { path, saved } if !self.saved.iter().any(|it| it.path == *path) => {
                    self.saved.push(Saved { path: path.clone(), saved: saved.clone() });
                }
                _ => {}
            }
        }
        *self != before
    }

    /// Writes it.
    pub fn write(&self, root: &Path) -> Result<(), InstallError> {
        let path = Self::path(root);
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(|source| InstallError::Io {
                operation: "make",
                path: dir.to_owned(),
                source,
            })?;
        }
        let text = crate::output::json(self);
        Ok(file::write_atomic(&path, text.as_bytes())?)
    }
}
