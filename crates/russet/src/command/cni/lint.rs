//! `russet cni lint`: reports what is wrong with configuration files.

use std::process::ExitCode;

use russet_runtime::lint::{Finding, Severity, lint};
use serde_json::{Value, json};

use crate::cli::cni::LintArgs;
use crate::command::PROBLEMS;
use crate::output;

/// The version of the JSON that `-o json` prints.
const SCHEMA: u32 = 1;

/// Checks each file, in their order.
pub fn run(args: LintArgs) -> ExitCode {
    // Nothing is attached, so no cache is read.
    let runtime = (!args.no_plugins).then(|| super::runtime(&args.plugins, "/nonexistent".as_ref()));
    let findings: Vec<Finding> = args.files.iter().flat_map(|file| lint(file, runtime.as_ref())).collect();
    output::print_as(args.output.format, &document(&args, &findings), || text(&findings));
    if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(PROBLEMS) }
}

fn severity(finding: &Finding) -> &'static str {
    match finding.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

fn document(args: &LintArgs, findings: &[Finding]) -> Value {
    let finding = |it: &Finding| {
        json!({
            "file": it.file,
            "line": it.position.map(|(line, _)| line),
            "column": it.position.map(|(_, column)| column),
            "at": it.at,
            "severity": severity(it),
            "text": it.text,
        })
    };
    let findings: Vec<Value> = findings.iter().map(finding).collect();
    json!({ "schema": SCHEMA, "files": args.files, "findings": findings })
}

/// One line per finding in the format of compilers, so that editors jump to it.
fn text(findings: &[Finding]) -> String {
    let line = |it: &Finding| {
        let place = it.position.map(|(line, column)| format!(":{line}:{column}")).unwrap_or_default();
        let at = if it.at.is_empty() { String::new() } else { format!("{}: ", it.at) };
        let line = format!("{}{place}: {}: {at}{}", it.file.display(), severity(it), it.text);
        output::visible(&line) + "\n"
    };
    findings.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_a_line_that_editors_understand() {
        let mut finding = Finding {
            file: "/n/x.conflist".into(),
            position: Some((3, 7)),
            at: "plugins[0].mtu".to_owned(),
            severity: Severity::Error,
            text: "a number\u{1b} is wanted".to_owned(),
        };
        assert_eq!(
            text(std::slice::from_ref(&finding)),
            "/n/x.conflist:3:7: error: plugins[0].mtu: a number\\u{1b} is wanted\n"
        );
        (finding.position, finding.severity, finding.at) = (None, Severity::Warning, String::new());
        assert_eq!(text(&[finding]), "/n/x.conflist: warning: a number\\u{1b} is wanted\n");
    }
}
