//! The seven versions of the CNI specification, the verbs of each, and how a runtime chooses one.

use std::fmt;
use std::str::FromStr;

/// A version of the CNI specification that Russet supports (cni-runtime.md section 1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Version {
    /// 0.1.0: ADD, DEL and one address a family.
    V0_1_0,
    /// 0.2.0: VERSION.
    V0_2_0,
    /// 0.3.0: chains, interfaces, several addresses.
    V0_3_0,
    /// 0.3.1: a corrected 0.3.0.
    V0_3_1,
    /// 0.4.0: CHECK, and `prevResult` on DEL.
    V0_4_0,
    /// 1.0.0: lists only, addresses without `version`.
    V1_0_0,
    /// 1.1.0: GC and STATUS.
    V1_1_0,
}

/// A verb: the value of `CNI_COMMAND`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    /// Attach a container.
    Add,
    /// Detach a container.
    Del,
    /// Compare an attachment with its desired state.
    Check,
    /// Release everything that no valid attachment has.
    Gc,
    /// Report whether ADD could be served.
    Status,
    /// List the supported versions.
    Version,
}

/// The three forms of results (cni-runtime.md section 1.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// 0.1.0 and 0.2.0: `ip4` and `ip6`.
    A,
    /// 0.3.0 to 0.4.0: `ips` with a `version` each.
    B,
    /// 1.0.0 and 1.1.0: `ips` without it.
    C,
}

/// The text is not a supported version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unsupported CNI version {0:?}")]
pub struct UnsupportedVersion(pub String);

/// The text is not one to three whole numbers joined by dots.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid version {0:?}: one to three whole numbers joined by '.' are wanted, as in 1.1.0")]
pub struct VersionSyntax(pub String);

// === impl Version ===

impl Version {
    /// All of them, oldest first.
    pub const ALL: [Version; 7] = [
        Version::V0_1_0,
        Version::V0_2_0,
        Version::V0_3_0,
        Version::V0_3_1,
        Version::V0_4_0,
        Version::V1_0_0,
        Version::V1_1_0,
    ];

    /// The newest.
    pub const LATEST: Version = Version::V1_1_0;

    /// The version of a configuration without `cniVersion`.
    pub const IMPLIED: Version = Version::V0_1_0;

