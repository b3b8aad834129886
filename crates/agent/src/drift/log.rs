//! The last repairs, for `russet drift`: what differed, which process changed it, how long the
//! repair took. In memory only; the counters are metrics.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant, SystemTime};

use russet_model::time::rfc3339;
use russet_overlay::ReconcileReport;
use serde::{Deserialize, Serialize};

use super::who::Who;

/// The output of `russet drift`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DriftReport {
    /// [`Self::SCHEMA`].
    pub schema: u32,
    /// The current differences from the desired state, as text.
    pub differences: Vec<String>,
    /// What could not be compared, and why.
    pub unknown: Vec<String>,
    /// Number of repairs since the agent's start.
    pub repairs_total: u64,
    /// The last repairs, newest first.
    pub repairs: Vec<Repair>,
}

/// One repair.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Repair {
    /// When, in RFC 3339.
    pub at: String,
    /// What was done, as text; the first [`WHAT_MAX`].
    pub what: Vec<String>,
    /// The number of further actions.
    pub more: u64,
    /// Kernel objects that were changed, by kind.
    pub kinds: BTreeMap<String, u64>,
    /// The processes that made the change, as far as known.
    pub who: Vec<Who>,
    /// Whether a kernel event announced the change. Otherwise a regular comparison found it.
    pub heard: bool,
    /// Milliseconds from the first event, or from the beginning of the comparison, until it was
    /// restored.
    pub ms: f64,
    /// What could not be restored.
    pub errors: Vec<String>,
}

/// The last repairs.
#[derive(Debug, Default)]
pub(super) struct Log {
    repairs: VecDeque<Repair>,
    total: u64,
    lines_written: Option<LogLines>,
}

/// Log lines of the current interval.
#[derive(Debug)]
struct LogLines {
    since: Instant,
    lines: u32,
    suppressed: u64,
}

/// Repairs that are kept: a day of a change every few minutes, at most 100 KiB.
const REPAIRS_MAX: usize = 200;
/// Actions of one repair that are listed as text.
const WHAT_MAX: usize = 12;
/// Differences that are listed at once.
const DIFFERENCES_MAX: usize = 1000;
/// Log lines in each [`LINES_TIME`], for a program that changes the same object in a loop.
const LINES_MAX: u32 = 10;
const LINES_TIME: Duration = Duration::from_secs(60);

// === impl DriftReport ===

impl DriftReport {
    /// Version of the JSON format.
    pub const SCHEMA: u32 = 1;
}

// === impl Repair ===

impl Repair {
    /// What a controller did; time and cause are not known yet.
    pub(super) fn new(report: &ReconcileReport) -> Self {
        let what: Vec<String> = report.what.iter().take(WHAT_MAX).cloned().collect();
        let more = (report.what.len() - what.len() + report.more) as u64;
        let kinds = report.changed.iter().map(|(kind, count)| ((*kind).to_owned(), *count as u64));
        let errors = report.errors.iter().map(ToString::to_string).collect();
        let (at, who) = (rfc3339(SystemTime::now()), Vec::new());
        Self { at, what, more, kinds: kinds.collect(), who, heard: false, ms: 0.0, errors }
    }

    pub(super) fn set_time(&mut self, took: Duration, heard: bool) {
        self.ms = (took.as_secs_f64() * 1e5).round() / 100.0;
        self.heard = heard;
    }

    /// Whether `later` is the same repair with the same errors.
    fn failed_as(&self, later: &Self) -> bool {
        let failed = self.kinds.is_empty() && later.kinds.is_empty() && !self.errors.is_empty();
        failed && self.what == later.what && self.errors == later.errors
    }

    fn log(&self, suppressed: u64) {
        let list = |words: Vec<String>| words.join("; ");
        let what = list(self.what.clone());
        let who = list(self.who.iter().map(ToString::to_string).collect());
        let errors = list(self.errors.clone());
        let Self { more, heard, ms, .. } = self;
        if self.kinds.is_empty() && !self.errors.is_empty() {
            tracing::warn!(what, more, who, heard, ms, errors, suppressed, "drift could not be repaired");
        } else {
            tracing::warn!(what, more, who, heard, ms, errors, suppressed, "drift was repaired");
        }
    }
}

// === impl Log ===

impl Log {
    pub fn add(&mut self, repair: Repair) {
        // Several parts may fail in turn, so only the last repair of the same part is compared.
        let last = self.repairs.iter().position(|it| it.what == repair.what);
        if let Some(last) = last.filter(|last| self.repairs[*last].failed_as(&repair)) {
            self.repairs.remove(last);
            self.repairs.push_front(repair);
            return;
        }
        if let Some(suppressed) = self.may_log(Instant::now()) {
            repair.log(suppressed);
        }
        self.total += 1;
        self.repairs.push_front(repair);
        self.repairs.truncate(REPAIRS_MAX);
    }

