//! What the benchmark found: medians by test and way, their ratios to the bare nodes, and the goals.

use std::fmt;

use serde_json::{Value, json};

use crate::bench::Printed;
use crate::bench::overlay::{
    AGENT, AGENT_OPEN, BARE, CONNECT, FAST, FAST_OPEN, FAST_POLICY, FAST_ROUTED, FAST_ROUTED_BIG, FAST_SAME,
    FLANNELD, FLANNELD_OPEN, GUARDED, ROUND_TRIP, ROUTED, SMALL, STREAM, UDP, UDP_FAST, UDP_NAIVE, VXLAN,
    VXLAN_CALICO, VXLAN_FLANNEL, VXLAN_METADATA, VXLAN_RULES,
};
use crate::bench::statistics::{Conditions, Goal, quantile, rounded};
use crate::error::{Error, Result};
use crate::text_table::TextTable;

/// All rows, in the order of the report.
pub struct Findings {
    rows: Vec<Row>,
    pub conditions: Conditions,
}

/// All samples of one test by one way.
struct Row {
    test: &'static str,
    way: &'static str,
    values: Vec<f64>,
}

/// How one way's median should relate to another's.
struct Comparison {
    test: &'static str,
    way: &'static str,
    against: &'static str,
    at_least: Option<f64>,
    at_most: Option<f64>,
}

/// The processor time of a stream, a test of its own in the report.
const CPU: &str = "cpu";

const fn at_least(test: &'static str, way: &'static str, times: f64, against: &'static str) -> Comparison {
    Comparison { test, way, against, at_least: Some(times), at_most: None }
}

const fn at_most(test: &'static str, way: &'static str, times: f64, against: &'static str) -> Comparison {
    Comparison { test, way, against, at_least: None, at_most: Some(times) }
}

/// The goals, and what they leave open with the rules in place.
const GOALS: [Comparison; 27] = [
    at_least(STREAM, FAST, 0.72, BARE),
    at_least(STREAM, FAST, 1.65, VXLAN_FLANNEL),
    at_most(ROUND_TRIP, FAST, 0.6, VXLAN_FLANNEL),
    at_most(CONNECT, FAST, 0.6, VXLAN_FLANNEL),
    at_least(SMALL, FAST, 2.2, VXLAN_FLANNEL),
    at_least(STREAM, FAST, 1.45, VXLAN_CALICO),
    at_most(ROUND_TRIP, FAST, 0.68, VXLAN_CALICO),
    at_most(CONNECT, FAST, 0.62, VXLAN_CALICO),
    at_least(STREAM, FAST, 1.2, VXLAN_METADATA),
    at_most(ROUND_TRIP, FAST, 0.86, VXLAN_METADATA),
    at_least(STREAM, FAST_ROUTED, 0.85, BARE),
    at_least(STREAM, FAST_ROUTED_BIG, 1.25, BARE),
    at_least(STREAM, FAST_SAME, 0.93, BARE),
    at_most(CPU, FAST_POLICY, 1.03, FAST_OPEN),
    at_least(STREAM, ROUTED, 0.72, BARE),
    at_least(STREAM, VXLAN, 1.2, VXLAN_FLANNEL),
    at_most(ROUND_TRIP, VXLAN, 0.8, VXLAN_FLANNEL),
    at_least(STREAM, VXLAN_RULES, 1.0, VXLAN_FLANNEL),
    at_least(STREAM, AGENT, 0.99, AGENT_OPEN),
    at_least(STREAM, FLANNELD, 0.99, FLANNELD_OPEN),
    at_most(ROUND_TRIP, VXLAN_RULES, 1.0, VXLAN_FLANNEL),
    at_least(STREAM, UDP_FAST, 80.0, UDP_NAIVE),
    at_least(STREAM, UDP, 10.0, UDP_NAIVE),
    at_most(CPU, UDP, 0.1, UDP_NAIVE),
    at_least(SMALL, UDP, 2.0, UDP_NAIVE),
    at_most(ROUND_TRIP, UDP, 1.0, UDP_NAIVE),
    at_most(CONNECT, UDP, 1.05, UDP_NAIVE),
];

