//! Skips: a kernel feature that is missing skips a test only where `tests/skips.txt` says so.

use std::path::PathBuf;

use russet_linux::probe::{self, Feature};

/// Whether a test can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a test returns when this is Skip"]
pub enum Support {
    /// The feature is there.
    Present,
    /// It is not, and `tests/skips.txt` lists it: the test returns at once.
    Skip,
}

/// Looks whether the kernel has `feature` (a name of [`Feature`], such as `wireguard`). Where it has not, the test is
/// skipped if `tests/skips.txt` lists the feature, and fails otherwise.
#[track_caller]
pub fn require_kernel(feature: &str) -> Support {
    let known: Feature = feature.parse().unwrap_or_else(|error| panic!("{error}"));
    let present = probe::supports(known).unwrap_or_else(|error| panic!("{error}"));
    let path = skips_path();
    let list = std::fs::read_to_string(&path).unwrap_or_default();
    let support = decide(feature, present, &list);
    if support == Support::Skip {
        let thread = std::thread::current();
        println!("skipped: {}: {feature}", thread.name().unwrap_or("test"));
    }
    support
}

// === impl Support ===

impl Support {
    /// Whether the test must return.
    pub fn is_skip(self) -> bool {
        self == Self::Skip
    }
}

#[track_caller]
fn decide(feature: &str, present: bool, list: &str) -> Support {
    if present {
        return Support::Present;
    }
    assert!(
        listed(feature, list),
        "the kernel has no {feature}, and tests/skips.txt does not list it as one that may be missing"
    );
    Support::Skip
}

/// Lines are `feature: reason`; `#` begins a comment.
fn listed(feature: &str, list: &str) -> bool {
    list.lines()
        .map(|line| line.split('#').next().unwrap_or_default())
        .filter_map(|line| line.split(':').next())
        .any(|name| name.trim() == feature)
}

fn skips_path() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/skips.txt"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the layer `supply` of `cargo xtask test` may lack (xtask/src/suite/supply.rs).
    const SUPPLY: [&str; 2] = ["advisory-db", "cargo-deny"];
    const LIST: &str = "# comment wireguard\nipvlan: not built\n dummy : nor this\n";

    #[test]
    fn a_listed_feature_may_be_missing() {
        assert_eq!(decide("ipvlan", false, LIST), Support::Skip);
        assert_eq!(decide("dummy", false, LIST), Support::Skip);
        assert_eq!(decide("dummy", true, LIST), Support::Present);
    }

    #[test]
    #[should_panic(expected = "no wireguard, and tests/skips.txt does not list it")]
    fn a_feature_that_is_not_listed_fails_the_test() {
        let _ = decide("wireguard", false, LIST);
    }

    #[test]
    fn every_line_of_the_list_names_a_feature_and_a_reason() {
        let list = std::fs::read_to_string(skips_path()).unwrap();
        for line in list.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
            let (feature, reason) = line.split_once(':').unwrap_or_else(|| panic!("no reason: {line}"));
            let known = feature.trim().parse::<Feature>().is_ok() || SUPPLY.contains(&feature.trim());
            assert!(known, "{line}");
            assert!(!reason.trim().is_empty(), "{line}");
        }
    }

    #[test]
    #[ignore = "kernel: probing needs root"]
    fn this_kernel_has_what_the_list_does_not_excuse() {
        for feature in Feature::ALL {
            let _ = require_kernel(feature.name());
        }
    }
}
