//! Pods of Calico's plugins, Russet's and Go's. A host end of theirs carries packets once all that is routed to it is
//! decided, and not any more when it is not: when its record is deleted, while its interface is still there, as with Felix.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use russet_addr::IfName;
use russet_attach::{Dialect, Wired};

use super::wiring::LocalPod;
use super::{Phase, RETRY, Source, Worker};
use crate::policies::DecidedEnds;
use crate::policies::ends::{self, End};

/// What is known of these pods.
#[derive(Default)]
pub(super) struct Calico {
    /// The host ends, as they were in the kernel.
    ends: Vec<End>,
    /// The last look succeeded.
    are_known: bool,
    /// They, or what is routed to them, have changed since.
    have_changed: bool,
    /// When they are looked at again, because that failed.
    retry_at: Option<Instant>,
    /// The addresses of their pods.
    local: BTreeSet<IpAddr>,
    /// Those of them whose pods are described.
    recorded: BTreeSet<IpAddr>,
}

// === impl Calico ===

impl Calico {
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Whether they have to be looked at again now.
    pub(super) fn takes_retry(&mut self) -> bool {
        self.retry_at.take_if(|at| *at <= Instant::now()).is_some()
    }

    /// What the node routes to a host end.
    pub(super) fn addresses(&self, host_name: &IfName) -> BTreeSet<IpAddr> {
        self.ends.iter().filter(|end| end.name == *host_name).flat_map(|end| end.addresses.clone()).collect()
    }

    /// The ends that are not `known`: those of Go's plugin, and those that are being wired or removed.
    pub(super) fn unlisted(&self, known: &BTreeSet<IfName>) -> impl Iterator<Item = LocalPod> {
        let unlisted = self.ends.iter().filter(|end| !known.contains(&end.name) && !end.addresses.is_empty());
        unlisted.map(|end| LocalPod {
            is_pod: false,
            is_calico: true,
            host_name: end.name.clone(),
            bridge: None,
            addresses: end.addresses.clone(),
        })
    }

    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.local.contains(&address)
    }

    pub(super) fn is_recorded(&self, address: IpAddr) -> bool {
        self.recorded.contains(&address)
    }
}

// === impl Worker ===

impl Worker {
    /// The kernel has other host ends now, or routes something else there.
    pub(super) fn ends_changed(&mut self) {
        (self.calico.have_changed, self.is_stale) = (true, true);
    }

    /// Reads the host ends in the kernel. On a node without any, which does not change, a look would cost each ADD the
    /// list of all links.
    pub(super) fn look_at_ends(&mut self) {
        let attached = self.endpoints.attached();
        let others = attached.iter().filter_map(|endpoint| match endpoint.wired.as_deref()? {
            Wired::Routed(it) if it.dialect == Dialect::Calico => Some(it.host_name.clone()),
            _ => None,
        });
        let others: BTreeSet<IfName> = others.collect();
        if others.is_empty() && !self.calico.have_changed {
            return;
        }
        match ends::read(&others) {
            Ok(ends) => {
                (self.calico.ends, self.calico.are_known, self.calico.retry_at) = (ends, true, None);
                self.calico.have_changed = false;
            }
            Err(error) => {
                self.calico.are_known = false;
                tracing::warn!(%error, "the host ends of Calico's plugins are not known; it is tried again");
                self.calico.retry_at = Some(Instant::now() + RETRY);
            }
        }
    }

    /// Finds the pods that are described: those with the name of one, and of others those with an address and a host end
    /// that are one's.
    fn match_calico(&mut self) {
        let locals = || self.wired.iter().filter(|(_, local)| local.is_calico);
        let unnamed = || self.unnamed.iter().filter(|local| local.is_calico);
        let local: BTreeSet<IpAddr> = locals()
            .map(|(_, local)| local)
            .chain(unnamed())
            .flat_map(|local| &local.addresses)
            .copied()
            .collect();
        let mut recorded = BTreeSet::new();
        if !local.is_empty() {
            let named =
                locals().filter(|(name, local)| self.is_described(name, local)).map(|(_, local)| local);
            let is_described = |local: &&LocalPod| self.pods.values().any(|endpoint| local.is_at(endpoint));
            let described = named.chain(unnamed().filter(is_described));
            recorded.extend(described.flat_map(|local| &local.addresses));
        }
        (self.calico.local, self.calico.recorded) = (local, recorded);
    }

