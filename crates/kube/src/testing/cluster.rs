//! The objects of the test server, their resource versions and past events.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::answers::Answer;
use super::kinds::Kind;
use super::merge::{apply_operation, merge};
use super::select::Selection;
use super::validate;

/// Identifier of the kind, namespace, name.
type Id = (String, String, String);

/// All objects.
#[derive(Default)]
pub(crate) struct Cluster {
    objects: BTreeMap<Id, Arc<Value>>,
    revision: u64,
    /// Events up to this revision are forgotten.
    forgotten: u64,
    events: Vec<Event>,
}

/// One change.
#[derive(Clone)]
pub(crate) struct Event {
    revision: u64,
    id: Id,
    kind: &'static str,
    object: Arc<Value>,
    /// The object before the change.
    old: Option<Arc<Value>>,
}

/// The part of an object that a write may change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Everything but the identity.
    Whole,
    /// The `status` subresource: metadata and status.
    Status,
}

// === impl Cluster ===

impl Cluster {
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<&Value> {
        self.objects.get(&(kind.to_owned(), namespace.to_owned(), name.to_owned())).map(|object| &**object)
    }

    /// The objects of a kind, by namespace and name.
    pub(crate) fn all(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |((of, _, _), _)| of == kind).map(|(_, object)| &**object)
    }

    /// The selected objects at a revision, by name; `None` if that revision is forgotten.
    pub(crate) fn list(&self, selection: &Selection, revision: u64) -> Option<Vec<Arc<Value>>> {
        if revision < self.forgotten {
            return None;
        }
        let of_kind = self.objects.iter().filter(|((kind, _, _), _)| *kind == selection.id);
        let mut objects: BTreeMap<&Id, Arc<Value>> =
            of_kind.map(|(id, object)| (id, object.clone())).collect();
        let later = self.events.iter().rev().take_while(|event| event.revision > revision);
        for event in later.filter(|event| event.id.0 == selection.id) {
            match &event.old {
                Some(old) => objects.insert(&event.id, old.clone()),
                None => objects.remove(&event.id),
            };
        }
        Some(objects.into_values().filter(|object| selection.holds(object)).collect())
    }

    /// The events after a revision, as a watch of the selected objects reports them; `None` if some
    /// of them are forgotten.
    pub(crate) fn events_after(
        &self,
        selection: &Selection,
        revision: u64,
    ) -> Option<Vec<(&'static str, Value)>> {
        let first = self.events.partition_point(|event| event.revision <= revision);
        let later = self.events[first..].iter().filter(|event| event.id.0 == selection.id);
        (revision >= self.forgotten).then(|| later.filter_map(|event| event.seen_by(selection)).collect())
    }

    pub(crate) fn forget_history(&mut self) {
        // Another object of the cluster changed, so that even a client that knows everything is too
        // old.
        self.revision += 1;
        self.forgotten = self.revision;
        self.events.clear();
    }

    /// Continues at a lower revision with the same objects, as after a restore of a backup.
    pub(crate) fn restore(&mut self, revision: u64) {
        self.revision = revision;
        self.forgotten = 0;
        self.events.clear();
        for object in self.objects.values_mut() {
            Arc::make_mut(object)["metadata"]["resourceVersion"] = json!(revision.to_string());
        }
    }

    /// Removes all objects of a group whose definitions were deleted.
    pub(crate) fn forget_group(&mut self, group: &str) {
        self.objects.retain(|(kind, _, _), _| Kind::of_id(kind).is_none_or(|kind| kind.group != group));
        self.forget_history();
    }

    /// Removes all objects of a resource whose definition was deleted.
    pub(crate) fn forget_plural(&mut self, plural: &str) {
        self.objects.retain(|(kind, _, _), _| Kind::of_id(kind).is_none_or(|kind| kind.plural != plural));
        self.forget_history();
    }

    /// Changes an object as any other writer would, if it exists.
    pub(crate) fn touch(&mut self, kind: Kind, (namespace, name): (&str, &str)) {
        let Some(mut object) = self.get(&kind.id(), namespace, name).cloned() else { return };
        let touched = self.revision.to_string();
        object["metadata"]["annotations"]["example.com/touched"] = json!(touched);
        self.put(object);
    }

    /// Creates or replaces, without any check.
    pub(crate) fn put(&mut self, mut object: Value) {
        let kind = Kind::of_object(&object).unwrap_or_else(|| panic!("kind of {object}"));
        let id = id_of(kind, &object);
        assert!(!id.2.is_empty(), "name of {object}");
        object["apiVersion"] = json!(kind.api_version());
        if object["metadata"]["uid"].is_null() {
            let old = self.objects.get(&id);
            object["metadata"]["uid"] =
                old.map_or_else(|| self.new_uid(), |old| old["metadata"]["uid"].clone());
        }
        self.store(id, object);
    }

    /// Handles a POST.
    pub(crate) fn create(&mut self, kind: Kind, namespace: &str, mut object: Value) -> Result<Value, Answer> {
        object["metadata"]["namespace"] = json!(namespace);
        if namespace.is_empty() {
            object["metadata"].as_object_mut().map(|metadata| metadata.shift_remove("namespace"));
        }
        let id = id_of(kind, &object);
        validate::name(kind, &id.2)?;
        if !object["metadata"]["resourceVersion"].is_null() {
            return Err(Answer::bad_request("resourceVersion should not be set on objects to be created"));
        }
        validate::schema(kind, &mut object)?;
        if self.objects.contains_key(&id) {
            return Err(Answer::exists(kind, &id.2));
        }
        object["metadata"]["uid"] = self.new_uid();
        object["metadata"]["creationTimestamp"] = json!("2026-01-02T03:04:05Z");
        object["metadata"]["generation"] = json!(1);
        Ok(self.store(id, object))
    }

    /// Handles a PUT.
    pub(crate) fn replace(
        &mut self,
        kind: Kind,
        id: (&str, &str),
        mut object: Value,
        part: Part,
    ) -> Result<Value, Answer> {
        let (namespace, name) = id;
        let not_found = || Answer::not_found(&kind.id(), name);
        let old = self.get(&kind.id(), namespace, name).ok_or_else(not_found)?.clone();
        let given = |member: &str| object["metadata"][member].as_str().filter(|text| !text.is_empty());
        if object["metadata"]["name"] != name {
            return Err(Answer::bad_request("the name of the object does not match the name on the URL"));
        }
        if let Some(uid) = given("uid").filter(|uid| old["metadata"]["uid"] != *uid) {
            let problem = format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                old["metadata"]["uid"].as_str().unwrap_or_default()
            );
            return Err(Answer::conflict(kind, name, &problem));
        }
        match given("resourceVersion") {
            None if kind.is_custom() => {
                let problem = "Invalid value: 0x0: must be specified for an update";
                let field = "metadata.resourceVersion";
                return Err(Answer::invalid(kind, name, field, "FieldValueInvalid", problem));
            }
            Some(version) if old["metadata"]["resourceVersion"] != version => {
                return Err(Answer::modified(&kind.id(), name));
            }
            _ => {}
        }
        validate::schema(kind, &mut object)?;
        for fixed in
            ["uid", "resourceVersion", "creationTimestamp", "generation", "namespace", "deletionTimestamp"]
        {
            object["metadata"][fixed] = old["metadata"][fixed].clone();
        }
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.retain(|_, value| !value.is_null());
        }
        if part == Part::Status {
            object["spec"] = old["spec"].clone();
        }
        object["kind"] = json!(kind.kind);
        object["apiVersion"] = json!(kind.api_version());
        Ok(self.change(id_of(kind, &object), old, object))
    }

    /// Handles a PATCH. Of a `status` subresource only metadata and status are used.
    pub(crate) fn patch(
        &mut self,
        id: (&str, &str, &str),
        patch: &Value,
        strategic: bool,
        part: Part,
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
        let parts: &[&str] =
            if part == Part::Status { &["metadata", "status"] } else { &["metadata", "spec", "status"] };
        let parts = parts.iter().filter(|part| !patch[**part].is_null());
        let parts: Map<String, Value> =
            parts.map(|part| ((*part).to_owned(), patch[*part].clone())).collect();
        merge(&mut object, &Value::Object(parts), strategic);
        for fixed in ["uid", "resourceVersion", "name"] {
            object["metadata"][fixed] = old["metadata"][fixed].clone();
        }
        Ok(self.change((kind.to_owned(), namespace.to_owned(), name.to_owned()), old, object))
    }

    /// Handles a PATCH that is a list of operations (RFC 6902).
    pub(crate) fn patch_by_operations(
        &mut self,
        id: (Kind, &str, &str),
        operations: &Value,
    ) -> Result<Value, Answer> {
        let (kind, namespace, name) = id;
        let not_found = || Answer::not_found(&kind.id(), name);
        let old = self.get(&kind.id(), namespace, name).ok_or_else(not_found)?.clone();
        let mut object = old.clone();
        for operation in operations.as_array().into_iter().flatten() {
            apply_operation(&mut object, operation).ok_or_else(|| Answer::refused_patch(operation))?;
        }
        for fixed in ["uid", "resourceVersion", "name"] {
            object["metadata"][fixed] = old["metadata"][fixed].clone();
        }
        Ok(self.change(id_of(kind, &old), old, object))
    }

    /// Handles a DELETE.
    pub(crate) fn remove(&mut self, kind: Kind, id: (&str, &str), options: &Value) -> Result<Answer, Answer> {
        let (namespace, name) = id;
        let not_found = || Answer::not_found(&kind.id(), name);
        let mut object = self.get(&kind.id(), namespace, name).ok_or_else(not_found)?.clone();
        for (member, title) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
            let (wanted, stored) = (&options["preconditions"][member], &object["metadata"][member]);
            if wanted.as_str().is_some_and(|wanted| stored != wanted) {
                let (wanted, stored) =
                    (wanted.as_str().unwrap_or_default(), stored.as_str().unwrap_or_default());
                let problem = format!(
                    "the {title} in the precondition ({wanted}) does not match the {title} in record ({stored}). The object might have \
                     been modified"
                );
                return Err(Answer::conflict(kind, name, &problem));
            }
        }
        if object["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty()) {
            let old = object.clone();
            object["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:06Z");
            return Ok(Answer::object(&self.change(id_of(kind, &old), old, object)));
        }
        self.delete(&kind.id(), namespace, name);
        Ok(if kind.kind == "Pod" { Answer::object(&object) } else { Answer::removed(kind, &object) })
    }

    pub(crate) fn delete(&mut self, kind: &str, namespace: &str, name: &str) {
        let id = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        if let Some(old) = self.objects.remove(&id) {
            self.record(id, Value::clone(&old), Some(old), "DELETED");
        }
    }

    /// Stores what a request made of an object. A write that changes nothing leaves its revision.
    fn change(&mut self, id: Id, old: Value, mut object: Value) -> Value {
        if object == old {
            return old;
        }
        if object["spec"] != old["spec"]
            && let Some(generation) = old["metadata"]["generation"].as_u64()
        {
            object["metadata"]["generation"] = json!(generation + 1);
        }
        self.store(id, object)
    }

    fn store(&mut self, id: Id, object: Value) -> Value {
        let old = self.objects.get(&id).cloned();
        let kind = if old.is_some() { "MODIFIED" } else { "ADDED" };
        let object = self.record(id.clone(), object, old, kind);
        self.objects.insert(id, object.clone());
        Value::clone(&object)
    }

    fn record(
        &mut self,
        id: Id,
        mut object: Value,
        old: Option<Arc<Value>>,
        kind: &'static str,
    ) -> Arc<Value> {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let object = Arc::new(object);
        self.events.push(Event { revision: self.revision, id, kind, object: object.clone(), old });
        object
    }

    fn new_uid(&self) -> Value {
        json!(format!("00000000-0000-4000-8000-{:012x}", self.revision + 1))
    }
}

fn id_of(kind: Kind, object: &Value) -> Id {
    let text = |member: &str| object["metadata"][member].as_str().unwrap_or_default().to_owned();
    (kind.id(), text("namespace"), text("name"))
}

// === impl Event ===

impl Event {
    /// The event as a watch of the selected objects reports it.
    fn seen_by(&self, selection: &Selection) -> Option<(&'static str, Value)> {
        let before = self.old.as_ref().is_some_and(|old| selection.holds(old));
        let after = self.kind != "DELETED" && selection.holds(&self.object);
        let kind = match (before, after) {
            (false, false) => return None,
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
        };
        Some((kind, Value::clone(&self.object)))
    }
}
