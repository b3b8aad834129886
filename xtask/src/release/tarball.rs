//! The archive for hosts without a package manager: executables that need no library, in one directory beside what belongs to them.

use std::path::Path;

use super::contents::{self, Inputs};
use super::{Release, archive, read, save};
use crate::error::{Error, Result};
use crate::tar::Entry;
use crate::{artifacts, elf};

pub fn write(release: &Release, inputs: &Inputs, output: &Path, is_debug: bool) -> Result<String> {
    for (name, executable) in [("russet", &inputs.russet), ("russet-cni", &inputs.russet_cni)] {
        let interpreter =
            elf::interpreter(executable).map_err(|why| Error::Found(format!("{name}: {why}")))?;
        if interpreter.is_some() && !is_debug {
            return Err(Error::Found(format!(
                "{name} needs a dynamic linker, and the archive is for every host"
            )));
        }
    }
    let directory = format!("russet-{}-{}-linux", release.version, release.architecture.rpm);
    let root = artifacts::workspace();
    let mut entries = vec![
        Entry::file("russet", 0o755, inputs.russet.clone()),
        // Beside the command, where `russet install` looks first.
        Entry::file("russet-cni", 0o755, inputs.russet_cni.clone()),
        Entry::file("LICENSE", 0o644, read(&root.join("LICENSE"))?),
        Entry::file("LICENSE-MIT", 0o644, contents::bpf_license()?),
        Entry::file("russet.toml", 0o644, read(&root.join("packaging/russet.toml"))?),
        Entry::file("completions/russet.bash", 0o644, inputs.completion("bash")),
        Entry::file("completions/_russet", 0o644, inputs.completion("zsh")),
        Entry::file("completions/russet.fish", 0o644, inputs.completion("fish")),
    ];
    // `russet install` writes units itself; these are for other service managers to look at.
    let units = contents::units()?.into_iter();
    entries
        .extend(units.map(|(name, text)| Entry::file(&format!("systemd/{name}"), 0o644, text.into_bytes())));
    let pages = inputs.man_pages.iter();
    entries.extend(pages.map(|(name, page)| Entry::file(&format!("man/man1/{name}"), 0o644, page.clone())));
    let documentation = contents::documentation()?.into_iter();
    entries.extend(documentation.map(|(path, text)| Entry::file(&path, 0o644, text)));
    let below = |entry: Entry| Entry { path: format!("{directory}/{}", entry.path), ..entry };
    let bytes = archive(entries.into_iter().map(below).collect(), release)?;
    save(output, &format!("{directory}.tar.gz"), &bytes)
}
