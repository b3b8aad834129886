//! Claims a block for a node, in two phases (calico-ipam.md section 3.6): a pending affinity, the
//! block, the confirmed affinity.
//!
//! An atomic engine gets the confirmed affinity and the block in one commit, which leaves the same
//! records. An interrupted claim is repaired by the node's next request, here: the affinity is
//! listed again and made consistent with the block.

use russet_addr::{BlockCidr, NodeName};
use russet_model::{Affinity, AffinityState, Block, Key};
use russet_store::{Revision, Step};

use super::{Allocator, Failure, Stored};
use crate::{IpamError, block_ops};

/// The result of an attempt to claim a block.
pub(super) enum Claimed {
    /// The block serves the node.
    Ours(Box<Stored<Block>>),
    /// The block serves another owner; the node's affinity to it was removed.
    Foreign,
}

// === impl Allocator ===

impl Allocator {
    /// Makes `cidr` a block of this node, for a caller that decides where blocks are. Fails if it
    /// serves another node.
    pub async fn claim_block(&self, node: &NodeName, cidr: BlockCidr) -> Result<(), IpamError> {
        match self.claim(node, cidr).await? {
            Claimed::Ours(_) => Ok(()),
            Claimed::Foreign => Err(IpamError::ForeignBlock { block: cidr, owner: None }),
        }
    }

    /// Makes `cidr` the node's block, whatever is stored now.
    pub(super) async fn claim(&self, node: &NodeName, cidr: BlockCidr) -> Result<Claimed, IpamError> {
        let key = Key::block(cidr);
        let mut tries = 0;
        loop {
            let affinity = self.affinity(node, cidr).await?;
            let outcome = match self.block(cidr).await? {
                None => self.create_block(node, cidr, affinity).await?,
                Some(block) if block.value.serves(node) => self.confirm(node, block, affinity).await?,
                Some(_) => self.forget_affinity(node, cidr, affinity).await?,
            };
            if let Some(claimed) = outcome {
                return Ok(claimed);
            }
            self.again(&mut tries, "claim", &key).await?;
        }
    }

    /// A block to which the node has an affinity, made consistent with it. The affinity comes from
    /// a list, which saves a read.
    pub(super) async fn affine_block(
        &self,
        node: &NodeName,
        cidr: BlockCidr,
        listed: Stored<Affinity>,
    ) -> Result<Claimed, IpamError> {
        match self.block(cidr).await? {
            Some(block) if block.value.serves(node) && listed.value.state == AffinityState::Confirmed => {
                Ok(Claimed::Ours(Box::new(block)))
            }
            _ => self.claim(node, cidr).await,
        }
    }

    /// Creates a block that does not exist: pending affinity, block, confirmed affinity. None if
    /// another writer was faster and everything must be read again.
    async fn create_block(
        &self,
        node: &NodeName,
        cidr: BlockCidr,
        affinity: Option<Stored<Affinity>>,
    ) -> Result<Option<Claimed>, IpamError> {
        let mut block = block_ops::new_block(cidr, node, self.clock.now());
        block.strict_affinity = self.strict_blocks && self.config().await?.strict_affinity;
        let create = Step::create(Key::block(cidr), block.encode());
        if self.store.claims().atomic {
            let confirmed = write_affinity(node, cidr, affinity.as_ref(), AffinityState::Confirmed);
            let revisions = self.try_commit("claim", vec![confirmed, create]).await?;
            return Ok(
                last(revisions).map(|revision| Claimed::Ours(Box::new(Stored { value: block, revision })))
            );
        }
        let pending = write_affinity(node, cidr, affinity.as_ref(), AffinityState::Pending);
        let Some(revision) = last(self.try_commit("claim", vec![pending]).await?) else { return Ok(None) };
        let Some(created) = last(self.try_commit("claim", vec![create]).await?) else { return Ok(None) };
        let before = affinity.map_or(Affinity::new(AffinityState::Pending), |stored| stored.value);
        let confirmed =
            write_affinity(node, cidr, Some(&Stored { value: before, revision }), AffinityState::Confirmed);
        match last(self.try_commit("claim", vec![confirmed]).await?) {
            Some(_) => Ok(Some(Claimed::Ours(Box::new(Stored { value: block, revision: created })))),
            None => Ok(None),
        }
    }

