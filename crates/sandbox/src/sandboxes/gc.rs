//! Removes sandboxes that are not needed any more.

use std::collections::BTreeMap;
use std::time::Duration;

use russet_addr::{ContainerId, EndpointId, IfName};
use russet_cni_spec::ConfigList;

use super::Sandboxes;
use super::table::Record;
use crate::SandboxId;
use crate::checkpoint::{Network, Phase};
use crate::error::SandboxError;

use super::table::Known;

/// What to collect, besides interrupted removals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Collect {
    /// Sandboxes that are not ready and have a newer one of the same pod. kubelet does this itself.
    pub superseded: bool,
    /// Attachments of other containers on the networks of these sandboxes, by the plugins' GC. Only
    /// if no other runtime uses those networks or that cache: its containers would count as gone.
    pub networks: bool,
}

/// The result of a collection.
#[derive(Debug, Default)]
pub struct Collected {
    /// Sandboxes that were removed.
    pub removed: Vec<SandboxId>,
    /// Removals that failed.
    pub errors: Vec<SandboxError>,
}

/// How long GC waits for exclusive access.
const EXCLUSIVE_TIMEOUT: Duration = Duration::from_secs(10);

// === impl Sandboxes ===

impl Sandboxes {
    /// Retries failed removals, and removes sandboxes that only the engine knows, and what
    /// `collect` selects.
    pub fn gc(&self, collect: Collect) -> Collected {
        let mut collected = Collected::default();
        let (strays, announced) = self.strays();
        strays.iter().for_each(|id| self.take_over_unknown(id));
        let all_known = announced.is_ok();
        collected.errors.extend(announced.err());
        let unwanted = |record: &Record| record.live.phase == Phase::Removing;
        let mut ids: Vec<SandboxId> =
            self.table().iter().filter(|(_, record)| unwanted(record)).map(|(id, _)| id.clone()).collect();
        // A stop that could not release the addresses, or was deferred at the start.
        let half_stopped = |record: &Record| record.live.phase == Phase::Stopped && record.live.attached;
        let stops: Vec<SandboxId> = self
            .table()
            .iter()
            .filter(|(_, record)| half_stopped(record))
            .map(|(id, _)| id.clone())
            .collect();
        collected.errors.extend(stops.iter().filter_map(|id| self.stop(id).err()));
        if collect.superseded {
            ids.extend(self.superseded());
        }
        for id in ids {
            match self.remove(&id) {
                Ok(()) => collected.removed.push(id),
                Err(error) => collected.errors.push(error),
            }
        }
        // A sandbox that only the engine knows may run, and have an address.
        if collect.networks && all_known {
            collected.errors.extend(self.gc_networks().err());
        }
        collected
    }

    /// Stopped sandboxes of pods that have a newer one.
    fn superseded(&self) -> Vec<SandboxId> {
        let table = self.table();
        let mut newest: BTreeMap<(String, String), (u64, SandboxId)> = BTreeMap::new();
        let known = || {
            table.iter().filter_map(|(id, record)| match &record.known {
                Known::As(checkpoint) => Some((id, record, checkpoint)),
                Known::Nothing { .. } => None,
            })
        };
        for (id, _, checkpoint) in known() {
            let metadata = &checkpoint.config.metadata;
            let pod = (metadata.namespace.clone(), metadata.name.clone());
            let this = (checkpoint.created_at_ns, id.clone());
            let newest = newest.entry(pod).or_insert_with(|| this.clone());
            *newest = this.max(newest.clone());
        }
        let keep = |id: &SandboxId| newest.values().any(|(_, newest)| newest == id);
        let stopped = known().filter(|(id, record, _)| record.live.phase == Phase::Stopped && !keep(id));
        stopped.map(|(id, _, _)| id.clone()).collect()
    }

    /// Exclusive GC of every network to which a sandbox is attached, and of the default one.
    fn gc_networks(&self) -> Result<(), SandboxError> {
        let _alone = self.locks.exclusive_blocking(EXCLUSIVE_TIMEOUT).ok_or(SandboxError::Busy)?;
        let step =
            |error: russet_addr::NameError| SandboxError::step("collect", "the networks' attachments", error);
        let eth0 = IfName::new(crate::network::IFNAME).map_err(step)?;
        let (mut containers, mut lists) = (Vec::new(), BTreeMap::new());
        for (id, record) in self.table().iter().filter(|(_, record)| record.live.attached) {
            containers.push(id.container_id().map_err(step)?);
            if let Known::As(checkpoint) = &record.known
                && let Some(list) =
                    checkpoint.network.as_ref().and_then(|network| Network::list(network).ok())
            {
                lists.insert(list.name.clone(), list);
            }
        }
        if let Ok(list) = self.networks.current() {
            lists.insert(list.name.clone(), list.as_ref().clone());
        }
        let gc = |list: &ConfigList| {
            let id = |container: &ContainerId| EndpointId {
                network: list.name.clone(),
                container: container.clone(),
                ifname: eth0.clone(),
            };
            self.runtime.gc(list, Some(&containers.iter().map(id).collect::<Vec<_>>()))
        };
        let failed = lists.values().filter_map(|list| gc(list).err().map(|error| (list, error)));
        let failed = failed.map(|(list, source)| SandboxError::Network {
            operation: format!("collect in network {}", list.name),
            source: Box::new(source),
        });
        SandboxError::collect(failed.collect())
    }
}
