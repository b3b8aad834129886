//! What else of an endpoint is as it was if only its labels changed, and which of them did.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::labels::Map;
use crate::world::Endpoint;

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
        old: Option<&'a Endpoint>,
        new: Option<&'a Endpoint>,
        inherited: &'a Inherited,
    ) -> Self {
        let Some((old, new)) = old.zip(new).filter(|(old, new)| old.profiles == new.profiles) else {
            return Self { names: None, is_same_otherwise: false };
        };
        let mut names = BTreeSet::new();
        if !std::ptr::eq(old, new) {
            names.extend(different(&old.labels, &new.labels));
        }
        let of_profiles = new.profiles.iter().filter_map(|profile| inherited.get(profile)).flatten();
        names.extend(of_profiles.map(|name| &**name));
        Self { names: Some(names), is_same_otherwise: is_same_otherwise(old, new) }
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
pub(super) fn different<'a>(old: &'a Map, new: &'a Map) -> impl Iterator<Item = &'a str> {
    let differs = |(name, _): &(&'a Arc<str>, &'a Arc<str>)| old.get(*name) != new.get(*name);
    old.iter().chain(new).filter(differs).map(|(name, _)| &**name)
}

/// Whether endpoints differ in nothing but labels and names for people.
fn is_same_otherwise(old: &Endpoint, new: &Endpoint) -> bool {
    let Endpoint { kind, namespace, name: _, node, addresses, labels: _, profiles, ports, local, age } = old;
    (kind, namespace, node, addresses, profiles)
        == (&new.kind, &new.namespace, &new.node, &new.addresses, &new.profiles)
        && (ports, local, age) == (&new.ports, &new.local, &new.age)
}
