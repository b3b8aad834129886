//! The files of a package: executables, units, settings, manual pages, completions and documentation.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::{foreign, gzip, read};
use crate::artifacts;
use crate::error::{Error, Result};
use crate::process;

/// What packages are made from.
pub struct Inputs {
    pub russet: Vec<u8>,
    pub russet_cni: Vec<u8>,
    /// Names and texts.
    pub man_pages: Vec<(String, Vec<u8>)>,
    /// By the shell's name.
    pub completions: Vec<(&'static str, Vec<u8>)>,
}

/// A file of a package.
pub struct File {
    /// Without a leading slash.
    pub path: String,
    pub mode: u32,
    /// Of a symbolic link, its target.
    pub content: Vec<u8>,
    pub is_link: bool,
    /// The administrator's changes of it stay.
    pub is_config: bool,
}

/// What differs between distributions.
pub struct Places {
    /// Of zsh's functions.
    pub zsh: &'static str,
    pub license: &'static str,
}

const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];
/// The command in the units of packaging/systemd, and in packages.
const COMMAND: (&str, &str) = ("/usr/local/bin/russet", "/usr/bin/russet");
/// Where netavark, podman's network backend, looks for drivers, and the command as seen from there: Debian wants links within /usr to be relative.
const NETAVARK_DRIVER: (&str, &str) = ("usr/libexec/netavark/russet", "../../bin/russet");
const DOCUMENTATION: &str = "usr/share/doc/russet";
/// Administrators do not read these.
const NOT_PACKAGED: [&str; 3] = ["CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md"];

/// The path of the settings.
pub const SETTINGS: &str = "etc/russet/russet.toml";

/// All files of a package, sorted.
pub fn packaged(inputs: &Inputs, places: &Places, level: &str) -> Result<Vec<File>> {
    let mut files = vec![
        File::program("usr/bin/russet", inputs.russet.clone()),
        // Where `russet install` looks for it: it makes plugins links to this file, so that an upgrade changes them, too.
        File::program("usr/libexec/russet/russet-cni", inputs.russet_cni.clone()),
        File::link(NETAVARK_DRIVER),
        File {
            is_config: true,
            ..File::text(SETTINGS, read(&artifacts::workspace().join("packaging/russet.toml"))?)
        },
        File::text(places.license, read(&artifacts::workspace().join("LICENSE"))?),
        File::text(&format!("{DOCUMENTATION}/LICENSE-MIT"), bpf_license()?),
        File::text(&format!("{}/_russet", places.zsh), inputs.completion("zsh")),
        File::text("usr/share/bash-completion/completions/russet", inputs.completion("bash")),
        File::text("usr/share/fish/vendor_completions.d/russet.fish", inputs.completion("fish")),
    ];
    for (name, text) in units()? {
        let text = text.replace(COMMAND.0, COMMAND.1).into_bytes();
        files.push(File::text(&format!("usr/lib/systemd/system/{name}"), text));
    }
    for (name, page) in &inputs.man_pages {
        files.push(File::text(&format!("usr/share/man/man1/{name}.gz"), gzip(page.clone(), level)?));
    }
    for (path, text) in documentation()? {
        files.push(File::text(&format!("{DOCUMENTATION}/{path}"), text));
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// The units that `russet install` knows, by name. `web-in-pod.service` is an example.
pub fn units() -> Result<Vec<(String, String)>> {
    let names = ["russet-agent", "russet-cri", "russet-flanneld", "russet-pod@"];
    let directory = artifacts::workspace().join("packaging/systemd");
    let unit = |name: &str| {
        let name = format!("{name}.service");
        let path = directory.join(&name);
        let text = fs::read_to_string(&path).map_err(Error::io(format!("read {}", path.display())))?;
        Ok((name, text))
    };
    names.into_iter().map(unit).collect()
}

/// The pages for operators, with their links: README.md and what it leads to in docs.
pub fn documentation() -> Result<Vec<(String, Vec<u8>)>> {
    let root = artifacts::workspace();
    let mut pages = vec!["README.md".to_owned(), "CHANGELOG.md".to_owned()];
    let directory = root.join("docs");
    let entries = fs::read_dir(&directory).map_err(Error::io(format!("list {}", directory.display())))?;
    for entry in entries {
        let entry = entry.map_err(Error::io(format!("list {}", directory.display())))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") && !NOT_PACKAGED.contains(&name.as_str()) {
            pages.push(format!("docs/{name}"));
        }
    }
    pages.sort();
    pages.into_iter().map(|page| Ok((page.clone(), read(&root.join(&page))?))).collect()
}

/// The licence of the BPF programs, which are in the executables.
pub fn bpf_license() -> Result<Vec<u8>> {
    read(&artifacts::workspace().join("crates/linux/bpf/LICENSE-MIT"))
}

/// All directories that lead to the files, each before those in it.
pub fn directories<'a>(paths: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    let parents =
        |path: &str| path.match_indices('/').map(|(at, _)| path[..at].to_owned()).collect::<Vec<_>>();
    paths.into_iter().flat_map(parents).collect()
}

