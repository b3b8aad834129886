//! What pods need in nf_tables besides verdicts: masquerade and published ports in table `inet
//! russet-cni`. Only the requests that wrote these rules know their content, and they are over,
//! perhaps in an earlier run of the agent. So this module keeps a snapshot of the table, takes a
//! new one after each change of our own, and restores the table to it. Used by `controllers`.
//!
//! Whether a change was our own does not depend on events, which may be lost: [`nat::changes`]
//! counts our changes, and a snapshot is valid as long as the count is that of when it was taken.

use std::sync::Arc;
use std::time::Duration;

use russet_attach::nat;
use russet_linux::probe::{self, Feature};
use russet_nft::{NetlinkError, Nft, TableSnapshot, Transaction};
use russet_overlay::controller::{self, Comparison, Controller, Result, Round};
use russet_overlay::{OverlayError, ReconcileReport};

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
    snapshot: Option<Arc<TableSnapshot>>,
    /// [`nat::changes`] when it was taken.
    changes: u64,
}

/// The table in the kernel.
pub(super) struct Observed {
    now: Option<TableSnapshot>,
    generation: u32,
}

/// The table differs from the snapshot.
pub(super) struct Difference {
    exists: bool,
    differences: usize,
}

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
        let snapshot = nft.snapshot(&nat::table())?.map(Arc::new);
        let still = count() == Some(changes);
        self.baseline = still.then_some(Baseline { snapshot, changes });
        Ok(still)
    }

    /// Restores the table to the snapshot. None while one of our own requests is changing the table,
    /// which is soon over.
    pub fn reconcile(&mut self) -> Option<ReconcileReport> {
        let mut report = controller::reconcile(self);
        if matches!(report.errors.as_slice(), [OverlayError::InProgress]) {
            return None;
        }
        if report.what.is_empty() && report.failed > 0 {
            report.note([format!("compare {}", nat::table())]);
        }
        Some(report)
    }

    /// The differences as text. Changes nothing.
    pub fn differences(&mut self) -> Result<Vec<String>, String> {
        for _ in 1..Self::ROUNDS_MAX {
            match controller::differences(self) {
                Err(OverlayError::InProgress) => std::thread::park_timeout(IN_PROGRESS_PAUSE),
                result => return result.map_err(unknown),
            }
        }
        controller::differences(self).map_err(unknown)
    }
}

fn unknown(error: OverlayError) -> String {
    format!("table {}: {error}", nat::table().name)
}

impl Controller for Nat {
    type Desired = Arc<TableSnapshot>;
    type Observed = Observed;
    type Difference = Difference;

    /// Each repetition means that another program committed meanwhile.
    const ROUNDS_MAX: usize = 8;

    /// None for a table that should not exist: it is foreign.
    fn desired(&mut self) -> Result<Option<Self::Desired>> {
        if !self.update_baseline()? {
            return Err(OverlayError::InProgress);
        }
        Ok(self.baseline.as_ref().and_then(|baseline| baseline.snapshot.clone()))
    }

    fn observe(&mut self, desired: &Self::Desired, _: &mut ReconcileReport) -> Result<Observed> {
        // `desired` has opened it.
        let Some(nft) = &mut self.nft else { return Err(OverlayError::InProgress) };
        let generation = nft.generation()?;
        let now = nft.snapshot(&nat::table())?;
        // A later change of ours results in another generation.
        let ours = self.kernel.and_then(|kernel| (kernel.changes)());
        let valid = self.baseline.as_ref().is_some_and(|baseline| ours == Some(baseline.changes));
        if !valid && desired.differs_from(now.as_ref()) > 0 {
            return Err(OverlayError::InProgress);
        }
        Ok(Observed { now, generation })
    }

    fn diff(
        &self,
        desired: &Self::Desired,
        observed: &Observed,
        _report: &mut ReconcileReport,
    ) -> Vec<Difference> {
        let differences = desired.differs_from(observed.now.as_ref());
        let difference = Difference { exists: observed.now.is_some(), differences };
        (differences > 0).then_some(difference).into_iter().collect()
    }

    fn apply(&mut self, comparison: Comparison<Self>, report: &mut ReconcileReport) -> Result<Round> {
        let Comparison { desired, observed, differences } = comparison;
        let Some(nft) = &mut self.nft else { return Err(OverlayError::InProgress) };
        report.note(&differences);
        let mut transaction = Transaction::new();
        transaction.only_at(observed.generation).restore(&desired);
        nft.commit(&transaction)?;
        report.count_as("pod_nat");
        Ok(Round::Complete)
    }
}

// === impl Difference ===

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { exists, differences } = self;
        let state = if *exists { "changed" } else { "gone" };
        write!(f, "restore table inet {}, which was {state}: {differences} differences", nat::table().name)
    }
}

#[cfg(test)]
mod tests;
