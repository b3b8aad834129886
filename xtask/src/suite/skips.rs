//! tests/skips.txt: the kernel features whose absence may skip a test.

use std::collections::BTreeMap;

use crate::artifacts;
use crate::error::{Error, Result};
use crate::suite::report::Skip;

/// Feature to reason.
#[derive(Debug)]
pub struct Allowed(BTreeMap<String, String>);

// === impl Allowed ===

impl Allowed {
    /// Reads tests/skips.txt.
    pub fn read() -> Result<Self> {
        let path = artifacts::workspace().join("tests/skips.txt");
        let text = std::fs::read_to_string(&path).map_err(Error::io(format!("read {}", path.display())))?;
        Self::parse(&text)
    }

    /// Reads `feature: reason` lines; `#` begins a comment line.
    pub fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let entry = |line: &str| match line.split_once(": ") {
            Some((feature, reason)) => Ok((feature.trim().to_owned(), reason.trim().to_owned())),
            None => Err(Error::Found(format!("tests/skips.txt: no reason in {line:?} (feature: reason)"))),
        };
        lines.map(entry).collect::<Result<_>>().map(Self)
    }

    /// Whether the list permits this skip.
    pub fn lists(&self, skip: &Skip) -> bool {
        self.0.contains_key(&skip.feature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_a_reason_is_refused() {
        assert!(Allowed::parse("ipip\n").is_err());
        assert!(Allowed::parse("ipip: CONFIG_NET_IPIP is off\n").is_ok());
    }

    #[test]
    fn the_committed_list_can_be_read() {
        Allowed::read().unwrap();
    }
}
