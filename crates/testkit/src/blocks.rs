//! A large cluster's addresses: full /26 blocks with their affinities and handles, as Calico's plugin leaves them (calico-ipam.md sections 1.3 to 1.6).
//! The same seed gives the same bytes. For tests of volume, and for benchmarks.

#![allow(clippy::unwrap_used, reason = "a broken test bench fails the test")]

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use russet_addr::{BlockCidr, NodeName};
use russet_model::{Affinity, AffinityState, Attribute, Block, Handle, HandleId, IpPool, IpPoolSpec, Key};

use crate::Random;

/// The pool that holds all of them.
pub const POOL: &str = "10.0.0.0/8";
/// Addresses of a block.
pub const BLOCK_ADDRESSES: u32 = 64;
/// Blocks of a node: a node of 250 pods.
const BLOCKS_PER_NODE: u32 = 4;
/// When the first block was claimed, 2026-01-02 03:00:00 UTC, in seconds and in words.
const CLAIMED_S: u64 = 1_767_322_800;
const CLAIM_TIME: &str = "2026-01-02T03:00:00Z";
const NAMESPACES: [&str; 6] =
    ["default", "checkout", "kube-system", "monitoring", "payments", "web-frontend"];
const APPS: [&str; 6] = ["api-gateway", "cart", "cache", "exporter", "ledger-worker", "storefront"];

/// One block and what belongs to it.
#[derive(Debug, Clone)]
pub struct FullBlock {
    /// Which.
    pub cidr: BlockCidr,
    /// Block, affinity and one handle for each of its addresses; these go into one commit.
    pub records: Vec<(Key, Vec<u8>)>,
}

/// The record of the pool.
pub fn pool() -> (Key, Vec<u8>) {
    let pool = IpPool::new("default-ipv4-ippool", IpPoolSpec::new(POOL.parse().unwrap()));
    (Key::pool("default-ipv4-ippool").unwrap(), pool.encode())
}

/// `count` blocks in the order of their addresses, each made when it is asked for.
pub fn full_blocks(seed: u64, count: u32) -> impl Iterator<Item = FullBlock> {
    (0..count).map(move |index| full_block(seed, index))
}

/// The block at `index`, which depends on nothing but the two numbers.
pub fn full_block(seed: u64, index: u32) -> FullBlock {
    let mut numbers = Random::new(seed ^ (u64::from(index) << 32));
    let node =
        NodeName::new(format!("worker-{:04}.eu-central.example.net", index / BLOCKS_PER_NODE)).unwrap();
    let first = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 0)) + index * BLOCK_ADDRESSES);
    let cidr: BlockCidr = format!("{first}/26").parse().unwrap();
    let handles: Vec<HandleId> = (0..BLOCK_ADDRESSES)
        .map(|_| HandleId::new(format!("k8s-pod-network.{}", numbers.hex())).unwrap())
        .collect();
    let block = block(cidr, &node, &handles, &mut numbers);
    let affinity = Affinity::new(AffinityState::Confirmed);
    let mut records =
        vec![(Key::block(cidr), block.encode()), (Key::affinity(&node, cidr), affinity.encode())];
    records.extend(handles.iter().map(|id| {
        let mut handle = Handle::default();
        handle.add(cidr, 1);
        (Key::handle(id), handle.encode())
    }));
    FullBlock { cidr, records }
}

fn block(cidr: BlockCidr, node: &NodeName, handles: &[HandleId], numbers: &mut Random) -> Block {
    // Pods come and go, so that the owners no longer stand in the order of the addresses.
    let mut order: Vec<usize> = (0..handles.len()).collect();
    for place in (1..order.len()).rev() {
        order.swap(place, numbers.below(place + 1));
    }
    let created = CLAIMED_S * 1_000_000_000 + (numbers.next_u64() >> 24);
    let taken = (0..handles.len()).map(|ordinal| (ordinal.to_string(), created + numbers.next_u64() % 5000));
    let sequence_numbers: BTreeMap<String, u64> = taken.collect();
    Block {
        cidr,
        affinity: Some(Block::affinity_of(node)),
        affinity_claim_time: Some(CLAIM_TIME.to_owned()),
        allocations: order.into_iter().map(Some).collect(),
        unallocated: Vec::new(),
        attributes: Some(handles.iter().map(|handle| owner(node, handle, numbers)).collect()),
        sequence_number: created + 5000,
        sequence_numbers: Some(sequence_numbers),
        deleted: false,
        host_affinity: None,
        strict_affinity: false,
        extra: Default::default(),
    }
}

fn owner(node: &NodeName, handle: &HandleId, numbers: &mut Random) -> Attribute {
    let app = APPS[numbers.below(APPS.len())];
    let replica = format!("{:010x}", numbers.next_u64() >> 24);
    let pod = format!("{app}-{replica}-{:05x}", numbers.next_u64() >> 44);
    let (minute, second, nanos) = (numbers.below(60), numbers.below(60), numbers.next_u64() % 1_000_000_000);
    let secondary = [
        ("interface", "eth0".to_owned()),
        ("namespace", NAMESPACES[numbers.below(NAMESPACES.len())].to_owned()),
        ("node", node.to_string()),
        ("pod", pod),
        ("timestamp", format!("2026-01-02 03:{minute:02}:{second:02}.{nanos:09} +0000 UTC")),
    ];
    Attribute {
        handle_id: Some(handle.to_string()),
        secondary: Some(secondary.map(|(name, value)| (name.to_owned(), value)).into()),
        ..Attribute::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_full_valid_of_about_20_kb_and_the_same_again() {
        let first = full_block(1, 9_999);
        let (key, value) = &first.records[0];
        assert_eq!(*key, Key::block("10.9.195.192/26".parse().unwrap()));
        assert!((18_000..22_000).contains(&value.len()), "{}", value.len());
        let block = Block::decode(value).unwrap();
        assert!(block.unallocated.is_empty() && block.attributes().len() == 64);
        assert_eq!(first.records.len(), 2 + 64);
        for (key, _) in &first.records {
            assert_ne!(key.kind(), russet_model::KeyKind::Other, "{key}");
        }
        assert_eq!(first.records, full_block(1, 9_999).records);
        assert_ne!(first.records, full_block(2, 9_999).records);
    }
}
