//! The book of what is attached on this node now, as recorded when it was attached: what CHECK, the verdicts and the repair of drift compare the kernel with.
//!
//! Plugins' requests fill it through [`Ledger`]; at its start the agent takes over what the journal says and the kernel shows. In memory only.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::SystemTime;

use russet_addr::{ContainerId, IfName, NetworkName};
use russet_attach::{Attached, Wired};
use russet_cni_spec::CniError;
use russet_plugins::Ledger;
use tokio::sync::watch;

use crate::drift::Mirror;
use crate::journal::Interface;

/// The book. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Attachments(Rc<Book>);

/// One attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The interface, as it was wired.
    pub attachment: Wired,
    /// The path of the pod's namespace; none where only the kernel's word is known.
    pub netns: Option<PathBuf>,
    /// Since when; the agent's start where only the kernel's word is known.
    pub since: SystemTime,
}

#[derive(Debug)]
struct Book {
    /// No container has two interfaces of one name, whatever the networks.
    records: RefCell<BTreeMap<(ContainerId, IfName), Record>>,
    /// About to be wired; the paths of their namespaces.
    pending: RefCell<BTreeMap<(ContainerId, IfName), PathBuf>>,
    changes: watch::Sender<u64>,
    /// The same for other threads.
    mirror: Mirror,
}

// === impl Attachments ===

impl Attachments {
    /// Everything that is attached, in the order of its containers' IDs.
    pub fn all(&self) -> Vec<Record> {
        self.0.records.borrow().values().cloned().collect()
    }

    /// Whether nothing is attached.
    pub fn is_empty(&self) -> bool {
        self.0.records.borrow().is_empty()
    }

    /// One attachment.
    pub fn of(&self, network: &NetworkName, container: &ContainerId, ifname: &IfName) -> Option<Record> {
        let records = self.0.records.borrow();
        let record = records.get(&(container.clone(), ifname.clone()))?;
        (record.attachment.network() == network).then(|| record.clone())
    }

    /// Resolves with the next change. What changes between two calls is only seen by [`changes`](Self::changes).
    pub async fn changed(&self) {
        // The sender lives as long as we.
        let _ = self.changes().changed().await;
    }

    /// For somebody who must miss no change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// What is attached, for other threads: whoever works on it keeps everything from leaving.
    pub fn mirror(&self) -> Mirror {
        self.0.mirror.clone()
    }

    /// Takes an attachment into the book; the one with the same names gives way.
    pub fn put(&self, record: Record) {
        let key = key(record.attachment.container(), record.attachment.ifname());
        self.0.mirror.put(&record.attachment);
        self.0.records.borrow_mut().insert(key, record);
        self.tell();
    }

    /// Strikes an attachment out.
    pub fn remove(&self, container: &ContainerId, ifname: &IfName) {
        let key = key(container, ifname);
        self.0.pending.borrow_mut().remove(&key);
        self.0.mirror.remove(container, ifname);
        if self.0.records.borrow_mut().remove(&key).is_some() {
            self.tell();
        }
    }

    /// Whether an interface is in the book, whatever its network.
    pub(crate) fn has(&self, interface: &Interface) -> bool {
        self.0.records.borrow().contains_key(&key(&interface.container, &interface.ifname))
    }

    fn tell(&self) {
        self.0.changes.send_modify(|count| *count = count.wrapping_add(1));
    }
}

impl Ledger for Attachments {
    fn wiring(&self, wired: &Wired, netns: &Path) -> Result<(), CniError> {
        self.0.pending.borrow_mut().insert(key(wired.container(), wired.ifname()), netns.to_owned());
        // An ADD repeated: what there is of it may give way to another, which must not be mended before it is complete.
        self.0.mirror.remove(wired.container(), wired.ifname());
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
            self.0.mirror.put(&record.attachment);
        }
    }

    fn leaving(&self, container: &ContainerId, ifname: &IfName) {
        self.remove(container, ifname);
    }
}

fn key(container: &ContainerId, ifname: &IfName) -> (ContainerId, IfName) {
    (container.clone(), ifname.clone())
}

// === impl Book ===

impl Default for Book {
    fn default() -> Self {
        Self {
            records: RefCell::default(),
            pending: RefCell::default(),
            changes: watch::channel(0).0,
            mirror: Mirror::default(),
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
    fn an_attachment_is_in_the_book_from_the_end_of_its_wiring_to_the_beginning_of_its_removal() {
        let book = Attachments::default();
        let mut changes = book.changes();
        let one = wired("net", "abc", "eth0");
        let of = |network: &str| {
            book.of(&network.parse().unwrap(), &"abc".parse().unwrap(), &"eth0".parse().unwrap())
        };
        book.wiring(&one, Path::new("/run/netns/a")).unwrap();
        assert!(of("net").is_none() && !changes.has_changed().unwrap(), "it is not wired yet");
        book.wired(&one, &attached(&one));
        assert_eq!(of("net").unwrap().netns, Some("/run/netns/a".into()));
        assert!(of("other").is_none());
        assert!(changes.has_changed().unwrap());
        changes.mark_unchanged();
        // An ADD repeated: the interface is there all the while.
        book.wiring(&one, Path::new("/run/netns/a")).unwrap();
        assert_eq!(book.all().len(), 1);
        book.unwired(&one);
        assert_eq!(book.all().len(), 1);
        book.leaving(&"abc".parse().unwrap(), &"eth0".parse().unwrap());
        assert!(book.all().is_empty() && changes.has_changed().unwrap());
    }

    #[test]
    fn nothing_is_mended_while_it_is_wired_once_more() {
        let (book, one) = (Attachments::default(), wired("net", "abc", "eth0"));
        let kept = || book.mirror().has(one.container(), one.ifname());
        let wiring = || book.wiring(&one, Path::new("/run/netns/a")).unwrap();
        wiring();
        book.unwired(&one);
        assert!(!kept(), "it never was");
        for again in [false, true] {
            wiring();
            assert!(!kept(), "{again}");
            book.wired(&one, &attached(&one));
            assert!(kept(), "{again}");
        }
        // What there was is as it was.
        wiring();
        book.unwired(&one);
        assert!(kept());
    }
}
