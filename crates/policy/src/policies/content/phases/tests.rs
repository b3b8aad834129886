//! Packets that are judged during a commit: a part of their lookups is in the state before it, the others behind it.

use russet_addr::{Family, IpNet};
use russet_testkit::Random;
use russet_verdict::table::SourceRange;

use super::super::tests::Kernel;
use super::*;
use crate::policies::lists;
use crate::policies::skeleton::Place;

const UDP: Protocol = Protocol::UDP;
/// The pods of the node, a pod of another one, and an address that has no identity.
const ADDRESSES: [&str; 4] = ["10.0.0.1", "10.0.0.2", "10.0.1.3", "192.0.2.4"];
const LOCAL: usize = 2;
/// The bits of the prefix of the other node's pod, which may have an identity, too.
const PREFIX: u8 = 24;

/// What the kernel's maps hold.
#[derive(Debug)]
struct Maps {
    content: Decisions,
    pods: BTreeSet<IpAddr>,
}

#[derive(Debug, Clone, Copy)]
struct Packet {
    source: usize,
    destination: usize,
    protocol: Protocol,
    port: u16,
    source_port: u16,
}

/// The lookups of one packet: from the one with this number on in the new state, and those of ranges, if they lag, in the
/// old one.
struct Lookups<'a> {
    old: &'a Maps,
    new: &'a Maps,
    first_new: usize,
    ranges_lag: bool,
    done: usize,
}

// === impl Maps ===

impl Maps {
    fn of(kernel: &Kernel, lists: &Lists) -> Self {
        let known: lists::Numbered = lists::read(&kernel.elements());
        let (mut content, mut pods) = (Decisions::default(), BTreeSet::new());
        for (at, elements) in kernel.elements() {
            for element in elements {
                assert!(content.read(at, &element, &known), "{at:?} {element:?} {lists:?}");
                pods.extend(element.key[0].first_address().filter(|_| at.0 == Place::Pods));
            }
        }
        Self { content, pods }
    }

    fn passes(&self, packet: Packet) -> bool {
        Lookups { old: self, new: self, first_new: 0, ranges_lag: false, done: 0 }.pass(packet)
    }
}

// === impl Lookups ===

impl<'a> Lookups<'a> {
    fn at(&mut self, place: Place) -> &'a Maps {
        let is_old = self.done < self.first_new || (self.ranges_lag && matches!(place, Place::Ranges(_)));
        self.done += 1;
        if is_old { self.old } else { self.new }
    }

    /// As the chains judge a request.
    fn pass(&mut self, packet: Packet) -> bool {
        let is_local = |address: usize| address < LOCAL;
        let Packet { source, destination, .. } = packet;
        (!is_local(source) || self.allows(Direction::Egress, source, destination, packet))
            && (!is_local(destination) || self.allows(Direction::Ingress, destination, source, packet))
    }

    fn allows(&mut self, direction: Direction, local: usize, peer: usize, packet: Packet) -> bool {
        let (local, peer) = (address(local), IpNet::from(address(peer)));
        if !self.at(Place::Pods).pods.contains(&local) {
            return true;
        }
        if self.at(Place::Held).content.held.contains(&local) {
            return false;
        }
        let mut peer_in = |place, net: IpNet| self.at(place).content.identities.get(&net.trunc()).copied();
        let prefix = IpNet::new(peer.addr(), PREFIX).unwrap();
        let peer =
            peer_in(Place::Ids, peer).or_else(|| peer_in(Place::Nets, prefix)).unwrap_or(Identity::WORLD);
        let Packet { protocol, port, source_port, .. } = packet;
        let key = |part| Key { direction, local, peer, part };
        let exact = [Part::Port(protocol, port), Part::Protocol(protocol), Part::All].map(key);
        for place in [
            Place::Ports(direction),
            Place::Ranges(direction),
            Place::Protocols(direction),
            Place::All(direction),
        ] {
            let content = &self.at(place).content;
            let found = match place {
                Place::Ports(_) => content.decisions.get_key_value(&exact[0]),
                Place::Protocols(_) => content.decisions.get_key_value(&exact[1]),
                Place::All(_) => content.decisions.get_key_value(&exact[2]),
                _ => {
                    let with = |first, last| key(Part::Range(protocol, first, last));
                    let contains = |key: &Key| matches!(key.part, Part::Range(_, _, last) if port <= last);
                    let mut near = content.decisions.range(with(0, 0)..=with(port, u16::MAX));
                    near.next_back().filter(|(key, _)| contains(key))
                }
            };
            if let Some((key, word)) = found {
                let range = |range: &&SourceRange| (range.first..=range.last).contains(&source_port);
                return match word.verdict {
                    Verdict::Wide => content.wide[key].iter().find(range).unwrap().word.verdict,
                    verdict => verdict,
                } == Verdict::Allow;
            }
        }
        let default = self.at(Place::Defaults(direction)).content.defaults.get(&(direction, local));
        default.is_none_or(|word| word.verdict == Verdict::Allow)
    }
}

