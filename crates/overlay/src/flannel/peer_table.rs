//! The table of peers: it knows their claims, decides which claim wins, and derives what the kernel
//! should hold. Pure; `fabric` enters claims and applies the difference, whose size is that of the
//! change and not of the table.

use std::collections::BTreeMap;
use std::net::IpAddr;

use russet_addr::{Family, IpNet, Mac};

use super::PeerKey;
use super::rules::{Claim, PeerPath};
use crate::desired::{Desired, Hop};
use crate::observe::{FoundDevice, Observed};
use crate::owner::{Owner, of, of_mut};
use crate::plan::route;
use crate::refusal::{Reason, Refusal, Subject};

/// Number of routes that get no metric of their own, so that `ip route` shows what flannel's would.
/// Beyond that many, new ones do: the IPv4 kernel compares a next hop with all others of its device
/// and metric (5,000: 0.2 s; 15,000: 2.7 s).
const PLAIN_MAX_ROUTES: usize = 1024;
/// Number of different metrics after that: a prime below one octet.
const METRICS: u32 = 251;

/// The metric of the blackhole for addresses that no pod of ours has: the worst, so that the pods'
/// own routes win.
const BLACKHOLE_METRIC: u32 = u32::MAX;

/// Peers' claims and the state that follows from them.
#[derive(Debug, Default)]
pub(crate) struct PeerTable {
    peers: BTreeMap<PeerKey, PeerClaims>,
    /// Claims of each base address, oldest first: the last one wins.
    bases: BTreeMap<IpAddr, Vec<(u64, PeerKey)>>,
    /// The claims that won.
    winners: BTreeMap<IpAddr, (u64, Claim)>,
    /// The outer addresses of each MAC, by age: the last one wins. Flat, because a map of its own
    /// for the single address that a MAC usually has takes 300 bytes.
    outers: BTreeMap<(Family, Mac, u64), IpAddr>,
    /// How many peers are reached at each address, directly or by tunnel.
    publics: BTreeMap<IpAddr, usize>,
    refusals: BTreeMap<(PeerKey, Family), Refusal>,
    newest: u64,
    desired: Desired,
    before: Before,
}

/// A peer's claims in each family, and their age.
#[derive(Debug)]
struct PeerClaims {
    age: u64,
    claims: [Option<Claim>; 2],
    publics: [Option<IpAddr>; 2],
}

/// The desired state before a change, of the objects that it touched.
#[derive(Debug, Default)]
struct Before {
    routes: BTreeMap<IpNet, Option<Hop>>,
    neighbours: BTreeMap<IpAddr, Option<Mac>>,
    fdb: BTreeMap<(Family, Mac), Option<IpAddr>>,
}

/// What a peer's lease comes to in each family: a claim, a refusal, or nothing.
pub(crate) type LeaseClaims = [Option<Result<Claim, Box<Refusal>>>; 2];

// === impl PeerTable ===

impl PeerTable {
    pub(crate) fn new(owner: Owner, devices: BTreeMap<Family, crate::vxlan::Device>) -> Self {
        let desired = Desired { owner, devices, ..Desired::default() };
        Self { desired, ..Self::default() }
    }

    pub(crate) const fn desired(&self) -> &Desired {
        &self.desired
    }

    pub(crate) const fn desired_mut(&mut self) -> &mut Desired {
        &mut self.desired
    }

    /// The claims that are not programmed, with the reason.
    pub(crate) fn refusals(&self) -> impl Iterator<Item = &Refusal> {
        self.refusals.values()
    }

    /// Whether a peer is at an address of `net`.
    pub(crate) fn has_public_in(&self, net: &IpNet) -> bool {
        self.publics.range(net.network()..=net.broadcast()).next().is_some()
    }

    /// The addresses at which peers are reached.
    pub(crate) fn publics(&self) -> impl Iterator<Item = IpAddr> {
        self.publics.keys().copied()
    }

    /// Adds a blackhole for addresses of our subnet that no pod has.
    pub(crate) fn swallow(&mut self, own: IpNet) {
        self.desired.routes.insert(own, Hop::Blackhole);
    }

