//! What a migration found, did or would do, for people and for programs.

use std::collections::BTreeMap;

use serde::Serialize;

use super::compare::{Compared, State};
use super::plan::{Kind, Plan};
use crate::cli::Format;
use crate::output;

/// Whether anything was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// Nothing was.
    Nothing,
    /// Everything that had to be was, and was read back.
    Written,
}

/// The report; `schema` grows when a member changes its meaning.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: u32,
    /// Whether it was done, or only would be.
    written: bool,
    kinds: Vec<Counts>,
    /// What stands in the way: v2 key and reason.
    problems: Vec<Entry>,
    /// Records of the new store that say something else.
    differing: Vec<Entry>,
    /// What would be written, unless it was.
    planned: Vec<Entry>,
    /// What is not carried over.
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
    /// A reason, or where it comes from.
    text: String,
}

// === impl Report ===

impl Report {
    const SCHEMA: u32 = 1;

    /// Puts together what is known.
    pub fn new(plan: &Plan, compared: &[Compared<'_>], done: Done, force: bool) -> Self {
        let mut kinds: BTreeMap<Kind, Counts> = BTreeMap::new();
        for one in compared {
            let kind = one.planned.kind;
            let counts = kinds.entry(kind).or_insert_with(|| Counts::of(kind));
            counts.found += 1;
            match one.state {
                State::Missing => counts.created += 1,
                State::Same => counts.already += 1,
                State::Differs => counts.overwritten += usize::from(force),
            }
        }
        let entry = |one: &Compared<'_>, text: String| Entry { key: one.planned.key.to_string(), text };
        let differing = compared.iter().filter(|one| one.state == State::Differs && done == Done::Nothing);
        let planned = compared.iter().filter(|one| one.state == State::Missing && done == Done::Nothing);
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

    /// The report in a format.
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
            text.push_str(&format!("not carried over: {count} of {}\n", output::visible(what)));
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
            true => "carried over and read back; the v2 data is as it was\n",
            false => "nothing was written\n",
        });
        text
    }
}

// === impl Counts ===

impl Counts {
    fn of(kind: Kind) -> Self {
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
