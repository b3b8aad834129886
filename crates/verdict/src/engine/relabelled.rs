//! What else of an endpoint is as it was if only its labels changed, and which of them did.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::labels::OwnLabels;
use super::stored::StoredEndpoint;

/// The names of labels that profiles give to others than before, or with other values.
pub(super) type Inherited = BTreeMap<Arc<str>, BTreeSet<Arc<str>>>;

/// How an endpoint differs from what it was.
#[derive(Debug)]
pub(super) struct Relabelled<'a> {
    /// The labels that may have another value, be there or not be there any more; `None` if all may.
    names: Option<BTreeSet<&'a str>>,
    is_same_otherwise: bool,
}

// === impl Relabelled ===

impl<'a> Relabelled<'a> {
    pub(super) fn new(
        old: Option<&'a StoredEndpoint>,
        new: Option<&'a StoredEndpoint>,
        inherited: &'a Inherited,
    ) -> Self {
        let Some((old, new)) = old.zip(new).filter(|(old, new)| old.profiles == new.profiles) else {
            return Self { names: None, is_same_otherwise: false };
        };
        let mut names = BTreeSet::new();
        if !std::ptr::eq(old, new) {
            names.extend(different(old.labels(), new.labels()));
        }
        let of_profiles = new.profiles.iter().filter_map(|profile| inherited.get(profile)).flatten();
        names.extend(of_profiles.map(|name| &**name));
        Self { names: Some(names), is_same_otherwise: old.is_same_but_labels(new) }
    }

    pub(super) fn names(&self) -> Option<&BTreeSet<&'a str>> {
        self.names.as_ref()
    }

    /// Whether nothing else changed.
    pub(super) fn is_same_otherwise(&self) -> bool {
        self.is_same_otherwise
    }
}

/// Names that both have, but with different values, and those that one of them has.
pub(super) fn different<'a>(old: OwnLabels<'a>, new: OwnLabels<'a>) -> impl Iterator<Item = &'a str> {
    let differs = move |(name, _): &(&'a Arc<str>, &'a Arc<str>)| old.get(name) != new.get(name);
    old.iter().chain(new.iter()).filter(differs).map(|(name, _)| &**name)
}
