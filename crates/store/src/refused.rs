//! Logs stored records that are not used. Other programs write to the store, sometimes by mistake
//! or with bad intent, so their share of the log is limited: each record is logged once until the
//! reason changes, a few lines per minute for each kind of refusal, and only the beginning of a key
//! or a reason. The number of suppressed lines is logged.
//!
//! Called wherever a listed or watched record is skipped: the allocator, leases, the agent's and
//! flanneld's loops.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt::Display;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The log lines of one kind of refusal.
#[derive(Debug, Default)]
struct Kind {
    /// Hashes of the records, each with that of its reason.
    known: BTreeMap<u64, u64>,
    /// When the current interval began.
    since: Option<Instant>,
    lines: u32,
    /// Refusals that were not logged.
    left_out: u64,
}

/// What to log.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    /// A line, after so many that were suppressed.
    Refusal { left_out: u64 },
    /// That the following ones are suppressed.
    Last,
    /// Nothing.
    None,
}

/// Lines of one kind of refusal in each [`LINES_TIME`]: enough to recognise a mistake.
const LINES_MAX: u32 = 10;
const LINES_TIME: Duration = Duration::from_secs(60);
/// Records that are remembered for each kind. If more are refused, some may be logged again, within
/// the limit.
const KNOWN_MAX: usize = 8192;
/// Limit of the characters of a key and of a reason.
const TEXT_MAX_CHARS: usize = 256;

static KINDS: Mutex<BTreeMap<&'static str, Kind>> = Mutex::new(BTreeMap::new());

/// Logs that a record is not used: `what` happens instead, the record, and why.
pub fn refused(what: &'static str, record: impl Display, reason: impl Display) {
    let (record, reason) = (record.to_string(), reason.to_string());
    let mut kinds = KINDS.lock().unwrap_or_else(PoisonError::into_inner);
    let line = kinds.entry(what).or_default().note(&record, &reason, Instant::now());
    drop(kinds);
    // Stored text must not be able to add lines to the log.
    let (record, reason) = (cut(record.escape_debug().to_string()), cut(reason.escape_debug().to_string()));
    match line {
        Line::Refusal { left_out: 0 } => tracing::warn!(%record, %reason, "{what}"),
        Line::Refusal { left_out } => tracing::warn!(%record, %reason, left_out, "{what}"),
        Line::Last => {
            let seconds = LINES_TIME.as_secs();
            tracing::warn!(%record, %reason, seconds, "{what}; others are left out for a while");
        }
        Line::None => {}
    }
}

fn cut(text: String) -> String {
    match text.char_indices().nth(TEXT_MAX_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

// === impl Kind ===

impl Kind {
    fn note(&mut self, record: &str, reason: &str, now: Instant) -> Line {
        let (record, reason) = (hash(record), hash(reason));
        if self.known.get(&record) == Some(&reason) {
            return Line::None;
        }
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(record, reason);
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= LINES_TIME) {
            (self.since, self.lines) = (Some(now), 0);
        }
        self.lines = self.lines.saturating_add(1);
        if self.lines > LINES_MAX {
            self.left_out += 1;
            return Line::None;
        }
        if self.lines == LINES_MAX {
            return Line::Last;
        }
        Line::Refusal { left_out: std::mem::take(&mut self.left_out) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_logged_once_for_each_reason() {
        let (mut kind, now) = (Kind::default(), Instant::now());
        let first = Line::Refusal { left_out: 0 };
        assert_eq!(kind.note("a", "no JSON", now), first);
        for _ in 0..1000 {
            assert_eq!(kind.note("a", "no JSON", now), Line::None);
        }
        assert_eq!(kind.note("b", "no JSON", now), first);
        assert_eq!(kind.note("a", "too long", now), first);
    }

    #[test]
    fn a_flood_is_logged_with_a_few_lines_per_minute_and_counted() {
        let (mut kind, now) = (Kind::default(), Instant::now());
        let lines = |kind: &mut Kind, at: Instant, from: u32| {
            (from..from + 100_000).filter(|n| kind.note(&n.to_string(), "", at) != Line::None).count()
        };
        assert_eq!(lines(&mut kind, now, 0), LINES_MAX as usize);
        assert_eq!(lines(&mut kind, now + LINES_TIME / 2, 200_000), 0);
        let next = kind.note("x", "", now + LINES_TIME);
        assert_eq!(next, Line::Refusal { left_out: 200_000 - u64::from(LINES_MAX) });
        assert!(kind.known.len() <= KNOWN_MAX);
    }

    #[test]
    fn the_last_line_says_that_others_are_suppressed() {
        let (mut kind, now) = (Kind::default(), Instant::now());
        let last = (0..LINES_MAX).map(|n| kind.note(&n.to_string(), "", now)).last();
        assert_eq!(last, Some(Line::Last));
    }

    #[test]
    fn texts_are_cut() {
        assert_eq!(cut("\u{e9}".repeat(70_000)).chars().count(), TEXT_MAX_CHARS + 3);
        assert_eq!(cut("short".to_owned()), "short");
    }
}