    /// The number of repairs, and the time of the last one.
    pub fn repairs(&self) -> (u64, Option<String>) {
        (self.total, self.repairs.front().map(|repair| repair.at.clone()))
    }

    /// The number of repairs, and the last `max`, newest first.
    pub fn recent(&self, max: usize) -> (u64, Vec<Repair>) {
        (self.total, self.repairs.iter().take(max).cloned().collect())
    }

    pub fn report(&self, compared: Vec<Result<Vec<String>, String>>) -> DriftReport {
        let (mut differences, mut unknown) = (Vec::new(), Vec::new());
        for part in compared {
            match part {
                Ok(lines) => differences.extend(lines),
                Err(error) => unknown.push(error),
            }
        }
        if differences.len() > DIFFERENCES_MAX {
            let more = differences.len() - DIFFERENCES_MAX;
            differences.truncate(DIFFERENCES_MAX);
            differences.push(format!("and {more} more"));
        }
        let repairs = self.repairs.iter().cloned().collect();
        DriftReport { schema: DriftReport::SCHEMA, differences, unknown, repairs_total: self.total, repairs }
    }

    /// Whether a line may be written, and how many lines were suppressed since the last one.
    fn may_log(&mut self, now: Instant) -> Option<u64> {
        let lines_written = match &mut self.lines_written {
            Some(lines_written) if now.saturating_duration_since(lines_written.since) < LINES_TIME => {
                lines_written
            }
            other => {
                let suppressed = other.as_ref().map_or(0, |lines_written| lines_written.suppressed);
                other.insert(LogLines { since: now, lines: 0, suppressed })
            }
        };
        if lines_written.lines >= LINES_MAX {
            lines_written.suppressed += 1;
            return None;
        }
        lines_written.lines += 1;
        Some(std::mem::take(&mut lines_written.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use russet_overlay::OverlayError;

    use super::*;

    fn repair(what: usize) -> Repair {
        let mut report = ReconcileReport::default();
        report.note((0..what).map(|n| format!("route {n}")));
        (0..3).for_each(|_| report.count_as("route"));
        let mut repair = Repair::new(&report);
        repair.set_time(Duration::from_micros(1234), true);
        repair
    }

    #[test]
    fn the_log_is_bounded_and_the_newest_come_first() {
        let mut log = Log::default();
        for n in 0..=REPAIRS_MAX {
            log.add(repair(n));
        }
        let report = log.report(vec![Ok(vec!["x".to_owned(); 5000]), Err("no kernel".to_owned())]);
        assert_eq!((report.repairs.len(), report.repairs_total), (REPAIRS_MAX, REPAIRS_MAX as u64 + 1));
        assert_eq!(report.repairs[0].what.len() as u64 + report.repairs[0].more, REPAIRS_MAX as u64);
        assert_eq!((report.repairs[0].what.len(), report.repairs[0].ms), (WHAT_MAX, 1.23));
        assert_eq!(report.differences.len(), DIFFERENCES_MAX + 1);
        assert_eq!(report.differences.last().map(String::as_str), Some("and 4000 more"));
        assert_eq!(report.unknown, ["no kernel"]);
    }

    #[test]
    fn a_failure_that_repeats_unchanged_is_kept_once() {
        let failure = |what: &str, error: &str| {
            let mut report = ReconcileReport::default();
            report.note([what]);
            report.fail(OverlayError::Other(error.into()));
            Repair::new(&report)
        };
        let mut log = Log::default();
        for error in ["EBUSY", "EBUSY", "EBUSY", "EPERM"] {
            log.add(failure("x", error));
            log.add(failure("y", "EIO"));
        }
        log.add(repair(1));
        log.add(repair(1));
        log.add(failure("x", "EPERM"));
        let report = log.report(Vec::new());
        let errors = report.repairs.iter().map(|it| it.errors.concat());
        assert_eq!(errors.collect::<Vec<_>>(), ["EPERM", "", "", "EIO", "EBUSY"]);
        assert_eq!(
            (report.repairs_total, log.lines_written.map(|lines_written| lines_written.lines)),
            (5, Some(5))
        );
    }

    #[test]
    fn a_loop_of_repairs_does_not_fill_the_log() {
        let (mut log, start) = (Log::default(), Instant::now());
        let lines = (0..1000).filter(|_| log.may_log(start).is_some()).count();
        assert_eq!(lines, LINES_MAX as usize);
        assert_eq!(log.may_log(start + LINES_TIME), Some(1000 - u64::from(LINES_MAX)));
    }
}
