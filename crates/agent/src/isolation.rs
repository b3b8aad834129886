//! The verdicts of interfaces at the agent's start: right before any request is served, for every interface that is there by then.

use std::rc::Rc;
use std::time::Duration;

use russet_plugins::Node;

use crate::health::{Condition, Readiness};
use crate::operations::Operations;

/// Between two tries. Meanwhile no pod can be attached, and those that are there have what an earlier agent left.
const RETRY: Duration = Duration::from_secs(5);

/// The first try, with nobody else at work.
pub async fn begin(node: &Node, readiness: &Readiness) {
    match node.wiring.reconcile_verdicts().await {
        Ok(report) => {
            if node.wiring.verdicts().is_unsupported() {
                readiness
                    .note("verdicts: this kernel has no nf_tables, so nothing keeps pods' packets apart");
            }
            if !report.is_clean() {
                let (added, removed) = (report.added.len(), report.removed.len());
                tracing::info!(structure = report.structure, added, removed, "verdicts are in force");
            }
            readiness.met(Condition::Verdicts);
        }
        Err(error) => {
            if readiness.unmet(Condition::Verdicts, &error) {
                tracing::warn!(%error, "verdicts are not in force: no pod can be attached");
            }
        }
    }
}

/// Further tries, until one succeeds.
pub async fn insist(node: Node, operations: Rc<Operations>, readiness: Readiness) {
    while readiness.is_unmet(Condition::Verdicts) {
        tokio::time::sleep(RETRY).await;
        let _alone = operations.alone().await;
        begin(&node, &readiness).await;
    }
}
