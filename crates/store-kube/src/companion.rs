//! What an object has besides its record: its UID, and the metadata that an update must not lose.
//! Kept for the objects that this process has read or written last, so that their updates need no
//! read.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use russet_model::Key;
use russet_store::Revision;
use serde_json::{Map, Value};

/// Limit of each of the two generations. An agent's own blocks, affinities and handles are a few
/// hundred; an entry has 500 bytes or so.
const GENERATION: usize = 4096;

/// The rest of an object, as it was at a revision.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Companion {
    pub(crate) uid: String,
    pub(crate) revision: Revision,
    /// The object's `metadata` without what the server maintains.
    pub(crate) metadata: Map<String, Value>,
    /// The spelling of a handle's ID, of which the object's name is the lower case.
    pub(crate) handle_id: Option<String>,
}

/// The companions of two generations: what is used moves into the young one, and the old one is
/// dropped when that is full.
#[derive(Debug, Default)]
pub(crate) struct Memory(Mutex<Generations>);

#[derive(Debug, Default)]
struct Generations {
    young: HashMap<Key, Packed>,
    old: HashMap<Key, Packed>,
}

/// A companion in few bytes: thousands are kept, of nodes above all, and few are used.
#[derive(Debug, Clone)]
struct Packed {
    uid: Box<str>,
    revision: Revision,
    /// JSON, which has a tenth of the size of a tree.
    metadata: Box<[u8]>,
    handle_id: Option<Box<str>>,
}

/// Members of `metadata` that the server maintains, or that every request sets anew.
const NOT_KEPT: [&str; 7] =
    ["name", "namespace", "uid", "resourceVersion", "managedFields", "generation", "selfLink"];

// === impl Companion ===

impl Companion {
    /// The companion of an object. None without a UID or a revision.
    pub(crate) fn of(object: &Value) -> Option<Self> {
        let mut metadata = object.get("metadata")?.as_object()?.clone();
        let uid = metadata.get("uid")?.as_str()?.to_owned();
        let revision = revision_of(object)?;
        for name in NOT_KEPT {
            metadata.remove(name);
        }
        let handle_id = object.pointer("/spec/handleID").and_then(Value::as_str).map(str::to_owned);
        Some(Self { uid, revision, metadata, handle_id })
    }
}

/// An object's revision; none if the server's revisions are no numbers.
pub(crate) fn revision_of(object: &Value) -> Option<Revision> {
    object.pointer("/metadata/resourceVersion")?.as_str()?.parse().ok().map(Revision)
}

// === impl Packed ===

impl Packed {
    fn of(companion: Companion) -> Option<Self> {
        let Companion { uid, revision, metadata, handle_id } = companion;
        let metadata = serde_json::to_vec(&metadata).ok()?.into();
        Some(Self { uid: uid.into(), revision, metadata, handle_id: handle_id.map(Into::into) })
    }

    fn companion(&self) -> Option<Companion> {
        Some(Companion {
            uid: self.uid.to_string(),
            revision: self.revision,
            metadata: serde_json::from_slice(&self.metadata).ok()?,
            handle_id: self.handle_id.as_ref().map(ToString::to_string),
        })
    }
}

// === impl Memory ===

impl Memory {
    /// Keeps the companion of an object that was read or written.
    pub(crate) fn keep(&self, key: &Key, object: &Value) {
        let packed = Companion::of(object).and_then(Packed::of);
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match packed {
            Some(companion) => generations.insert(key.clone(), companion),
            None => generations.remove(key),
        }
    }

    /// Forgets everything: the objects are others now.
    pub(crate) fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Generations::default();
    }

    pub(crate) fn forget(&self, key: &Key) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// The companion at this revision.
    pub(crate) fn at(&self, key: &Key, revision: Revision) -> Option<Companion> {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Generations { young, old } = &mut *generations;
        let found = young.get(key).or_else(|| old.get(key)).cloned();
        let found = found.filter(|companion| companion.revision == revision)?;
        let companion = found.companion();
        if !young.contains_key(key) {
            generations.insert(key.clone(), found);
        }
        companion
    }
}

// === impl Generations ===

impl Generations {
    fn insert(&mut self, key: Key, companion: Packed) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, companion);
    }

    fn remove(&mut self, key: &Key) {
        self.young.remove(key);
        self.old.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(revision: usize) -> Value {
        json!({ "metadata": { "name": "x", "uid": "u", "resourceVersion": revision.to_string(), "labels": { "x/y": "z" }, "managedFields": [{}] } })
    }

    #[test]
    fn what_is_used_stays_and_the_number_is_limited() {
        let memory = Memory::default();
        let key = |n: usize| Key::from_stored(format!("/{n}"));
        for n in 1..=3 * GENERATION {
            memory.keep(&key(n), &object(n));
            assert!(memory.at(&key(1), Revision(1)).is_some(), "after {n}");
        }
        assert_eq!(memory.at(&key(2), Revision(2)), None);
        let generations = memory.0.lock().unwrap();
        assert!(generations.young.len() + generations.old.len() <= 2 * GENERATION);
    }

    #[test]
    fn a_companion_is_that_of_its_revision() {
        let (memory, key) = (Memory::default(), Key::from_stored("/x"));
        memory.keep(&key, &object(7));
        assert_eq!(memory.at(&key, Revision(8)), None);
        let companion = memory.at(&key, Revision(7)).unwrap();
        assert_eq!(Value::Object(companion.metadata), json!({ "labels": { "x/y": "z" } }));
        memory.keep(&key, &json!({ "metadata": { "uid": "u", "resourceVersion": "opaque" } }));
        assert_eq!(memory.at(&key, Revision(7)), None);
    }
}
