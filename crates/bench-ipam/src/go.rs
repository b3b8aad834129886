//! The order of requests of Go's `calico-ipam` plugin for an ordinary ADD and DEL on etcd, replayed
//! (calico-ipam.md sections 2.1, 3.4 to 3.10, 4.2 to 4.4): each read and each transaction in its
//! position, one record per request, real blocks, real compare-and-swap, its retries.
//!
//! It is not the Go program. In Go's favour: no process is started, blocks are decoded by our code,
//! the host lock is a mutex of this process and not an flock(2), and the Namespace that 3.31 reads
//! from Kubernetes is not read. Only warm ADDs are supported: a node without room in a block of its
//! own is an error. The simulator's model of the Go allocator has the rest, without a clock. The
//! main plugin's requests around it are in `plugin`.

mod plugin;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::SystemTime;

use russet_addr::{BlockCidr, Family, NodeName};
use russet_ipam::block_ops::{self, Reserved};
use russet_model::{
    Affinity, Attribute, Block, DecodeError, Handle, HandleId, IpPool, IpReservation, IpamConfig, Key,
    KeyKind, Node, Prefix, time,
};
use russet_store::{BoxFuture, Record, Revision, Step, Store, StoreError};
use russet_store_etcd::{Etcd, Settings};
use tokio::sync::Mutex;

use crate::Result;
use crate::burst::{Caller, Pod};
use crate::counted::{Counted, Counts};
use crate::stage::{GO_NODE, Place};
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

/// A record and the revision that guards it.
struct Kv<T> {
    value: T,
    revision: Revision,
}

/// One request's connection to etcd.
struct Session(Rc<dyn Store>);

/// calico-ipam.md section 2.2: for every loop, without a pause.
const RETRIES: u32 = 100;

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

    /// calico-ipam.md section 4.2 step 1: the client comes before the lock.
    fn session(&self) -> Result<Session> {
        match &self.reach {
            Reach::Kept(store) => Ok(Session(Rc::clone(store))),
            Reach::Anew { settings, counts } => Ok(Session(connect(settings.clone(), counts)?)),
        }
    }

    async fn locked(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        match &self.lock {
            Some(lock) => Some(lock.lock().await),
            None => None,
        }
    }

    /// calico-ipam.md section 3.4, AutoAssign of one IPv4 address.
    async fn auto_assign(&self, session: &Session, pod: &Pod) -> Result<IpAddr> {
        // Step 2.
        session.get(&Key::ipam_config(), IpamConfig::decode).await?.ok_or("no IPAM configuration")?;
        let reservations = session.list(&Prefix::reservations(), IpReservation::decode).await?;
        let reserved =
            Reserved(reservations.iter().flat_map(|kv| kv.spec.nets().collect::<Vec<_>>()).collect());
        // Step 3.
        let node = session.get(&Key::node(&self.node), Node::decode).await?.ok_or("no Node")?.value;
        // Step 4.
        let pools = self.pools(session, &node).await?;
        // Step 5, in the order of the listing.
        let prefix = Prefix::affinities_of(&self.node, Family::V4);
        let affine =
            session.records(&prefix).await?.into_iter().filter_map(|record| match record.key.kind() {
                KeyKind::Affinity { block, .. } => Some(block),
                _ => None,
            });
        let inside = |block: &BlockCidr| pools.iter().any(|pool| pool.spec.cidr.contains(&block.net()));
        // Step 7, calico-ipam.md section 3.5: the affinity and the block of each, until one has room.
        for cidr in affine.filter(inside) {
            let affinity = session.get(&Key::affinity(&self.node, cidr), Affinity::decode).await?;
            let Some(_confirmed) = affinity else { continue };
            let Some(block) = session.get(&Key::block(cidr), Block::decode).await? else { continue };
            if block.value.serves(&self.node) && block_ops::has_free(&block.value, &reserved) {
                return self.assign_from(session, block, pod, &reserved).await;
            }
        }
        Err("no block of the node has room: this is no warm ADD".into())
    }

    /// calico-ipam.md section 3.4 step 4: the pools that are enabled and select the node.
    async fn pools(&self, session: &Session, node: &Node) -> Result<Vec<IpPool>> {
        let mut pools = session.list(&Prefix::pools(), IpPool::decode).await?;
        pools
            .retain(|pool| pool.is_enabled() && pool.spec.family() == Family::V4 && pool.spec.is_automatic());
        let mut chosen = Vec::new();
        for pool in pools {
            if pool.spec.nodes()?.matches(&node.metadata.labels) {
                chosen.push(pool);
            }
        }
        Ok(chosen)
    }

    /// calico-ipam.md section 3.7: the handle is raised, then the block is written; a lost race lowers the handle and reads the block again (section 3.4 step 7c).
    async fn assign_from(
        &self,
        session: &Session,
        mut found: Kv<Block>,
        pod: &Pod,
        reserved: &Reserved,
    ) -> Result<IpAddr> {
        let handle = pod.handle()?;
        let cidr = found.value.cidr;
        for _ in 0..RETRIES {
            let taken = block_ops::auto_assign(&mut found.value, 1, &self.owner(pod, &handle), reserved);
            let ordinal = *taken.first().ok_or("the block filled up: this is no warm ADD")?;
            session.increment(&handle, cidr).await?;
            if session.write(Step::update(Key::block(cidr), found.value.encode(), found.revision)).await? {
                return Ok(cidr.address(ordinal).ok_or("no such ordinal")?);
            }
            session.decrement(&handle, cidr).await?;
            found = session.get(&Key::block(cidr), Block::decode).await?.ok_or("the block is gone")?;
        }
        Err("assign: too many retries".into())
    }

    /// calico-ipam.md section 4.2 step 3.
    fn owner(&self, pod: &Pod, handle: &HandleId) -> Attribute {
        let secondary = [
            ("node", self.node.to_string()),
            ("pod", pod.name()),
            ("namespace", "default".to_owned()),
            ("timestamp", time::go_timestamp(SystemTime::now())),
        ];
        let secondary: BTreeMap<String, String> =
            secondary.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Attribute { handle_id: Some(handle.to_string()), secondary: Some(secondary), ..Attribute::default() }
    }

    /// calico-ipam.md section 3.9, ReleaseByHandle; whether there was such a handle.
    async fn release_by_handle(&self, session: &Session, handle: &HandleId) -> Result<bool> {
        let Some(known) = session.get(&Key::handle(handle), Handle::decode).await? else { return Ok(false) };
        for cidr in known.value.blocks() {
            self.release_in(session, handle, cidr).await?;
        }
        Ok(true)
    }

    async fn release_in(&self, session: &Session, handle: &HandleId, cidr: BlockCidr) -> Result<()> {
        for _ in 0..RETRIES {
            let Some(mut block) = session.get(&Key::block(cidr), Block::decode).await? else { return Ok(()) };
            if block_ops::release_by_handle(&mut block.value, handle, None).is_empty() {
                return Ok(());
            }
            let step = Step::update(Key::block(cidr), block.value.encode(), block.revision);
            if session.write(step).await? {
                session.decrement(handle, cidr).await?;
                return self.ensure_consistent_affinity(session).await;
            }
        }
        Err("release: too many retries".into())
    }

    /// calico-ipam.md section 3.10: the pool still selects the node, so nothing more is done.
    async fn ensure_consistent_affinity(&self, session: &Session) -> Result<()> {
        let node = session.get(&Key::node(&self.node), Node::decode).await?.ok_or("no Node")?.value;
        match self.pools(session, &node).await?.is_empty() {
            false => Ok(()),
            true => Err("the pool does not select the node: this is no ordinary DEL".into()),
        }
    }
}

