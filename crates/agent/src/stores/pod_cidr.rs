//! The store of a node that gives its pods addresses of its own `spec.podCIDRs`, as flannel and
//! kindnet do: no resource definitions, and no write to the API server for any pod.
//!
//! Nodes are Kubernetes'. Blocks, handles and everything else that changes with a pod is in this
//! machine's own store. Other nodes' affinities are derived from their `podCIDRs`, so that the
//! overlay routes to them as to any block.

mod follow;
mod ranges;

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use russet_addr::NodeName;
use russet_ipam::{Allocator, IpamError};
use russet_model::{Affinity, AffinityState, IpPool, IpPoolSpec, Key, KeyKind, Prefix};
use russet_plugins::SystemClock;
use russet_store::{
    BoxFuture, Cause, Claims, CommitError, Record, Revision, Snapshot, Step, Store, StoreError, Watch,
};

use crate::config::DefaultPools;
use follow::{AffinitiesWatch, NodesWatch, SharedNodes};
use ranges::Ranges;

/// Names of the pools: the cluster's ranges, of which this node's are a part.
const POOLS: [&str; 2] = ["cluster-ipv4", "cluster-ipv6"];

/// A store of pod addresses beside Kubernetes' nodes. Clones share it.
#[derive(Clone)]
pub struct PodCidrStore {
    inner: Rc<Inner>,
}

struct Inner {
    node: NodeName,
    pools: DefaultPools,
    /// Answers for [`Prefix::nodes`], and for nothing else.
    nodes: Rc<dyn Store>,
    /// Has everything but nodes and the affinities of others. Atomic.
    local: Rc<dyn Store>,
    /// This node's ranges for which `local` was prepared by this process.
    prepared: RefCell<Option<Ranges>>,
    /// The nodes that are watched, if they are.
    shared: RefCell<Weak<SharedNodes>>,
}

/// Where a key's record is.
enum Side {
    Nodes,
    Local,
    /// Derived from the node of that name.
    Derived(NodeName),
}

// === impl PodCidrStore ===

impl PodCidrStore {
    /// `pools` are the cluster's ranges of pods: kube-controller-manager's `--cluster-cidr`.
    pub fn new(node: NodeName, pools: DefaultPools, nodes: Rc<dyn Store>, local: Rc<dyn Store>) -> Self {
        let (prepared, shared) = (RefCell::default(), RefCell::default());
        Self { inner: Rc::new(Inner { node, pools, nodes, local, prepared, shared }) }
    }

    fn side(&self, key: &Key) -> Side {
        match key.kind() {
            KeyKind::Node(_) => Side::Nodes,
            KeyKind::Affinity { node, .. } if node != self.inner.node => Side::Derived(node),
            _ => Side::Local,
        }
    }

    /// Makes pools and blocks those of this node's ranges, once for each process and again when
    /// they have changed. Until the API server has said which they are, no address is given: a Node
    /// that was deleted and created again may have others, and another node these.
    async fn prepare(&self) -> Result<(), StoreError> {
        if self.inner.prepared.borrow().is_some() {
            return Ok(());
        }
        let operation = || format!("find the podCIDRs of node {}", self.inner.node);
        let unavailable = |source: Cause| StoreError::Unavailable { operation: operation(), source };
        let Some(record) = self.inner.nodes.get(&Key::node(&self.inner.node)).await? else {
            return Err(unavailable(Cause::text("the cluster has no such Node yet")));
        };
        let ranges = Ranges::of(&record.value);
        if ranges.is_empty() {
            return Err(unavailable(Cause::text(
                "the Node has none yet; kube-controller-manager gives them out if it runs with --allocate-node-cidrs and --cluster-cidr",
            )));
        }
        self.refuse_foreign(&ranges)?;
        self.seed(&ranges).await?;
        let shown: Vec<String> = ranges.used().map(|net| net.to_string()).collect();
        tracing::info!(ranges = shown.join(", "), "pods get addresses of this node's podCIDRs");
        *self.inner.prepared.borrow_mut() = Some(ranges);
        Ok(())
    }

    /// Refuses ranges outside the cluster's: other nodes would neither route nor masquerade them
    /// rightly.
    fn refuse_foreign(&self, ranges: &Ranges) -> Result<(), StoreError> {
        for (setting, pool, range) in [
            ("--ipv4-pool", self.inner.pools.ipv4, ranges.ipv4()),
            ("--ipv6-pool", self.inner.pools.ipv6, ranges.ipv6()),
        ] {
            let Some(range) = range else { continue };
            if !pool.is_some_and(|pool| pool.contains(&range)) {
                let pool = pool.map_or_else(|| "none".to_owned(), |pool| pool.to_string());
                return Err(StoreError::Invalid {
                    operation: format!("use podCIDR {range} of node {}", self.inner.node),
                    reason: format!(
                        "it is not in {setting} {pool}: give the --cluster-cidr of kube-controller-manager"
                    ),
                });
            }
        }
        Ok(())
    }

