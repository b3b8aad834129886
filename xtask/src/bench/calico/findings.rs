//! The findings: times as in any report, and the requests of each operation to etcd.

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::Printed;
use crate::bench::calico::requests::Requests;
use crate::bench::calico::{ADD, ADD_20, AGENT, GO, OPS, SUBJECTS};
use crate::bench::report::Report;
use crate::bench::statistics::{Conditions, quantile, rounded_to, verdict};
use crate::text_table::TextTable;

/// All samples.
pub struct Findings {
    times: Report,
    rows: Vec<Row>,
}

/// The requests of one operation of one implementation.
struct Row {
    op: &'static str,
    subject: &'static str,
    /// Pods of all samples.
    pods: usize,
    sum: Requests,
    /// Requests per pod, sample by sample.
    each: Vec<f64>,
}

/// The goal for an ADD with the agent.
const REQUESTS_AT_MOST: f64 = 3.0;

// === impl Findings ===

impl Default for Findings {
    fn default() -> Self {
        Self { times: Report::new("calico", &[]), rows: Vec::new() }
    }
}

impl Findings {
    /// Adds a sample: an operation on `pods` pods at once.
    pub fn add(
        &mut self,
        op: &'static str,
        subject: &'static str,
        pods: usize,
        took: Duration,
        asked: Requests,
    ) {
        self.times.add(op, subject, took);
        let known = self.rows.iter().position(|row| row.op == op && row.subject == subject);
        let which = known.unwrap_or_else(|| {
            self.rows.push(Row { op, subject, pods: 0, sum: Requests::default(), each: Vec::new() });
            self.rows.len() - 1
        });
        let row = &mut self.rows[which];
        row.pods += pods;
        row.each.push(asked.total() as f64 / pods as f64);
        row.sum.add(&asked);
    }

    /// Makes a report of the samples.
    pub fn finish(&mut self, conditions: Conditions) {
        self.times.sort(&OPS, &SUBJECTS);
        let place = |names: &[&str], name: &str| names.iter().position(|known| *known == name);
        self.rows.sort_by_key(|row| (place(&OPS, row.op), place(&SUBJECTS, row.subject)));
        self.times.conditions = conditions;
    }

    fn find(&self, op: &str, subject: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.op == op && row.subject == subject)
    }

    /// The operation, its median, and whether it is few enough.
    fn goals(&self) -> impl Iterator<Item = (&'static str, f64, bool)> + '_ {
        [ADD, ADD_20].into_iter().filter_map(|op| {
            let median = self.find(op, AGENT)?.median();
            Some((op, median, median <= REQUESTS_AT_MOST))
        })
    }

    /// The mean as a multiple of the Go order's.
    fn against_go(&self, row: &Row) -> Option<f64> {
        Some(rounded(row.mean() / self.find(row.op, GO)?.mean()))
    }
}

impl Printed for Findings {
    fn json(&self) -> Value {
        let mut all = self.times.json();
        let row = |row: &Row| {
            json!({
                "op": row.op, "impl": row.subject, "n": row.each.len(), "pods": row.pods,
                "median": rounded(row.median()), "mean": rounded(row.mean()), "most": rounded(row.most()),
                "by_method": row.sum.shares(row.pods), "ratio_to_go_order": self.against_go(row),
            })
        };
        all["requests"] = self.rows.iter().map(row).collect();
        let goal = |(op, found, met): (&str, f64, bool)| {
            json!({ "goal": format!("{op}: etcd requests per ADD with the agent, median"),
                "at_most": REQUESTS_AT_MOST, "found": rounded(found), "met": met })
        };
        all["goals"] = self.goals().map(goal).collect();
        all
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.times)?;
        let heading = ["op", "impl", "requests p50", "mean", "most", "x go-order", "by method, mean"];
        let mut table = TextTable::new(2, heading);
        for row in &self.rows {
            let ratio = self.against_go(row).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
            let counts = [row.median(), row.mean(), row.most()].map(|count| format!("{count:.2}"));
            let kinds = row.sum.shares(row.pods).to_string();
            let names = [row.op, row.subject].map(str::to_owned);
            table.row(names.into_iter().chain(counts).chain([ratio, kinds]));
        }
        writeln!(f, "\n{table}")?;
        self.goals().try_for_each(|(op, found, met)| {
            let verdict = verdict(met);
            writeln!(f, "goal {op}: etcd requests per ADD, {AGENT}, median <= {REQUESTS_AT_MOST}: {found:.2}, {verdict}")
        })
    }
}

// === impl Row ===

impl Row {
    fn mean(&self) -> f64 {
        self.sum.total() as f64 / self.pods as f64
    }

    fn median(&self) -> f64 {
        quantile(&self.each, 0.5).unwrap_or_default()
    }

    fn most(&self) -> f64 {
        quantile(&self.each, 1.0).unwrap_or_default()
    }
}

fn rounded(value: f64) -> f64 {
    rounded_to(value, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(ranges: u32) -> Requests {
        let line =
            format!("grpc_server_started_total{{grpc_method=\"Range\",grpc_type=\"unary\"}} {ranges}\n");
        Requests::parse(&line).unwrap()
    }

    #[test]
    fn requests_are_counted_for_each_pod_and_compared_with_the_go_order() {
        let mut findings = Findings::default();
        for (pods, requests) in [(20, 40), (20, 60), (20, 140)] {
            findings.add(ADD_20, AGENT, pods, Duration::from_micros(7), asked(requests));
        }
        findings.add(ADD_20, GO, 20, Duration::from_micros(9), asked(160));
        findings.add(ADD, AGENT, 1, Duration::from_micros(5), asked(4));
        findings.finish(Conditions::default());
        let json = findings.json();
        assert_eq!(json["requests"][0]["op"], "add");
        let row = &json["requests"][1];
        assert_eq!((&row["median"], &row["mean"], &row["most"]), (&json!(3.0), &json!(4.0), &json!(7.0)));
        assert_eq!((&row["by_method"]["Range"], &row["ratio_to_go_order"]), (&json!(4.0), &json!(0.5)));
        let met: Vec<_> = json["goals"].as_array().unwrap().iter().map(|goal| &goal["met"]).collect();
        assert_eq!(met, [&json!(false), &json!(true)]);
        assert_eq!(json["rows"][1]["ratio"], json!({ GO: 0.778 }));
    }
}
