//! What pods need in nf_tables besides verdicts: masquerade and published ports in table `inet
//! russet-cni`. Only the requests that wrote these rules know their content, and they are over,
//! perhaps in an earlier run of the agent. So this module keeps a snapshot of the table, takes a
//! new one after each change of our own, and restores the table to it. Used by `drift`.
//!
//! Whether a change was our own does not depend on events, which may be lost: [`nat::changes`]
//! counts our changes, and a snapshot is valid as long as the count is that of when it was taken.

use std::time::Duration;

use russet_attach::nat;
use russet_linux::probe::{self, Feature};
use russet_nft::{NetlinkError, Nft, TableSnapshot, Transaction};

use super::Restored;

/// The table and its desired content.
pub(super) struct Nat {
    nft: Option<Nft>,
    /// None on a kernel without nf_tables.
    kernel: Option<Kernel>,
    baseline: Option<Baseline>,
}

/// Access to the kernel and the count of our own commits, or replacements in a test.
#[derive(Clone, Copy)]
struct Kernel {
    open: fn() -> Result<Nft, NetlinkError>,
    /// [`nat::changes`]
    changes: fn() -> Option<u64>,
}

/// A snapshot of the table, or the fact that it does not exist.
struct Baseline {
    snapshot: Option<TableSnapshot>,
    /// [`nat::changes`] when it was taken.
    changes: u64,
}

/// A comparison that found a difference.
struct Difference {
    now: Option<TableSnapshot>,
    generation: u32,
    differences: usize,
}

/// The result of a comparison.
enum Comparison {
    /// As desired, as far as can be determined.
    AsDesired,
    Differs(Difference),
    /// One of our own requests is changing the table; compare again.
    InProgress,
}

/// Attempts. Each failure means that another program committed meanwhile.
const TRIES: usize = 8;
/// Roughly the duration of one of our own commits, for a caller that waits for an answer.
const IN_PROGRESS_PAUSE: Duration = Duration::from_millis(5);

// === impl Nat ===

impl Nat {
    /// Takes the current content as the desired one.
    pub fn open() -> Self {
        let unsupported = matches!(probe::supports(Feature::NfTables), Ok(false));
        Self::of_kernel((!unsupported).then_some(Kernel { open: Nft::open, changes: nat::changes }))
    }

    fn of_kernel(kernel: Option<Kernel>) -> Self {
        let mut new = Self { nft: None, kernel, baseline: None };
        // If this fails, the next comparison takes a snapshot.
        let _ = new.update_baseline();
        new
    }

    /// Takes a new snapshot if our own requests have changed the table since the last one. False
    /// while a request is changing it; a later call then takes one.
    pub fn update_baseline(&mut self) -> Result<bool, NetlinkError> {
        // Opening may fail now for lack of descriptors, and succeed later.
        let Some(Kernel { open, changes: count }) = self.kernel else { return Ok(true) };
        let nft = match &mut self.nft {
            Some(nft) => nft,
            none => none.insert(open()?),
        };
        let Some(changes) = count() else { return Ok(false) };
        if self.baseline.as_ref().is_some_and(|baseline| baseline.changes == changes) {
            return Ok(true);
        }
        // An outdated snapshot is worse than none: restoring it would remove later changes.
        self.baseline = None;
        let snapshot = nft.snapshot(&nat::table())?;
        let still = count() == Some(changes);
        self.baseline = still.then_some(Baseline { snapshot, changes });
        Ok(still)
    }

    /// Restores the table to the snapshot. The second value is false if that failed. None while one
    /// of our own requests is changing the table, which is soon over.
    pub fn restore(&mut self) -> Option<(Restored, bool)> {
        let failed = |what: &str, error: String| Some((Restored::failed(what, error), false));
        let mut stale = None;
        for _ in 0..TRIES {
            let difference = match self.compare() {
                Ok(Comparison::AsDesired) => return Some((Restored::default(), true)),
                Ok(Comparison::InProgress) => continue,
                Ok(Comparison::Differs(difference)) => difference,
                Err(error) => return failed("compare table inet russet-cni", error.to_string()),
            };
            let (Some(nft), Some(Baseline { snapshot: Some(snapshot), .. })) =
                (&mut self.nft, &self.baseline)
            else {
                break;
            };
            let mut transaction = Transaction::new();
            transaction.only_at(difference.generation).restore(snapshot);
            match nft.commit(&transaction) {
                Ok(()) => {
                    let (what, kinds) = (vec![difference.to_string()], vec![("pod_nat", 1)]);
                    return Some((Restored { what, kinds, errors: Vec::new() }, true));
                }
                Err(error) if error.is_stale() => stale = Some((difference, error)),
                Err(error) => return failed(&difference.to_string(), error.to_string()),
            }
        }
        // Other programs commit without end.
        stale.and_then(|(difference, error)| failed(&difference.to_string(), error.to_string()))
    }

    /// The differences as text. Changes nothing.
    pub fn differences(&mut self) -> Result<Vec<String>, String> {
        let unknown = |error: String| format!("table {}: {error}", nat::table().name);
        for _ in 0..TRIES {
            match self.compare().map_err(|error| unknown(error.to_string()))? {
                Comparison::Differs(difference) => return Ok(vec![difference.to_string()]),
                Comparison::AsDesired => return Ok(Vec::new()),
                Comparison::InProgress => std::thread::park_timeout(IN_PROGRESS_PAUSE),
            }
        }
        Err(unknown("requests of ours are changing it; try again".to_owned()))
    }

    fn compare(&mut self) -> Result<Comparison, NetlinkError> {
        if !self.update_baseline()? {
            return Ok(Comparison::InProgress);
        }
        // A table that should not exist is foreign.
        let (Some(nft), Some(kernel), Some(Baseline { snapshot: Some(snapshot), changes })) =
            (&mut self.nft, self.kernel, &self.baseline)
        else {
            return Ok(Comparison::AsDesired);
        };
        let generation = nft.generation()?;
        let now = nft.snapshot(&nat::table())?;
        let differences = snapshot.differs_from(now.as_ref());
        Ok(match differences {
            0 => Comparison::AsDesired,
            // A later change results in another generation.
            _ if (kernel.changes)() == Some(*changes) => {
                Comparison::Differs(Difference { now, generation, differences })
            }
            _ => Comparison::InProgress,
        })
    }
}

// === impl Difference ===

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = if self.now.is_some() { "changed" } else { "gone" };
        let Self { differences, .. } = self;
        write!(f, "restore table inet {}, which was {state}: {differences} differences", nat::table().name)
    }
}

#[cfg(test)]
mod tests;
