//! Whether this node's agent enforces policies at all.

use std::fmt;

use russet_agent::{Config, PolicyMode};

/// Why it enforces none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unenforced {
    /// By its settings.
    Off,
    /// Felix runs on this node, and the agent has left the policies to it.
    Felix,
    /// Its table is not in the kernel: there are no policies, or something else is wrong.
    NoTable,
}

/// The reason in an agent's settings.
pub fn by_settings(config: &Config) -> Option<Unenforced> {
    (config.policies == PolicyMode::Off).then_some(Unenforced::Off)
}

/// The reason on the node itself. While Felix begins, the agent's table stays in force.
pub fn by_node(has_table: bool, has_felix: impl FnOnce() -> bool) -> Option<Unenforced> {
    match has_table {
        true => None,
        false if has_felix() => Some(Unenforced::Felix),
        false => Some(Unenforced::NoTable),
    }
}

// === impl Unenforced ===

impl fmt::Display for Unenforced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "policies are off",
            Self::Felix => "left to Felix, which runs on this node",
            Self::NoTable => "table inet russet-decisions is not in this node's kernel",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn felix_counts_only_once_the_agents_table_is_gone() {
        assert_eq!(by_node(true, || true), None, "its rules are not in force yet");
        assert_eq!(by_node(false, || true), Some(Unenforced::Felix));
        assert_eq!(by_node(false, || false), Some(Unenforced::NoTable));
    }
}
