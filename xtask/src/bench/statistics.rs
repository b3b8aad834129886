//! What all reports share: quantiles, goals, and how the run went.

use std::fmt;

use serde_json::{Value, json};

use crate::bench::quiet::Quiet;

/// By the nearest-rank method: always a value that was really measured; none of no values.
pub fn quantile(values: &[f64], quantile: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let rank = (quantile * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Three digits behind the point, as JSON has all numbers but times.
pub fn rounded(value: f64) -> f64 {
    rounded_to(value, 3)
}

/// `digits` digits behind the point.
pub fn rounded_to(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

/// How a report says whether a goal was reached.
pub fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

/// A goal and what was found.
pub struct Goal {
    text: String,
    found: f64,
    met: bool,
}

/// Notes for people about how a run went, and the foreign share of the CPU before each of its phases.
#[derive(Default)]
pub struct Conditions {
    notes: Vec<String>,
    foreign_cpu: Vec<f64>,
}

// === impl Goal ===

impl Goal {
    pub fn new(text: String, found: f64, at_least: Option<f64>, at_most: Option<f64>) -> Self {
        let met = at_least.is_none_or(|least| found >= least) && at_most.is_none_or(|most| found <= most);
        Self { text, found, met }
    }

    pub fn json(&self) -> Value {
        json!({ "goal": self.text, "found": rounded(self.found), "met": self.met })
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "goal {}: {:.3}, {}", self.text, self.found, verdict(self.met))
    }
}

// === impl Conditions ===

impl Conditions {
    /// Those of a finished run: what it was, notes that explain its table, and the machine.
    pub fn new(run: String, notes: &[&str], quiet: Quiet) -> Self {
        let notes = notes.iter().map(|note| (*note).to_owned());
        let notes = std::iter::once(run).chain(notes).chain(quiet.summary()).collect();
        Self { notes, foreign_cpu: quiet.foreign }
    }

    /// Adds them to a report's JSON, and whether all goals in it were reached.
    pub fn add_to(&self, report: &mut Value) {
        let goals = ["goals", "figures"].into_iter().filter_map(|name| report[name].as_array()).flatten();
        report["goals_met"] = goals.filter_map(|goal| goal["met"].as_bool()).all(|met| met).into();
        report["notes"] = json!(self.notes);
        report["foreign_cpu"] = self.foreign_cpu.iter().copied().map(rounded).collect();
    }
}

impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}
