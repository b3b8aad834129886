//! What a benchmark found: samples by operation and implementation, their quantiles and the ratios between them.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::Printed;
use crate::text_table::TextTable;

/// A benchmark's samples.
pub struct Report {
    bench: &'static str,
    series: Vec<Series>,
    goals: &'static [Goal],
    /// Lines for people about how the run went.
    pub notes: Vec<String>,
    /// The foreign share of the CPU before each phase.
    pub foreign_cpu: Vec<f64>,
}

/// All samples of one operation by one implementation.
struct Series {
    op: &'static str,
    subject: &'static str,
    samples: Vec<Duration>,
}

/// How our median should relate to another's.
pub struct Goal {
    pub op: &'static str,
    pub ours: &'static str,
    pub theirs: &'static str,
    pub at_most: f64,
}

/// The quantiles that reports give.
const QUANTILES: [(&str, f64); 3] = [("p50_us", 0.50), ("p90_us", 0.90), ("p99_us", 0.99)];

// === impl Report ===

impl Report {
    /// An empty report.
    pub fn new(bench: &'static str, goals: &'static [Goal]) -> Self {
        Self { bench, series: Vec::new(), goals, notes: Vec::new(), foreign_cpu: Vec::new() }
    }

    /// Adds a sample.
    pub fn add(&mut self, op: &'static str, subject: &'static str, sample: Duration) {
        match self.series.iter_mut().find(|series| series.op == op && series.subject == subject) {
            Some(series) => series.samples.push(sample),
            None => self.series.push(Series { op, subject, samples: vec![sample] }),
        }
    }

    /// Makes rows come in this order: by operation first, then by implementation.
    pub fn sort(&mut self, ops: &[&str], subjects: &[&str]) {
        let place = |names: &[&str], name: &str| names.iter().position(|known| *known == name);
        self.series.sort_by_key(|series| (place(ops, series.op), place(subjects, series.subject)));
    }

    fn row(&self, series: &Series) -> Value {
        let mut row = json!({ "op": series.op, "impl": series.subject });
        for (name, quantile) in QUANTILES {
            row[name] = json!(rounded(series.quantile_us(quantile), 1));
        }
        row["n"] = json!(series.samples.len());
        row["ratio"] =
            self.peers(series).map(|peer| (peer.subject.to_owned(), json!(series.ratio(peer)))).collect();
        row
    }

    fn goal(&self, goal: &Goal) -> Option<Value> {
        let ratio = self.find(goal.op, goal.ours)?.ratio(self.find(goal.op, goal.theirs)?);
        Some(json!({
            "op": goal.op, "impl": goal.ours, "against": goal.theirs,
            "at_most": goal.at_most, "ratio": ratio, "met": ratio <= goal.at_most,
        }))
    }

    fn find(&self, op: &str, subject: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.op == op && series.subject == subject)
    }

    /// The other implementations of the same operation.
    fn peers<'a>(&'a self, series: &'a Series) -> impl Iterator<Item = &'a Series> {
        self.series.iter().filter(move |peer| peer.op == series.op && peer.subject != series.subject)
    }
}

impl Printed for Report {
    fn json(&self) -> Value {
        let rows: Vec<Value> = self.series.iter().map(|series| self.row(series)).collect();
        let goals: Vec<Value> = self.goals.iter().filter_map(|goal| self.goal(goal)).collect();
        json!({
            "bench": self.bench,
            "rows": rows,
            "goals": goals,
            "foreign_cpu": self.foreign_cpu.iter().map(|share| rounded(*share, 3)).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut subjects: Vec<&str> = Vec::new();
        self.series.iter().for_each(|series| {
            if !subjects.contains(&series.subject) {
                subjects.push(series.subject);
            }
        });
        let heading = ["op", "impl", "p50 us", "p90 us", "p99 us", "n"].map(str::to_owned);
        let mut table =
            TextTable::new(2, heading.into_iter().chain(subjects.iter().map(|name| format!("x {name}"))));
        for series in &self.series {
            let quantiles = QUANTILES.map(|(_, quantile)| format!("{:.0}", series.quantile_us(quantile)));
            let ratios = subjects.iter().map(|name| match self.find(series.op, name) {
                Some(peer) if peer.subject != series.subject => format!("{:.2}", series.ratio(peer)),
                _ => "-".to_owned(),
            });
            let names = [series.op, series.subject].map(str::to_owned);
            let count = [series.samples.len().to_string()];
            table.row(names.into_iter().chain(quantiles).chain(count).chain(ratios));
        }
        writeln!(f, "{table}")?;
        for goal in self.goals {
            if let (Some(ours), Some(theirs)) =
                (self.find(goal.op, goal.ours), self.find(goal.op, goal.theirs))
            {
                let ratio = ours.ratio(theirs);
                let verdict = if ratio <= goal.at_most { "met" } else { "MISSED" };
                let Goal { op, ours, theirs, at_most } = goal;
                writeln!(f, "goal {op}: {ours} <= {at_most} x {theirs}: {ratio:.3}, {verdict}")?;
            }
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}

// === impl Series ===

impl Series {
    /// By the nearest-rank method: always a value that was really measured.
    fn quantile_us(&self, quantile: f64) -> f64 {
        let mut sorted = self.samples.clone();
        sorted.sort_unstable();
        let rank = (quantile * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).map_or(0.0, |sample| sample.as_secs_f64() * 1e6)
    }

    /// Our median as a multiple of the peer's.
    fn ratio(&self, peer: &Self) -> f64 {
        rounded(self.quantile_us(0.5) / peer.quantile_us(0.5), 3)
    }
}

fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOALS: &[Goal] = &[Goal { op: "add", ours: "ours", theirs: "theirs", at_most: 0.3 }];

    fn report() -> Report {
        let mut report = Report::new("cni", GOALS);
        for us in 1..=100 {
            report.add("add", "ours", Duration::from_micros(us));
            report.add("add", "theirs", Duration::from_micros(us * 4));
        }
        report
    }

    #[test]
    fn quantiles_are_measured_values() {
        let json = report().json();
        let row = &json["rows"][0];
        assert_eq!(
            (&row["p50_us"], &row["p90_us"], &row["p99_us"]),
            (&json!(50.0), &json!(90.0), &json!(99.0))
        );
        assert_eq!(row["n"], 100);
    }

    #[test]
    fn ratios_and_goals_compare_medians() {
        let json = report().json();
        assert_eq!(json["rows"][0]["ratio"], json!({ "theirs": 0.25 }));
        assert_eq!(json["rows"][1]["ratio"], json!({ "ours": 4.0 }));
        assert_eq!(json["goals"][0]["met"], true);
    }

    #[test]
    fn rows_are_ordered_by_operation_and_then_implementation() {
        let mut report = report();
        report.add("del", "ours", Duration::from_micros(9));
        report.sort(&["del", "add"], &["theirs", "ours"]);
        let order: Vec<_> = report.series.iter().map(|series| (series.op, series.subject)).collect();
        assert_eq!(order, [("del", "ours"), ("add", "theirs"), ("add", "ours")]);
    }
}
