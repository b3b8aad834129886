//! The verdict: the store's records and what the processes believe in, faults out. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use russet_ipam::audit::audit;
use russet_model::{Block, HandleId, KeyKind};
use russet_store::Record;

use crate::belief::Belief;

/// Everything that is not as it should be, in words; empty when all is well.
///
/// `audit` checks that every block decodes and keeps the five invariants of calico-ipam.md section 1.3, that blocks do not overlap, that handles count
/// exactly what blocks hold, and that affinities and blocks agree. Here is added who believes to own what.
pub fn faults(records: &[Record], beliefs: &[Belief]) -> Vec<String> {
    let mut faults: Vec<String> = audit(records).findings.iter().map(ToString::to_string).collect();
    let mut believed: BTreeMap<IpAddr, (usize, &str)> = BTreeMap::new();
    for (process, belief) in beliefs.iter().enumerate() {
        for (handle, addresses) in &belief.owned {
            for address in addresses {
                if let Some((other, other_handle)) = believed.insert(*address, (process, handle)) {
                    let text = format!(
                        "{address} has two owners: process {other} by {other_handle} and process {process} by {handle}"
                    );
                    faults.push(text);
                }
            }
        }
    }
    let stored = stored(records);
    for (address, (process, handle)) in &believed {
        match stored.get(address) {
            Some(holder) if holder == handle => {}
            Some(holder) => faults
                .push(format!("{address}: process {process} believes {handle} has it, stored is {holder}")),
            None => {
                faults.push(format!("{address}: process {process} believes {handle} has it, and it is free"))
            }
        }
    }
    let strangers = stored.iter().filter(|(address, _)| !believed.contains_key(address));
    faults.extend(
        strangers
            .map(|(address, handle)| format!("{address} is stored for {handle}, which does not believe so")),
    );
    faults
}

/// Who has which address, by the blocks. Blocks that cannot be read are the audit's business.
fn stored(records: &[Record]) -> BTreeMap<IpAddr, String> {
    let blocks = records.iter().filter(|record| matches!(record.key.kind(), KeyKind::Block(_)));
    let mut stored = BTreeMap::new();
    for block in blocks.filter_map(|record| Block::decode(&record.value).ok()) {
        for ordinal in 0..block.cidr.size() {
            if let (Some(owner), Some(address)) = (block.attribute(ordinal), block.cidr.address(ordinal)) {
                let handle = owner.handle_id.as_deref().map(HandleId::sanitized).unwrap_or_default();
                stored.insert(address, handle.to_owned());
            }
        }
    }
    stored
}

#[cfg(test)]
mod tests {
    use russet_model::{Handle, Key};
    use russet_store::Revision;
    use russet_testkit::blocks::{full_block, pool};

    use super::*;

    fn records() -> Vec<Record> {
        let all = std::iter::once(pool()).chain(full_block(1, 0).records);
        all.map(|(key, value)| Record { key, value, revision: Revision(1) }).collect()
    }

    /// Two processes who know exactly what is stored.
    fn beliefs(records: &[Record]) -> [Belief; 2] {
        let mut beliefs = [Belief::default(), Belief::default()];
        for (index, (address, handle)) in stored(records).into_iter().enumerate() {
            beliefs[index % 2].owned.entry(handle).or_default().insert(address);
        }
        beliefs
    }

    #[test]
    fn who_believes_what_is_stored_is_without_fault() {
        let records = records();
        assert_eq!(faults(&records, &beliefs(&records)), [""; 0]);
    }

    #[test]
    fn two_owners_a_lost_address_and_one_that_nobody_knows_are_told() {
        let records = records();
        let [first, second] = beliefs(&records);
        let mut greedy = second.clone();
        greedy.owned.extend(first.owned.clone());
        let told = faults(&records, &[first.clone(), greedy]);
        assert_eq!(told.len(), 32);
        assert!(told[0].contains("has two owners: process 0 by k8s-pod-network."), "{}", told[0]);
        assert!(faults(&records, std::slice::from_ref(&first))[0].ends_with("which does not believe so"));
        let mut dreamer = second;
        dreamer.owned.entry("net.dream".into()).or_default().insert("10.0.1.1".parse().unwrap());
        let told = faults(&records, &[first, dreamer]);
        assert_eq!(told, ["10.0.1.1: process 1 believes net.dream has it, and it is free"]);
    }

    #[test]
    fn a_handle_that_counts_wrongly_and_a_broken_block_are_told() {
        let mut records = records();
        let beliefs = beliefs(&records);
        let block = full_block(1, 0).cidr;
        let handle =
            records.iter_mut().find(|record| matches!(record.key.kind(), KeyKind::Handle(_))).unwrap();
        let mut counted = Handle::decode(&handle.value).unwrap();
        counted.set(block, 2);
        handle.value = counted.encode();
        assert!(faults(&records, &beliefs)[0].ends_with("counts 2 of 10.0.0.0/26, which holds 1"));
        let block = records.iter_mut().find(|record| record.key == Key::block(block)).unwrap();
        block.value = String::from_utf8(block.value.clone())
            .unwrap()
            .replacen("\"unallocated\":[]", "\"unallocated\":[1]", 1)
            .into();
        assert!(faults(&records, &beliefs)[0].contains("10.0.0.0-26: block at unallocated"));
    }
}
