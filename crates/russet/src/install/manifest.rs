//! Records which files an installation has written, so that they can be removed. Written before the
//! files: after an interrupted installation it may name files that do not exist.

use std::path::{Path, PathBuf};

use russet_linux::file;
use serde::{Deserialize, Serialize};

use super::{InstallError, Plan, Step};

/// The files of an installation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub schema: u32,
    /// The files that the installation wrote.
    pub files: Vec<PathBuf>,
    /// The foreign files that it replaced.
    pub saved: Vec<Saved>,
    /// Russet's own files that the last installation replaced: together one version, to which `--rollback` goes back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub previous: Vec<Saved>,
    /// An installation or a rollback has begun and has not come to its end, so that files of two versions may be in place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unfinished: bool,
}

/// A file that was replaced, kept under another name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    /// Its original path.
    pub path: PathBuf,
    /// Its path now.
    pub saved: PathBuf,
}

/// The manifest's file, below the node's state directory.
pub const RECORD: &str = "installed.json";
/// More than any installation names; a longer file is not a manifest.
const FILE_MAX_BYTES: u64 = 1024 * 1024;

// === impl Manifest ===

impl Manifest {
    /// Its path on the node with this root.
    pub fn path(root: &Path) -> PathBuf {
        russet_agent::Paths::new(root).state_dir().join(RECORD)
    }

    /// The installation on the node with this root.
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

    /// Adds the files that `plan` will write, before the first of its steps. Returns true if that changes the manifest.
    pub fn add(&mut self, plan: &Plan) -> bool {
        let before = self.clone();
        if plan.keeps_finished_version() && !self.unfinished {
            // The version before the last is removed first. Files of two versions must never be listed together.
            self.previous.clear();
        }
        self.unfinished |= plan.all().any(Step::is_change);
        for step in plan.all() {
            match step {
                Step::Copy { path, .. } | Step::Link { path, .. } | Step::Write { path, .. }
                    if !self.files.contains(path) =>
                {
                    self.files.push(path.clone());
                }
                Step::Save { path, saved } if !self.saved.iter().any(|it| it.path == *path) => {
                    self.saved.push(Saved { path: path.clone(), saved: saved.clone() });
                }
                // Also listed as a file, for `russet uninstall` after an interruption.
                Step::Keep { kept, .. } if !self.files.contains(kept) => self.files.push(kept.clone()),
                _ => {}
            }
        }
        *self != before
    }

    /// Notes that the files of the version in place have their second names, before the first of them is replaced.
    pub fn add_kept(&mut self, plan: &Plan) {
        for step in &plan.keep {
            if let Step::Keep { path, kept } = step
                && !self.previous.iter().any(|it| it.path == *path)
            {
                self.previous.push(Saved { path: path.clone(), saved: kept.clone() });
            }
        }
    }

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
