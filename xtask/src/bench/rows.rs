//! What a benchmark of one daemon found: medians, and whether they meet the goals.

use std::fmt;

use serde_json::{Value, json};

use crate::bench::Printed;
use crate::bench::statistics::{Conditions, quantile, rounded, verdict};
use crate::text_table::TextTable;

/// What a benchmark measures.
pub struct Table {
    pub bench: &'static str,
    pub goals: &'static [Goal],
    /// The unit of a row.
    pub unit: fn(&str) -> &'static str,
}

/// The most that a median may be, and where that comes from.
pub struct Goal {
    pub test: &'static str,
    pub at_most: f64,
    pub reason: &'static str,
}

/// All rows, in the order in which they came.
pub struct Rows {
    table: &'static Table,
    rows: Vec<(String, Vec<f64>)>,
    pub conditions: Conditions,
    /// Further members of the report for programs.
    pub details: Vec<(&'static str, Value)>,
}

// === impl Rows ===

impl Rows {
    /// Without any sample.
    pub fn new(table: &'static Table) -> Self {
        Self { table, rows: Vec::new(), conditions: Conditions::default(), details: Vec::new() }
    }

    /// Adds a sample.
    pub fn add(&mut self, test: &str, value: f64) {
        match self.rows.iter_mut().find(|(name, _)| *name == test) {
            Some((_, values)) => values.push(value),
            None => self.rows.push((test.to_owned(), vec![value])),
        }
    }

    /// The median of a row.
    pub fn median(&self, test: &str) -> Option<f64> {
        self.rows.iter().find(|(name, _)| name == test).and_then(|(_, values)| quantile(values, 0.5))
    }

    /// Each goal that was measured, with the median and whether that meets it.
    fn goals(&self) -> impl Iterator<Item = (&'static Goal, f64, bool)> {
        self.table.goals.iter().filter_map(|goal| {
            let median = self.median(goal.test)?;
            Some((goal, median, median <= goal.at_most))
        })
    }
}

impl Printed for Rows {
    fn json(&self) -> Value {
        let row = |(test, values): &(String, Vec<f64>)| {
            let at = |which| quantile(values, which).map(rounded);
            json!({ "test": test, "unit": (self.table.unit)(test), "n": values.len(), "min": at(0.0), "p50": at(0.5), "max": at(1.0) })
        };
        let goal = |(goal, median, met): (&Goal, f64, bool)| json!({ "test": goal.test, "at_most": goal.at_most, "p50": rounded(median), "met": met });
        let rows: Vec<Value> = self.rows.iter().map(row).collect();
        let goals: Vec<Value> = self.goals().map(goal).collect();
        let mut report = json!({ "bench": self.table.bench, "rows": rows, "goals": goals });
        for (name, value) in &self.details {
            report[*name] = value.clone();
        }
        self.conditions.add_to(&mut report);
        report
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = TextTable::new(2, ["test", "unit", "p50", "min", "max", "n"]);
        for (test, values) in &self.rows {
            let shown = [0.5, 0.0, 1.0].map(|which| {
                quantile(values, which).map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
            });
            let names = [test, (self.table.unit)(test)].map(str::to_owned);
            table.row(names.into_iter().chain(shown).chain([values.len().to_string()]));
        }
        writeln!(f, "{table}")?;
        for (Goal { test, at_most, reason }, median, met) in self.goals() {
            let (unit, verdict) = ((self.table.unit)(test), verdict(met));
            writeln!(f, "goal {test} <= {at_most} {unit} ({reason}): {median:.2}, {verdict}")?;
        }
        write!(f, "{}", self.conditions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_compared_with_goals_and_missing_ones_left_out() {
        static TABLE: Table = Table {
            bench: "one",
            goals: &[
                Goal { test: "start", at_most: 15.0, reason: "-" },
                Goal { test: "rss", at_most: 10.0, reason: "-" },
                Goal { test: "idle", at_most: 1.0, reason: "-" },
            ],
            unit: |_| "ms",
        };
        let mut findings = Rows::new(&TABLE);
        for ms in [10.0, 14.0, 90.0] {
            findings.add("start", ms);
        }
        findings.add("rss", 10.5);
        let json = findings.json();
        assert_eq!((&json["rows"][0]["p50"], &json["goals_met"]), (&json!(14.0), &json!(false)));
        assert_eq!(
            json["goals"],
            json!([
                { "test": "start", "at_most": 15.0, "p50": 14.0, "met": true },
                { "test": "rss", "at_most": 10.0, "p50": 10.5, "met": false },
            ])
        );
        let mut met = Rows::new(&TABLE);
        met.add("start", 10.0);
        assert_eq!(met.json()["goals_met"], true);
    }
}
