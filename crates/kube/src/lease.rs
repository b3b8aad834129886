//! Leases of `coordination.k8s.io/v1`: one replica of a controller leads by holding one, and an
//! agent shows that it lives by renewing one.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use russet_model::time;
use serde_json::{Value, json};

use crate::KubeError;
use crate::answer::Failure;
use crate::client::{Client, MAX_OBJECT_BYTES};
use crate::error::absent_is_none;
use crate::rest::{Request, Verb};

/// A lease as it is stored, with members that we do not know, or a new one.
#[derive(Debug, Clone, PartialEq)]
pub struct Lease(Value);

// === impl Lease ===

impl Lease {
    /// A lease that does not exist yet.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "namespace": namespace, "name": name }, "spec": {} }))
    }

    /// A listed object.
    pub fn of_object(object: Value) -> Self {
        Self(object)
    }

    pub fn namespace(&self) -> &str {
        self.text("/metadata/namespace")
    }

    pub fn name(&self) -> &str {
        self.text("/metadata/name")
    }

    /// Empty before it is stored.
    pub fn uid(&self) -> &str {
        self.text("/metadata/uid")
    }

    /// Empty before it is stored; changes with each write.
    pub fn revision(&self) -> &str {
        self.text("/metadata/resourceVersion")
    }

    /// Who has it; empty if it was released.
    pub fn holder(&self) -> &str {
        self.text("/spec/holderIdentity")
    }

    /// For how long after a renewal its holder has it; zero if the object does not say.
    pub fn duration(&self) -> Duration {
        let seconds = self.0.pointer("/spec/leaseDurationSeconds").and_then(Value::as_u64);
        Duration::from_secs(seconds.unwrap_or_default())
    }

    /// What a holder writes: it changes with each renewal, and not with an annotation.
    pub fn spec(&self) -> &Value {
        self.0.get("spec").unwrap_or(&Value::Null)
    }

    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.0.get("metadata")?.get("annotations")?.get(name)?.as_str()
    }

    /// Sets an annotation, or with `None` removes it.
    pub fn annotate(&mut self, name: &str, value: Option<String>) {
        let Some(metadata) = self.0.get_mut("metadata").and_then(Value::as_object_mut) else { return };
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        let Some(annotations) = annotations.as_object_mut() else { return };
        match value {
            Some(value) => _ = annotations.insert(name.to_owned(), json!(value)),
            None => _ = annotations.remove(name),
        }
    }

    /// Sets a label.
    pub fn label(&mut self, name: &str, value: &str) {
        let Some(metadata) = self.0.get_mut("metadata").and_then(Value::as_object_mut) else { return };
        let labels = metadata.entry("labels").or_insert_with(|| json!({}));
        labels.as_object_mut().map(|labels| labels.insert(name.to_owned(), json!(value)));
    }

    /// The spec for a holder that has it from `now` on. The times are for people: no replica compares
    /// them with an own clock.
    pub fn renew(&mut self, holder: &str, duration: Duration, now: SystemTime) {
        let moment = micro_time(now);
        let is_new = self.holder() != holder;
        let transitions = self.0.pointer("/spec/leaseTransitions").and_then(Value::as_u64).unwrap_or(0);
        let is_first = self.revision().is_empty();
        let Some(object) = self.0.as_object_mut() else { return };
        let spec = object.entry("spec").or_insert_with(|| json!({}));
        let Some(spec) = spec.as_object_mut() else { return };
        spec.insert("holderIdentity".to_owned(), json!(holder));
        // The API takes whole seconds, at least one.
        spec.insert("leaseDurationSeconds".to_owned(), json!(duration.as_secs().max(1)));
        spec.insert("renewTime".to_owned(), json!(moment));
        if is_new {
            spec.insert("acquireTime".to_owned(), json!(moment));
            spec.insert("leaseTransitions".to_owned(), json!(transitions + u64::from(!is_first)));
        }
    }

    fn text(&self, pointer: &str) -> &str {
        self.0.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    fn path(&self) -> Vec<String> {
        collection(self.namespace()).into_iter().chain([self.name().to_owned()]).collect()
    }
}

fn collection(namespace: &str) -> Vec<String> {
    ["apis", "coordination.k8s.io", "v1", "namespaces", namespace, "leases"].map(str::to_owned).to_vec()
}

