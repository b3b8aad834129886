//! The datastores that requests of Calico's plugins name: each network configuration names its own,
//! independently of the agent's store.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use russet_addr::NodeName;
use russet_cni_spec::CniError;
use russet_ipam::Allocator;
use russet_model::{IpPool, Key, Prefix};
use russet_store::{BoxFuture, Store, StoreError};
use russet_store_etcd::Settings as EtcdSettings;
use russet_wiring::failure;

use crate::conf::{CalicoConf, DatastoreKind, KubernetesSettings};
use crate::ipam::HostLocks;
use crate::plugin::RecentChecks;
use crate::v1;

/// What those plugins of Calico need that do not touch the kernel. It depends neither on the
/// agent's store nor on its name. Clones share everything.
#[derive(Clone)]
pub struct CalicoHost {
    /// The directory below which default files lie: `/`, except in tests and demos.
    pub root: PathBuf,
    /// Opens the datastores that requests name.
    pub datastores: Rc<dyn Datastores>,
    locks: Rc<HostLocks>,
}

/// Opens datastores: the agent keeps some open, a plugin without an agent opens the one that it
/// needs.
pub trait Datastores {
    /// Opens the etcd v3 of these settings.
    fn open<'a>(&'a self, settings: &'a EtcdSettings) -> BoxFuture<'a, Result<Datastore, StoreError>>;

    /// Opens Calico's data in the Kubernetes API that these settings lead to.
    fn open_kubernetes<'a>(
        &'a self,
        settings: &'a KubernetesSettings,
    ) -> BoxFuture<'a, Result<Datastore, StoreError>>;

    /// Opens the data of Calico v1.11 behind the v2 API of the same etcd; `named` says that the
    /// configuration names v1 data explicitly. The error explains why they are not available and
    /// how to migrate them.
    fn open_v1<'a>(
        &'a self,
        settings: &'a EtcdSettings,
        named: bool,
    ) -> BoxFuture<'a, Result<Datastore, CniError>> {
        Box::pin(v1::datastore(settings, named))
    }

    /// Whether an etcd whose only v3 record is the cluster information is meant to hold v1 data.
    fn means_v1<'a>(&'a self, settings: &'a EtcdSettings) -> BoxFuture<'a, Result<bool, CniError>> {
        Box::pin(v1::means_v1(settings))
    }
}

/// A datastore with Calico's records, and the IPAM allocator over it. Clones share everything.
#[derive(Clone)]
pub struct Datastore {
    pub store: Rc<dyn Store>,
    pub allocator: Rc<Allocator>,
    /// Whether node names follow the rules of Calico v1.11, which reads no nodename file and keeps
    /// upper case.
    names_as_v1: bool,
    /// Results of checks by `calico` that stay valid for a moment.
    pub(crate) recent: Rc<RecentChecks>,
    /// Whether pools or handles of Calico v3 were found in it.
    seen_v3: Rc<Cell<bool>>,
    /// Whether a pool selects namespaces, and when that was looked up.
    selects_namespaces: Rc<Cell<Option<(Instant, bool)>>>,
}

/// How long a change of a pool's namespace selector may stay unnoticed; no watch covers it.
const POOLS_MAX_AGE: Duration = Duration::from_secs(1);

/// Always opens the same datastore.
#[cfg(test)]
pub(crate) struct Fixed(pub(crate) Datastore);

// === impl CalicoHost ===

impl CalicoHost {
    /// A host whose default files lie below `root`.
    pub fn new(root: impl Into<PathBuf>, datastores: Rc<dyn Datastores>) -> Self {
        Self { root: root.into(), datastores, locks: Rc::default() }
    }

    /// The locks that this process holds on the host.
    pub(crate) fn locks(&self) -> &HostLocks {
        &self.locks
    }

    /// Whether the etcd that a configuration names only by its address has records of v3. An etcd
    /// that does not answer may be an etcd 2.
    pub(crate) async fn has_v3(&self, conf: &CalicoConf) -> Result<bool, CniError> {
        match self.datastores.open(&conf.datastore.etcd_v3()?).await {
            Ok(datastore) => Ok(datastore.has_v3().await.unwrap_or(false)),
            Err(_) => Ok(false),
        }
    }

    /// Opens the datastore that a configuration names. If the configuration does not say that it
    /// means v3, the datastore must have records of v3: otherwise a configuration of v1.11 would
    /// read an empty v3 store where its v2 keys are full, and a DEL would miss addresses that are
    /// still held. A configuration of v1.11 gets a view of its v1 data, or an error that explains
    /// how to migrate them.
    pub(crate) async fn datastore(&self, conf: &CalicoConf) -> Result<Datastore, CniError> {
        if conf.datastore.kind == DatastoreKind::EtcdV2 {
            return self.datastores.open_v1(&conf.datastore.etcd.v1_settings()?, true).await;
        }
        let failed = |error| failure::store("the datastore could not be opened", &error, &error);
        if conf.datastore.kind == DatastoreKind::Kubernetes {
            return self.datastores.open_kubernetes(&conf.kubernetes).await.map_err(failed);
        }
        let settings = conf.datastore.etcd_v3()?;
        let opened = self.datastores.open(&settings).await;
        let datastore = opened.map_err(failed)?;
        // An etcd that does not answer may be an etcd 2, which has no v3 API; `open_v1` finds out.
        if conf.datastore.explicit || datastore.has_v3().await.unwrap_or(false) {
            return Ok(datastore);
        }
        // An agent may have written the cluster information before the v1 data were migrated.
        if datastore.has_information().await.unwrap_or(false) && !self.datastores.means_v1(&settings).await? {
            return Ok(datastore);
        }
        self.datastores.open_v1(&settings, false).await
    }
}

