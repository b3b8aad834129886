//! Carries a plan out. Every step leaves a whole file; one that fails ends it, and the next run goes on from there.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use russet_linux::file;

use super::{InstallError, Step};

/// What is told about each step that was done.
pub type Progress<'a> = &'a mut dyn FnMut(&Step);

const EXECUTABLE: u32 = 0o755;

/// Does `steps` in order.
pub fn carry_out(steps: &[Step], progress: Progress<'_>) -> Result<(), InstallError> {
    for step in steps {
        one(step)?;
        progress(step);
    }
    Ok(())
}

fn one(step: &Step) -> Result<(), InstallError> {
    match step {
        Step::Leave { .. } => Ok(()),
        Step::Directory { path } => {
            fs::DirBuilder::new().recursive(true).mode(EXECUTABLE).create(path).map_err(failed("make", path))
        }
        Step::Save { path, saved } => save(path, saved),
        Step::Copy { from, path } => {
            let bytes = fs::read(from).map_err(failed("read", from))?;
            Ok(file::write_atomic_with_mode(path, &bytes, EXECUTABLE)?)
        }
        Step::Write { path, text, mode } => Ok(file::write_atomic_with_mode(path, text.as_bytes(), *mode)?),
    }
}

/// A second name for the file, so that it is at its place until ours is. A name that is there already is the original's: what is at its place now was
/// put there by an installation that was cut off, or by somebody who updated it, and the newer one is kept.
fn save(path: &Path, saved: &Path) -> Result<(), InstallError> {
    match fs::remove_file(saved) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", saved)(error)),
        _ => {}
    }
    fs::hard_link(path, saved).map_err(failed("link to", saved))
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> InstallError {
    let path = path.to_owned();
    move |source| InstallError::Io { operation, path, source }
}
