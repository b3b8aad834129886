//! Pods that have the same owner, as far as their labels say, and selectors of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::snapshot::Snapshot;
use crate::world::{Endpoint, EndpointKey, EndpointKind};

pub(super) type Labels = BTreeMap<Arc<str>, Arc<str>>;

/// A pod, with its lasting labels.
type Labelled<'a> = (&'a EndpointKey, Labels);
/// A namespace, and a label of pods in it.
type Label = (Arc<str>, Arc<str>, Arc<str>);

const NAME: &str = "app.kubernetes.io/name";
const INSTANCE: &str = "app.kubernetes.io/instance";
const APP: &str = "app";
const K8S_APP: &str = "k8s-app";
/// Labels that a controller gives to each of its generations or pods, or that name a version.
const VOLATILE: [&str; 11] = [
    "pod-template-hash",
    "rollouts-pod-template-hash",
    "controller-revision-hash",
    "pod-template-generation",
    "apps.kubernetes.io/pod-index",
    "controller-uid",
    "job-name",
    "version",
    "app.kubernetes.io/version",
    "helm.sh/chart",
    "chart",
];
/// The same, by the fronts of their keys. Those of Calico are not the pod's own.
const VOLATILE_FRONTS: [&str; 3] =
    ["statefulset.kubernetes.io/", "batch.kubernetes.io/", "projectcalico.org/"];
/// Limits of the API: a name or value, and the front of a key.
const LABEL_MAX: usize = 63;
const FRONT_MAX: usize = 253;

/// The pods of a workload.
#[derive(Debug)]
pub(super) struct Workload {
    pub namespace: Arc<str>,
    /// The labels that select it.
    pub labels: Labels,
    /// Labels that its pods do not have, and other pods with `labels` have.
    pub absent: BTreeSet<Arc<str>>,
    pub pods: Vec<EndpointKey>,
    /// All lasting labels of its pods; more than one set may be more than one owner.
    pub variants: BTreeSet<Labels>,
}

/// All workloads, in the order of their namespaces and labels.
#[derive(Debug, Default)]
pub(super) struct Workloads {
    pub all: Vec<Workload>,
    /// The place of each pod's workload. A pod without usable labels has none.
    pub of_pod: BTreeMap<EndpointKey, usize>,
}

// === impl Workloads ===

impl Workloads {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let mut grouped: BTreeMap<(Arc<str>, Labels), Vec<Labelled<'_>>> = BTreeMap::new();
        for (key, endpoint) in snapshot.endpoints.iter() {
            let Some(namespace) = namespace(endpoint) else { continue };
            let labels = lasting(endpoint);
            if let Some(identity) = identity(&labels) {
                grouped.entry((namespace.clone(), identity)).or_default().push((key, labels));
            }
        }
        let mut found = Self::default();
        for ((namespace, labels), pods) in grouped {
            for (key, _) in &pods {
                found.of_pod.insert((*key).clone(), found.all.len());
            }
            let (keys, variants): (Vec<_>, BTreeSet<_>) =
                pods.into_iter().map(|(key, labels)| (key.clone(), labels)).unzip();
            found.all.push(Workload { namespace, labels, absent: BTreeSet::new(), pods: keys, variants });
        }
        found.separate();
        found
    }

    /// Finds the labels that other pods have which the labels of a workload select, too.
    fn separate(&mut self) {
        // By namespace and one label, because few pods have a certain one.
        let mut with: BTreeMap<Label, Vec<(usize, Labels)>> = BTreeMap::new();
        for (place, workload) in self.all.iter().enumerate() {
            for labels in &workload.variants {
                for (key, value) in labels {
                    let label = (workload.namespace.clone(), key.clone(), value.clone());
                    with.entry(label).or_default().push((place, labels.clone()));
                }
            }
        }
        for (place, workload) in self.all.iter_mut().enumerate() {
            let first = workload.labels.first_key_value();
            let label = first.map(|(key, value)| (workload.namespace.clone(), key.clone(), value.clone()));
            let others = label.and_then(|label| with.get(&label)).into_iter().flatten();
            for (_, labels) in others.filter(|(other, _)| *other != place) {
                let selected = workload.labels.iter().all(|(key, value)| labels.get(key) == Some(value));
                let own = |key: &&str| workload.labels.contains_key(*key);
                let preferred = [NAME, INSTANCE, APP, K8S_APP].into_iter().filter(|key| !own(key));
                let mut keys = preferred.chain(labels.keys().map(|key| &**key).filter(|key| !own(key)));
                let has = |key: &&str| {
                    labels.contains_key(*key) && workload.variants.iter().all(|own| !own.contains_key(*key))
                };
                if selected && let Some(key) = keys.find(has) {
                    workload.absent.insert(key.into());
                }
            }
        }
    }
}