fn address(number: usize) -> IpAddr {
    ADDRESSES[number].parse().unwrap()
}

fn packets() -> Vec<Packet> {
    let mut all = Vec::new();
    for (source, destination) in
        (0..4).flat_map(|source| (0..4).map(move |destination| (source, destination)))
    {
        if source == destination || source.min(destination) >= LOCAL {
            continue;
        }
        for port in [53, 45, 55, 65, 80] {
            all.push(Packet { source, destination, protocol: UDP, port, source_port: 100 });
        }
        for (protocol, port) in [(UDP, 53), (Protocol::TCP, 53)] {
            all.push(Packet { source, destination, protocol, port, source_port: 5000 });
        }
    }
    all
}

/// A word, with its ranges if it needs any.
fn put_word(random: &mut Random, content: &mut Decisions, key: Key) {
    let range = |first, last, word| SourceRange { first, last, word };
    // Not between two pods of the node: other ports of a list are no direction.
    let is_far = [0, 1].iter().all(|near| content.identities[&IpNet::from(address(*near))] != key.peer);
    let word = match random.below(8) {
        0 if is_far => Word::WIDE,
        1 => Word { log: true, ..Word::DENY },
        number => [Word::ALLOW, Word::DENY][number % 2],
    };
    if word == Word::WIDE {
        let [low, high] = [[Word::ALLOW, Word::DENY], [Word::DENY, Word::ALLOW]][random.below(2)];
        content.wide.insert(key, vec![range(0, 999, low), range(1000, u16::MAX, high)]);
    }
    content.decisions.insert(key, word);
}

/// Everything that may be decided, as the engine does it: what is said for a part of a peer's traffic is also said for all
/// of it, and ranges do not overlap.
fn content(random: &mut Random, numbers: [u32; 4]) -> Decisions {
    let mut content = Decisions::default();
    let identities = numbers.map(|number| Identity::new(number).unwrap());
    for (number, identity) in identities.into_iter().take(3).enumerate() {
        let net = IpNet::from(address(number));
        // The last one may have its identity by its prefix, or differ from it.
        if number < LOCAL || random.below(3) > 0 {
            content.identities.insert(net, identity);
        }
        if number == LOCAL && random.below(2) == 0 {
            let prefix = IpNet::new(net.addr(), PREFIX).unwrap().trunc();
            content.identities.insert(prefix, identities[3]);
        }
    }
    // A pod that has ended, or was not there yet.
    let gone = (random.below(5) == 0).then(|| address(random.below(LOCAL)));
    let ranges = [&[][..], &[(50, 60)], &[(40, 49), (50, 60)], &[(40, 70)], &[(53, 54), (61, 90)]];
    for (direction, local) in
        DIRECTIONS.into_iter().flat_map(|direction| (0..LOCAL).map(move |local| (direction, address(local))))
    {
        if gone == Some(local) {
            continue;
        }
        content.defaults.insert((direction, local), [Word::ALLOW, Word::DENY][random.below(2)]);
        for peer in identities {
            let mut parts = Vec::new();
            for part in [Part::Port(UDP, 53), Part::Port(UDP, 80), Part::Protocol(UDP)] {
                parts.extend((random.below(3) == 0).then_some(part));
            }
            let (ranges, has_ranges) = (ranges[random.below(ranges.len())], random.below(2) == 0);
            parts.extend(
                ranges.iter().filter(|_| has_ranges).map(|(first, last)| Part::Range(UDP, *first, *last)),
            );
            if !parts.is_empty() || random.below(2) == 0 {
                parts.push(Part::All);
            }
            for part in parts {
                put_word(random, &mut content, Key { direction, local, peer, part });
            }
        }
    }
    content.held.extend((0..LOCAL).map(address).filter(|_| random.below(5) == 0));
    content
}