    /// The block is ours. Unless the affinity is confirmed already, the block is written once, so
    /// that a process that was about to release it fails; only then is the affinity confirmed.
    async fn confirm(
        &self,
        node: &NodeName,
        block: Stored<Block>,
        affinity: Option<Stored<Affinity>>,
    ) -> Result<Option<Claimed>, IpamError> {
        if affinity.as_ref().is_some_and(|stored| stored.value.state == AffinityState::Confirmed) {
            return Ok(Some(Claimed::Ours(Box::new(block))));
        }
        let cidr = block.value.cidr;
        let mut touched = block.value;
        block_ops::touch(&mut touched);
        let touch = Step::update(Key::block(cidr), touched.encode(), block.revision);
        let write = |before: Option<&Stored<Affinity>>, state| write_affinity(node, cidr, before, state);
        let revision = if self.store.claims().atomic {
            let confirmed = write(affinity.as_ref(), AffinityState::Confirmed);
            last(self.try_commit("confirm", vec![confirmed, touch]).await?)
        } else {
            let pending = write(affinity.as_ref(), AffinityState::Pending);
            let Some(announced) = last(self.try_commit("confirm", vec![pending]).await?) else {
                return Ok(None);
            };
            let Some(revision) = last(self.try_commit("confirm", vec![touch]).await?) else {
                return Ok(None);
            };
            let before = affinity.map_or(Affinity::new(AffinityState::Pending), |stored| stored.value);
            let before = Stored { value: before, revision: announced };
            let confirmed = write(Some(&before), AffinityState::Confirmed);
            last(self.try_commit("confirm", vec![confirmed]).await?).map(|_| revision)
        };
        Ok(revision.map(|revision| Claimed::Ours(Box::new(Stored { value: touched, revision }))))
    }

    /// The block serves another owner: removes our affinity and leaves the block unchanged.
    async fn forget_affinity(
        &self,
        node: &NodeName,
        cidr: BlockCidr,
        affinity: Option<Stored<Affinity>>,
    ) -> Result<Option<Claimed>, IpamError> {
        let Some(affinity) = affinity else { return Ok(Some(Claimed::Foreign)) };
        let delete = Step::delete(Key::affinity(node, cidr), Some(affinity.revision));
        Ok(self.try_commit("forget affinity", vec![delete]).await?.map(|_| Claimed::Foreign))
    }

    /// Commits. None if another writer was faster or the outcome is unknown: the caller then reads
    /// again and uses what it finds.
    pub(super) async fn try_commit(
        &self,
        operation: &str,
        steps: Vec<Step>,
    ) -> Result<Option<Vec<Revision>>, IpamError> {
        let subject = steps.last().map(|step| step.key().to_string()).unwrap_or_default();
        match self.store.commit(steps).await.map_err(|error| Failure::from(error.error)) {
            Ok(revisions) => Ok(Some(revisions)),
            Err(Failure::Lost | Failure::Unknown(_)) => Ok(None),
            Err(Failure::Fatal(error)) => Err(IpamError::store(format!("{operation} {subject}"), error)),
        }
    }
}

/// The step that sets the state of an affinity, whether it exists or not.
pub(super) fn write_affinity(
    node: &NodeName,
    cidr: BlockCidr,
    before: Option<&Stored<Affinity>>,
    state: AffinityState,
) -> Step {
    let key = Key::affinity(node, cidr);
    match before {
        Some(before) => Step::update(key, before.value.with_state(state).encode(), before.revision),
        None => Step::create(key, Affinity::new(state).encode()),
    }
}

fn last(revisions: Option<Vec<Revision>>) -> Option<Revision> {
    revisions?.last().copied()
}