    /// Whether the pod of this name is described. A record of the pod that had the name before has other addresses; with
    /// Kubernetes the API server knows a pod before it is wired, and its addresses later.
    fn is_described(&self, name: &str, local: &LocalPod) -> bool {
        let of_records = self.shared.source == Source::Records;
        self.pods.values().any(|endpoint| {
            let has_address = || !local.addresses.is_disjoint(&endpoint.addresses);
            let (namespace, pod) = name.split_once('/').unwrap_or_default();
            endpoint.namespace.as_deref() == Some(namespace)
                && *endpoint.name == *pod
                && (!of_records || has_address())
        })
    }

    /// Whether all that is routed to an end is decided.
    fn is_end_decided(&self, end: &End) -> bool {
        !end.addresses.is_empty() && end.addresses.iter().all(|address| self.is_decided(*address))
    }

    fn decided_ends(&self) -> BTreeSet<u32> {
        self.calico.ends.iter().filter(|end| self.is_end_decided(end)).map(|end| end.index).collect()
    }

    /// Before decisions change: what is not decided, or not any more, is held, and its end carries nothing.
    pub(super) fn close_undecided(&mut self, is_first: bool) {
        self.match_calico();
        let mut undecided = self.calico.local.clone();
        undecided.retain(|address| !self.wanted.held.contains(address) && !self.is_decided(*address));
        let decided = self.decided_ends();
        let held = match is_first || undecided.is_empty() {
            true => Ok(()),
            false => self.hold(&undecided),
        };
        if is_first {
            // What is restored next holds them.
            self.wanted.held.extend(&undecided);
        }
        // Ends that are not known now stay as they are.
        let are_known = self.calico.are_known;
        let closed = held.and_then(|()| {
            let Some(table) = self.kernel.table.as_mut().filter(|_| are_known) else { return Ok(()) };
            match table.ends() {
                Some(open) => table.open_ends(&(open & &decided), Instant::now()),
                None => Ok(()),
            }
        });
        if let Err(error) = closed {
            tracing::warn!(%error, "pods of Calico's plugins that are not decided are not held; it is tried again");
            self.wanted.held.extend(undecided);
            self.kernel.restore_at = Some(Instant::now() + RETRY);
        }
    }

    /// Behind the decisions: the ends of pods that are decided carry packets.
    pub(super) fn open_decided(&mut self) {
        if self.kernel.restore_at.is_some() || !self.calico.are_known {
            return;
        }
        let decided = self.decided_ends();
        let Some(table) = self.kernel.table.as_mut() else { return };
        if let Err(error) = table.open_ends(&decided, Instant::now()) {
            tracing::warn!(%error, "host ends of pods of Calico's plugins are not open yet; it is tried again");
            self.kernel.restore_at = Some(Instant::now() + RETRY);
        }
    }

    /// Decisions about these addresses are not in force from now on.
    pub(super) fn withhold(&self, addresses: &BTreeSet<IpAddr>) {
        self.shared.decided_ends.send_if_modified(|decided| match decided {
            DecidedEnds::These(ends) => {
                let before = ends.len();
                ends.retain(|(_, address)| !addresses.contains(address));
                ends.len() != before
            }
            DecidedEnds::Nothing | DecidedEnds::Everything => false,
        });
    }

    /// Says of which ends decisions are in force.
    pub(super) fn publish_calico(&self, in_force: bool) {
        let table = self.kernel.table.as_ref();
        let open = table.and_then(russet_policy::Policies::ends);
        let is_open = |end: &&End| open.is_some_and(|open| open.contains(&end.index));
        let is_enforcing = self.phase == Phase::Enforcing;
        let decided = match self.phase {
            Phase::Open if in_force => DecidedEnds::Everything,
            Phase::Enforcing if in_force => {
                let pairs =
                    |end: &End| end.addresses.iter().map(|it| (end.index, *it)).collect::<BTreeSet<_>>();
                let mut pairs: BTreeSet<_> =
                    self.calico.ends.iter().filter(is_open).flat_map(pairs).collect();
                pairs.retain(|(_, address)| !self.wanted.held.contains(address));
                DecidedEnds::These(pairs)
            }
            _ => DecidedEnds::Nothing,
        };
        let are_open = self.calico.are_known && self.calico.ends.iter().all(|end| is_open(&end));
        let are_all = self.phase == Phase::Open || is_enforcing && are_open;
        self.shared.calico_decided.store(in_force && are_all, Ordering::Release);
        let guards = is_enforcing && !self.calico.ends.is_empty();
        self.shared.guards_calico.send_if_modified(|sent| std::mem::replace(sent, guards) != guards);
        self.shared.decided_ends.send_if_modified(|sent| {
            let is_changed = *sent != decided;
            *sent = decided;
            is_changed
        });
    }
}

#[cfg(test)]
mod tests;
