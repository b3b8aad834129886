//! The state of the container runtimes: the addresses that they got and have not released. The
//! stored state is compared with it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use russet_model::HandleId;

use crate::Stats;
use crate::failure::{Violation, ViolationKind};

/// All runtimes of all nodes.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) pods: BTreeMap<String, Pod>,
    /// Container and interface to addresses.
    pub(crate) live: BTreeMap<(String, String), BTreeSet<IpAddr>>,
    pub(crate) violation: Option<Violation>,
    pub(crate) stats: Stats,
}

/// A container that was ever asked for.
pub(crate) struct Pod {
    pub(crate) handle: HandleId,
    /// The Go model has handled it: faults of its handle may be the model's.
    pub(crate) go: bool,
}

// === impl World ===

impl World {
    /// A process works on a container; whether it is the first to do so.
    pub(crate) fn touch(&mut self, pod: &str, handle: &HandleId, go: bool) -> bool {
        let is_new = !self.pods.contains_key(pod);
        let known = self.pods.entry(pod.to_owned()).or_insert_with(|| Pod { handle: handle.clone(), go });
        known.go |= go;
        is_new
    }

    /// Whether the Go model had a hand in what this handle holds.
    pub(crate) fn is_go(&self, handle: &str) -> bool {
        // A handle that no runtime requested is a violation.
        self.pods.values().any(|pod| pod.go && pod.handle.as_str() == handle)
    }

    pub(crate) fn is_live(&self, pod: &str, interface: &str) -> bool {
        self.live.contains_key(&(pod.to_owned(), interface.to_owned()))
    }

    /// Whether any interface of a container has its addresses.
    pub(crate) fn has_any(&self, pod: &str) -> bool {
        self.live.keys().any(|(name, _)| name == pod)
    }

    /// An ADD succeeded.
    pub(crate) fn added(&mut self, pod: &str, interface: &str, addresses: Vec<IpAddr>) {
        let owner = (pod.to_owned(), interface.to_owned());
        self.stats.adds += 1;
        let given: BTreeSet<IpAddr> = addresses.iter().copied().collect();
        if given.len() != addresses.len() {
            self.complain(ViolationKind::TwoOwners, format!("{owner:?} was given {addresses:?}"));
        }
        for (other, held) in &self.live {
            if *other != owner
                && let Some(address) = held.intersection(&given).next()
            {
                let text = format!("{address} belongs to {other:?} and was given to {owner:?}");
                return self.complain(ViolationKind::TwoOwners, text);
            }
        }
        if let Some(held) = self.live.get(&owner) {
            self.stats.repeats += 1;
            if *held != given {
                let text = format!("{owner:?} has {held:?}, and the repeated ADD says {given:?}");
                return self.complain(ViolationKind::OtherAddress, text);
            }
        }
        self.live.insert(owner, given);
    }

    /// The runtime deletes an interface, or the whole container, before its DEL: from now on its
    /// addresses are not in use.
    pub(crate) fn gone(&mut self, pod: &str, interface: Option<&str>) {
        self.live.retain(|(name, ifname), _| name != pod || interface.is_some_and(|only| only != ifname));
    }

    /// Ends the run; the first violation counts.
    pub(crate) fn complain(&mut self, kind: ViolationKind, text: String) {
        self.violation.get_or_insert(Violation::new(kind, text));
    }
}
