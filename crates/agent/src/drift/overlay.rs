//! The overlay with its desired state: the loop changes it, the listening thread restores it. Used
//! by `drift`.

use std::collections::BTreeSet;

use russet_netlink::{NetlinkError, Socket};
use russet_overlay::{Inputs, Owner, ReconcileReport, Reconciler};

use super::Restored;

/// The kernel's side of the overlay. One thread at a time works on it.
pub(super) struct Overlay {
    reconciler: Reconciler,
    socket: Socket,
    wanted: Option<Inputs>,
    /// The kernel matched the whole desired state once. A later difference was made by another
    /// program, even if it cannot be restored.
    settled: bool,
}

// === impl Overlay ===

impl Overlay {
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { reconciler: Reconciler::new()?, socket: Socket::route()?, wanted: None, settled: false })
    }

    /// Whether the kernel was brought to exactly these inputs before.
    pub fn is_settled_at(&self, inputs: &Inputs) -> bool {
        self.settled && self.wanted.as_ref() == Some(inputs)
    }

    /// Brings the kernel to `inputs`. Returns the report, and what was restored if it had existed
    /// before.
    pub fn reconcile(&mut self, inputs: Inputs) -> (ReconcileReport, Option<Restored>) {
        let was_kept = self.is_settled_at(&inputs);
        let mut run = self.reconciler.start(&inputs);
        let what = if was_kept { run.pending() } else { Vec::new() };
        while run.step() {}
        let report = run.finish();
        note_replaced(&report);
        self.settled = was_kept || report.failed == 0;
        self.wanted = Some(inputs);
        let restored = (was_kept && !report.is_quiet()).then(|| Restored::from_report(what, &report));
        (report, restored)
    }

    /// Restores the kernel to the last inputs. None if nothing differed. The second value is false
    /// if some of it failed.
    pub fn restore(&mut self) -> (Option<Restored>, bool) {
        let Some(inputs) = self.wanted.clone() else { return (None, true) };
        let (report, restored) = self.reconcile(inputs);
        (restored, report.failed == 0)
    }

    /// The differences as text. Changes nothing. An error before the first inputs are known.
    pub fn differences(&mut self) -> Result<Vec<String>, String> {
        let Some(inputs) = &self.wanted else {
            return Err("routes and tunnels: the agent has not read its store yet".to_owned());
        };
        let run = self.reconciler.start(inputs);
        let what = run.pending();
        match run.finish().errors.first() {
            Some(error) => Err(error.to_string()),
            None => Ok(what),
        }
    }

    /// The last inputs. None before the store was read, and while other programs keep the routes.
    pub fn wanted(&self) -> Option<&Inputs> {
        self.wanted.as_ref()
    }

    pub fn forget(&mut self) {
        self.wanted = None;
        self.settled = false;
    }

    /// Leaves the tunnels to another program: packets of peers that only that program knows must be
    /// accepted.
    pub fn leave_tunnels(&mut self) {
        self.forget();
        match self.reconciler.withdraw_guard() {
            Ok(true) => {
                tracing::info!(
                    "tunnel packets are no longer guarded, because another program keeps the tunnels"
                )
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(%error, "the guard of the tunnels cannot be removed; it drops packets of new peers")
            }
        }
    }

    /// The indexes of the tunnel devices that exist.
    pub fn devices(&mut self) -> BTreeSet<u32> {
        let names = Owner::default().names;
        let found = names.iter().flatten().filter_map(|name| self.socket.link_by_name(name).ok());
        found.map(|link| link.index).collect()
    }
}

/// One line for each tunnel device that had to be made anew, with why.
pub(super) fn note_replaced(report: &ReconcileReport) {
    for device in &report.replaced {
        tracing::warn!(device, "a device was replaced; packets were lost meanwhile");
    }
}

// === impl Restored ===

impl Restored {
    fn from_report(mut what: Vec<String>, report: &ReconcileReport) -> Self {
        let kinds: Vec<_> =
            report.changed.iter().map(|(kind, count)| (kind.label(), *count as u64)).collect();
        if what.is_empty() {
            // Sysctls are compared when they are written.
            what = kinds.iter().map(|(kind, count)| format!("write {count} {kind}s")).collect();
        }
        Self { what, kinds, errors: report.errors.iter().map(ToString::to_string).collect() }
    }
}
