//! The attached interfaces as the listening thread sees them: a copy of the table of attachments
//! ([`crate::attachments`]) for other threads. An interface that is about to be removed, or wired
//! again, leaves the copy first. [`AttachedInterfaces::while_attached`] keeps an interface from
//! leaving, so that drift repair never restores parts of an interface that is being removed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use russet_addr::{ContainerId, IfName};
use russet_attach::{Owner, Wired};

use super::lock;

/// The attached interfaces. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct AttachedInterfaces(Arc<Mutex<Wirings>>);

/// Their wirings.
#[derive(Debug, Default)]
pub(super) struct Wirings {
    entries: BTreeMap<(ContainerId, IfName), Entry>,
    /// Number of interfaces that were ever added.
    count: u64,
    /// Addresses that the node routes to pods.
    addresses: BTreeSet<IpAddr>,
    /// Bridges with pods as ports.
    bridges: BTreeSet<IfName>,
}

/// One interface as it was added. The same names may be added again later, with another number.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub wired: Wired,
    number: u64,
}

// === impl AttachedInterfaces ===

impl AttachedInterfaces {
    /// Adds an interface that is attached completely.
    pub fn put(&self, wired: &Wired) {
        let mut all = lock(&self.0);
        let key = (wired.container().clone(), wired.ifname().clone());
        all.forget(&key);
        match wired {
            Wired::Routed(attachment) => all.addresses.extend(&attachment.addresses),
            Wired::Port(port) => _ = all.bridges.insert(port.bridge.name.clone()),
        }
        all.count += 1;
        let entry = Entry { wired: wired.clone(), number: all.count };
        all.entries.insert(key, entry);
    }

    /// Removes an interface that is about to be removed or wired again. Waits while drift repair
    /// works on it.
    pub fn remove(&self, container: &ContainerId, ifname: &IfName) {
        lock(&self.0).forget(&(container.clone(), ifname.clone()));
    }

    /// Whether an interface is in the set.
    #[cfg(test)]
    pub fn has(&self, container: &ContainerId, ifname: &IfName) -> bool {
        lock(&self.0).entries.contains_key(&(container.clone(), ifname.clone()))
    }

    /// All of them.
    pub(super) fn entries(&self) -> Vec<Entry> {
        lock(&self.0).entries.values().cloned().collect()
    }

    /// Runs `work` while one interface cannot leave. None if it has left, even if it was added
    /// again. No other interface can leave meanwhile, so `work` has to be short.
    pub(super) fn while_attached<T>(&self, entry: &Entry, work: impl FnOnce() -> T) -> Option<T> {
        let all = lock(&self.0);
        let key = (entry.wired.container().clone(), entry.wired.ifname().clone());
        let same = all.entries.get(&key).is_some_and(|found| found.number == entry.number);
        same.then(work)
    }

    /// Runs `work` while no interface can leave.
    pub(super) fn with<T>(&self, work: impl FnOnce(&Wirings) -> T) -> T {
        work(&lock(&self.0))
    }
}

// === impl Wirings ===

impl Wirings {
    fn forget(&mut self, key: &(ContainerId, IfName)) {
        // A bridge outlives its ports, so its name stays.
        if let Some(Entry { wired: Wired::Routed(attachment), .. }) = self.entries.remove(key) {
            attachment.addresses.iter().for_each(|address| _ = self.addresses.remove(address));
        }
    }

    /// Whether the node routes this address to a pod.
    pub fn routes_to(&self, address: &IpAddr) -> bool {
        self.addresses.contains(address)
    }

    /// Whether pods are ports of the bridge.
    pub fn has_bridge(&self, name: &str) -> bool {
        self.bridges.iter().any(|bridge| bridge.as_str() == name)
    }

    /// Whether the interface that a link's alias names is attached, and not being wired or removed.
    /// True for an alias that has only a hash, because it may be.
    pub fn has(&self, owner: &Owner) -> bool {
        match (owner.container(), owner.ifname()) {
            (Some(container), Some(ifname)) => {
                self.entries.contains_key(&(container.clone(), ifname.clone()))
            }
            _ => true,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use russet_attach::{Attachment, Dialect};

    use super::*;

    #[test]
    fn an_interface_that_left_is_not_worked_on_any_more() {
        let (container, ifname): (ContainerId, IfName) = ("abc".parse().unwrap(), "eth0".parse().unwrap());
        let new =
            Attachment::new(Dialect::Native, "net".parse().unwrap(), container.clone(), ifname.clone(), None);
        let address: IpAddr = "10.1.0.5".parse().unwrap();
        let interfaces = AttachedInterfaces::default();
        interfaces.put(&Wired::Routed(Attachment { addresses: vec![address], ..new.clone() }));
        assert!(interfaces.with(|all| all.routes_to(&address)));
        let was = interfaces.entries().remove(0);
        assert_eq!(interfaces.while_attached(&was, || 7), Some(7));
        // The ADD is repeated with another address.
        let other: IpAddr = "10.1.0.6".parse().unwrap();
        interfaces.put(&Wired::Routed(Attachment { addresses: vec![other], ..new.clone() }));
        assert_eq!(interfaces.while_attached(&was, || 7), None, "it is another one");
        let is = interfaces.entries().remove(0);
        assert!(interfaces.with(|all| !all.routes_to(&address) && all.routes_to(&other)));
        interfaces.remove(&container, &ifname);
        assert!(interfaces.with(|all| all.is_empty() && !all.routes_to(&other)));
        assert_eq!(interfaces.while_attached(&is, || 7), None);
        interfaces.put(&Wired::Routed(new));
        assert_eq!(interfaces.while_attached(&is, || 7), None, "it was away meanwhile");
    }
}
