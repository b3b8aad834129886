//! Calls a plugin as container runtimes do, and takes the time from spawn to exit.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench::cni::scratch::Sandbox;
use crate::bench::cni::subject::Subject;
use crate::error::{Error, Result};

/// The verbs that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Add,
    Del,
    Status,
    Version,
}

/// The subject's arguments for a pod; prepared before the measurement begins.
struct PodArguments {
    container: String,
    arguments: String,
}

/// Where delegating plugins look for others, behind their own directory: Debian's.
const CNI_PATH: &str = "/usr/lib/cni";

/// Calls for all pods before reading any answer; the time until the last has ended. An error when a plugin answers with one.
pub fn call_at_once(subject: &Subject, verb: Verb, pods: &[Sandbox]) -> Result<Duration> {
    let arguments: Vec<PodArguments> = pods.iter().map(|pod| PodArguments::by(subject, pod)).collect();
    let failed = |source| Error::Io { operation: format!("{}: {}", subject.name, verb.name()), source };
    let began = Instant::now();
    let children: Vec<Child> = pods
        .iter()
        .zip(&arguments)
        .map(|(pod, arguments)| spawn(subject, verb, pod, arguments))
        .collect::<std::io::Result<_>>()
        .map_err(failed)?;
    let answers: Vec<(bool, Vec<u8>)> =
        children.into_iter().map(finish).collect::<std::io::Result<_>>().map_err(failed)?;
    let took = began.elapsed();
    answers.iter().try_for_each(|(succeeded, answer)| check(subject, verb, *succeeded, answer))?;
    Ok(took)
}

fn spawn(subject: &Subject, verb: Verb, pod: &Sandbox, arguments: &PodArguments) -> std::io::Result<Child> {
    let PodArguments { container, arguments } = arguments;
    let mut command = Command::new(&subject.plugin);
    command.env_clear().env("CNI_COMMAND", verb.name()).env("CNI_CONTAINERID", container);
    command.env("CNI_NETNS", &pod.netns).env("CNI_IFNAME", "eth0");
    let own = subject.plugin.parent().unwrap_or(Path::new("/"));
    command.env("CNI_PATH", format!("{}:{CNI_PATH}", own.display()));
    if !arguments.is_empty() {
        command.env("CNI_ARGS", arguments);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(subject.config.as_bytes())?;
    }
    Ok(child)
}

fn finish(mut child: Child) -> std::io::Result<(bool, Vec<u8>)> {
    let mut answer = Vec::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_end(&mut answer)?;
    }
    Ok((child.wait()?.success(), answer))
}

/// A plugin that does nothing is fast: an ADD must answer with an address.
fn check(subject: &Subject, verb: Verb, succeeded: bool, answer: &[u8]) -> Result<()> {
    let addressed = || {
        let result: Option<serde_json::Value> = serde_json::from_slice(answer).ok();
        result.is_some_and(|result| result["ips"].as_array().is_some_and(|ips| !ips.is_empty()))
    };
    if succeeded && (verb != Verb::Add || addressed()) {
        return Ok(());
    }
    let answer = String::from_utf8_lossy(answer);
    Err(Error::Found(format!("{}: {} answered {}", subject.name, verb.name(), answer.trim())))
}

// === impl Said ===

impl PodArguments {
    fn by(subject: &Subject, pod: &Sandbox) -> Self {
        Self { container: (subject.container)(pod), arguments: (subject.arguments)(pod) }
    }
}

// === impl Verb ===

impl Verb {
    /// As `CNI_COMMAND` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }
}
