//! How leasing fails, and whether trying again can help.

use russet_model::flannel::{ConfigError, SubnetKey};
use russet_store::StoreError;

/// Why there is no lease, or no configuration.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// Nobody has configured the network yet.
    #[error("there is no network config at {at}")]
    NoConfig {
        /// The key or the file.
        at: String,
    },
    /// There is none here, but one elsewhere.
    #[error("there is no network config at {at}, but {advice}")]
    ConfigElsewhere {
        /// The key.
        at: String,
        /// Where there is one, and what to do.
        advice: String,
    },
    /// The configuration is not usable.
    #[error("{at}: {source}")]
    Config {
        /// The key or the file.
        at: String,
        /// What is wrong with it.
        source: ConfigError,
    },
    /// Every subnet that may be taken is.
    #[error("out of subnets: none of {family} is free from {first} to {last}")]
    OutOfSubnets {
        /// `IPv4` or `IPv6`.
        family: &'static str,
        /// The first that may be taken.
        first: String,
        /// The last.
        last: String,
    },
    /// Others were faster each time.
    #[error("acquire a lease: lost {rounds} races for one")]
    Contended {
        /// How many.
        rounds: u32,
    },
    /// The lease that was to be written is not there, or another node's.
    #[error("write lease {key}: it is no longer this node's")]
    NotOurs {
        /// Which.
        key: SubnetKey,
    },
    /// The store did not do it.
    #[error("{operation}: {source}")]
    Store {
        /// What.
        operation: String,
        /// Why.
        source: StoreError,
    },
    /// It can never work as things are configured.
    #[error("{operation}: {reason}")]
    Refused {
        /// What.
        operation: String,
        /// Why.
        reason: String,
    },
    /// Somebody that is needed cannot be reached.
    #[error("{operation}: {source}")]
    Unavailable {
        /// What was to be done.
        operation: String,
        /// Why not.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

// === impl LeaseError ===

impl LeaseError {
    /// Whether the same may succeed later. flannel waits for a configuration for ever, and ends when there is no subnet (flannel.md section 1.5).
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::NoConfig { .. }
            | Self::ConfigElsewhere { .. }
            | Self::Config { .. }
            | Self::Contended { .. }
            | Self::NotOurs { .. }
            | Self::Unavailable { .. } => true,
            Self::Store { source, .. } => {
                !matches!(source, StoreError::Invalid { .. } | StoreError::Unsupported { .. })
            }
            Self::OutOfSubnets { .. } | Self::Refused { .. } => false,
        }
    }
}
