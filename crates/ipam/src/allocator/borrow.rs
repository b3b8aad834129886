//! Borrowing: an address of another node's block, if no block can be claimed and strict affinity is
//! off (calico-ipam.md section 3.4 step 8). The block keeps its affinity.

use std::collections::BTreeSet;

use russet_addr::BlockCidr;
use russet_model::{Block, Prefix};

use super::auto::FamilyRun;
use super::{Allocator, readable};
use crate::search::fnv1;
use crate::{IpamError, block_ops};

// === impl Allocator ===

impl Allocator {
    pub(super) async fn borrow(
        &self,
        run: &mut FamilyRun<'_>,
        touched: &mut BTreeSet<BlockCidr>,
    ) -> Result<(), IpamError> {
        let records = self.records(&Prefix::blocks(Some(run.family))).await?;
        let blocks: Vec<Block> =
            records.iter().filter_map(|record| readable(record, Block::decode)).collect();
        let node = run.request.node.clone();
        let pools: Vec<_> = run.pools.iter().map(|pool| pool.spec.cidr).collect();
        for pool in pools {
            let free = blocks.iter().filter(|block| {
                pool.contains(&block.cidr.net()) && block_ops::has_free(block, &run.reserved)
            });
            let (lenders, strict): (Vec<&Block>, Vec<&Block>) =
                free.partition(|block| self.may_lend(block, &node));
            run.passed_strict |= !strict.is_empty();
            let mut lenders: Vec<BlockCidr> = lenders.iter().map(|block| block.cidr).collect();
            // Each node starts with another block, so that nodes without free blocks do not compete
            // for one block.
            let start = fnv1(node.as_str()) as usize % lenders.len().max(1);
            lenders.rotate_left(start);
            for cidr in lenders {
                if run.missing() == 0 {
                    return Ok(());
                }
                self.take_some(run, cidr, None, touched, |block| self.may_lend(block, &node)).await?;
            }
        }
        Ok(())
    }
}
