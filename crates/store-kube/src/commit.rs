//! Steps of commits: each is one request under the preconditions of its guard (kubernetes.md
//! sections 1.11 and 1.12). The object that an answer holds refreshes what the next write needs, so
//! that a process that has read an object once writes it without reads.

use russet_addr::NodeName;
use russet_kube::{Failure, Verb};
use russet_model::{Key, KeyKind, Prefix};
use russet_store::{Cause, Record, Revision, Step, StoreError};
use serde_json::{Value, json};

use crate::companion::{Companion, revision_of};
use crate::convert::{self, ConvertError, is_labelled};
use crate::engine::KubeStore;
use crate::failure::{Effect, Verdict, verdict};
use crate::list::Read;
use crate::place::{Collection, ObjectPlace, Place, Scope};

/// How often an unguarded step is tried again after another writer was faster.
const TRIES: usize = 10;

// === impl KubeStore ===

impl KubeStore {
    /// Gives a node's affinities the labels by which they are listed, and their type: those that old
    /// peers have claimed lack both, and some have them empty (kubernetes.md section 1.14). Called
    /// once before the node's affinities are used. Returns how many it changed.
    pub async fn label_affinities(&self, node: &NodeName) -> Result<usize, StoreError> {
        let all = Prefix::all_affinities();
        let mut changed = 0;
        for scope in Scope::of(&all)? {
            let form = self.form_of(scope.collection).await?;
            for object in self.cached_objects(&scope).await?.iter().filter(|object| !is_labelled(object)) {
                let Read::Record(Record { key, value, revision }) =
                    self.read_object(&scope, &all, &form, object)
                else {
                    continue;
                };
                if !matches!(key.kind(), KeyKind::Affinity { node: owner, .. } if owner == *node) {
                    continue;
                }
                match self.step(Step::update(key, value, revision)).await {
                    Ok(_) => changed += 1,
                    // A peer that writes it at this moment labels it itself.
                    Err(error) if error.lost_race() => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(changed)
    }

    /// Refuses a step that cannot be executed, before any is.
    pub(crate) fn check(&self, step: &Step) -> Result<(), StoreError> {
        let key = step.key();
        if step.lease().is_some() {
            return Err(StoreError::Unsupported { operation: format!("tie {key} to a lease in Kubernetes") });
        }
        let Place::Object(place) = Place::of(key, verb_of(step))? else {
            // A record that does not exist can be removed in vain, and not be written.
            return match step {
                Step::Delete { .. } => Ok(()),
                _ => Err(unsupported(step, "Kubernetes has no object for it")),
            };
        };
        match (place.collection, step) {
            (Collection::Nodes, Step::Create { .. } | Step::Delete { .. }) => {
                Err(unsupported(step, "nodes are Kubernetes' own"))
            }
            (Collection::Pods, Step::Create { .. }) => {
                Err(unsupported(step, "an endpoint is a pod, which exists before it has addresses"))
            }
            (Collection::Namespaces | Collection::ServiceAccounts, _) => {
                Err(unsupported(step, "profiles follow namespaces and service accounts"))
            }
            (Collection::Openshift(_), _) => Err(unsupported(
                step,
                "one writer assigns OpenShift's networks: its own master, or `russet controller --openshift`",
            )),
            _ => Ok(()),
        }
    }

    /// Executes one step.
    pub(crate) async fn step(&self, step: Step) -> Result<Revision, StoreError> {
        let key = step.key().clone();
        let Place::Object(place) = Place::of(&key, verb_of(&step))? else {
            return Err(StoreError::NotFound { key });
        };
        match step {
            Step::Create { value, .. } => self.create(&place, &key, &value).await,
            Step::Update { value, revision, .. } => self.update(&place, &key, &value, revision).await,
            Step::Delete { revision: Some(revision), .. } => self.delete(&place, &key, revision).await,
            Step::Delete { revision: None, .. } => {
                self.unguarded(&place, &key, async |known| match known {
                    Some(revision) => self.delete(&place, &key, revision).await,
                    None => Err(StoreError::NotFound { key: key.clone() }),
                })
                .await
            }
            Step::Put { value, .. } => {
                self.unguarded(&place, &key, async |known| match known {
                    Some(revision) => self.update(&place, &key, &value, revision).await,
                    None if matches!(place.collection, Collection::Nodes | Collection::Pods) => {
                        Err(StoreError::NotFound { key: key.clone() })
                    }
                    None => self.create(&place, &key, &value).await,
                })
                .await
            }
        }
    }

    /// Reads, then writes under the guard of what was read, until no other writer was faster.
    async fn unguarded(
        &self,
        place: &ObjectPlace,
        key: &Key,
        write: impl AsyncFn(Option<Revision>) -> Result<Revision, StoreError>,
    ) -> Result<Revision, StoreError> {
        let mut tried = 0;
        loop {
            tried += 1;
            let object = self.object(place, key).await?;
            let known = match &object {
                Some(object) => {
                    self.record(place.collection, key, object).await?.map(|record| record.revision)
                }
                None => None,
            };
            let is_absent = known.is_none();
            match write(known).await {
                Err(StoreError::NotFound { .. }) if !is_absent && tried < TRIES => {}
                Err(StoreError::Conflict { .. } | StoreError::AlreadyExists { .. }) if tried < TRIES => {}
                done => return done,
            }
        }
    }

    /// POST. An object that a peer has marked as deleted, and not removed yet, is in the way: its
    /// removal is finished.
    async fn create(&self, place: &ObjectPlace, key: &Key, value: &[u8]) -> Result<Revision, StoreError> {
        let mut path = self.path(place).await?;
        path.pop();
        let object = convert::to_object(place, key, value, None, self.group().await?);
        let object = object.map_err(|error| invalid("create", key, error))?;
        let post = || self.write(format!("create {key}"), Verb::Create, path.clone(), &object);
        let failure = match post().await {
            Ok(answer) => return self.written(place.collection, key, &answer),
            Err(failure) => failure,
        };
        if verdict(&failure) != Verdict::Exists
            || !place.collection.is_ipam()
            || !self.finish(place, key).await?
        {
            return Err(self.failed(failure, key, Effect::Write));
        }
        let answer = post().await.map_err(|failure| self.failed(failure, key, Effect::Write))?;
        self.written(place.collection, key, &answer)
    }

    /// Removes the object if it is marked as deleted; returns whether it was.
    async fn finish(&self, place: &ObjectPlace, key: &Key) -> Result<bool, StoreError> {
        let Some(object) = self.object(place, key).await? else { return Ok(true) };
        let form = self.form_of(place.collection).await?;
        let converted = convert::to_record(place.collection, &form, &object);
        let is_marked = converted.is_ok_and(|converted| converted.is_some_and(|found| found.value.is_none()));
        let companion = Companion::of(&object).filter(|_| is_marked);
        let Some(companion) = companion else { return Ok(false) };
        match self.remove(place, key, &companion).await {
            Ok(answer) => waits_for(key, &answer).map_or(Ok(true), Err),
            Err(failure) if verdict(&failure) == Verdict::NotFound => Ok(true),
            Err(failure) => Err(self.failed(failure, key, Effect::Write)),
        }
    }

    /// PUT of the whole object, or a patch of the part that is ours.
    async fn update(
        &self,
        place: &ObjectPlace,
        key: &Key,
        value: &[u8],
        revision: Revision,
    ) -> Result<Revision, StoreError> {
        if place.collection == Collection::Pods {
            return self.annotate(place, key, value, revision).await;
        }
        let companion = self.companion(place, key, revision).await?;
        let wrong = |error| invalid("update", key, error);
        let path = self.path(place).await?;
        let operation = format!("update {key}");
        let answer = match place.collection {
            Collection::Nodes => {
                // Sent even if it changes nothing: the server checks the guard.
                let patch = convert::node_patch(value, &companion).map_err(wrong)?;
                let patch = patch.unwrap_or_else(|| json!({ "metadata": {} }));
                self.patch(operation, path, patch, &companion.uid, Some(companion.revision)).await
            }
            _ => {
                let group = self.group().await?;
                let object = convert::to_object(place, key, value, Some(&companion), group).map_err(wrong)?;
                self.write(operation, Verb::Replace, path, &object).await
            }
        };
        match answer {
            Ok(answer) => self.written(place.collection, key, &answer),
            Err(failure) => Err(self.lost(failure, place, key).await),
        }
    }

    /// PATCH of a pod's addresses. It is guarded by the pod's UID alone: kubelet writes the status
    /// while the pod starts, and any such write would fail an ADD that is guarded by the revision
    /// (kubernetes.md section 4.6). The record names the pod that it was read from.
    async fn annotate(
        &self,
        place: &ObjectPlace,
        key: &Key,
        value: &[u8],
        revision: Revision,
    ) -> Result<Revision, StoreError> {
        let patch = convert::pod_patch(value).map_err(|error| invalid("update", key, error))?;
        let uid = match convert::pod_uid(value) {
            Some(uid) => uid,
            None => self.companion(place, key, revision).await?.uid,
        };
        let path = self.path(place).await?;
        match self.patch(format!("update {key}"), path, patch, &uid, None).await {
            Ok(answer) => self.written(place.collection, key, &answer),
            Err(failure) => Err(self.lost(failure, place, key).await),
        }
    }

    /// PATCH that empties a pod's addresses, if the pod is still that of the same sandbox. The
    /// revision guards the sandbox; other writes, such as those of kubelet, only cost another try.
    async fn empty(
        &self,
        place: &ObjectPlace,
        key: &Key,
        revision: Revision,
    ) -> Result<Revision, StoreError> {
        let first = self.companion(place, key, revision).await?;
        let path = self.path(place).await?;
        let mut known = first.clone();
        for _ in 0..TRIES {
            let (operation, at) = (format!("delete {key}"), Some(known.revision));
            let patched = self.patch(operation, path.clone(), convert::pod_deletion(), &known.uid, at).await;
            let failure = match patched {
                Ok(answer) => return self.written(place.collection, key, &answer),
                Err(failure) => failure,
            };
            if verdict(&failure) != Verdict::Conflict {
                return Err(self.failed(failure, key, Effect::Write));
            }
            let Some(object) = self.object(place, key).await? else {
                return Err(StoreError::NotFound { key: key.clone() });
            };
            let now = Companion::of(&object).filter(|now| {
                now.uid == first.uid
                    && convert::pod_sandbox(&now.metadata) == convert::pod_sandbox(&first.metadata)
            });
            let Some(now) = now else { break };
            known = now;
        }
        Err(StoreError::Conflict { key: key.clone() })
    }

    /// Patches the status of the pod or node with this UID, at this revision if one is given.
    async fn patch(
        &self,
        operation: String,
        mut path: Vec<String>,
        mut patch: Value,
        uid: &str,
        revision: Option<Revision>,
    ) -> Result<Value, Failure> {
        path.push("status".to_owned());
        if let Some(metadata) = patch.pointer_mut("/metadata").and_then(Value::as_object_mut) {
            metadata.insert("uid".to_owned(), json!(uid));
            let revision = revision.map(|revision| json!(revision.0.to_string()));
            metadata.extend(revision.map(|revision| ("resourceVersion".to_owned(), revision)));
        }
        self.write(operation, Verb::StrategicMerge, path, &patch).await
    }

    /// DELETE with both preconditions. The API does not say at which revision it was done: the
    /// result is that of the removed object.
    async fn delete(
        &self,
        place: &ObjectPlace,
        key: &Key,
        revision: Revision,
    ) -> Result<Revision, StoreError> {
        if place.collection == Collection::Pods {
            return self.empty(place, key, revision).await;
        }
        let companion = self.companion(place, key, revision).await?;
        let failure = match self.remove(place, key, &companion).await {
            Ok(answer) => {
                self.inner.memory.forget(key);
                return waits_for(key, &answer).map_or(Ok(revision), Err);
            }
            Err(failure) => failure,
        };
        Err(self.lost(failure, place, key).await)
    }

    async fn remove(&self, place: &ObjectPlace, key: &Key, companion: &Companion) -> Result<Value, Failure> {
        let path = self.path(place).await.map_err(|error| Failure::nonsense("delete", error.to_string()))?;
        let preconditions =
            json!({ "uid": companion.uid, "resourceVersion": companion.revision.0.to_string() });
        let options = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions });
        self.write(format!("delete {key}"), Verb::Delete, path, &options).await
    }

    /// What the object at this revision has besides its record; read again if this process has not
    /// seen it.
    async fn companion(
        &self,
        place: &ObjectPlace,
        key: &Key,
        revision: Revision,
    ) -> Result<Companion, StoreError> {
        if let Some(known) = self.inner.memory.at(key, revision) {
            return Ok(known);
        }
        let not_found = || StoreError::NotFound { key: key.clone() };
        let object = self.object(place, key).await?.ok_or_else(not_found)?;
        let record = self.record(place.collection, key, &object).await?.ok_or_else(not_found)?;
        if record.revision != revision {
            return Err(StoreError::Conflict { key: key.clone() });
        }
        self.inner.memory.at(key, revision).ok_or_else(|| StoreError::Conflict { key: key.clone() })
    }

    /// The error of a guarded write. Whether the object was changed or is gone is decided by reading
    /// it, since the texts of the server differ.
    async fn lost(&self, failure: Failure, place: &ObjectPlace, key: &Key) -> StoreError {
        if verdict(&failure) != Verdict::Conflict {
            return self.failed(failure, key, Effect::Write);
        }
        let key = key.clone();
        match self.object(place, &key).await {
            Ok(None) => StoreError::NotFound { key },
            // The write was refused, whatever became of the read.
            _ => StoreError::Conflict { key },
        }
    }

    /// Takes the answer of a write, which holds the object as it is now.
    fn written(&self, collection: Collection, key: &Key, answer: &Value) -> Result<Revision, StoreError> {
        self.inner.memory.keep(key, answer);
        revision_of(answer).ok_or_else(|| StoreError::Unknown {
            operation: format!("write {key}"),
            source: Cause::text(format!("the answer holds no revision of {:?}", collection)),
        })
    }
}

/// Why an object is still there although its deletion was accepted: finalizers have to be removed
/// first, such as that of a pool that has blocks (kubernetes.md section 1.5).
fn waits_for(key: &Key, answer: &Value) -> Option<StoreError> {
    let finalizers = answer.pointer("/metadata/finalizers")?.as_array()?;
    let names: Vec<&str> = finalizers.iter().filter_map(Value::as_str).collect();
    let text = format!("it is marked as deleted, and is there until {} is removed", names.join(", "));
    let operation = format!("delete {key}");
    (!names.is_empty()).then(|| StoreError::Unavailable { operation, source: Cause::text(text) })
}

fn verb_of(step: &Step) -> &'static str {
    match step {
        Step::Create { .. } => "create",
        Step::Update { .. } => "update",
        Step::Delete { .. } => "delete",
        Step::Put { .. } => "put",
    }
}

fn unsupported(step: &Step, reason: &str) -> StoreError {
    StoreError::Unsupported { operation: format!("{} {}: {reason}", verb_of(step), step.key()) }
}

fn invalid(verb: &str, key: &Key, error: ConvertError) -> StoreError {
    StoreError::Invalid { operation: format!("{verb} {key}"), reason: error.to_string() }
}
