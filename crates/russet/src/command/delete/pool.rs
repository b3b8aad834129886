//! Deleting a pool (calico-ipam.md section 1.8): it is disabled, its blocks are released, and then it is
//! deleted. Addresses in use stay.

use russet_model::{Block, IpPool, KeyKind, Prefix};
use russet_store::Step;

use super::{DeleteError, Target};
use crate::command::Failure;
use crate::command::place::Place;
use crate::output;

/// Deletes a pool, and reports what of it stays in use.
pub(super) async fn delete(place: &Place, target: &Target, dry_run: bool) -> Result<(), Failure> {
    let record = target.read(place).await?;
    let pool = IpPool::decode(&record.value);
    if dry_run {
        return match pool {
            Ok(pool) => report_in_use(place, &pool).await,
            Err(_) => Ok(()),
        };
    }
    if let (Ok(pool), Some(_)) = (&pool, target.revision) {
        // Checks the named revision; after this write, no other client uses the pool for new
        // addresses.
        let mut disabled = pool.clone();
        disabled.spec.disabled = true;
        let step = Step::update(record.key.clone(), disabled.encode(), record.revision);
        if let Err(error) = place.store.commit(vec![step]).await {
            let lost = error.error.lost_race();
            return Err(if lost { DeleteError::Contended(target.subject()).into() } else { error.into() });
        }
    }
    let Ok(pool) = pool else { return target.remove(place).await };
    place.allocator().delete_pool(&target.name).await?;
    report_in_use(place, &pool).await
}

/// Prints how many addresses of the pool stay with their pods.
async fn report_in_use(place: &Place, pool: &IpPool) -> Result<(), Failure> {
    let in_use = in_use(place, pool).await?;
    if in_use > 0 {
        output::progress(&format!(
            "{in_use} addresses of {} are still in use; their pods keep them, and `{}` lists their blocks",
            pool.spec.cidr,
            place.paths.command("ipam show")
        ));
    }
    Ok(())
}

async fn in_use(place: &Place, pool: &IpPool) -> Result<usize, Failure> {
    let records = place.store.list(&Prefix::blocks(Some(pool.spec.family()))).await?.records;
    let inside = records.iter().filter(|record| match record.key.kind() {
        KeyKind::Block(block) => pool.spec.cidr.contains(&block.net()),
        _ => false,
    });
    let blocks = inside.filter_map(|record| Block::decode(&record.value).ok());
    Ok(blocks
        .map(|block| (0..block.cidr.size()).filter(|ordinal| block.attribute(*ordinal).is_some()).count())
        .sum())
}
