//! `cargo xtask dist --packages`: what users download, in target/dist/packages: a .deb, an .rpm, a tar archive of static executables, an
//! SBOM, and their checksums. The same executables and the same commit give the same bytes.
//!
//! The packages are written here, and not by cargo-deb and cargo-generate-rpm: these would have to be compiled on each machine that tests
//! packages, in whatever version is there that day, and a .deb and an .rpm are short headers around an archive. dpkg and rpm read both in tests.

mod contents;
mod deb;
mod foreign;
mod libraries;
mod rpm;
mod sbom;
mod tarball;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lexopt::ValueExt as _;

use crate::artifacts::{self, Profile};
use crate::error::{Error, Result};
use crate::tar::{self, Entry};
use crate::{dist, elf, process};
use contents::Inputs;

/// What the command line asks for.
#[derive(Default)]
pub struct Options {
    /// A directory with both executables, built elsewhere, and in `static` those of the archive.
    executables: Option<PathBuf>,
    /// The executables are those of `cargo build`, for tests: two thirds of them are for debuggers, and none is static.
    debug: bool,
    output: Option<PathBuf>,
    version: Option<String>,
    target: Option<String>,
    only: Vec<String>,
}

/// What all packages of a release have in common.
struct Release {
    version: String,
    /// The time of all files: that of the commit.
    seconds: u64,
    architecture: Architecture,
    /// Of gzip.
    level: &'static str,
}

/// One architecture, as each world calls it.
#[derive(Clone, Copy)]
struct Architecture {
    deb: &'static str,
    rpm: &'static str,
    /// rpm's number of it, in a header that only old tools read.
    rpm_number: u16,
}

const KINDS: [&str; 4] = ["deb", "rpm", "archive", "sbom"];
/// The revision of the packaging: the executables of one version may be packaged again.
const REVISION: &str = "1";
const SUMMARY: &str = "Container networking: node agent and CNI plugins";
const DESCRIPTION: &str = "Russet gives pods addresses from Calico-format blocks, connects them to their node and the nodes to each other, \
and enforces network policies. The package has the command, the executable of the CNI plugins, the units of systemd, manual pages and completions. \
Its installation starts nothing: `russet install --start` makes the machine a node.";

/// Writes what was asked for, and lists it.
pub fn run(options: &Options) -> Result<bool> {
    options.check()?;
    let output = options.output.clone().unwrap_or_else(|| artifacts::target_dir().join("dist/packages"));
    fs::create_dir_all(&output).map_err(Error::io(format!("create {}", output.display())))?;
    let mut made = Vec::new();
    if options.wants("deb") || options.wants("rpm") {
        let inputs = Inputs::of(&options.executables(false)?, options.debug)?;
        let release = options.release(&inputs)?;
        if options.wants("deb") {
            made.push(deb::write(&release, &inputs, &output)?);
        }
        if options.wants("rpm") {
            made.push(rpm::write(&release, &inputs, &output)?);
        }
    }
    if options.wants("archive") {
        let inputs = Inputs::of(&options.executables(true)?, options.debug)?;
        let release = options.release(&inputs)?;
        made.push(tarball::write(&release, &inputs, &output, options.debug)?);
    }
    if options.wants("sbom") {
        made.push(sbom::write(&options.version(), epoch()?, &output)?);
    }
    made.sort();
    let mut sha256sum = Command::new("sha256sum");
    let sums = process::output(sha256sum.current_dir(&output).args(&made))?;
    print!("{}", String::from_utf8_lossy(&sums));
    save(&output, "SHA256SUMS", &sums)?;
    for name in &made {
        let bytes = fs::metadata(output.join(name)).map_err(Error::io(format!("look at {name}")))?.len();
        println!("{}: {bytes} bytes", output.join(name).display());
    }
    Ok(true)
}

/// Writes a file of the release; gives its name.
fn save(output: &Path, name: &str, bytes: &[u8]) -> Result<String> {
    let path = output.join(name);
    fs::write(&path, bytes).map_err(Error::io(format!("write {}", path.display())))?;
    Ok(name.to_owned())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(Error::io(format!("read {}", path.display())))
}

/// Without a name and a time in the header.
fn gzip(bytes: Vec<u8>, level: &str) -> Result<Vec<u8>> {
    process::filter(Command::new("gzip").args(["-n", "-c", level]), bytes)
}

/// The compressed archive of entries and of the directories that lead to them.
fn archive(mut entries: Vec<Entry>, release: &Release) -> Result<Vec<u8>> {
    let directories = contents::directories(entries.iter().map(|entry| entry.path.as_str()));
    entries.extend(directories.iter().map(|directory| Entry::directory(directory)));
    gzip(tar::archive(entries, release.seconds)?, release.level)
}

