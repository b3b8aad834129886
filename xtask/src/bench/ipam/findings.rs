//! What the benchmark found: rates, what each address cost in commits, reads and syncs, and the goals.

use std::fmt;

use serde_json::{Value, json};

use crate::bench::Printed;
use crate::bench::ipam::{DISKS, EMBEDDED, ETCD, GO};
use crate::bench::statistics::{Conditions, Goal, quantile, rounded};
use crate::error::{Error, Result};
use crate::text_table::TextTable;

/// All rows, in the order of the report.
#[derive(Default)]
pub struct Findings {
    pub rows: Vec<Row>,
    /// What a small commit cost before and after all samples, by store and disk.
    pub probes: Vec<Value>,
    pub conditions: Conditions,
}

/// All samples of one operation of one implementation, by a number of callers on a disk.
pub struct Row {
    op: &'static str,
    disk: &'static str,
    callers: u32,
    subject: &'static str,
    /// Operations a second, sample by sample.
    rates: Vec<f64>,
    ops: f64,
    commits: f64,
    reads: f64,
    syncs: f64,
}

/// 32 callers on etcd against one.
const TOGETHER_AT_LEAST: f64 = 5.0;
/// Ours against the Go order.
const AGAINST_GO_AT_LEAST: f64 = 8.0;
/// Commits of a warm ADD.
const COMMITS_AT_MOST: f64 = 1.0;

// === impl Findings ===

impl Findings {
    /// Adds the worker's result of one burst of ADDs and of DELs.
    pub fn add(&mut self, disk: &str, callers: u32, subject: &str, sample: &Value) -> Result<()> {
        let ops = number(sample, "burst")?;
        for row in &mut self.rows {
            if row.disk == disk && row.callers == callers && row.subject == subject {
                row.add(ops, &sample[row.op])?;
            }
        }
        Ok(())
    }

    fn find(&self, op: &str, disk: &str, callers: u32, subject: &str) -> Option<&Row> {
        self.rows
            .iter()
            .find(|row| row.op == op && row.disk == disk && row.callers == callers && row.subject == subject)
    }

    /// This row's rate as a multiple of the Go order's.
    fn against_go(&self, row: &Row) -> Option<f64> {
        Some(row.rate(0.5) / self.find(row.op, row.disk, row.callers, GO)?.rate(0.5))
    }

    fn goals(&self) -> Vec<Goal> {
        DISKS.into_iter().flat_map(|disk| self.goals_on(disk)).collect()
    }

    fn goals_on(&self, disk: &str) -> Vec<Goal> {
        let mut goals = Vec::new();
        let ours = [EMBEDDED, ETCD].into_iter().flat_map(|subject| [1, 32].map(|callers| (subject, callers)));
        for (subject, callers) in ours {
            let Some(row) = self.find("add", disk, callers, subject) else { continue };
            let who = format!("{disk} disk, {subject}, callers: {callers}");
            goals.push(at_most(format!("{who}: commits per ADD"), row.each(row.commits), COMMITS_AT_MOST));
            goals.push(at_most(format!("{who}: reads per ADD"), row.each(row.reads), 0.0));
            if let Some(ratio) = self.against_go(row).filter(|_| subject == ETCD) {
                goals.push(at_least(format!("{who}: times the rate of {GO}"), ratio, AGAINST_GO_AT_LEAST));
            }
        }
        if let (Some(one), Some(all)) = (self.find("add", disk, 1, ETCD), self.find("add", disk, 32, ETCD)) {
            let text = format!("{disk} disk, {ETCD}, callers: 32: times the rate of one");
            goals.push(at_least(text, all.rate(0.5) / one.rate(0.5), TOGETHER_AT_LEAST));
        }
        goals
    }
}

impl Printed for Findings {
    fn json(&self) -> Value {
        let rows: Vec<Value> = self.rows.iter().map(|row| row.json(self.against_go(row))).collect();
        let goals: Vec<Value> = self.goals().iter().map(Goal::json).collect();
        let mut report = json!({ "bench": "ipam", "rows": rows, "goals": goals, "probes": self.probes });
        self.conditions.add_to(&mut report);
        report
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heading = "op,disk,impl,callers,per s p50,p10,p90,commits,reads,syncs,n,x go-order".split(',');
        let mut table = TextTable::new(3, heading);
        for op in ["add", "del"] {
            for row in self.rows.iter().filter(|row| row.op == op) {
                table.row(row.cells(self.against_go(row)));
            }
        }
        writeln!(f, "{table}")?;
        self.goals().iter().try_for_each(|goal| write!(f, "{goal}"))?;
        self.probes.iter().try_for_each(|probe| writeln!(f, "{}", describe_probe(probe)))?;
        write!(f, "{}", self.conditions)
    }
}

