//! The datastore as the Go client sees it (calico-ipam.md sections 2.1 and 1.10): one record a request, and members that a release does not know are lost.

use russet_addr::{BlockCidr, NodeName};
use russet_model::{
    Affinity, AffinityState, Attribute, Block, DecodeError, Handle, HandleId, IpamConfig, Key,
};
use russet_model::{Prefix, time};
use russet_store::{Record, Revision, Step, StoreError};
use serde_json::Value;

use super::{Go, GoError, Result, Version, block};

/// A record and its revision.
#[derive(Debug, Clone)]
pub(super) struct Kv<T> {
    pub(super) value: T,
    pub(super) revision: Revision,
}

// === impl Go ===

impl Go {
    pub(super) async fn get<T>(
        &self,
        key: &Key,
        decode: impl FnOnce(&[u8]) -> std::result::Result<T, DecodeError>,
    ) -> Result<Kv<T>> {
        let record = self.store.get(key).await.map_err(GoError::Datastore)?.ok_or(GoError::NotFound)?;
        let value = decode(&record.value).map_err(|error| GoError::Corrupt(error.to_string()))?;
        Ok(Kv { value, revision: record.revision })
    }

    pub(super) async fn list(&self, prefix: &Prefix) -> Result<Vec<Record>> {
        Ok(self.store.list(prefix).await.map_err(GoError::Datastore)?.records)
    }

    async fn write(&self, step: Step) -> Result<Revision> {
        let revisions = self.store.commit(vec![step]).await.map_err(|error| match error.error {
            StoreError::Conflict { .. } => GoError::Conflict,
            StoreError::AlreadyExists { .. } => GoError::AlreadyExists,
            StoreError::NotFound { .. } => GoError::NotFound,
            other => GoError::Datastore(other),
        })?;
        Ok(revisions.last().copied().unwrap_or_default())
    }

    pub(super) async fn delete(&self, key: Key, revision: Revision) -> Result<()> {
        self.write(Step::delete(key, Some(revision))).await.map(|_| ())
    }

    // === blocks ===

    /// Reads a block; what cools down long enough is free in memory (3.33).
    pub(super) async fn get_block(&self, cidr: BlockCidr) -> Result<Kv<Block>> {
        let mut kv = self.get(&Key::block(cidr), |bytes| self.decode_block(bytes)).await?;
        self.collect_garbage(&mut kv.value).await?;
        Ok(kv)
    }

    pub(super) async fn collect_garbage(&self, block: &mut Block) -> Result<()> {
        let cools = block.attributes().iter().any(|owner| owner.released_at.is_some());
        if self.version >= Version::V333 && cools {
            let cooldown = self.config().await?.ip_cooldown_seconds;
            block::free_cooled(block, self.environment.now(), cooldown);
        }
        Ok(())
    }

    pub(super) fn decode_block(&self, bytes: &[u8]) -> std::result::Result<Block, DecodeError> {
        let mut block = Block::decode(bytes)?;
        block.extra.clear();
        block.host_affinity = None;
        if self.version < Version::V332 {
            block.affinity_claim_time = None;
        }
        for owner in block.attributes.iter_mut().flatten() {
            self.forget_members(owner);
        }
        Ok(block)
    }

    fn forget_members(&self, owner: &mut Attribute) {
        owner.extra.clear();
        if self.version < Version::V333 {
            owner.released_at = None;
        }
        if self.version < Version::V332 {
            owner.alternate_owner.clear();
        }
    }

    /// The bytes that this release writes: up to 3.31 "none" is spelled out.
    fn encode_block(&self, block: &Block) -> Vec<u8> {
        let bytes = block.encode();
        if self.version >= Version::V332 {
            return bytes;
        }
        let Ok(mut value) = serde_json::from_slice::<Value>(&bytes) else { return bytes };
        for owner in value["attributes"].as_array_mut().into_iter().flatten() {
            if let Some(owner) = owner.as_object_mut() {
                owner.entry("handle_id").or_insert(Value::Null);
                owner.entry("secondary").or_insert(Value::Null);
            }
        }
        value.to_string().into_bytes()
    }

    pub(super) async fn create_block(&self, block: Block) -> Result<Kv<Block>> {
        let step = Step::create(Key::block(block.cidr), self.encode_block(&block));
        let revision = self.write(step).await?;
        Ok(Kv { value: block, revision })
    }

    /// "write block": sequence number + 1, guarded.
    pub(super) async fn update_block(&self, mut kv: Kv<Block>) -> Result<Kv<Block>> {
        kv.value.sequence_number += 1;
        let step = Step::update(Key::block(kv.value.cidr), self.encode_block(&kv.value), kv.revision);
        let revision = self.write(step).await?;
        Ok(Kv { value: kv.value, revision })
    }

    // === affinities ===

    pub(super) async fn get_affinity(&self, host: &NodeName, cidr: BlockCidr) -> Result<Kv<Affinity>> {
        self.get(&Key::affinity(host, cidr), Affinity::decode).await
    }

    pub(super) async fn create_affinity(&self, host: &NodeName, cidr: BlockCidr) -> Result<Kv<Affinity>> {
        let value = Affinity::new(AffinityState::Pending);
        let revision = self.write(Step::create(Key::affinity(host, cidr), value.encode())).await?;
        Ok(Kv { value, revision })
    }

    pub(super) async fn update_affinity(
        &self,
        host: &NodeName,
        cidr: BlockCidr,
        before: &Kv<Affinity>,
        state: AffinityState,
    ) -> Result<Kv<Affinity>> {
        let value = Affinity::new(state);
        let step = Step::update(Key::affinity(host, cidr), value.encode(), before.revision);
        let revision = self.write(step).await?;
        Ok(Kv { value, revision })
    }

    // === handles ===

    pub(super) async fn get_handle(&self, id: &HandleId) -> Result<Kv<Handle>> {
        let decode = |bytes: &[u8]| {
            let mut handle = Handle::decode(bytes)?;
            handle.extra.clear();
            Ok(handle)
        };
        self.get(&Key::handle(id), decode).await
    }

    /// Creates, or updates what was at `revision`.
    pub(super) async fn put_handle(
        &self,
        id: &HandleId,
        handle: &Handle,
        revision: Option<Revision>,
    ) -> Result<()> {
        let step = match revision {
            Some(revision) => Step::update(Key::handle(id), handle.encode(), revision),
            None => Step::create(Key::handle(id), handle.encode()),
        };
        self.write(step).await.map(|_| ())
    }

    // === settings ===

    /// Up to 3.32 the first reader creates the record.
    pub(super) async fn config(&self) -> Result<IpamConfig> {
        match self.get(&Key::ipam_config(), IpamConfig::decode).await {
            Err(GoError::NotFound) => {}
            found => return found.map(|kv| kv.value),
        }
        let mut config = IpamConfig::default();
        if self.version == Version::V332 {
            config.kube_virt_persistence = Some("Enabled".into());
        }
        if self.version <= Version::V332 {
            let _ = self.write(Step::create(Key::ipam_config(), config.encode())).await;
        }
        Ok(config)
    }

    pub(super) fn claim_time(&self) -> Option<String> {
        (self.version >= Version::V332).then(|| time::rfc3339(self.environment.now()))
    }
}