/// SOURCE_DATE_EPOCH, or the time of the commit.
fn epoch() -> Result<u64> {
    let set = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(set) => set,
        Err(_) => {
            let mut git = Command::new("git");
            git.current_dir(artifacts::workspace()).args(["log", "-1", "--format=%ct"]);
            let printed = process::output(&mut git).map_err(|error| {
                Error::Found(format!(
                    "{error}; outside of a clone, SOURCE_DATE_EPOCH is the time of the release"
                ))
            })?;
            String::from_utf8_lossy(&printed).into_owned()
        }
    };
    let seconds = set.trim().parse();
    seconds.map_err(|_| Error::Usage(format!("SOURCE_DATE_EPOCH is no number of seconds: {set}")))
}

// === impl Options ===

impl Options {
    /// Takes an option of `dist` that is for packages; false if it is another.
    pub fn take(&mut self, name: &str, parser: &mut lexopt::Parser) -> Result<bool> {
        match name {
            "executables" => self.executables = Some(parser.value()?.into()),
            "debug-executables" => self.debug = true,
            "output" => self.output = Some(parser.value()?.into()),
            "version" => self.version = Some(parser.value()?.string()?),
            "target" => self.target = Some(parser.value()?.string()?),
            "only" => self.only.push(parser.value()?.string()?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn check(&self) -> Result<()> {
        if let Some(unknown) = self.only.iter().find(|kind| !KINDS.contains(&kind.as_str())) {
            return Err(Error::Usage(format!("--only {unknown}: known are {}", KINDS.join(", "))));
        }
        let version = self.version();
        let is_usable = version.starts_with(|c: char| c.is_ascii_digit())
            && version.chars().all(|c| c.is_ascii_alphanumeric() || ".~+".contains(c));
        if !is_usable {
            return Err(Error::Usage(format!(
                "--version {version}: a digit first, then digits, letters, `.`, `~` and `+`"
            )));
        }
        match &self.target {
            Some(_) if self.debug => Err(Error::Usage(
                "--debug-executables are those of this machine: without --target".to_owned(),
            )),
            Some(target) => foreign::check(target, self.executables.is_none()),
            None => Ok(()),
        }
    }

    fn wants(&self, kind: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == kind)
    }

    fn version(&self) -> String {
        self.version.clone().unwrap_or_else(|| env!("CARGO_PKG_VERSION").to_owned())
    }

    /// The directory of `russet` and `russet-cni`, which are built if none is given.
    fn executables(&self, is_static: bool) -> Result<PathBuf> {
        match (&self.executables, self.debug) {
            (Some(directory), true) => Ok(directory.clone()),
            (None, true) => Ok(artifacts::target_dir().join("debug")),
            (Some(directory), false) if is_static => Ok(directory.join("static")),
            (Some(directory), false) => Ok(directory.clone()),
            (None, false) if is_static || self.is_foreign()? => {
                let target = self.target.clone().map_or_else(artifacts::static_triple, Ok)?;
                artifacts::statically_for("russet-cni", Profile::Dist, &target)?;
                let russet = artifacts::statically_for("russet", Profile::Dist, &target)?;
                Ok(russet.parent().unwrap_or(&russet).to_owned())
            }
            (None, false) => dist::build(),
        }
    }

    /// Packages for another architecture have the static executables, too: which glibc is there is not known here.
    fn is_foreign(&self) -> Result<bool> {
        self.target.as_deref().map_or(Ok(false), artifacts::is_foreign)
    }

    fn release(&self, inputs: &Inputs) -> Result<Release> {
        let architecture =
            elf::architecture(&inputs.russet).map_err(|why| Error::Found(format!("russet: {why}")))?;
        Ok(Release {
            version: self.version(),
            seconds: epoch()?,
            architecture: Architecture::of(architecture),
            level: if self.debug { "-1" } else { "-9" },
        })
    }
}

// === impl Architecture ===

impl Architecture {
    /// From OCI's name.
    fn of(oci: &str) -> Self {
        match oci {
            "arm64" => Self { deb: "arm64", rpm: "aarch64", rpm_number: 12 },
            _ => Self { deb: "amd64", rpm: "x86_64", rpm_number: 1 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn executables_of_this_machine_are_not_packaged_for_another() {
        let target = Some("aarch64-unknown-linux-musl".to_owned());
        let options = Options { target, debug: true, ..Options::default() };
        assert!(options.check().unwrap_err().to_string().contains("--debug-executables"));
    }

    #[test]
    fn versions_that_dpkg_or_rpm_would_divide_are_refused() {
        let check =
            |version: &str| Options { version: Some(version.to_owned()), ..Options::default() }.check();
        assert!(check("0.2.0~rc1").is_ok());
        for version in ["", "v1", "1-2", "1:2", "1 2"] {
            assert!(check(version).is_err(), "{version:?}");
        }
    }
}