/// RFC 3339 with microseconds, which the API demands (meta/v1 `MicroTime`).
fn micro_time(now: SystemTime) -> String {
    let micros = now.duration_since(UNIX_EPOCH).unwrap_or_default().subsec_micros();
    format!("{}.{micros:06}Z", time::rfc3339(now).trim_end_matches('Z'))
}

// === impl Client ===

impl Client {
    /// Reads a lease.
    pub async fn lease(
        &self,
        namespace: &str,
        name: &str,
        deadline: Duration,
    ) -> Result<Option<Lease>, KubeError> {
        let lease = Lease::new(namespace, name);
        let request = request(format!("get lease {namespace}/{name}"), Verb::Read, lease.path(), deadline);
        absent_is_none(self.sent(request).await.map_err(|failure| failure.error))
    }

    /// Creates a lease, or replaces the one of its revision: if another client was faster, the error
    /// is [`KubeError::Conflict`]. Returns it as it is stored.
    pub async fn write_lease(&self, lease: &Lease, deadline: Duration) -> Result<Lease, KubeError> {
        let named = format!("lease {}/{}", lease.namespace(), lease.name());
        let mut request = match lease.revision() {
            "" => request(format!("create {named}"), Verb::Create, collection(lease.namespace()), deadline),
            _ => request(format!("update {named}"), Verb::Replace, lease.path(), deadline),
        };
        request.body = lease.0.to_string().into_bytes();
        self.sent(request).await.map_err(|failure| failure.error)
    }

    /// Deletes a lease, if it is still at the revision that was read.
    pub async fn delete_lease(&self, lease: &Lease, deadline: Duration) -> Result<(), KubeError> {
        let operation = format!("delete lease {}/{}", lease.namespace(), lease.name());
        let mut request = request(operation, Verb::Delete, lease.path(), deadline);
        let preconditions = json!({ "uid": lease.uid(), "resourceVersion": lease.revision() });
        let options = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions });
        request.body = options.to_string().into_bytes();
        self.request(&request).await.map(drop).map_err(|failure| failure.error)
    }

    async fn sent(&self, request: Request) -> Result<Lease, Failure> {
        let answer = self.request(&request).await?;
        let nonsense =
            |error| Failure::nonsense(&request.operation, format!("the answer makes no sense: {error}"));
        serde_json::from_slice(&answer.body).map(Lease).map_err(nonsense)
    }
}

fn request(operation: String, verb: Verb, segments: Vec<String>, deadline: Duration) -> Request {
    let (query, body, limit_bytes) = (Vec::new(), Vec::new(), MAX_OBJECT_BYTES);
    Request { operation, verb, segments, query, body, deadline, limit_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Server;

    const DEADLINE: Duration = Duration::from_secs(5);

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(1_767_322_800_250)
    }

    #[tokio::test]
    async fn a_lease_changes_hands_and_keeps_what_others_wrote() {
        let server = Server::start();
        let client = Client::new(server.source()).unwrap();
        assert_eq!(client.lease("ns", "it", DEADLINE).await.unwrap(), None);
        let mut lease = Lease::new("ns", "it");
        lease.renew("one", Duration::from_secs(15), now());
        let stored = client.write_lease(&lease, DEADLINE).await.unwrap();
        assert_eq!((stored.holder(), stored.duration()), ("one", Duration::from_secs(15)));
        assert_eq!(stored.spec()["renewTime"], "2026-01-02T03:00:00.250000Z");
        assert_eq!(stored.spec()["leaseTransitions"], 0);
        assert!(matches!(client.write_lease(&lease, DEADLINE).await, Err(KubeError::Conflict(_))));

        let mut other = stored.clone();
        other.annotate("a", Some("b".to_owned()));
        other.renew("two", Duration::from_secs(15), now());
        let other = client.write_lease(&other, DEADLINE).await.unwrap();
        assert_eq!(other.spec()["leaseTransitions"], 1);
        assert!(matches!(client.write_lease(&stored, DEADLINE).await, Err(KubeError::Conflict(_))));
        let read = client.lease("ns", "it", DEADLINE).await.unwrap().unwrap();
        assert_eq!((read.annotation("a"), read.holder()), (Some("b"), "two"));
        assert!(client.delete_lease(&stored, DEADLINE).await.is_err());
        client.delete_lease(&read, DEADLINE).await.unwrap();
        assert_eq!(client.lease("ns", "it", DEADLINE).await.unwrap(), None);
    }
}
