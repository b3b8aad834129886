//! Executes a plan. Every step writes a whole file; a failed step ends the run, and the next run
//! continues from there.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use russet_linux::file;

use super::{InstallError, Step};

/// Called after each step.
pub type Progress<'a> = &'a mut dyn FnMut(&Step);

const EXECUTABLE: u32 = 0o755;

/// Executes `steps` in order.
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

/// Links the file to a second name, so that the first one exists until it is replaced. An existing
/// second name is the original: the file at `path` is then from an interrupted installation or from
/// an update by another program, and the newer one is kept.
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
