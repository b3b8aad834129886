//! Presents the v1 model to the allocator as v3: a store whose pools, blocks, affinities and
//! handles look like v3's and are stored behind etcd's v2 API as v1 peers write them
//! (calico-ipam.md section 1.9). Blocks, affinities, handles and settings have the same keys; pools
//! and nodes do not, and are only read.

use std::rc::Rc;

use russet_addr::Family;
use russet_model::v1::{self, V1Key};
use russet_model::{Block, Handle, IpamConfig, Key, KeyKind, Node, NodeSpec, Prefix};
use russet_store::{
    BoxFuture, Claims, CommitError, Record, Revision, Snapshot, Step, Store, StoreError, Watch,
};

/// More blocks than a node can have pods.
const NO_LIMIT: u64 = u32::MAX as u64;

/// A v3 view of a store with v1 data.
pub struct V3View {
    store: Rc<dyn Store>,
}

// === impl V3View ===

impl V3View {
    pub fn new(store: Rc<dyn Store>) -> Self {
        Self { store }
    }

    async fn read(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        match key.kind() {
            // v1 plugins needed no node record, and every pool applies to every node.
            KeyKind::Node(node) => {
                let value = Node::new(node.as_str(), NodeSpec::default()).encode();
                Ok(Some(Record { key: key.clone(), value, revision: Revision(0) }))
            }
            KeyKind::IpamConfig => Ok(Some(unlimited(key, self.store.get(key).await?))),
            kind if shared(&kind) => Ok(self.store.get(key).await?.map(seen)),
            _ => Ok(None),
        }
    }

    async fn read_all(&self, prefix: &Prefix) -> Result<Snapshot, StoreError> {
        if *prefix == Prefix::pools() {
            return self.pools().await;
        }
        // There are no resources behind the v2 API.
        if prefix.as_str().starts_with("/calico/resources/") {
            return Ok(Snapshot::default());
        }
        let mut snapshot = self.store.list(prefix).await?;
        snapshot.records = snapshot.records.into_iter().map(seen).collect();
        Ok(snapshot)
    }

    /// The pools of both families, sorted by the names that they would have in v3. Unreadable pools
    /// are skipped, as by peers.
    async fn pools(&self) -> Result<Snapshot, StoreError> {
        let mut pools = Snapshot::default();
        for family in Family::BOTH {
            let listed = self.store.list(&V1Key::pools(family)).await?;
            pools.revision = pools.revision.max(listed.revision);
            pools.records.extend(listed.records.into_iter().filter_map(pool));
        }
        pools.records.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(pools)
    }
}

/// Whether a key is the same in both models.
fn shared(kind: &KeyKind) -> bool {
    matches!(kind, KeyKind::Block(_) | KeyKind::Affinity { .. } | KeyKind::Handle(_) | KeyKind::IpamConfig)
}

/// The settings as v1 plugins understood them: without a limit of blocks per node, where v3's
/// default is 20.
fn unlimited(key: &Key, stored: Option<Record>) -> Record {
    let Some(record) = stored else {
        let settings = IpamConfig { max_blocks_per_host: NO_LIMIT, ..IpamConfig::default() };
        return Record { key: key.clone(), value: settings.encode(), revision: Revision(0) };
    };
    match IpamConfig::decode(&record.value) {
        Ok(settings) if settings.max_blocks_per_host == 0 => {
            let settings = IpamConfig { max_blocks_per_host: NO_LIMIT, ..settings };
            Record { value: settings.encode(), ..record }
        }
        _ => record,
    }
}

fn pool(record: Record) -> Option<Record> {
    let read = v1::Pool::decode(&record.value);
    let pool =
        read.inspect_err(|error| russet_store::refused("a pool is skipped", &record.key, error)).ok()?;
    let converted = pool.to_v3();
    let key = Key::pool(&converted.metadata.name).ok()?;
    Some(Record { key, value: converted.encode(), revision: record.revision })
}

/// Converts a record to v3. An unreadable one is returned unchanged, and the allocator reports it.
fn seen(record: Record) -> Record {
    match (record.key.kind(), Block::decode(&record.value)) {
        (KeyKind::Block(_), Ok(block)) => Record { value: v1::block_to_v3(&block).encode(), ..record },
        _ => record,
    }
}

/// Converts a step to the v1 model.
fn written(mut step: Step) -> Result<Step, StoreError> {
    let kind = step.key().kind();
    if !shared(&kind) {
        let operation = format!("write {}", step.key());
        return Err(StoreError::Invalid { operation, reason: "the v1 model has no such record".to_owned() });
    }
    if let Step::Create { value, .. } | Step::Update { value, .. } | Step::Put { value, .. } = &mut step {
        match kind {
            KeyKind::Block(_) => {
                if let Ok(block) = Block::decode(value) {
                    *value = v1::block_from_v3(&block);
                }
            }
            KeyKind::Handle(_) => {
                if let Ok(handle) = Handle::decode(value) {
                    *value = v1::handle_from_v3(&handle);
                }
            }
            // Claims keep their state, which v1 peers ignore: without it, a crash between claim and
            // block could not be distinguished from a confirmed claim.
            _ => {}
        }
    }
    Ok(step)
}

impl Store for V3View {
    fn claims(&self) -> Claims {
        Claims { ttl: false, ..self.store.claims() }
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Record>, StoreError>> {
        Box::pin(self.read(key))
    }

    fn list<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Snapshot, StoreError>> {
        Box::pin(self.read_all(prefix))
    }

    fn commit<'a>(&'a self, steps: Vec<Step>) -> BoxFuture<'a, Result<Vec<Revision>, CommitError>> {
        Box::pin(async move {
            let steps = steps.into_iter().map(written).collect::<Result<_, _>>()?;
            self.store.commit(steps).await
        })
    }

    fn watch<'a>(&'a self, prefix: &'a Prefix) -> BoxFuture<'a, Result<Box<dyn Watch>, StoreError>> {
        let error = StoreError::Unsupported { operation: format!("watch {prefix} in the v1 model") };
        Box::pin(async move { Err(error) })
    }
}
