//! Executes a plan. Every step writes a whole file; a failed step ends the run, and the next run
//! continues from there.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
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
        Step::Save { path, saved: second } | Step::Keep { path, kept: second } => save(path, second),
        Step::Discard { path } => remove(path),
        Step::Restore { from, path } => fs::rename(from, path).map_err(failed("put back", path)),
        Step::Copy { from, path } => {
            let bytes = fs::read(from).map_err(failed("read", from))?;
            Ok(file::write_atomic_with_mode(path, &bytes, EXECUTABLE)?)
        }
        Step::Link { to, path } => link(to, path),
        Step::Write { path, text, mode } => Ok(file::write_atomic_with_mode(path, text.as_bytes(), *mode)?),
    }
}

/// Makes the link under another name first, so that a runtime always finds a plugin at `path`.
fn link(to: &Path, path: &Path) -> Result<(), InstallError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let fresh = path.with_file_name(format!(".{name}.new"));
    remove(&fresh)?;
    symlink(to, &fresh).map_err(failed("make link", &fresh))?;
    fs::rename(&fresh, path).map_err(failed("replace", path))
}

/// Links the file to a second name, so that the first one exists until it is replaced. An existing
/// second name is the original: the file at `path` is then from an interrupted installation or from
/// an update by another program, and the newer one is kept.
fn save(path: &Path, saved: &Path) -> Result<(), InstallError> {
    remove(saved)?;
    fs::hard_link(path, saved).map_err(failed("link to", saved))
}

/// Removes a file, unless there is none.
fn remove(path: &Path) -> Result<(), InstallError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", path)(error)),
        _ => Ok(()),
    }
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> InstallError {
    let path = path.to_owned();
    move |source| InstallError::Io { operation, path, source }
}
