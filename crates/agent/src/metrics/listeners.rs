//! The connection slots of the agent's listeners.

use std::sync::Arc;

use russet_http::listener::{Admission, Limits};
use russet_openshift::LISTENER as OPENSHIFT;

use crate::server::LISTENER as CNI;

/// One [`Admission`] for each listener.
#[derive(Debug, Clone)]
pub struct Listeners {
    /// The CNI socket.
    pub cni: Arc<Admission>,
    /// The store's socket.
    pub store: Arc<Admission>,
    /// Health and metrics.
    pub health: Arc<Admission>,
    /// The page behind a token.
    pub ui: Arc<Admission>,
    /// OpenShift's socket.
    pub openshift: Arc<Admission>,
}

// === impl Listeners ===

impl Listeners {
    pub(super) fn new() -> Self {
        Self {
            cni: Admission::new(CNI),
            store: Admission::new(russet_store::LISTENER),
            health: Admission::new(russet_http::health::LIMITS),
            ui: Admission::new(Limits { name: "ui", ..russet_http::health::LIMITS }),
            openshift: Admission::new(OPENSHIFT),
        }
    }

    pub(super) fn collector(&self) -> russet_http::health::Listeners {
        let Self { cni, store, health, ui, openshift } = self.clone();
        russet_http::health::Listeners(vec![cni, store, health, ui, openshift])
    }
}
