//! Finds what exists on the node.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use russet_attach::nat::{self, NatError};
use russet_nft::Nft;
use russet_plugins::executable::{self, ExecutableOwner as Whose};

use crate::output;

use super::{Found, InstallError, Manifest, There, Wish};

/// Inspects everything that an installation may change.
pub fn look(wish: &Wish) -> Result<Found, InstallError> {
    for executable in [&wish.command, &wish.plugin] {
        if !executable.is_file() {
            return Err(InstallError::NoExecutable(executable.clone()));
        }
    }
    let dirs =
        [Some(&wish.bin_dir), Some(&wish.cni_bin_dir), wish.unit_dir.as_ref(), wish.cni_conf_dir.as_ref()];
    let dirs: Vec<PathBuf> = dirs.into_iter().flatten().filter(|dir| dir.is_dir()).cloned().collect();
    let mut files = Vec::new();
    for (path, from) in wish.executables() {
        files.push((path.clone(), executable_at(&path, from, wish.is_packaged)?));
    }
    for (path, wanted) in wish.units() {
        let there = text_at(&path, &wanted)?;
        files.push((path, there));
    }
    if let Some(path) = wish.conflist() {
        // Without one of the cluster's own, an existing conflist is kept, whatever its content is.
        let wanted = wish.own_conflist.as_ref().map_or("", |(_, text)| text);
        files.push((path.clone(), text_at(&path, wanted)?));
    }
    let before_ours =
        wish.cni_conf_dir.as_ref().map_or(Ok(Vec::new()), |dir| before(dir, wish.conflist_name()))?;
    // The running system's; an image has none.
    let reference_ports = if wish.root == Path::new("/") { reference_ports() } else { 0 };
    let Manifest { mut previous, unfinished, .. } = Manifest::read(&wish.root)?;
    previous.retain(|it| it.saved.is_file());
    Ok(Found { dirs, files, before_ours, reference_ports, previous, unfinished })
}

/// How many containers have host ports in nf_tables that the reference plugin wrote. An
/// installation does not fail if they cannot be read.
fn reference_ports() -> usize {
    let read = || -> Result<usize, NatError> {
        let mut nft = Nft::open()?;
        let comments = nat::reference_comments(&mut nft)?;
        let of_chains = comments.iter().filter_map(|text| nat::reference_comment(text));
        let mut containers: BTreeSet<String> = of_chains.map(|(_, container)| container.to_owned()).collect();
        containers.extend(nat::reference_containers(&mut nft)?);
        Ok(containers.len())
    };
    read().unwrap_or_else(|error| {
        output::progress(&format!("warning: host ports of another portmap cannot be looked for: {error}"));
        0
    })
}

fn executable_at(path: &Path, from: &Path, as_link: bool) -> Result<There, InstallError> {
    let Some(bytes) = read(path)? else { return Ok(There::Nothing) };
    let is_same = match as_link {
        // The command itself, or a link to it. A copy of the same bytes would stay behind at the package's next upgrade.
        true => path == from || fs::read_link(path).is_ok_and(|to| to == from),
        false => read(from)?.is_some_and(|wanted| wanted == bytes),
    };
    if is_same {
        return Ok(There::Same);
    }
    Ok(if executable::owner_of(path) == Whose::Ours { There::Ours } else { There::Foreign })
}

fn text_at(path: &Path, wanted: &str) -> Result<There, InstallError> {
    Ok(match read(path)? {
        None => There::Nothing,
        Some(bytes) if bytes == wanted.as_bytes() => There::Same,
        Some(_) => There::Ours,
    })
}

/// Network configurations that runtimes read before the one of this name (cni-runtime.md section 2.1: by name,
/// of three suffixes).
fn before(dir: &Path, ours: &str) -> Result<Vec<String>, InstallError> {
    let failed = |source| InstallError::Io { operation: "list", path: dir.to_owned(), source };
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        let is_network = [".conf", ".conflist", ".json"].iter().any(|suffix| name.ends_with(suffix));
        if is_network && *name < *ours {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, InstallError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(InstallError::Io { operation: "read", path: path.to_owned(), source }),
    }
}
