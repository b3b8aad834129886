//! `russet ipam check`: looks for faults, writes nothing.

use std::process::ExitCode;

use russet_ipam::audit::{Audit, Finding, audit_store};
use serde::{Deserialize, Serialize};

use super::super::{Failure, PROBLEMS};
use super::Place;
use crate::cli::Format;
use crate::cli::ipam::{CheckArgs, CheckOutput};
use crate::output;

/// The report; `schema` grows when a member changes its meaning.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// [`Report::SCHEMA`].
    pub schema: u32,
    /// The store's revision when it was read.
    pub revision: u64,
    blocks: usize,
    allocations: usize,
    handles: usize,
    affinities: usize,
    /// What is wrong.
    pub findings: Vec<Entry>,
}

/// One finding.
#[derive(Debug, Serialize, Deserialize)]
pub struct Entry {
    /// For programs.
    #[serde(flatten)]
    pub finding: Finding,
    /// Whether `release --from-report` gives it back. Whoever reads the report may say no.
    pub leaked: bool,
    /// For people.
    text: String,
}

/// The report could not be kept.
#[derive(Debug, thiserror::Error)]
#[error("write report {0}: {1}")]
struct WriteError(String, std::io::Error);

/// Looks, and says what it found.
pub async fn run(place: &Place, args: CheckArgs) -> Result<ExitCode, Failure> {
    let (audit, revision) = audit_store(&*place.store).await?;
    let found = !audit.findings.is_empty();
    let table = text(&audit);
    let report = Report::new(audit, revision.0);
    let format = match args.output {
        CheckOutput::Format(format) => format,
        CheckOutput::File(path) => {
            let written = std::fs::write(&path, output::json(&report));
            written.map_err(|error| WriteError(path.display().to_string(), error))?;
            Format::Table
        }
    };
    output::print_as(format, &report, || table);
    Ok(if found { ExitCode::from(PROBLEMS) } else { ExitCode::SUCCESS })
}

fn text(audit: &Audit) -> String {
    let Audit { blocks, allocations, handles, affinities, findings } = audit;
    let mut text = format!(
        "checked {blocks} blocks, {allocations} addresses in use, {handles} handles, {affinities} affinities\n"
    );
    if findings.is_empty() {
        return text + "no problems found\n";
    }
    let rows: Vec<_> = findings.iter().map(|f| vec![f.kind().to_owned(), f.to_string()]).collect();
    text.push_str(&output::table(&["PROBLEM", "WHAT"], &rows));
    let leaked = findings.iter().filter(|finding| finding.is_leak()).count();
    text.push_str(&format!("{} problems found, {leaked} of them leaks\n", findings.len()));
    text
}

// === impl Report ===

impl Report {
    /// The meaning that the members have today.
    pub const SCHEMA: u32 = 1;

    fn new(audit: Audit, revision: u64) -> Self {
        let Audit { blocks, allocations, handles, affinities, findings } = audit;
        let entry =
            |finding: Finding| Entry { leaked: finding.is_leak(), text: finding.to_string(), finding };
        let findings = findings.into_iter().map(entry).collect();
        Self { schema: Self::SCHEMA, revision, blocks, allocations, handles, affinities, findings }
    }
}
