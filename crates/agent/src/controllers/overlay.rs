//! The overlay with its inputs: the loop changes them, the repair thread restores what they
//! describe. Used by `controllers`.

use std::collections::BTreeSet;
use std::sync::Arc;

use russet_netlink::NetlinkError;
use russet_overlay::{Desired, Inputs, ReconcileReport, Reconciler, controller, desired};

/// The kernel's side of the overlay. One thread at a time works on it.
pub(super) struct Overlay {
    reconciler: Reconciler,
    inputs: Option<Inputs>,
    /// What follows from them.
    desired: Option<Arc<Desired>>,
    /// The kernel matched the whole desired state once. A later difference was made by another
    /// program, even if it cannot be restored.
    settled: bool,
}

// === impl Overlay ===

impl Overlay {
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { reconciler: Reconciler::new()?, inputs: None, desired: None, settled: false })
    }

    pub fn is_settled(&self) -> bool {
        self.settled
    }

    /// Whether the kernel was brought to exactly these inputs before.
    pub fn is_settled_at(&self, inputs: &Inputs) -> bool {
        self.settled && self.inputs.as_ref() == Some(inputs)
    }

    /// Sets the inputs. Returns the state that they describe, which is not applied yet.
    pub fn set(&mut self, inputs: Inputs) -> Arc<Desired> {
        let desired = Arc::new(desired(&inputs));
        self.reconciler.set(Some(Arc::clone(&desired)));
        (self.inputs, self.desired, self.settled) = (Some(inputs), Some(Arc::clone(&desired)), false);
        desired
    }

    /// Brings the kernel to the state that the inputs describe.
    pub fn reconcile(&mut self) -> ReconcileReport {
        let report = controller::reconcile(&mut self.reconciler);
        note_replaced(&report);
        self.settled |= self.inputs.is_some() && report.failed == 0;
        report
    }

    /// The differences as text. Changes nothing. An error before the first inputs are known.
    pub fn differences(&mut self) -> Result<Vec<String>, String> {
        if self.inputs.is_none() {
            return Err("routes and tunnels: the agent has not read its store yet".to_owned());
        }
        controller::differences(&mut self.reconciler).map_err(|error| error.to_string())
    }

    /// The last inputs. None before the store was read, and while other programs keep the routes.
    pub fn inputs(&self) -> Option<&Inputs> {
        self.inputs.as_ref()
    }

    /// The state that the last inputs describe.
    pub fn desired(&self) -> Option<Arc<Desired>> {
        self.desired.clone()
    }

    /// Leaves the tunnels to another program: packets of peers that only that program knows must be
    /// accepted.
    pub fn leave_tunnels(&mut self) {
        self.reconciler.set(None);
        (self.inputs, self.desired, self.settled) = (None, None, false);
        match self.reconciler.withdraw_probe_addresses() {
            Ok(true) => tracing::info!(
                "the addresses for probes were removed, because another program keeps the routes"
            ),
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "the addresses for probes cannot be removed"),
        }
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
        self.reconciler.devices()
    }
}

/// One line for each tunnel device that had to be made anew, with why.
fn note_replaced(report: &ReconcileReport) {
    for device in &report.replaced {
        tracing::warn!(device, "a device was replaced; packets were lost meanwhile");
    }
}
