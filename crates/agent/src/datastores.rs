//! The datastores that requests of Calico's plugins name (calico-cni.md section 1.7): the agent's
//! own store if it is the same one, otherwise a connection that is kept for later requests. A
//! plugin without an agent opens one for its only request.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use russet_ipam::Allocator;
use russet_kube::Client;
use russet_plugins::{Datastore, Datastores, KubernetesSettings, Pause, SystemClock};
use russet_store::{BoxFuture, Store, StoreError};
use russet_store_etcd::{Etcd, Settings as EtcdSettings};
use russet_store_kube::{KubeStore, Location as KubeLocation};

use crate::stores;

pub struct OpenDatastores {
    /// The agent's own, if Calico's plugins can name it.
    own: Option<OwnDatastore>,
    /// Other datastores, the last used first.
    others: RefCell<VecDeque<(Named, Datastore)>>,
    /// Whether connections cache what they read. A process that serves one request does not need
    /// that.
    remembers: bool,
}

/// How a configuration names a datastore.
#[derive(Debug, Clone, PartialEq)]
enum Named {
    Etcd(EtcdSettings),
    Kubernetes(KubernetesSettings),
}

/// The store of the agent.
pub enum OwnDatastore {
    Etcd(EtcdSettings, Datastore),
    Kubernetes(IsOwn, Datastore),
}

/// Whether settings lead to the cluster of the agent.
pub type IsOwn = Rc<dyn Fn(&KubernetesSettings) -> bool>;

/// Limit of open datastores. A node whose networks name more than this is misconfigured, and must
/// not open ever more connections.
const OTHERS_MAX: usize = 4;
/// How long pools, reservations and labels of a datastore that is not the agent's own are cached.
/// The agent does not watch it, so it sees an edit only when it reads again.
const UNWATCHED_MAX_AGE: Duration = Duration::from_secs(1);

// === impl OpenDatastores ===

impl OpenDatastores {
    /// The datastores of an agent.
    pub fn of_agent(own: Option<OwnDatastore>) -> Self {
        Self { own, others: RefCell::default(), remembers: true }
    }

    /// The datastores of one request without an agent.
    pub fn of_request() -> Self {
        Self { own: None, others: RefCell::default(), remembers: false }
    }

    /// An open datastore; it becomes the last used one.
    fn known(&self, named: &Named) -> Option<Datastore> {
        match (&self.own, named) {
            (Some(OwnDatastore::Etcd(known, own)), Named::Etcd(settings)) if same(known, settings) => {
                return Some(own.clone());
            }
            (Some(OwnDatastore::Kubernetes(is_own, own)), Named::Kubernetes(settings))
                if is_own(settings) =>
            {
                return Some(own.clone());
            }
            _ => {}
        }
        let is_it = |known: &Named| match (known, named) {
            (Named::Etcd(known), Named::Etcd(settings)) => same(known, settings),
            (known, named) => known == named,
        };
        let mut others = self.others.borrow_mut();
        let found = others.iter().position(|(known, _)| is_it(known))?;
        let entry = others.remove(found)?;
        let datastore = entry.1.clone();
        others.push_front(entry);
        Some(datastore)
    }

    fn over(&self, store: Rc<dyn Store>) -> Datastore {
        let allocator = Allocator::new(Rc::clone(&store), Rc::new(SystemClock)).with_backoff(Rc::new(Pause));
        let allocator = if self.remembers { allocator.with_cache(UNWATCHED_MAX_AGE) } else { allocator };
        Datastore::new(store, allocator)
    }

    fn opened(
        &self,
        named: Named,
        connect: impl FnOnce() -> Result<Rc<dyn Store>, StoreError>,
    ) -> Result<Datastore, StoreError> {
        if let Some(datastore) = self.known(&named) {
            return Ok(datastore);
        }
        let datastore = self.over(connect()?);
        let mut others = self.others.borrow_mut();
        others.push_front((named, datastore.clone()));
        others.truncate(OTHERS_MAX);
        Ok(datastore)
    }
}

impl Datastores for OpenDatastores {
    fn open<'a>(&'a self, settings: &'a EtcdSettings) -> BoxFuture<'a, Result<Datastore, StoreError>> {
        let opened = self.opened(Named::Etcd(settings.clone()), || connect_etcd(settings));
        Box::pin(std::future::ready(opened))
    }

    fn open_kubernetes<'a>(
        &'a self,
        settings: &'a KubernetesSettings,
    ) -> BoxFuture<'a, Result<Datastore, StoreError>> {
        let opened = self.opened(Named::Kubernetes(settings.clone()), || connect_kubernetes(settings));
        Box::pin(std::future::ready(opened))
    }
}

