//! Watches that on which policies depend: objects of the Kubernetes API, and records of the store.
//! Endpoints, and what else policies name, are watched only once there is a policy.

use std::fmt::Display;
use std::rc::Rc;
use std::time::Duration;

use russet_kube::{Client, Keep, Piece, Watched};
use russet_store::Store;
use russet_store_kube::Pauses;
use russet_sync::Backoff;
use serde::de::DeserializeSeed as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tokio::task::JoinSet;

use super::conditions::Conditions;
use super::{Change, Kind, Policies, records};

/// The pauses after a failed watch.
const BACKOFF_FIRST: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// How long until a kind that the cluster does not have is looked for again, as Calico does
/// (kubernetes.md section 1.2).
pub const ABSENT_PAUSE: Duration = Duration::from_secs(30 * 60);

/// A pod without the members that no policy asks for.
#[derive(Debug)]
struct BriefPod(Value);

/// What the translation of policies reads of a pod.
const POD: Keep = Keep::Members(&[("metadata", METADATA), ("spec", SPEC), ("status", STATUS)]);
const METADATA: Keep = Keep::Members(&[
    ("name", Keep::All),
    ("namespace", Keep::All),
    ("resourceVersion", Keep::All),
    ("creationTimestamp", Keep::All),
    ("deletionTimestamp", Keep::All),
    ("labels", Keep::All),
    (
        "annotations",
        Keep::Members(&[
            ("cni.projectcalico.org/podIP", Keep::All),
            ("cni.projectcalico.org/podIPs", Keep::All),
            ("vpc.amazonaws.com/pod-ips", Keep::All),
        ]),
    ),
]);
const SPEC: Keep = Keep::Members(&[
    ("nodeName", Keep::All),
    ("hostNetwork", Keep::All),
    ("serviceAccountName", Keep::All),
    ("containers", CONTAINERS),
    ("initContainers", CONTAINERS),
]);
const CONTAINERS: Keep = Keep::Items(&Keep::Members(&[("ports", Keep::All)]));
const STATUS: Keep = Keep::Members(&[("phase", Keep::All), ("podIP", Keep::All), ("podIPs", Keep::All)]);

// === impl BriefPod ===

impl<'de> Deserialize<'de> for BriefPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        POD.deserialize(deserializer).map(Self)
    }
}

impl Watched for BriefPod {
    fn revision(&self) -> &str {
        self.0.revision()
    }
}

impl From<BriefPod> for Value {
    fn from(pod: BriefPod) -> Self {
        pod.0
    }
}

/// Starts a watch for each kind. There is a client if the store is in the Kubernetes API.
pub fn start(
    background: &mut JoinSet<()>,
    store: &Rc<dyn Store>,
    client: Option<&Client>,
    policies: &Policies,
) {
    for kind in policies.shared.source.kinds().iter().copied() {
        let (store, client, policies) = (Rc::clone(store), client.cloned(), policies.clone());
        let mut wants = policies.shared.wants.subscribe();
        background.spawn_local(async move {
            if wants.wait_for(|wants| wants.covers(kind)).await.is_err() {
                return;
            }
            match (kind, client) {
                (Kind::Records(kind), _) => records::follow(kind, store, policies).await,
                (kind, Some(client)) => match kind {
                    Kind::Pods => follow::<BriefPod>(kind, &client, &policies, |_| ()).await,
                    Kind::ClusterNetworkPolicies => follow_cluster_policies(&client, &policies).await,
                    _ => follow::<Value>(kind, &client, &policies, |_| ()).await,
                },
                (_, None) => {}
            }
        });
    }
}

pub fn backoff() -> Backoff {
    Backoff::new(BACKOFF_FIRST, BACKOFF_MAX)
}

/// Waits after a failed watch, and logs one that has failed for a while.
pub async fn after_failure(plural: &str, error: &impl Display, backoff: &mut Backoff) {
    let pause = backoff.pause();
    tracing::debug!(plural, %error, "watch failed");
    if backoff.is_longest() {
        tracing::warn!(plural, %error, "policies may be old: they cannot be watched; what was decided stays in force");
    }
    tokio::time::sleep(pause).await;
}

/// Follows ClusterNetworkPolicies, and writes in their status what of them is not enforced. A slow write delays no decision.
pub async fn follow_cluster_policies(client: &Client, policies: &Policies) {
    let conditions = Conditions::new(client.clone());
    let followed =
        follow::<Value>(Kind::ClusterNetworkPolicies, client, policies, |piece| conditions.see(piece));
    tokio::join!(followed, conditions.run());
}

/// Follows the objects of a kind for ever.
async fn follow<T: Watched + Into<Value>>(
    kind: Kind,
    client: &Client,
    policies: &Policies,
    see: impl Fn(&Piece<T>),
) {
    let mut backoff = backoff();
    let (version, plural) = kind.resource();
    let mut watch = client.watch_objects::<T>(version, plural).spread(Pauses::RELIST).in_pieces();
    loop {
        match watch.advance().await {
            Ok(piece) => {
                backoff.reset();
                see(&piece);
                let change = match piece {
                    Piece::Begin => Change::Begin(kind),
                    Piece::Changed(object) => Change::Put(kind, object.into()),
                    Piece::Deleted(object) => Change::Deleted(kind, object.into()),
                    Piece::Complete => Change::Complete(kind),
                };
                policies.send(change).await;
            }
            Err(error) if kind.is_optional() && error.is_absent() => {
                [Piece::Begin, Piece::Complete].iter().for_each(&see);
                policies.send_all(kind, []).await;
                tokio::time::sleep(ABSENT_PAUSE).await;
            }
            Err(error) => after_failure(plural, &error, &mut backoff).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use russet_verdict::translate::Translator;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_brief_pod_is_translated_as_the_whole_one_is() {
        let whole = json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "7",
                "creationTimestamp": "2026-01-02T03:04:05Z", "labels": { "app": "web", "tier": "1" },
                "annotations": { "cni.projectcalico.org/podIPs": "10.0.0.9/32", "note": "long" },
                "managedFields": [{ "manager": "kubelet", "fieldsV1": { "f:metadata": {} } }] },
            "spec": { "nodeName": "n1", "serviceAccountName": "robot", "volumes": [{ "name": "v" }],
                "initContainers": [{ "name": "i", "ports": [{ "name": "metrics", "containerPort": 9 }] }],
                "containers": [{ "name": "c", "image": "i", "env": [{ "name": "A", "value": "b" }],
                    "ports": [{ "name": "http", "containerPort": 8080, "protocol": "TCP" }] }] },
            "status": { "phase": "Running", "podIP": "10.0.0.9", "podIPs": [{ "ip": "10.0.0.9" }],
                "conditions": [{ "type": "Ready", "status": "True" }] } });
        for status in [whole["status"].clone(), json!({ "phase": "Pending" }), json!({ "phase": "Failed" })] {
            let mut whole = whole.clone();
            whole["status"] = status;
            let pod: BriefPod = serde_json::from_str(&whole.to_string()).unwrap();
            assert_eq!(pod.revision(), "7");
            let mut brief = Value::from(pod);
            assert!(
                brief.pointer("/spec/containers/0/env").is_none()
                    && brief.pointer("/metadata/managedFields").is_none()
            );
            brief["apiVersion"] = "v1".into();
            brief["kind"] = "Pod".into();
            let updates = |pod: &Value| format!("{:?}", Translator::default().put(pod).updates);
            assert_eq!(updates(&brief), updates(&whole));
        }
    }
}
