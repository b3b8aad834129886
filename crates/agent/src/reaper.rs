//! Deletes the interfaces of deleted pods: many at once cost the kernel as much as one (dataplane.md section 3.1).

use std::rc::Rc;
use std::time::Duration;

use russet_plugins::Node;
use tokio::sync::Notify;

use crate::metrics::Metrics;

/// How long doomed interfaces wait for company. Pods go in bursts, and a doomed interface hurts nobody.
const GATHER: Duration = Duration::from_millis(250);

/// Reaps at start, for what an earlier agent left, and whenever DEL doomed something.
pub async fn run(node: Node, doomed: Rc<Notify>, metrics: Metrics) {
    loop {
        match node.wiring.reap().await {
            Ok(reaped) => {
                metrics.reaped.inc_by(reaped.count as u64);
                if reaped.count > 0 {
                    tracing::debug!(links = reaped.count, "deleted pods' interfaces removed");
                }
                for link in reaped.foreign {
                    tracing::warn!(
                        link,
                        group = russet_attach::DOOMED_GROUP,
                        "a link that is not ours is in our group"
                    );
                }
            }
            Err(error) => tracing::warn!(%error, "deleted pods' interfaces could not be removed"),
        }
        doomed.notified().await;
        tokio::time::sleep(GATHER).await;
    }
}

/// At start, before any request: what an agent or a plugin left that was killed at the birth of an interface. We have the node's lock, so that nobody
/// else is at it now.
pub async fn newborn(node: &Node) {
    match node.wiring.reap_newborn().await {
        Ok(0) => {}
        Ok(links) => tracing::info!(links, "interfaces removed that killed requests had left unfinished"),
        Err(error) => tracing::warn!(%error, "interfaces that killed requests left cannot be looked for"),
    }
}
