//! Removes affinities: of pools that no longer select the node, and of removed nodes and pools
//! (calico-ipam.md sections 3.4 step 5, 3.10).

use std::collections::BTreeMap;

use russet_addr::{BlockCidr, Family, IpNet, NodeName};
use russet_model::{Affinity, IpPool, Key, KeyKind, Prefix};
use russet_store::Step;

use super::{Allocator, Stored};
use crate::{IpamError, Request, pools};

/// Passes over a pool's affinities while nodes claim further blocks.
const PASSES_MAX: u32 = 100;

// === impl Allocator ===

impl Allocator {
    /// Releases all blocks of a node: empty ones are deleted, others keep their addresses without
    /// affinity, unless `must_be_empty`. Continues after errors and returns the last one.
    pub async fn release_node_affinities(
        &self,
        node: &NodeName,
        must_be_empty: bool,
    ) -> Result<(), IpamError> {
        let mut failed = None;
        for family in Family::BOTH {
            for (cidr, _) in self.affinities(node, family).await? {
                match self.release_affinity(node, cidr, must_be_empty).await {
                    Ok(()) | Err(IpamError::NoAffinity { .. } | IpamError::ForeignBlock { .. }) => {}
                    Err(error) => {
                        tracing::warn!(%node, block = %cidr, %error, "affinity not released");
                        failed = Some(error);
                    }
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Removes the allocator's records of a node. Addresses are not released: their handles still
    /// reach them.
    pub async fn remove_node(&self, node: &NodeName) -> Result<(), IpamError> {
        self.release_node_affinities(node, false).await?;
        let steps = vec![Step::delete(Key::ipam_host(node), None)];
        self.try_commit("remove node", steps).await?;
        Ok(())
    }

    /// Releases all blocks inside a prefix, of any node; for a pool that is removed.
    pub async fn release_pool_affinities(&self, pool: IpNet) -> Result<(), IpamError> {
        for _ in 0..PASSES_MAX {
            let mut again = false;
            for record in self.records(&Prefix::all_affinities()).await? {
                let KeyKind::Affinity { node, block } = record.key.kind() else { continue };
                if !pool.contains(&block.net()) {
                    continue;
                }
                match self.release_affinity(&node, block, false).await {
                    Ok(()) | Err(IpamError::NoAffinity { .. }) => {}
                    Err(IpamError::ForeignBlock { .. } | IpamError::Contended { .. }) => again = true,
                    Err(error) => return Err(error),
                }
            }
            if !again {
                return Ok(());
            }
        }
        Err(IpamError::Contended { operation: "release pool", key: Key::ipam_config(), tries: PASSES_MAX })
    }

    /// Releases the node's empty blocks in pools that no longer select it. Best effort: the request
    /// continues.
    pub(super) async fn release_strays(
        &self,
        request: &Request,
        all_pools: &[IpPool],
        labels: Option<&BTreeMap<String, String>>,
        others: &[(BlockCidr, Stored<Affinity>)],
    ) {
        for (cidr, _) in others {
            if deselected(*cidr, all_pools, &request.node, labels)
                && let Err(error) = self.release_affinity(&request.node, *cidr, true).await
            {
                tracing::debug!(block = %cidr, %error, "stray block kept");
            }
        }
    }

    /// After a release: releases the block if it is empty and its pool does not select its node any
    /// more. Best effort.
    pub(super) async fn tidy_affinity(&self, cidr: BlockCidr) {
        if let Err(error) = self.try_tidy(cidr).await {
            tracing::debug!(block = %cidr, %error, "affinity could not be checked");
        }
        self.cache.make_room();
    }

    async fn try_tidy(&self, cidr: BlockCidr) -> Result<(), IpamError> {
        let Some(block) = self.block(cidr).await?.filter(|block| block.value.is_empty()) else {
            return Ok(());
        };
        let Some(name) = block.value.node() else { return Ok(()) };
        let Some(node) = self.node(&name).await? else { return Ok(()) };
        if deselected(cidr, &self.pools().await?, &name, Some(&node.metadata.labels)) {
            self.release_affinity(&name, cidr, true).await?;
        }
        Ok(())
    }
}

/// Whether an enabled pool holds the block and does not select the node.
fn deselected(
    cidr: BlockCidr,
    all_pools: &[IpPool],
    node: &NodeName,
    labels: Option<&BTreeMap<String, String>>,
) -> bool {
    let mut holding =
        all_pools.iter().filter(|pool| pool.is_enabled() && pool.spec.cidr.contains(&cidr.net()));
    holding.next().is_some_and(|pool| matches!(pools::selects_node(pool, node, labels), Ok(false)))
}
