//! Has the addresses of pods held before they are wired. It stands before the journal, which observes
//! the same.

use std::path::Path;
use std::rc::Rc;

use russet_addr::EndpointId;
use russet_attach::{Attached, Wired};
use russet_cni_spec::CniError;
use russet_plugins::InterfaceObserver;

use super::{Policies, is_policed};

/// The observer.
pub struct HoldsNewPods {
    policies: Policies,
    next: Rc<dyn InterfaceObserver>,
}

// === impl HoldsNewPods ===

impl HoldsNewPods {
    pub fn new(policies: Policies, next: Rc<dyn InterfaceObserver>) -> Self {
        Self { policies, next }
    }
}

impl InterfaceObserver for HoldsNewPods {
    fn wiring(&self, wired: &Wired, netns: &Path) -> Result<(), CniError> {
        if is_policed(wired) {
            let addresses = wired.addresses().into_iter().collect();
            let held = self.policies.hold(wired.id(), addresses);
            held.map_err(|error| CniError::try_again_later("policies are not ready for a new pod", error))?;
        }
        let recorded = self.next.wiring(wired, netns);
        if recorded.is_err() {
            self.policies.settled(wired.id());
        }
        recorded
    }

    fn wired(&self, wired: &Wired, attached: &Attached) {
        self.next.wired(wired, attached);
        self.policies.settled(wired.id());
    }

    fn unwired(&self, wired: &Wired) {
        self.next.unwired(wired);
        self.policies.settled(wired.id());
    }

    fn leaving(&self, id: &EndpointId) {
        self.next.leaving(id);
        self.policies.settled(id);
    }
}
