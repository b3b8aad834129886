//! The interfaces that are attached on this node, as recorded when they were attached. CHECK, the
//! verdicts and drift repair compare the kernel with this table.
//!
//! Requests of plugins fill it through [`InterfaceObserver`]. When the agent starts, it takes over what the
//! journal records and the kernel shows. The table exists in memory only.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::SystemTime;

use russet_addr::{ContainerId, IfName, NetworkName};
use russet_attach::{Attached, Wired};
use russet_cni_spec::CniError;
use russet_plugins::InterfaceObserver;
use tokio::sync::watch;

use crate::drift::AttachedInterfaces;
use crate::journal::Interface;

/// The table of attachments. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Attachments(Rc<AttachmentTable>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The interface with the wiring that was recorded.
    pub attachment: Wired,
    /// The path of the pod's network namespace. None for an interface that was only found in the
    /// kernel.
    pub netns: Option<PathBuf>,
    /// When it was attached. For an interface that was only found in the kernel: when the agent
    /// started.
    pub since: SystemTime,
}

#[derive(Debug)]
struct AttachmentTable {
    /// No container has two interfaces with the same name, whatever their networks.
    records: RefCell<BTreeMap<(ContainerId, IfName), Record>>,
    /// Interfaces that an ADD is about to wire, with the paths of their namespaces.
    pending: RefCell<BTreeMap<(ContainerId, IfName), PathBuf>>,
    changes: watch::Sender<u64>,
    /// The same content for other threads.
    attached: AttachedInterfaces,
}

// === impl Attachments ===

impl Attachments {
    /// All attachments, ordered by container ID.
    pub fn all(&self) -> Vec<Record> {
        self.0.records.borrow().values().cloned().collect()
    }

    pub fn is_empty(&self) -> bool {
        self.0.records.borrow().is_empty()
    }

    /// The attachment with these names, if there is one.
    pub fn get(&self, network: &NetworkName, container: &ContainerId, ifname: &IfName) -> Option<Record> {
        let records = self.0.records.borrow();
        let record = records.get(&(container.clone(), ifname.clone()))?;
        (record.attachment.network() == network).then(|| record.clone())
    }

    /// Resolves at the next change. A caller that must not miss a change between two calls uses
    /// [`changes`](Self::changes).
    pub async fn changed(&self) {
        // The sender lives as long as `self`.
        let _ = self.changes().changed().await;
    }

    /// A receiver that sees every change from now on.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// The attached interfaces for other threads. A thread that works on one holds up its removal.
    pub fn attached_interfaces(&self) -> AttachedInterfaces {
        self.0.attached.clone()
    }

    /// Adds an attachment, or replaces the one with the same names.
    pub fn put(&self, record: Record) {
        let key = key(record.attachment.container(), record.attachment.ifname());
        self.0.attached.put(&record.attachment);
        self.0.records.borrow_mut().insert(key, record);
        self.notify();
    }

    pub fn remove(&self, container: &ContainerId, ifname: &IfName) {
        let key = key(container, ifname);
        self.0.pending.borrow_mut().remove(&key);
        self.0.attached.remove(container, ifname);
        if self.0.records.borrow_mut().remove(&key).is_some() {
            self.notify();
        }
    }

    /// Whether the table has an interface, on any network.
    pub(crate) fn has(&self, interface: &Interface) -> bool {
        self.0.records.borrow().contains_key(&key(&interface.container, &interface.ifname))
    }

    fn notify(&self) {
        self.0.changes.send_modify(|count| *count = count.wrapping_add(1));
    }
}

impl InterfaceObserver for Attachments {
    fn wiring(&self, wired: &Wired, netns: &Path) -> Result<(), CniError> {
        self.0.pending.borrow_mut().insert(key(wired.container(), wired.ifname()), netns.to_owned());
        // The ADD is a repetition. Parts of the interface may be replaced, so drift repair must not
        // touch it before it is complete.
        self.0.attached.remove(wired.container(), wired.ifname());
        Ok(())
    }

    fn wired(&self, wired: &Wired, attached: &Attached) {
        let netns = self.0.pending.borrow_mut().remove(&key(wired.container(), wired.ifname()));
        let attachment = wired.clone().as_attached(attached.bridge_mac);
        self.put(Record { attachment, netns, since: SystemTime::now() });
    }

    fn unwired(&self, wired: &Wired) {
        let key = key(wired.container(), wired.ifname());
        self.0.pending.borrow_mut().remove(&key);
        if let Some(record) = self.0.records.borrow().get(&key) {
            self.0.attached.put(&record.attachment);
        }
    }

    fn leaving(&self, container: &ContainerId, ifname: &IfName) {
        self.remove(container, ifname);
    }
}

fn key(container: &ContainerId, ifname: &IfName) -> (ContainerId, IfName) {
    (container.clone(), ifname.clone())
}

// === impl AttachmentTable ===

impl Default for AttachmentTable {
    fn default() -> Self {
        Self {
            records: RefCell::default(),
            pending: RefCell::default(),
            changes: watch::channel(0).0,
            attached: AttachedInterfaces::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use russet_attach::{Attachment, Dialect};

    use super::*;

    fn wired(network: &str, container: &str, ifname: &str) -> Wired {
        let (network, container) = (network.parse().unwrap(), container.parse().unwrap());
        Wired::Routed(Attachment::new(Dialect::Native, network, container, ifname.parse().unwrap(), None))
    }

    fn attached(wired: &Wired) -> Attached {
        Attached {
            host_name: wired.host_name().clone(),
            host_ifindex: 7,
            host_mac: "02:00:00:00:00:01".parse().unwrap(),
            pod_ifindex: 2,
            pod_mac: "02:00:00:00:00:02".parse().unwrap(),
            mtu: 1500,
            reused: false,
            bridge_mac: None,
        }
    }

    #[test]
    fn an_attachment_is_listed_from_the_end_of_its_wiring_to_the_start_of_its_removal() {
        let table = Attachments::default();
        let mut changes = table.changes();
        let one = wired("net", "abc", "eth0");
        let of = |network: &str| {
            table.get(&network.parse().unwrap(), &"abc".parse().unwrap(), &"eth0".parse().unwrap())
        };
        table.wiring(&one, Path::new("/run/netns/a")).unwrap();
        assert!(of("net").is_none() && !changes.has_changed().unwrap(), "it is not wired yet");
        table.wired(&one, &attached(&one));
        assert_eq!(of("net").unwrap().netns, Some("/run/netns/a".into()));
        assert!(of("other").is_none());
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        // The ADD is repeated; the interface exists all the time.
        table.wiring(&one, Path::new("/run/netns/a")).unwrap();
        assert_eq!(table.all().len(), 1);
        table.unwired(&one);
        assert_eq!(table.all().len(), 1);
        table.leaving(&"abc".parse().unwrap(), &"eth0".parse().unwrap());
        assert!(table.all().is_empty() && changes.has_changed().unwrap());
    }

    #[test]
    fn drift_repair_skips_an_interface_that_is_being_wired_again() {
        let (table, one) = (Attachments::default(), wired("net", "abc", "eth0"));
        let repairable = || table.attached_interfaces().has(one.container(), one.ifname());
        let wiring = || table.wiring(&one, Path::new("/run/netns/a")).unwrap();
        wiring();
        table.unwired(&one);
        assert!(!repairable(), "it never was");
        for again in [false, true] {
            wiring();
            assert!(!repairable(), "{again}");
            table.wired(&one, &attached(&one));
            assert!(repairable(), "{again}");
        }
        // The earlier attachment is unchanged.
        wiring();
        table.unwired(&one);
        assert!(repairable());
    }
}
