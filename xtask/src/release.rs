//! `cargo xtask dist --packages`: what users download, in target/dist/packages: for each architecture a .deb, an .rpm and a tar archive of
//! static executables; a container image for all of them, an SBOM, and their checksums. The same executables and the same commit give the same bytes.
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

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lexopt::ValueExt as _;

use crate::artifacts::{self, Profile};
use crate::error::{Error, Result};
use crate::tar::{self, Entry};
use crate::{dist, elf, image, process};
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
    /// Those of packages, archives and the image; none is this machine's.
    targets: Vec<String>,
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

const KINDS: [&str; 5] = ["deb", "rpm", "archive", "image", "sbom"];
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
    let mut images = Vec::new();
    for target in options.targets() {
        made.extend(write(options, target, &output)?);
        if options.wants("image") {
            images.push(image::Contents::of(&options.executables(true, target)?, options.debug)?);
        }
    }
    if !images.is_empty() {
        let (archive, _) = image::release(images, &options.version(), epoch()?, options.level())?;
        made.push(save(&output, &format!("russet-{}-image.tar", options.version()), &archive)?);
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

/// Writes packages and the archive of one architecture; gives their names.
fn write(options: &Options, target: Option<&str>, output: &Path) -> Result<Vec<String>> {
    let mut made = Vec::new();
    if options.wants("deb") || options.wants("rpm") {
        let inputs = Inputs::of(&options.executables(false, target)?, options.debug)?;
        let release = options.release(&inputs)?;
        if options.wants("deb") {
            made.push(deb::write(&release, &inputs, output)?);
        }
        if options.wants("rpm") {
            made.push(rpm::write(&release, &inputs, output)?);
        }
    }
    if options.wants("archive") {
        let inputs = Inputs::of(&options.executables(true, target)?, options.debug)?;
        let release = options.release(&inputs)?;
        made.push(tarball::write(&release, &inputs, output, options.debug)?);
    }
    Ok(made)
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

/// Packages for another architecture have the static executables, too: which glibc is there is not known here.
fn is_foreign(target: Option<&str>) -> Result<bool> {
    target.map_or(Ok(false), artifacts::is_foreign)
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
            "target" => self.targets.push(parser.value()?.string()?),
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
        if !self.targets.is_empty() && self.debug {
            return Err(Error::Usage(
                "--debug-executables are those of this machine: without --target".to_owned(),
            ));
        }
        if self.targets.len() > 1 && self.executables.is_some() {
            return Err(Error::Usage("--executables are those of one --target".to_owned()));
        }
        let mut processors = BTreeSet::new();
        for target in &self.targets {
            foreign::check(target, self.executables.is_none())?;
            if !processors.insert(artifacts::processor(target)) {
                return Err(Error::Usage(format!(
                    "--target {target}: there is another target of this architecture, and packages have one name for both"
                )));
            }
        }
        Ok(())
    }

    /// None is this machine's.
    fn targets(&self) -> Vec<Option<&str>> {
        match self.targets.as_slice() {
            [] => vec![None],
            targets => targets.iter().map(|target| Some(target.as_str())).collect(),
        }
    }

    /// Of gzip.
    fn level(&self) -> &'static str {
        if self.debug { "-1" } else { "-9" }
    }

    fn wants(&self, kind: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == kind)
    }

    fn version(&self) -> String {
        self.version.clone().unwrap_or_else(|| env!("CARGO_PKG_VERSION").to_owned())
    }

    /// The directory of `russet` and `russet-cni`, which are built if none is given.
    fn executables(&self, is_static: bool, target: Option<&str>) -> Result<PathBuf> {
        match (&self.executables, self.debug) {
            (Some(directory), true) => Ok(directory.clone()),
            (None, true) => Ok(artifacts::target_dir().join("debug")),
            (Some(directory), false) if is_static => Ok(directory.join("static")),
            (Some(directory), false) => Ok(directory.clone()),
            (None, false) if is_static || is_foreign(target)? => {
                let target = target.map_or_else(artifacts::static_triple, |target| Ok(target.to_owned()))?;
                artifacts::statically_for("russet-cni", Profile::Dist, &target)?;
                let russet = artifacts::statically_for("russet", Profile::Dist, &target)?;
                Ok(russet.parent().unwrap_or(&russet).to_owned())
            }
            (None, false) => dist::build(),
        }
    }

    fn release(&self, inputs: &Inputs) -> Result<Release> {
        let architecture =
            elf::architecture(&inputs.russet).map_err(|why| Error::Found(format!("russet: {why}")))?;
        Ok(Release {
            version: self.version(),
            seconds: epoch()?,
            architecture: Architecture::of(architecture),
            level: self.level(),
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
        let targets = vec!["aarch64-unknown-linux-musl".to_owned()];
        let options = Options { targets, debug: true, ..Options::default() };
        assert!(options.check().unwrap_err().to_string().contains("--debug-executables"));
    }

    #[test]
    fn a_second_target_of_one_architecture_is_refused() {
        let targets = ["x86_64-unknown-linux-gnu", "x86_64-unknown-linux-musl"].map(str::to_owned).to_vec();
        let options = Options { targets, executables: Some("elsewhere".into()), ..Options::default() };
        assert!(options.check().unwrap_err().to_string().contains("those of one --target"));
        let options = Options { targets: vec![artifacts::host_triple().unwrap(); 2], ..Options::default() };
        assert!(options.check().unwrap_err().to_string().contains("another target of this architecture"));
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
