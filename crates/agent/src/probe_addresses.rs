//! This node's addresses for probes: one of each family in which no tunnel device has an address that is reached
//! as pods are, from the node's blocks, at which its kernel answers other nodes ([`crate::peers`]).
//!
//! An address is claimed, then it is put on the loopback interface, and then published. What is not wanted any more
//! takes the reverse way. So whatever is on the interface is allocated to this node, and no pod gets it, wherever an
//! agent is interrupted: the next one finds by the handle what was claimed. The overlay changes the interface.
//!
//! A kernel before 5.18 does not keep which program has added an address, so that it could not be taken away again:
//! there none is claimed.
//!
//! Failures are logged, and nothing else waits for these addresses: without one, other nodes probe this one at its
//! own address. Called by the loop.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use russet_addr::{Family, IpNet, NodeName};
use russet_ipam::{Allocator, Held, IpamError};
use russet_linux::probe::{self, Feature};
use russet_model::{AddressUse, EncapMode, IpPool, Node, probe_annotation};
use russet_overlay::underlay::Choice;
use russet_store::Store;
use tokio::task::JoinError;

use crate::bootstrap::{self, BootstrapError};
use crate::cluster::Cluster;
use crate::reconcile::Loop;

/// What this node holds for probes, as it was found or claimed last.
#[derive(Debug, Default)]
pub struct ProbeAddresses {
    /// By family: those that belong on the loopback interface.
    own: [Option<IpAddr>; 2],
    /// Those that are released as soon as they are not there.
    doomed: Vec<Held>,
    /// What is published or held may not be what it should be.
    is_unfinished: bool,
    /// A family waits for the release of its last address before another one is claimed.
    waits: bool,
    /// No other node was known, and so none was claimed.
    is_alone: bool,
    /// The handle holds nothing.
    is_clear: bool,
    /// Whether the kernel keeps which program has added an address, once that was asked.
    keeps_protocol: Option<bool>,
    /// The failures that were logged last: in [`settle`](Self::settle), and in what follows.
    failures: [Option<String>; 2],
}

/// Places in [`ProbeAddresses::failures`].
const SETTLING: usize = 0;
const FINISHING: usize = 1;

/// Where addresses are claimed and published.
struct Site<'a> {
    store: &'a dyn Store,
    allocator: &'a Allocator,
    node: &'a NodeName,
    /// This node's record, as far as it was read.
    record: Option<&'a Node>,
}

/// What could not be done now.
#[derive(Debug, thiserror::Error)]
enum ProbeAddressError {
    #[error("claim or release them: {0}")]
    Ipam(#[from] IpamError),
    #[error("publish them: {0}")]
    Record(#[from] BootstrapError),
}

/// By family: the pools from which a node takes addresses for probes.
type Pools = [Vec<IpNet>; 2];

fn index(family: Family) -> usize {
    usize::from(family == Family::V6)
}

/// The pools whose blocks other nodes reach by plain routes, in families that need an address there. In IPv4 a tunnel
/// device's address is reached by the same route, if its pool has one.
fn pools<'a>(all: impl Iterator<Item = &'a IpPool> + Clone, record: Option<&Node>, choice: &Choice) -> Pools {
    let none = BTreeMap::new();
    let labels = record.map_or(&none, |node| &node.metadata.labels);
    Family::BOTH.map(|family| {
        let enabled = all.clone().filter(|pool| pool.spec.family() == family && pool.is_enabled());
        let tunnel = record.and_then(|node| node.spec.vxlan_tunnel(family));
        let mut tunnelled =
            enabled.clone().filter(|pool| pool.spec.vxlan_mode != EncapMode::Never).peekable();
        let serves_too = |pool: &IpPool| {
            pool.spec.vxlan_mode == EncapMode::CrossSubnet
                && tunnel.is_none_or(|address| pool.spec.cidr.contains(&address))
        };
        let is_served = family == Family::V4
            && tunnelled.peek().is_some()
            && (tunnel.is_none() || tunnelled.any(serves_too));
        if is_served || choice.address(family).is_none() {
            return Vec::new();
        }
        let is_plain = |pool: &&IpPool| {
            pool.spec.vxlan_mode != EncapMode::Always
                && pool.spec.ipip_mode == EncapMode::Never
                && pool.spec.allows(AddressUse::Tunnel)
                && pool.spec.is_automatic()
                && pool.spec.nodes().is_ok_and(|selector| selector.matches(labels))
        };
        enabled.filter(is_plain).map(|pool| pool.spec.cidr).collect()
    })
}

/// The text of an annotation with an address for probes.
fn published(record: Option<&Node>, family: Family) -> Option<&str> {
    record?.metadata.annotations.get(probe_annotation(family)).map(String::as_str)
}

fn has_others(cluster: &Cluster) -> bool {
    cluster.nodes.len() > usize::from(cluster.own.is_some())
}

// === impl Loop ===

impl Loop {
    /// Claims what is wanted, and finds out what is not. Nothing is wanted where nothing is probed, and a node that is
    /// alone keeps what it holds.
    pub(crate) async fn settle_probe_addresses(
        &self,
        probes: &mut ProbeAddresses,
        cluster: &Cluster,
        choice: &Choice,
        aside: bool,
    ) {
        let pools = match self.config.peers.probes {
            Some(_) if !aside => pools(cluster.pools.values(), cluster.own.as_ref(), choice),
            _ => Pools::default(),
        };
        probes.is_alone = !has_others(cluster);
        if let Some(pools) = probes.usable(pools).await {
            probes.settle(&self.site(cluster), &pools).await;
        }
    }