/// A probe as a line for people.
fn describe_probe(probe: &Value) -> String {
    let ms = |name: &str| probe[name].as_f64().map(|us| format!("{:.2} ms", us / 1000.0));
    let word = |name: &str| probe[name].as_str().unwrap_or_default().to_owned();
    let sync = ms("sync_us").map_or_else(String::new, |ms| format!(", each {ms} by etcd's own clock"));
    format!(
        "a small commit alone, {}, {} disk: {}, {:.2} syncs{sync}",
        word("store"),
        word("disk"),
        ms("commit_us").unwrap_or_default(),
        probe["syncs_per_commit"].as_f64().unwrap_or_default(),
    )
}

// === impl Row ===

impl Row {
    /// A row without samples.
    pub fn new(op: &'static str, disk: &'static str, callers: u32, subject: &'static str) -> Self {
        let (rates, [ops, commits, reads, syncs]) = (Vec::new(), [0.0; 4]);
        Self { op, disk, callers, subject, rates, ops, commits, reads, syncs }
    }

    fn add(&mut self, ops: f64, burst: &Value) -> Result<()> {
        self.rates.push(ops * 1e6 / number(burst, "us")?);
        self.ops += ops;
        self.commits += number(burst, "commits")?;
        self.reads += number(burst, "reads")?;
        self.syncs += number(burst, "syncs")?;
        Ok(())
    }

    fn rate(&self, which: f64) -> f64 {
        quantile(&self.rates, which).unwrap_or_default()
    }

    /// Of all samples together, per operation.
    fn each(&self, sum: f64) -> f64 {
        sum / self.ops
    }

    fn json(&self, against_go: Option<f64>) -> Value {
        json!({
            "op": self.op, "disk": self.disk, "impl": self.subject, "callers": self.callers,
            "per_s_p10": rounded(self.rate(0.1)), "per_s_p50": rounded(self.rate(0.5)),
            "per_s_p90": rounded(self.rate(0.9)), "n": self.rates.len(),
            "commits": rounded(self.each(self.commits)), "reads": rounded(self.each(self.reads)),
            "syncs": rounded(self.each(self.syncs)), "times_go_order": against_go.map(rounded),
        })
    }

    fn cells(&self, against_go: Option<f64>) -> Vec<String> {
        let rate = |quantile| format!("{:.0}", self.rate(quantile));
        let each = |sum| format!("{:.2}", self.each(sum));
        let names = [self.op, self.disk, self.subject].map(str::to_owned);
        let numbers = [
            self.callers.to_string(),
            rate(0.5),
            rate(0.1),
            rate(0.9),
            each(self.commits),
            each(self.reads),
            each(self.syncs),
            self.rates.len().to_string(),
            against_go.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
        ];
        names.into_iter().chain(numbers).collect()
    }
}

fn at_least(text: String, found: f64, wanted: f64) -> Goal {
    Goal::new(format!("{text} >= {wanted}"), found, Some(wanted), None)
}

fn at_most(text: String, found: f64, wanted: f64) -> Goal {
    Goal::new(format!("{text} <= {wanted}"), found, None, Some(wanted))
}

fn number(value: &Value, name: &str) -> Result<f64> {
    value[name].as_f64().ok_or_else(|| Error::Found(format!("the worker's {value} has no number {name:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Findings {
        let mut findings = Findings::default();
        for (callers, subject) in [(1, ETCD), (32, ETCD), (1, GO), (32, GO)] {
            findings.rows.push(Row::new("add", "plain", callers, subject));
        }
        let burst = |us: u32, commits: u32, reads: u32| json!({ "us": us, "commits": commits, "reads": reads, "syncs": commits });
        for (callers, subject, us, commits, reads) in [
            (1, ETCD, 32_000, 32, 0),
            (32, ETCD, 8_000, 2, 0),
            (1, GO, 96_000, 64, 256),
            (32, GO, 96_000, 64, 256),
        ] {
            let sample = json!({ "burst": 32, "add": burst(us, commits, reads) });
            findings.add("plain", callers, subject, &sample).unwrap();
        }
        findings
    }

    #[test]
    fn rates_are_of_the_burst_and_costs_of_each_operation() {
        let json = findings().json();
        assert_eq!(json["rows"][0]["per_s_p50"], 1000.0);
        assert_eq!((&json["rows"][1]["commits"], &json["rows"][1]["reads"]), (&json!(0.063), &json!(0.0)));
        assert_eq!((&json["rows"][2]["commits"], &json["rows"][2]["reads"]), (&json!(2.0), &json!(8.0)));
    }

    #[test]
    fn goals_compare_medians_with_the_same_disk_and_callers() {
        let json = findings().json();
        assert_eq!(json["rows"][1]["times_go_order"], 12.0);
        let found: Vec<(f64, bool)> = json["goals"]
            .as_array()
            .unwrap()
            .iter()
            .map(|goal| (goal["found"].as_f64().unwrap(), goal["met"].as_bool().unwrap()))
            .collect();
        let expected =
            [(1.0, true), (0.0, true), (3.0, false), (0.063, true), (0.0, true), (12.0, true), (4.0, false)];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_sample_without_its_numbers_is_an_error() {
        let sample = json!({ "burst": 32, "add": { "us": 5 } });
        assert!(findings().add("plain", 1, ETCD, &sample).is_err());
    }
}
