//! The findings of a benchmark: samples by operation and implementation, their quantiles and the
//! ratios between them.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::Printed;
use crate::bench::statistics::{Conditions, quantile, rounded, rounded_to, verdict};
use crate::text_table::TextTable;

/// A benchmark's samples.
pub struct Report {
    bench: &'static str,
    series: Vec<Series>,
    figures: Vec<Figure>,
    goals: &'static [Goal],
    pub conditions: Conditions,
}

/// All samples of one operation by one implementation.
struct Series {
    op: &'static str,
    subject: &'static str,
    samples_us: Vec<f64>,
}

/// A quantile of all samples of an operation by an implementation.
#[derive(Clone, Copy)]
pub struct Of {
    pub op: &'static str,
    pub subject: &'static str,
    pub quantile: f64,
}

/// How one quantile should relate to another.
pub struct Goal {
    pub ours: Of,
    pub theirs: Of,
    pub at_most: f64,
}

/// A value that is not a time of many samples.
struct Figure {
    name: String,
    value: f64,
    unit: &'static str,
    at_most: Option<f64>,
}

/// The quantiles that reports give.
const QUANTILES: [(&str, f64); 3] = [("p50_us", 0.50), ("p90_us", 0.90), ("p99_us", 0.99)];

// === impl Report ===

impl Report {
    /// An empty report.
    pub fn new(bench: &'static str, goals: &'static [Goal]) -> Self {
        let (series, figures) = (Vec::new(), Vec::new());
        Self { bench, series, figures, goals, conditions: Conditions::default() }
    }

    /// Adds a sample.
    pub fn add(&mut self, op: &'static str, subject: &'static str, sample: Duration) {
        let us = sample.as_secs_f64() * 1e6;
        match self.series.iter_mut().find(|series| series.op == op && series.subject == subject) {
            Some(series) => series.samples_us.push(us),
            None => self.series.push(Series { op, subject, samples_us: vec![us] }),
        }
    }

    /// Adds a value that is not a time of many samples, with its goal if it has one.
    pub fn figure(&mut self, name: impl Into<String>, value: f64, unit: &'static str, at_most: Option<f64>) {
        self.figures.push(Figure { name: name.into(), value: rounded_to(value, 4), unit, at_most });
    }

    /// A quantile of the samples so far, in microseconds.
    pub fn quantile_us(&self, of: Of) -> Option<f64> {
        Some(self.find(of.op, of.subject)?.quantile_us(of.quantile))
    }

    /// Makes rows come in this order: by operation first, then by implementation.
    pub fn sort(&mut self, ops: &[&str], subjects: &[&str]) {
        let place = |names: &[&str], name: &str| names.iter().position(|known| *known == name);
        self.series.sort_by_key(|series| (place(ops, series.op), place(subjects, series.subject)));
    }

    fn row(&self, series: &Series) -> Value {
        let mut row = json!({ "op": series.op, "impl": series.subject });
        for (name, quantile) in QUANTILES {
            row[name] = json!(rounded_to(series.quantile_us(quantile), 1));
        }
        row["n"] = json!(series.samples_us.len());
        row["ratio"] =
            self.peers(series).map(|peer| (peer.subject.to_owned(), json!(series.ratio(peer)))).collect();
        row
    }

    /// The ratio of a goal, where both sides were measured.
    fn ratio(&self, goal: &Goal) -> Option<f64> {
        Some(rounded(self.quantile_us(goal.ours)? / self.quantile_us(goal.theirs)?))
    }

    fn goal(&self, goal: &Goal) -> Option<Value> {
        let ratio = self.ratio(goal)?;
        let Goal { ours, theirs, at_most } = goal;
        Some(json!({
            "op": ours.op, "impl": ours.subject, "quantile": ours.quantile,
            "against": { "op": theirs.op, "impl": theirs.subject, "quantile": theirs.quantile },
            "at_most": at_most, "ratio": ratio, "met": ratio <= *at_most,
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
        let figures: Vec<Value> = self.figures.iter().map(Figure::json).collect();
        let mut report = json!({ "bench": self.bench, "rows": rows, "goals": goals, "figures": figures });
        self.conditions.add_to(&mut report);
        report
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
            let count = [series.samples_us.len().to_string()];
            table.row(names.into_iter().chain(quantiles).chain(count).chain(ratios));
        }
        writeln!(f, "{table}")?;
        for goal in self.goals {
            if let Some(ratio) = self.ratio(goal) {
                let Goal { ours, theirs, at_most } = goal;
                writeln!(
                    f,
                    "goal {ours} <= {at_most} x {theirs}: {ratio:.3}, {}",
                    verdict(ratio <= *at_most)
                )?;
            }
        }
        self.figures.iter().try_for_each(|figure| writeln!(f, "{figure}"))?;
        write!(f, "{}", self.conditions)
    }
}

// === impl Series ===

impl Series {
    fn quantile_us(&self, which: f64) -> f64 {
        quantile(&self.samples_us, which).unwrap_or_default()
    }

    /// Our median as a multiple of the peer's.
    fn ratio(&self, peer: &Self) -> f64 {
        rounded(self.quantile_us(0.5) / peer.quantile_us(0.5))
    }
}

// === impl Of ===

impl Of {
    pub const fn median(op: &'static str, subject: &'static str) -> Self {
        Self { op, subject, quantile: 0.5 }
    }

    pub const fn p99(op: &'static str, subject: &'static str) -> Self {
        Self { op, subject, quantile: 0.99 }
    }
}

impl fmt::Display for Of {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}, p{:.0}", self.op, self.subject, self.quantile * 100.0)
    }
}

// === impl Figure ===

impl Figure {
    fn is_met(&self) -> Option<bool> {
        self.at_most.map(|limit| self.value <= limit)
    }

    fn json(&self) -> Value {
        json!({ "name": self.name, "value": self.value, "unit": self.unit, "at_most": self.at_most, "met": self.is_met() })
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, value, unit, .. } = self;
        write!(f, "{name}: {value} {unit}")?;
        match (self.at_most, self.is_met()) {
            (Some(limit), Some(is_met)) => write!(f, " (goal {limit}), {}", verdict(is_met)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOALS: &[Goal] = &[
        Goal { ours: Of::median("add", "ours"), theirs: Of::median("add", "theirs"), at_most: 0.3 },
        Goal { ours: Of::p99("add", "ours"), theirs: Of::median("add", "ours"), at_most: 1.9 },
        Goal { ours: Of::median("del", "ours"), theirs: Of::median("add", "ours"), at_most: 1.0 },
    ];

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
        assert_eq!((&json["goals"][1]["ratio"], &json["goals"][1]["met"]), (&json!(1.98), &json!(false)));
        assert_eq!(json["goals"].as_array().map(Vec::len), Some(2), "what was not measured is no goal");
    }

    #[test]
    fn a_figure_tells_its_goal() {
        let mut report = report();
        report.figure("rss", 12.5, "MB", Some(12.0));
        report.figure("anon", 1.0, "MB", None);
        let text = report.to_string();
        assert!(text.contains("rss: 12.5 MB (goal 12), MISSED") && text.contains("anon: 1 MB\n"), "{text}");
        assert_eq!(report.json()["figures"][0]["met"], false);
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
