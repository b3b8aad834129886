//! What a kernel has that applied deltas, and how it decides.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use russet_addr::IpNet;

use super::random::Random;
use crate::flow::Flow;
use crate::ir::Direction;
use crate::table::{Delta, Identity, Key, Part, SourceRange, Verdict, Word};

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Model {
    identities: BTreeMap<IpNet, Identity>,
    decisions: BTreeMap<Key, Word>,
    wide: BTreeMap<Key, Vec<SourceRange>>,
    defaults: BTreeMap<(Direction, IpAddr), Word>,
}

/// A table without numbers of identities: for each local address and each prefix with an
/// identity, the decisions.
pub(super) type Canonical = BTreeMap<(Direction, IpAddr), (Word, BTreeMap<Option<IpNet>, Vec<(Part, Word)>>)>;

impl Model {
    pub(super) fn apply(&mut self, delta: &Delta) {
        merge(&mut self.identities, &delta.identities);
        merge(&mut self.decisions, &delta.decisions);
        merge(&mut self.wide, &delta.wide);
        merge(&mut self.defaults, &delta.defaults);
    }

    /// Whether the table is as the kernel needs it.
    pub(super) fn check(&self, context: &str) {
        for key in self.decisions.keys() {
            let all = Key { part: Part::All, ..*key };
            assert!(
                self.decisions.contains_key(&all),
                "{context}: {key:?} without a decision for everything"
            );
            assert!(self.defaults.contains_key(&(key.direction, key.local)), "{context}: {key:?} of nothing");
            let known = key.peer == Identity::WORLD || self.identities.values().any(|it| *it == key.peer);
            assert!(known, "{context}: {key:?} of an identity that no address has");
        }
        let is_wide = |key: &&Key| self.decisions[*key].verdict == Verdict::Wide;
        let keys = self.decisions.keys().filter(is_wide);
        assert!(keys.eq(self.wide.keys()), "{context}: wide decisions without rules, or rules without one");
        let wide: Vec<_> =
            self.identities.keys().filter(|net| net.prefix_len() < net.max_prefix_len()).collect();
        for pair in wide.windows(2) {
            assert!(!pair[0].contains(pair[1]), "{context}: {} is in {}", pair[1], pair[0]);
        }
        assert!(wide.iter().all(|net| net.prefix_len() > 0), "{context}: a prefix of everything");
    }

    pub(super) fn identity(&self, address: IpAddr) -> Identity {
        let single = self.identities.get(&IpNet::from(address));
        let around = || self.identities.iter().find(|(net, _)| net.contains(&address)).map(|(_, it)| it);
        single.or_else(around).copied().unwrap_or(Identity::WORLD)
    }

    /// The decision for a local address; `None` if it is of no local workload.
    pub(super) fn judge(&self, direction: Direction, local: IpAddr, flow: &Flow) -> Option<Word> {
        let default = *self.defaults.get(&(direction, local))?;
        let peer =
            self.identity(if direction == Direction::Ingress { flow.source } else { flow.destination });
        let decision = |part| {
            let key = Key { direction, local, peer, part };
            let word = self.decisions.get(&key).copied()?;
            let mut ranges = self.wide.get(&key).into_iter().flatten();
            let here = |it: &&SourceRange| (it.first..=it.last).contains(&flow.source_port);
            Some(if word.verdict == Verdict::Wide { ranges.find(here).unwrap().word } else { word })
        };
        let (protocol, port) = (flow.protocol, flow.destination_port);
        let range = || {
            let mine = self
                .decisions
                .iter()
                .filter(|(key, _)| (key.direction, key.local, key.peer) == (direction, local, peer));
            let mut hits = mine.filter(|(key, _)| match key.part {
                Part::Range(of, first, last) => of == protocol && (first..=last).contains(&port),
                _ => false,
            });
            let hit = hits.next().map(|(key, _)| key.part);
            assert!(hits.next().is_none(), "ranges overlap");
            hit
        };
        let found = decision(Part::Port(protocol, port))
            .or_else(|| range().and_then(decision))
            .or_else(|| decision(Part::Protocol(protocol)))
            .or_else(|| decision(Part::All));
        Some(found.unwrap_or(default))
    }

    /// Whether a random question is denied that was allowed before.
    pub(super) fn forbids_more_than(&self, before: &Self, random: &mut Random) -> bool {
        (0..64).any(|_| {
            let flow = random.flow();
            [(Direction::Egress, flow.source), (Direction::Ingress, flow.destination)].iter().any(
                |(direction, address)| {
                    let is_open = |model: &Self| {
                        model.judge(*direction, *address, &flow).map(|word| word.verdict == Verdict::Allow)
                    };
                    is_open(before) == Some(true) && is_open(self) == Some(false)
                },
            )
        })
    }

    pub(super) fn canonical(&self) -> Canonical {
        let nets: BTreeSet<Option<IpNet>> = self.identities.keys().copied().map(Some).chain([None]).collect();
        let rows = |direction, local| {
            let row = |net: Option<IpNet>| {
                let peer = net.map_or(Identity::WORLD, |net| self.identities[&net]);
                let mine = self
                    .decisions
                    .iter()
                    .filter(move |(key, _)| (key.direction, key.local, key.peer) == (direction, local, peer));
                mine.map(|(key, word)| (key.part, *word)).collect()
            };
            nets.iter().map(|net| (*net, row(*net))).collect()
        };
        self.defaults
            .iter()
            .map(|((direction, local), word)| ((*direction, *local), (*word, rows(*direction, *local))))
            .collect()
    }
}

fn merge<K: Ord + Clone, V: Clone>(map: &mut BTreeMap<K, V>, changes: &BTreeMap<K, Option<V>>) {
    for (key, value) in changes {
        match value {
            Some(value) => _ = map.insert(key.clone(), value.clone()),
            None => assert!(map.remove(key).is_some(), "an element is removed that is not there"),
        }
    }
}
