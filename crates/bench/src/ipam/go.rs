//! The order of requests of Go's `calico-ipam` plugin for an ordinary ADD and DEL on etcd: the simulator's model of it
//! (`russet_sim::go`) on real connections, without faults.
//!
//! It is not the Go program. In Go's favour: no process is started, blocks are decoded by our code,
//! the host lock is a mutex of this process and not an flock(2), and the Namespace that 3.31 reads
//! from Kubernetes is not read. The main plugin's requests around it are in `plugin`.

mod plugin;

use std::net::IpAddr;
use std::rc::Rc;
use std::time::SystemTime;

use russet_addr::NodeName;
use russet_model::HandleId;
use russet_sim::go::{self as model, Environment, GoError, Version};
use russet_store::{BoxFuture, Store};
use russet_store_etcd::{Etcd, Settings};
use tokio::sync::Mutex;

use crate::Result;
use crate::ipam::burst::{Caller, Pod};
use crate::ipam::counted::{Counted, Counts};
use crate::ipam::stage::{GO_NODE, Place};
pub use plugin::Calico;

/// The differences between the variants.
#[derive(Clone, Copy)]
pub struct Manner {
    /// Each request has a connection of its own, as each process has.
    connects: bool,
    /// The host lock is taken, as since 3.18 (calico-ipam.md section 4.4).
    locks: bool,
}

/// One process, or one after the other.
pub struct Go {
    reach: Reach,
    node: NodeName,
    lock: Option<Rc<Mutex<()>>>,
}

enum Reach {
    Kept(Rc<dyn Store>),
    Anew { settings: Settings, counts: Rc<Counts> },
}

/// The system's clock; nothing is logged.
struct System;

/// The behaviour of this release is replayed.
const VERSION: Version = Version::V332;

/// The node whose blocks it uses.
pub fn node() -> Result<NodeName> {
    Ok(GO_NODE.parse()?)
}

// === impl Manner ===

impl Manner {
    /// By the name of the implementation.
    pub fn named(name: &str) -> Self {
        Self { connects: name.ends_with("-connect"), locks: !name.ends_with("-unlocked") }
    }
}

// === impl Go ===

impl Go {
    /// As many processes of one host; each has its own connection, all have the same lock.
    pub fn callers(
        place: &Place,
        counts: &Rc<Counts>,
        manner: Manner,
        count: usize,
    ) -> Result<Vec<Rc<dyn Caller>>> {
        let all = Self::processes(&place.settings()?, counts, manner, count)?;
        Ok(all.into_iter().map(|one| Rc::new(one) as Rc<dyn Caller>).collect())
    }

    fn processes(
        settings: &Settings,
        counts: &Rc<Counts>,
        manner: Manner,
        count: usize,
    ) -> Result<Vec<Self>> {
        let lock = manner.locks.then(|| Rc::new(Mutex::new(())));
        let process = || {
            let settings = settings.clone();
            let reach = match manner.connects {
                true => Reach::Anew { settings, counts: Rc::clone(counts) },
                false => Reach::Kept(connect(settings, counts)?),
            };
            Ok(Self { reach, node: node()?, lock: lock.clone() })
        };
        (0..count).map(|_| process()).collect()
    }

    /// A request's connection to etcd. calico-ipam.md section 4.2 step 1: the client comes before the lock.
    fn session(&self) -> Result<Rc<dyn Store>> {
        match &self.reach {
            Reach::Kept(store) => Ok(Rc::clone(store)),
            Reach::Anew { settings, counts } => connect(settings.clone(), counts),
        }
    }

    fn plugin(&self, store: Rc<dyn Store>) -> model::Go {
        model::Go::new(store, Rc::new(System), self.node.clone(), VERSION)
    }

    async fn locked(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        match &self.lock {
            Some(lock) => Some(lock.lock().await),
            None => None,
        }
    }
}

