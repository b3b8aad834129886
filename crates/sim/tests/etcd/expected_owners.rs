//! A process's final record of the addresses that it owns, and of its operations. It writes this to
//! a file for the parent to compare.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// One process's record.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ExpectedOwners {
    /// Addresses by handle.
    pub owned: BTreeMap<String, BTreeSet<IpAddr>>,
    /// The results of its operations.
    pub tally: Tally,
}

/// Counts of results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Assigns that were answered with addresses.
    pub assigned: u64,
    /// Assigns of one fixed address that another handle had.
    pub taken: u64,
    /// Assigns that were repeated and had to be answered with the same addresses.
    pub repeated: u64,
    /// Releases, by handle and by address.
    pub released: u64,
    /// Answers of the allocator with an unknown outcome, after which the handle had to be looked
    /// up.
    pub unknown: u64,
    /// Answers of the allocator that the store is away or too contended.
    pub unavailable: u64,
    /// Commits with an unknown outcome. The allocator resolves nearly all of them.
    pub commits_unknown: u64,
    /// Commits that lost a race.
    pub races_lost: u64,
}

// === impl ExpectedOwners ===

impl ExpectedOwners {
    /// Writes it to `path`.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        std::fs::write(path, serde_json::to_vec(self)?)
    }

    /// Reads what a process wrote.
    pub fn read(path: &Path) -> std::io::Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(path)?)?)
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.assigned += other.assigned;
        self.taken += other.taken;
        self.repeated += other.repeated;
        self.released += other.released;
        self.unknown += other.unknown;
        self.unavailable += other.unavailable;
        self.commits_unknown += other.commits_unknown;
        self.races_lost += other.races_lost;
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} assigned, {} refused as taken, {} repeated, {} released; {} commits of unknown outcome ({} passed on), \
             {} races lost, {} times unavailable",
            self.assigned,
            self.taken,
            self.repeated,
            self.released,
            self.commits_unknown,
            self.unknown,
            self.races_lost,
            self.unavailable
        )
    }
}
