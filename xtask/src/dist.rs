//! `cargo xtask dist`: the files that users get, in target/dist, held against their limits.
//!
//! A file over its limit, or a `russet-cni` that needs a dynamic linker, is a failure. Memory has goals, not limits:
//! it is measured on the agents of a small demo, and printed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lexopt::prelude::Long;
use serde_json::Value;

use crate::artifacts::{self, Profile};
use crate::error::{Error, Result};
use crate::text_table::TextTable;
use crate::{elf, packages, process, release};

/// What the command line asks for.
#[derive(Default)]
pub struct Options {
    no_memory: bool,
    /// Only packages, with what they are made from.
    packages: bool,
    release: release::Options,
}

/// A file for users.
struct Product {
    package: &'static str,
    /// Started for each pod, on hosts of every age.
    is_static: bool,
    /// Growing past this is a decision, not an accident.
    limit_bytes: u64,
}

const PRODUCTS: [Product; 2] = [
    Product { package: "russet-cni", is_static: true, limit_bytes: 1_500_000 },
    Product { package: "russet", is_static: false, limit_bytes: 15_000_000 },
];

const HEADING: [&str; 5] = ["file", "bytes", "limit", "linking", "verdict"];

/// Goals for an agent process with a few pods.
const RSS_GOAL_BYTES: u64 = 10_000_000;
const RSS_ANON_GOAL_BYTES: u64 = 4_000_000;

/// An agent's memory.
#[derive(Debug, PartialEq, Eq)]
struct Memory {
    rss_bytes: u64,
    rss_anon_bytes: u64,
}

/// Builds, copies, measures; true when every file keeps its limits.
pub fn run(options: &Options) -> Result<bool> {
    if options.packages {
        return release::run(&options.release);
    }
    let directory = directory()?;
    let mut table = TextTable::new(1, HEADING);
    let mut good = true;
    for product in &PRODUCTS {
        good &= product.measure(&product.build_into(&directory)?, &mut table)?;
    }
    write_sums(&directory)?;
    println!("\n{table}");
    match options.no_memory || !packages::is_root() {
        true => println!("memory: not measured (it needs root, and no --no-memory)"),
        false => measure_memory(&directory.join("russet"))?,
    }
    Ok(good)
}

/// Builds the files that users get, without measuring them; gives the directory that has them.
pub fn build() -> Result<PathBuf> {
    let directory = directory()?;
    for product in &PRODUCTS {
        product.build_into(&directory)?;
    }
    Ok(directory)
}

/// Builds the executable that is started for each pod as users get it; an error unless it keeps its limits.
pub fn check_plugin() -> Result<()> {
    let [plugin, _] = &PRODUCTS;
    let mut table = TextTable::new(1, HEADING);
    let good = plugin.measure(&plugin.build_into(&directory()?)?, &mut table)?;
    println!("{table}");
    if good { Ok(()) } else { Err(Error::Found(format!("{} does not keep its limits", plugin.package))) }
}

fn directory() -> Result<PathBuf> {
    let directory = artifacts::target_dir().join("dist");
    fs::create_dir_all(&directory).map_err(Error::io(format!("create {}", directory.display())))?;
    Ok(directory)
}

fn write_sums(directory: &Path) -> Result<()> {
    let mut sha256sum = Command::new("sha256sum");
    sha256sum.current_dir(directory).args(PRODUCTS.iter().map(|product| product.package));
    let sums = process::output(&mut sha256sum)?;
    print!("{}", String::from_utf8_lossy(&sums));
    let path = directory.join("SHA256SUMS");
    fs::write(&path, sums).map_err(Error::io(format!("write {}", path.display())))
}

/// Starts a demo, looks at its agents, and removes it whatever happened.
fn measure_memory(russet: &Path) -> Result<()> {
    println!("memory: starting a demo");
    let demo = process::output(Command::new(russet).args(["demo", "--keep", "-o", "json"]));
    let table = demo.and_then(|json| memory_table(&json));
    process::run(Command::new(russet).args(["demo", "--clean"]))?;
    println!("\n{}", table?);
    Ok(())
}

fn memory_table(demo: &[u8]) -> Result<TextTable> {
    let (rss_goal, anon_goal) = (RSS_GOAL_BYTES as f64 / 1e6, RSS_ANON_GOAL_BYTES as f64 / 1e6);
    let heading = [
        "agent".to_owned(),
        "pid".to_owned(),
        format!("RSS MB (goal {rss_goal})"),
        format!("RssAnon MB (goal {anon_goal})"),
        "verdict".to_owned(),
    ];
    let mut table = TextTable::new(1, heading);
    for (node, pid) in agents(demo)? {
        let path = format!("/proc/{pid}/status");
        let status = fs::read_to_string(&path).map_err(Error::io(format!("read {path}")))?;
        let memory = Memory::parse(&status).ok_or_else(|| {
            Error::Found(format!("{path} has no memory figures: the agent of {node} has ended"))
        })?;
        let verdict = if memory.meets_the_goals() { "met" } else { "missed" };
        let megabytes = |bytes: u64| format!("{:.2}", bytes as f64 / 1e6);
        let numbers = [megabytes(memory.rss_bytes), megabytes(memory.rss_anon_bytes)];
        table.row([node, pid.to_string()].into_iter().chain(numbers).chain([verdict.to_owned()]));
    }
    Ok(table)
}