// === impl Workload ===

impl Workload {
    /// The selector of its pods, for policies.
    pub(super) fn selector(&self) -> Value {
        let labels: serde_json::Map<String, Value> =
            self.labels.iter().map(|(key, value)| (key.to_string(), json!(**value))).collect();
        if self.absent.is_empty() {
            return json!({ "matchLabels": labels });
        }
        let absent = self.absent.iter().map(|key| json!({"key": **key, "operator": "DoesNotExist"}));
        json!({"matchLabels": labels, "matchExpressions": absent.collect::<Vec<_>>()})
    }

    /// Its namespace and labels, as text.
    pub(super) fn text(&self) -> String {
        format!("{} of namespace {}", text(&self.labels), self.namespace)
    }
}

pub(super) fn text(labels: &Labels) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

/// The namespace of a pod, if policies can be written for it.
pub(super) fn namespace(endpoint: &Endpoint) -> Option<&Arc<str>> {
    let is_pod = endpoint.kind == EndpointKind::Workload;
    endpoint.namespace.as_ref().filter(|namespace| is_pod && is_dns_label(namespace))
}

/// The labels by which a workload is known.
fn identity(labels: &Labels) -> Option<Labels> {
    let named = |keys: &[&str]| -> Labels {
        keys.iter()
            .filter_map(|key| labels.get_key_value(*key))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    };
    if labels.contains_key(NAME) {
        return Some(named(&[NAME, INSTANCE]));
    }
    let short = [APP, K8S_APP].into_iter().find(|key| labels.contains_key(*key));
    let found = short.map_or_else(|| labels.clone(), |key| named(&[key]));
    (!found.is_empty()).then_some(found)
}

/// The labels of a pod that its successor has, too, and that a policy can name.
fn lasting(endpoint: &Endpoint) -> Labels {
    let lasts =
        |key: &str| !VOLATILE.contains(&key) && !VOLATILE_FRONTS.iter().any(|front| key.starts_with(front));
    let usable = endpoint.labels.iter().filter(|(key, value)| lasts(key) && is_key(key) && is_value(value));
    usable.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Whether the API takes a text as the key of a label.
fn is_key(key: &str) -> bool {
    let (front, name) = key.split_once('/').map_or((None, key), |(front, name)| (Some(front), name));
    let is_front = |front: &str| front.len() <= FRONT_MAX && front.split('.').all(is_dns_label);
    !name.is_empty() && is_value(name) && front.is_none_or(is_front)
}

/// The same for a value.
fn is_value(value: &str) -> bool {
    let is_end = |byte: Option<u8>| byte.is_none_or(|byte| byte.is_ascii_alphanumeric());
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    value.len() <= LABEL_MAX
        && value.bytes().all(fits)
        && is_end(value.bytes().next())
        && is_end(value.bytes().next_back())
}

pub(super) fn is_dns_label(text: &str) -> bool {
    !text.is_empty() && is_value(text) && text.bytes().all(|byte| !matches!(byte, b'_' | b'.' | b'A'..=b'Z'))
}
