//! The source of a setting, as messages and the agent's record name it.

use std::fmt;

use crate::cli::given::Variables;

/// The source of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The command line; with the setting's key.
    Flag(&'static str),
    /// A `RUSSET_*` variable; with the setting's key.
    Variable(&'static str),
    File(String),
    /// An agent's record.
    Recorded {
        /// The agent's own source.
        from: String,
        path: String,
    },
    /// The configuration of calicoctl: a file, or a variable.
    Calicoctl(String),
    /// No source sets it.
    Default,
}

// === impl Origin ===

impl Origin {
    /// The origin of a setting that was given by its flag or its variable.
    pub fn given(key: &'static str, variables: &Variables) -> Self {
        if variables.contains(key) { Self::Variable(key) } else { Self::Flag(key) }
    }

    /// Of calicoctl's configuration where that is the environment of this process, and not a file.
    pub fn is_variable_of_calicoctl(&self) -> bool {
        matches!(self, Self::Calicoctl(place) if place.starts_with(super::calicoctl::VARIABLE))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(key) => write!(f, "flag --{}", flag(key)),
            Self::Variable(key) => write!(f, "variable RUSSET_{}", key.to_uppercase()),
            Self::File(path) => f.write_str(path),
            Self::Recorded { from, path } => write!(f, "the agent's settings in {path}, there from {from}"),
            Self::Calicoctl(place) => write!(f, "calicoctl's configuration, {place}"),
            Self::Default => f.write_str("default"),
        }
    }
}

fn flag(key: &str) -> String {
    // The only flag whose name differs from its key: it may be repeated, and the key is a list.
    if key == "cni_cache_dirs" { "cni-cache-dir".to_owned() } else { key.replace('_', "-") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_has_the_name_of_its_flag_or_variable() {
        assert_eq!(Origin::Flag("etcd_ca_file").to_string(), "flag --etcd-ca-file");
        assert_eq!(Origin::Variable("store").to_string(), "variable RUSSET_STORE");
        let recorded = Origin::Recorded { from: "flag --store".to_owned(), path: "/run/s".to_owned() };
        assert_eq!(recorded.to_string(), "the agent's settings in /run/s, there from flag --store");
    }
}
