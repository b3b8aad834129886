//! The violations that a run can find, and their report.

use std::fmt;

use crate::Options;

/// The violated rule (ARCHITECTURE.md, invariants 1 and 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ViolationKind {
    /// An address was given to two containers, or to two interfaces.
    TwoOwners,
    /// An address of a successful ADD is not stored for its owner.
    NotStored,
    /// A repeated ADD gave another address than the first.
    OtherAddress,
    /// A block breaks one of the five invariants, or cannot be read.
    BrokenBlock,
    /// An affinity is confirmed, and its block is gone or serves another.
    Affinity,
    /// A handle counts fewer addresses than its blocks hold.
    HandleUnder,
    /// An address is allocated although everything was deleted.
    Leak,
    /// A handle is there although everything was deleted.
    OrphanHandle,
    /// With a healthy store and free addresses, an operation fails.
    Refused,
    /// A watch reported other contents than the stored ones.
    Watch,
    /// No task can make progress, or a task does not end.
    Stuck,
    /// The run could not be set up.
    Setup,
}

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub kind: ViolationKind,
    /// How.
    pub text: String,
}

/// A seed that fails.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Replays with the same options.
    pub seed: u64,
    /// The kind and size of the run.
    pub options: Options,
    /// The violation in the whole run.
    pub violation: Violation,
    /// The smallest run found that violates a rule of the same kind: the operations of each lane,
    /// the faults, the crashes.
    pub shrunk: String,
    /// The number of runs for the reduction.
    pub attempts: usize,
    /// The trace of the smallest run, and the records at its end.
    pub trace: Vec<String>,
}

// === impl Violation ===

impl Violation {
    pub(crate) fn new(kind: ViolationKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.text)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "smallest run ({} tried):\n{}", self.attempts, self.shrunk)?;
        write!(f, "seed {} ({}): {}", self.seed, self.options, self.violation)
    }
}

impl std::error::Error for Failure {}
