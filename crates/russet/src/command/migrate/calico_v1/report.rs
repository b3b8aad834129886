//! The report of a migration or of its dry run, for people and for programs.

use std::collections::BTreeMap;

use serde::Serialize;

use super::compare::{Compared, RecordState};
use super::plan::{Kind, Plan};
use crate::cli::Format;
use crate::output;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    Nothing,
    /// Every necessary record was written and read back.
    Written,
}

/// The report; `schema` grows when a member changes its meaning.
#[derive(Debug, Serialize)]
pub struct MigrationReport {
    schema: u32,
    /// Whether it was done, or is a dry run.
    written: bool,
    kinds: Vec<Counts>,
    /// Problems: v2 key and reason.
    problems: Vec<Entry>,
    /// Records of the new store that differ.
    differing: Vec<Entry>,
    /// What would be written; empty once it is.
    planned: Vec<Entry>,
    /// What is not migrated.
    left: BTreeMap<String, usize>,
}

#[derive(Debug, Serialize)]
struct Counts {
    kind: &'static str,
    found: usize,
    created: usize,
    overwritten: usize,
    already: usize,
}

#[derive(Debug, Serialize)]
struct Entry {
    key: String,
    /// A reason, or the key that it comes from.
    text: String,
}

// === impl MigrationReport ===

impl MigrationReport {
    const SCHEMA: u32 = 1;

    pub fn new(plan: &Plan, compared: &[Compared<'_>], done: Done, force: bool) -> Self {
        let mut kinds: BTreeMap<Kind, Counts> = BTreeMap::new();
        for one in compared {
            let kind = one.planned.kind;
            let counts = kinds.entry(kind).or_insert_with(|| Counts::for_kind(kind));
            counts.found += 1;
            match one.state {
                RecordState::Missing => counts.created += 1,
                RecordState::Same => counts.already += 1,
                RecordState::Differs => counts.overwritten += usize::from(force),
            }
        }
        let entry = |one: &Compared<'_>, text: String| Entry { key: one.planned.key.to_string(), text };
        let differing =
            compared.iter().filter(|one| one.state == RecordState::Differs && done == Done::Nothing);
        let planned =
            compared.iter().filter(|one| one.state == RecordState::Missing && done == Done::Nothing);
        let problem = |problem: &super::plan::Problem| Entry {
            key: problem.key.to_string(),
            text: problem.reason.clone(),
        };
        Self {
            schema: Self::SCHEMA,
            written: done == Done::Written,
            kinds: kinds.into_values().collect(),
            problems: plan.problems.iter().map(problem).collect(),
            differing: differing
                .map(|one| entry(one, format!("differs from {}", one.planned.from)))
                .collect(),
            planned: planned.map(|one| entry(one, format!("from {}", one.planned.from))).collect(),
            left: plan.left.clone(),
        }
    }

    pub fn show(&self, format: Format) -> String {
        output::in_format(format, self, || self.text())
    }

    fn text(&self) -> String {
        let rows = |entries: &[Entry]| -> Vec<Vec<String>> {
            entries.iter().map(|entry| vec![entry.key.clone(), entry.text.clone()]).collect()
        };
        let mut text = String::new();
        if !self.written && !self.planned.is_empty() {
            text.push_str(&output::table(&["WOULD WRITE", "FROM"], &rows(&self.planned)));
            text.push('\n');
        }
        let counts: Vec<Vec<String>> = self.kinds.iter().map(Counts::row).collect();
        let heading = match self.written {
            true => ["KIND", "FOUND", "CREATED", "OVERWRITTEN", "ALREADY THERE"],
            false => ["KIND", "FOUND", "TO CREATE", "TO OVERWRITE", "ALREADY THERE"],
        };
        text.push_str(&output::table(&heading, &counts));
        for (what, count) in &self.left {
            text.push_str(&format!("not migrated: {count} of {}\n", output::visible(what)));
        }
        if !self.problems.is_empty() {
            text.push_str("\nIn the way; nothing was written:\n");
            text.push_str(&output::table(&["KEY", "WHY"], &rows(&self.problems)));
        }
        if !self.differing.is_empty() {
            text.push_str("\nThe new store says something else; without --force, which is refused once it has pools, nothing is overwritten:\n");
            text.push_str(&output::table(&["KEY", "WHAT"], &rows(&self.differing)));
        }
        text.push_str(match self.written {
            true => "migrated and read back; the v2 data is as it was\n",
            false => "nothing was written\n",
        });
        text
    }
}

// === impl Counts ===

impl Counts {
    fn for_kind(kind: Kind) -> Self {
        let kind = match kind {
            Kind::Block => "blocks",
            Kind::Handle => "handles",
            Kind::Affinity => "affinities",
            Kind::Settings => "settings",
            Kind::Node => "nodes",
            Kind::Profile => "profiles",
            Kind::Endpoint => "endpoints",
            Kind::Pool => "pools",
            Kind::Cluster => "cluster information",
        };
        Self { kind, found: 0, created: 0, overwritten: 0, already: 0 }
    }

    fn row(&self) -> Vec<String> {
        let numbers = [self.found, self.created, self.overwritten, self.already];
        std::iter::once(self.kind.to_owned()).chain(numbers.map(|number| number.to_string())).collect()
    }
}
