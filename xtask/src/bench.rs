//! `cargo xtask bench NAME`: measures the cost of operations, ours beside those of other programs,
//! in the same minutes and by the same caller.
//!
//! A benchmark returns its [findings](Printed); this module prints them, as a table or as JSON.

mod agents;
mod calico;
mod cni;
mod cri;
mod flanneld;
mod gateway;
mod inside;
mod ipam;
mod kubernetes;
mod overlay;
mod policy;
mod proc;
mod quiet;
mod report;
mod rows;
mod shuffle;
mod statistics;

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use lexopt::prelude::{Long, Short, Value, ValueExt};

use serde_json::Value as Json;

use crate::artifacts;
use crate::error::{Error, Result};

/// The parsed command line.
pub struct Options {
    bench: Bench,
    json: bool,
    rounds: u32,
    /// Implementations to run; all when empty.
    only: Vec<String>,
    /// Parts of the benchmark to run; all when empty.
    parts: Vec<String>,
    /// Uses the executables of an earlier run.
    no_build: bool,
    /// Does not wait for a quiet machine; the report says how busy it was.
    busy: bool,
    /// Writes a picture of the findings there.
    plot: Option<PathBuf>,
    /// Measures nothing, and draws the findings of this report.
    plot_from: Option<PathBuf>,
    /// Set when the benchmark started itself again inside its own namespaces: the directory where
    /// it may write.
    inside: Option<PathBuf>,
}

/// A benchmark.
#[derive(Clone, Copy)]
struct Bench {
    name: &'static str,
    /// The parts that can be run alone, with `--only`.
    parts: &'static [&'static str],
    run: fn(&Options) -> Result<FoundReport>,
}

/// The findings of a benchmark: a table for people by `Display`, and JSON for programs.
trait Printed: fmt::Display {
    /// The report for programs.
    fn json(&self) -> Json;
}

/// None when the benchmark started itself again, and that process has printed the report.
type FoundReport = Option<Box<dyn Printed>>;

const BENCHES: &[Bench] = &[
    Bench { name: "cni", parts: &cni::PARTS, run: cni::run },
    Bench { name: "cri", parts: &[], run: cri::run },
    Bench { name: "ipam", parts: &[], run: ipam::run },
    Bench { name: "calico", parts: &[], run: calico::run },
    Bench { name: "overlay", parts: &[], run: overlay::run },
    Bench { name: "flanneld", parts: &[], run: flanneld::run },
    Bench { name: "kubernetes", parts: &[], run: kubernetes::run },
    Bench { name: "policy", parts: &policy::PARTS, run: policy::run },
    Bench { name: "agents", parts: &[], run: agents::run },
];

/// The benchmark of which a picture is drawn.
const PLOTTED: &str = "overlay";

/// With fewer rounds, one lucky order shows in the result.
const MIN_ROUNDS: u32 = 5;

/// Runs the benchmark and prints its report on standard output; progress goes to standard error.
pub fn run(options: &Options) -> Result<bool> {
    if let Some(report) = (options.bench.run)(options)? {
        match options.json {
            true => println!("{}", report.json()),
            false => print!("{report}"),
        }
    }
    Ok(true)
}

// === impl Options ===

impl Options {
    /// Parses the arguments after `bench`.
    pub fn parse(mut parser: lexopt::Parser) -> Result<Self> {
        let mut bench = None;
        let (mut json, mut rounds, mut only, mut parts) = (false, MIN_ROUNDS, Vec::new(), Vec::new());
        let (mut no_build, mut busy, mut inside) = (false, false, None);
        let (mut plot, mut plot_from) = (None, None);
        while let Some(argument) = parser.next()? {
            match argument {
                Value(name) if bench.is_none() => bench = Some(find(&name.string()?)?),
                Short('o') | Long("output") => json = is_json(&parser.value()?.string()?)?,
                Long("rounds") => rounds = parser.value()?.parse()?,
                Long("impl") => only.push(parser.value()?.string()?),
                Long("only") => parts.push(parser.value()?.string()?),
                Long("no-build") => no_build = true,
                Long("busy") => busy = true,
                Long("plot") => plot = Some(plot_file(&mut parser)),
                Long("plot-from") => plot_from = Some(parser.value()?.into()),
                Long("inside") => inside = Some(parser.value()?.into()),
                other => return Err(other.unexpected().into()),
            }
        }
        let bench = bench.ok_or_else(|| Error::Usage(format!("which benchmark? {}", names())))?;
        if let Some(part) = parts.iter().find(|part| !bench.parts.contains(&part.as_str())) {
            let parts = bench.parts.join(", ");
            return Err(Error::Usage(format!("bench {} has no part {part:?}; it has: {parts}", bench.name)));
        }
        if (plot.is_some() || plot_from.is_some()) && bench.name != PLOTTED {
            return Err(Error::Usage(format!("bench {} has no picture; {PLOTTED} has one", bench.name)));
        }
        let rounds = rounds.max(1);
        Ok(Self { bench, json, rounds, only, parts, no_build, busy, plot, plot_from, inside })
    }

