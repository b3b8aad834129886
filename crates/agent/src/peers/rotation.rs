//! Which nodes are probed now: as many as there are slots, so that a node's probes do not grow with
//! the cluster. In a cluster with more nodes, they take turns in random order. Pure; the seed decides.

use std::collections::{BTreeSet, VecDeque};

use russet_addr::NodeName;
use russet_sync::Rng;

/// The slots, and the order in which the other nodes get one.
#[derive(Debug)]
pub struct Rotation {
    slots: Vec<Option<NodeName>>,
    waiting: VecDeque<NodeName>,
    rng: Rng,
}

/// What is known of the node in a slot when the slot's turn comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stay {
    /// Not enough is known yet.
    Undecided,
    /// It answers.
    Settled,
    /// It does not: it keeps its slot, so that its return is noticed soon.
    Unreachable,
}

// === impl Rotation ===

impl Rotation {
    pub fn new(slots: usize, seed: u64) -> Self {
        Self { slots: vec![None; slots.max(1)], waiting: VecDeque::new(), rng: Rng::new(seed) }
    }

    /// How many nodes are probed at a time, at most.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether there are more nodes than slots.
    pub fn rotates(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sets the nodes that exist. The others keep their slots and their order; new ones come in random places, so that
    /// not all nodes of a cluster probe a new one at once.
    pub fn set<'n>(&mut self, names: impl Iterator<Item = &'n NodeName>) {
        let mut new: BTreeSet<&NodeName> = names.collect();
        for slot in &mut self.slots {
            slot.take_if(|name| !new.remove::<NodeName>(name));
        }
        self.waiting.retain(|name| new.remove::<NodeName>(name));
        if self.waiting.is_empty() || new.len() > self.waiting.len() {
            let mut all: Vec<NodeName> = self.waiting.drain(..).chain(new.into_iter().cloned()).collect();
            self.shuffle(&mut all);
            self.waiting = all.into();
            return;
        }
        for name in new {
            let place = self.below(self.waiting.len() + 1);
            self.waiting.insert(place, name.clone());
        }
    }

    /// The node to probe in this slot now. Its node makes room for a waiting one once it is settled, or when it does
    /// not answer and half of the slots are kept by such nodes.
    pub fn turn(&mut self, slot: usize, stay: impl Fn(&NodeName) -> Stay) -> Option<&NodeName> {
        if let Some(name) = self.slots.get(slot)?
            && !self.waiting.is_empty()
        {
            let leaves = match stay(name) {
                Stay::Undecided => false,
                Stay::Settled => true,
                Stay::Unreachable => {
                    let is_kept = |name: &&NodeName| stay(name) == Stay::Unreachable;
                    self.slots.iter().flatten().filter(is_kept).count() > self.slots.len() / 2
                }
            };
            if leaves {
                self.waiting.extend(self.slots.get_mut(slot)?.take());
            }
        }
        let place = self.slots.get_mut(slot)?;
        if place.is_none() {
            *place = self.waiting.pop_front();
        }
        place.as_ref()
    }

    /// The nodes that have slots.
    pub fn probed(&self) -> impl Iterator<Item = &NodeName> {
        self.slots.iter().flatten()
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.rng.below(bound as u64)).unwrap_or(0)
    }

    /// Fisher and Yates.
    fn shuffle(&mut self, names: &mut [NodeName]) {
        for last in (1..names.len()).rev() {
            let other = self.below(last + 1);
            names.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn names(count: usize) -> Vec<NodeName> {
        (0..count).map(|n| NodeName::new(format!("n{n}")).unwrap()).collect()
    }

    /// One interval: each slot has its turn.
    fn interval(rotation: &mut Rotation, stay: impl Fn(&NodeName) -> Stay) -> Vec<NodeName> {
        (0..rotation.len()).filter_map(|slot| rotation.turn(slot, &stay).cloned()).collect()
    }

    #[test]
    fn a_small_cluster_is_probed_as_a_whole_and_all_the_time() {
        let names = names(5);
        let mut rotation = Rotation::new(16, 1);
        rotation.set(names.iter());
        for _ in 0..10 {
            let probed: BTreeSet<NodeName> = interval(&mut rotation, |_| Stay::Settled).into_iter().collect();
            assert_eq!(probed, names.iter().cloned().collect());
            assert!(!rotation.rotates());
        }
    }

    #[test]
    fn each_node_of_a_large_cluster_has_its_turn_and_no_interval_has_more_than_the_slots() {
        for seed in 0..20 {
            let names = names(1000);
            let mut rotation = Rotation::new(16, seed);
            rotation.set(names.iter());
            // Three of them never answer.
            let stay = |name: &NodeName| match name.as_str() {
                "n3" | "n500" | "n999" => Stay::Unreachable,
                _ => Stay::Settled,
            };
            let mut seen: BTreeMap<NodeName, usize> = BTreeMap::new();
            for _ in 0..1000_usize.div_ceil(16 - 3) + 2 {
                let probed = interval(&mut rotation, stay);
                assert!(probed.len() <= 16, "seed {seed}");
                assert_eq!(probed.iter().collect::<BTreeSet<_>>().len(), probed.len(), "seed {seed}: twice");
                probed.into_iter().for_each(|name| *seen.entry(name).or_default() += 1);
            }
            assert_eq!(seen.len(), 1000, "seed {seed}");
            assert!(seen[&names[3]] > 1 && seen[&names[4]] < 3, "seed {seed}");
        }
    }

    #[test]
    fn unreachable_nodes_keep_at_most_half_of_the_slots() {
        for seed in 0..20 {
            let names = names(300);
            let mut rotation = Rotation::new(8, seed);
            rotation.set(names.iter());
            let unreachable = |name: &NodeName| names[..200].contains(name);
            let stay = |name: &NodeName| match unreachable(name) {
                true => Stay::Unreachable,
                false => Stay::Settled,
            };
            let mut seen = BTreeSet::new();
            for _ in 0..300 {
                seen.extend(interval(&mut rotation, stay));
            }
            assert_eq!(seen.len(), 300, "seed {seed}: every node has had its turn");
            let before: BTreeSet<NodeName> = rotation.probed().cloned().collect();
            let after = interval(&mut rotation, stay);
            let kept = after.iter().filter(|name| before.contains(*name)).count();
            assert!(kept <= 4, "seed {seed}: {kept} of 8");
        }
    }

    #[test]
    fn nodes_that_leave_lose_their_slots_and_new_ones_get_a_turn() {
        let all = names(40);
        let mut rotation = Rotation::new(4, 9);
        rotation.set(all[..20].iter());
        interval(&mut rotation, |_| Stay::Undecided);
        let kept: Vec<NodeName> = rotation.probed().cloned().collect();
        rotation.set(all[..20].iter());
        assert_eq!(rotation.probed().cloned().collect::<Vec<_>>(), kept, "the same nodes change nothing");
        rotation.set(all[15..].iter());
        assert!(rotation.probed().all(|name| all[15..].contains(name)));
        let mut seen = BTreeSet::new();
        for _ in 0..7 {
            seen.extend(interval(&mut rotation, |_| Stay::Settled));
        }
        assert_eq!(seen, all[15..].iter().cloned().collect());
        rotation.set([].into_iter());
        assert_eq!(rotation.turn(0, |_| Stay::Settled), None);
    }
}
