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
    own: &'a Map,
    /// Whether own labels that look like those of a namespace or a service account are ignored.
    strip: bool,
    profiles: Vec<&'a Map>,
}

/// Selectors by the labels that they need. What a selector is known by is a `K`.
///
/// A selector with several restrictions is filed under the one that fewest others share, so that
/// a label which everything has does not collect all of them.
#[derive(Debug)]
pub(super) struct SelectorIndex<K> {
    labels: BTreeMap<Arc<str>, Bucket<K>>,
    unrestricted: BTreeSet<K>,
    filed: BTreeMap<K, Filed>,
}

/// Selectors that need one label.
#[derive(Debug)]
struct Bucket<K> {
    any: BTreeSet<K>,
    values: BTreeMap<Arc<str>, BTreeSet<K>>,
}

/// Where a selector is filed.
#[derive(Debug, Clone)]
enum Filed {
    Unrestricted,
    Has(Arc<str>),
    OneOf(Arc<str>, Vec<Arc<str>>),
}

// === impl Labels ===

impl<'a> Labels<'a> {
    /// The labels of an endpoint, which cannot pretend to be a namespace's or a service account's.
    pub(super) fn of_endpoint(own: &'a Map, profiles: Vec<&'a Map>) -> Self {
        Self { own, strip: true, profiles }
    }

    /// The labels of a network set.
    pub(super) fn of_set(own: &'a Map, profile: Option<&'a Map>) -> Self {
        Self { own, strip: false, profiles: profile.into_iter().collect() }
    }

    /// The labels of a node, which inherits none.
    pub(super) fn of_node(own: &'a Map) -> Self {
        Self { own, strip: false, profiles: Vec::new() }
    }

    /// Whether a selector matches.
    pub(super) fn match_selector(&self, selector: &Selector) -> bool {
        selector.matches_with(&|name| self.value(name))
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

// === impl SelectorIndex ===

impl<K: Ord + Clone> SelectorIndex<K> {
    /// Files a selector; its key must not be in use.
    pub(super) fn insert(&mut self, key: K, selector: &Selector) {
        let place = self.place_for(selector);
        match &place {
            Filed::Unrestricted => _ = self.unrestricted.insert(key.clone()),
            Filed::Has(name) => _ = self.bucket(name).any.insert(key.clone()),
            Filed::OneOf(name, values) => {
                let bucket = self.bucket(name);
                for value in values {
                    bucket.values.entry(value.clone()).or_default().insert(key.clone());
                }
            }
        }
        self.filed.insert(key, place);
    }

    /// Removes a selector, if it is there.
    pub(super) fn remove(&mut self, key: &K) {
        match self.filed.remove(key) {
            None => {}
            Some(Filed::Unrestricted) => _ = self.unrestricted.remove(key),
            Some(Filed::Has(name)) => self.clean(&name, |bucket| _ = bucket.any.remove(key)),
            Some(Filed::OneOf(name, values)) => self.clean(&name, |bucket| {
                for value in values {
                    let rest = bucket.values.get_mut(&value).map(|keys| {
                        keys.remove(key);
                        keys.len()
                    });
                    if rest == Some(0) {
                        bucket.values.remove(&value);
                    }
                }
            }),
        }
    }

    /// The selectors that may match these labels, in order of their keys.
    pub(super) fn candidates(&self, labels: &Labels<'_>) -> BTreeSet<K> {
        let mut found = self.unrestricted.clone();
        for (name, value) in labels.pairs() {
            let Some(bucket) = self.labels.get(name) else { continue };
            let by_value = bucket.values.get(value).into_iter().flatten();
            found.extend(bucket.any.iter().chain(by_value).cloned());
        }
        found
    }

    /// How many selectors are filed.
    pub(super) fn len(&self) -> usize {
        self.filed.len()
    }

    fn place_for(&self, selector: &Selector) -> Filed {
        let shared = |restriction: &Restriction<'_>| match restriction {
            // Presence is shared by far more labels than a value, whatever is filed today.
            Restriction::Has(name) => (1, self.labels.get(*name).map_or(0, |bucket| bucket.any.len())),
            Restriction::OneOf(name, values) => {
                let known = self.labels.get(*name);
                let keys = |value: &&str| Some(known?.values.get(*value)?.len());
                (0, values.iter().filter_map(keys).sum())
            }
        };
        match selector.restrictions().into_iter().min_by_key(shared) {
            None => Filed::Unrestricted,
            Some(Restriction::Has(name)) => Filed::Has(name.into()),
            Some(Restriction::OneOf(name, values)) => {
                Filed::OneOf(name.into(), values.into_iter().map(Into::into).collect())
            }
        }
    }

    fn bucket(&mut self, name: &Arc<str>) -> &mut Bucket<K> {
        self.labels.entry(name.clone()).or_default()
    }

    fn clean(&mut self, name: &Arc<str>, change: impl FnOnce(&mut Bucket<K>)) {
        let Some(bucket) = self.labels.get_mut(name) else { return };
        change(bucket);
        if bucket.any.is_empty() && bucket.values.is_empty() {
            self.labels.remove(name);
        }
    }
}

impl<K> Default for SelectorIndex<K> {
    fn default() -> Self {
        Self { labels: BTreeMap::new(), unrestricted: BTreeSet::new(), filed: BTreeMap::new() }
    }
}

// === impl Bucket ===

impl<K> Default for Bucket<K> {
    fn default() -> Self {
        Self { any: BTreeSet::new(), values: BTreeMap::new() }
    }
}
