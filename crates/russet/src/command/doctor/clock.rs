//! How far this node's clock is from others, at least: answers of servers and records have whole seconds, and arrive
//! later than they were written, so a comparison gives a limit and not a value.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use russet_kube::{CALL_DEADLINE, Client, Request, Verb};
use russet_store::Revision;

use crate::command::findings::{FindingKind, Findings};

/// The distance of another clock from this node's, at least: positive if the other one is ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ahead(i64);

/// When an agent wrote a record, by its node's clock in whole seconds, rounded down, and which write of the store that was.
#[derive(Debug, Clone, Copy)]
pub struct Stamp {
    pub at: SystemTime,
    pub revision: Revision,
}

/// Clocks that follow a time server differ by milliseconds. A record may reach a slow store a few seconds after it got its time,
/// which looks like a difference. Nothing in Russet depends on less than a minute.
const APART_MIN_MS: i64 = 5_000;
/// Times are given in whole seconds, rounded down.
const ROUNDED_MS: i64 = 1_000;
const ANSWER_MAX_BYTES: usize = 64 << 10;

/// What to do about it.
pub const SYNCHRONIZE: &str = "`timedatectl` on both machines says which clock is not synchronized; there start chronyd or ntpd if it is installed, or else: timedatectl set-ntp true";

/// Compares this node's clock with that of the API server, which is in each of its answers. The version is
/// readable for every account.
pub async fn look_at_api_server(client: &Client, report: &mut Findings) {
    let request = Request {
        operation: "get the version of the API server".to_owned(),
        verb: Verb::Read,
        segments: vec!["version".to_owned()],
        query: Vec::new(),
        body: Vec::new(),
        deadline: CALL_DEADLINE,
        limit_bytes: ANSWER_MAX_BYTES,
    };
    let before = SystemTime::now();
    let date = match client.request(&request).await {
        Ok(answer) => answer.date,
        Err(failure) => return report.unknown.push(format!("the clock: {}", failure.error)),
    };
    let Some(date) = date else {
        return report.unknown.push("the clock: the API server's answer has no Date".to_owned());
    };
    let Some(ahead) = of_answer(before, date, SystemTime::now()).filter(Ahead::is_far) else { return };
    report.found(
        FindingKind::Clock,
        "clock",
        format!("the API server's clock is at least {ahead} this node's: tokens and certificates may be refused here, and the ages of addresses and records are wrong"),
        SYNCHRONIZE,
    );
}

/// From a server's time that was read between two moments.
fn of_answer(before: SystemTime, date: SystemTime, after: SystemTime) -> Option<Ahead> {
    Ahead::within(ms(date)? - ms(after)?, ms(date)? + ROUNDED_MS - ms(before)?)
}

/// From the record of another node's agent, and that of this node's, if there is one. `now` is after both were read.
pub fn of_records(own: Option<Stamp>, other: Stamp, now: SystemTime) -> Option<Ahead> {
    let theirs = ms(other.at)?;
    // It is there already, so it was not written later than now.
    let (mut least, mut most) = (theirs - ms(now)?, i64::MAX);
    if let Some(own) = own {
        let ours = ms(own.at)?;
        match other.revision > own.revision {
            true => most = theirs + ROUNDED_MS - ours,
            false => least = least.max(theirs - ours - ROUNDED_MS),
        }
    }
    Ahead::within(least, most)
}

fn ms(time: SystemTime) -> Option<i64> {
    i64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

// === impl Ahead ===

impl Ahead {
    /// The distance that is certain if the true one is between these; none if zero is possible.
    fn within(least_ms: i64, most_ms: i64) -> Option<Self> {
        match (least_ms > 0, most_ms < 0) {
            (true, _) => Some(Self(least_ms)),
            (_, true) => Some(Self(most_ms)),
            _ => None,
        }
    }

    pub fn is_far(&self) -> bool {
        self.0.abs() > APART_MIN_MS
    }
}

impl std::fmt::Display for Ahead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = Duration::from_millis(self.0.unsigned_abs()).as_secs();
        write!(f, "{seconds} s {}", if self.0 > 0 { "ahead of" } else { "behind" })
    }
}

#[cfg(test)]
mod tests {
    use russet_kube::testing::Server;

    use super::*;

    fn at(ms: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_800_000_000) + Duration::from_millis(ms)
    }

    #[test]
    fn the_time_of_an_answer_gives_the_least_distance_of_two_clocks() {
        let text =
            |before, date, after| of_answer(at(before), at(date), at(after)).map(|ahead| ahead.to_string());
        assert_eq!(text(10_900, 10_000, 10_950), None, "rounded down");
        assert_eq!(text(10_000, 14_000, 16_000), None, "a slow answer");
        assert_eq!(text(10_000, 18_000, 10_200).unwrap(), "7 s ahead of");
        assert_eq!(text(20_000, 10_000, 20_300).unwrap(), "9 s behind");
        let is_far = |date| of_answer(at(20_000), at(date), at(20_000)).is_some_and(|ahead| ahead.is_far());
        assert_eq!([13_000, 14_000, 25_000, 26_000].map(is_far), [true, false, false, true]);
    }

    #[test]
    fn the_order_in_which_a_store_got_two_records_tells_clocks_apart_whatever_their_age_is() {
        let stamp = |ms, revision| Stamp { at: at(ms), revision: Revision(revision) };
        let own = Some(stamp(100_000, 7));
        let text = |own, other| of_records(own, other, at(130_000)).map(|ahead| ahead.to_string());
        // Written after this node's record, with an earlier time.
        assert_eq!(text(own, stamp(60_000, 8)).unwrap(), "39 s behind");
        assert_eq!(text(own, stamp(60_000, 6)), None, "it is only older");
        // Written before this node's record, with a later time.
        assert_eq!(text(own, stamp(120_000, 6)).unwrap(), "19 s ahead of");
        assert_eq!(text(own, stamp(120_000, 8)), None, "it is only newer");
        // In the future.
        assert_eq!(text(own, stamp(190_000, 8)).unwrap(), "60 s ahead of");
        assert_eq!(text(None, stamp(190_000, 8)).unwrap(), "60 s ahead of");
        assert_eq!(text(None, stamp(60_000, 8)), None, "without a record of this node");
    }

    #[test]
    fn an_api_server_with_another_time_is_a_finding() {
        let server = Server::start();
        let look = || {
            let mut report = Findings::default();
            let client = Client::new(server.source()).unwrap();
            crate::command::runtime().unwrap().block_on(look_at_api_server(&client, &mut report));
            report
        };
        let report = look();
        assert!(report.findings.is_empty() && report.unknown.is_empty(), "{report:?}");
        server.set_date("Fri, 02 Jan 2026 03:00:00 GMT");
        let report = look();
        assert!(
            matches!(&report.findings[..], [one] if one.kind == FindingKind::Clock && one.problem.contains(" s behind this node's")),
            "{report:?}"
        );
        server.set_date("yesterday");
        assert_eq!(look().unknown, ["the clock: the API server's answer has no Date"]);
        server.fail_next(99, 403);
        assert!(look().unknown[0].starts_with("the clock: get the version of the API server: "));
    }
}
