//! Values for every address of a family.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use russet_addr::{Family, IpNet};

use super::super::predicate::{Answer, PredicateId, Vector};

/// A value for each address: that of the address alone, or else that of the range around it, or else the
/// default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spans<T> {
    pub(super) default: T,
    /// Disjoint, and in order.
    pub(super) ranges: Vec<(u128, u128, T)>,
    pub(super) singles: BTreeMap<u128, T>,
}

/// The addresses for which the answer to a question is not "no".
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Disjoint, not adjacent, and in order; the answer is "yes".
    ranges: Vec<(u128, u128)>,
    singles: BTreeMap<u128, Answer>,
}

/// Addresses as they are found.
#[derive(Debug, Default)]
pub(super) struct Found {
    ranges: Vec<(u128, u128)>,
    singles: BTreeMap<u128, Answer>,
}

pub(super) const fn number_of(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits() as u128,
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// The address with a number; those of IPv4 have 32 bits.
pub(super) fn address_of(number: u128, family: Family) -> IpAddr {
    match (family, u32::try_from(number)) {
        (Family::V4, Ok(bits)) => Ipv4Addr::from_bits(bits).into(),
        _ => Ipv6Addr::from_bits(number).into(),
    }
}

const fn last_of(family: Family) -> u128 {
    match family {
        Family::V4 => u32::MAX as u128,
        Family::V6 => u128::MAX,
    }
}

/// The addresses of prefixes of a family.
pub(super) fn ranges<'a>(
    nets: impl IntoIterator<Item = &'a IpNet>,
    family: Family,
) -> impl Iterator<Item = (u128, u128)> {
    let nets = nets.into_iter().filter(move |net| Family::of_net(net) == family);
    nets.map(|net| (number_of(net.network()), number_of(net.broadcast())))
}

/// The same addresses, each once.
fn merged(mut ranges: Vec<(u128, u128)>) -> Vec<(u128, u128)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u128, u128)> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = (*end).max(last),
            _ => merged.push((first, last)),
        }
    }
    merged
}

/// The addresses of merged ranges that are in none of the other merged ranges.
fn without(ranges: Vec<(u128, u128)>, others: &[(u128, u128)]) -> Vec<(u128, u128)> {
    let mut left = Vec::new();
    for (mut first, last) in ranges {
        let (mut is_used_up, begin) = (false, first);
        for (from, to) in others.iter().filter(|(from, to)| *to >= begin && *from <= last) {
            if *from > first {
                left.push((first, from - 1));
            }
            match to.checked_add(1).filter(|next| *next <= last) {
                Some(next) => first = next,
                None => {
                    is_used_up = true;
                    break;
                }
            }
        }
        if !is_used_up {
            left.push((first, last));
        }
    }
    left
}

// === impl Found ===

impl Found {
    pub(super) fn add_ranges(&mut self, ranges: impl IntoIterator<Item = (u128, u128)>) {
        self.ranges.extend(ranges);
    }

    pub(super) fn add(&mut self, address: IpAddr, answer: Answer) {
        self.singles.insert(number_of(address), answer);
    }

    /// The answers, without those for `except`.
    pub(super) fn answers(self, except: Vec<(u128, u128)>) -> Answers {
        let ranges = without(merged(self.ranges), &merged(except));
        let mut singles = self.singles;
        singles.extend(ranges.iter().filter(|(first, last)| first == last).map(|(at, _)| (*at, Answer::Yes)));
        Answers { ranges: ranges.into_iter().filter(|(first, last)| first != last).collect(), singles }
    }
}

// === impl Answers ===

impl Answers {
    fn is_in_range(&self, address: u128) -> bool {
        let behind = self.ranges.partition_point(|(first, _)| *first <= address);
        let before = behind.checked_sub(1).and_then(|place| self.ranges.get(place));
        before.is_some_and(|(_, last)| address <= *last)
    }

    fn at(&self, address: u128) -> Option<Answer> {
        let single = self.singles.get(&address).cloned();
        single.or_else(|| self.is_in_range(address).then_some(Answer::Yes))
    }
}

// === impl Spans ===

impl Spans<Vector> {
    /// The answers to all questions for every address; `answers` are in the order of the numbers.
    pub(super) fn new(answers: &[(PredicateId, &Answers)], family: Family) -> Self {
        let all = last_of(family);
        let mut starts = BTreeSet::from([0]);
        for (first, last) in answers.iter().flat_map(|(_, answers)| &answers.ranges) {
            starts.insert(*first);
            starts.extend(last.checked_add(1).filter(|next| *next <= all));
        }
        let ends: Vec<u128> = starts.iter().skip(1).map(|next| next - 1).chain([all]).collect();
        let in_range = |first: u128| -> Vector {
            let yes = answers.iter().filter(|(_, answers)| answers.is_in_range(first));
            yes.map(|(id, _)| (*id, Answer::Yes)).collect()
        };
        let ranges: Vec<(u128, u128, Vector)> =
            starts.into_iter().zip(ends).map(|(first, last)| (first, last, in_range(first))).collect();
        let mut sizes: BTreeMap<&Vector, u128> = BTreeMap::new();
        for (first, last, vector) in &ranges {
            let size = sizes.entry(vector).or_default();
            *size = size.saturating_add(last - first);
        }
        let largest = sizes.into_iter().max_by_key(|(_, size)| *size);
        let default = largest.map(|(vector, _)| vector.clone()).unwrap_or_default();
        let single = |at: u128| -> Vector {
            answers.iter().filter_map(|(id, answers)| Some((*id, answers.at(at)?))).collect()
        };
        let singles: BTreeSet<u128> =
            answers.iter().flat_map(|(_, answers)| answers.singles.keys().copied()).collect();
        Self { default, ranges, singles: singles.into_iter().map(|at| (at, single(at))).collect() }
    }
}

impl<T> Spans<T> {
    pub(super) fn map<U>(&self, mut value: impl FnMut(&T) -> U) -> Spans<U> {
        Spans {
            default: value(&self.default),
            ranges: self.ranges.iter().map(|(first, last, it)| (*first, *last, value(it))).collect(),
            singles: self.singles.iter().map(|(at, it)| (*at, value(it))).collect(),
        }
    }
}

impl<T: Ord> Spans<T> {
    /// How many different values there are.
    pub(super) fn count(&self) -> usize {
        let ranges = self.ranges.iter().map(|(.., value)| value);
        ranges.chain(self.singles.values()).chain([&self.default]).collect::<BTreeSet<_>>().len()
    }
}

impl<T: PartialEq> Spans<T> {
    /// The same without what goes without saying.
    pub(super) fn reduced(mut self) -> Self {
        let singles = std::mem::take(&mut self.singles);
        self.singles = singles.into_iter().filter(|(at, value)| self.around(*at) != value).collect();
        let mut ranges: Vec<(u128, u128, T)> = Vec::new();
        for (first, last, value) in self.ranges {
            match ranges.last_mut() {
                Some((_, end, before)) if *before == value && end.checked_add(1) == Some(first) => {
                    *end = last;
                }
                _ => ranges.push((first, last, value)),
            }
        }
        ranges.retain(|(.., value)| *value != self.default);
        Self { ranges, ..self }
    }

    /// The value of the range around an address.
    fn around(&self, address: u128) -> &T {
        let behind = self.ranges.partition_point(|(first, ..)| *first <= address);
        let before = behind.checked_sub(1).and_then(|place| self.ranges.get(place));
        before.filter(|(_, last, _)| address <= *last).map_or(&self.default, |(.., value)| value)
    }
}