/// Some of the decisions stay as they are.
fn next(random: &mut Random, old: &Decisions, numbers: [u32; 4], identities_move: bool) -> Decisions {
    let mut new = content(random, numbers);
    if !identities_move {
        new.identities = old.identities.clone();
    }
    if new.identities == old.identities {
        for (direction, local) in
            DIRECTIONS.into_iter().flat_map(|it| (0..LOCAL).map(move |local| (it, address(local))))
        {
            let [was, is] = [old, &new].map(|it| it.defaults.contains_key(&(direction, local)));
            if was && is && random.below(3) > 0 {
                let is_same = |key: &Key| (key.direction, key.local) == (direction, local);
                new.decisions.retain(|key, _| !is_same(key));
                new.wide.retain(|key, _| !is_same(key));
                new.decisions.extend(old.decisions.iter().filter(|(key, _)| is_same(key)));
                new.wide.extend(
                    old.wide.iter().filter(|(key, _)| is_same(key)).map(|(key, all)| (*key, all.clone())),
                );
            }
        }
    }
    new
}

/// Makes changes, and calls back with the states before and behind each, and all between them.
fn make_changes(seed: u64, identities_move: bool, mut check: impl FnMut(&[Maps])) {
    let mut random = Random::new(seed);
    let mut numbers = [16, 17, 18, 19];
    let mut old = content(&mut random, numbers);
    let mut lists = Lists::of(&old, &lists::Numbered::new());
    let mut kernel = Kernel::default();
    kernel.commit(&Changes {
        sets: old.elements(&lists).into_iter().map(|(at, all)| (at, (Vec::new(), all))).collect(),
    });
    for round in 0..8 {
        if identities_move && random.below(2) == 0 {
            numbers[random.below(4)] = 20 + round;
        }
        let new = next(&mut random, &old, numbers, identities_move);
        let mut states = vec![Maps::of(&kernel, &lists)];
        let steps = old.steps_to(&new, &mut lists, usize::MAX);
        kernel.commit(&steps.before);
        for phase in [&steps.hold, &steps.complete].into_iter().chain(&steps.phases) {
            kernel.commit(phase);
            states.push(Maps::of(&kernel, &lists));
        }
        kernel.commit(&steps.behind);
        assert_eq!(kernel, Kernel::of(&new, &lists), "seed {seed}");
        check(&states);
        old = new;
    }
}

/// What the states say about a packet.
fn shown(states: &[Maps], packet: Packet) -> String {
    let [source, destination] = [packet.source, packet.destination].map(address);
    let Packet { protocol, port, .. } = packet;
    let is_meant = |part| match part {
        Part::Port(other, number) => (other, number) == (protocol, port),
        Part::Range(other, first, last) => other == protocol && (first..=last).contains(&port),
        Part::Protocol(other) => other == protocol,
        Part::All => true,
    };
    let of_end = |state: &Maps, (direction, local, peer): (Direction, IpAddr, IpAddr)| {
        let Decisions { identities, decisions, wide, defaults, held } = &state.content;
        let (net, prefix) = (IpNet::from(peer), IpNet::new(peer, PREFIX).unwrap().trunc());
        let found = identities.get(&net).or_else(|| identities.get(&prefix));
        let peer = found.copied().unwrap_or(Identity::WORLD);
        let of_packet = |key: &&Key| (key.direction, key.local) == (direction, local) && is_meant(key.part);
        let words: Vec<String> = decisions
            .keys()
            .filter(of_packet)
            .map(|key| {
                format!("{} {:?} {:?} {:?}", key.peer.number(), key.part, decisions[key], wide.get(key))
            })
            .collect();
        let default = defaults.get(&(direction, local));
        let (is_judged, is_held) = (state.pods.contains(&local), held.contains(&local));
        format!(
            "{direction:?} {local} peer {} default {default:?} judged {is_judged} held {is_held}\n  {}",
            peer.number(),
            words.join("\n  ")
        )
    };
    let ends = [(Direction::Egress, source, destination), (Direction::Ingress, destination, source)];
    let shown = |state| ends.map(|end| of_end(state, end)).join("\n");
    states.iter().map(shown).collect::<Vec<_>>().join("\n\n")
}