fn connect_etcd(settings: &EtcdSettings) -> Result<Rc<dyn Store>, StoreError> {
    let etcd = Etcd::connect(settings.clone()).map_err(|error| {
        let operation = format!("use etcd at {}", settings.endpoints.join(","));
        StoreError::Invalid { operation, reason: error.to_string() }
    })?;
    Ok(Rc::new(etcd))
}

fn connect_kubernetes(settings: &KubernetesSettings) -> Result<Rc<dyn Store>, StoreError> {
    let refused = |reason: String| StoreError::Invalid {
        operation: "use the Kubernetes API that `kubernetes` and `policy` of the configuration name"
            .to_owned(),
        reason,
    };
    let given = settings.api_group.clone();
    let store_settings = stores::kubernetes_settings(settings.source(), given);
    let store = KubeStore::connect(store_settings).map_err(|error| refused(error.to_string()))?;
    if store.plaintext_credentials() && !settings.allow_plaintext {
        let details = "use https, or set allow_plaintext_credentials to true in the network configuration";
        return Err(refused(format!("its token would go to {} in clear text: {details}", store.server())));
    }
    Ok(Rc::new(store))
}

/// Whether settings lead to the cluster of an agent: they name its kubeconfig, or the one that it keeps
/// for Calico's plugins, or the same server.
pub fn leads_to(location: &KubeLocation, calico_kubeconfig: Option<PathBuf>) -> IsOwn {
    let own = match location {
        KubeLocation::Kubeconfig(path) => Some(path.clone()),
        KubeLocation::InCluster => None,
    };
    let source = location.source();
    let last: RefCell<Option<(KubernetesSettings, bool)>> = RefCell::default();
    Rc::new(move |settings| {
        let named = settings.kubeconfig.as_ref().filter(|_| settings.api_root.is_none());
        if named.is_some_and(|path| [&own, &calico_kubeconfig].into_iter().flatten().any(|own| own == path)) {
            return true;
        }
        if let Some((_, known)) = last.borrow().as_ref().filter(|(known, _)| known == settings) {
            return *known;
        }
        let server = |source| Client::new(source).map(|client| client.server());
        let is_same = match (server(settings.source()), server(source.clone())) {
            (Ok(one), Ok(other)) => one == other,
            _ => false,
        };
        *last.borrow_mut() = Some((settings.clone(), is_same));
        is_same
    })
}

/// Whether two settings name the same cluster and user. Timeouts do not matter.
fn same(one: &EtcdSettings, other: &EtcdSettings) -> bool {
    let sorted = |settings: &EtcdSettings| {
        let mut endpoints = settings.endpoints.clone();
        endpoints.sort();
        EtcdSettings { endpoints, deadline: one.deadline, ..settings.clone() }
    };
    sorted(one) == sorted(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(endpoints: &str) -> EtcdSettings {
        EtcdSettings::for_endpoints(endpoints).unwrap()
    }

    fn open(datastores: &OpenDatastores, endpoints: &str) -> Datastore {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { datastores.open(&settings(endpoints)).await.unwrap() })
    }

    fn is_same(one: &Datastore, other: &Datastore) -> bool {
        Rc::ptr_eq(&one.allocator, &other.allocator)
    }

    #[test]
    fn the_agents_own_etcd_is_used_under_any_order_of_its_members() {
        let own = open(&OpenDatastores::of_request(), "http://127.0.0.1:1,http://127.0.0.1:2");
        let own_settings = settings("http://127.0.0.1:1,http://127.0.0.1:2");
        let datastores = OpenDatastores::of_agent(Some(OwnDatastore::Etcd(own_settings, own.clone())));
        assert!(is_same(&open(&datastores, "http://127.0.0.1:2,127.0.0.1:1"), &own));
        assert!(!is_same(&open(&datastores, "http://127.0.0.1:1"), &own));
        let user = EtcdSettings { username: Some("calico".into()), ..settings("http://127.0.0.1:1") };
        assert!(!same(&user, &settings("http://127.0.0.1:1")), "another user sees other things");
    }

    #[test]
    fn connections_are_kept_but_not_without_end() {
        let datastores = OpenDatastores::of_agent(None);
        let first = open(&datastores, "http://127.0.0.1:1");
        for port in 2..=OTHERS_MAX {
            open(&datastores, &format!("http://127.0.0.1:{port}"));
        }
        assert!(is_same(&open(&datastores, "http://127.0.0.1:1"), &first));
        for port in 10..20 {
            open(&datastores, &format!("http://127.0.0.1:{port}"));
        }
        assert_eq!(datastores.others.borrow().len(), OTHERS_MAX);
        assert!(!is_same(&open(&datastores, "http://127.0.0.1:1"), &first));
    }
}
