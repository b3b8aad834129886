//! Opens the store that the settings name, and serves it to other processes of this machine if this
//! process owns it.

mod brief;
mod pod_cidr;

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use russet_http::listener::Admission;
use russet_kube::Source;
use russet_linux::file::private_dir;
use russet_store::{Access, Cause, Locked, Remote, Store, StoreError, open_or_connect};
use russet_store_etcd::{Etcd, Settings as EtcdSettings};
use russet_store_kube::{Group, KubeStore, Location as KubeLocation, Settings as KubeSettings};

use crate::config::{Config, IpamMode, Paths, StoreLocation};

pub use brief::BriefStore;
use pod_cidr::PodCidrStore;

/// A store, with what has to run so that other processes can use it.
pub struct Opened {
    pub store: Rc<dyn Store>,
    /// The same store, if it is in the Kubernetes API.
    pub kubernetes: Option<KubeStore>,
    /// Serves the store on its socket; none if another process owns it.
    pub service: Option<Service>,
    /// Closes the store's file when it is dropped.
    _owner: Option<Rc<Locked>>,
}

/// Runs until it is dropped.
pub type Service = Pin<Box<dyn Future<Output = ()>>>;

/// The variables by which Calico's programs set the group of its resources and the prefixes of
/// interfaces (kubernetes.md sections 1.1 and 1.8).
const API_GROUP_VARIABLE: &str = "CALICO_API_GROUP";
const INTERFACE_PREFIX_VARIABLE: &str = "FELIX_INTERFACEPREFIX";
/// How long to wait for a process that has the store's file open; plugins have it open for one
/// request.
const OWNER_TIMEOUT: Duration = Duration::from_secs(30);

// === impl Opened ===

impl Opened {
    fn remote(remote: Remote) -> Self {
        Self::over(Rc::new(remote))
    }

    /// A store that no other process can use through this one.
    pub fn over(store: Rc<dyn Store>) -> Self {
        Self { store, kubernetes: None, service: None, _owner: None }
    }

    /// Connects at first use, so an etcd that is away is an error of the first request, not of the
    /// start.
    fn etcd(settings: &EtcdSettings) -> Result<Self, StoreError> {
        let etcd = Etcd::connect(settings.clone()).map_err(|error| {
            let operation = format!("use etcd at {}", settings.endpoints.join(","));
            StoreError::Invalid { operation, reason: error.to_string() }
        })?;
        Ok(Self::over(Rc::new(etcd)))
    }

    fn kubernetes(location: &KubeLocation) -> Result<Self, StoreError> {
        let refused = |reason: String| StoreError::Invalid { operation: format!("use {location}"), reason };
        let given = std::env::var(API_GROUP_VARIABLE).ok();
        let settings = kubernetes_settings(location.source(), given);
        let store = KubeStore::connect(settings).map_err(|error| refused(error.to_string()))?;
        if store.plaintext_credentials() {
            return Err(refused("its credentials would go to another machine in clear text".to_owned()));
        }
        Ok(Self { kubernetes: Some(store.clone()), ..Self::over(Rc::new(store)) })
    }

    fn owned(locked: Locked) -> Self {
        let store = Rc::new(locked.store().clone());
        Self { _owner: Some(Rc::new(locked)), ..Self::over(store) }
    }
}

/// The store for a plugin without an agent, or for a command that reads it, whichever process owns
/// it.
pub async fn open(paths: &Paths, location: &StoreLocation) -> Result<Opened, StoreError> {
    match location {
        StoreLocation::Unix(path) => Ok(Opened::remote(Remote::connect(path))),
        StoreLocation::Embedded => open_local(paths).await,
        StoreLocation::Etcd(settings) => Opened::etcd(settings),
        StoreLocation::Kubernetes(location) => Opened::kubernetes(location),
    }
}

/// The store of an agent, which serves it if it is the embedded one.
pub async fn open_and_serve(config: &Config, admission: &Arc<Admission>) -> Result<Opened, StoreError> {
    match &config.store {
        StoreLocation::Unix(path) => Ok(Opened::remote(Remote::connect(path))),
        StoreLocation::Embedded => own_with(&config.paths, Arc::clone(admission)).await,
        StoreLocation::Etcd(settings) => Opened::etcd(settings),
        StoreLocation::Kubernetes(location) if config.ipam == IpamMode::Node => {
            let local = own_with(&config.paths, Arc::clone(admission)).await?;
            with_pod_cidrs(config, location, local)
        }
        StoreLocation::Kubernetes(location) => Opened::kubernetes(location),
    }
}

/// The store of a node that gives its pods addresses of its podCIDRs, over this machine's own.
pub fn with_pod_cidrs(config: &Config, location: &KubeLocation, local: Opened) -> Result<Opened, StoreError> {
    let nodes = Opened::kubernetes(location)?;
    let (name, pools) = (config.node_name.clone(), config.pools.clone());
    let store = PodCidrStore::new(name, pools, nodes.store, local.store);
    Ok(Opened { store: Rc::new(store), kubernetes: nodes.kubernetes, ..local })
}

/// The settings of a store in the Kubernetes API. `group` is the group of Calico's resources as Calico's
/// programs take it: v1 unless it is exactly that of v3, and found out where it is not set
/// (kubernetes.md section 1.1).
pub(crate) fn kubernetes_settings(source: Source, group: Option<String>) -> KubeSettings {
    let mut settings = KubeSettings::new(source);
    settings.group = group.as_deref().and_then(Group::configured);
    if let Ok(prefixes) = std::env::var(INTERFACE_PREFIX_VARIABLE)
        && let Some(first) = prefixes.split(',').next().filter(|prefix| !prefix.is_empty())
    {
        first.clone_into(&mut settings.interface_prefix);
    }
    settings
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_of_a_kubeconfig_does_not_go_to_another_machine_over_http() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let location = KubeLocation::Kubeconfig(file.path().to_owned());
        let open = |server: &str, user: &str| {
            let text = format!(
                r#"{{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{{"name":"c","cluster":{{"server":"{server}"}}}}],
                "contexts":[{{"name":"c","context":{{"cluster":"c","user":"u"}}}}],"users":[{{"name":"u","user":{user}}}]}}"#
            );
            std::fs::write(file.path(), text).unwrap();
            Opened::kubernetes(&location).map(drop)
        };
        let token = r#"{"token":"opensesame"}"#;
        let refused = open("http://10.0.0.1:8080", token).unwrap_err().to_string();
        assert!(refused.contains("in clear text") && !refused.contains("opensesame"), "{refused}");
        open("http://127.0.0.1:8080", token).unwrap();
        open("https://10.0.0.1:6443", token).unwrap();
        open("http://10.0.0.1:8080", "{}").unwrap();
    }
}
