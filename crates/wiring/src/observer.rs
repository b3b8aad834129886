//! The observer of interface changes. The agent's journal implements it. The wiring calls it for every plugin, on the thread that serves requests.

use std::path::Path;

use russet_addr::EndpointId;
use russet_attach::{Attached, Wired};
use russet_cni_spec::CniError;

/// Is called before and after interfaces are wired and removed.
pub trait InterfaceObserver {
    /// The interface is about to be wired, possibly again, in the namespace at `netns`; drift
    /// repair must leave it alone until `wired` or `unwired`. An error prevents the wiring and
    /// fails the ADD.
    fn wiring(&self, wired: &Wired, netns: &Path) -> Result<(), CniError>;

    /// The interface is wired. If a later step of the ADD fails, `leaving` follows.
    fn wired(&self, wired: &Wired, attached: &Attached);

    /// The wiring failed and was undone: an interface that existed before is as it was.
    fn unwired(&self, wired: &Wired);

    /// The interface is about to be removed; from now on drift repair must ignore it. Also called
    /// for interfaces that never existed.
    fn leaving(&self, id: &EndpointId);
}

/// The observer of a plugin that works without an agent: ignores everything.
pub(crate) struct NoObserver;

// === impl NoObserver ===

impl InterfaceObserver for NoObserver {
    fn wiring(&self, _: &Wired, _: &Path) -> Result<(), CniError> {
        Ok(())
    }

    fn wired(&self, _: &Wired, _: &Attached) {}

    fn unwired(&self, _: &Wired) {}

    fn leaving(&self, _: &EndpointId) {}
}
