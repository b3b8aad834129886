//! The store that a verb works on, for as long as the verb takes. Used by every verb that looks at or changes a datastore.

use std::rc::Rc;

use russet_agent::{Opened, Paths, StoreLocation};
use russet_ipam::{Allocator, SystemClock};
use russet_store::Store;

use super::Failure;
use crate::cli::store::StoreChoice;
use crate::settings;

/// An open store.
pub struct Place {
    /// The store.
    pub store: Rc<dyn Store>,
    /// The node's files.
    pub paths: Paths,
    /// Holds the store's lock when nobody else owns it.
    _opened: Opened,
}

/// There is no store where one was to be looked at.
#[derive(Debug, thiserror::Error)]
#[error("there is no store at {0}; is --root right, and --store?")]
struct NoStore(String);

// === impl Place ===

impl Place {
    /// Opens what the arguments and the node's settings name. Whoever looks must not leave an empty store behind: one that is not there is an error.
    pub async fn open(choice: StoreChoice) -> Result<Self, Failure> {
        let (paths, location) = settings::store(choice)?;
        Self::require(&paths, &location)?;
        Self::at(paths, location).await
    }

    /// An error if whoever opens this store would make it.
    pub fn require(paths: &Paths, location: &StoreLocation) -> Result<(), Failure> {
        if *location == StoreLocation::Embedded && !paths.state_dir().exists() {
            return Err(NoStore(paths.state_dir().display().to_string()).into());
        }
        Ok(())
    }

    /// The same for whoever writes: an embedded store that is not there is made.
    pub async fn open_or_make(choice: StoreChoice) -> Result<Self, Failure> {
        let (paths, location) = settings::store(choice)?;
        Self::at(paths, location).await
    }

    async fn at(paths: Paths, location: StoreLocation) -> Result<Self, Failure> {
        let opened = russet_agent::open_store(&paths, &location).await?;
        Ok(Self { store: opened.store.clone(), paths, _opened: opened })
    }

    /// An allocator over the store, as peers' tools have it: it remembers nothing.
    pub fn allocator(&self) -> Allocator {
        Allocator::new(self.store.clone(), Rc::new(SystemClock))
    }
}