    async fn seed(&self, ranges: &Ranges) -> Result<(), StoreError> {
        let allocator = Allocator::new(Rc::clone(&self.inner.local), Rc::new(SystemClock));
        let claim_only = |config: &mut russet_model::IpamConfig| {
            (config.strict_affinity, config.auto_allocate_blocks) = (true, false);
        };
        allocator.configure(claim_only).await.map_err(store_error)?;
        for (name, cluster, range) in [
            (POOLS[0], self.inner.pools.ipv4, ranges.ipv4()),
            (POOLS[1], self.inner.pools.ipv6, ranges.ipv6()),
        ] {
            let wanted = range
                .zip(cluster)
                .map(|(range, cluster)| self.pool(name, cluster, ranges::block_prefix_len(range)));
            self.write_pool(&allocator, name, wanted).await?;
        }
        let blocks: Vec<_> = ranges.blocks().collect();
        for family in russet_addr::Family::BOTH {
            let stored = self.inner.local.keys(&Prefix::affinities_of(&self.inner.node, family)).await;
            for key in stored? {
                if let KeyKind::Affinity { block, .. } = key.kind()
                    && !blocks.contains(&block)
                {
                    tracing::warn!(%block, "a block is not in this node's podCIDRs any more: its pods keep their addresses, new ones get none of it");
                    allocator.release_affinity(&self.inner.node, block, false).await.map_err(store_error)?;
                }
            }
        }
        for block in blocks {
            allocator.claim_block(&self.inner.node, block).await.map_err(store_error)?;
        }
        Ok(())
    }

    fn pool(&self, name: &str, cluster: russet_addr::IpNet, block_prefix_len: u8) -> IpPool {
        let mut spec = IpPoolSpec::new(cluster);
        spec.vxlan_mode = self.inner.pools.encapsulation.vxlan_mode();
        spec.nat_outgoing = true;
        spec.block_size = Some(block_prefix_len);
        IpPool::new(name, spec)
    }

    /// Makes a pool what the settings say; only this machine reads it.
    async fn write_pool(
        &self,
        allocator: &Allocator,
        name: &str,
        wanted: Option<IpPool>,
    ) -> Result<(), StoreError> {
        let invalid = |error: russet_addr::NameError| StoreError::Invalid {
            operation: format!("write pool {name}"),
            reason: error.to_string(),
        };
        let key = Key::pool(name).map_err(invalid)?;
        let stored = self.inner.local.get(&key).await?;
        let known = stored.as_ref().and_then(|record| IpPool::decode(&record.value).ok());
        let step = match (wanted, stored) {
            (Some(wanted), None) => return allocator.create_pool(wanted).await.map_err(store_error),
            (Some(wanted), Some(record)) if known.as_ref().is_none_or(|pool| pool.spec != wanted.spec) => {
                let pool = IpPool { spec: wanted.spec.clone(), ..known.unwrap_or(wanted) };
                Step::update(key, pool.encode(), record.revision)
            }
            (None, Some(record)) => Step::delete(key, Some(record.revision)),
            (Some(_), Some(_)) | (None, None) => return Ok(()),
        };
        self.inner.local.commit(vec![step]).await.map(drop).map_err(|error| error.error)
    }

    /// Forgets the preparation if this node has other ranges now; none: the Node was deleted.
    fn heed_own(&self, record: Option<&Record>) {
        let ranges = record.map(|record| Ranges::of(&record.value)).unwrap_or_default();
        let mut prepared = self.inner.prepared.borrow_mut();
        if prepared.as_ref().is_some_and(|known| *known != ranges) {
            *prepared = None;
        }
    }

    /// The affinities that a node's record implies, unless it is this node's.
    fn derived(&self, record: &Record) -> Vec<Record> {
        let KeyKind::Node(name) = record.key.kind() else { return Vec::new() };
        if name == self.inner.node {
            return Vec::new();
        }
        let value = Affinity::new(AffinityState::Confirmed).encode();
        let ranges = Ranges::of(&record.value);
        let affinity = |block| Record {
            key: Key::affinity(&name, block),
            value: value.clone(),
            revision: record.revision,
        };
        ranges.routed().map(affinity).collect()
    }

