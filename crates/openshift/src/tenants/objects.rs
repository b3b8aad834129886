//! Follows the EgressNetworkPolicies of the Kubernetes API, beside those of the store.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use russet_kube::{Client, KubeError, ObjectEvent};
use russet_sync::Backoff;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::View;
use crate::LOG;

/// The resource.
const API: (&str, &str) = ("network.openshift.io/v1", "egressnetworkpolicies");
/// The pauses after a failed watch.
const BACKOFF_FIRST: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// How long until a resource that the cluster does not have, or whose list it refuses, is looked for again.
const ABSENT_PAUSE: Duration = Duration::from_secs(30 * 60);
/// Over how long the lists of all agents are spread when an API server has restarted.
const SPREAD: Duration = Duration::from_secs(18);

/// Keeps the objects in `view`, and notifies `changed`. Never returns.
pub async fn follow_objects(client: Client, view: Rc<RefCell<View>>, changed: Rc<Notify>) {
    let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_MAX);
    let mut watch = client.watch_objects::<Value>(API.0, API.1).spread(SPREAD);
    loop {
        let pause = match watch.advance().await {
            Ok(event) => {
                backoff.reset();
                take(&view, &changed, event);
                continue;
            }
            Err(error) if error.is_absent() => {
                take(&view, &changed, ObjectEvent::Snapshot(Vec::new()));
                ABSENT_PAUSE
            }
            Err(error @ KubeError::Forbidden(_)) if view.borrow().waits_for_objects() => {
                tracing::warn!(target: LOG, %error, "EgressNetworkPolicies of the Kubernetes API are NOT ENFORCED: they may not be listed");
                take(&view, &changed, ObjectEvent::Snapshot(Vec::new()));
                ABSENT_PAUSE
            }
            Err(error) => {
                let pause = backoff.pause();
                if backoff.is_longest() {
                    tracing::warn!(target: LOG, %error, "EgressNetworkPolicies may be old: they cannot be watched; what was read stays in force");
                } else {
                    tracing::debug!(target: LOG, %error, "EgressNetworkPolicies are not watched");
                }
                pause
            }
        };
        sleep(pause).await;
    }
}

fn take(view: &Rc<RefCell<View>>, changed: &Notify, event: ObjectEvent<Value>) {
    view.borrow_mut().take_objects(event);
    changed.notify_one();
}