    /// Publishes what is on the loopback interface, and releases what is not. Whether an address can be claimed only now.
    pub(crate) async fn finish_probe_addresses(
        &self,
        probes: &mut ProbeAddresses,
        cluster: &Cluster,
    ) -> Result<bool, JoinError> {
        if !probes.is_unfinished {
            return Ok(probes.is_incomplete(cluster));
        }
        let asked = probes.addresses();
        let found = tokio::task::spawn_blocking(move || russet_overlay::on_loopback(&asked)).await?;
        match found {
            Ok(found) => probes.finish(&self.site(cluster), &found).await,
            Err(error) => probes.note(FINISHING, Some(error.to_string())),
        }
        Ok(probes.is_incomplete(cluster))
    }

    fn site<'a>(&'a self, cluster: &'a Cluster) -> Site<'a> {
        let (store, allocator) = (&*self.node.store, &*self.node.allocator);
        Site { store, allocator, node: &self.node.name, record: cluster.own.as_ref() }
    }
}

// === impl ProbeAddresses ===

impl ProbeAddresses {
    /// The addresses that belong on the loopback interface, by family.
    pub fn own(&self) -> [Option<IpAddr>; 2] {
        self.own
    }

    /// Whether an address can be claimed only now.
    pub fn is_incomplete(&self, cluster: &Cluster) -> bool {
        (self.waits && self.doomed.is_empty()) || (self.is_alone && has_others(cluster))
    }

    /// These pools, or none where no address could be taken off the interface again. `None` while that is not known:
    /// then everything stays as it is until the next time.
    async fn usable(&mut self, pools: Pools) -> Option<Pools> {
        self.waits = false;
        if pools.iter().all(Vec::is_empty) {
            return Some(pools);
        }
        self.kernel_keeps_protocol().await.map(|keeps| if keeps { pools } else { Pools::default() })
    }

    async fn kernel_keeps_protocol(&mut self) -> Option<bool> {
        if self.keeps_protocol.is_some() {
            return self.keeps_protocol;
        }
        match tokio::task::spawn_blocking(|| probe::supports(Feature::AddressProtocol)).await {
            Ok(Ok(answer)) => {
                self.keeps_protocol = Some(answer);
                if !answer {
                    tracing::info!(
                        "other nodes probe this one at its own address: the kernel does not keep which program has added an address, as Linux does since 5.18"
                    );
                }
            }
            Ok(Err(error)) => self.note(SETTLING, Some(error.to_string())),
            Err(_) => tracing::debug!("the agent ends"),
        }
        self.keeps_protocol
    }

    fn addresses(&self) -> BTreeSet<IpAddr> {
        self.own.into_iter().flatten().chain(self.doomed.iter().map(|held| held.address)).collect()
    }

