//! The policies of a cluster whose agent is in Calico's place and, by its settings, enforces none. An operator has to see them in the log and at
//! `/readyz?verbose`: a policy that denies everything and is silently not enforced is the worst surprise.
//!
//! The loop counts what it watches in the store anyway. Of a store in the Kubernetes API these are Calico's policies alone, so that those of
//! Kubernetes are watched here, for their names only.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use russet_kube::{Client, Keep, KubeError, Piece, Watched};
use russet_model::{Key, KeyKind, ResourceKind};
use russet_store_kube::Pauses;
use serde::de::DeserializeSeed as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tokio::task::JoinSet;

use super::Kind;
use super::source::{ABSENT_PAUSE, backoff};
use crate::health::Readiness;

/// Counts the policies that are not enforced, and reports each change.
pub struct UnenforcedPolicies {
    readiness: Readiness,
    found: RefCell<Found>,
}

#[derive(Default)]
struct Found {
    /// By kind; the reason if a kind cannot be counted.
    counts: BTreeMap<&'static str, Result<usize, String>>,
    /// Whether Felix enforces them. None until the loop has looked.
    has_felix: Option<bool>,
}

/// The names of a kind's objects.
#[derive(Default)]
struct Names {
    known: BTreeSet<String>,
    /// Those that came since a list began, while it is incomplete.
    listed: Option<BTreeSet<String>>,
}

/// A policy without its content.
#[derive(Debug)]
struct PolicyName(Value);

/// What is read of a policy.
const NAME: Keep = Keep::Members(&[(
    "metadata",
    Keep::Members(&[("name", Keep::All), ("namespace", Keep::All), ("resourceVersion", Keep::All)]),
)]);

/// Calico's policies, which the loop counts.
const OF_CALICO: [ResourceKind; 2] = [ResourceKind::GlobalNetworkPolicy, ResourceKind::NetworkPolicy];
/// Those of Kubernetes, with their names in messages: networkpolicies are also a kind of Calico.
const OF_KUBERNETES: [(Kind, &str); 2] = [
    (Kind::NetworkPolicies, "networkpolicies of Kubernetes"),
    (Kind::ClusterNetworkPolicies, "clusternetworkpolicies of Kubernetes"),
];

// === impl UnenforcedPolicies ===

impl UnenforcedPolicies {
    pub fn new(readiness: Readiness) -> Rc<Self> {
        Rc::new(Self { readiness, found: RefCell::default() })
    }

    /// Watches the policies of Kubernetes.
    pub fn watch(self: &Rc<Self>, background: &mut JoinSet<()>, client: &Client) {
        for (kind, label) in OF_KUBERNETES {
            background.spawn_local(Rc::clone(self).follow(kind, label, client.clone()));
        }
    }

    /// Takes the keys of Calico's policies, and whether Felix runs on this node.
    pub fn stored(&self, keys: &BTreeSet<Key>, has_felix: bool) {
        for kind in OF_CALICO {
            let of_kind =
                |key: &&Key| matches!(key.kind(), KeyKind::Resource { kind: found, .. } if found == kind);
            let count = keys.iter().filter(of_kind).count();
            self.found.borrow_mut().counts.insert(kind.plural(), Ok(count));
        }
        self.found.borrow_mut().has_felix = Some(has_felix);
        self.report();
    }

    async fn follow(self: Rc<Self>, kind: Kind, label: &'static str, client: Client) {
        let mut backoff = backoff();
        let (version, plural) = kind.resource();
        let mut watch =
            client.watch_objects::<PolicyName>(version, plural).spread(Pauses::RELIST).in_pieces();
        let mut names = Names::default();
        loop {
            match watch.advance().await {
                Ok(piece) => {
                    backoff.reset();
                    if let Some(count) = names.apply(piece) {
                        self.counted(label, Ok(count));
                    }
                }
                Err(error) if kind.is_optional() && error.is_absent() => {
                    names = Names::default();
                    self.counted(label, Ok(0));
                    tokio::time::sleep(ABSENT_PAUSE).await;
                }
                Err(error) => {
                    self.failed(label, &error);
                    tokio::time::sleep(backoff.pause()).await;
                }
            }
        }
    }

    /// What is known stays. A server that is away says by itself that it is.
    fn failed(&self, label: &'static str, error: &KubeError) {
        tracing::debug!(kind = label, %error, "policies cannot be counted now");
        let is_known = matches!(self.found.borrow().counts.get(label), Some(Ok(_)));
        if !is_known && !error.retryable() {
            self.counted(label, Err(error.to_string()));
        }
    }

    fn counted(&self, label: &'static str, count: Result<usize, String>) {
        self.found.borrow_mut().counts.insert(label, count);
        self.report();
    }

    /// The log reports each change, and readiness always.
    fn report(&self) {
        let found = self.found.borrow();
        let Some(has_felix) = found.has_felix else { return };
        let text = found.message().filter(|_| !has_felix);
        if !self.readiness.remark("policy", text.clone()) {
            return;
        }
        match text {
            Some(text) => tracing::warn!(policies = found.total(), "policy: {text}"),
            None => tracing::info!("policy: there is none that this node would have to enforce"),
        }
    }
}

// === impl Found ===

impl Found {
    fn total(&self) -> usize {
        self.counts.values().flatten().sum()
    }