    async fn get_record(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        match self.side(key) {
            Side::Nodes => self.inner.nodes.get(key).await,
            Side::Derived(node) => {
                let found = self.inner.nodes.get(&Key::node(&node)).await?;
                let derived = found.map(|record| self.derived(&record)).unwrap_or_default();
                Ok(derived.into_iter().find(|record| record.key == *key))
            }
            Side::Local => {
                if is_prepared(key.as_str()) {
                    self.prepare().await?;
                }
                self.inner.local.get(key).await
            }
        }
    }

    async fn list_records(&self, prefix: &Prefix) -> Result<Snapshot, StoreError> {
        if within(prefix, &Prefix::nodes()) {
            return self.inner.nodes.list(prefix).await;
        }
        if is_prepared(prefix.as_str()) || self.covers_derived(prefix) {
            self.prepare().await?;
        }
        let mut snapshot = self.inner.local.list(prefix).await?;
        let covers_nodes = within(&Prefix::nodes(), prefix);
        if covers_nodes || self.covers_derived(prefix) {
            let nodes = self.inner.nodes.list(&Prefix::nodes()).await?;
            for record in nodes.records {
                snapshot
                    .records
                    .extend(self.derived(&record).into_iter().filter(|derived| prefix.covers(&derived.key)));
                if covers_nodes {
                    snapshot.records.push(record);
                }
            }
            snapshot.records.sort_by(|one, other| one.key.cmp(&other.key));
        }
        Ok(snapshot)
    }

    /// Whether affinities of other nodes are under a prefix.
    fn covers_derived(&self, prefix: &Prefix) -> bool {
        let own = format!("{}{}/", Prefix::all_affinities(), self.inner.node);
        let all = Prefix::all_affinities();
        within(&all, prefix) || within(prefix, &all) && !prefix.as_str().starts_with(&own)
    }

    async fn commit_steps(&self, steps: Vec<Step>) -> Result<Vec<Revision>, CommitError> {
        let refused = |failed, operation: String| {
            Err(CommitError { done: 0, failed, error: StoreError::Unsupported { operation } })
        };
        let mut of_nodes = 0;
        for (failed, step) in steps.iter().enumerate() {
            match self.side(step.key()) {
                Side::Nodes => of_nodes += 1,
                Side::Local => {}
                Side::Derived(node) => {
                    return refused(failed, format!("write {}: it is what Node {node} says", step.key()));
                }
            }
        }
        match of_nodes {
            0 => self.inner.local.commit(steps).await,
            count if count == steps.len() => self.inner.nodes.commit(steps).await,
            _ => refused(0, "write nodes and other records at once".to_owned()),
        }
    }

    async fn watch_records(&self, prefix: &Prefix) -> Result<Box<dyn Watch>, StoreError> {
        if within(prefix, &Prefix::nodes()) {
            if *prefix == Prefix::nodes() {
                return Ok(Box::new(NodesWatch::open(self.clone(), prefix).await?));
            }
            return self.inner.nodes.watch(prefix).await;
        }
        if within(&Prefix::nodes(), prefix) {
            let operation = format!("watch {prefix}: nodes and other records at once");
            return Err(StoreError::Unsupported { operation });
        }
        if self.covers_derived(prefix) {
            return Ok(Box::new(AffinitiesWatch::open(self.clone(), prefix).await?));
        }
        if is_prepared(prefix.as_str()) {
            self.prepare().await?;
        }
        self.inner.local.watch(prefix).await
    }
}

fn store_error(error: IpamError) -> StoreError {
    match error {
        IpamError::Store { source, .. } => source,
        other => StoreError::Unavailable {
            operation: "prepare the addresses of this node's podCIDRs".to_owned(),
            source: Cause::new(other),
        },
    }
}

/// Whether records under a path are prepared from this node's ranges: pools, settings, affinities.
fn is_prepared(path: &str) -> bool {
    let config = Key::ipam_config();
    let prefixes = [Prefix::pools(), Prefix::all_affinities(), Prefix::from_stored(config.as_str())];
    prefixes.iter().any(|prefix| path.starts_with(prefix.as_str()) || prefix.as_str().starts_with(path))
}

/// Whether everything under `inner` is under `outer`.
fn within(inner: &Prefix, outer: &Prefix) -> bool {
    inner.as_str().starts_with(outer.as_str())
}

impl Store for PodCidrStore {
    fn claims(&self) -> Claims {
        Claims { atomic: true, ttl: false }
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(self.get_record(key))
    }

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(self.list_records(prefix))
    }

    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        Box::pin(self.commit_steps(steps))
    }

    fn watch<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        Box::pin(self.watch_records(prefix))
    }
}

#[cfg(test)]
mod tests;
