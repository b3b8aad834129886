//! A running worker (crates/bench): a line to it, a line of JSON from it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::artifacts::{self, Profile};
use crate::error::{Error, Result};
use crate::process;

/// It ends when this value is dropped.
pub struct Worker {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

// === impl Worker ===

impl Worker {
    /// Starts that of a benchmark.
    pub fn start(bench: &str, arguments: &[&OsStr]) -> Result<Self> {
        let mut command = Command::new(artifacts::dynamic_path(artifacts::BENCH, Profile::Optimized));
        command.arg(bench).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(Error::io(process::shown(&command)))?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let output = output.ok_or_else(|| Error::Found("the worker has no output".to_owned()))?;
        Ok(Self { process, input, output: BufReader::new(output) })
    }

    /// Waits for the answer; the worker's standard error is ours.
    pub fn ask(&mut self, line: &str) -> Result<Value> {
        let failed = || Error::io(format!("ask the worker for {line:?}"));
        if let Some(input) = &mut self.input {
            input.write_all(format!("{line}\n").as_bytes()).map_err(failed())?;
        }
        let mut answer = String::new();
        self.output.read_line(&mut answer).map_err(failed())?;
        serde_json::from_str(&answer).map_err(|_| Error::Program {
            command: format!("the benchmark's worker: {line}"),
            why: if answer.is_empty() { "it ended".to_owned() } else { answer },
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It ends when its input is closed.
        self.input = None;
        process::kill_tree(self.process.id());
        // Its exit status is irrelevant.
        let _ = self.process.wait();
    }
}
