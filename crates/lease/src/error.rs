//! Errors of leasing, and whether another attempt can succeed.

use russet_model::flannel::{ConfigError, SubnetKey};
use russet_store::StoreError;

/// Why there is no lease, or no configuration.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The network is not configured yet.
    #[error("there is no network config at {at}")]
    NoConfig {
        /// The key or the file.
        at: String,
    },
    /// There is no configuration here, but one elsewhere.
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
        source: ConfigError,
    },
    /// Every subnet of the configured range is taken.
    #[error("out of subnets: none of {family} is free from {first} to {last}")]
    OutOfSubnets {
        /// `IPv4` or `IPv6`.
        family: &'static str,
        /// The first subnet of the range.
        first: String,
        last: String,
    },
    /// Other nodes were faster in each round.
    #[error("acquire a lease: lost {rounds} races for one")]
    Contended { rounds: u32 },
    /// The lease to be written does not exist, or is another node's.
    #[error("write lease {key}: it is no longer this node's")]
    NotOurs { key: SubnetKey },
    /// The store returned an error.
    #[error("{operation}: {source}")]
    Store { operation: String, source: StoreError },
    /// The operation can never succeed with this configuration.
    #[error("{operation}: {reason}")]
    Refused { operation: String, reason: String },
    /// A service that the operation needs cannot be reached.
    #[error("{operation}: {source}")]
    Unavailable { operation: String, source: Box<dyn std::error::Error + Send + Sync> },
}

// === impl LeaseError ===

impl LeaseError {
    /// Whether another attempt may succeed. flannel waits for a configuration for ever, and exits
    /// when there is no free subnet (flannel.md section 1.5).
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
