//! A change of a tenant in the Kubernetes API: nothing there keeps two writers from assigning one ID
//! twice, so an annotation asks the only writer for it (kubernetes.md section 6.5).

use std::time::Duration;

use russet_kube::{Client, Request, Verb};
use russet_model::openshift::{CHANGE_ANNOTATION, JOIN, Namespace, NetNamespace};
use russet_openshift::tenants::{Action, Tenants};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::Failure;

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
enum RequestError {
    #[error(
        "in the Kubernetes API a NetNamespace comes and goes with its namespace, by OpenShift's master or `russet controller --openshift`"
    )]
    OfItsNamespace,
    #[error(
        "NetNamespace {namespace}: {change:?} was requested and is not done after {TIMEOUT:?}: does OpenShift's master run, or `russet controller --openshift`? Its log says why it refuses a change. The annotation {CHANGE_ANNOTATION} stays"
    )]
    Pending { namespace: Namespace, change: String },
}

/// A new leader of the controllers waits for 10 s before it writes, and the last one's lease for 15 s.
const TIMEOUT: Duration = Duration::from_secs(60);
const BETWEEN_LOOKS: Duration = Duration::from_millis(300);
const DEADLINE: Duration = Duration::from_secs(5);
/// Limit of one object.
const MAX_BYTES: usize = 1 << 20;

/// Requests a change, and waits until it is made.
pub async fn change(
    client: &Client,
    tenants: &Tenants,
    namespace: &Namespace,
    action: &Action,
) -> Result<NetNamespace, Failure> {
    let change = match action {
        Action::Create | Action::Delete => return Err(RequestError::OfItsNamespace.into()),
        Action::Global => "global".to_owned(),
        Action::Isolate => "isolate".to_owned(),
        Action::Join(other) => {
            // Without it the request would wait for ever.
            tenants.get(other).await?;
            format!("{JOIN}{other}")
        }
    };
    tenants.permitted(namespace, action).await?;
    let patch = json!({ "metadata": { "annotations": { CHANGE_ANNOTATION: change } } });
    send(client, namespace, Verb::Merge, patch.to_string().into_bytes()).await?;
    let end = Instant::now() + TIMEOUT;
    loop {
        let object = send(client, namespace, Verb::Read, Vec::new()).await?;
        let annotations = object.pointer("/metadata/annotations");
        if annotations.and_then(|all| all.get(CHANGE_ANNOTATION)).is_none() {
            return Ok(tenants.get(namespace).await?);
        }
        if Instant::now() >= end {
            return Err(RequestError::Pending { namespace: namespace.clone(), change }.into());
        }
        sleep(BETWEEN_LOOKS).await;
    }
}

async fn send(client: &Client, namespace: &Namespace, verb: Verb, body: Vec<u8>) -> Result<Value, Failure> {
    let path = ["apis", "network.openshift.io", "v1", "netnamespaces", namespace.as_str()];
    let done = if verb == Verb::Read { "get" } else { "change" };
    let request = Request {
        operation: format!("{done} NetNamespace {namespace}"),
        verb,
        segments: path.map(str::to_owned).to_vec(),
        query: Vec::new(),
        body,
        deadline: DEADLINE,
        limit_bytes: MAX_BYTES,
    };
    let answer = client.request(&request).await.map_err(|failure| failure.error)?;
    Ok(serde_json::from_slice(&answer.body)?)
}
