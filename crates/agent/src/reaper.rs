//! Deletes the interfaces of deleted pods in groups: deleting many at once costs the kernel as much
//! as deleting one (dataplane.md section 3.1).

use std::rc::Rc;
use std::time::Duration;

use russet_plugins::Node;
use tokio::sync::Notify;

use crate::metrics::Metrics;

/// How long doomed interfaces are collected. Pods are deleted in bursts, and a doomed interface
/// does no harm.
const GATHER: Duration = Duration::from_millis(250);

/// Deletes at start what an earlier agent left, and later whenever DEL doomed an interface.
pub async fn run(node: Node, doomed: Rc<Notify>, metrics: Metrics) {
    loop {
        match node.host.wiring.reap().await {
            Ok(reaped) => {
                metrics.reaped.inc_by(reaped.count as u64);
                if reaped.count > 0 {
                    tracing::debug!(links = reaped.count, "deleted pods' interfaces removed");
                }
                for link in reaped.foreign {
                    tracing::warn!(
                        link,
                        group = russet_attach::DOOMED_GROUP,
                        "a foreign link is in Russet's link group"
                    );
                }
            }
            Err(error) => tracing::warn!(%error, "deleted pods' interfaces could not be removed"),
        }
        doomed.notified().await;
        tokio::time::sleep(GATHER).await;
    }
}

/// Called at start before the first request: deletes precreated interfaces that a killed agent or
/// plugin left. The caller holds the node lock, so no other process is precreating one now.
pub async fn delete_precreated(node: &Node) {
    match node.host.wiring.reap_precreated().await {
        Ok(0) => {}
        Ok(links) => tracing::info!(links, "unfinished interfaces of interrupted requests were removed"),
        Err(error) => {
            tracing::warn!(%error, "unfinished interfaces of interrupted requests cannot be listed")
        }
    }
}