    /// The text in configurations and results.
    pub const fn as_str(self) -> &'static str {
        match self {
            Version::V0_1_0 => "0.1.0",
            Version::V0_2_0 => "0.2.0",
            Version::V0_3_0 => "0.3.0",
            Version::V0_3_1 => "0.3.1",
            Version::V0_4_0 => "0.4.0",
            Version::V1_0_0 => "1.0.0",
            Version::V1_1_0 => "1.1.0",
        }
    }

    /// Reads a configuration's `cniVersion`; empty means [`IMPLIED`](Self::IMPLIED).
    pub fn of_config(text: &str) -> Result<Version, UnsupportedVersion> {
        if text.is_empty() { Ok(Version::IMPLIED) } else { text.parse() }
    }

    /// Whether this version knows `verb`.
    pub fn supports(self, verb: Verb) -> bool {
        self >= verb.since()
    }

    /// All versions as one text, for messages.
    pub fn list() -> String {
        Version::ALL.map(Version::as_str).join(", ")
    }

    pub(crate) const fn shape(self) -> Shape {
        match self {
            Version::V0_1_0 | Version::V0_2_0 => Shape::A,
            Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => Shape::B,
            Version::V1_0_0 | Version::V1_1_0 => Shape::C,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Version {
    type Err = UnsupportedVersion;

    fn from_str(text: &str) -> Result<Self, UnsupportedVersion> {
        let known = Version::ALL.into_iter().find(|version| version.as_str() == text);
        known.ok_or_else(|| UnsupportedVersion(text.chars().take(40).collect()))
    }
}

// === impl Verb ===

impl Verb {
    /// The value of `CNI_COMMAND`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Verb::Add => "ADD",
            Verb::Del => "DEL",
            Verb::Check => "CHECK",
            Verb::Gc => "GC",
            Verb::Status => "STATUS",
            Verb::Version => "VERSION",
        }
    }

    /// Reads `CNI_COMMAND`.
    pub fn parse(text: &str) -> Option<Verb> {
        let all = [Verb::Add, Verb::Del, Verb::Check, Verb::Gc, Verb::Status, Verb::Version];
        all.into_iter().find(|verb| verb.as_str() == text)
    }

    /// Whether the verb has one interface of one container as its target.
    pub const fn has_target(self) -> bool {
        matches!(self, Verb::Add | Verb::Del | Verb::Check)
    }

    /// The oldest configuration version with the verb. VERSION has none of its own.
    pub const fn since(self) -> Version {
        match self {
            Verb::Add | Verb::Del | Verb::Version => Version::V0_1_0,
            Verb::Check => Version::V0_4_0,
            Verb::Gc | Verb::Status => Version::V1_1_0,
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Chooses the version of a list (cni-runtime.md section 1.3): the greatest of `offered` and
/// `single` that is not newer than ours; `single` itself if none remains.
pub fn select(single: &str, offered: &[&str]) -> Result<String, VersionSyntax> {
    let mut best: Option<([u32; 3], &str)> = None;
    for text in offered.iter().copied().chain((!single.is_empty()).then_some(single)) {
        let numbers = numbers(text)?;
        let ours = numbers <= LATEST_NUMBERS;
        if ours && best.is_none_or(|(greatest, _)| numbers > greatest) {
            best = Some((numbers, text));
        }
    }
    Ok(best.map_or(single, |(_, text)| text).to_owned())
}

/// [`Version::LATEST`], to compare with.
const LATEST_NUMBERS: [u32; 3] = [1, 1, 0];

fn numbers(text: &str) -> Result<[u32; 3], VersionSyntax> {
    let bad = || VersionSyntax(text.chars().take(40).collect());
    let mut numbers = [0; 3];
    let mut parts = text.split('.');
    for (number, part) in numbers.iter_mut().zip(parts.by_ref()) {
        let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        *number = if digits { part.parse().map_err(|_| bad())? } else { return Err(bad()) };
    }
    if parts.next().is_some() { Err(bad()) } else { Ok(numbers) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_exactly_seven_versions_in_order() {
        // cni-runtime.md section 6.2 item 9
        assert_eq!(Version::list(), "0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0");
        assert!(Version::ALL.is_sorted());
        assert_eq!(numbers(Version::LATEST.as_str()), Ok(LATEST_NUMBERS));
        for version in Version::ALL {
            assert_eq!(version.as_str().parse(), Ok(version));
        }
    }

    #[test]
    fn the_greatest_supported_version_is_chosen() {
        // cni-runtime.md section 1.3 and section 6.2 item 12
        assert_eq!(select("0.4.0", &["1.0.0", "1.1.0", "9.0.0"]).unwrap(), "1.1.0");
        assert_eq!(select("", &["0.3.1", "1.0.0"]).unwrap(), "1.0.0");
        assert_eq!(select("1.0.0", &["0.3.1"]).unwrap(), "1.0.0");
        assert_eq!(select("2.0.0", &[]).unwrap(), "2.0.0", "kept as it is");
        assert_eq!(select("2.0.0", &["3.0"]).unwrap(), "2.0.0");
        assert_eq!(select("", &[]).unwrap(), "");
    }

    #[test]
    fn four_numbers_or_a_word_are_no_version() {
        // cni-runtime.md section 1.3
        for bad in ["1.0.0.0", "one", "1..0", "+1.0.0", "1.0.0-rc1", "", "1.99999999999999999999"] {
            assert!(numbers(bad).is_err(), "{bad}");
        }
        assert_eq!(numbers("1"), Ok([1, 0, 0]), "missing parts are 0");
        assert!(select("0.4.0", &["1.0.0.0"]).is_err());
    }

    #[test]
    fn verbs_came_with_their_versions() {
        // cni-runtime.md section 1.1
        assert!(!Version::V0_3_1.supports(Verb::Check) && Version::V0_4_0.supports(Verb::Check));
        assert!(!Version::V1_0_0.supports(Verb::Gc) && Version::V1_1_0.supports(Verb::Status));
    }
}
