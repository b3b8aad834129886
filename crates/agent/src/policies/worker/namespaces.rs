//! Namespaces that are deleted. Their objects and those in them come by watches of their own, so that a namespace may be
//! gone before its pods are. Its labels stay so long: without them, rules that ask for their absence would match these pods.

use serde_json::Value;

use super::{Worker, name_of, named};
use crate::policies::Kind;

#[cfg(test)]
mod tests;

// === impl Worker ===

impl Worker {
    /// Whether the object is a namespace that pods outlast: it is removed behind the last one.
    pub(super) fn outlasts(&mut self, kind: Kind, object: &Value) -> bool {
        if kind != Kind::Namespaces {
            return false;
        }
        let (_, namespace) = name_of(object);
        let has_pods = self.has_pods(&namespace);
        if has_pods {
            self.ending.insert(namespace);
        }
        has_pods
    }

    /// The namespace that ends with this object: its last pod.
    pub(super) fn ended_with(&mut self, kind: Kind, object: &Value) -> Option<Value> {
        if kind != Kind::Pods || self.ending.is_empty() {
            return None;
        }
        let (namespace, _) = name_of(object);
        let is_last = self.ending.contains(&namespace) && !self.has_pods(&namespace);
        (is_last && self.ending.remove(&namespace)).then(|| named(&(String::new(), namespace)))
    }

    /// Notes that the object exists: a namespace of that name was created again.
    pub(super) fn not_ending(&mut self, kind: Kind, object: &Value) {
        if kind == Kind::Namespaces {
            self.ending.remove(&name_of(object).1);
        }
    }

    fn has_pods(&self, namespace: &str) -> bool {
        let first = (namespace.to_owned(), String::new());
        let mut pods =
            self.known.get(&Kind::Pods).into_iter().flat_map(|known| known.names.range(first.clone()..));
        pods.next().is_some_and(|((of, _), _)| of == namespace)
    }
}
