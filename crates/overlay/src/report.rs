//! The result of a reconciliation: differences, changes, refusals and failures. Made by controllers,
//! shown by the agent and the flannel daemon.

use std::collections::BTreeMap;
use std::fmt;

use russet_linux::sysctl::SysctlError;
use russet_netlink::NetlinkError;
use russet_nft::CommitError;

use crate::flannel::FlannelError;
use crate::refusal::Refusal;

/// The result of a reconciliation.
#[derive(Debug, Default)]
pub struct ReconcileReport {
    /// The first [`NOTED_MAX`] differences as text, in order.
    pub what: Vec<String>,
    /// The number of further differences.
    pub more: usize,
    /// Requests that took effect, by the [label](Kind::label) of their kind.
    pub changed: BTreeMap<&'static str, usize>,
    /// Devices that were deleted and created anew, with the reason: packets are lost meanwhile.
    pub replaced: Vec<String>,
    /// Inputs that are not programmed, with the reason.
    pub refusals: Vec<Refusal>,
    /// The first [`ERRORS_MAX`] failures; the next run tries again.
    pub errors: Vec<OverlayError>,
    /// The number of failures, including those beyond `errors`.
    pub failed: usize,
}

/// The kinds of objects that this crate counts; controllers outside of it count by their own labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Tunnel devices.
    Device,
    /// Addresses of tunnel devices, and those for probes.
    Address,
    /// Permanent neighbours.
    Neighbour,
    /// Forwarding entries.
    Fdb,
    Route,
    /// Peers of WireGuard devices.
    Peer,
    Sysctl,
    /// Sets, chains and rules of address translation: one transaction counts as one.
    Nat,
}

/// Errors of a controller; each names the operation and its subject.
#[derive(Debug, thiserror::Error)]
pub enum OverlayError {
    /// A link, address, neighbour, forwarding entry or route.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The transaction of address translation.
    #[error(transparent)]
    Nft(#[from] CommitError),
    /// The kernel cannot look sources up in its routes.
    #[error(
        "this kernel has no CONFIG_NFT_FIB_INET: sources of packets from bridges of pods are checked by rp_filter only: {0}"
    )]
    NoFib(#[source] CommitError),
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
    /// An error that makes a backend of flannel's impossible.
    #[error(transparent)]
    Flannel(Box<FlannelError>),
    /// Requests of this process are changing both the kernel and what should be there.
    #[error("requests of ours are changing it; try again")]
    InProgress,
    /// An error of a controller outside of this crate.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

/// Limit of the errors kept of one run: thousands of failures usually have the same cause.
pub const ERRORS_MAX: usize = 64;
/// Limit of the differences kept as text: a first run has one for each route.
pub const NOTED_MAX: usize = 1000;

// === impl ReconcileReport ===

impl ReconcileReport {
    /// How many requests of a kind took effect.
    pub fn changed(&self, kind: Kind) -> usize {
        self.changed.get(kind.label()).copied().unwrap_or(0)
    }

    /// Whether nothing was changed and nothing failed.
    pub fn is_quiet(&self) -> bool {
        self.changed.is_empty() && self.failed == 0
    }

    /// Adds the text of differences.
    pub fn note<D: fmt::Display>(&mut self, differences: impl IntoIterator<Item = D>) {
        for difference in differences {
            if self.what.len() < NOTED_MAX {
                self.what.push(difference.to_string());
            } else {
                self.more += 1;
            }
        }
    }

    pub(crate) fn count(&mut self, kind: Kind) {
        self.count_as(kind.label());
    }

    /// Counts a request that took effect.
    pub fn count_as(&mut self, label: &'static str) {
        *self.changed.entry(label).or_default() += 1;
    }

    /// Counts an error.
    pub fn fail(&mut self, error: impl Into<OverlayError>) {
        self.failed += 1;
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(error.into());
        }
    }
}

// === impl OverlayError ===

impl OverlayError {
    /// Whether another change overtook a comparison, so that a new one may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::InProgress => true,
            Self::Nft(error) => error.is_stale(),
            _ => false,
        }
    }
}

impl From<FlannelError> for OverlayError {
    fn from(error: FlannelError) -> Self {
        match error {
            FlannelError::Netlink(error) => Self::Netlink(error),
            FlannelError::Device(error) => error,
            error => Self::Flannel(Box::new(error)),
        }
    }
}

// === impl Kind ===

impl Kind {
    /// The label of metrics.
    pub const fn label(self) -> &'static str {
        match self {
            Kind::Device => "device",
            Kind::Address => "address",
            Kind::Neighbour => "neighbour",
            Kind::Fdb => "fdb",
            Kind::Route => "route",
            Kind::Peer => "peer",
            Kind::Sysctl => "sysctl",
            Kind::Nat => "nat",
        }
    }
}
