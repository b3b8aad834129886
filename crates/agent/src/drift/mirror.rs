//! What is attached, as the listening thread sees it: the book of attachments ([`crate::attachments`]) for other threads. What is about to be taken down, or
//! wired once more, leaves it first; whoever works on an attachment by [`Mirror::while_kept`] keeps it from leaving, so nothing is put back that is just
//! being taken away.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use russet_addr::{ContainerId, IfName};
use russet_attach::{Owner, Wired};

use super::lock;

/// The mirror; clones are the same one.
#[derive(Debug, Clone, Default)]
pub struct Mirror(Arc<Mutex<Wirings>>);

/// What is attached.
#[derive(Debug, Default)]
pub(super) struct Wirings {
    kept: BTreeMap<(ContainerId, IfName), Kept>,
    /// Of those that were ever put.
    count: u64,
    /// Addresses that the node routes to pods.
    addresses: BTreeSet<IpAddr>,
    /// Bridges that pods are behind.
    bridges: BTreeSet<IfName>,
}

/// One attachment as it was put, and not since: the same names may come once more.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    pub wired: Wired,
    number: u64,
}

// === impl Mirror ===

impl Mirror {
    /// It is attached, and complete.
    pub fn put(&self, wired: &Wired) {
        let mut all = lock(&self.0);
        let key = (wired.container().clone(), wired.ifname().clone());
        all.forget(&key);
        match wired {
            Wired::Routed(attachment) => all.addresses.extend(&attachment.addresses),
            Wired::Port(port) => _ = all.bridges.insert(port.bridge.name.clone()),
        }
        all.count += 1;
        let kept = Kept { wired: wired.clone(), number: all.count };
        all.kept.insert(key, kept);
    }

    /// It is about to be taken down, or wired once more. Waits while something of it is being put back.
    pub fn remove(&self, container: &ContainerId, ifname: &IfName) {
        lock(&self.0).forget(&(container.clone(), ifname.clone()));
    }

    /// Whether an interface is kept as it is.
    #[cfg(test)]
    pub fn has(&self, container: &ContainerId, ifname: &IfName) -> bool {
        lock(&self.0).kept.contains_key(&(container.clone(), ifname.clone()))
    }

    /// Everything.
    pub(super) fn kept(&self) -> Vec<Kept> {
        lock(&self.0).kept.values().cloned().collect()
    }

    /// Works while one attachment cannot leave; none if it has left, whether or not it came back. Nothing can leave meanwhile: what works is short.
    pub(super) fn while_kept<T>(&self, kept: &Kept, work: impl FnOnce() -> T) -> Option<T> {
        let all = lock(&self.0);
        let key = (kept.wired.container().clone(), kept.wired.ifname().clone());
        let same = all.kept.get(&key).is_some_and(|found| found.number == kept.number);
        same.then(work)
    }

    /// Works while nothing leaves.
    pub(super) fn with<T>(&self, work: impl FnOnce(&Wirings) -> T) -> T {
        work(&lock(&self.0))
    }
}

// === impl Wirings ===

impl Wirings {
    fn forget(&mut self, key: &(ContainerId, IfName)) {
        // A bridge outlives its ports, and its name says nothing wrong.
        if let Some(Kept { wired: Wired::Routed(attachment), .. }) = self.kept.remove(key) {
            attachment.addresses.iter().for_each(|address| _ = self.addresses.remove(address));
        }
    }

    /// Whether a pod has the address, and the node a route to it.
    pub fn routes_to(&self, address: &IpAddr) -> bool {
        self.addresses.contains(address)
    }

    /// Whether pods are behind the bridge.
    pub fn has_bridge(&self, name: &str) -> bool {
        self.bridges.iter().any(|bridge| bridge.as_str() == name)
    }

    /// Whether the interface that a link says it is is attached, and not on its way in or out. One that only tells a hash may be.
    pub fn has(&self, owner: &Owner) -> bool {
        match (owner.container(), owner.ifname()) {
            (Some(container), Some(ifname)) => self.kept.contains_key(&(container.clone(), ifname.clone())),
            _ => true,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use russet_attach::{Attachment, Dialect};

    use super::*;

    #[test]
    fn what_leaves_is_kept_at_nothing_any_more() {
        let (container, ifname): (ContainerId, IfName) = ("abc".parse().unwrap(), "eth0".parse().unwrap());
        let new =
            Attachment::new(Dialect::Native, "net".parse().unwrap(), container.clone(), ifname.clone(), None);
        let address: IpAddr = "10.1.0.5".parse().unwrap();
        let mirror = Mirror::default();
        mirror.put(&Wired::Routed(Attachment { addresses: vec![address], ..new.clone() }));
        assert!(mirror.with(|all| all.routes_to(&address)));
        let was = mirror.kept().remove(0);
        assert_eq!(mirror.while_kept(&was, || 7), Some(7));
        // An ADD repeated, with another address.
        let other: IpAddr = "10.1.0.6".parse().unwrap();
        mirror.put(&Wired::Routed(Attachment { addresses: vec![other], ..new.clone() }));
        assert_eq!(mirror.while_kept(&was, || 7), None, "it is another one");
        let is = mirror.kept().remove(0);
        assert!(mirror.with(|all| !all.routes_to(&address) && all.routes_to(&other)));
        mirror.remove(&container, &ifname);
        assert!(mirror.with(|all| all.is_empty() && !all.routes_to(&other)));
        assert_eq!(mirror.while_kept(&is, || 7), None);
        mirror.put(&Wired::Routed(new));
        assert_eq!(mirror.while_kept(&is, || 7), None, "it was away meanwhile");
    }
}
