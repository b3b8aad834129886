//! Effective labels, and an index that finds the selectors which may match some.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use russet_model::{Restriction, Selector};

/// Labels by their names.
pub(super) type Map = BTreeMap<Arc<str>, Arc<str>>;

/// The effective labels of something (policy.md section 1.6): its own, then those of its profiles,
/// of which the first that has a label counts.
#[derive(Debug, Clone)]
pub(super) struct Labels<'a> {
    own: OwnLabels<'a>,
    /// Whether own labels that look like those of a namespace or a service account are ignored.
    strip: bool,
    profiles: Vec<&'a Map>,
}

/// Labels without those of profiles.
#[derive(Debug, Clone, Copy)]
pub(super) enum OwnLabels<'a> {
    /// By their names.
    Map(&'a Map),
    /// In the order of their names, each once.
    Sorted(&'a [(Arc<str>, Arc<str>)]),
}

/// Selectors by the labels that they need, and by those that they mention. What a selector is known by is a `K`;
/// inside, each has a number.
///
/// A selector with several restrictions is filed under the one that fewest others share, so that
/// a label which everything has does not collect all of them.
#[derive(Debug)]
pub(super) struct SelectorIndex<K> {
    labels: BTreeMap<Arc<str>, Bucket>,
    unrestricted: BTreeSet<Number>,
    mentioned: BTreeMap<Arc<str>, BTreeSet<Number>>,
    numbers: BTreeMap<K, Number>,
    filed: BTreeMap<Number, Filed<K>>,
    next: Number,
}

type Number = u32;

/// Selectors that need one label.
#[derive(Debug, Default)]
struct Bucket {
    any: BTreeSet<Number>,
    values: BTreeMap<Arc<str>, BTreeSet<Number>>,
}

/// A selector.
#[derive(Debug)]
struct Filed<K> {
    key: K,
    /// Which of its restrictions it is filed under; `None` without one.
    restriction: Option<usize>,
}

/// Of more selectors than this, the index finds those that may match faster than all are asked which mention a label.
const MENTIONS_MAX: usize = 64;

// === impl Labels ===

impl<'a> Labels<'a> {
    /// The labels of an endpoint, which cannot pretend to be a namespace's or a service account's.
    pub(super) fn of_endpoint(own: OwnLabels<'a>, profiles: Vec<&'a Map>) -> Self {
        Self { own, strip: true, profiles }
    }

    /// The labels of a network set.
    pub(super) fn of_set(own: &'a Map, profile: Option<&'a Map>) -> Self {
        Self { own: OwnLabels::Map(own), strip: false, profiles: profile.into_iter().collect() }
    }

    /// The labels of a node, which inherits none.
    pub(super) fn of_node(own: &'a Map) -> Self {
        Self { own: OwnLabels::Map(own), strip: false, profiles: Vec::new() }
    }

    /// Whether a selector matches.
    pub(super) fn match_selector(&self, selector: &Selector) -> bool {
        selector.matches_with(&|name| self.value(name))
    }

    /// Whether the packed selector at the front matches; takes it from there.
    pub(super) fn match_packed(&self, selector: &mut &[u8]) -> Option<bool> {
        Selector::packed_matches(selector, &|name| self.value(name))
    }

    fn value(&self, name: &str) -> Option<&'a str> {
        let own = self.own.get(name).filter(|_| !self.ignores(name));
        own.or_else(|| self.profiles.iter().find_map(|labels| labels.get(name))).map(|value| &**value)
    }

    fn ignores(&self, name: &str) -> bool {
        self.strip && (name.starts_with("pcns.") || name.starts_with("pcsa."))
    }

    /// Every pair that may be effective, and perhaps some that another one hides.
    fn pairs(&self) -> impl Iterator<Item = (&'a Arc<str>, &'a Arc<str>)> {
        let own = self.own.iter().filter(|(name, _)| !self.ignores(name));
        own.chain(self.profiles.iter().copied().flatten())
    }
}

// === impl OwnLabels ===