impl Caller for Go {
    fn add<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<IpAddr>> {
        Box::pin(async move {
            let session = self.session()?;
            let _lock = self.locked().await;
            self.auto_assign(&session, pod).await
        })
    }

    /// calico-ipam.md section 4.3: by the handle, then by the name that v2 used.
    fn del<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let session = self.session()?;
            let _lock = self.locked().await;
            if !self.release_by_handle(&session, &pod.handle()?).await? {
                return Err("DEL found no handle".into());
            }
            self.release_by_handle(&session, &HandleId::workload("default", &pod.name())?).await?;
            Ok(())
        })
    }
}

fn connect(settings: Settings, counts: &Rc<Counts>) -> Result<Rc<dyn Store>> {
    Ok(Rc::new(Counted::new(Rc::new(Etcd::connect(settings)?), counts)))
}

// === impl Session ===

impl Session {
    async fn get<T>(
        &self,
        key: &Key,
        decode: fn(&[u8]) -> std::result::Result<T, DecodeError>,
    ) -> Result<Option<Kv<T>>> {
        let Some(record) = self.0.get(key).await? else { return Ok(None) };
        Ok(Some(Kv { value: decode(&record.value)?, revision: record.revision }))
    }

    async fn list<T>(
        &self,
        prefix: &Prefix,
        decode: fn(&[u8]) -> std::result::Result<T, DecodeError>,
    ) -> Result<Vec<T>> {
        let records = self.records(prefix).await?;
        Ok(records.iter().map(|record| decode(&record.value)).collect::<std::result::Result<_, _>>()?)
    }

    async fn records(&self, prefix: &Prefix) -> Result<Vec<Record>> {
        Ok(self.0.list(prefix).await?.records)
    }

