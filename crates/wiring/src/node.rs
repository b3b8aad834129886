//! The part of a node that every plugin works with: its files, its kernel, and whether it is ready.

use std::path::PathBuf;
use std::rc::Rc;

use russet_attach::Removal;
use russet_cni_spec::{CniError, code};

use crate::wiring::Wiring;

/// How DEL removes interfaces.
#[derive(Debug, Clone)]
pub enum Teardown {
    /// They are deleted before DEL answers.
    Synchronous,
    /// They are doomed, and the reaper is notified.
    Deferred(Rc<tokio::sync::Notify>),
    /// They are doomed. [`Wiring::reap_batch`] deletes them before DEL answers, together with links
    /// that other processes have doomed by then.
    Batched,
}

/// The node as plugins see it that need only its files and its kernel. Clones share everything.
#[derive(Clone)]
pub struct LocalNode {
    /// The directory below which default files lie: `/`, except in tests and demos.
    pub root: PathBuf,
    /// Access to the kernel.
    pub wiring: Wiring,
    /// What DEL does with interfaces.
    pub teardown: Teardown,
}

/// Why ADD cannot be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotReady {
    /// Text for operators.
    pub reason: String,
    /// The node has pods, and has lost its datastore or a part of its data path: their connectivity
    /// may be out of date.
    pub pods_suffer: bool,
}

/// STATUS of a node that may be unable to serve ADD.
pub fn status(not_ready: &dyn Fn() -> Option<NotReady>) -> Result<(), CniError> {
    match not_ready() {
        None => Ok(()),
        Some(NotReady { reason, pods_suffer: true }) => Err(CniError::new(
            code::LIMITED_CONNECTIVITY,
            "pods cannot be attached on this node, and its pods may not reach all others",
            reason,
        )),
        Some(NotReady { reason, .. }) => {
            Err(CniError::not_available("pods cannot be attached on this node yet", reason))
        }
    }
}

// === impl LocalNode ===

impl LocalNode {
    /// A node without an agent, for one request.
    pub fn for_request(root: PathBuf) -> Self {
        Self { root, wiring: Wiring::default(), teardown: Teardown::Batched }
    }
}

// === impl Teardown ===

impl Teardown {
    /// When and how links are deleted.
    pub fn removal(&self) -> Removal {
        match self {
            Self::Synchronous => Removal::Synchronous,
            Self::Deferred(_) => Removal::Deferred,
            Self::Batched => Removal::Batched,
        }
    }

    /// Whether links are gone before DEL answers.
    pub fn is_synchronous(&self) -> bool {
        matches!(self, Self::Synchronous | Self::Batched)
    }

    /// Notifies the reaper that there may be doomed links.
    pub fn doomed(&self) {
        if let Self::Deferred(reaper) = self {
            reaper.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_distinguishes_a_starting_node_from_one_that_lost_its_store() {
        assert_eq!(status(&|| None), Ok(()));
        for (pods_suffer, code) in [(false, 50), (true, 51)] {
            let error = status(&|| Some(NotReady { reason: "why".to_owned(), pods_suffer })).unwrap_err();
            assert_eq!((error.code, error.details.as_str()), (code, "why"));
        }
    }
}