impl<'a> OwnLabels<'a> {
    pub(super) fn get(self, name: &str) -> Option<&'a Arc<str>> {
        match self {
            Self::Map(labels) => labels.get(name),
            Self::Sorted(labels) => {
                let place = labels.binary_search_by(|(other, _)| (**other).cmp(name)).ok()?;
                labels.get(place).map(|(_, value)| value)
            }
        }
    }

    pub(super) fn iter(self) -> impl Iterator<Item = (&'a Arc<str>, &'a Arc<str>)> {
        let (map, sorted) = match self {
            Self::Map(labels) => (Some(labels), [].as_slice()),
            Self::Sorted(labels) => (None, labels),
        };
        map.into_iter().flatten().chain(sorted.iter().map(|(name, value)| (name, value)))
    }
}

// === impl SelectorIndex ===

impl<K: Ord + Clone> SelectorIndex<K> {
    /// Files a selector; its key must not be in use.
    pub(super) fn insert(&mut self, key: K, selector: &Selector) {
        let number = self.free_number();
        let restrictions = selector.restrictions();
        let restriction =
            (0..restrictions.len()).min_by_key(|at| restrictions.get(*at).map(|it| self.shared(it)));
        match restriction.and_then(|at| restrictions.get(at)) {
            None => _ = self.unrestricted.insert(number),
            Some(Restriction::Has(name)) => _ = entry(&mut self.labels, name).any.insert(number),
            Some(Restriction::OneOf(name, values)) => {
                let bucket = entry(&mut self.labels, name);
                for value in values {
                    entry(&mut bucket.values, value).insert(number);
                }
            }
        }
        selector.each_label(&mut |name| _ = entry(&mut self.mentioned, name).insert(number));
        self.numbers.insert(key.clone(), number);
        self.filed.insert(number, Filed { key, restriction });
    }

    /// Removes a selector, which is the one that was filed, if it is there.
    pub(super) fn remove(&mut self, key: &K, selector: &Selector) {
        let Some(number) = self.numbers.remove(key) else { return };
        let Some(Filed { restriction, .. }) = self.filed.remove(&number) else { return };
        match restriction.and_then(|at| selector.restrictions().into_iter().nth(at)) {
            None => _ = self.unrestricted.remove(&number),
            Some(Restriction::Has(name)) => self.clean(name, |bucket| _ = bucket.any.remove(&number)),
            Some(Restriction::OneOf(name, values)) => self.clean(name, |bucket| {
                values.iter().for_each(|value| remove_from(&mut bucket.values, value, number));
            }),
        }
        selector.each_label(&mut |name| remove_from(&mut self.mentioned, name, number));
    }

    /// The selectors that may match these labels.
    pub(super) fn candidates(&self, labels: &Labels<'_>) -> impl Iterator<Item = &K> {
        let mut found: Vec<Number> = self.unrestricted.iter().copied().collect();
        for (name, value) in labels.pairs() {
            let Some(bucket) = self.labels.get(name) else { continue };
            let by_value = bucket.values.get(value).into_iter().flatten();
            found.extend(bucket.any.iter().chain(by_value));
        }
        self.keys(found)
    }

    /// The selectors that mention one of some labels; `None` if they are so many that
    /// [`Self::candidates`] is faster.
    pub(super) fn mentioning(&self, names: &BTreeSet<&str>) -> Option<impl Iterator<Item = &K>> {
        let sets = || names.iter().filter_map(|name| self.mentioned.get(*name));
        let is_few = sets().map(BTreeSet::len).sum::<usize>() <= MENTIONS_MAX;
        is_few.then(|| self.keys(sets().flatten().copied().collect()))
    }

    /// How many selectors are filed; without one, how many places for them are left.
    pub(super) fn len(&self) -> usize {
        match self.filed.is_empty() {
            true => self.numbers.len() + self.labels.len() + self.unrestricted.len() + self.mentioned.len(),
            false => self.filed.len(),
        }
    }

    fn keys(&self, mut numbers: Vec<Number>) -> impl Iterator<Item = &K> {
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().filter_map(|number| Some(&self.filed.get(&number)?.key))
    }