    fn does(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|name| name == part)
    }

    fn wants(&self, subject: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == subject)
    }

    /// Refuses names of implementations that the benchmark does not have.
    fn check_subjects<'a>(&self, subjects: impl IntoIterator<Item = &'a str>) -> Result<()> {
        let known: Vec<&str> = subjects.into_iter().collect();
        match self.only.iter().find(|name| !known.contains(&name.as_str())) {
            Some(name) => Err(Error::Usage(format!("no impl {name:?}; there are: {}", known.join(", ")))),
            None => Ok(()),
        }
    }

    /// Waits before phases, unless the machine may be busy.
    fn quiet(&self) -> quiet::Quiet {
        if self.busy { quiet::Quiet::impatient() } else { quiet::Quiet::default() }
    }

    /// The same command line again, for the run inside the benchmark's own namespaces.
    fn inside_arguments(&self, directory: &std::path::Path) -> Vec<std::ffi::OsString> {
        let format = if self.json { "json" } else { "table" };
        let rounds = self.rounds.to_string();
        let mut words: Vec<std::ffi::OsString> =
            ["bench", self.bench.name, "-o", format, "--rounds", &rounds, "--inside"].map(Into::into).into();
        words.push(directory.into());
        for name in &self.only {
            words.extend(["--impl".into(), name.into()]);
        }
        if self.busy {
            words.push("--busy".into());
        }
        for part in &self.parts {
            words.extend(["--only".into(), part.into()]);
        }
        words
    }
}

/// The file of `--plot=FILE`, or the one in the documents.
fn plot_file(parser: &mut lexopt::Parser) -> PathBuf {
    parser.optional_value().map_or_else(|| artifacts::workspace().join(overlay::plot::FILE), PathBuf::from)
}

/// A seed for the order of samples.
fn seed() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64)
}

fn find(name: &str) -> Result<Bench> {
    let found = BENCHES.iter().find(|bench| bench.name == name).copied();
    found.ok_or_else(|| Error::Usage(format!("no benchmark {name:?}; there are: {}", names())))
}

fn names() -> String {
    BENCHES.iter().map(|bench| bench.name).collect::<Vec<_>>().join(", ")
}

fn is_json(format: &str) -> Result<bool> {
    match format {
        "json" => Ok(true),
        "table" => Ok(false),
        other => Err(Error::Usage(format!("-o {other}: `table` or `json` is wanted"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Options> {
        Options::parse(lexopt::Parser::from_args(words))
    }

    #[test]
    fn a_picture_is_asked_for_with_or_without_a_file() {
        let options = parse(&["overlay", "--plot", "--rounds", "2"]).unwrap();
        assert_eq!(
            (options.plot, options.rounds),
            (Some(artifacts::workspace().join(overlay::plot::FILE)), 2)
        );
        let options = parse(&["overlay", "--plot=a.svg", "--plot-from", "a.json"]).unwrap();
        assert_eq!((options.plot, options.plot_from), (Some("a.svg".into()), Some("a.json".into())));
        assert!(parse(&["overlay"]).unwrap().plot.is_none());
        let error = parse(&["cni", "--plot"]).err().unwrap().to_string();
        assert!(error.contains("bench cni has no picture"), "{error}");
    }
}
