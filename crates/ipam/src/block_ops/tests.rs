//! Random operations on a block, compared with a model of the owners and the order of the queue.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;

/// The block as its users see it.
#[derive(Default)]
struct Model {
    free: VecDeque<usize>,
    owners: BTreeMap<usize, u8>,
}

#[derive(Debug, Clone)]
enum Op {
    Auto(usize, u8),
    Assign(usize, u8),
    Release(Vec<usize>),
    ReleaseHandle(u8),
    Rewrite,
}

const SIZE: usize = 16;

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0..5_usize, 0..6_u8).prop_map(|(count, owner)| Op::Auto(count, owner)),
        (0..SIZE, 0..6_u8).prop_map(|(ordinal, owner)| Op::Assign(ordinal, owner)),
        prop::collection::vec(0..SIZE, 0..5).prop_map(Op::Release),
        (0..6_u8).prop_map(Op::ReleaseHandle),
        Just(Op::Rewrite),
    ]
}

fn owner(id: u8) -> Attribute {
    Attribute { handle_id: Some(format!("net.{id}")), ..Attribute::default() }
}

fn options(block: &Block, ordinal: usize) -> ReleaseOptions {
    ReleaseOptions { address: block.cidr.address(ordinal).unwrap(), handle: None, sequence_number: None }
}

fn apply(block: &mut Block, model: &mut Model, op: &Op, reserved: &Reserved) {
    match op {
        Op::Auto(count, id) => {
            let allowed: Vec<usize> =
                model.free.iter().copied().filter(|o| !reserved.holds(block.cidr, *o)).collect();
            let taken: Vec<usize> = allowed.into_iter().take(*count).collect();
            model.free.retain(|ordinal| !taken.contains(ordinal));
            model.owners.extend(taken.iter().map(|ordinal| (*ordinal, *id)));
            assert_eq!(auto_assign(block, *count, &owner(*id), reserved), taken);
        }
        Op::Assign(ordinal, id) => {
            let address = block.cidr.address(*ordinal).unwrap();
            let result = assign(block, address, &owner(*id));
            assert_eq!(result.is_ok(), !model.owners.contains_key(ordinal));
            if result.is_ok() {
                model.free.retain(|free| free != ordinal);
                model.owners.insert(*ordinal, *id);
            }
        }
        Op::Release(ordinals) => {
            let list: Vec<ReleaseOptions> = ordinals.iter().map(|ordinal| options(block, *ordinal)).collect();
            let freed: Vec<usize> =
                release(block, &list).unwrap().freed.iter().map(|(ordinal, _)| *ordinal).collect();
            let mut wanted = ordinals.clone();
            wanted.sort_unstable();
            wanted.dedup();
            wanted.retain(|ordinal| model.owners.remove(ordinal).is_some());
            model.free.extend(&wanted);
            assert_eq!(freed, wanted);
        }
        Op::ReleaseHandle(id) => {
            let wanted: Vec<usize> =
                model.owners.iter().filter(|(_, owner)| *owner == id).map(|(o, _)| *o).collect();
            model.owners.retain(|_, owner| owner != id);
            model.free.extend(&wanted);
            assert_eq!(release_by_handle(block, &HandleId::new(format!("net.{id}")).unwrap(), None), wanted);
        }
        Op::Rewrite => *block = Block::decode(&block.encode()).unwrap(),
    }
}

proptest! {
    #[test]
    fn a_block_behaves_like_the_model_and_keeps_its_invariants(ops in prop::collection::vec(op(), 1..60), seed in any::<u16>()) {
        // calico-ipam.md sections 1.3 and 3.2
        let node = "node-a".parse().unwrap();
        let mut block = new_block("10.1.0.0/28".parse().unwrap(), &node, UNIX_EPOCH);
        let reserved = Reserved(vec![format!("10.1.0.{}/31", seed % 16 / 2 * 2).parse().unwrap()]);
        let mut model = Model { free: (0..SIZE).collect(), ..Model::default() };
        for op in ops {
            let before = block.clone();
            apply(&mut block, &mut model, &op, &reserved);
            prop_assert_eq!(block.validate(), Ok(()));
            prop_assert_eq!(&block.unallocated, &Vec::from(model.free.clone()));
            for ordinal in 0..SIZE {
                let held = model.owners.get(&ordinal).map(|id| owner(*id));
                prop_assert_eq!(block.attribute(ordinal), held.as_ref());
            }
            let changed = block.allocations != before.allocations;
            if !matches!(op, Op::Rewrite) {
                prop_assert_eq!(block.sequence_number, before.sequence_number + u64::from(changed));
            }
            prop_assert_eq!(block.sequence_numbers.as_ref().unwrap().len(), model.owners.len());
        }
    }
}

#[test]
fn a_release_of_an_interface_includes_entries_without_an_interface() {
    // calico-ipam.md section 9, SHOULD
    let node = "node-a".parse().unwrap();
    let mut block = new_block("10.1.0.0/29".parse().unwrap(), &node, UNIX_EPOCH);
    let of = |interface: Option<&str>| Attribute {
        handle_id: Some("net.a\r\neth0".into()),
        secondary: interface.map(|name| [("interface".to_owned(), name.to_owned())].into()),
        ..Attribute::default()
    };
    for interface in [Some("eth0"), Some("net1"), None] {
        auto_assign(&mut block, 1, &of(interface), &Reserved::default());
    }
    let handle = HandleId::new("net.a").unwrap();
    let net1 = "net1".parse().unwrap();
    assert_eq!(release_by_handle(&mut block, &handle, Some(&net1)), [1, 2]);
    assert_eq!(release_by_handle(&mut block, &handle, None), [0]);
}

#[test]
fn a_guard_that_fails_leaves_the_block_unchanged() {
    // calico-ipam.md section 3.2
    let node = "node-a".parse().unwrap();
    let mut block = new_block("10.1.0.0/29".parse().unwrap(), &node, UNIX_EPOCH);
    auto_assign(&mut block, 2, &owner(1), &Reserved::default());
    let before = block.clone();
    let bad = ReleaseOptions { sequence_number: Some(99), ..options(&block, 1) };
    assert!(matches!(release(&mut block, &[options(&before, 0), bad]), Err(IpamError::BadSequence { .. })));
    assert_eq!(block, before);
}
