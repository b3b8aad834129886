//! Frees what a gone node held: reads again what the verdicts rest on, and writes under guards.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use russet_addr::{BlockCidr, NodeName};
use russet_ipam::{IpamError, ReleaseOptions};
use russet_kube::{Request, Verb};
use russet_model::{Block, Key, time};
use russet_store::Step;
use serde_json::json;

use super::{Budget, Collector, limit};
use crate::WRITE_DEADLINE;
use crate::cluster::ReadError;
use crate::gone::Phase;
use crate::leader::LEASE;
use crate::metrics::Reason;
use crate::report::{AddressReport, NodeReport, Outcome};
use crate::verdict::{Allocation, Owner, Pods, Verdict, verdict};

/// Why a node was left alone, or half done.
#[derive(Debug, thiserror::Error)]
pub(super) enum CleanError {
    #[error("it has an object again, or its agent renewed its lease")]
    Back,
    #[error("block {0} was changed by another writer")]
    Changed(BlockCidr),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Ipam(#[from] IpamError),
    #[error("its name is no name of a node: {0}")]
    Name(#[from] russet_addr::NameError),
}

// === impl Collector ===

impl Collector {
    /// Frees the addresses, block by block, then the blocks and what else is left of the node.
    pub(super) async fn clean(
        &self,
        name: &str,
        phase: Phase,
        free: Vec<Allocation>,
        blocks: &BTreeSet<BlockCidr>,
        report: &mut NodeReport,
        budget: &mut Budget,
    ) -> Result<(), CleanError> {
        // Tunnels' addresses come last.
        let mut by_block: BTreeMap<(bool, BlockCidr), Vec<Allocation>> = BTreeMap::new();
        for allocation in free {
            by_block
                .entry((allocation.owner == Owner::Tunnel, allocation.block))
                .or_default()
                .push(allocation);
        }
        for mut allocations in by_block.into_values() {
            let rest = allocations.split_off(allocations.len().min(budget.releases));
            report.addresses.iter_mut().filter(|it| rest.iter().any(|rest| it.is(rest))).for_each(limit);
            budget.releases -= allocations.len();
            if !allocations.is_empty() {
                self.release(name, &allocations, report).await?;
            }
        }
        let is_left = |it: &AddressReport| it.outcome != Outcome::Freed;
        if phase != Phase::Everything
            || report.addresses.iter().any(|it| is_left(it) && it.outcome != Outcome::Unknown)
        {
            return Ok(());
        }
        let node = NodeName::new(name)?;
        let mut kept = false;
        for cidr in blocks {
            self.require_gone(name).await?;
            kept |= !self.release_block(&node, *cidr).await?;
        }
        if kept || report.addresses.iter().any(is_left) {
            return Ok(());
        }
        report.is_clean = true;
        self.finish(name, report).await
    }

    async fn require_gone(&self, name: &str) -> Result<(), CleanError> {
        let is_gone = self.cluster.is_still_gone(name, self.gone.sign(name)).await?;
        is_gone.then_some(()).ok_or(CleanError::Back)
    }

    /// Frees addresses of one block by one write, after the API server has confirmed once more that
    /// nothing has them. The write is guarded by each address's handle and sequence number in the
    /// block that is read for it; if the block changes meanwhile, the next look judges again.
    async fn release(
        &self,
        node: &str,
        allocations: &[Allocation],
        report: &mut NodeReport,
    ) -> Result<(), CleanError> {
        let mut now = Pods::default();
        for allocation in allocations {
            if let Owner::Pod(pod) = &allocation.owner {
                self.cluster.add_pod(pod, &mut now).await?;
            }
        }
        let still = |it: &&Allocation| matches!(verdict(it, &now), Verdict::Free(_));
        let options: Vec<ReleaseOptions> = allocations.iter().filter(still).map(guarded).collect();
        if options.is_empty() {
            return Ok(());
        }
        self.require_gone(node).await?;
        // One attempt: its deadline has passed when it would be repeated.
        let allocator = self.allocator.until(SystemTime::now());
        let outcome = allocator.release_ips(&options).await;
        let freed = outcome.as_ref().map(|released| released.addresses.clone()).unwrap_or_default();
        for it in report.addresses.iter_mut().filter(|it| allocations.iter().any(|one| it.is(one))) {
            it.outcome = if freed.iter().any(|address| address.to_string() == it.address) {
                tracing::info!(node, address = %it.address, pod = it.pod.as_deref(), reason = %it.reason, "an address was freed");
                Outcome::Freed
            } else {
                Outcome::Failed
            };
        }
        for allocation in allocations.iter().filter(|it| freed.contains(&it.address)) {
            if let Verdict::Free(reason) = verdict(allocation, &now) {
                self.metrics.freed.get_or_create(&Reason { reason }).inc();
            }
        }
        match outcome {
            // It was freed and allocated again: another look will see what has it.
            Ok(_)
            | Err(IpamError::BadSequence { .. } | IpamError::BadHandle { .. } | IpamError::Late { .. }) => {
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the node's affinity to a block without addresses; returns whether nothing of it is left.
    async fn release_block(&self, node: &NodeName, cidr: BlockCidr) -> Result<bool, CleanError> {
        let allocator = self.allocator.until(SystemTime::now());
        match allocator.release_affinity(node, cidr, true).await {
            Ok(()) | Err(IpamError::ForeignBlock { .. }) => Ok(true),
            Err(IpamError::NotEmpty { .. }) => Ok(false),
            Err(IpamError::Late { .. }) => Err(CleanError::Changed(cidr)),
            Err(IpamError::NoAffinity { .. }) => self.delete_unclaimed(node, cidr).await,
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes an empty block that serves the node without an affinity: its claim was interrupted.
    async fn delete_unclaimed(&self, node: &NodeName, cidr: BlockCidr) -> Result<bool, CleanError> {
        let key = Key::block(cidr);
        let failed = |source| ReadError::Store { what: format!("read {key}"), source };
        let Some(record) = self.fenced.get(&key).await.map_err(failed)? else { return Ok(true) };
        let Ok(block) = Block::decode(&record.value) else { return Ok(false) };
        if !block.serves(node) {
            return Ok(true);
        }
        if !block.is_empty() {
            return Ok(false);
        }
        let deleted = self.fenced.commit(vec![Step::delete(key.clone(), Some(record.revision))]).await;
        match deleted {
            Ok(_) => Ok(true),
            Err(error) if error.error.lost_race() => Err(CleanError::Changed(cidr)),
            Err(error) => Err(ReadError::Store { what: format!("delete {key}"), source: error.error }.into()),
        }
    }

    /// Nothing of the node is left but its agent's lease.
    async fn finish(&self, name: &str, report: &NodeReport) -> Result<(), CleanError> {
        let lease = self.cluster.agents_lease(name).await?;
        if let Some(lease) = lease.filter(|_| self.fence.is_open()) {
            let deleted = self.cluster.client.delete_lease(&lease, WRITE_DEADLINE).await;
            deleted.map_err(ReadError::from)?;
        }
        let addresses = report.addresses.len();
        tracing::info!(
            node = name,
            addresses,
            blocks = report.blocks.len(),
            "a node without an object was cleaned"
        );
        self.metrics.nodes_cleaned.inc();
        let text =
            format!("released {addresses} addresses and {} blocks of the deleted node", report.blocks.len());
        if self.fence.is_open() {
            self.event(name, &text).await;
        }
        Ok(())
    }

    /// An event for people; nothing depends on it.
    async fn event(&self, node: &str, message: &str) {
        let now = time::rfc3339(SystemTime::now());
        let event = json!({ "kind": "Event", "apiVersion": "v1",
            "metadata": { "name": format!("{node}.{:x}", russet_sync::random()), "namespace": "default" },
            "involvedObject": { "kind": "Node", "apiVersion": "v1", "name": node, "uid": node },
            "type": "Normal", "reason": "AddressesReleased", "message": message,
            "source": { "component": LEASE }, "firstTimestamp": now, "lastTimestamp": now, "count": 1 });
        let request = Request {
            operation: format!("create an event for node {node}"),
            verb: Verb::Create,
            segments: ["api", "v1", "namespaces", "default", "events"].map(str::to_owned).to_vec(),
            query: Vec::new(),
            body: event.to_string().into_bytes(),
            deadline: WRITE_DEADLINE,
            limit_bytes: 1 << 20,
        };
        if let Err(failure) = self.cluster.client.request(&request).await {
            tracing::debug!(error = %failure.error, "no event was written");
        }
    }
}

fn guarded(allocation: &Allocation) -> ReleaseOptions {
    let Allocation { address, handle, sequence_number, .. } = allocation.clone();
    ReleaseOptions { address, handle, sequence_number: Some(sequence_number) }
}
