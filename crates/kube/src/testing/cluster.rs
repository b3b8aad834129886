//! The objects of the test server, their resource versions and past events.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::answers::Answer;
use super::merge::merge;

/// Kind, namespace, name.
type Id = (String, String, String);

/// All objects.
#[derive(Default)]
pub(crate) struct Cluster {
    objects: BTreeMap<Id, Value>,
    revision: u64,
    /// Events up to this revision are forgotten.
    forgotten: u64,
    events: Vec<Event>,
}

/// One change.
#[derive(Clone)]
pub(crate) struct Event {
    pub(crate) revision: u64,
    pub(crate) kind: &'static str,
    pub(crate) object: Value,
}

// === impl Cluster ===

impl Cluster {
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<&Value> {
        self.objects.get(&(kind.to_owned(), namespace.to_owned(), name.to_owned()))
    }

    /// All objects of a kind, by name.
    pub(crate) fn list(&self, kind: &str) -> Vec<&Value> {
        self.objects.iter().filter(|((of, _, _), _)| of == kind).map(|(_, object)| object).collect()
    }

    /// Nodes' events after a revision; `None` if some of them are forgotten.
    pub(crate) fn events_after(&self, revision: u64) -> Option<Vec<Event>> {
        let known = revision >= self.forgotten;
        known.then(|| self.events.iter().filter(|event| event.revision > revision).cloned().collect())
    }

    pub(crate) fn forget_history(&mut self) {
        // Another object of the cluster changed, so that even a client that knows everything is too
        // old.
        self.revision += 1;
        self.forgotten = self.revision;
        self.events.clear();
    }

    /// Creates or replaces.
    pub(crate) fn put(&mut self, mut object: Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let kind = text(&object["kind"]);
        assert!(matches!(kind.as_str(), "Node" | "Namespace" | "Pod"), "kind of {object}");
        let id = (kind, text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
        assert!(!id.2.is_empty(), "name of {object}");
        object["apiVersion"] = json!("v1");
        let old = self.objects.get(&id);
        if object["metadata"]["uid"].is_null() {
            let fresh = json!(format!("00000000-0000-4000-8000-{:012x}", self.revision + 1));
            object["metadata"]["uid"] = old.map_or(fresh, |old| old["metadata"]["uid"].clone());
        }
        let kind = if old.is_some() { "MODIFIED" } else { "ADDED" };
        self.store(id, object, kind);
    }

    pub(crate) fn delete(&mut self, kind: &str, namespace: &str, name: &str) {
        let id = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        if let Some(object) = self.objects.remove(&id) {
            self.record(object, "DELETED");
        }
    }

    /// Patches the `status` subresource: metadata and status change, spec does not.
    pub(crate) fn patch_status(
        &mut self,
        id: (&str, &str, &str),
        patch: &Value,
        strategic: bool,
    ) -> Result<Value, Answer> {
        let (kind, namespace, name) = id;
        let old = self.get(kind, namespace, name).ok_or_else(|| Answer::not_found(kind, name))?.clone();
        let given = |member: &str| patch["metadata"][member].as_str().filter(|text| !text.is_empty());
        if let Some(uid) = given("uid").filter(|uid| old["metadata"]["uid"] != *uid) {
            return Err(Answer::immutable_uid(kind, name, uid));
        }
        if given("resourceVersion").is_some_and(|version| old["metadata"]["resourceVersion"] != version) {
            return Err(Answer::modified(kind, name));
        }
        let mut object = old.clone();
        let parts = ["metadata", "status"].into_iter().filter(|part| !patch[*part].is_null());
        let parts: Map<String, Value> = parts.map(|part| (part.to_owned(), patch[part].clone())).collect();
        merge(&mut object, &Value::Object(parts), strategic);
        for fixed in ["uid", "resourceVersion", "name"] {
            object["metadata"][fixed] = old["metadata"][fixed].clone();
        }
        if object == old {
            return Ok(old);
        }
        let id = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        self.store(id.clone(), object, "MODIFIED");
        Ok(self.objects[&id].clone())
    }

    fn store(&mut self, id: Id, object: Value, kind: &'static str) {
        let object = self.record(object, kind);
        self.objects.insert(id, object);
    }

    fn record(&mut self, mut object: Value, kind: &'static str) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        if object["kind"] == "Node" {
            self.events.push(Event { revision: self.revision, kind, object: object.clone() });
        }
        object
    }
}
