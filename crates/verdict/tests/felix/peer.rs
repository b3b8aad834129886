//! Felix' own code in a process: `tests/kubernetes/calico/felix-verdict`. A line of JSON for each state, and one with the answers.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use russet_testkit::kubernetes;
use russet_verdict::evaluator::Stage;
use russet_verdict::flow::Flow;
use russet_verdict::ir::Direction;
use serde_json::{Value, json};

/// The node on which both programs judge.
pub const NODE: &str = "here";

/// The first packet of a flow at one end.
#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    /// `NAMESPACE/POD`, or the name of a host endpoint.
    pub end: &'static str,
    /// Where a host endpoint is asked; `None` is a workload.
    pub stage: Option<Stage>,
    /// Seen from the end.
    pub direction: Direction,
    pub flow: Flow,
}

/// What one end says of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    Allowed,
    Denied,
    /// Another stage decides.
    GoesOn,
}

/// The process, which ends with its standard input.
pub struct Felix {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

// === impl Probe ===

impl Probe {
    fn to_json(&self) -> Value {
        let Flow { source, destination, protocol, source_port, destination_port } = self.flow;
        let stage = match self.stage {
            None => "workload",
            Some(Stage::Local) => "local",
            Some(Stage::Forward) => "forward",
            Some(Stage::Untracked) => "untracked",
            Some(Stage::PreDnat) => "preDNAT",
        };
        let direction = match self.direction {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        };
        json!({"endpoint": self.end, "stage": stage, "direction": direction, "source": source,
            "destination": destination, "protocol": protocol.0, "sourcePort": source_port, "destinationPort": destination_port})
    }
}

// === impl Felix ===

impl Felix {
    #[track_caller]
    pub fn start() -> Self {
        let program = kubernetes::require_program("calico", "felix-verdict");
        let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take(), child.stdout.take().unwrap());
        Self { child, input, output: BufReader::new(output).lines() }
    }

    /// The answers to the probes while the documents are in the datastore. An error is a document that Calico
    /// refuses, or that breaks its code.
    pub fn ask(&mut self, documents: &[Value], probes: &[Probe]) -> Result<Vec<Answer>, String> {
        let probes: Vec<Value> = probes.iter().map(Probe::to_json).collect();
        let state = json!({"node": NODE, "resources": documents, "probes": probes});
        writeln!(self.input.as_mut().unwrap(), "{state}").unwrap();
        let answer: Value = serde_json::from_str(&self.output.next().unwrap().unwrap()).unwrap();
        if let Some(error) = answer["error"].as_str() {
            return Err(error.to_owned());
        }
        let letters = answer["verdicts"].as_str().unwrap();
        assert_eq!(letters.len(), probes.len());
        let read = |letter| match letter {
            'a' => Answer::Allowed,
            'd' => Answer::Denied,
            _ => Answer::GoesOn,
        };
        Ok(letters.chars().map(read).collect())
    }
}

impl Drop for Felix {
    fn drop(&mut self) {
        drop(self.input.take());
        _ = self.child.wait();
    }
}
