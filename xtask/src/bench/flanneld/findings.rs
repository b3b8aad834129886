//! What the benchmark found: medians, and whether they meet the goals.

use std::fmt;

use serde_json::{Value, json};

use crate::bench::Printed;
use crate::bench::flanneld::{ANON, IDLE, ONE_MORE, PEAK, PROGRAM, RSS, START};
use crate::text_table::TextTable;

/// All rows, in the order in which they came.
#[derive(Default)]
pub struct Findings {
    rows: Vec<(&'static str, Vec<f64>)>,
    pub notes: Vec<String>,
    /// The foreign share of the CPU before each phase.
    pub foreign_cpu: Vec<f64>,
}

/// The most that a median may be, and what flanneld 0.20 was measured with (flannel.md section 11).
struct Goal {
    test: &'static str,
    at_most: f64,
    original: &'static str,
}

/// The goals.
const GOALS: [Goal; 6] = [
    Goal { test: START, at_most: 15.0, original: "109" },
    Goal { test: RSS[0], at_most: 10.0, original: "35" },
    Goal { test: RSS[1], at_most: 30.0, original: "39 at 1,000" },
    Goal { test: PROGRAM[0][0], at_most: 300.0, original: "760 for 1,000" },
    Goal { test: PROGRAM[1][0], at_most: 600.0, original: "-" },
    Goal { test: ONE_MORE, at_most: 1.0, original: "-" },
];

// === impl Findings ===

impl Findings {
    /// Adds a sample.
    pub fn add(&mut self, test: &'static str, value: f64) {
        match self.rows.iter_mut().find(|(name, _)| *name == test) {
            Some((_, values)) => values.push(value),
            None => self.rows.push((test, vec![value])),
        }
    }

    /// Each goal that was measured, with the median and whether that meets it.
    fn goals(&self) -> impl Iterator<Item = (&'static Goal, f64, bool)> {
        GOALS.iter().filter_map(|goal| {
            let (_, values) = self.rows.iter().find(|(name, _)| *name == goal.test)?;
            let median = quantile(values, 0.5)?;
            Some((goal, median, median <= goal.at_most))
        })
    }
}

impl Printed for Findings {
    fn json(&self) -> Value {
        let row = |(test, values): &(&'static str, Vec<f64>)| {
            let at = |which| quantile(values, which).map(rounded);
            json!({ "test": test, "unit": unit(test), "n": values.len(), "min": at(0.0), "p50": at(0.5), "max": at(1.0) })
        };
        let goal = |(goal, median, met): (&Goal, f64, bool)| json!({ "test": goal.test, "at_most": goal.at_most, "p50": rounded(median), "met": met });
        json!({
            "bench": "flanneld",
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "goals": self.goals().map(goal).collect::<Vec<_>>(),
            "notes": self.notes,
            "foreign_cpu": self.foreign_cpu.iter().copied().map(rounded).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = TextTable::new(2, ["test", "unit", "p50", "min", "max", "n"]);
        for (test, values) in &self.rows {
            let shown = [0.5, 0.0, 1.0].map(|which| {
                quantile(values, which).map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
            });
            let names = [*test, unit(test)].map(str::to_owned);
            table.row(names.into_iter().chain(shown).chain([values.len().to_string()]));
        }
        writeln!(f, "{table}")?;
        for (Goal { test, at_most, original }, median, met) in self.goals() {
            let (unit, verdict) = (unit(test), if met { "met" } else { "MISSED" });
            writeln!(
                f,
                "goal {test} <= {at_most} {unit} (flanneld 0.20: {original}): {median:.2}, {verdict}"
            )?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}

fn unit(test: &str) -> &'static str {
    match test {
        _ if [RSS, ANON, PEAK].as_flattened().contains(&test) => "MB",
        _ if PROGRAM.iter().any(|[.., cpu]| *cpu == test) => "ms CPU",
        ONE_MORE => "ms CPU",
        IDLE => "ms CPU/s",
        _ => "ms",
    }
}

/// By the nearest-rank method: always a value that was really measured.
fn quantile(values: &[f64], quantile: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let rank = (quantile * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_compared_with_goals_and_missing_ones_left_out() {
        let mut findings = Findings::default();
        for ms in [10.0, 14.0, 90.0] {
            findings.add(START, ms);
        }
        findings.add(RSS[0], 10.5);
        let json = findings.json();
        assert_eq!(json["rows"][0]["p50"], 14.0);
        assert_eq!(
            json["goals"],
            json!([
                { "test": "start", "at_most": 15.0, "p50": 14.0, "met": true },
                { "test": "rss-2", "at_most": 10.0, "p50": 10.5, "met": false },
            ])
        );
    }
}