    async fn settle(&mut self, site: &Site<'_>, pools: &Pools) {
        self.waits = false;
        let is_named = Family::BOTH.into_iter().any(|family| published(site.record, family).is_some());
        if self.is_clear && !is_named && (self.is_alone || pools.iter().all(Vec::is_empty)) {
            return;
        }
        let settled = self.try_settle(site, pools).await;
        self.note(SETTLING, settled.err().map(|error| error.to_string()));
    }

    async fn try_settle(&mut self, site: &Site<'_>, pools: &Pools) -> Result<(), ProbeAddressError> {
        let mut held = site.allocator.probe_addresses(site.node).await?;
        // An interrupted agent may have left several.
        held.sort_by_key(|entry| (!self.own.contains(&Some(entry.address)), entry.address));
        (self.is_unfinished, self.is_clear) = (true, false);
        let was = std::mem::take(&mut self.own);
        self.doomed.clear();
        for entry in held {
            let at = index(Family::of(entry.address));
            let serves = pools[at].iter().any(|pool| pool.contains(&entry.address));
            match self.own[at] {
                None if serves => self.own[at] = Some(entry.address),
                _ => self.doomed.push(entry),
            }
        }
        // Before it goes: others stop probing it.
        let named = Family::BOTH.map(|family| site.record.and_then(|node| node.probe_address(family)));
        let stays = [0, 1].map(|at| self.own[at].filter(|own| named[at] == Some(*own)));
        site.publish(stays).await?;
        let claimed = self.claim(site, pools).await;
        if was != self.own {
            let shown: Vec<String> = self.own.iter().flatten().map(IpAddr::to_string).collect();
            tracing::info!(addresses = shown.join(", "), "this node's addresses for probes by other nodes");
        }
        claimed
    }

    async fn claim(&mut self, site: &Site<'_>, pools: &Pools) -> Result<(), ProbeAddressError> {
        let mut failed = None;
        for (at, family) in Family::BOTH.into_iter().enumerate() {
            if self.own[at].is_some() || pools[at].is_empty() || self.is_alone {
                continue;
            }
            if self.doomed.iter().any(|held| Family::of(held.address) == family) {
                self.waits = true;
                continue;
            }
            match site.allocator.claim_probe_address(site.node, family, &pools[at]).await {
                Ok(address) => self.own[at] = Some(address),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    async fn finish(&mut self, site: &Site<'_>, on_loopback: &BTreeSet<IpAddr>) {
        let finished = self.try_finish(site, on_loopback).await;
        self.note(FINISHING, finished.err().map(|error| error.to_string()));
    }

    async fn try_finish(
        &mut self,
        site: &Site<'_>,
        on_loopback: &BTreeSet<IpAddr>,
    ) -> Result<(), ProbeAddressError> {
        let shown = self.own.map(|own| own.filter(|address| on_loopback.contains(address)));
        site.publish(shown).await?;
        let is_there = |held: &Held| on_loopback.contains(&held.address);
        let free = self.doomed.iter().filter(|held| !is_there(held)).cloned();
        site.allocator.release_probe_addresses(site.node, free.collect::<Vec<_>>()).await?;
        self.doomed.retain(is_there);
        self.is_unfinished = shown != self.own || !self.doomed.is_empty();
        self.is_clear = !self.is_unfinished && self.own == [None, None];
        Ok(())
    }

    fn note(&mut self, step: usize, failure: Option<String>) {
        let Some(last) = self.failures.get_mut(step) else { return };
        if let Some(error) = failure.as_ref().filter(|_| failure != *last) {
            tracing::warn!(
                error,
                "the addresses for probes by other nodes are not as they should be; tried again"
            );
        }
        *last = failure;
    }
}

// === impl Site ===

impl Site<'_> {
    /// Makes this node's record name these addresses and no others.
    async fn publish(&self, addresses: [Option<IpAddr>; 2]) -> Result<(), BootstrapError> {
        let is_same = |family| {
            let address = addresses[index(family)].map(|address| address.to_string());
            published(self.record, family) == address.as_deref()
        };
        if Family::BOTH.into_iter().all(is_same) {
            return Ok(());
        }
        bootstrap::update_node(self.store, self.node, |node| {
            Family::BOTH
                .into_iter()
                .for_each(|family| node.set_probe_address(family, addresses[index(family)]));
        })
        .await
    }
}

#[cfg(test)]
mod tests;