impl Caller for Go {
    fn add<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<IpAddr>> {
        Box::pin(async move {
            let plugin = self.plugin(self.session()?);
            let _lock = self.locked().await;
            let addresses = plugin.add(&pod.handle()?, &pod.name(), 1, 0).await?;
            Ok(*addresses.first().ok_or("no address")?)
        })
    }

    /// calico-ipam.md section 4.3: by the handle, then by the name that v2 used.
    fn del<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let plugin = self.plugin(self.session()?);
            let _lock = self.locked().await;
            match plugin.release_by_handle(&pod.handle()?).await {
                Err(GoError::NotFound) => return Err("DEL found no handle".into()),
                released => released?,
            }
            match plugin.release_by_handle(&HandleId::workload("default", &pod.name())?).await {
                Err(GoError::NotFound) => Ok(()),
                released => Ok(released?),
            }
        })
    }
}

fn connect(settings: Settings, counts: &Rc<Counts>) -> Result<Rc<dyn Store>> {
    Ok(Rc::new(Counted::new(Rc::new(Etcd::connect(settings)?), counts)))
}

// === impl System ===

impl Environment for System {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn note(&self, _: &dyn Fn() -> String) {}
}

#[cfg(test)]
mod tests {
    use russet_addr::BlockCidr;
    use russet_model::{Handle, Key};
    use russet_store::Sim;
    use russet_store::sim::Fault;

    use super::*;
    use crate::ipam::stage;

    /// One caller on a filled simulated store, and what it asks for.
    async fn caller() -> (Go, Rc<Counts>, Sim) {
        let sim = Sim::atomic(1);
        let store: Rc<dyn Store> = Rc::new(sim.clone());
        stage::fill(&store, &[GO_NODE]).await.unwrap();
        let counts = Rc::new(Counts::default());
        let reach = Reach::Kept(Rc::new(Counted::new(store, &counts)));
        (Go { reach, node: node().unwrap(), lock: None }, counts, sim)
    }

    /// calico-ipam.md sections 3.4 to 3.7: settings, reservations, node, pools, affinities; affinity, block; handle.
    #[tokio::test(flavor = "current_thread")]
    async fn a_warm_add_is_eight_reads_and_two_transactions() {
        let (go, counts, _) = caller().await;
        let pods = Pod::first().take(2);
        let first = go.add(&pods[0]).await.unwrap();
        assert_eq!((counts.reads(), counts.commits()), (8, 2));
        assert_ne!(go.add(&pods[1]).await.unwrap(), first);
    }

    /// calico-ipam.md sections 3.9, 3.10, 4.3: handle, block, handle, node, pools, the handle of v2; block and handle are written.
    #[tokio::test(flavor = "current_thread")]
    async fn a_del_is_six_reads_and_two_transactions_and_leaves_nothing() {
        let (go, counts, _) = caller().await;
        let pod = Pod::first();
        go.add(&pod).await.unwrap();
        counts.reset();
        go.del(&pod).await.unwrap();
        assert_eq!((counts.reads(), counts.commits()), (6, 2));
        assert_eq!(go.del(&pod).await.unwrap_err().to_string(), "DEL found no handle");
    }

    /// calico-ipam.md section 3.4 step 7c: the handle is lowered, block and handle are read again, both are written.
    #[tokio::test(flavor = "current_thread")]
    async fn a_lost_race_for_the_block_lowers_the_handle_and_tries_again() {
        let (go, counts, sim) = caller().await;
        // The handle is created, the block's update loses.
        sim.script([Fault::None, Fault::Conflict]);
        let pod = Pod::first();
        let address = go.add(&pod).await.unwrap();
        assert_eq!((counts.reads(), counts.commits()), (8 + 3, 5));
        let handle = sim.get(&Key::handle(&pod.handle().unwrap())).await.unwrap().unwrap();
        let handle = Handle::decode(&handle.value).unwrap();
        let block = BlockCidr::containing(address, 26).unwrap();
        assert_eq!((handle.block.len(), handle.count(block)), (1, 1));
    }
}
