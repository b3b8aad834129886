//! `russet ipam check`: looks for faults, writes nothing.

use std::process::ExitCode;

use russet_agent::{Paths, repair};
use russet_ipam::audit::{Audit, Finding, audit_store};
use serde::{Deserialize, Serialize};

use super::super::{Failure, PROBLEMS};
use super::Place;
use crate::cli::Format;
use crate::cli::ipam::{CheckArgs, CheckOutput};
use crate::{output, settings};

/// The report; `schema` grows when a member changes its meaning.
#[derive(Debug, Serialize, Deserialize)]
pub struct CheckReport {
    pub schema: u32,
    /// The store's revision when it was read.
    pub revision: u64,
    blocks: usize,
    allocations: usize,
    handles: usize,
    affinities: usize,
    #[serde(default)]
    endpoints: usize,
    /// Addresses in use whose owner no endpoint's or node's record could confirm.
    #[serde(default)]
    not_compared: usize,
    pub findings: Vec<Entry>,
}

/// One finding.
#[derive(Debug, Serialize, Deserialize)]
pub struct Entry {
    #[serde(flatten)]
    pub finding: Finding,
    /// Whether `release --from-report` releases it. The reader of the report may edit this.
    pub leaked: bool,
    /// The same as a sentence.
    text: String,
}

/// The report could not be written.
#[derive(Debug, thiserror::Error)]
#[error("write report {0}: {1}")]
struct WriteError(String, std::io::Error);

pub async fn run(place: &Place, args: CheckArgs) -> Result<ExitCode, Failure> {
    let (mut audit, revision) = audit_store(&*place.store).await?;
    audit.findings.extend(unheld(place).await);
    let found = !audit.findings.is_empty();
    let table = text(&audit, &place.paths);
    let report = CheckReport::new(audit, revision.0);
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

/// Addresses of pods on this machine, if it is a node of this store, that are not allocated to
/// them.
async fn unheld(place: &Place) -> Vec<Finding> {
    let Ok(node) = settings::node_name(&place.paths) else { return Vec::new() };
    match repair::unheld_here(place.store.clone(), &node).await {
        Ok(unheld) => {
            let finding = |it: repair::Unheld| match it.held_by {
                None => Finding::AllocationMissing { address: it.address, named_by: it.interface },
                Some(handle) => {
                    Finding::AllocationForeign { address: it.address, named_by: it.interface, handle }
                }
            };
            unheld.into_iter().map(finding).collect()
        }
        Err(error) => {
            output::progress(&format!("this machine's pods were not compared: {error}"));
            Vec::new()
        }
    }
}

fn text(audit: &Audit, paths: &Paths) -> String {
    let Audit { blocks, allocations, handles, affinities, endpoints, not_compared, findings } = audit;
    let mut text = format!(
        "checked {blocks} blocks, {allocations} addresses in use, {handles} handles, {affinities} affinities\n"
    );
    text.push_str(&compared(*endpoints, *not_compared, paths));
    if findings.is_empty() {
        return text + "no problems found\n";
    }
    let rows: Vec<_> = findings.iter().map(|f| vec![f.kind().to_owned(), f.to_string()]).collect();
    text.push_str(&output::table(&["PROBLEM", "WHAT"], &rows));
    let leaked = findings.iter().filter(|finding| finding.is_leak()).count();
    text.push_str(&format!("{} problems found, {leaked} of them leaks\n", findings.len()));
    text
}

/// Describes the records that could not be compared.
fn compared(endpoints: usize, not_compared: usize, paths: &Paths) -> String {
    match (endpoints, not_compared) {
        (_, 0) => String::new(),
        (0, count) => format!(
            "there are no workload endpoints to compare {count} addresses with; `{}` compares a node's with its interfaces\n",
            paths.command("ipam repair --dry-run")
        ),
        (_, count) => format!(
            "{count} addresses of services, of virtual machines or beside unreadable endpoints were not compared with endpoints\n"
        ),
    }
}

// === impl CheckReport ===

impl CheckReport {
    pub const SCHEMA: u32 = 1;

    fn new(audit: Audit, revision: u64) -> Self {
        let Audit { blocks, allocations, handles, affinities, endpoints, not_compared, findings } = audit;
        let entry =
            |finding: Finding| Entry { leaked: finding.is_leak(), text: finding.to_string(), finding };
        let findings = findings.into_iter().map(entry).collect();
        let schema = Self::SCHEMA;
        Self { schema, revision, blocks, allocations, handles, affinities, endpoints, not_compared, findings }
    }
}
