//! The datastores that requests of Calico's plugins name: each network says for itself where its addresses are, whatever the agent's store is.

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

use crate::calico::Recent;
use crate::calico_conf::{CalicoConf, DatastoreKind};
use crate::calico_ipam::HostLocks;
use crate::calico_v1;
use crate::failure;

/// What plugins of Calico's work with that touch no kernel: they need neither the agent's store nor its name. Clones share everything.
#[derive(Clone)]
pub struct CalicoHost {
    /// Below which default files lie: `/`, except in tests and demos.
    pub root: PathBuf,
    /// Opens what requests name.
    pub datastores: Rc<dyn Datastores>,
    locks: Rc<HostLocks>,
}

/// Opens datastores: the agent keeps some open, a plugin without an agent opens the one it needs.
pub trait Datastores {
    /// The etcd v3 of these settings.
    fn open<'a>(&'a self, settings: &'a EtcdSettings) -> BoxFuture<'a, Result<Datastore, StoreError>>;

    /// The data of Calico v1.11 behind the v2 API of the same etcd, `named` when the configuration says that they are meant; or why they
    /// cannot be had, and how to carry them over.
    fn open_v1<'a>(
        &'a self,
        settings: &'a EtcdSettings,
        named: bool,
    ) -> BoxFuture<'a, Result<Datastore, CniError>> {
        Box::pin(calico_v1::datastore(settings, named))
    }

    /// Whether an etcd that says no more of v3 than the cluster's information means data of v1.
    fn means_v1<'a>(&'a self, settings: &'a EtcdSettings) -> BoxFuture<'a, Result<bool, CniError>> {
        Box::pin(calico_v1::means_v1(settings))
    }
}

/// A datastore with Calico's records, and the allocator over it. Clones share everything.
#[derive(Clone)]
pub struct Datastore {
    /// Its records.
    pub store: Rc<dyn Store>,
    /// Its addresses.
    pub allocator: Rc<Allocator>,
    /// Which rules name its nodes: those of Calico v1.11 know no file and keep upper case.
    names_as_v1: bool,
    /// What `calico` believes of it for a moment.
    pub(crate) recent: Rc<Recent>,
    /// Pools or handles of Calico's v3 were seen in it.
    seen: Rc<Cell<bool>>,
    /// Whether a pool selects namespaces, and when that was looked up.
    selects_namespaces: Rc<Cell<Option<(Instant, bool)>>>,
}

/// How long an edit of a pool's namespace selector may take to be seen; nothing watches for this look.
const POOLS_MAX_AGE: Duration = Duration::from_secs(1);

/// The same datastore whatever a request names.
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

    /// Whether the etcd that a configuration names by its address alone has records of v3. One that does not answer may be of etcd's v2.
    pub(crate) async fn has_v3(&self, conf: &CalicoConf) -> Result<bool, CniError> {
        match self.datastores.open(&conf.datastore.etcd_v3()?).await {
            Ok(datastore) => Ok(datastore.has_v3().await.unwrap_or(false)),
            Err(_) => Ok(false),
        }
    }

    /// The datastore that a configuration names. One that was not named as v3 must have records of v3: a configuration of v1.11 would otherwise
    /// read an empty store where its v2 keys are full, and a DEL would forget addresses that are still held. Those of v1.11 get a view of
    /// their v1 data, or an error that says how to carry these over.
    pub(crate) async fn datastore(&self, conf: &CalicoConf) -> Result<Datastore, CniError> {
        if conf.datastore.kind == DatastoreKind::EtcdV2 {
            return self.datastores.open_v1(&conf.datastore.etcd.v1_settings()?, true).await;
        }
        let settings = conf.datastore.etcd_v3()?;
        let opened = self.datastores.open(&settings).await;
        let failed = |error| failure::store("the datastore could not be opened", &error, &error);
        let datastore = opened.map_err(failed)?;
        // One that does not answer may be an etcd 2, which has no v3 API; who looks closer finds out.
        if conf.datastore.explicit || datastore.has_v3().await.unwrap_or(false) {
            return Ok(datastore);
        }
        // An agent may have written the information before the v1 data were carried over.
        if datastore.has_information().await.unwrap_or(false) && !self.datastores.means_v1(&settings).await? {
            return Ok(datastore);
        }
        self.datastores.open_v1(&settings, false).await
    }
}

// === impl Datastore ===

impl Datastore {
    /// A datastore and the allocator over it.
    pub fn new(store: Rc<dyn Store>, allocator: Allocator) -> Self {
        Self::of(store, Rc::new(allocator))
    }

    /// Another handle for a store whose allocator is there already.
    pub fn of(store: Rc<dyn Store>, allocator: Rc<Allocator>) -> Self {
        Self {
            store,
            allocator,
            names_as_v1: false,
            recent: Rc::default(),
            seen: Rc::default(),
            selects_namespaces: Rc::default(),
        }
    }

    /// The same, with the data of Calico v1.11.
    pub(crate) fn of_v1(self) -> Self {
        Self { names_as_v1: true, ..self }
    }

    /// What this node is called in it: its blocks are found under that name alone (calico-cni.md section 1.6).
    pub(crate) async fn node_name(&self, conf: &CalicoConf, root: &Path) -> Result<NodeName, CniError> {
        if self.names_as_v1 {
            return conf.v1_node_name();
        }
        conf.node_choice(root)?.resolve(&*self.store).await
    }

    /// Whether addresses are for nodes with a record. Calico v1.11 asked for none.
    pub(crate) fn registers_nodes(&self) -> bool {
        !self.names_as_v1
    }

    /// Refuses a name that no record of a node has.
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

    /// Whether any enabled pool is for certain namespaces only.
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

    /// All pools.
    pub(crate) async fn pools(&self) -> Result<Vec<IpPool>, CniError> {
        self.allocator.pools().await.map_err(|error| failure::ipam("the pools could not be read", error))
    }

    /// Whether there is the cluster's information, which alone does not say that v3's data are meant.
    async fn has_information(&self) -> Result<bool, StoreError> {
        Ok(self.store.get(&Key::cluster_information()).await?.is_some())
    }

    async fn has_v3(&self) -> Result<bool, CniError> {
        if self.seen.get() {
            return Ok(true);
        }
        let failed = |error| failure::store("the datastore could not be read", &error, &error);
        let mut seen = false;
        for prefix in [Prefix::pools(), Prefix::handles()] {
            seen = seen || !self.store.list(&prefix).await.map_err(failed)?.records.is_empty();
        }
        self.seen.set(seen);
        Ok(seen)
    }
}

#[cfg(test)]
impl Datastores for Fixed {
    fn open<'a>(&'a self, _settings: &'a EtcdSettings) -> BoxFuture<'a, Result<Datastore, StoreError>> {
        Box::pin(std::future::ready(Ok(self.0.clone())))
    }

    fn open_v1<'a>(
        &'a self,
        settings: &'a EtcdSettings,
        named: bool,
    ) -> BoxFuture<'a, Result<Datastore, CniError>> {
        let found = if named {
            Ok(self.0.clone().of_v1())
        } else {
            Err(calico_v1::nothing_found(&settings.endpoints.join(",")))
        };
        Box::pin(std::future::ready(found))
    }

    fn means_v1<'a>(&'a self, _settings: &'a EtcdSettings) -> BoxFuture<'a, Result<bool, CniError>> {
        Box::pin(std::future::ready(Ok(true)))
    }
}
