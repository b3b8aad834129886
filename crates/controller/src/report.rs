//! What a look found and did, for people and for programs.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use crate::collector::LIMITED;
use crate::gone::{Phase, Stop};

/// One look. `schema` is raised when a member changes its meaning.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub schema: u32,
    /// Nothing was written, because nothing was to be written.
    pub dry_run: bool,
    /// Why findings are reported only; none if they are acted upon.
    pub reports_only: Option<String>,
    /// Too much vanished at once.
    pub stopped: Option<Stop>,
    pub nodes: Vec<NodeReport>,
    pub handles: Vec<HandleReport>,
    /// There is more to do, which the limits of one look do not permit.
    pub limited: bool,
}

/// A node without an object.
#[derive(Debug, Clone, Serialize)]
pub struct NodeReport {
    pub node: String,
    /// How long it has been without an object, and its agent silent, in seconds.
    pub silent_s: u64,
    /// `waiting`, `addresses` or `everything`: what may be freed.
    pub phase: &'static str,
    pub addresses: Vec<AddressReport>,
    /// Blocks to which it has an affinity.
    pub blocks: BTreeSet<String>,
    /// Nothing of it is left.
    pub is_clean: bool,
    /// Why it was left alone.
    pub error: Option<String>,
}

/// An address of such a node.
#[derive(Debug, Clone, Serialize)]
pub struct AddressReport {
    pub address: String,
    pub handle: Option<String>,
    pub pod: Option<String>,
    pub outcome: Outcome,
    pub reason: String,
}

/// A handle whose counts are wrong.
#[derive(Debug, Clone, Serialize)]
pub struct HandleReport {
    pub handle: String,
    /// No address has it.
    pub is_orphan: bool,
    pub outcome: Outcome,
}

/// What became of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It waits for the grace period, for a second look, or for the limits of the next one.
    Waiting,
    /// It would be freed.
    WouldFree,
    Freed,
    /// Something has it.
    Kept,
    /// It is of a kind that is not known here.
    Unknown,
    /// It changed, or the API server failed; it is looked at again.
    Failed,
}

// === impl Report ===

impl Report {
    pub const SCHEMA: u32 = 1;

    pub fn new(dry_run: bool) -> Self {
        let (reports_only, stopped) = (None, None);
        let (nodes, handles) = (Vec::new(), Vec::new());
        Self { schema: Self::SCHEMA, dry_run, reports_only, stopped, nodes, handles, limited: false }
    }

    /// Whether another look can still free something by itself.
    pub fn is_pending(&self) -> bool {
        // What was freed may permit more: a block is released when it has no address left.
        let waits = |outcome: Outcome| matches!(outcome, Outcome::Waiting | Outcome::Failed | Outcome::Freed);
        let acts = self.reports_only.is_none() && self.stopped.is_none();
        let nodes = self.nodes.iter().filter(|node| !node.is_clean);
        acts && (self.limited
            || nodes.clone().any(|node| node.phase != phase_name(Phase::Everything) || node.error.is_some())
            || nodes.flat_map(|node| &node.addresses).any(|address| waits(address.outcome))
            || self.handles.iter().any(|handle| waits(handle.outcome)))
    }

    /// Whether something could not be done, for another reason than a limit.
    pub fn has_failed(&self) -> bool {
        let is_limit = |error: &String| error == LIMITED;
        let mut nodes = self.nodes.iter().filter(|node| !node.is_clean);
        nodes.any(|node| node.error.as_ref().is_some_and(|error| !is_limit(error)))
    }

    pub fn has_freed(&self) -> bool {
        let addresses = self.nodes.iter().flat_map(|node| &node.addresses).map(|it| it.outcome);
        let handles = self.handles.iter().map(|it| it.outcome);
        self.nodes.iter().any(|node| node.is_clean) || addresses.chain(handles).any(|it| it == Outcome::Freed)
    }

    /// Whether something needs an operator.
    pub fn has_problems(&self) -> bool {
        self.stopped.is_some()
            || self.nodes.iter().flat_map(|node| &node.addresses).any(|it| it.outcome == Outcome::Unknown)
    }
}

pub(crate) fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Waiting => "waiting",
        Phase::Addresses => "addresses",
        Phase::Everything => "everything",
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(reason) = &self.reports_only {
            writeln!(f, "reported only: {reason}")?;
        }
        if let Some(stop) = &self.stopped {
            let nodes: Vec<&str> = stop.nodes.iter().map(String::as_str).collect();
            writeln!(
                f,
                "stopped: {}; `russet gc resume` confirms that they are gone: {}",
                stop.reason,
                nodes.join(" ")
            )?;
        }
        for node in &self.nodes {
            let NodeReport { node: name, silent_s, phase, blocks, .. } = node;
            let state = if node.is_clean { "clean" } else { phase };
            writeln!(f, "node {name}: no object, silent for {silent_s} s, {} blocks, {state}", blocks.len())?;
            for it in &node.addresses {
                let pod = it.pod.as_ref().map(|pod| format!(" of pod {pod}")).unwrap_or_default();
                writeln!(f, "  {}{pod}: {}: {}", it.address, it.outcome, it.reason)?;
            }
            if let Some(error) = &node.error {
                writeln!(f, "  left alone: {error}")?;
            }
        }
        for handle in &self.handles {
            let what = if handle.is_orphan { "has no address" } else { "counts wrongly" };
            writeln!(f, "handle {}: {what}: {}", handle.handle, handle.outcome)?;
        }
        writeln!(f, "{} nodes without an object, {} handles", self.nodes.len(), self.handles.len())
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Waiting => "waits",
            Self::WouldFree => "would be freed",
            Self::Freed => "freed",
            Self::Kept => "kept",
            Self::Unknown => "unknown, kept",
            Self::Failed => "not freed",
        })
    }
}