/// Every mixture of two states that follow each other, for a packet.
fn mixtures(states: &[Maps], packet: Packet) -> impl Iterator<Item = (usize, usize, bool, bool)> {
    let steps = states.windows(2).enumerate();
    steps.flat_map(move |(number, pair)| {
        let cuts = (0..=2 * 10).flat_map(|first_new| [(first_new, false), (first_new, true)]);
        cuts.map(move |(first_new, ranges_lag)| {
            let lookups = Lookups { old: &pair[0], new: &pair[1], first_new, ranges_lag, done: 0 };
            (number, first_new, ranges_lag, { lookups }.pass(packet))
        })
    })
}

#[test]
fn a_packet_that_is_judged_during_a_change_passes_as_before_or_as_behind_it() {
    // policy.md P140
    for seed in 0..40 {
        make_changes(seed, false, |states| {
            let (first, last) = (&states[0], &states[states.len() - 1]);
            for packet in packets().into_iter().filter(|packet| first.passes(*packet) == last.passes(*packet))
            {
                let wanted = first.passes(packet);
                let wrong = mixtures(states, packet).find(|mixture| mixture.3 != wanted);
                assert_eq!(wrong, None, "seed {seed}: {packet:?}\n{}", shown(states, packet));
            }
        });
    }
}

#[test]
fn what_is_denied_before_and_behind_a_move_of_addresses_is_denied_during_it() {
    for seed in 0..40 {
        make_changes(seed, true, |states| {
            let (first, last) = (&states[0], &states[states.len() - 1]);
            for packet in packets().into_iter().filter(|it| !first.passes(*it) && !last.passes(*it)) {
                let wrong = mixtures(states, packet).find(|mixture| mixture.3);
                assert_eq!(wrong, None, "seed {seed}: {packet:?}\n{}", shown(states, packet));
            }
        });
    }
}

/// A thousand policies cost two transactions where the last of them opens the rest, and the usual change costs one.
#[test]
fn a_change_of_one_map_is_one_phase() {
    let [local, peer] = [address(0), address(2)];
    let identity = Identity::new(18).unwrap();
    let key = |part| Key { direction: Direction::Ingress, local, peer: identity, part };
    let mut content = Decisions::default();
    content.identities.insert(IpNet::from(peer), identity);
    let default = (Direction::Ingress, local);
    content.defaults.insert(default, Word::DENY);
    let mut phases = |delta: &Delta| {
        let steps = content.steps(delta, &BTreeSet::new(), &mut Lists::default(), usize::MAX);
        content.apply(delta, &BTreeSet::new());
        (steps.complete.len(), steps.phases.iter().map(Changes::len).collect::<Vec<_>>())
    };
    let decisions = |all: &[(Part, Option<Word>)]| Delta {
        decisions: all.iter().map(|(part, word)| (key(*part), *word)).collect(),
        ..Delta::default()
    };
    let (dns, web) = (Part::Port(UDP, 53), Part::Port(Protocol::TCP, 80));
    // A peer may reach a port, and then another one, and the first not any more.
    assert_eq!(phases(&decisions(&[(web, Some(Word::ALLOW)), (Part::All, Some(Word::DENY))])), (0, vec![2]));
    assert_eq!(phases(&decisions(&[(web, None), (Part::Port(UDP, 54), Some(Word::ALLOW))])), (0, vec![2]));
    // The pod is open but for one port: the denial of it is there before the rest is open.
    let opening = Delta {
        defaults: [(default, Some(Word::ALLOW))].into(),
        ..decisions(&[(dns, Some(Word::DENY)), (Part::Port(UDP, 54), None), (Part::All, Some(Word::ALLOW))])
    };
    assert_eq!(phases(&opening), (1, vec![5]));
    assert_eq!(Family::of(local), Family::V4);
}
