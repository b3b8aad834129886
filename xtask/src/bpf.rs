//! `cargo xtask gen bpf`: compiles the BPF programs of crates/linux/bpf. The objects are committed, so that `cargo build`
//! needs no clang, and a test here compiles them again.
//!
//! An object depends on the sources of that directory and on the compiler only: it contains no path, no date and
//! no debugging information, and no header of the system is read.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::error::{Error, Result};
use crate::{artifacts, packages, process};

/// Below the workspace.
const DIRECTORY: &str = "crates/linux/bpf";
/// Debian 12 and 13 have it.
const COMPILER: &str = "clang-19";
/// Other releases may make other instructions of the same source.
const VERSION: &str = "19.1.7";
/// Version 3 of the instructions is that of Linux 5.1.
const FLAGS: [&str; 15] = [
    "-target",
    "bpfel",
    "-mcpu=v3",
    "-O2",
    "-g0",
    "-std=gnu11",
    "-ffreestanding",
    "-nostdinc",
    "-fno-ident",
    "-fno-addrsig",
    "-fno-asynchronous-unwind-tables",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-c",
];

/// Installs the compiler if it is missing, and writes the objects.
pub fn generate() -> Result<bool> {
    let directory = artifacts::workspace().join(DIRECTORY);
    for (file, bytes) in compile(&directory)? {
        let path = directory.join(&file);
        std::fs::write(&path, bytes).map_err(Error::io(format!("write {}", path.display())))?;
        println!("{DIRECTORY}/{file}");
    }
    Ok(true)
}

/// The objects by their file names, each made of the source of the same name.
fn compile(directory: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    packages::ensure_one(COMPILER)?;
    let version = process::output(Command::new(COMPILER).arg("--version"))?;
    let version = String::from_utf8_lossy(&version).into_owned();
    if !is_pinned(&version) {
        let found = version.lines().next().unwrap_or_default();
        return Err(Error::Found(format!(
            "{COMPILER} is {found:?}, and the objects in {DIRECTORY} are made by {VERSION}: install that version, or change \
             VERSION in xtask/src/bpf.rs and commit the objects that it makes"
        )));
    }
    let sources = names(directory, "c")?;
    sources.iter().map(|source| Ok((object_of(source), compile_one(directory, source)?))).collect()
}

/// The compiler is started in the directory, because the object contains the source's path as it was given.
fn compile_one(directory: &Path, source: &str) -> Result<Vec<u8>> {
    let mut compiler = Command::new(COMPILER);
    process::output(compiler.current_dir(directory).args(FLAGS).args([source, "-o", "-"]))
}

fn is_pinned(version: &str) -> bool {
    version.lines().next().is_some_and(|line| line.split(' ').any(|word| word == VERSION))
}

fn object_of(source: &str) -> String {
    format!("{}.o", source.trim_end_matches(".c"))
}

/// The files of a directory whose names end so, in order.
fn names(directory: &Path, end: &str) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(directory);
    let entries = entries.map_err(Error::io(format!("list {}", directory.display())))?.flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(&format!(".{end}"))).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> std::path::PathBuf {
        artifacts::workspace().join(DIRECTORY)
    }

    fn read(file: &str) -> Vec<u8> {
        std::fs::read(directory().join(file)).unwrap()
    }

    #[test]
    #[ignore = "tool: clang-19"]
    fn the_committed_objects_are_what_the_pinned_clang_makes_of_the_sources_anywhere() {
        // A copy elsewhere: no path gets into an object.
        let copy = std::env::temp_dir().join(format!("russet-bpf-{}", std::process::id()));
        std::fs::create_dir(&copy).unwrap();
        for name in names(&directory(), "c").unwrap().iter().chain(&names(&directory(), "h").unwrap()) {
            std::fs::copy(directory().join(name), copy.join(name)).unwrap();
        }
        let made = compile(&copy);
        std::fs::remove_dir_all(&copy).unwrap();
        for (file, bytes) in made.unwrap() {
            assert!(bytes == read(&file), "{file} is not made of its source: run `cargo xtask gen bpf`");
        }
    }

    #[test]
    fn every_source_has_its_object_and_every_object_its_source() {
        let sources = names(&directory(), "c").unwrap();
        assert!(!sources.is_empty());
        assert_eq!(
            names(&directory(), "o").unwrap(),
            sources.iter().map(|it| object_of(it)).collect::<Vec<_>>()
        );
    }

    #[test]
    fn every_source_names_its_licences_and_the_objects_say_them_to_the_kernel() {
        for name in names(&directory(), "c").unwrap().iter().chain(&names(&directory(), "h").unwrap()) {
            let text = String::from_utf8(read(name)).unwrap();
            let first = text.lines().next().unwrap_or_default();
            assert!(first.contains("SPDX-License-Identifier: MIT OR GPL-2.0"), "{name}: {first}");
        }
        for name in names(&directory(), "o").unwrap() {
            let object = read(&name);
            assert!(object.windows(13).any(|bytes| bytes == b"Dual MIT/GPL\0"), "{name}");
            assert!(!object.windows(6).any(|bytes| bytes == b"/crate"), "{name} has a path");
        }
    }

    #[test]
    fn only_the_pinned_release_is_used() {
        assert!(is_pinned("Debian clang version 19.1.7 (3~deb12u1)\nTarget: x86_64-pc-linux-gnu\n"));
        assert!(
            !is_pinned("Debian clang version 19.1.70 (1)\n") && !is_pinned("Debian clang version 14.0.6\n")
        );
    }
}
