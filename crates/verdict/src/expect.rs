//! Tables of expected reachabilities, and what differs from them.

use serde_json::Value;

use crate::evaluator;
use crate::explain::{Peer, Probe, Question};
use crate::flow::Flow;
use crate::snapshot::Snapshot;

/// The `apiVersion` of documents with tables.
pub const API_VERSION: &str = "russet.dev/v1";
/// Their `kind`.
pub const KIND: &str = "PolicyTest";

/// One cell of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expectation {
    /// Who begins.
    pub from: Peer,
    /// To whom.
    pub to: Peer,
    /// What of it.
    pub probe: Probe,
    /// Whether all flows that this means are allowed, or all are denied.
    pub allowed: bool,
}

/// An expectation that does not hold.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// What was expected.
    pub expected: Expectation,
    /// A flow for which it does not hold, or why there is none.
    pub found: Result<Flow, String>,
}

/// Why a table cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct TableError {
    /// The member.
    pub path: String,
    /// What is wrong.
    pub problem: String,
}

/// Whether a document has tables.
pub fn is_test(document: &Value) -> bool {
    document.get("kind").and_then(Value::as_str) == Some(KIND)
}

/// Reads the tables of a document, in order of its cells.
///
/// `spec.tests[]` has `port`, such as `80`, `53/UDP` or `icmp`, and `table`: in its first line the
/// destinations, behind a first word that is ignored; then a line for each source, with `allowed`,
/// `denied` or `-` (which expects nothing) for each destination.
pub fn parse(document: &Value) -> Result<Vec<Expectation>, TableError> {
    let error = |path: String, problem: &str| TableError { path, problem: problem.to_owned() };
    if document.get("apiVersion").and_then(Value::as_str) != Some(API_VERSION) {
        return Err(error("apiVersion".to_owned(), &format!("{API_VERSION} is wanted")));
    }
    let tests = document.pointer("/spec/tests").and_then(Value::as_array);
    let tests = tests.ok_or_else(|| error("spec.tests".to_owned(), "a list of tables is wanted"))?;
    let mut found = Vec::new();
    for (index, test) in tests.iter().enumerate() {
        let path = |member: &str| format!("spec.tests[{index}].{member}");
        let port = match test.get("port") {
            Some(Value::Number(port)) => port.to_string(),
            Some(Value::String(port)) => port.clone(),
            _ => return Err(error(path("port"), "PORT, PORT/PROTOCOL or icmp is wanted")),
        };
        let probe: Probe =
            port.parse().map_err(|it: crate::explain::ProbeError| error(path("port"), &it.to_string()))?;
        let table = test.get("table").and_then(Value::as_str);
        let table = table.ok_or_else(|| error(path("table"), "a text with the table is wanted"))?;
        let cells = cells(table, probe).map_err(|problem| error(path("table"), &problem))?;
        found.extend(cells);
    }
    Ok(found)
}

fn cells(table: &str, probe: Probe) -> Result<Vec<Expectation>, String> {
    let peer = |text: &str| text.parse::<Peer>().map_err(|error| error.to_string());
    let mut lines =
        table.lines().map(|line| line.split_whitespace()).filter(|line| line.clone().next().is_some());
    let head = lines.next().ok_or("it is empty")?;
    let columns = head.skip(1).map(peer).collect::<Result<Vec<_>, _>>()?;
    let mut found = Vec::new();
    for mut line in lines {
        let from = peer(line.next().unwrap_or_default())?;
        let cells: Vec<&str> = line.collect();
        if cells.len() != columns.len() {
            return Err(format!(
                "the line of {from} has {} cells, the first line {} destinations",
                cells.len(),
                columns.len()
            ));
        }
        for (to, cell) in columns.iter().zip(cells) {
            let allowed = match cell {
                "allowed" => true,
                "denied" => false,
                "-" => continue,
                other => return Err(format!("{other:?} is none of `allowed`, `denied` and `-`")),
            };
            found.push(Expectation { from: from.clone(), to: to.clone(), probe, allowed });
        }
    }
    Ok(found)
}

/// The expectations that do not hold, in order.
pub fn differences(snapshot: &Snapshot, expected: &[Expectation]) -> Vec<Difference> {
    expected.iter().filter_map(|expected| expected.difference(snapshot)).collect()
}

// === impl Expectation ===

impl Expectation {
    fn difference(&self, snapshot: &Snapshot) -> Option<Difference> {
        let (from, to, probe) = (self.from.clone(), self.to.clone(), Some(self.probe));
        let found = match (Question { from, to, probe, family: None }).flows(snapshot) {
            Ok(flows) => {
                let differs = |flow: &Flow| evaluator::ask(snapshot, flow).allowed() != self.allowed;
                Ok(flows.into_iter().find(differs)?)
            }
            Err(error) => Err(error.to_string()),
        };
        Some(Difference { expected: self.clone(), found })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::generate::cluster;

    fn test(port: Value, table: &str) -> Value {
        json!({"apiVersion": API_VERSION, "kind": KIND, "spec": {"tests": [{"port": port, "table": table}]}})
    }

    fn closed() -> Snapshot {
        let mut snapshot = Snapshot::default();
        cluster().into_iter().for_each(|update| snapshot.apply(update));
        let policy = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"name": "closed", "namespace": "x"},
            "spec": {"podSelector": {"matchLabels": {"pod": "a"}}, "ingress": []},
        });
        let translated = crate::translate::document(&policy).unwrap();
        translated.updates.into_iter().for_each(|update| snapshot.apply(update));
        snapshot
    }

    #[test]
    fn a_table_that_holds_has_no_differences_and_each_wrong_cell_is_one() {
        let table = "from\\to   x/a      x/b     world\n\
                     x/b       denied   -       allowed\n\n\
                     z/d       denied   allowed allowed\n";
        let expected = parse(&test(json!(80), table)).unwrap();
        assert_eq!(expected.len(), 5);
        assert_eq!(differences(&closed(), &expected), []);
        let wrong = parse(&test(json!("icmp"), "- x/a x/b\nz/d allowed denied")).unwrap();
        let found = differences(&closed(), &wrong);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].expected.to, "x/a".parse().unwrap());
        assert_eq!(found[0].found.as_ref().unwrap().protocol, crate::ir::Protocol::ICMP);
        let unknown = parse(&test(json!("53/UDP"), "- x/a\nx/none denied")).unwrap();
        assert!(differences(&closed(), &unknown)[0].found.is_err());
    }

    #[test]
    fn tables_that_cannot_be_read_are_refused_with_the_place() {
        for (document, path) in [
            (json!({"kind": KIND}), "apiVersion"),
            (json!({"kind": KIND, "apiVersion": API_VERSION}), "spec.tests"),
            (test(json!(0), "- x/a"), "spec.tests[0].port"),
            (test(json!(null), "- x/a"), "spec.tests[0].port"),
            (test(json!(80), ""), "spec.tests[0].table"),
            (test(json!(80), "- x/a\nx/b yes"), "spec.tests[0].table"),
            (test(json!(80), "- x/a\nx/b allowed denied"), "spec.tests[0].table"),
            (test(json!(80), "- x\nx/b allowed"), "spec.tests[0].table"),
        ] {
            assert_eq!(parse(&document).unwrap_err().path, path, "{document}");
        }
    }
}
