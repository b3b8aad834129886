//! What the kernel has after each transaction of random deltas.

use russet_testkit::Random;

use super::*;

/// Elements by their sets and keys.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Kernel(BTreeMap<At, BTreeMap<Vec<KeyPart>, Option<russet_nft::Value>>>);

// === impl Kernel ===

impl Kernel {
    /// What it has of everything that is decided.
    pub fn of(content: &Decisions, lists: &Lists) -> Self {
        let wanted = content.elements(lists).into_iter().filter(|(_, elements)| !elements.is_empty());
        let by_key = |all: Vec<Element>| all.into_iter().map(|it| (it.key, it.value)).collect();
        Self(wanted.map(|(at, elements)| (at, by_key(elements))).collect())
    }

    pub fn elements(&self) -> BTreeMap<At, Vec<Element>> {
        let element = |(key, value): (&Vec<KeyPart>, &Option<russet_nft::Value>)| Element {
            value: value.clone(),
            ..Element::concatenation(key.clone())
        };
        self.0.iter().map(|(at, set)| (*at, set.iter().map(element).collect())).collect()
    }

    /// Refuses what the kernel refuses.
    pub fn commit(&mut self, changes: &Changes) {
        for (at, (removed, added)) in &changes.sets {
            let set = self.0.entry(*at).or_default();
            for element in removed {
                assert!(set.remove(&element.key).is_some(), "{at:?} has no {element:?}");
            }
            for element in added {
                let old = set.insert(element.key.clone(), element.value.clone());
                assert!(old.is_none(), "{at:?} has {element:?} already");
            }
        }
        self.0.retain(|_, set| !set.is_empty());
        self.check_lists();
    }

    /// Every decision that refers to a list finds a word for the first and the last port.
    fn check_lists(&self) {
        let has = |family, number, port: u16| {
            let set = self.0.get(&(Place::Sources, family));
            set.into_iter().flat_map(BTreeMap::keys).any(|key| {
                let (first, last) = key[1].bytes();
                words::class_id(&key[0]) == Some(number)
                    && (first..=last).contains(&port.to_be_bytes().as_slice())
            })
        };
        for ((place, family), set) in self.0.iter().filter(|((place, _), _)| *place != Place::Sources) {
            for number in set.values().filter_map(|value| words::list(value.as_ref())) {
                let found = [0, 1000, u16::MAX].map(|port| has(*family, number, port));
                assert_eq!(found, [true; 3], "{place:?} refers to list {number:x}");
            }
        }
    }
}

fn list(random: &mut Random) -> Vec<SourceRange> {
    let cut = [500, 1000, 1001, 2000][random.below(4)];
    let range = |first, last, word| SourceRange { first, last, word };
    vec![range(0, cut - 1, Word::DENY), range(cut, u16::MAX, Word::ALLOW)]
}

/// Changes of some of few keys. What is removed was there, as the engine's deltas say it.
fn delta(random: &mut Random, content: &Decisions) -> Delta {
    let mut delta = Delta::default();
    if random.below(2) == 0 {
        let net: IpNet = ["10.0.1.1/32", "10.0.1.2/32", "10.0.2.0/24"][random.below(3)].parse().unwrap();
        let identity = [None, Identity::new(16), Identity::new(17)][random.below(3)];
        if identity != content.identities.get(&net).copied() {
            delta.identities.insert(net, identity);
        }
        let local: IpAddr = "10.0.0.1".parse().unwrap();
        let default = [None, Some(Word::ALLOW), Some(Word::DENY)][random.below(3)];
        if default != content.defaults.get(&(Direction::Ingress, local)).copied() {
            delta.defaults.insert((Direction::Ingress, local), default);
        }
    }
    for _ in 0..random.below(6) {
        let local: IpAddr = ["10.0.0.1", "10.0.0.2", "fd00::1"][random.below(3)].parse().unwrap();
        let part = [Part::Port(Protocol::TCP, 80), Part::Protocol(Protocol::UDP)][random.below(2)];
        let peer = Identity::new(16 + random.below(2) as u32).unwrap();
        let key = Key { direction: Direction::Ingress, local, peer, part };
        let word = [Some(Word::WIDE), Some(Word::WIDE), Some(Word::ALLOW), None][random.below(4)];
        if word != content.decisions.get(&key).copied() {
            delta.decisions.insert(key, word);
        } else {
            delta.decisions.remove(&key);
        }
        let ranges = (word == Some(Word::WIDE)).then(|| list(random));
        delta.wide.insert(key, ranges);
    }
    delta
}

