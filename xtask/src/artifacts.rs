//! The executables that tests, benchmarks and releases need, built once and found again.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};
use crate::process;

/// A cargo profile of the workspace's Cargo.toml.
#[derive(Clone, Copy)]
pub enum Profile {
    /// For benchmarks.
    Optimized,
    /// For users: smaller, and slow to build.
    Dist,
}

/// The workers of benchmarks (crates/bench).
pub const BENCH: &str = "russet-bench";
/// The process with which `bench cni` compares plugins (crates/bench/src/floor.rs).
pub const FLOOR: &str = "russet-bench-floor";

/// The top of the workspace.
pub fn workspace() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// Where cargo puts what it builds.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

/// `cargo`, the one that runs us, in the workspace.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace());
    cargo
}

/// Builds an executable as usual and returns its path.
pub fn dynamic(name: &str, profile: Profile) -> Result<PathBuf> {
    process::run(&mut build(name, profile, false)?)?;
    Ok(dynamic_path(name, profile))
}

/// Builds an executable that needs no dynamic linker and returns its path. With musl where its
/// target is installed: before main, glibc queries the processor's features, which takes 0.6 ms in
/// a virtual machine.
pub fn statically(name: &str, profile: Profile) -> Result<PathBuf> {
    statically_for(name, profile, &static_triple()?)
}

/// The same for a target that rustup has installed. For another architecture than this machine's,
/// the GCC that Debian has for it compiles C and links.
pub fn statically_for(name: &str, profile: Profile, triple: &str) -> Result<PathBuf> {
    // An explicit target, even the host's, keeps the flag away from build scripts and procedural macros.
    let mut build = build(name, profile, true)?;
    if is_foreign(triple)? {
        let variable = triple.replace('-', "_");
        let compiler = cross_tool(triple, "gcc");
        build.env(format!("CC_{variable}"), &compiler);
        build.env(format!("CARGO_TARGET_{}_LINKER", variable.to_uppercase()), compiler);
    }
    process::run(build.args(["--target", triple]))?;
    Ok(profile.target_dir().join(triple).join(profile.name()).join(name))
}

/// Where [`dynamic`] leaves its file.
pub fn dynamic_path(name: &str, profile: Profile) -> PathBuf {
    profile.target_dir().join(profile.name()).join(name)
}

/// Where [`statically`] leaves its file.
pub fn static_path(name: &str, profile: Profile) -> Result<PathBuf> {
    Ok(profile.target_dir().join(static_triple()?).join(profile.name()).join(name))
}

/// Executables are named after their packages, but for the benchmarks' floor. Without the features
/// of its package it needs only what it links.
fn build(name: &str, profile: Profile, is_static: bool) -> Result<Command> {
    let mut build = cargo();
    build.args(["build", "--profile", profile.name(), "--bin", name, "--package"]);
    match name {
        FLOOR => build.args([BENCH, "--no-default-features"]),
        package => build.arg(package),
    };
    build.arg("--target-dir").arg(profile.target_dir());
    let mut flags: Vec<String> = Vec::new();
    if is_static {
        flags.extend(["-C".to_owned(), "target-feature=+crt-static".to_owned()]);
    }
    if matches!(profile, Profile::Dist) {
        flags.extend(remapped_paths()?);
    }
    if !flags.is_empty() {
        // Paths may contain blanks, which RUSTFLAGS divides.
        build.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    }
    Ok(build)
}

/// Flags with which an executable does not depend on where this clone, cargo's directory and what it builds are: messages of panics name sources.
fn remapped_paths() -> Result<Vec<String>> {
    // The name of the directory of a registry depends on the registry's address, which may be a mirror's.
    process::run(cargo().args(["fetch", "--locked", "--quiet"]))?;
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    let home = home.ok_or_else(|| Error::Found("neither CARGO_HOME nor HOME is set".to_owned()))?;
    let registries = std::fs::read_dir(home.join("registry/src")).into_iter().flatten().flatten();
    let mut pairs = vec![(home.clone(), "cargo")];
    pairs.extend(registries.map(|entry| (entry.path(), "registry")));
    // The last that fits counts, and the target directory may be in the workspace.
    pairs.extend([(workspace().to_owned(), "russet"), (target_dir(), "target")]);
    Ok(pairs.iter().map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display())).collect())
}

/// The host's own target, or the same with musl where that is installed.
pub fn static_triple() -> Result<String> {
    let host = host_triple()?;
    let Some(musl) = host.strip_suffix("-gnu").map(|start| format!("{start}-musl")) else { return Ok(host) };
    Ok(if standard_library(&musl)?.is_dir() { musl } else { host })
}

/// The directory that has Rust's standard library for a target, if that is installed.
pub fn standard_library(triple: &str) -> Result<PathBuf> {
    let sysroot = process::output(Command::new("rustc").args(["--print", "sysroot"]))?;
    Ok(PathBuf::from(String::from_utf8_lossy(&sysroot).trim()).join("lib/rustlib").join(triple).join("lib"))
}

/// True if this machine's processor cannot execute what is built for the target.
pub fn is_foreign(triple: &str) -> Result<bool> {
    Ok(processor(triple) != processor(&host_triple()?))
}

/// A tool of GCC or binutils for a target, under the name that Debian's packages give it.
pub fn cross_tool(triple: &str, tool: &str) -> String {
    format!("{}-linux-gnu-{tool}", processor(triple))
}

/// The first part of a target's name.
pub fn processor(triple: &str) -> &str {
    triple.split('-').next().unwrap_or(triple)
}

pub fn host_triple() -> Result<String> {
    let text = process::output(Command::new("rustc").arg("-vV"))?;
    let text = String::from_utf8_lossy(&text);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| Error::Found("rustc -vV names no host".to_owned()))
}

// === impl Profile ===

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Optimized => "optimized",
            Self::Dist => "dist",
        }
    }

    /// The dist profile shares nothing with the others, and target/dist contains only what users
    /// get.
    fn target_dir(self) -> PathBuf {
        match self {
            Self::Optimized => target_dir(),
            Self::Dist => target_dir().join("dist-build"),
        }
    }
}
