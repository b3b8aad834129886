//! AssignIP: one particular address (calico-ipam.md section 3.7). Selectors, modes, limits and
//! reservations do not apply.

use std::net::IpAddr;

use russet_addr::{BlockCidr, Family, IpNet, host_net};
use russet_model::{Block, IpPool, Key, KeyKind, Prefix};

use super::Allocator;
use super::claim::Claimed;
use super::take::Owner;
use crate::search::Occupied;
use crate::{Assigned, IpamError, Request, block_ops};

// === impl Allocator ===

impl Allocator {
    /// Assigns `address` to the request's handle; the request's numbers of addresses are ignored.
    /// The same handle and interface may repeat the request.
    pub async fn assign_ip(&self, request: &Request, address: IpAddr) -> Result<Assigned, IpamError> {
        let wanted = match address {
            IpAddr::V4(_) => Request { v4: u32::MAX, v6: 0, ..request.clone() },
            IpAddr::V6(_) => Request { v4: 0, v6: u32::MAX, ..request.clone() },
        };
        if self.existing(&wanted).await?.iter().any(|net| net.addr() == address) {
            return Ok(Assigned { addresses: vec![host_net(address)], existing: true });
        }
        if request.registered_node {
            self.node_of(request).await?;
        }
        let cidr = self.block_of(request, address).await?;
        // Without borrowing, an address of another node's block would not be routed to this one.
        let strict = !request.borrow || self.config().await?.strict_affinity;
        let owner = Owner::new(&request.handle, self.owner(request));
        let node = &request.node;
        let change = |block: &mut Block| {
            if (strict && !block.serves(node)) || !self.may_lend(block, node) {
                return Err(IpamError::ForeignBlock { block: cidr, owner: block.affinity.clone() });
            }
            block_ops::assign(block, address, &owner.attribute).map(|ordinal| vec![ordinal])
        };
        let key = Key::block(cidr);
        let mut tries = 0;
        loop {
            let mut first = self.block(cidr).await?;
            if first.is_none() {
                self.refuse_overlap(cidr, address).await?;
                if let Claimed::Ours(block) = self.claim(node, cidr).await? {
                    first = Some(*block);
                }
            }
            if self.take(cidr, first, &owner, change).await?.is_some() {
                return Ok(Assigned { addresses: vec![host_net(address)], existing: false });
            }
            self.again(&mut tries, "assign address in", &key).await?;
        }
    }

    async fn block_of(&self, request: &Request, address: IpAddr) -> Result<BlockCidr, IpamError> {
        let (pools, pool_error) = self.pools_and_error().await?;
        let holds = |pool: &&IpPool| pool.is_enabled() && pool.spec.cidr.contains(&IpNet::from(address));
        let missing = || pool_error.unwrap_or(IpamError::NotInPool { address });
        let pool = pools.iter().find(holds).ok_or_else(missing)?;
        if !pool.spec.allows(request.use_) {
            return Err(IpamError::NoPool {
                node: request.node.clone(),
                family: Family::of(address),
                reason: format!("{} has no {} among its allowedUses", pool.spec.cidr, request.use_.as_str()),
            });
        }
        BlockCidr::containing(address, pool.spec.block_prefix_len())
            .map_err(|error| IpamError::Invalid(error.to_string()))
    }

    /// A new block must not overlap one of another size.
    async fn refuse_overlap(&self, cidr: BlockCidr, address: IpAddr) -> Result<(), IpamError> {
        let records = self.records(&Prefix::blocks(Some(cidr.family()))).await?;
        let others = records.iter().filter_map(|record| match record.key.kind() {
            KeyKind::Block(block) if block != cidr => Some(block),
            _ => None,
        });
        if others.collect::<Occupied>().overlaps(cidr) {
            return Err(IpamError::Invalid(format!(
                "address {address}: block {cidr} would overlap a block of another size; drain that one first"
            )));
        }
        Ok(())
    }
}
