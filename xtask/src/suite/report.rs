//! Reads what Rust's test harness prints, line by line, and counts.

use std::collections::BTreeSet;

use crate::suite::skips::Allowed;

/// What a layer's tests came to.
#[derive(Default)]
pub struct Tally {
    pub passed: usize,
    /// One line for each failure.
    pub failures: Vec<String>,
    /// Tests that were skipped, whole or in part.
    pub skipped: usize,
    /// What was missing; one test may miss several things.
    pub skips: Vec<Skip>,
    /// How long tests took whose times the harness reports.
    pub times: Vec<TestTime>,
}

/// The time of one test.
#[derive(Clone, Debug, PartialEq)]
pub struct TestTime {
    pub test: String,
    pub seconds: f64,
}

/// A test that could not do its work here. The harness counts it as passed; we do not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip {
    pub test: String,
    /// What the kernel lacks.
    pub feature: String,
}

/// Follows the output of one `cargo test`.
pub struct Reader<'a> {
    tally: &'a mut Tally,
    failed: usize,
    named: usize,
    in_successes: bool,
    /// Tests of the present binary that were skipped; names are unique only inside one.
    skipped: BTreeSet<String>,
}

// === impl Tally ===

impl Tally {
    pub fn failed(&self) -> usize {
        self.failures.len()
    }

    pub fn reader(&mut self) -> Reader<'_> {
        Reader { tally: self, failed: 0, named: 0, in_successes: false, skipped: BTreeSet::new() }
    }

    /// Takes skipped tests out of the passed ones, and fails those that are not listed.
    pub fn judge_skips(&mut self, allowed: &Allowed) {
        self.passed = self.passed.saturating_sub(self.skipped);
        let (listed, unlisted) =
            std::mem::take(&mut self.skips).into_iter().partition(|skip| allowed.lists(skip));
        self.skips = listed;
        self.failures.extend(unlisted.iter().map(|Skip { test, feature }| {
            format!("{test}: skipped for want of {feature:?}, which tests/skips.txt does not list")
        }));
    }
}

// === impl Reader ===

impl Reader<'_> {
    /// Processes a line; false for the output of a passing test, which is not shown.
    pub fn read(&mut self, line: &str) -> bool {
        if let Some(skip) = Skip::parse(line) {
            self.skipped.insert(skip.test.clone());
            self.tally.skips.push(skip);
            return true;
        }
        if let Some((passed, failed)) = result(line) {
            self.tally.passed += passed;
            self.failed += failed;
            self.tally.skipped += std::mem::take(&mut self.skipped).len();
            self.in_successes = false;
        } else if let Some(test) = failed_test(line) {
            self.named += 1;
            self.tally.failures.push(test.to_owned());
        }
        self.tally.times.extend(TestTime::parse(line));
        match line {
            "successes:" => self.in_successes = true,
            "failures:" => self.in_successes = false,
            _ => {}
        }
        !self.in_successes
    }

    /// Ends the reading: how many tests failed.
    pub fn finish(self) -> usize {
        // With one thread a test's own output can tear its line apart, and with it the name.
        let unnamed = self.failed.saturating_sub(self.named);
        self.tally
            .failures
            .extend((0..unnamed).map(|_| "a test whose name was lost in its output".to_owned()));
        self.failed.max(self.named)
    }
}

/// `test result: ok. 5 passed; 0 failed; 3 ignored; ...`
fn result(line: &str) -> Option<(usize, usize)> {
    let counts = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let count = |word: &str| {
        let part = counts.split(';').find(|part| part.trim().ends_with(word))?;
        part.trim().split(' ').next()?.parse().ok()
    };
    Some((count(" passed")?, count(" failed")?))
}

/// `test name ... FAILED`, or with a time behind it.
fn failed_test(line: &str) -> Option<&str> {
    let (name, time) = line.strip_prefix("test ")?.rsplit_once(" ... FAILED")?;
    (time.is_empty() || time.starts_with(" <")).then_some(name)
}

// === impl TestTime ===

impl TestTime {
    /// `test name ... ok <0.125s>`
    fn parse(line: &str) -> Option<Self> {
        let (test, outcome) = line.strip_prefix("test ")?.split_once(" ... ")?;
        let seconds = outcome.split_once(" <")?.1.strip_suffix("s>")?.parse().ok()?;
        Some(Self { test: test.to_owned(), seconds })
    }
}

// === impl Skip ===

impl Skip {
    /// `skipped: <test>: <feature>`; the test's name may hold `::`, and the harness may have begun the line.
    fn parse(line: &str) -> Option<Self> {
        let rest = &line[line.find("skipped: ")? + "skipped: ".len()..];
        let (test, feature) = rest.rsplit_once(": ")?;
        Some(Self { test: test.trim().to_owned(), feature: feature.trim().to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
running 3 tests
test links::veth ... ok
test links::ipip_tunnel ... ok
test routes::blackhole ... FAILED

successes:

---- links::ipip_tunnel stdout ----
chatter
skipped: links::ipip_tunnel: ipip
skipped: links::ipip_tunnel: vlan


failures:

---- routes::blackhole stdout ----
assertion failed
test result: FAILED. 2 passed; 1 failed; 4 ignored; 0 measured; 0 filtered out; finished in 0.02s";

    fn tally_of(output: &str) -> (Tally, usize, Vec<&str>) {
        let mut tally = Tally::default();
        let mut reader = tally.reader();
        let shown = output.lines().filter(|line| reader.read(line)).collect();
        let failed = reader.finish();
        (tally, failed, shown)
    }

    #[test]
    fn a_listed_skip_is_neither_passed_nor_failed() {
        let (mut tally, failed, shown) = tally_of(OUTPUT);
        tally.judge_skips(&Allowed::parse("# why\nipip: not in this kernel\nvlan: neither\n").unwrap());
        assert_eq!((tally.passed, tally.failed(), tally.skipped, failed), (1, 1, 1, 1));
        assert_eq!(tally.skips.len(), 2);
        assert_eq!(tally.failures, ["routes::blackhole"]);
        assert!(shown.contains(&"assertion failed") && !shown.contains(&"chatter"));
    }

    #[test]
    fn an_unlisted_skip_fails() {
        let (mut tally, ..) = tally_of(OUTPUT);
        tally.judge_skips(&Allowed::parse("").unwrap());
        assert_eq!((tally.passed, tally.failed(), tally.skips.len()), (1, 3, 0));
        assert!(tally.failures[1].contains("links::ipip_tunnel"), "{:?}", tally.failures);
    }

    #[test]
    fn times_are_read_where_the_harness_reports_them() {
        let (tally, failed, _) =
            tally_of("test a::b ... ok <1.250s>\ntest c ... FAILED <0.500s>\ntest d ... ok");
        let time = |test: &str, seconds| TestTime { test: test.to_owned(), seconds };
        assert_eq!(tally.times, [time("a::b", 1.25), time("c", 0.5)]);
        assert_eq!((failed, tally.failures), (1, vec!["c".to_owned()]));
    }

    #[test]
    fn a_failed_test_without_a_name_is_still_counted() {
        let (tally, failed, _) = tally_of("test result: FAILED. 0 passed; 2 failed; 0 ignored; 0 measured");
        assert_eq!((tally.failed(), failed), (2, 2));
    }
}
