//! The report of a migration or of its dry run, for people and for programs.

use serde::Serialize;

use super::plan::{Plan, Planned, RecordState};
use crate::cli::Format;
use crate::output;

/// The report; `schema` grows when a member changes its meaning.
#[derive(Debug, Serialize)]
pub struct MigrationReport {
    schema: u32,
    /// Whether it was done, or is a dry run.
    written: bool,
    /// Every record that can be migrated.
    records: Vec<Line>,
    /// What is not migrated: v2 key and reason.
    left: Vec<Entry>,
    /// Problems: key and reason.
    problems: Vec<Entry>,
}

#[derive(Debug, Serialize)]
struct Line {
    key: String,
    /// `created`, `overwritten`, `already there`, `left out`, `moved`, `in the way`.
    what: &'static str,
    /// Absent if it never expires.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds_left: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Debug, Serialize)]
struct Entry {
    key: String,
    reason: String,
}

// === impl MigrationReport ===

impl MigrationReport {
    const SCHEMA: u32 = 1;

    pub fn new(plan: &Plan, written: bool, force: bool) -> Self {
        let entries = |list: &[(russet_model::Key, String)]| {
            list.iter().map(|(key, reason)| Entry { key: key.to_string(), reason: reason.clone() }).collect()
        };
        Self {
            schema: Self::SCHEMA,
            written,
            records: plan.all().map(|planned| Line::for_record(planned, plan, force)).collect(),
            left: entries(&plan.left),
            problems: entries(&plan.problems),
        }
    }

    pub fn show(&self, format: Format) -> String {
        output::in_format(format, self, || self.text())
    }

    fn text(&self) -> String {
        let lines: Vec<Vec<String>> = self.records.iter().map(Line::row).collect();
        let mut text = match lines.is_empty() {
            true => String::new(),
            false => {
                output::table(&["KEY", "LEFT", if self.written { "DONE" } else { "WOULD BE" }, "WHY"], &lines)
            }
        };
        for (heading, entries) in
            [("Not migrated:", &self.left), ("In the way; nothing was written:", &self.problems)]
        {
            if !entries.is_empty() {
                let rows: Vec<Vec<String>> =
                    entries.iter().map(|entry| vec![entry.key.clone(), entry.reason.clone()]).collect();
                text.push_str(&format!("\n{heading}\n{}", output::table(&["KEY", "WHY"], &rows)));
            }
        }
        text.push_str(match self.written {
            true => "migrated and read back; the v2 data is as it was\n",
            false => "nothing was written\n",
        });
        text
    }
}

// === impl Line ===

impl Line {
    fn for_record(planned: &Planned, plan: &Plan, force: bool) -> Self {
        let is_config = plan.config.as_ref().is_some_and(|config| config.key == planned.key);
        let (what, reason) = match &planned.state {
            RecordState::Missing => ("created", None),
            RecordState::Same => ("already there", None),
            RecordState::Moved(to) => ("moved", Some(format!("its node has {to} there"))),
            RecordState::Differs(reason) => {
                let what = match (force, is_config) {
                    (false, _) => "in the way",
                    (true, true) => "overwritten",
                    (true, false) => "left out",
                };
                (what, Some(reason.clone()))
            }
        };
        let seconds_left = planned.time_left.map(|left| left.as_secs());
        Self { key: planned.key.to_string(), what, seconds_left, reason }
    }

    fn row(&self) -> Vec<String> {
        let left = self.seconds_left.map_or_else(|| "for ever".to_owned(), |seconds| format!("{seconds} s"));
        vec![self.key.clone(), left, self.what.to_owned(), self.reason.clone().unwrap_or_default()]
    }
}
