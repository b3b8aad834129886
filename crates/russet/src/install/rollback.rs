//! Goes back to the version that the last installation replaced.
//!
//! Each file is moved to its old place in one step, in the reverse order of the installation: the command comes last, because
//! a new agent serves an old plugin, but not the other way round. A rollback that was interrupted goes on with the files that
//! still have their second names.

use super::{InstallError, Manifest, Step};

/// The steps of a rollback.
///
/// # Errors
/// No file of an earlier version is left.
pub fn roll_back(manifest: &Manifest) -> Result<Vec<Step>, InstallError> {
    let there = manifest.previous.iter().rev().filter(|it| it.saved.is_file());
    let steps: Vec<Step> =
        there.map(|it| Step::Restore { from: it.saved.clone(), path: it.path.clone() }).collect();
    match steps.is_empty() {
        false => Ok(steps),
        true => Err(InstallError::NothingToRestore(
            "no installation has replaced another version since the last rollback; run `russet install` of the version that you want, or install the earlier package".to_owned(),
        )),
    }
}
