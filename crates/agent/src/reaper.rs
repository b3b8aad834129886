//! Deletes the interfaces of deleted pods in groups: deleting many at once costs the kernel as much
//! as deleting one (dataplane.md section 3.1).

use std::rc::Rc;
use std::time::{Duration, Instant};

use russet_attach::Reaped;
use russet_cni_spec::CniError;
use russet_plugins::Node;
use tokio::sync::Notify;

use crate::fast_path::Signal;
use crate::metrics::Metrics;

/// How long doomed interfaces are collected. Pods are deleted in bursts, and a doomed interface
/// does no harm.
const GATHER: Duration = Duration::from_millis(250);
/// With the fast path, the kernel works some 17 ms for each interface (docs/performance.md), in which no other can be made: after that
/// it has a pause of so many times as long.
const PAUSE_FACTOR: u32 = 4;
/// More interfaces than these are deleted without a pause, so that they do not become ever more.
const UNHURRIED_MAX: usize = 64;

/// Deletes at start what an earlier agent left, and later whenever DEL doomed an interface.
pub async fn run(node: Node, doomed: Rc<Notify>, flows: Signal, metrics: Metrics) {
    loop {
        let reaped = match flows.is_loaded() {
            true => reap_one_by_one(&node, &metrics).await,
            false => node.host.wiring.reap().await,
        };
        match reaped {
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

/// Deletes the interfaces whose deletion programs of the fast path make slow, so that other requests come in between.
async fn reap_one_by_one(node: &Node, metrics: &Metrics) -> Result<Reaped, CniError> {
    loop {
        let began = Instant::now();
        // One that cannot be deleted must not keep the others.
        let Ok(reaped) = node.host.wiring.reap_one().await else { return node.host.wiring.reap().await };
        metrics.reaped.inc_by(reaped.count as u64);
        if reaped.left == 0 {
            // Also finds what is not Russet's.
            return node.host.wiring.reap().await;
        }
        if reaped.left <= UNHURRIED_MAX {
            tokio::time::sleep(began.elapsed() * PAUSE_FACTOR).await;
        }
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
