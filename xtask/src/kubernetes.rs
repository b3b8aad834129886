//! `cargo xtask kubernetes`: programs of Kubernetes, etcd, Calico and the newest reference plugins, built by Go from the modules in tests/kubernetes.
//!
//! Each module is a go.mod with `tool` lines and its go.sum, which pin every source; `calico` also has the code of one program of its own. The programs go into a cache outside of the target directory, because
//! kube-apiserver alone takes minutes; links in target/kubernetes lead tests there (`russet_testkit::kubernetes`).

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use lexopt::prelude::{Value, ValueExt};

use crate::artifacts;
use crate::error::{Error, Result};
use crate::process;

/// Below the workspace, a directory for each module.
const MODULES: &str = "tests/kubernetes";
/// Below the target directory, a link for each module.
const LINKS: &str = "kubernetes";
/// What tests of the layers `kernel`, `program` and `cluster` start. Newer kubelets than the older one need control groups of version 2 and a newer containerd.
const USED_BY_TESTS: [&str; 14] = [
    "newest/kube-apiserver",
    "newest/etcd",
    "newest/kubectl",
    "older/kube-apiserver",
    "older/etcd",
    "older/kube-controller-manager",
    "older/kube-scheduler",
    "older/kubelet",
    "older/kube-proxy",
    "older/kubectl",
    "helm/helm",
    "calico/calico",
    "calico/calicoctl",
    "calico/felix-verdict",
];
/// Nothing may be fetched that go.sum does not pin, and no path of this machine gets into a program.
const BUILD: [&str; 3] = ["build", "-mod=readonly", "-trimpath"];
/// No symbol table and no debug information: a third less.
const LINKER: &str = "-s -w";
/// Where Kubernetes' programs keep the version that they report.
const STAMP: &str = "k8s.io/component-base/version";

/// Which programs to build.
#[derive(Default)]
pub struct Options {
    /// `MODULE/PROGRAM`; all when empty.
    programs: Vec<String>,
}

/// A module with what it builds.
struct Module {
    name: String,
    directory: PathBuf,
    /// The version of `k8s.io/kubernetes`, if it has that.
    version: Option<String>,
    programs: Vec<Program>,
    /// Where its programs are kept: another place for other sources or another compiler.
    cache: PathBuf,
}

struct Program {
    name: String,
    /// The import path of its package.
    package: String,
}

/// Builds the chosen programs that are not in the cache.
pub fn run(options: &Options) -> Result<bool> {
    build(&options.programs).map(|()| true)
}

/// The same for those that tests start.
pub fn ensure() -> Result<()> {
    build(&USED_BY_TESTS.map(str::to_owned))
}

fn build(chosen: &[String]) -> Result<()> {
    let modules = modules()?;
    let all: Vec<(&Module, &Program)> = modules
        .iter()
        .flat_map(|module| module.programs.iter().map(move |program| (module, program)))
        .collect();
    if let Some(unknown) =
        chosen.iter().find(|name| !all.iter().any(|(module, program)| module.shown(program) == **name))
    {
        let known = all.iter().map(|(module, program)| module.shown(program)).collect::<Vec<_>>().join(", ");
        return Err(Error::Usage(format!("no program {unknown:?}; there are {known}")));
    }
    let wanted =
        |module: &Module, program: &Program| chosen.is_empty() || chosen.contains(&module.shown(program));
    let wanted: Vec<_> = all.into_iter().filter(|(module, program)| wanted(module, program)).collect();
    for module in &modules {
        module.link()?;
    }
    let missing: Vec<_> =
        wanted.iter().filter(|(module, program)| !module.cache.join(&program.name).exists()).collect();
    if missing.is_empty() {
        eprintln!("kubernetes: all {} programs present", wanted.len());
    }
    for (index, (module, program)) in missing.iter().enumerate() {
        eprintln!("kubernetes: building {} ({} of {})", module.shown(program), index + 1, missing.len());
        module.build(program)?;
    }
    Ok(())
}

fn modules() -> Result<Vec<Module>> {
    let go = go_version()?;
    let root = artifacts::workspace().join(MODULES);
    let entries = fs::read_dir(&root).map_err(Error::io(format!("list {}", root.display())))?;
    let mut directories: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    directories.retain(|directory| directory.join("go.mod").exists());
    directories.sort();
    directories.into_iter().map(|directory| Module::read(directory, &go)).collect()
}