    /// Enters the claims of a peer as the newest of all.
    pub(crate) fn put(&mut self, key: PeerKey, lease_claims: LeaseClaims, publics: [Option<IpAddr>; 2]) {
        self.remove(&key);
        self.newest += 1;
        let age = self.newest;
        let mut record = PeerClaims { age, claims: [None, None], publics };
        for family in Family::BOTH {
            match of(&lease_claims, family) {
                Some(Ok(claim)) => *of_mut(&mut record.claims, family) = Some(*claim),
                Some(Err(refusal)) => _ = self.refusals.insert((key, family), (**refusal).clone()),
                None => {}
            }
        }
        let claims = record.claims;
        publics.into_iter().flatten().for_each(|public| *self.publics.entry(public).or_default() += 1);
        self.peers.insert(key, record);
        for claim in claims.into_iter().flatten() {
            let base = claim.subnet.addr();
            // Usually one entry; the default would reserve room for four.
            self.bases.entry(base).or_insert_with(|| Vec::with_capacity(1)).push((age, key));
            self.settle(base);
        }
    }

    pub(crate) fn remove(&mut self, key: &PeerKey) {
        Family::BOTH.iter().for_each(|family| _ = self.refusals.remove(&(*key, *family)));
        let Some(record) = self.peers.remove(key) else { return };
        for public in record.publics.into_iter().flatten() {
            if let Some(count) = self.publics.get_mut(&public) {
                *count -= 1;
                if *count == 0 {
                    self.publics.remove(&public);
                }
            }
        }
        for claim in record.claims.into_iter().flatten() {
            let base = claim.subnet.addr();
            if let Some(claims) = self.bases.get_mut(&base) {
                claims.retain(|(age, _)| *age != record.age);
                if claims.is_empty() {
                    self.bases.remove(&base);
                }
            }
            self.settle(base);
        }
    }

    /// Gives the base address to its newest claim.
    fn settle(&mut self, base: IpAddr) {
        let family = Family::of(base);
        let claims = self.bases.get(&base).map_or(&[][..], Vec::as_slice);
        let claim = |(age, key): &(u64, PeerKey)| Some((*age, (*of(&self.peers.get(key)?.claims, family))?));
        let winner = claims.last().and_then(claim);
        for (number, (_, key)) in claims.iter().enumerate() {
            if number + 1 == claims.len() {
                self.refusals.remove(&(*key, family));
            } else if let Some(claim) = self.peers.get(key).and_then(|record| *of(&record.claims, family)) {
                let refusal = Refusal::new(Subject::Block(claim.subnet), None, Reason::Superseded);
                self.refusals.insert((*key, family), refusal);
            }
        }
        if self.winners.get(&base) == winner.as_ref() {
            return;
        }
        if let Some((age, claim)) = self.winners.remove(&base) {
            self.set_route(claim.subnet, None);
            if let PeerPath::Tunnel { mac, .. } = claim.path {
                self.set_neighbour(base, None);
                self.set_outer((family, mac), age, None);
            }
        }
        if let Some((age, claim)) = winner {
            self.winners.insert(base, (age, claim));
            let hop = match claim.path {
                PeerPath::Tunnel { mac, outer } => {
                    self.set_neighbour(base, Some(mac));
                    self.set_outer((family, mac), age, Some(outer));
                    Hop::Tunnel(base)
                }
                PeerPath::Direct { ifindex, gateway } => Hop::Underlay { ifindex, gateway },
            };
            self.set_route(claim.subnet, Some(hop));
        }
    }

    fn set_route(&mut self, dst: IpNet, hop: Option<Hop>) {
        let old = replace(&mut self.desired.routes, dst, hop);
        self.before.routes.entry(dst).or_insert(old);
    }

    fn set_neighbour(&mut self, address: IpAddr, mac: Option<Mac>) {
        let old = replace(&mut self.desired.neighbours, address, mac);
        self.before.neighbours.entry(address).or_insert(old);
    }

