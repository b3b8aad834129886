//! `russet drift`: asks the agent what differs from the desired state, and what it has repaired.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use russet_agent::Paths;
use russet_agent::drift::{DRIFT_PATH, DriftReport, Repair};
use serde_json::json;

use super::ask::ask;
use super::{FAILED, Failure, PROBLEMS};
use crate::cli::drift::DriftArgs;
use crate::output;
use crate::owned::pods_by_interface;

/// A comparison of a large node takes a fraction of a second; requests for pods may be before it.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Prints the agent's report.
pub fn run(args: DriftArgs) -> Result<ExitCode, Failure> {
    let paths = Paths::new(&args.root);
    let question = (DRIFT_PATH, DriftReport::SCHEMA);
    let mut report: DriftReport = ask(&paths.cni_socket(), question, &json!({}), TIMEOUT)?;
    report.repairs.truncate(args.last);
    name_pods(&mut report, &pods_by_interface(&paths));
    output::print_as(args.output.format, &report, || text(&report));
    Ok(match report {
        DriftReport { differences, .. } if !differences.is_empty() => ExitCode::from(PROBLEMS),
        DriftReport { unknown, .. } if !unknown.is_empty() => ExitCode::from(FAILED),
        _ => ExitCode::SUCCESS,
    })
}

/// Appends the pod's name to the name of each interface that belongs to one.
fn name_pods(report: &mut DriftReport, pods: &BTreeMap<String, String>) {
    let repaired = report.repairs.iter_mut().flat_map(|repair| repair.what.iter_mut());
    for line in report.differences.iter_mut().chain(repaired) {
        *line = with_pods(line, pods);
    }
}

fn with_pods(line: &str, pods: &BTreeMap<String, String>) -> String {
    let is_of_a_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let mut text = String::new();
    let mut rest = line;
    while let Some(begin) = rest.find(is_of_a_name) {
        let (before, from) = rest.split_at(begin);
        let end = from.find(|c| !is_of_a_name(c)).unwrap_or(from.len());
        let (word, after) = from.split_at(end);
        text.push_str(before);
        text.push_str(word);
        if let Some(pod) = pods.get(word) {
            text.push_str(&format!(" (pod {pod})"));
        }
        rest = after;
    }
    text + rest
}

fn text(report: &DriftReport) -> String {
    let mut lines = Vec::new();
    match report.differences.len() {
        0 if report.unknown.is_empty() => lines.push("nothing differs from what should be".to_owned()),
        0 => lines.push("nothing differs of what could be compared".to_owned()),
        count => lines.push(format!("{count} differences from what should be; to do:")),
    }
    lines.extend(report.differences.iter().map(|line| format!("  {}", output::visible(line))));
    lines.extend(report.unknown.iter().map(|line| format!("could not compare: {}", output::visible(line))));
    match report.repairs_total {
        0 => lines.push("nothing was repaired since the agent's start".to_owned()),
        total => {
            lines.push(format!("{total} repairs since the agent's start, the last {}:", report.repairs.len()))
        }
    }
    report.repairs.iter().for_each(|repair| lines.extend(shown(repair)));
    lines.join("\n") + "\n"
}

fn shown(repair: &Repair) -> Vec<String> {
    let who: Vec<String> = repair.who.iter().map(ToString::to_string).collect();
    let who = if who.is_empty() { "an unknown process".to_owned() } else { who.join(", ") };
    let how = if repair.heard { "restored in" } else { "found by the regular comparison, restored in" };
    let mut lines = vec![format!("{}  {how} {} ms  by {}", repair.at, repair.ms, output::visible(&who))];
    lines.extend(repair.what.iter().map(|line| format!("  {}", output::visible(line))));
    if repair.more > 0 {
        lines.push(format!("  and {} more", repair.more));
    }
    lines.extend(repair.errors.iter().map(|line| format!("  failed: {}", output::visible(line))));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_of_pods_are_named_with_their_pods() {
        let pods = BTreeMap::from([("russ0123".to_owned(), "shop/web".to_owned())]);
        for (line, named) in [
            ("put the verdict of russ0123", "put the verdict of russ0123 (pod shop/web)"),
            (
                "sysctl net/ipv4/conf/russ0123/rp_filter",
                "sysctl net/ipv4/conf/russ0123 (pod shop/web)/rp_filter",
            ),
            ("delete route 10.1.0.0/26 via 10.0.0.7", "delete route 10.1.0.0/26 via 10.0.0.7"),
            ("russ01234", "russ01234"),
            ("", ""),
        ] {
            assert_eq!(with_pods(line, &pods), named);
        }
    }
}
