//! Compares the store's records with the processes' records, and returns the faults. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use russet_ipam::audit::audit;
use russet_model::{Block, HandleId, KeyKind};
use russet_store::Record;

use crate::expected_owners::ExpectedOwners;

/// All faults, as text.
///
/// `audit` checks that every block decodes and keeps the five invariants of calico-ipam.md section
/// 1.3, that blocks do not overlap, that handles count exactly what blocks hold, and that
/// affinities and blocks agree. This adds the comparison with the processes' records.
pub fn faults(records: &[Record], expected_owners: &[ExpectedOwners]) -> Vec<String> {
    let mut faults: Vec<String> = audit(records).findings.iter().map(ToString::to_string).collect();
    let mut believed: BTreeMap<IpAddr, (usize, &str)> = BTreeMap::new();
    for (process, expected_owners) in expected_owners.iter().enumerate() {
        for (handle, addresses) in &expected_owners.owned {
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
    let unexpected = stored.iter().filter(|(address, _)| !believed.contains_key(address));
    faults.extend(
        unexpected
            .map(|(address, handle)| format!("{address} is stored for {handle}, which does not believe so")),
    );
    faults
}

/// The owner of each address by the blocks. The audit reports unreadable blocks.
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

    /// Two processes whose records match the store.
    fn expected_owners(records: &[Record]) -> [ExpectedOwners; 2] {
        let mut expected_owners = [ExpectedOwners::default(), ExpectedOwners::default()];
        for (index, (address, handle)) in stored(records).into_iter().enumerate() {
            expected_owners[index % 2].owned.entry(handle).or_default().insert(address);
        }
        expected_owners
    }

    #[test]
    fn records_that_match_the_store_have_no_faults() {
        let records = records();
        assert_eq!(faults(&records, &expected_owners(&records)), [""; 0]);
    }

    #[test]
    fn two_owners_a_lost_and_an_unknown_address_are_reported() {
        let records = records();
        let [first, second] = expected_owners(&records);
        let mut greedy = second.clone();
        greedy.owned.extend(first.owned.clone());
        let found = faults(&records, &[first.clone(), greedy]);
        assert_eq!(found.len(), 32);
        assert!(found[0].contains("has two owners: process 0 by k8s-pod-network."), "{}", found[0]);
        assert!(faults(&records, std::slice::from_ref(&first))[0].ends_with("which does not believe so"));
        let mut dreamer = second;
        dreamer.owned.entry("net.dream".into()).or_default().insert("10.0.1.1".parse().unwrap());
        let found = faults(&records, &[first, dreamer]);
        assert_eq!(found, ["10.0.1.1: process 1 believes net.dream has it, and it is free"]);
    }

    #[test]
    fn a_wrong_handle_count_and_a_broken_block_are_reported() {
        let mut records = records();
        let expected_owners = expected_owners(&records);
        let block = full_block(1, 0).cidr;
        let handle =
            records.iter_mut().find(|record| matches!(record.key.kind(), KeyKind::Handle(_))).unwrap();
        let mut counted = Handle::decode(&handle.value).unwrap();
        counted.set(block, 2);
        handle.value = counted.encode();
        assert!(faults(&records, &expected_owners)[0].ends_with("counts 2 of 10.0.0.0/26, which holds 1"));
        let block = records.iter_mut().find(|record| record.key == Key::block(block)).unwrap();
        block.value = String::from_utf8(block.value.clone())
            .unwrap()
            .replacen("\"unallocated\":[]", "\"unallocated\":[1]", 1)
            .into();
        assert!(faults(&records, &expected_owners)[0].contains("10.0.0.0-26: block at unallocated"));
    }
}