    /// Several subnets may be behind one MAC, that of one node. If their leases disagree about its
    /// address, the newest wins.
    fn set_outer(&mut self, key: (Family, Mac), age: u64, outer: Option<IpAddr>) {
        let (family, mac) = key;
        replace(&mut self.outers, (family, mac, age), outer);
        let mut all = self.outers.range((family, mac, 0)..=(family, mac, u64::MAX));
        let newest = all.next_back().map(|(_, outer)| *outer);
        let old = replace(&mut self.desired.fdb, key, newest);
        self.before.fdb.entry(key).or_insert(old);
    }

    /// Decides the metrics of all routes. Existing routes keep theirs.
    pub(crate) fn settle_metrics(&mut self, observed: &Observed) {
        self.before = Before::default();
        self.desired.metrics.clear();
        let crowded = self.desired.routes.len() > PLAIN_MAX_ROUTES;
        for (dst, hop) in &self.desired.routes {
            if *hop == Hop::Blackhole {
                self.desired.metrics.insert(*dst, BLACKHOLE_METRIC);
                continue;
            }
            let Some(own) = own_metric(dst) else { continue };
            let found = observed.routes.get(dst).into_iter().flatten().map(|route| route.metric);
            let known = found.filter(|metric| metric.is_none() || *metric == Some(own)).min();
            if known.unwrap_or(crowded.then_some(own)).is_some() {
                self.desired.metrics.insert(*dst, own);
            }
        }
    }

    /// The effect of all changes since the last call: the desired state and the earlier one, each
    /// limited to the touched objects. `devices` are those that exist.
    pub(crate) fn difference(&mut self, devices: &BTreeMap<Family, FoundDevice>) -> (Desired, Observed) {
        let before = std::mem::take(&mut self.before);
        let mut desired = Desired {
            owner: self.desired.owner.clone(),
            devices: self.desired.devices.clone(),
            ..Desired::default()
        };
        let mut was = Observed { devices: devices.clone(), ..Observed::default() };
        let device = |family| devices.get(&family).map(|device| device.ifindex);
        let crowded = self.desired.routes.len() > PLAIN_MAX_ROUTES;
        for (dst, old) in before.routes {
            let new = self.desired.routes.get(&dst).copied();
            if old.is_none() && new.is_some() && crowded {
                self.desired.metrics.extend(own_metric(&dst).map(|metric| (dst, metric)));
            }
            let metric = self.desired.metrics.get(&dst).copied();
            if new.is_none() {
                self.desired.metrics.remove(&dst);
            }
            if old == new {
                continue;
            }
            desired.metrics.extend(metric.map(|metric| (dst, metric)));
            desired.routes.extend(new.map(|hop| (dst, hop)));
            let owner = &desired.owner;
            let route = |hop| route(dst, hop, device(Family::of_net(&dst)), metric, owner);
            was.routes.extend(old.map(|hop| (dst, vec![route(hop)])));
        }
        for (address, old) in before.neighbours {
            let new = self.desired.neighbours.get(&address).copied();
            desired.neighbours.extend(new.map(|mac| (address, mac)));
            let ifindex = device(Family::of(address)).unwrap_or(0);
            let neighbour = |mac| russet_netlink::Neighbour::permanent(ifindex, address, mac);
            was.neighbours.extend(old.map(|mac| (address, neighbour(mac))));
        }
        for ((family, mac), old) in before.fdb {
            let new = self.desired.fdb.get(&(family, mac)).copied();
            desired.fdb.extend(new.map(|outer| ((family, mac), outer)));
            let ifindex = device(family).unwrap_or(0);
            let entry = |outer| russet_netlink::FdbEntry::remote(ifindex, mac, outer);
            was.fdb.extend(old.map(|outer| ((family, mac), vec![entry(outer)])));
        }
        (desired, was)
    }
}

/// Inserts, changes or removes an entry; returns the previous value.
fn replace<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) -> Option<V> {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    }
}

/// The metric of a route to `dst` when there are many routes: a function of `dst`, so that a later
/// run computes the same. IPv6 needs none.
fn own_metric(dst: &IpNet) -> Option<u32> {
    match dst {
        IpNet::V4(net) => {
            let number = u32::from(net.network()) >> (32 - u32::from(net.prefix_len())).min(31);
            Some(1 + number % METRICS)
        }
        IpNet::V6(_) => None,
    }
}

#[cfg(test)]
mod tests;
