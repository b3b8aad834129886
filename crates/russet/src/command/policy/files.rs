//! A cluster as files describe it.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use russet_agent::enforced_from_records;
use russet_verdict::expect;
use russet_verdict::ir::Policy;
use russet_verdict::snapshot::Snapshot;
use russet_verdict::translate::{Translator, built_in_tiers};
use russet_verdict::world::{Endpoint, Update};
use serde_json::{Value, json};

use crate::output::progress;
use crate::resources::{DocumentError, values};

/// The endings of files of documents in a directory.
const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];
/// Objects of these kinds are in the namespace `default` if they name none, as for `kubectl apply`.
const NAMESPACED: [&str; 7] = [
    "Pod",
    "ServiceAccount",
    "NetworkPolicy",
    "StagedNetworkPolicy",
    "StagedKubernetesNetworkPolicy",
    "NetworkSet",
    "EgressNetworkPolicy",
];
/// The node of pods that have none, only for their translation. It is no name of a node.
const UNSCHEDULED: &str = "(unscheduled)";
/// Pods without an address get one of this range, which is for tests of devices (RFC 2544).
const FIRST_ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);

/// What documents make, and their tables.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    pub snapshot: Snapshot,
    /// The documents with tables of expected reachabilities, with their positions.
    pub tests: Vec<(String, Value)>,
    /// What of the other documents cannot be read as it is written.
    pub problems: Vec<String>,
    translator: Translator,
}

// === impl Cluster ===

impl Cluster {
    /// Reads files, and the files of directories.
    pub fn read(paths: &[PathBuf]) -> Result<Self, DocumentError> {
        Ok(Self::new(documents(paths)?))
    }

    fn new(documents: Vec<(String, Value)>) -> Self {
        let mut cluster = Self::empty();
        let mut next = FIRST_ADDRESS;
        for (origin, mut document) in documents {
            if expect::is_test(&document) {
                cluster.tests.push((origin, document));
            } else {
                complete(&mut document, &mut next);
                cluster.put(&origin, &document);
            }
        }
        cluster.add_namespaces();
        cluster.add_policy_problems();
        cluster
    }

    /// A cluster of nothing but the tiers that every one has.
    pub fn empty() -> Self {
        let mut cluster = Self::default();
        built_in_tiers().into_iter().for_each(|update| cluster.snapshot.apply(update));
        cluster
    }

    /// Applies a document.
    pub fn put(&mut self, origin: &str, document: &Value) {
        let translated = self.translator.put(document);
        for problem in translated.problems {
            // Files often have objects that policies do not depend on.
            match &*problem.path {
                "kind" => progress(&format!("{origin}: skipped: {}", problem.text)),
                path => self.problems.push(format!("{origin}: {path}: {}", problem.text)),
            }
        }
        for update in translated.updates {
            self.snapshot.apply(match update {
                Update::Endpoint(key, Some(endpoint)) if &*endpoint.node == UNSCHEDULED => {
                    Update::Endpoint(key, Some(Arc::new(Endpoint { node: "".into(), ..(*endpoint).clone() })))
                }
                update => update,
            });
        }
    }

    /// Adds the namespaces that pods are in and that no document describes. They have no labels but
    /// their names, and allow everything by themselves.
    pub fn add_namespaces(&mut self) {
        let namespaces: Vec<_> =
            self.snapshot.endpoints.values().filter_map(|it| it.namespace.clone()).collect();
        for namespace in namespaces {
            if !self.snapshot.profiles.contains_key(format!("kns.{namespace}").as_str()) {
                let document =
                    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
                self.put("", &document);
            }
        }
    }

    /// Closes rules about what agents do not know whose store is not in the Kubernetes API, as these do. Returns what
    /// that changes.
    pub fn close_unlisted(&mut self) -> Vec<String> {
        let policies = self.snapshot.policies.values();
        let closed: Vec<_> = policies.filter_map(|policy| enforced_from_records(policy)).collect();
        let texts = closed.iter().flat_map(problems_of).collect();
        for policy in closed {
            self.snapshot.apply(Update::Policy(policy.id.clone(), Some(Arc::new(policy))));
        }
        texts
    }

    /// Adds what of the policies is not enforced as it is written.
    pub fn add_policy_problems(&mut self) {
        let problems = self.snapshot.policies.values().flat_map(|policy| problems_of(policy));
        self.problems.extend(problems);
    }
}

fn problems_of(policy: &Policy) -> impl Iterator<Item = String> {
    policy.problems.iter().map(|it| format!("{}: {}: {}", policy.id, it.path, it.text))
}

/// The documents of files, and of the files of directories, with their positions.
pub fn documents(paths: &[PathBuf]) -> Result<Vec<(String, Value)>, DocumentError> {
    let mut documents = Vec::new();
    for path in paths {
        for file in files(path)? {
            for (origin, value) in values(&file)? {
                flatten(&origin, value, &mut documents);
            }
        }
    }
    Ok(documents)
}

/// The files of a path, in the order of their names.
fn files(path: &Path) -> Result<Vec<PathBuf>, DocumentError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let error = |source| DocumentError::Read { file: path.display().to_string(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(error)? {
        let file = entry.map_err(error)?.path();
        let ending = file.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if ENDINGS.contains(&ending) && file.is_file() {
            found.push(file);
        }
    }
    found.sort();
    Ok(found)
}

/// The items of lists, and other documents themselves.
fn flatten(origin: &str, mut value: Value, found: &mut Vec<(String, Value)>) {
    let is_list = value.get("kind").and_then(Value::as_str) == Some("List");
    match value.get_mut("items").filter(|_| is_list) {
        Some(Value::Array(items)) => {
            for (index, item) in std::mem::take(items).into_iter().enumerate() {
                found.push((format!("{origin}: item {}", index + 1), item));
            }
        }
        _ => found.push((origin.to_owned(), value)),
    }
}

/// Adds what an API server adds to a manifest: the namespace, and a pod's account. A pod that does
/// not run yet also gets an address, because nothing could be asked about it without one; its
/// node stays unknown.
fn complete(document: &mut Value, next: &mut Ipv4Addr) {
    add_namespace(document);
    if document.get("kind").and_then(Value::as_str) == Some("Pod") {
        add(document, "spec", &json!({"serviceAccountName": "default"}));
        if document.pointer("/status").is_none_or(Value::is_null) {
            add(document, "spec", &json!({"nodeName": UNSCHEDULED}));
            add(document, "status", &json!({"phase": "Running", "podIPs": [{"ip": next.to_string()}]}));
            *next = Ipv4Addr::from(u32::from(*next).wrapping_add(1));
        }
    }
}

/// Adds the namespace that an object has if it names none.
pub fn add_namespace(document: &mut Value) {
    let kind = document.get("kind").and_then(Value::as_str).unwrap_or_default();
    if NAMESPACED.contains(&kind) {
        add(document, "metadata", &json!({"namespace": "default"}));
    }
}

/// Adds members that are missing to an object within the document, which is created if it is missing.
fn add(document: &mut Value, object: &str, members: &Value) {
    let Some(document) = document.as_object_mut() else { return };
    let found = document.entry(object).or_insert(Value::Null);
    if found.is_null() {
        *found = json!({});
    }
    let (Some(found), Some(members)) = (found.as_object_mut(), members.as_object()) else { return };
    for (name, value) in members {
        found.entry(name.clone()).or_insert_with(|| value.clone());
    }
}

#[cfg(test)]
mod tests;
