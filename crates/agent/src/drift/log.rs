//! The last repairs, for `russet drift`: what was different, who did it, how long it took to come back. In memory only; the counters are in the metrics.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant, SystemTime};

use russet_model::time::rfc3339;
use serde::{Deserialize, Serialize};

use super::Restored;
use super::who::Who;

/// What `russet drift` shows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DriftReport {
    /// [`Self::SCHEMA`].
    pub schema: u32,
    /// What differs from what should be now, in words.
    pub differences: Vec<String>,
    /// What could not be compared, and why.
    pub unknown: Vec<String>,
    /// Repairs since the agent's start.
    pub repairs_total: u64,
    /// The last of them, the newest first.
    pub repairs: Vec<Repair>,
}

/// Something that was brought back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Repair {
    /// When, in RFC 3339.
    pub at: String,
    /// What was done about it, in words; the first [`WHAT_MAX`].
    pub what: Vec<String>,
    /// How much more of it there was.
    pub more: u64,
    /// Kernel objects that were changed, by kind.
    pub kinds: BTreeMap<String, u64>,
    /// Who did it, as far as known.
    pub who: Vec<Who>,
    /// Whether the kernel told of it; otherwise the regular look found it.
    pub heard: bool,
    /// Milliseconds from the kernel's first word of it, or else from the beginning of the look, until it was back.
    pub ms: f64,
    /// What could not be brought back.
    pub errors: Vec<String>,
}

/// The last repairs.
#[derive(Debug, Default)]
pub(super) struct Log {
    repairs: VecDeque<Repair>,
    total: u64,
    told: Option<Told>,
}

/// Lines that were written lately.
#[derive(Debug)]
struct Told {
    since: Instant,
    lines: u32,
    untold: u64,
}

/// Repairs that are remembered: a day of a flap every few minutes, 100 KiB at most.
const REPAIRS_MAX: usize = 200;
/// Differences of one repair that are told in words.
const WHAT_MAX: usize = 12;
/// Differences that are told of at once.
const DIFFERENCES_MAX: usize = 1000;
/// Somebody who changes the same thing in a loop is logged this often in each [`LINES_TIME`].
const LINES_MAX: u32 = 10;
const LINES_TIME: Duration = Duration::from_secs(60);

// === impl DriftReport ===

impl DriftReport {
    /// The version of its form.
    pub const SCHEMA: u32 = 1;
}

// === impl Repair ===

impl Repair {
    pub(super) fn new(restored: Restored, who: Vec<Who>, heard: bool, took: Duration) -> Self {
        let Restored { mut what, kinds, errors } = restored;
        let more = what.len().saturating_sub(WHAT_MAX) as u64;
        what.truncate(WHAT_MAX);
        let kinds = kinds.into_iter().map(|(kind, count)| (kind.to_owned(), count)).collect();
        let ms = (took.as_secs_f64() * 1e5).round() / 100.0;
        Self { at: rfc3339(SystemTime::now()), what, more, kinds, who, heard, ms, errors }
    }

    /// Whether the same could not be brought back for the same reason.
    fn failed_as(&self, later: &Self) -> bool {
        let failed = self.kinds.is_empty() && later.kinds.is_empty() && !self.errors.is_empty();
        failed && self.what == later.what && self.errors == later.errors
    }

    fn tell(&self, untold: u64) {
        let list = |words: Vec<String>| words.join("; ");
        let what = list(self.what.clone());
        let who = list(self.who.iter().map(ToString::to_string).collect());
        let errors = list(self.errors.clone());
        let Self { more, heard, ms, .. } = self;
        if self.kinds.is_empty() && !self.errors.is_empty() {
            tracing::warn!(what, more, who, heard, ms, errors, untold, "drift could not be repaired");
        } else {
            tracing::warn!(what, more, who, heard, ms, errors, untold, "drift was repaired");
        }
    }
}

// === impl Log ===

impl Log {
    pub fn add(&mut self, repair: Repair) {
        // Parts fail side by side: what came last of this one counts.
        let last = self.repairs.iter().position(|it| it.what == repair.what);
        if let Some(last) = last.filter(|last| self.repairs[*last].failed_as(&repair)) {
            self.repairs.remove(last);
            self.repairs.push_front(repair);
            return;
        }
        if let Some(untold) = self.may_tell(Instant::now()) {
            repair.tell(untold);
        }
        self.total += 1;
        self.repairs.push_front(repair);
        self.repairs.truncate(REPAIRS_MAX);
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

    /// Whether a line may be written, and how many were not since the last one.
    fn may_tell(&mut self, now: Instant) -> Option<u64> {
        let told = match &mut self.told {
            Some(told) if now.saturating_duration_since(told.since) < LINES_TIME => told,
            other => {
                let untold = other.as_ref().map_or(0, |told| told.untold);
                other.insert(Told { since: now, lines: 0, untold })
            }
        };
        if told.lines >= LINES_MAX {
            told.untold += 1;
            return None;
        }
        told.lines += 1;
        Some(std::mem::take(&mut told.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repair(what: usize) -> Repair {
        let what = (0..what).map(|n| format!("route {n}")).collect();
        let restored = Restored { what, kinds: vec![("route", 3)], errors: Vec::new() };
        Repair::new(restored, Vec::new(), true, Duration::from_micros(1234))
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
    fn what_fails_again_in_the_same_way_is_remembered_once() {
        let failure = |what: &str, error: &str| {
            let restored = Restored::failed(what, error.to_owned());
            Repair::new(restored, Vec::new(), false, Duration::ZERO)
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
        assert_eq!((report.repairs_total, log.told.map(|told| told.lines)), (5, Some(5)));
    }

    #[test]
    fn a_loop_of_repairs_does_not_fill_the_log() {
        let (mut log, start) = (Log::default(), Instant::now());
        let lines = (0..1000).filter(|_| log.may_tell(start).is_some()).count();
        assert_eq!(lines, LINES_MAX as usize);
        assert_eq!(log.may_tell(start + LINES_TIME), Some(1000 - u64::from(LINES_MAX)));
    }
}
