//! Lengths of time as people write them: `30s`, `10m`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A length of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

/// How often the agent looks for leaks, if at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeakRepair {
    /// Only when `russet ipam repair` requests it.
    Off,
    /// At the agent's default interval.
    On,
    /// At this interval.
    Every(Span),
}

/// A longer span is taken for a mistake in the unit or in a digit.
const SPAN_MAX_S: u64 = 7 * 24 * 3600;

// === impl Span ===

impl FromStr for Span {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WANTED: &str =
            "a time such as 30s, 10m, 1h or 7d is wanted, of at least a second and at most a week";
        let unit = text.char_indices().last().ok_or(WANTED)?;
        let factor = match unit.1 {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 24 * 3600,
            _ => return Err(WANTED),
        };
        let digits = &text[..unit.0];
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(WANTED);
        }
        let seconds = digits.parse::<u64>().ok().and_then(|count| count.checked_mul(factor)).ok_or(WANTED)?;
        if (1..=SPAN_MAX_S).contains(&seconds) { Ok(Self(Duration::from_secs(seconds))) } else { Err(WANTED) }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            seconds if seconds % 3600 == 0 => write!(f, "{}h", seconds / 3600),
            seconds if seconds % 60 == 0 => write!(f, "{}m", seconds / 60),
            seconds => write!(f, "{seconds}s"),
        }
    }
}

// === impl LeakRepair ===

impl FromStr for LeakRepair {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(Self::Off),
            "on" => Ok(Self::On),
            _ => text.parse().map(Self::Every).map_err(|_| "on, off or a time such as 10m is wanted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_whole_seconds_minutes_hours_and_days() {
        for (text, seconds, shown) in [
            ("1s", 1, "1s"),
            ("90s", 90, "90s"),
            ("120s", 120, "2m"),
            ("24h", 86_400, "24h"),
            ("7d", 604_800, "168h"),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!((span.0.as_secs(), span.to_string().as_str()), (seconds, shown));
        }
        for bad in [
            "",
            "s",
            "30",
            "0s",
            "-1s",
            "1.5m",
            "+1m",
            "8d",
            "169h",
            "99999999999999999999h",
            "1 m",
            "mm",
            "1\u{e9}",
        ] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
    }

    #[test]
    fn leak_repair_is_on_off_or_so_often() {
        assert_eq!("off".parse(), Ok(LeakRepair::Off));
        assert_eq!("on".parse(), Ok(LeakRepair::On));
        assert_eq!("5m".parse(), Ok(LeakRepair::Every(Span(Duration::from_secs(300)))));
        assert!("no".parse::<LeakRepair>().is_err());
    }
}