/// The Go that the PATH leads to, as `go1.26.8`.
fn go_version() -> Result<String> {
    let version = process::output(Command::new("go").args(["env", "GOVERSION"])).map_err(|error| match error {
        Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => Error::Found(
            "the program \"go\" is not installed, and it builds Kubernetes' programs for tests: see https://go.dev/dl"
                .to_owned(),
        ),
        other => other,
    })?;
    Ok(String::from_utf8_lossy(&version).trim().to_owned())
}

/// `$XDG_CACHE_HOME/russet`, by default `~/.cache/russet`.
pub fn cache_dir() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    let cache = cache.ok_or_else(|| Error::Found("neither XDG_CACHE_HOME nor HOME is set".to_owned()))?;
    Ok(cache.join("russet"))
}

/// The lines of a go.mod's blocks and single directives of one kind, as `tool` or `require`.
fn directives<'a>(go_mod: &'a str, kind: &str) -> Vec<&'a str> {
    let mut found = Vec::new();
    let mut block = None;
    for line in go_mod.lines().map(|line| line.split("//").next().unwrap_or_default().trim()) {
        match (block, line.split_once(char::is_whitespace)) {
            (Some(_), None) if line == ")" => block = None,
            (Some(name), _) if name == kind => found.push(line),
            (None, Some((name, "("))) => block = Some(name),
            (None, Some((name, rest))) if name == kind => found.push(rest.trim()),
            _ => {}
        }
    }
    found.retain(|line| !line.is_empty());
    found
}

/// A file of Go code: its path within the module, and its text.
type Source = (PathBuf, String);

/// The Go code of the module itself, in the order of its paths.
fn own_code(module: &Path) -> Result<Vec<Source>> {
    let mut found = Vec::new();
    let mut left = vec![module.to_owned()];
    while let Some(directory) = left.pop() {
        let entries = fs::read_dir(&directory).map_err(Error::io(format!("list {}", directory.display())))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|end| end == "go") {
                let text =
                    fs::read_to_string(&path).map_err(Error::io(format!("read {}", path.display())))?;
                found.push((path.strip_prefix(module).unwrap_or(&path).to_owned(), text));
            }
        }
    }
    found.sort();
    Ok(found)
}

// === impl Module ===

impl Module {
    fn read(directory: PathBuf, go: &str) -> Result<Self> {
        let read = |name: &str| {
            let path = directory.join(name);
            fs::read_to_string(&path).map_err(Error::io(format!("read {}", path.display())))
        };
        Self::new(directory.clone(), &read("go.mod")?, &read("go.sum")?, &own_code(&directory)?, go)
    }

    fn new(directory: PathBuf, go_mod: &str, go_sum: &str, code: &[Source], go: &str) -> Result<Self> {
        let mut key = DefaultHasher::new();
        (go_mod, go_sum, go, BUILD, LINKER).hash(&mut key);
        // Most modules have none, and what they built before others had keeps its place.
        if !code.is_empty() {
            code.hash(&mut key);
        }
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let cache = cache_dir()?.join(LINKS).join(format!("{name}-{:016x}", key.finish()));
        let version =
            directives(go_mod, "require").iter().find_map(|line| line.strip_prefix("k8s.io/kubernetes "));
        let version = version.map(|version| version.trim().to_owned());
        let programs = directives(go_mod, "tool").into_iter().map(Program::of_package).collect();
        Ok(Self { name, directory, version, programs, cache })
    }

    /// How a program is called on the command line and in messages.
    fn shown(&self, program: &Program) -> String {
        format!("{}/{}", self.name, program.name)
    }

    /// Leads tests to the programs; `cargo clean` removes the link only.
    fn link(&self) -> Result<()> {
        let links = artifacts::target_dir().join(LINKS);
        let failed = |path: &Path| Error::io(format!("make {}", path.display()));
        for directory in [&links, &self.cache] {
            fs::create_dir_all(directory).map_err(failed(directory))?;
        }
        let (link, fresh) =
            (links.join(&self.name), links.join(format!(".{}-{}", self.name, std::process::id())));
        std::os::unix::fs::symlink(&self.cache, &fresh).map_err(failed(&fresh))?;
        fs::rename(&fresh, &link).map_err(failed(&link))
    }

    /// Builds a program beside its place and renames it, so that another task never sees half of it.
    fn build(&self, program: &Program) -> Result<()> {
        let began = Instant::now();
        let path = self.cache.join(&program.name);
        let fresh = self.cache.join(format!(".{}-{}", program.name, std::process::id()));
        let mut go = Command::new("go");
        go.current_dir(&self.directory).args(BUILD).arg(format!("-ldflags={}", self.linker_flags()));
        go.arg("-o").arg(&fresh).arg(&program.package);
        // Static programs by the Go at hand: it fetches no other Go, and a newer one that is needed is an error that says so.
        go.env("CGO_ENABLED", "0").env("GOTOOLCHAIN", "local").env("GOWORK", "off");
        process::run(&mut go)?;
        fs::rename(&fresh, &path).map_err(Error::io(format!("make {}", path.display())))?;
        let bytes = fs::metadata(&path).map_err(Error::io(format!("look at {}", path.display())))?.len();
        let seconds = began.elapsed().as_secs();
        eprintln!("kubernetes: {}: {seconds} s, {:.1} MB", self.shown(program), bytes as f64 / 1e6);
        Ok(())
    }