// === impl Datastore ===

impl Datastore {
    pub fn new(store: Rc<dyn Store>, allocator: Allocator) -> Self {
        Self::with_allocator(store, Rc::new(allocator))
    }

    /// Another handle for a store that has an allocator already.
    pub fn with_allocator(store: Rc<dyn Store>, allocator: Rc<Allocator>) -> Self {
        Self {
            store,
            allocator,
            names_as_v1: false,
            recent: Rc::default(),
            seen_v3: Rc::default(),
            selects_namespaces: Rc::default(),
        }
    }

    /// The same, with data of Calico v1.11.
    pub(crate) fn with_v1_names(self) -> Self {
        Self { names_as_v1: true, ..self }
    }

    /// The node's name in this datastore; its blocks are found under that name alone (calico-cni.md
    /// section 1.6).
    pub(crate) async fn node_name(&self, conf: &CalicoConf, root: &Path) -> Result<NodeName, CniError> {
        if self.names_as_v1 {
            return conf.v1_node_name();
        }
        conf.node_choice(root)?.resolve(&*self.store).await
    }

    /// Whether only registered nodes may allocate addresses. Calico v1.11 did not require a record.
    pub(crate) fn registers_nodes(&self) -> bool {
        !self.names_as_v1
    }

    /// Fails if there is no record of the node.
    pub(crate) async fn require_node(&self, node: &NodeName) -> Result<(), CniError> {
        if !self.registers_nodes() {
            return Ok(());
        }
        let failed = |error| failure::store("the node's record could not be read", &error, &error);
        match self.store.get(&Key::node(node)).await.map_err(failed)? {
            Some(_) => Ok(()),
            None => Err(failure::unknown_node(node)),
        }
    }

    /// Whether any enabled pool is restricted to certain namespaces.
    pub(crate) async fn selects_namespaces(&self) -> Result<bool, CniError> {
        if let Some((at, known)) = self.selects_namespaces.get()
            && at.elapsed() < POOLS_MAX_AGE
        {
            return Ok(known);
        }
        let pools = self.pools().await?;
        let selects = |pool: &IpPool| {
            pool.is_enabled()
                && pool.spec.namespaces().map_or(true, |selector| selector.to_string() != "all()")
        };
        let found = pools.iter().any(selects);
        self.selects_namespaces.set(Some((Instant::now(), found)));
        Ok(found)
    }

    pub(crate) async fn pools(&self) -> Result<Vec<IpPool>, CniError> {
        self.allocator.pools().await.map_err(|error| failure::ipam("the pools could not be read", error))
    }

    /// Whether the cluster information exists. By itself it does not mean that v3 data are in use.
    async fn has_information(&self) -> Result<bool, StoreError> {
        Ok(self.store.get(&Key::cluster_information()).await?.is_some())
    }

    async fn has_v3(&self) -> Result<bool, CniError> {
        if self.seen_v3.get() {
            return Ok(true);
        }
        let failed = |error| failure::store("the datastore could not be read", &error, &error);
        let mut seen_v3 = false;
        for prefix in [Prefix::pools(), Prefix::handles()] {
            seen_v3 = seen_v3 || !self.store.list(&prefix).await.map_err(failed)?.records.is_empty();
        }
        self.seen_v3.set(seen_v3);
        Ok(seen_v3)
    }
}

#[cfg(test)]
impl Datastores for Fixed {
    fn open<'a>(&'a self, _settings: &'a EtcdSettings) -> BoxFuture<'a, Result<Datastore, StoreError>> {
        Box::pin(std::future::ready(Ok(self.0.clone())))
    }

    fn open_kubernetes<'a>(
        &'a self,
        _settings: &'a KubernetesSettings,
    ) -> BoxFuture<'a, Result<Datastore, StoreError>> {
        Box::pin(std::future::ready(Ok(self.0.clone())))
    }

    fn open_v1<'a>(
        &'a self,
        settings: &'a EtcdSettings,
        named: bool,
    ) -> BoxFuture<'a, Result<Datastore, CniError>> {
        let found = if named {
            Ok(self.0.clone().with_v1_names())
        } else {
            Err(v1::nothing_found(&settings.endpoints.join(",")))
        };
        Box::pin(std::future::ready(found))
    }

    fn means_v1<'a>(&'a self, _settings: &'a EtcdSettings) -> BoxFuture<'a, Result<bool, CniError>> {
        Box::pin(std::future::ready(Ok(true)))
    }
}