    fn free_number(&mut self) -> Number {
        // Far fewer selectors than numbers exist, so that the loop ends.
        loop {
            let number = self.next;
            self.next = number.wrapping_add(1);
            if !self.filed.contains_key(&number) {
                return number;
            }
        }
    }

    /// How many selectors are filed under a restriction.
    fn shared(&self, restriction: &Restriction<'_>) -> (usize, usize) {
        match restriction {
            // Presence is shared by far more labels than a value, whatever is filed today.
            Restriction::Has(name) => (1, self.labels.get(*name).map_or(0, |bucket| bucket.any.len())),
            Restriction::OneOf(name, values) => {
                let known = self.labels.get(*name);
                let keys = |value: &&str| Some(known?.values.get(*value)?.len());
                (0, values.iter().filter_map(keys).sum())
            }
        }
    }

    fn clean(&mut self, name: &str, change: impl FnOnce(&mut Bucket)) {
        let Some(bucket) = self.labels.get_mut(name) else { return };
        change(bucket);
        if bucket.any.is_empty() && bucket.values.is_empty() {
            self.labels.remove(name);
        }
    }
}

impl<K> Default for SelectorIndex<K> {
    fn default() -> Self {
        Self {
            labels: BTreeMap::new(),
            unrestricted: BTreeSet::new(),
            mentioned: BTreeMap::new(),
            numbers: BTreeMap::new(),
            filed: BTreeMap::new(),
            next: 0,
        }
    }
}

/// What is known of a text; the text is copied only if nothing is yet.
fn entry<'a, V: Default>(map: &'a mut BTreeMap<Arc<str>, V>, text: &str) -> &'a mut V {
    let key = map.get_key_value(text).map_or_else(|| text.into(), |(key, _)| key.clone());
    map.entry(key).or_default()
}

fn remove_from(map: &mut BTreeMap<Arc<str>, BTreeSet<Number>>, text: &str, number: Number) {
    if let Some(numbers) = map.get_mut(text) {
        numbers.remove(&number);
        if numbers.is_empty() {
            map.remove(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(selectors: &[(&'static str, &str)]) -> SelectorIndex<&'static str> {
        let mut index = SelectorIndex::default();
        for (key, text) in selectors {
            index.insert(*key, &Selector::parse(text).unwrap());
        }
        index
    }

    #[test]
    fn selectors_are_found_by_the_labels_that_they_mention() {
        let index = index(&[("p", "a == 'x' && b != 'y'"), ("q", "!has(c)"), ("r", "all()")]);
        let mentioning = |names: &[&str]| -> Vec<&str> {
            index.mentioning(&names.iter().copied().collect()).unwrap().copied().collect()
        };
        assert_eq!(mentioning(&["b"]), ["p"]);
        assert_eq!(mentioning(&["a", "b", "c"]), ["p", "q"]);
        assert_eq!(mentioning(&["d"]), [""; 0]);
    }

    #[test]
    fn of_too_many_selectors_the_index_finds_those_that_may_match() {
        let mut index = SelectorIndex::default();
        for number in 0..=MENTIONS_MAX {
            index.insert(number, &Selector::equals("a", &number.to_string()).unwrap());
        }
        assert!(index.mentioning(&BTreeSet::from(["a"])).is_none());
        let own = Map::from([("a".into(), "7".into())]);
        assert_eq!(index.candidates(&Labels::of_node(&own)).collect::<Vec<_>>(), [&7]);
    }

    #[test]
    fn nothing_is_left_of_selectors_that_are_removed() {
        let texts = ["a == 'x' && b in {'y', 'z'}", "has(c)", "all()", "a != 'x'", "a in {}"];
        let mut index = SelectorIndex::default();
        for (number, text) in texts.iter().enumerate() {
            index.insert(number, &Selector::parse(text).unwrap());
        }
        for (number, text) in texts.iter().enumerate() {
            index.remove(&number, &Selector::parse(text).unwrap());
        }
        assert_eq!(index.len(), 0);
    }
}
