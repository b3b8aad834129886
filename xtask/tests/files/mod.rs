//! The files of the workspace.

use std::fs;
use std::path::{Path, PathBuf};

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// All below this place, or at it, whose names end in one of `kinds`, without those below the places that end in
/// one of `except`.
pub fn collect(place: &Path, kinds: &[&str], except: &[&str]) -> Vec<PathBuf> {
    if except.iter().any(|except| place.ends_with(except)) {
        return Vec::new();
    }
    if place.is_dir() {
        let entries = fs::read_dir(place).unwrap().flatten();
        return entries.flat_map(|entry| collect(&entry.path(), kinds, except)).collect();
    }
    let is_read = place.extension().is_some_and(|end| kinds.iter().any(|kind| end == *kind));
    if is_read { vec![place.to_owned()] } else { Vec::new() }
}
