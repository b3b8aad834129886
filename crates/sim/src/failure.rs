//! What a run can find, and how it is told.

use std::fmt;

use crate::Options;

/// Which rule was broken (ARCHITECTURE.md, invariants 1 and 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ViolationKind {
    /// An address was given to two containers, or to two interfaces.
    TwoOwners,
    /// An address that a runtime was told of is not stored for it.
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
    /// A watch told something else than what is stored.
    Watch,
    /// Nobody can go on, or nobody comes to an end.
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
    /// What was broken in the whole run.
    pub violation: Violation,
    /// The smallest run found that still breaks a rule of the same kind: what each lane does, the faults, the crashes.
    pub shrunk: String,
    /// How many runs it took to get there.
    pub attempts: usize,
    /// What happened in the smallest run, step by step, and what was stored in the end.
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