    /// The message about policies that are not enforced; none if there are none.
    fn message(&self) -> Option<String> {
        let there: Vec<String> = self
            .counts
            .iter()
            .filter_map(|(label, count)| match count {
                Ok(0) => None,
                Ok(count) => Some(format!("{count} {label}")),
                Err(error) => Some(format!("{label} that cannot be counted ({error})")),
            })
            .collect();
        (!there.is_empty()).then(|| {
            format!(
                "NOT ENFORCED: the datastore holds {}, and this agent's setting is policies = \"off\"; this node lets all traffic of its pods through. Where they must hold, set it to \"on\", or run calico/node (Felix)",
                there.join(" and ")
            )
        })
    }
}

// === impl Names ===

impl Names {
    /// Applies a piece of a watch. Returns the number of objects, unless a list is incomplete.
    fn apply(&mut self, piece: Piece<PolicyName>) -> Option<usize> {
        match piece {
            Piece::Begin => self.listed = Some(BTreeSet::new()),
            Piece::Changed(policy) => {
                self.listed.as_mut().map(|listed| listed.insert(policy.name()));
                self.known.insert(policy.name());
            }
            Piece::Deleted(policy) => {
                self.listed.as_mut().map(|listed| listed.remove(&policy.name()));
                self.known.remove(&policy.name());
            }
            Piece::Complete => self.known = self.listed.take().unwrap_or_default(),
        }
        self.listed.is_none().then_some(self.known.len())
    }
}

// === impl PolicyName ===

impl PolicyName {
    /// `namespace/name`.
    fn name(&self) -> String {
        let member = |pointer| self.0.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        format!("{}/{}", member("/metadata/namespace"), member("/metadata/name"))
    }
}

impl<'de> Deserialize<'de> for PolicyName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        NAME.deserialize(deserializer).map(Self)
    }
}

impl Watched for PolicyName {
    fn revision(&self) -> &str {
        self.0.revision()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(name: &str) -> PolicyName {
        let text =
            format!(r#"{{"metadata":{{"name":"{name}","namespace":"shop"}},"spec":{{"podSelector":{{}}}}}}"#);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn policies_are_counted_by_kind() {
        let readiness = Readiness::pending();
        let unenforced = UnenforcedPolicies::new(readiness.clone());
        let said = || readiness.remarks().join("\n");
        unenforced.counted("clusternetworkpolicies of Kubernetes", Ok(1));
        assert_eq!(said(), "", "it is not known whether Felix runs");
        let mut keys = BTreeSet::new();
        unenforced.stored(&keys, false);
        assert!(said().contains("holds 1 clusternetworkpolicies of Kubernetes, and"), "{}", said());
        unenforced.counted("clusternetworkpolicies of Kubernetes", Ok(0));
        assert_eq!(said(), "");
        let base = "/calico/resources/v3/projectcalico.org";
        keys.insert(Key::from_stored(format!("{base}/networkpolicies/shop/default.deny")));
        unenforced.stored(&keys, false);
        assert!(said().contains("holds 1 networkpolicies, and"), "{}", said());
        keys.insert(Key::from_stored(format!("{base}/globalnetworkpolicies/default.a")));
        keys.insert(Key::from_stored(format!("{base}/globalnetworkpolicies/default.b")));
        unenforced.stored(&keys, false);
        assert!(said().contains("holds 2 globalnetworkpolicies and 1 networkpolicies, and"), "{}", said());
        unenforced.stored(&keys, true);
        assert_eq!(said(), "", "Felix enforces them");
    }

    #[test]
    fn a_kind_that_may_not_be_read_is_named_unless_its_count_is_known() {
        let readiness = Readiness::pending();
        let unenforced = UnenforcedPolicies::new(readiness.clone());
        unenforced.stored(&BTreeSet::new(), false);
        let said = || readiness.remarks().join("\n");
        let label = "networkpolicies of Kubernetes";
        let away = KubeError::Unavailable { operation: "list".to_owned(), source: "reset".into() };
        unenforced.failed(label, &away);
        assert_eq!(said(), "", "a server that is away forbids nothing");
        let said_no = russet_kube::Said { operation: "list".to_owned(), message: "forbidden".to_owned() };
        let forbidden = KubeError::Invalid(said_no);
        unenforced.failed(label, &forbidden);
        let expected = "networkpolicies of Kubernetes that cannot be counted (list: forbidden)";
        assert!(said().contains(expected), "{}", said());
        unenforced.counted(label, Ok(1));
        unenforced.failed(label, &forbidden);
        assert!(said().contains("holds 1 networkpolicies of Kubernetes, and"), "{}", said());
    }

    #[test]
    fn a_list_replaces_the_count_once_it_is_complete() {
        let mut names = Names::default();
        let mut apply = |piece| names.apply(piece);
        assert_eq!(apply(Piece::Begin), None);
        assert_eq!(apply(Piece::Changed(policy("a"))), None);
        assert_eq!(apply(Piece::Changed(policy("b"))), None);
        assert_eq!(apply(Piece::Complete), Some(2));
        assert_eq!(apply(Piece::Changed(policy("b"))), Some(2), "it was only changed");
        assert_eq!(apply(Piece::Deleted(policy("a"))), Some(1));
        assert_eq!(apply(Piece::Begin), None);
        assert_eq!(apply(Piece::Complete), Some(0));
    }
}
