//! Opens the store that the settings name, and serves it to other processes of this machine if this
//! process owns it.

mod brief;

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use russet_linux::file::private_dir;
use russet_listener::Admission;
use russet_store::{Access, Cause, Locked, Remote, Store, StoreError, open_or_connect};
use russet_store_etcd::{Etcd, Settings as EtcdSettings};

use crate::config::{Config, Paths, StoreLocation};

pub use brief::BriefStore;

/// A store, with what has to run so that other processes can use it.
pub struct Opened {
    pub store: Rc<dyn Store>,
    /// Serves the store on its socket; none if another process owns it.
    pub service: Option<Service>,
    /// Closes the store's file when it is dropped.
    _owner: Option<Rc<Locked>>,
}

/// Runs until it is dropped.
pub type Service = Pin<Box<dyn Future<Output = ()>>>;

/// How long to wait for a process that has the store's file open; plugins have it open for one
/// request.
const OWNER_TIMEOUT: Duration = Duration::from_secs(30);

// === impl Opened ===

impl Opened {
    fn remote(remote: Remote) -> Self {
        Self { store: Rc::new(remote), service: None, _owner: None }
    }

    /// Connects at first use, so an etcd that is away is an error of the first request, not of the
    /// start.
    fn etcd(settings: &EtcdSettings) -> Result<Self, StoreError> {
        let etcd = Etcd::connect(settings.clone()).map_err(|error| {
            let operation = format!("use etcd at {}", settings.endpoints.join(","));
            StoreError::Invalid { operation, reason: error.to_string() }
        })?;
        Ok(Self { store: Rc::new(etcd), service: None, _owner: None })
    }

    fn owned(locked: Locked) -> Self {
        Self { store: Rc::new(locked.store().clone()), service: None, _owner: Some(Rc::new(locked)) }
    }
}

/// The store for a plugin without an agent, or for a command that reads it, whichever process owns
/// it.
pub async fn open(paths: &Paths, location: &StoreLocation) -> Result<Opened, StoreError> {
    match location {
        StoreLocation::Unix(path) => Ok(Opened::remote(Remote::connect(path))),
        StoreLocation::Embedded => open_local(paths).await,
        StoreLocation::Etcd(settings) => Opened::etcd(settings),
    }
}

/// The store of an agent, which serves it if it is the embedded one.
pub async fn open_and_serve(config: &Config, admission: &Arc<Admission>) -> Result<Opened, StoreError> {
    match &config.store {
        StoreLocation::Unix(path) => Ok(Opened::remote(Remote::connect(path))),
        StoreLocation::Embedded => own_with(&config.paths, Arc::clone(admission)).await,
        StoreLocation::Etcd(settings) => Opened::etcd(settings),
    }
}

/// The embedded store of this machine, whichever process owns it.
async fn open_local(paths: &Paths) -> Result<Opened, StoreError> {
    match open_or_connect(&store_dir(paths)?, OWNER_TIMEOUT).await? {
        // Not the client in `Access`, which would wait for each answer as long as for the lock.
        Access::Remote(_) => Ok(Opened::remote(Remote::connect(paths.store_socket()))),
        Access::Locked(locked) => Ok(Opened::owned(locked)),
    }
}

/// Owns the embedded store of this machine; the caller has to run the service.
pub async fn own(paths: &Paths) -> Result<Opened, StoreError> {
    own_with(paths, Admission::new(russet_store::LISTENER)).await
}

async fn own_with(paths: &Paths, admission: Arc<Admission>) -> Result<Opened, StoreError> {
    let dir = store_dir(paths)?;
    let mut opened = Opened::owned(Locked::acquire(&dir, OWNER_TIMEOUT).await?);
    if let Some(owner) = opened._owner.clone() {
        let listener =
            russet_store::listen(&dir, &owner).map_err(|error| failed("make the store's socket", error))?;
        opened.service = Some(Box::pin(async move {
            let store = owner.store().clone();
            russet_store::serve_within(store, listener, admission, std::future::pending()).await;
        }));
    }
    Ok(opened)
}

fn store_dir(paths: &Paths) -> Result<PathBuf, StoreError> {
    let dir = paths.state_dir();
    private_dir(&dir).map_err(|error| failed(&format!("make {}", dir.display()), error))?;
    Ok(dir)
}

fn failed(operation: &str, error: std::io::Error) -> StoreError {
    StoreError::Unavailable { operation: operation.to_owned(), source: Cause::new(error) }
}
