//! The store that a verb uses. Every verb that reads or changes a datastore opens it by this
//! module.

use std::rc::Rc;
use std::sync::OnceLock;

use russet_agent::{Opened, Paths, StoreLocation};
use russet_ipam::{Allocator, SystemClock};
use russet_kube::Client;
use russet_store::{Store, StoreError};

use super::Failure;
use crate::cli::store::StoreChoice;
use crate::output;
use crate::settings::{self, Chosen};

/// An open store.
pub struct Place {
    pub store: Rc<dyn Store>,
    pub paths: Paths,
    /// Nodes and pods are Kubernetes' own objects.
    pub is_kubernetes: bool,
    /// Holds the store's lock if no other process owns the store.
    opened: Opened,
}

/// There is no store to read.
#[derive(Debug, thiserror::Error)]
#[error("there is no store at {0}; is --root right, and --store?")]
struct NoStore(String);

#[derive(Debug, thiserror::Error)]
#[error("open the store: {0}")]
struct NotOpened(#[source] StoreError);

/// The store of this process's verb, of which there is one. Errors of the verb name it.
static USED: OnceLock<String> = OnceLock::new();

/// The store of this process's verb, and the setting that names it; None before it is known.
pub fn used() -> Option<&'static str> {
    USED.get().map(String::as_str)
}

/// Determines the store; from then on errors name it.
pub fn choose(choice: StoreChoice) -> Result<Chosen, Failure> {
    let verbose = choice.verbose;
    let chosen = settings::store(choice)?;
    announce(&chosen, verbose);
    Ok(chosen)
}

/// Makes errors name this store; with `verbose`, prints it at once.
pub fn announce(chosen: &Chosen, verbose: bool) {
    let _ = USED.set(chosen.why.clone());
    if verbose {
        output::progress(&format!("store: {}", chosen.why));
    }
}

// === impl Place ===

impl Place {
    /// Opens the store that the arguments and the node's settings name. A verb that only reads must
    /// not create an empty store: a missing one is an error.
    pub async fn open(choice: StoreChoice) -> Result<Self, Failure> {
        let chosen = choose(choice)?;
        Self::require(&chosen)?;
        Self::of(chosen).await
    }

    /// The same for a verb that asks about pods and nodes of the whole cluster.
    pub async fn open_cluster(choice: StoreChoice) -> Result<Self, Failure> {
        let verbose = choice.verbose;
        let chosen = settings::cluster_store(choice)?;
        announce(&chosen, verbose);
        Self::require(&chosen)?;
        Self::of(chosen).await
    }

    /// Fails if opening this store would create it.
    pub fn require(chosen: &Chosen) -> Result<(), Failure> {
        if chosen.location == StoreLocation::Embedded && !chosen.paths.has_embedded_store() {
            return Err(NoStore(chosen.paths.state_dir().display().to_string()).into());
        }
        Ok(())
    }

    /// The same for a verb that writes: creates an embedded store if it is missing.
    pub async fn open_or_make(choice: StoreChoice) -> Result<Self, Failure> {
        Self::of(choose(choice)?).await
    }

    /// Opens a store that was determined before.
    pub async fn of(chosen: Chosen) -> Result<Self, Failure> {
        let opened = russet_agent::open_store(&chosen.paths, &chosen.location).await.map_err(NotOpened)?;
        let is_kubernetes = matches!(chosen.location, StoreLocation::Kubernetes(_));
        Ok(Self { store: opened.store.clone(), paths: chosen.paths, is_kubernetes, opened })
    }

    /// The client of the cluster's API, if the store is there.
    pub fn kubernetes(&self) -> Option<Client> {
        self.opened.kubernetes.as_ref().map(|store| store.client())
    }

    /// Group and version of Calico's resources in the cluster's API, if the store is there.
    pub async fn kubernetes_group(&self) -> Result<Option<String>, StoreError> {
        match &self.opened.kubernetes {
            Some(store) => store.group().await.map(|group| Some(group.to_string())),
            None => Ok(None),
        }
    }

    /// An allocator over the store that, like peers' tools, keeps no history.
    pub fn allocator(&self) -> Allocator {
        Allocator::new(self.store.clone(), Rc::new(SystemClock))
    }
}
