//! An agent's sign of life: a lease that it renews for as long as it runs. It is not owned by the
//! Node object, so it shows that an agent, and with it pods, live on a machine whose Node was
//! deleted (kubernetes.md K81). kubelet's own lease cannot: it ends with its Node.
//!
//! 5,000 agents make 42 requests a second, a twelfth of what their kubelets make.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use russet_sync::{Backoff, random};

use crate::client::Client;
use crate::{KubeError, Lease};

/// Where the leases are: a namespace that every cluster has.
pub const HEARTBEAT_NAMESPACE: &str = "kube-node-lease";
/// Before the node's name in the lease's; kubelet's lease has the bare name.
const NAME_PREFIX: &str = "russet-";
/// By which the leases of agents are listed.
const LABEL: (&str, &str) = ("russet.dev/agent", "true");
/// How often it is renewed, less up to a tenth.
const INTERVAL: Duration = Duration::from_secs(120);
/// For how long an agent counts as living after a renewal: two further ones may be lost.
const DURATION: Duration = Duration::from_secs(360);
const DEADLINE: Duration = Duration::from_secs(10);
/// Pauses after a failure.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The renewals of one agent.
#[derive(Clone)]
pub struct Heartbeat {
    client: Client,
    node: String,
    interval: Duration,
    duration: Duration,
    annotation: Option<Annotation>,
}

/// The name of an annotation, and what gives its value at each renewal.
type Annotation = (&'static str, Arc<dyn Fn() -> Option<String> + Send + Sync>);

/// The node whose agent renews this lease; none if it is another's.
pub fn heartbeat_node(lease: &Lease) -> Option<&str> {
    lease.name().strip_prefix(NAME_PREFIX)
}

// === impl Heartbeat ===

impl Heartbeat {
    /// Those of the agent of a node.
    pub fn new(client: Client, node: &str) -> Self {
        Self { client, node: node.to_owned(), interval: INTERVAL, duration: DURATION, annotation: None }
    }

    /// Each renewal also sets this annotation, if it has a value.
    #[must_use]
    pub fn with_annotation(
        self,
        name: &'static str,
        value: impl Fn() -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self { annotation: Some((name, Arc::new(value))), ..self }
    }

    /// The selector by which the leases of all agents are listed.
    pub const SELECTOR: &'static str = "russet.dev/agent=true";

    /// The name of the lease of a node's agent.
    pub fn name_of(node: &str) -> String {
        format!("{NAME_PREFIX}{node}")
    }

    /// Renews at this interval, and for tests only: an agent counts as living for `duration` after
    /// a renewal.
    #[must_use]
    pub fn every(self, interval: Duration, duration: Duration) -> Self {
        Self { interval, duration, ..self }
    }

    /// Renews the lease for ever. A failure is logged when it is another one than the last.
    pub async fn run(self) {
        let mut known = None;
        let mut failed = String::new();
        let mut backoff = Backoff::new(RETRY_FIRST, RETRY_MAX);
        loop {
            match self.renew(known.take()).await {
                Ok(lease) => {
                    known = Some(lease);
                    backoff.reset();
                    failed.clear();
                    let tenth = u64::try_from(self.interval.as_millis() / 10).unwrap_or(0);
                    let early = Duration::from_millis(random().checked_rem(tenth).unwrap_or(0));
                    tokio::time::sleep(self.interval.saturating_sub(early)).await;
                }
                Err(error) => {
                    let text = error.to_string();
                    if failed != text {
                        tracing::warn!(%error, "the agent's lease was not renewed; it is tried again");
                        failed = text;
                    }
                    tokio::time::sleep(backoff.pause()).await;
                }
            }
        }
    }

    /// Renews it once: one request if the lease is as it was left.
    pub async fn renew(&self, known: Option<Lease>) -> Result<Lease, KubeError> {
        let name = Self::name_of(&self.node);
        let mut lease = match known {
            Some(known) => known,
            None => {
                let found = self.client.lease(HEARTBEAT_NAMESPACE, &name, DEADLINE).await?;
                found.unwrap_or_else(|| Lease::new(HEARTBEAT_NAMESPACE, &name))
            }
        };
        lease.label(LABEL.0, LABEL.1);
        if let Some((name, value)) = &self.annotation
            && let Some(value) = value()
        {
            lease.annotate(name, Some(value));
        }
        lease.renew(&self.node, self.duration, SystemTime::now());
        self.client.write_lease(&lease, DEADLINE).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Server;

    #[tokio::test]
    async fn each_renewal_changes_the_lease_and_takes_one_request() {
        let server = Server::start();
        let beat = Heartbeat::new(Client::new(server.source()).unwrap(), "n1");
        let first = beat.renew(None).await.unwrap();
        assert_eq!((heartbeat_node(&first), first.holder(), first.duration()), (Some("n1"), "n1", DURATION));
        let requests = server.seen().len();
        let second = beat.renew(Some(first.clone())).await.unwrap();
        assert_eq!(server.seen().len(), requests + 1);
        assert_ne!(first.revision(), second.revision());
        assert_eq!(first.uid(), second.uid());
        server.delete("Lease.coordination.k8s.io", HEARTBEAT_NAMESPACE, first.name());
        assert!(beat.renew(Some(second)).await.is_err());
        assert_ne!(beat.renew(None).await.unwrap().uid(), first.uid());
    }
}