#[test]
fn lists_are_there_while_a_decision_refers_to_them() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let (mut content, mut kernel) = (Decisions::default(), Kernel::default());
        let mut lists = Lists::default();
        for _ in 0..30 {
            let delta = delta(&mut random, &content);
            let steps = content.steps(&delta, &BTreeSet::new(), &mut lists, usize::MAX);
            let phases = [&steps.before, &steps.complete].into_iter().chain(&steps.phases);
            for changes in phases.chain([&steps.behind]) {
                kernel.commit(changes);
            }
            content.apply(&delta, &BTreeSet::new());
            assert_eq!(kernel, Kernel::of(&content, &lists), "seed {seed}");
        }
        // A restart finds the same numbers.
        let found = content.elements(&lists);
        let known = lists::read(&found);
        let mut read = Decisions::default();
        for (at, element) in found.iter().flat_map(|(at, all)| all.iter().map(move |it| (at, it))) {
            assert!(read.read(*at, element, &known), "seed {seed}: {element:?}");
        }
        assert_eq!(read, content, "seed {seed}");
        assert_eq!(read.elements(&Lists::of(&read, &known)), found, "seed {seed}");
    }
}

#[test]
fn decisions_about_an_identity_change_after_addresses_have_left_it() {
    let [local, new]: [IpAddr; 2] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
    let [moved, other]: [IpNet; 2] = ["10.0.1.1/32", "10.0.1.2/32"].map(|text| text.parse().unwrap());
    let [old_peer, new_peer] = [16, 17].map(|number| Identity::new(number).unwrap());
    let key =
        |local, peer| Key { direction: Direction::Ingress, local, peer, part: Part::Protocol(Protocol::TCP) };
    let mut content = Decisions::default();
    content.identities.extend([(moved, old_peer), (other, old_peer)]);
    content.decisions.insert(key(local, old_peer), Word::DENY);
    content.defaults.insert((Direction::Ingress, local), Word::DENY);
    content.held.insert(new);
    let mut lists = Lists::default();
    let mut kernel = Kernel::default();
    kernel.commit(&Changes {
        sets: content.elements(&lists).into_iter().map(|(at, all)| (at, (Vec::new(), all))).collect(),
    });

    let delta = Delta {
        identities: [(moved, Some(new_peer))].into(),
        decisions: [
            (key(local, old_peer), Some(Word::ALLOW)),
            (key(local, new_peer), Some(Word::DENY)),
            (key(new, old_peer), Some(Word::DENY)),
        ]
        .into(),
        defaults: [local, new].map(|local| ((Direction::Ingress, local), Some(Word::ALLOW))).into(),
        ..Delta::default()
    };
    let decided = [new].into();
    let steps = content.steps(&delta, &decided, &mut lists, usize::MAX);
    kernel.commit(&steps.before);
    kernel.commit(&steps.complete);
    let (last, first) = steps.phases.split_last().unwrap();
    first.iter().for_each(|phase| kernel.commit(phase));
    let has = |kernel: &Kernel, (at, element): (At, Element)| {
        kernel.0.get(&at).and_then(|set| set.get(&element.key)).is_some_and(|value| *value == element.value)
    };
    let decision = |local, peer, word| decision_element(&key(local, peer), number(word, None, &lists));
    assert!(
        has(&kernel, identity_element(&moved, new_peer))
            && has(&kernel, decision(local, new_peer, Word::DENY))
    );
    // A packet that was looked up as one of the old identity is judged as before.
    assert!(has(&kernel, decision(local, old_peer, Word::DENY)));
    assert!(has(&kernel, default_element((Direction::Ingress, local), Word::DENY)));
    assert!(has(&kernel, held_element(new)), "what is decided about it is not complete yet");

    kernel.commit(last);
    kernel.commit(&steps.behind);
    content.apply(&delta, &decided);
    assert_eq!(kernel, Kernel::of(&content, &lists));
}