    /// With the version, which Kubernetes' own build gives its programs: clients ask for it, and nodes report it.
    fn linker_flags(&self) -> String {
        let Some(version) = &self.version else { return LINKER.to_owned() };
        let mut numbers = version.trim_start_matches('v').split('.');
        let mut number = || numbers.next().unwrap_or_default();
        let (major, minor) = (number(), number());
        format!(
            "{LINKER} -X {STAMP}.gitVersion={version} -X {STAMP}.gitMajor={major} -X {STAMP}.gitMinor={minor}"
        )
    }
}

// === impl Program ===

impl Program {
    /// Named after its package, without the version of its module.
    fn of_package(package: &str) -> Self {
        let is_version =
            |part: &str| part.strip_prefix('v').is_some_and(|number| number.parse::<u32>().is_ok());
        let last = package.rsplit('/').find(|part| !is_version(part)).unwrap_or(package);
        // The only one whose package is not named after it.
        let name = if package.starts_with("go.etcd.io/etcd/server/") { "etcd" } else { last };
        Self { name: name.to_owned(), package: package.to_owned() }
    }
}

// === impl Options ===

impl Options {
    /// Reads what follows `kubernetes`.
    pub fn parse(mut parser: lexopt::Parser) -> Result<Self> {
        let mut options = Self::default();
        while let Some(argument) = parser.next()? {
            match argument {
                Value(program) => options.programs.push(program.string()?),
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GO_MOD: &str = "module m\n\ngo 1.26.0\n\ntool one.example/a // why\n\ntool (\n\tgo.etcd.io/etcd/server/v3\n\tk8s.io/kubernetes/cmd/kubelet\n)\n\n\
                          require (\n\tx.example/y v1.0.0 // indirect\n\tk8s.io/kubernetes v1.37.2 // indirect\n)\nreplace k8s.io/api => k8s.io/api v0.37.2\n";

    fn module(go_mod: &str, go: &str) -> Module {
        Module::new("tests/kubernetes/newest".into(), go_mod, "", &[], go).unwrap()
    }

    #[test]
    fn a_module_builds_its_tools_and_stamps_its_version() {
        let module = module(GO_MOD, "go1.26.8");
        let names: Vec<&str> = module.programs.iter().map(|program| program.name.as_str()).collect();
        assert_eq!(names, ["a", "etcd", "kubelet"]);
        assert_eq!(module.programs[1].package, "go.etcd.io/etcd/server/v3");
        assert!(module.linker_flags().ends_with(".gitVersion=v1.37.2 -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37"));
    }

    #[test]
    fn other_sources_or_another_compiler_mean_another_place() {
        let place = |go_mod: &str, go| module(go_mod, go).cache;
        let first = place(GO_MOD, "go1.26.8");
        assert_eq!(first, place(GO_MOD, "go1.26.8"));
        assert_ne!(first, place(GO_MOD, "go1.26.9"));
        assert_ne!(first, place(&GO_MOD.replace("1.37.2", "1.37.3"), "go1.26.8"));
        let with_code = |text: &str| {
            let code = [("program/main.go".into(), text.to_owned())];
            Module::new("tests/kubernetes/newest".into(), GO_MOD, "", &code, "go1.26.8").unwrap().cache
        };
        assert_ne!(first, with_code("package main"));
        assert_ne!(with_code("package main"), with_code("package main // changed"));
    }

    #[test]
    fn the_code_of_a_module_is_found_below_it() {
        let code = own_code(&artifacts::workspace().join(MODULES).join("calico")).unwrap();
        assert!(code.iter().any(|(path, _)| path == Path::new("felix-verdict/main.go")), "{code:?}");
    }

    #[test]
    fn every_program_that_tests_start_is_a_tool_of_its_module() {
        let root = artifacts::workspace().join(MODULES);
        for name in USED_BY_TESTS {
            let (module, program) = name.split_once('/').unwrap();
            let module = Module::read(root.join(module), "go").unwrap();
            assert!(module.programs.iter().any(|found| found.name == program), "{name}");
        }
    }
}
