//! Handle counting (calico-ipam.md section 3.9).

use russet_addr::BlockCidr;
use russet_model::{Handle, HandleId, Key};

use super::block::Wanted;
use super::{Go, GoError, RETRIES, Result};

// === impl Go ===

impl Go {
    /// Any failure, a time-out included, is a reason to try again: what was written in spite of it counts twice.
    pub(super) async fn increment(&self, id: &HandleId, cidr: BlockCidr, count: usize) -> Result<()> {
        for _ in 0..RETRIES {
            let (mut handle, revision) = match self.get_handle(id).await {
                Ok(kv) => (kv.value, Some(kv.revision)),
                Err(GoError::NotFound) => (Handle::default(), None),
                Err(_) => continue,
            };
            handle.add(cidr, count as u64);
            if self.put_handle(id, &handle, revision).await.is_ok() {
                return Ok(());
            }
        }
        Err(GoError::Other("handle: too many retries"))
    }

    pub(super) async fn decrement(&self, id: &HandleId, cidr: BlockCidr, count: usize) -> Result<()> {
        for _ in 0..RETRIES {
            let kv = self.get_handle(id).await?;
            let mut handle = kv.value;
            let left = handle.count(cidr).checked_sub(count as u64);
            handle.set(cidr, left.ok_or(GoError::Other("handle: would go below zero"))?);
            let result = if handle.block.is_empty() {
                match self.delete(Key::handle(id), kv.revision).await {
                    Err(GoError::NotFound) => Ok(()),
                    result => result,
                }
            } else {
                self.put_handle(id, &handle, Some(kv.revision)).await
            };
            match result {
                Err(GoError::Conflict) => {}
                result => return result,
            }
        }
        Err(GoError::Other("handle: too many retries"))
    }

    /// IPsByHandle, with what guards a release. Unreadable blocks are passed over.
    pub(super) async fn ips_by_handle(&self, id: &HandleId) -> Result<Vec<Wanted>> {
        let handle = self.get_handle(id).await?.value;
        let mut found = Vec::new();
        for cidr in handle.blocks() {
            let Ok(block) = self.get_block(cidr).await else { continue };
            for ordinal in block.value.ordinals_of(id) {
                let Some(address) = cidr.address(ordinal) else { continue };
                let sequence_number = Some(block.value.sequence_number_of(ordinal));
                found.push(Wanted { address, handle: Some(id.clone()), sequence_number });
            }
        }
        Ok(found)
    }
}