/// Node names and agents' pids in the demo's JSON.
fn agents(demo: &[u8]) -> Result<Vec<(String, u64)>> {
    let wrong = |what: &str| Error::Found(format!("russet demo -o json: {what}"));
    let demo: Value = serde_json::from_slice(demo).map_err(|error| wrong(&error.to_string()))?;
    let nodes =
        demo["nodes"].as_array().filter(|nodes| !nodes.is_empty()).ok_or_else(|| wrong("no nodes"))?;
    let agent = |node: &Value| match (node["name"].as_str(), node["agent_pid"].as_u64()) {
        (Some(name), Some(pid)) => Ok((name.to_owned(), pid)),
        _ => Err(wrong(&format!("a node without name or agent_pid: {node}"))),
    };
    nodes.iter().map(agent).collect()
}

// === impl Options ===

impl Options {
    /// Reads what follows `dist`.
    pub fn parse(mut parser: lexopt::Parser) -> Result<Self> {
        let mut options = Self::default();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("no-memory") => options.no_memory = true,
                Long("packages") => options.packages = true,
                Long(name) if options.packages => {
                    let name = name.to_owned();
                    if !options.release.take(&name, &mut parser)? {
                        return Err(Long(&name).unexpected().into());
                    }
                }
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(options)
    }
}

// === impl Product ===

impl Product {
    fn build_into(&self, directory: &Path) -> Result<PathBuf> {
        let built = match self.is_static {
            true => artifacts::statically(self.package, Profile::Dist)?,
            false => artifacts::dynamic(self.package, Profile::Dist)?,
        };
        let path = directory.join(self.package);
        // A running executable cannot be written to, but its name can be given to another file.
        let fresh = directory.join(format!(".{}.new", self.package));
        let copied = fs::copy(&built, &fresh).and_then(|_| fs::rename(&fresh, &path));
        copied.map_err(Error::io(format!("copy {} to {}", built.display(), path.display())))?;
        Ok(path)
    }

    /// Adds a row about the file; true when it is as agreed.
    fn measure(&self, path: &Path, table: &mut TextTable) -> Result<bool> {
        let content = fs::read(path).map_err(Error::io(format!("read {}", path.display())))?;
        let interpreter =
            elf::interpreter(&content).map_err(|why| Error::Found(format!("{}: {why}", path.display())))?;
        let bytes = content.len() as u64;
        let verdict = match &interpreter {
            Some(_) if self.is_static => "NOT STATIC",
            _ if bytes >= self.limit_bytes => "TOO LARGE",
            _ => "ok",
        };
        let linking = interpreter.map_or_else(|| "static".to_owned(), |linker| format!("dynamic, {linker}"));
        let numbers = [bytes.to_string(), self.limit_bytes.to_string()];
        table.row([self.package.to_owned()].into_iter().chain(numbers).chain([linking, verdict.to_owned()]));
        Ok(verdict == "ok")
    }
}

// === impl Memory ===

impl Memory {
    /// Reads /proc/PID/status; its `kB` are 1,024 bytes.
    fn parse(status: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
        };
        Some(Self { rss_bytes: field("VmRSS:")?, rss_anon_bytes: field("RssAnon:")? })
    }

    fn meets_the_goals(&self) -> bool {
        self.rss_bytes <= RSS_GOAL_BYTES && self.rss_anon_bytes <= RSS_ANON_GOAL_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_kilobytes_are_1024_bytes() {
        let memory = Memory::parse("Name:\ta\nVmRSS:\t    8000 kB\nRssAnon:\t    1000 kB\n").unwrap();
        assert_eq!(memory, Memory { rss_bytes: 8_192_000, rss_anon_bytes: 1_024_000 });
        assert!(memory.meets_the_goals());
    }

    #[test]
    fn a_demo_that_names_no_agents_is_an_error() {
        assert!(agents(br#"{"nodes":[{"name":"node-1","agent_pid":7}]}"#).is_ok());
        assert!(agents(br#"{"nodes":[]}"#).is_err());
        assert!(agents(br#"{"nodes":[{"name":"node-1"}]}"#).is_err());
    }
}
