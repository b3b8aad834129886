//! What was found besides the verdicts of policies.

use std::fmt;

use russet_agent::fast_path::Taken;
use serde::Serialize;

use crate::output;

/// What this node knows of the way between two ends.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The parts of the way, in order.
    pub path: Vec<String>,
    /// What keeps packets from arriving, or differs from what should be.
    pub findings: Vec<Remark>,
    /// What an operator should know; nothing is wrong.
    pub notes: Vec<Remark>,
    /// What the kernel's table of decisions says of ends on this node.
    pub kernel: Vec<KernelVerdict>,
    /// What the fast path of this node does with the flows; empty without an agent.
    pub fast_path: Vec<Taken>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Remark {
    /// What it is about: `route`, `mtu`, ... These words stay.
    pub kind: &'static str,
    pub text: String,
}

/// What the kernel's table of decisions says of one end of a flow.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct KernelVerdict {
    /// The end and the direction, for people.
    pub end: String,
    pub allowed: bool,
    /// Whether the resources say the same.
    pub agrees: bool,
    /// Which element decides.
    pub why: String,
}

// === impl Report ===

impl Report {
    /// A part of the way.
    pub fn fact(&mut self, text: String) {
        if !self.path.contains(&text) {
            self.path.push(text);
        }
    }

    /// Something is wrong.
    pub fn finding(&mut self, kind: &'static str, text: String) {
        add(&mut self.findings, Remark { kind, text });
    }

    /// Nothing is wrong.
    pub fn note(&mut self, kind: &'static str, text: String) {
        add(&mut self.notes, Remark { kind, text });
    }
}

/// Both families, and both ends, often have the same remark.
fn add(remarks: &mut Vec<Remark>, remark: Remark) {
    if !remarks.contains(&remark) {
        remarks.push(remark);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, text: String| writeln!(f, "{}", output::visible(&text));
        for KernelVerdict { end, allowed, agrees, why } in &self.kernel {
            let verdict = if *allowed { "ALLOWED" } else { "DENIED" };
            let agrees = if *agrees { "agrees" } else { "DIFFERS" };
            line(f, format!("  in kernel: {end:<32}  {verdict:<7}  {agrees}: {why}"))?;
        }
        self.path.iter().try_for_each(|text| line(f, format!("  path: {text}")))?;
        self.notes.iter().try_for_each(|it| line(f, format!("  note: {}: {}", it.kind, it.text)))?;
        self.findings.iter().try_for_each(|it| line(f, format!("  FOUND: {}: {}", it.kind, it.text)))
    }
}