    /// One transaction (calico-ipam.md section 2.1); false when its guard failed.
    async fn write(&self, step: Step) -> Result<bool> {
        match self.0.commit(vec![step]).await.map_err(|error| error.error) {
            Ok(_) => Ok(true),
            Err(
                StoreError::Conflict { .. } | StoreError::AlreadyExists { .. } | StoreError::NotFound { .. },
            ) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// calico-ipam.md section 3.9.
    async fn increment(&self, id: &HandleId, cidr: BlockCidr) -> Result<()> {
        for _ in 0..RETRIES {
            let known = self.get(&Key::handle(id), Handle::decode).await?;
            let (mut handle, revision) =
                known.map_or((Handle::default(), None), |kv| (kv.value, Some(kv.revision)));
            handle.add(cidr, 1);
            let step = match revision {
                Some(revision) => Step::update(Key::handle(id), handle.encode(), revision),
                None => Step::create(Key::handle(id), handle.encode()),
            };
            if self.write(step).await? {
                return Ok(());
            }
        }
        Err("increment: too many retries".into())
    }

    /// calico-ipam.md section 3.9; at 0 the handle goes.
    async fn decrement(&self, id: &HandleId, cidr: BlockCidr) -> Result<()> {
        for _ in 0..RETRIES {
            let known = self.get(&Key::handle(id), Handle::decode).await?;
            let Kv { value: mut handle, revision } = known.ok_or("decrement: no handle")?;
            let left = handle.count(cidr).checked_sub(1).ok_or("decrement: below 0")?;
            handle.set(cidr, left);
            let step = match handle.block.is_empty() {
                true => Step::delete(Key::handle(id), Some(revision)),
                false => Step::update(Key::handle(id), handle.encode(), revision),
            };
            if self.write(step).await? {
                return Ok(());
            }
        }
        Err("decrement: too many retries".into())
    }
}

#[cfg(test)]
mod tests {
    use russet_store::Sim;

    use super::*;
    use crate::stage;

    /// One caller on a filled simulated store, and what it asks for.
    async fn caller() -> (Go, Rc<Counts>) {
        let store: Rc<dyn Store> = Rc::new(Sim::atomic(1));
        stage::fill(&store, &[GO_NODE]).await.unwrap();
        let counts = Rc::new(Counts::default());
        let reach = Reach::Kept(Rc::new(Counted::new(store, &counts)));
        (Go { reach, node: node().unwrap(), lock: None }, counts)
    }

    /// calico-ipam.md sections 3.4 to 3.7: settings, reservations, node, pools, affinities; affinity, block; handle.
    #[tokio::test(flavor = "current_thread")]
    async fn a_warm_add_is_eight_reads_and_two_transactions() {
        let (go, counts) = caller().await;
        let pods = Pod::first().take(2);
        let first = go.add(&pods[0]).await.unwrap();
        assert_eq!((counts.reads(), counts.commits()), (8, 2));
        assert_ne!(go.add(&pods[1]).await.unwrap(), first);
    }

    /// calico-ipam.md sections 3.9, 3.10, 4.3: handle, block, handle, node, pools, the handle of v2; block and handle are written.
    #[tokio::test(flavor = "current_thread")]
    async fn a_del_is_six_reads_and_two_transactions_and_leaves_nothing() {
        let (go, counts) = caller().await;
        let pod = Pod::first();
        go.add(&pod).await.unwrap();
        counts.reset();
        go.del(&pod).await.unwrap();
        assert_eq!((counts.reads(), counts.commits()), (6, 2));
        assert_eq!(go.del(&pod).await.unwrap_err().to_string(), "DEL found no handle");
    }

    /// calico-ipam.md section 3.4 step 7c.
    #[tokio::test(flavor = "current_thread")]
    async fn a_lost_race_for_the_block_lowers_the_handle_and_tries_again() {
        let (go, counts) = caller().await;
        let session = go.session().unwrap();
        let blocks = session.list(&Prefix::blocks(Some(Family::V4)), Block::decode).await.unwrap();
        let cidr = blocks.iter().find(|block| block.serves(&go.node)).unwrap().cidr;
        let stale = session.get(&Key::block(cidr), Block::decode).await.unwrap().unwrap();
        let pods = Pod::first().take(2);
        let first = go.add(&pods[0]).await.unwrap();
        counts.reset();
        let second = go.assign_from(&session, stale, &pods[1], &Reserved::default()).await.unwrap();
        assert_ne!(first, second);
        assert_eq!((counts.reads(), counts.commits()), (4, 5));
        let handle = session.get(&Key::handle(&pods[1].handle().unwrap()), Handle::decode).await.unwrap();
        assert_eq!(handle.unwrap().value.count(cidr), 1);
    }
}