/// The least throughput that a way should have: so many times that of another way.
pub fn throughput_goals(way: &str) -> impl Iterator<Item = (f64, &'static str)> {
    let goals = GOALS.iter().filter(move |goal| goal.test == STREAM && goal.way == way);
    goals.filter_map(|goal| Some((goal.at_least?, goal.against)))
}

// === impl Findings ===

impl Findings {
    /// Rows without samples.
    pub fn new(tests: &[&'static str], ways: &[&'static str]) -> Self {
        let mut tests = tests.to_vec();
        tests.insert(1, CPU);
        let row = |test| move |way: &&'static str| Row { test, way, values: Vec::new() };
        let rows = tests.into_iter().flat_map(|test| ways.iter().map(row(test))).collect();
        Self { rows, conditions: Conditions::default() }
    }

    /// Adds the worker's result of one sample.
    pub fn add(&mut self, test: &str, way: &str, sample: &Value) -> Result<()> {
        let number = |name: &str| {
            let missing = || Error::Found(format!("the worker's {sample} has no number {name:?}"));
            sample[name].as_f64().ok_or_else(missing)
        };
        self.push(test, way, number("value")?);
        if test == STREAM {
            self.push(CPU, way, number("cpu_ns_per_kib")?);
        }
        Ok(())
    }

    fn push(&mut self, test: &str, way: &str, value: f64) {
        let row = self.rows.iter_mut().find(|row| row.test == test && row.way == way);
        row.into_iter().for_each(|row| row.values.push(value));
    }

    /// One way's median as a multiple of another's.
    fn ratio(&self, test: &str, way: &str, against: &str) -> Option<f64> {
        let median = |way: &str| {
            let row = self.rows.iter().find(|row| row.test == test && row.way == way)?;
            quantile(&row.values, 0.5)
        };
        Some(median(way)? / median(against)?)
    }

    /// The median of a way with guards as a multiple of that without.
    fn times_open(&self, row: &Row) -> Option<f64> {
        let (open, _) = GUARDED.iter().find(|(_, guarded)| guarded.contains(&row.way))?;
        self.ratio(row.test, row.way, open)
    }

    /// Each goal that was measured.
    fn goals(&self) -> impl Iterator<Item = Goal> {
        GOALS.iter().filter_map(|goal| {
            let found = self.ratio(goal.test, goal.way, goal.against)?;
            Some(Goal::new(goal.to_string(), found, goal.at_least, goal.at_most))
        })
    }
}

impl Printed for Findings {
    fn json(&self) -> Value {
        let row = |row: &Row| {
            json!({
                "test": row.test, "impl": row.way, "unit": unit(row.test), "n": row.values.len(),
                "min": quantile(&row.values, 0.0).map(rounded), "p50": quantile(&row.values, 0.5).map(rounded),
                "max": quantile(&row.values, 1.0).map(rounded),
                "times_bare": self.ratio(row.test, row.way, BARE).map(rounded),
                "times_open": self.times_open(row).map(rounded),
            })
        };
        let rows: Vec<Value> = self.rows.iter().map(row).collect();
        let goals: Vec<Value> = self.goals().map(|goal| goal.json()).collect();
        let mut report = json!({ "bench": "overlay", "rows": rows, "goals": goals });
        self.conditions.add_to(&mut report);
        report
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table =
            TextTable::new(3, ["test", "unit", "impl", "p50", "min", "max", "n", "x bare", "x open"]);
        for row in &self.rows {
            let digits = |value: Option<f64>, digits| {
                value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
            };
            let names = [row.test, unit(row.test), row.way].map(str::to_owned);
            let values = [0.5, 0.0, 1.0].map(|which| digits(quantile(&row.values, which), 2));
            let count = row.values.len().to_string();
            let ratios = [self.ratio(row.test, row.way, BARE), self.times_open(row)].map(|it| digits(it, 3));
            table.row(names.into_iter().chain(values).chain([count]).chain(ratios));
        }
        writeln!(f, "{table}")?;
        self.goals().try_for_each(|goal| write!(f, "{goal}"))?;
        write!(f, "{}", self.conditions)
    }
}

