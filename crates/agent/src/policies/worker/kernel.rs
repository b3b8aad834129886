//! The kernel's table of decisions, whose epochs are those of the fast path's flows, too.

use std::time::Instant;

use russet_policy::{EpochObserver, Policies, PolicyError, PolicySettings};

use crate::fast_path::Signal;

/// The table, opened when it is first needed.
pub(super) struct Kernel {
    pub table: Option<Policies>,
    /// The table has to be compared with what is wanted, at this time.
    pub restore_at: Option<Instant>,
    pub flows: Signal,
}

// === impl Kernel ===

impl Kernel {
    pub fn new(flows: &Signal) -> Self {
        Self { table: None, restore_at: None, flows: flows.clone() }
    }

    pub fn open(&mut self) -> Result<&mut Policies, PolicyError> {
        match &mut self.table {
            Some(table) => Ok(table),
            none => {
                let flows = self.flows.clone();
                let mut table = Policies::open(PolicySettings::default())?;
                table.observe(EpochObserver::new(move || flows.raise()));
                Ok(none.insert(table))
            }
        }
    }
}
