//! A program that runs until a test ends it.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::process::Signal;

use super::LOG_LINES;
use crate::{Machine, Process};

/// A daemon of the calling thread's namespaces or of a machine; dropping it ends it as a crash would.
#[derive(Debug)]
pub struct Daemon {
    program: PathBuf,
    arguments: Vec<String>,
    machine: Option<Arc<Machine>>,
    /// Its standard error, all starts after each other.
    log: PathBuf,
    running: Option<Process>,
}

// === impl Daemon ===

impl Daemon {
    /// One that does not run yet.
    pub fn new(
        program: PathBuf,
        arguments: Vec<String>,
        machine: Option<Arc<Machine>>,
        log: PathBuf,
    ) -> Self {
        Self { program, arguments, machine, log, running: None }
    }

    /// The same, started.
    #[track_caller]
    pub fn started(mut self) -> Self {
        self.start();
        self
    }

    /// Starts it; does not wait until it serves.
    #[track_caller]
    pub fn start(&mut self) {
        assert!(self.running.is_none(), "{} runs already", self.program.display());
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        let mut command = match &self.machine {
            Some(machine) => machine.command(&self.program),
            None => Command::new(&self.program),
        };
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.running = Some(match &self.machine {
            Some(machine) => machine.spawn(&mut command),
            None => Process::start(&mut command),
        });
    }

    /// Ends it as a crash would.
    pub fn kill(&mut self) {
        self.running = None;
    }

    /// Ends it as an operator would.
    pub fn end(&mut self) {
        if let Some(process) = self.running.take() {
            let _ = process.end(Signal::TERM);
        }
    }

    /// Stops the process, connections open.
    pub fn pause(&self) {
        self.running.as_ref().expect("the daemon runs").signal(Signal::STOP);
    }

    /// Continues the process.
    pub fn resume(&self) {
        self.running.as_ref().expect("the daemon runs").signal(Signal::CONT);
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let end = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
            eprintln!("--- end of {}\n{end}", self.log.display());
        }
    }
}
