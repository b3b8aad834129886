//! The datastores that requests of Calico's plugins name (calico-cni.md section 1.7): the agent's
//! own store if it is the same one, otherwise a connection that is kept for later requests. A
//! plugin without an agent opens one for its only request.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use russet_ipam::Allocator;
use russet_plugins::{Datastore, Datastores, Pause, SystemClock};
use russet_store::{BoxFuture, Store, StoreError};
use russet_store_etcd::{Etcd, Settings as EtcdSettings};

pub struct EtcdDatastores {
    /// The agent's own, if it is an etcd.
    own: Option<(EtcdSettings, Datastore)>,
    /// Other datastores, the last used first.
    others: RefCell<VecDeque<(EtcdSettings, Datastore)>>,
    /// Whether connections cache what they read. A process that serves one request does not need
    /// that.
    remembers: bool,
}

/// Limit of open datastores. A node whose networks name more than this is misconfigured, and must
/// not open ever more connections.
const OTHERS_MAX: usize = 4;
/// How long pools, reservations and labels of a datastore that is not the agent's own are cached.
/// The agent does not watch it, so it sees an edit only when it reads again.
const UNWATCHED_MAX_AGE: Duration = Duration::from_secs(1);

// === impl EtcdDatastores ===

impl EtcdDatastores {
    /// The datastores of an agent; `own` is its store if that is an etcd.
    pub fn of_agent(own: Option<(EtcdSettings, Datastore)>) -> Self {
        Self { own, others: RefCell::default(), remembers: true }
    }

    /// The datastores of one request without an agent.
    pub fn of_request() -> Self {
        Self { own: None, others: RefCell::default(), remembers: false }
    }

    fn known(&self, settings: &EtcdSettings) -> Option<Datastore> {
        if let Some((_, own)) = self.own.as_ref().filter(|(known, _)| same(known, settings)) {
            return Some(own.clone());
        }
        let mut others = self.others.borrow_mut();
        let found = others.iter().position(|(known, _)| same(known, settings))?;
        let entry = others.remove(found)?;
        let datastore = entry.1.clone();
        others.push_front(entry);
        Some(datastore)
    }

    fn connect(&self, settings: &EtcdSettings) -> Result<Datastore, StoreError> {
        let etcd = Etcd::connect(settings.clone()).map_err(|error| {
            let operation = format!("use etcd at {}", settings.endpoints.join(","));
            StoreError::Invalid { operation, reason: error.to_string() }
        })?;
        let store: Rc<dyn Store> = Rc::new(etcd);
        let allocator = Allocator::new(Rc::clone(&store), Rc::new(SystemClock)).with_backoff(Rc::new(Pause));
        let allocator = if self.remembers { allocator.with_cache(UNWATCHED_MAX_AGE) } else { allocator };
        Ok(Datastore::new(store, allocator))
    }
}

impl Datastores for EtcdDatastores {
    fn open<'a>(&'a self, settings: &'a EtcdSettings) -> BoxFuture<'a, Result<Datastore, StoreError>> {
        Box::pin(async move {
            if let Some(datastore) = self.known(settings) {
                return Ok(datastore);
            }
            let datastore = self.connect(settings)?;
            let mut others = self.others.borrow_mut();
            others.push_front((settings.clone(), datastore.clone()));
            others.truncate(OTHERS_MAX);
            Ok(datastore)
        })
    }
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

    fn open(datastores: &EtcdDatastores, endpoints: &str) -> Datastore {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { datastores.open(&settings(endpoints)).await.unwrap() })
    }

    fn is_same(one: &Datastore, other: &Datastore) -> bool {
        Rc::ptr_eq(&one.allocator, &other.allocator)
    }

    #[test]
    fn the_agents_own_etcd_is_used_under_any_order_of_its_members() {
        let own = open(&EtcdDatastores::of_request(), "http://127.0.0.1:1,http://127.0.0.1:2");
        let own_settings = settings("http://127.0.0.1:1,http://127.0.0.1:2");
        let datastores = EtcdDatastores::of_agent(Some((own_settings, own.clone())));
        assert!(is_same(&open(&datastores, "http://127.0.0.1:2,127.0.0.1:1"), &own));
        assert!(!is_same(&open(&datastores, "http://127.0.0.1:1"), &own));
        let user = EtcdSettings { username: Some("calico".into()), ..settings("http://127.0.0.1:1") };
        assert!(!same(&user, &settings("http://127.0.0.1:1")), "another user sees other things");
    }

    #[test]
    fn connections_are_kept_but_not_without_end() {
        let datastores = EtcdDatastores::of_agent(None);
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
