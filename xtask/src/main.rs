//! `cargo xtask`: tasks of the workspace: its tests, benchmarks and release files.
//!
//! People call it, and `.ci/run`. It depends on no crate of ours, so that it still runs, and reports, when one
//! of them does not compile.

mod artifacts;
mod bench;
mod bpf;
mod chaos;
mod compatibility;
mod debian_kernel;
mod dist;
mod e2e;
mod elf;
mod error;
mod image;
mod install;
mod kubernetes;
mod manifests;
mod packages;
mod policies;
mod process;
mod release;
mod sim;
mod soak;
mod suite;
mod tar;
mod text_table;
mod upgrade;

use std::process::ExitCode;

use lexopt::prelude::{Long, Short, Value, ValueExt};

use crate::debian_kernel::DebianKernel;
use crate::error::{Error, Result};

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test [--only LAYER]... [-p CRATE]...   install what is missing, then run every layer of tests
  ci                                     the same as test; what .ci/run calls
  gen                                    writes what is generated: docs/compatibility.md, packaging/kubernetes/*.yaml
  gen bpf                                compiles the BPF programs, crates/linux/bpf/*.o; installs clang-19 if it is missing
  dist [--no-memory]                     release files in target/dist, their sizes and the agents' memory
  dist --packages [--only deb|rpm|archive|image|sbom]... [--output DIR] [--version V] [--executables DIR] [--debug-executables] [--target TRIPLE]...
                                         .deb, .rpm and static archive of each target, a container image for all of them, SBOM and checksums in target/dist/packages
  image [--output FILE] [--name NAME:TAG] [--executables DIR] [--debug-executables]   a container image as an OCI archive
  install [ARGUMENTS OF russet install]  builds the release files and installs them on this machine
  kubernetes [MODULE/PROGRAM]...         builds the programs of tests/kubernetes that are not in ~/.cache/russet; needs Go
  e2e [TEST]...                          whole Kubernetes clusters of three nodes; prints how long each step takes
  bench NAME [-o table|json] [--rounds N] [--impl NAME]... [--only PART]... [--busy] [--no-build]
  bench overlay [--plot[=FILE]] [--plot-from REPORT]   also draws the throughput, docs/images/overlay.svg; from an earlier report without measuring
  sim [--seeds N] [--seed S] [--writers ours|mixed] [--mode atomic|one-by-one]   simulated clusters; --help for more
  chaos [--ops N] [--kills N] [--cuts N] [--seed S] [--field NAME]...   kill -9 and power cuts among operations of runtimes
  soak                                   2,000 seeds of each kind of simulated cluster; 300 policy sets with real packets; upgrade; old-kernel; new-kernel; the fast path without TCX; kill -9 at 200 moments of real clusters; chaos
  old-kernel                             tests on Debian's kernel in a virtual machine: without TCX, with wireguard, ipvlan, vlan, vrf, dummy
  new-kernel                             the same on the kernel of Debian's backports, with netkit
  new-kernel --instructions              counts there what the fast path needs with netkit pairs, beside veths
  upgrade [--from COMMIT]                an upgrade from an earlier release and back, under traffic; builds that release, unless RUSSET_PREVIOUS names its command

fields: embedded etcd calico power-embedded power-etcd
layers: format lint unit supply sim budget kubernetes kernel program cluster
benches: cni cri ipam calico overlay flanneld kubernetes policy agents
";

enum Command {
    Help,
    Test(suite::Options),
    Gen,
    GenBpf,
    Dist(dist::Options),
    Image(image::Options),
    Install(install::Options),
    Kubernetes(kubernetes::Options),
    E2e(e2e::Options),
    Bench(bench::Options),
    Chaos(chaos::Options),
    Sim(sim::Options),
    Soak(sim::Options),
    Upgrade(upgrade::Options),
    DebianKernel(DebianKernel),
    CountInstructions,
}

fn main() -> ExitCode {
    let done = parse(lexopt::Parser::from_env()).and_then(|command| match command {
        Command::Help => {
            print!("{USAGE}");
            Ok(true)
        }
        Command::Test(options) => suite::run(&options),
        Command::Gen => generate(),
        Command::GenBpf => bpf::generate(),
        Command::Dist(options) => dist::run(&options),
        Command::Image(options) => image::run(&options),
        Command::Install(options) => install::run(&options),
        Command::Kubernetes(options) => kubernetes::run(&options),
        Command::E2e(options) => e2e::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Chaos(options) => chaos::run(&options),
        Command::Sim(options) => sim::run(&options),
        Command::Soak(options) => soak::run(&options),
        Command::Upgrade(options) => upgrade::run(&options),
        Command::DebianKernel(which) => debian_kernel::run(which),
        Command::CountInstructions => debian_kernel::instructions::run(),
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::from(if matches!(error, Error::Usage(_)) { 2 } else { 1 })
        }
    }
}

fn parse(mut parser: lexopt::Parser) -> Result<Command> {
    let Some(first) = parser.next()? else { return Err(Error::Usage(USAGE.to_owned())) };
    let name = match first {
        Long("help") | Short('h') => return Ok(Command::Help),
        Value(name) => name.string()?,
        other => return Err(other.unexpected().into()),
    };
    match name.as_str() {
        "help" => Ok(Command::Help),
        "test" | "ci" => suite::Options::parse(parser).map(Command::Test),
        "gen" => match parser.next()? {
            None => Ok(Command::Gen),
            Some(Value(what)) if what == "bpf" => match parser.next()? {
                None => Ok(Command::GenBpf),
                Some(extra) => Err(extra.unexpected().into()),
            },
            Some(extra) => Err(extra.unexpected().into()),
        },
        "dist" => dist::Options::parse(parser).map(Command::Dist),
        "image" => image::Options::parse(parser).map(Command::Image),
        "install" => install::Options::parse(parser).map(Command::Install),
        "kubernetes" => kubernetes::Options::parse(parser).map(Command::Kubernetes),
        "e2e" => e2e::Options::parse(parser).map(Command::E2e),
        "bench" => bench::Options::parse(parser).map(Command::Bench),
        "chaos" => chaos::Options::parse(parser).map(Command::Chaos),
        "sim" => sim::Options::parse(parser).map(Command::Sim),
        "soak" => sim::Options::soak(parser).map(Command::Soak),
        "upgrade" => upgrade::Options::parse(parser).map(Command::Upgrade),
        "old-kernel" => match parser.next()? {
            None => Ok(Command::DebianKernel(DebianKernel::Old)),
            Some(extra) => Err(extra.unexpected().into()),
        },
        "new-kernel" => match parser.next()? {
            None => Ok(Command::DebianKernel(DebianKernel::New)),
            Some(Long("instructions")) => Ok(Command::CountInstructions),
            Some(extra) => Err(extra.unexpected().into()),
        },
        _ => Err(Error::Usage(format!("unknown command {name:?}\n{USAGE}"))),
    }
}

/// Writes the files that are made from other files.
fn generate() -> Result<bool> {
    let root = artifacts::workspace();
    let page = compatibility::page(root).map_err(|problems| Error::Found(problems.join("\n")))?;
    let mut files = manifests::files(root).map_err(Error::Found)?;
    files.insert(compatibility::PAGE.to_owned(), page);
    for (file, text) in files {
        let path = root.join(&file);
        std::fs::write(&path, text).map_err(Error::io(format!("write {}", path.display())))?;
        println!("{file}");
    }
    Ok(true)
}
