//! What happened in runs that broke no rule: proof that they did something.

use std::fmt;
use std::ops::AddAssign;

/// Counts of one run, or of many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Runs.
    pub runs: u64,
    /// Polls of a node.
    pub steps: u64,
    /// Operations on the store.
    pub store_operations: u64,
    /// ADDs that gave addresses.
    pub adds: u64,
    /// ADDs that failed.
    pub failed_adds: u64,
    /// ADDs repeated for a container that had its addresses.
    pub repeats: u64,
    /// DELs that succeeded.
    pub dels: u64,
    /// DELs that failed, to be repeated.
    pub failed_dels: u64,
    /// Nodes killed.
    pub crashes: u64,
    /// Requests dropped in processes that lived on.
    pub hang_ups: u64,
    /// Commits of several requests.
    pub shared_commits: u64,
    /// Addresses that the Go model leaked: allocated after everything was deleted, reachable by no handle.
    pub go_leaked_addresses: u64,
    /// Handles that the Go model left.
    pub go_orphan_handles: u64,
    /// Handles of the Go model that at some moment counted too few.
    pub go_handles_under: u64,
}

impl AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        self.runs += other.runs;
        self.steps += other.steps;
        self.store_operations += other.store_operations;
        self.adds += other.adds;
        self.failed_adds += other.failed_adds;
        self.repeats += other.repeats;
        self.dels += other.dels;
        self.failed_dels += other.failed_dels;
        self.crashes += other.crashes;
        self.hang_ups += other.hang_ups;
        self.shared_commits += other.shared_commits;
        self.go_leaked_addresses += other.go_leaked_addresses;
        self.go_orphan_handles += other.go_orphan_handles;
        self.go_handles_under += other.go_handles_under;
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} runs, {} steps, {} store operations, {} adds (+{} failed, {} repeated), {} dels (+{} failed), {} crashes, {} hang-ups, {} shared commits",
            self.runs,
            self.steps,
            self.store_operations,
            self.adds,
            self.failed_adds,
            self.repeats,
            self.dels,
            self.failed_dels,
            self.crashes,
            self.hang_ups,
            self.shared_commits
        )?;
        if self.go_leaked_addresses + self.go_orphan_handles + self.go_handles_under > 0 {
            write!(
                f,
                "; the Go model leaked {} addresses and {} handles, and {} of its handles counted too few",
                self.go_leaked_addresses, self.go_orphan_handles, self.go_handles_under
            )?;
        }
        Ok(())
    }
}
