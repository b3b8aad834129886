//! Times as peers write them: RFC 3339 in whole seconds, the text of Go's `Time.String` in
//! `secondary.timestamp`, and that of HTTP's `Date`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The months of HTTP's dates.
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// `2026-01-02T03:00:00Z` (calico-ipam.md section 1.3). A time before 1970 is 1970.
pub fn rfc3339(time: SystemTime) -> String {
    let (date, clock, _) = parts(time);
    format!("{date}T{clock}Z")
}

/// `2026-01-02 03:04:05.678901234 +0000 UTC`, without trailing zeros in the fraction (calico-ipam.md section 1.4).
pub fn go_timestamp(time: SystemTime) -> String {
    let (date, clock, nanos) = parts(time);
    let fraction = match nanos {
        0 => String::new(),
        _ => format!(".{}", format!("{nanos:09}").trim_end_matches('0')),
    };
    format!("{date} {clock}{fraction} +0000 UTC")
}

/// Decodes RFC 3339, with or without a fraction, with `Z` or an offset. None for another text, or a
/// time before 1970.
pub fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    let number = |range: std::ops::Range<usize>| -> Option<i64> {
        let digits = text.get(range)?;
        digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let at = |index: usize, wanted: &[u8]| text.as_bytes().get(index).is_some_and(|b| wanted.contains(b));
    if !(at(4, b"-") && at(7, b"-") && at(10, b"Tt ") && at(13, b":") && at(16, b":")) {
        return None;
    }
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (nanos, zone) = fraction(text.get(19..)?)?;
    let seconds = days_from_civil(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    let seconds = u64::try_from(seconds - offset_s(zone)?).ok()?;
    UNIX_EPOCH.checked_add(Duration::new(seconds, nanos))
}

/// Decodes `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110 section 5.6.7, the only form that is sent today). None for another text, or a
/// time before 1970.
pub fn parse_http_date(text: &str) -> Option<SystemTime> {
    let mut words = text.split_once(", ")?.1.split(' ');
    let mut next = || words.next();
    let (day, month, year, clock, zone) = (next()?, next()?, next()?, next()?, next()?);
    if zone != "GMT" || next().is_some() {
        return None;
    }
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    parse_rfc3339(&format!("{year}-{month:02}-{day}T{clock}Z"))
}

/// Splits `.25Z` into nanoseconds and zone.
fn fraction(text: &str) -> Option<(u32, &str)> {
    let Some(rest) = text.strip_prefix('.') else { return Some((0, text)) };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let used = &rest[..digits.min(9)];
    let nanos: u32 = format!("{used:0<9}").parse().ok()?;
    (digits > 0).then_some((nanos, &rest[digits..]))
}

/// `Z` or `+01:00`, in seconds east of UTC.
fn offset_s(zone: &str) -> Option<i64> {
    if matches!(zone, "Z" | "z") {
        return Some(0);
    }
    let sign = match zone.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    if hours.len() != 2 || minutes.len() != 2 || !zone[1..].bytes().all(|b| b.is_ascii_digit() || b == b':') {
        return None;
    }
    Some(sign * (hours.parse::<i64>().ok()? * 3600 + minutes.parse::<i64>().ok()? * 60))
}

fn parts(time: SystemTime) -> (String, String, u32) {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil_from_days(days);
    let clock = format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60);
    (format!("{year:04}-{month:02}-{day:02}"), clock, since.subsec_nanos())
}

/// The proleptic Gregorian date of a day counted from 1970-01-01. Years start in March here, so
/// that the leap day is the last one.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468; // from 0000-03-01
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let shifted_month = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-01-02 03:00:00 UTC: the second in which the vectors of calico-ipam.md section 8 begin.
    const VECTORS_S: u64 = 1_767_322_800;

    #[test]
    fn times_are_spelled_as_in_the_vectors() {
        let time = UNIX_EPOCH + Duration::from_secs(VECTORS_S);
        assert_eq!(rfc3339(time), "2026-01-02T03:00:00Z");
        let later = time + Duration::new(245, 678_901_234);
        assert_eq!(go_timestamp(later), "2026-01-02 03:04:05.678901234 +0000 UTC");
        assert_eq!(go_timestamp(time + Duration::from_millis(300_500)), "2026-01-02 03:05:00.5 +0000 UTC");
        assert_eq!(go_timestamp(time), "2026-01-02 03:00:00 +0000 UTC");
    }

    #[test]
    fn every_day_of_four_centuries_survives_a_round_trip() {
        for day in 0..146_097 {
            let time = UNIX_EPOCH + Duration::from_secs(day * 86_400 + 12_345);
            assert_eq!(parse_rfc3339(&rfc3339(time)), Some(time), "day {day}");
        }
    }

    #[test]
    fn offsets_and_fractions_are_understood_and_rubbish_is_not() {
        let time = UNIX_EPOCH + Duration::from_secs(VECTORS_S);
        assert_eq!(parse_rfc3339("2026-01-02T04:30:00+01:30"), Some(time));
        assert_eq!(parse_rfc3339("2026-01-02T03:00:00.25Z"), Some(time + Duration::from_millis(250)));
        for bad in [
            "",
            "2026-01-02",
            "2026-13-02T03:00:00Z",
            "2026-01-02T03:00:00",
            "2026-01-02T03:00:00.Z",
            "é026-01-02T03:00:00Z",
        ] {
            assert_eq!(parse_rfc3339(bad), None, "{bad}");
        }
    }

    #[test]
    fn dates_of_http_are_understood_and_rubbish_is_not() {
        let time = UNIX_EPOCH + Duration::from_secs(VECTORS_S);
        assert_eq!(parse_http_date("Fri, 02 Jan 2026 03:00:00 GMT"), Some(time));
        // RFC 9110 section 5.6.7
        let example = UNIX_EPOCH + Duration::from_secs(784_111_777);
        assert_eq!(parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(example));
        for bad in [
            "",
            "Fri, ",
            "Fri, 02 Foo 2026 03:00:00 GMT",
            "Fri, 02 Jan 2026 03:00:00 CET",
            "Fri, 02 Jan 2026 03:00:00 GMT x",
            "Friday, 02-Jan-26 03:00:00 GMT",
            "Fri, 2 Jan 2026 03:00:00 GMT",
            "Fri, 02 Jan 2026 03:00:00.5Z GMT",
        ] {
            let parsed = parse_http_date(bad);
            assert!(parsed.is_none(), "{bad}: {parsed:?}");
        }
    }
}
