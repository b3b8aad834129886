//! Who wants to know what becomes of interfaces: an agent, which writes it into its journal and keeps what is attached in mind. Told by the
//! wiring, on the thread that serves requests, whichever plugin works.

use std::path::Path;

use russet_addr::{ContainerId, IfName};
use russet_attach::{Attached, Wired};
use russet_cni_spec::CniError;

/// Is told what becomes of interfaces.
pub trait Ledger {
    /// It is about to be wired, in the namespace at `netns`, perhaps once more: nobody is to mend it until it is. An error keeps it from that, and fails the ADD.
    fn wiring(&self, wired: &Wired, netns: &Path) -> Result<(), CniError>;

    /// It is wired. What the request still does may fail; then it leaves again.
    fn wired(&self, wired: &Wired, attached: &Attached);

    /// It could not be wired, and what had been done is undone: an interface that was there before is as it was.
    fn unwired(&self, wired: &Wired);

    /// It is about to be taken down: nobody is to miss or mend it from now on. Also told of what was never there.
    fn leaving(&self, container: &ContainerId, ifname: &IfName);
}

/// Nobody wants to know: a plugin that works without an agent.
pub(crate) struct NoLedger;

// === impl NoLedger ===

impl Ledger for NoLedger {
    fn wiring(&self, _: &Wired, _: &Path) -> Result<(), CniError> {
        Ok(())
    }

    fn wired(&self, _: &Wired, _: &Attached) {}

    fn unwired(&self, _: &Wired) {}

    fn leaving(&self, _: &ContainerId, _: &IfName) {}
}
