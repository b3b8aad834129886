//! The store that a verb works on, for as long as the verb takes. Used by every verb that looks at or changes a datastore.

use std::rc::Rc;
use std::sync::OnceLock;

use russet_agent::{Opened, Paths, StoreLocation};
use russet_ipam::{Allocator, SystemClock};
use russet_store::{Store, StoreError};

use super::Failure;
use crate::cli::store::StoreChoice;
use crate::output;
use crate::settings::{self, Chosen};

/// An open store.
pub struct Place {
    /// The store.
    pub store: Rc<dyn Store>,
    /// The node's files.
    pub paths: Paths,
    /// Holds the store's lock where no other process owns it.
    _opened: Opened,
}

/// There is no store where one was to be looked at.
#[derive(Debug, thiserror::Error)]
#[error("there is no store at {0}; is --root right, and --store?")]
struct NoStore(String);

/// The store cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("open the store: {0}")]
struct NotOpened(#[source] StoreError);

/// The store of this process's verb; a verb has one. Errors of the verb are followed by it.
static USED: OnceLock<String> = OnceLock::new();

/// The store that this process's verb works on, and what says so; none before it is known.
pub fn used() -> Option<&'static str> {
    USED.get().map(String::as_str)
}

/// Finds out which store is meant; from then on errors name it.
pub fn choose(choice: StoreChoice) -> Result<Chosen, Failure> {
    let verbose = choice.verbose;
    let chosen = settings::store(choice)?;
    announce(&chosen, verbose);
    Ok(chosen)
}

/// Makes errors name this store; says at once which it is where that is asked for.
pub fn announce(chosen: &Chosen, verbose: bool) {
    let _ = USED.set(chosen.why.clone());
    if verbose {
        output::progress(&format!("store: {}", chosen.why));
    }
}

// === impl Place ===

impl Place {
    /// Opens what the arguments and the node's settings name. A verb that only looks must not leave an empty store behind: one that is not there is an
    /// error.
    pub async fn open(choice: StoreChoice) -> Result<Self, Failure> {
        let chosen = choose(choice)?;
        Self::require(&chosen)?;
        Self::at(chosen).await
    }

    /// An error if opening this store would make it.
    pub fn require(chosen: &Chosen) -> Result<(), Failure> {
        if chosen.location == StoreLocation::Embedded && !chosen.paths.has_embedded_store() {
            return Err(NoStore(chosen.paths.state_dir().display().to_string()).into());
        }
        Ok(())
    }

    /// The same for a verb that writes: an embedded store that is not there is made.
    pub async fn open_or_make(choice: StoreChoice) -> Result<Self, Failure> {
        Self::at(choose(choice)?).await
    }

    async fn at(chosen: Chosen) -> Result<Self, Failure> {
        let opened = russet_agent::open_store(&chosen.paths, &chosen.location).await.map_err(NotOpened)?;
        Ok(Self { store: opened.store.clone(), paths: chosen.paths, _opened: opened })
    }

    /// An allocator over the store, as peers' tools have it: it remembers nothing.
    pub fn allocator(&self) -> Allocator {
        Allocator::new(self.store.clone(), Rc::new(SystemClock))
    }
}