// === impl Inputs ===

impl Inputs {
    /// Reads the executables of a directory, and lets `russet` write its pages and completions.
    pub fn of(directory: &Path, is_debug: bool) -> Result<Self> {
        let scratch = artifacts::target_dir().join("tmp").join(format!("packages-{}", std::process::id()));
        fs::create_dir_all(&scratch).map_err(Error::io(format!("create {}", scratch.display())))?;
        let inputs = Self::with(directory, &scratch, is_debug);
        // What is left of it would only take space.
        drop(fs::remove_dir_all(&scratch));
        inputs
    }

    fn with(directory: &Path, scratch: &Path, is_debug: bool) -> Result<Self> {
        let executable = |name: &str| {
            let path = directory.join(name);
            if !is_debug {
                return read(&path);
            }
            let stripped = scratch.join(name);
            process::run(Command::new("strip").arg("-g").arg("-o").arg(&stripped).arg(&path))?;
            read(&stripped)
        };
        let (russet, russet_cni) = (executable("russet")?, executable("russet-cni")?);
        let command = directory.join("russet");
        let command = || foreign::runs(&command, &russet);
        let pages = scratch.join("man");
        process::run(command()?.arg("man").arg("--out").arg(&pages))?;
        let completion = |shell| Ok((shell, process::output(command()?.args(["completions", shell]))?));
        let completions = SHELLS.into_iter().map(completion).collect::<Result<_>>()?;
        Ok(Self { russet, russet_cni, man_pages: files_of(&pages)?, completions })
    }

    pub fn completion(&self, shell: &str) -> Vec<u8> {
        let found = self.completions.iter().find(|(name, _)| *name == shell);
        found.map(|(_, script)| script.clone()).unwrap_or_default()
    }
}

/// Names and contents of the files in a directory, sorted.
fn files_of(directory: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let failed = || Error::io(format!("list {}", directory.display()));
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed())? {
        let entry = entry.map_err(failed())?;
        files.push((entry.file_name().to_string_lossy().into_owned(), read(&entry.path())?));
    }
    files.sort();
    Ok(files)
}

// === impl File ===

impl File {
    fn program(path: &str, content: Vec<u8>) -> Self {
        Self { path: path.to_owned(), mode: 0o755, content, is_link: false, is_config: false }
    }

    fn text(path: &str, content: Vec<u8>) -> Self {
        Self { path: path.to_owned(), mode: 0o644, content, is_link: false, is_config: false }
    }

    fn link((path, target): (&str, &str)) -> Self {
        Self {
            path: path.to_owned(),
            mode: 0o777,
            content: target.as_bytes().to_vec(),
            is_link: true,
            is_config: false,
        }
    }
}