// === impl Comparison ===

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { test, way, against, .. } = self;
        write!(f, "{test}: {way}")?;
        self.at_least.map_or(Ok(()), |least| write!(f, " >= {least}"))?;
        self.at_most.map_or(Ok(()), |most| write!(f, " <= {most}"))?;
        write!(f, " x {against}")
    }
}

fn unit(test: &str) -> &'static str {
    match test {
        STREAM => "Gb/s",
        CPU => "ns/KiB",
        SMALL => "kpps",
        _ => "us",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Findings {
        let mut findings = Findings::new(&[STREAM, ROUND_TRIP], &[BARE, UDP, UDP_NAIVE]);
        for (way, streams, trip) in
            [(BARE, [40, 50, 60], 10), (UDP, [8, 4, 5], 20), (UDP_NAIVE, [1, 1, 2], 19)]
        {
            for gbps in streams {
                let sample = json!({ "value": gbps, "cpu_ns_per_kib": 8000 / gbps });
                findings.add(STREAM, way, &sample).unwrap();
            }
            findings.add(ROUND_TRIP, way, &json!({ "value": trip, "cpu_ns_per_kib": null })).unwrap();
        }
        findings
    }

    #[test]
    fn medians_are_compared_with_the_bare_nodes() {
        let json = findings().json();
        let row = |test, way| {
            let rows = json["rows"].as_array().unwrap();
            rows.iter().find(|row| row["test"] == test && row["impl"] == way).unwrap().clone()
        };
        assert_eq!(row(STREAM, UDP)["p50"], 5.0);
        assert_eq!(row(STREAM, UDP)["times_bare"], 0.1);
        assert_eq!((&row(STREAM, UDP)["min"], &row(STREAM, UDP)["max"]), (&json!(4.0), &json!(8.0)));
        assert_eq!(row(CPU, UDP)["p50"], 1600.0);
        assert_eq!(row(ROUND_TRIP, BARE)["n"], 1);
    }

    #[test]
    fn ways_with_guards_are_compared_with_those_of_their_node_without() {
        let mut findings = Findings::new(&[STREAM], &[AGENT_OPEN, AGENT, FLANNELD_OPEN, FLANNELD]);
        for (way, gbps) in [(AGENT_OPEN, 40), (AGENT, 30), (FLANNELD_OPEN, 20), (FLANNELD, 10)] {
            findings.add(STREAM, way, &json!({ "value": gbps, "cpu_ns_per_kib": 100 })).unwrap();
        }
        let rows = findings.json()["rows"].clone();
        let times: Vec<_> =
            rows.as_array().unwrap()[..4].iter().map(|row| row["times_open"].clone()).collect();
        assert_eq!(times, [json!(null), json!(0.75), json!(null), json!(0.5)]);
    }

    #[test]
    fn goals_without_samples_are_left_out() {
        let json = findings().json();
        let goals: Vec<(&str, bool)> = json["goals"]
            .as_array()
            .unwrap()
            .iter()
            .map(|goal| (goal["goal"].as_str().unwrap(), goal["met"].as_bool().unwrap()))
            .collect();
        assert_eq!(
            goals,
            [
                ("t1c: udp >= 10 x udp-naive", false),
                ("cpu: udp <= 0.1 x udp-naive", false),
                ("rr1c: udp <= 1 x udp-naive", false),
            ]
        );
    }

    #[test]
    fn a_sample_without_its_number_is_an_error() {
        assert!(findings().add(STREAM, UDP, &json!({ "value": 1 })).is_err());
        assert!(findings().add(ROUND_TRIP, UDP, &json!({})).is_err());
    }
}
