//! Checks the addresses of a store: the records in, findings out (calico-ipam.md sections 1.3, 3.9,
//! 5.2). Pure, except for `store`. For `russet ipam check`.
//!
//! The records should be of one moment: between two reads a running cluster moves a handle and its
//! block, which would look like an error. They are passed one by one and not stored: an address
//! needs 16 bytes, so that 10,000 full blocks need little memory. Blocks with an error are
//! requested a second time, for the report's text.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use ipnet::IpNet;
use russet_addr::BlockCidr;
use russet_model::{Affinity, AffinityState, Block, HandleId, IpPool, Key, KeyKind};
use russet_store::Record;

mod endpoints;
mod finding;
mod lean;
mod live;
mod marks;
mod store;
mod taken;

pub use endpoints::Owner;
pub use finding::{Finding, Holder};
pub use store::audit_store;

use endpoints::Named;
use lean::Lean;
use marks::Marks;
use taken::{Taken, TakenByHash};

/// What was checked, and what was found.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Audit {
    /// Number of blocks.
    pub blocks: usize,
    /// Number of allocated addresses.
    pub allocations: usize,
    /// Number of handles.
    pub handles: usize,
    /// Number of affinities.
    pub affinities: usize,
    /// Number of workload endpoints.
    pub endpoints: usize,
    /// Addresses in use that no record of this datastore could confirm: those of pods where pods
    /// have no endpoints, of services and of virtual machines.
    pub not_compared: usize,
    /// The findings, the most severe first.
    pub findings: Vec<Finding>,
}

/// Checks the records of a store; records of other kinds are ignored.
pub fn audit(records: &[Record]) -> Audit {
    let mut auditor = Auditor::default();
    let rank = |record: &Record| match record.key.kind() {
        KeyKind::Block(_) => 1,
        KeyKind::Handle(_) => 2,
        _ => 0,
    };
    for wanted in 0..=2 {
        records.iter().filter(|record| rank(record) == wanted).for_each(|record| auditor.add(record));
    }
    if auditor.must_see_names_again() {
        records.iter().for_each(|record| auditor.named_again(record));
    }
    let doubts: BTreeSet<Key> = auditor.doubts().into_iter().collect();
    records.iter().filter(|record| doubts.contains(&record.key)).for_each(|record| auditor.again(record));
    auditor.finish()
}

/// Takes records one by one. Pools before blocks, and blocks before handles, which is the order of
/// their keys; other records at any time.
#[derive(Default)]
pub struct Auditor {
    audit: Audit,
    pools: Vec<IpNet>,
    /// The enabled ones.
    enabled: Vec<IpNet>,
    /// Addresses in records of endpoints and of nodes' tunnels.
    named: Named,
    /// Every block, with its affinity if it could be decoded.
    blocks: BTreeMap<BlockCidr, Option<Option<String>>>,
    /// The same in the order of reading, as text: what `Taken` refers to.
    numbered: Vec<(BlockCidr, Box<str>)>,
    /// Every affinity by owner and block; none if its record cannot be decoded.
    claims: BTreeMap<(String, BlockCidr), Option<AffinityState>>,
    /// Every address that has a handle.
    taken: TakenByHash,
    /// Where handles' records are expected.
    marks: Marks,
    /// Random, so that no name can be chosen to collide with another.
    hasher: RandomState,
    /// Blocks that overlap another one.
    shared: BTreeSet<BlockCidr>,
    /// Addresses whose handles were not found, by block and ordinal, with the handle's hash.
    unreached: BTreeMap<BlockCidr, BTreeMap<u16, u64>>,
    /// The owners of each address of overlapping blocks.
    owners: BTreeMap<IpAddr, Vec<(BlockCidr, Option<String>)>>,
    unallocated: Vec<Finding>,
    missing: Vec<Finding>,
    unnamed: Vec<Finding>,
    handles: Vec<Finding>,
    outside: Vec<Finding>,
}

// === impl Auditor ===

impl Auditor {
    /// Checks a record.
    pub fn add(&mut self, record: &Record) {
        if let Some(name) = record.key.handle_name() {
            return self.handle(record, name);
        }
        match record.key.kind() {
            KeyKind::Block(cidr) => self.block(record, cidr),
            KeyKind::Affinity { node, block } => self.claim(format!("host:{node}"), block, record),
            KeyKind::VirtualAffinity { owner, block } => {
                self.claim(format!("virtual:{owner}"), block, record);
            }
            KeyKind::Pool(_) => {
                let Some(pool) = self.decoded_or_finding(record, IpPool::decode(&record.value)) else {
                    return;
                };
                self.enabled.extend(pool.is_enabled().then_some(pool.spec.cidr));
                self.pools.push(pool.spec.cidr);
            }
            KeyKind::Node(_) | KeyKind::WorkloadEndpoint { .. } | KeyKind::Resource { .. } => {
                let added = self.named.add(record);
                self.decoded_or_finding(record, added);
            }
            _ => {}
        }
    }

    /// Where handles' records are expected, according to the blocks so far: keys in order, about
    /// `every` records apart.
    pub fn marks(&self, every: usize) -> Vec<Key> {
        self.marks.keys(every)
    }

    fn claim(&mut self, owner: String, block: BlockCidr, record: &Record) {
        self.audit.affinities += 1;
        let affinity = self.decoded_or_finding(record, Affinity::decode(&record.value));
        self.claims.insert((owner, block), affinity.map(|affinity| affinity.state));
    }

    /// Returns a decoded record; an error becomes a finding.
    fn decoded_or_finding<T>(
        &mut self,
        record: &Record,
        decoded: Result<T, russet_model::DecodeError>,
    ) -> Option<T> {
        decoded.map_err(|error| self.unreadable(&record.key, error.to_string())).ok()
    }

    fn unreadable(&mut self, key: &Key, reason: String) {
        self.audit.findings.push(Finding::Unreadable { key: key.clone(), reason });
    }

    fn block(&mut self, record: &Record, cidr: BlockCidr) {
        self.audit.blocks += 1;
        self.blocks.insert(cidr, None);
        let Some(block) = self.decoded_or_finding(record, Lean::read(&record.value)) else { return };
        if block.cidr != cidr {
            return self.unreadable(&record.key, format!("block {} is stored there", block.cidr));
        }
        self.audit.allocations += block.used.len();
        // Mostly all addresses of a block are in one pool, or none.
        if !self.pools.iter().any(|pool| pool.contains(&cidr.net())) {
            let inside = |address: IpAddr| self.pools.iter().any(|pool| pool.contains(&address));
            let used = block.used.iter().filter_map(|(ordinal, _)| cidr.address(usize::from(*ordinal)));
            let addresses = used.filter(|address| !inside(*address)).count();
            if addresses > 0 {
                self.outside.push(Finding::OutsidePools { block: cidr, addresses });
            }
        }
        let number = u32::try_from(self.numbered.len()).unwrap_or(u32::MAX);
        self.numbered.push((cidr, cidr.to_string().into()));
        for (ordinal, owner) in block.used {
            if let Some(address) = cidr.address(usize::from(ordinal)) {
                self.named.allocated(address, number);
            }
            let Some(handle) = owner.and_then(|owner| block.handles.get(owner)) else { continue };
            let hash = self.hasher.hash_one(handle.as_ref());
            self.taken.push(Taken { hash, block: number, ordinal, reached: false });
            self.marks.note(hash, handle);
        }
        self.blocks.insert(cidr, Some(block.affinity));
    }

    /// Checks whether a handle's counts match the blocks.
    fn handle(&mut self, record: &Record, name: &str) {
        self.audit.handles += 1;
        let held = self.taken.reach(self.hasher.hash_one(name));
        // The usual case: all addresses are in one block, and the count is correct.
        if let [first, .., last] | [first @ last] = held
            && first.block == last.block
            && let Some((block, counted)) = lean::sole_count(&record.value)
            && counted == held.len() as u64
            && self.numbered.get(first.block as usize).is_some_and(|(_, text)| text.as_bytes() == block)
        {
            return;
        }
        let mut blocks: BTreeMap<BlockCidr, u64> = BTreeMap::new();
        for taken in held {
            if let Some((block, _)) = self.numbered.get(taken.block as usize) {
                *blocks.entry(*block).or_default() += 1;
            }
        }
        match HandleId::new(name) {
            Ok(id) => self.compare_handle(record, id, &blocks),
            Err(error) => self.unreadable(&record.key, error.to_string()),
        }
    }

    fn compare_handle(&mut self, record: &Record, id: HandleId, held: &BTreeMap<BlockCidr, u64>) {
        let Some(handle) = self.decoded_or_finding(record, lean::handle(&record.value)) else { return };
        let unread = |block: &BlockCidr| self.blocks.get(block) == Some(&None);
        if held.is_empty() {
            if !handle.blocks().any(|block| unread(&block)) {
                self.handles.push(Finding::HandleLeaked { handle: id, revision: record.revision.0 });
            }
            return;
        }
        let counted: BTreeSet<String> = handle.block.keys().cloned().collect();
        for block in held.keys().map(ToString::to_string).collect::<BTreeSet<_>>().union(&counted) {
            let counted = handle.block.get(block).copied().unwrap_or(0);
            let cidr: Option<BlockCidr> = block.parse().ok();
            let found = cidr.and_then(|cidr| held.get(&cidr)).copied().unwrap_or(0);
            if counted != found && !cidr.is_some_and(|cidr| unread(&cidr)) {
                let (handle, block) = (id.clone(), block.clone());
                self.handles.push(Finding::HandleCount { handle, block, counted, held: found });
            }
        }
    }

    // === what is wrong, in words ===

    /// The blocks that must be passed a second time, to [`again`](Self::again), because their
    /// addresses have an error. Called once, after all records were added.
    pub fn doubts(&mut self) -> Vec<Key> {
        self.overlaps();
        for taken in std::mem::take(&mut self.taken).unreached() {
            let Some((block, _)) = self.numbered.get(taken.block as usize) else { continue };
            self.unreached.entry(*block).or_default().insert(taken.ordinal, taken.hash);
        }
        let unnamed = self.named.doubtful_blocks();
        let unnamed = unnamed.iter().filter_map(|number| Some(&self.numbered.get(*number as usize)?.0));
        let blocks: BTreeSet<&BlockCidr> = self.unreached.keys().chain(&self.shared).chain(unnamed).collect();
        blocks.into_iter().map(|block| Key::block(*block)).collect()
    }

    /// Whether the records that name addresses must be passed a second time, to
    /// [`named_again`](Self::named_again). Called once all records were added.
    pub fn must_see_names_again(&self) -> bool {
        self.named.has_doubts()
    }

    /// Checks an endpoint's or a node's record again; before [`doubts`](Self::doubts).
    pub fn named_again(&mut self, record: &Record) {
        for address in self.named.again(record) {
            let unread =
                |(block, read): (&BlockCidr, &Option<_>)| read.is_none() && block.net().contains(&address);
            let given_out = self.enabled.iter().any(|pool| pool.contains(&address));
            if given_out && !self.blocks.iter().any(unread) {
                let named_by = record.key.to_string();
                self.unallocated.push(Finding::AllocationMissing { address, named_by });
            }
        }
    }

    /// Blocks are in the order of their addresses, the larger first: the stack has those that
    /// contain the current one.
    fn overlaps(&mut self) {
        let mut around: Vec<BlockCidr> = Vec::new();
        let mut found = Vec::new();
        for &block in self.blocks.keys() {
            while around.pop_if(|outer| !outer.net().contains(&block.net())).is_some() {}
            if let Some(&outer) = around.last() {
                self.shared.extend([outer, block]);
                found.push(Finding::Overlap { block, other: outer });
            }
            around.push(block);
        }
        // More severe than records that cannot be decoded, which were found before.
        self.audit.findings.splice(..0, found);
    }

    /// Checks a block of [`doubts`](Self::doubts) again. An error that has vanished meanwhile does
    /// not count.
    pub fn again(&mut self, record: &Record) {
        let Ok(block) = Block::decode(&record.value) else { return };
        let cidr = block.cidr;
        let unreached = self.unreached.remove(&cidr).unwrap_or_default();
        for ordinal in 0..cidr.size() {
            let (Some(owner), Some(address)) = (block.attribute(ordinal), cidr.address(ordinal)) else {
                continue;
            };
            let handle = owner.handle_id.as_deref().map(HandleId::sanitized);
            if lean::is_reserved(handle) {
                continue;
            }
            if self.named.is_unnamed(&address, Owner::of(owner)) {
                self.unnamed.push(Finding::EndpointMissing {
                    address,
                    block: cidr,
                    sequence_number: block.sequence_number_of(ordinal),
                    holder: Holder::of(owner),
                });
            }
            if self.shared.contains(&cidr) {
                self.owners.entry(address).or_default().push((cidr, handle.map(str::to_owned)));
            }
            let expected = u16::try_from(ordinal).ok().and_then(|ordinal| unreached.get(&ordinal));
            let same = expected.copied() == handle.map(|handle| self.hasher.hash_one(handle));
            if expected.is_none() || !same || owner.released_at.is_some() {
                continue;
            }
            // Tunnels and services have a `type`. Not all of their records are read here, so they
            // are never reported as leaked.
            let known = self.named.blind || self.named.names(&address) || owner.get("type").is_some();
            self.missing.push(Finding::HandleMissing {
                address,
                block: cidr,
                sequence_number: block.sequence_number_of(ordinal),
                may_be_used: known,
                holder: Holder::of(owner),
            });
        }
    }

    /// The result.
    pub fn finish(mut self) -> Audit {
        for (address, owners) in std::mem::take(&mut self.owners) {
            if owners.len() > 1 {
                let (blocks, handles) = owners.into_iter().unzip();
                self.audit.findings.push(Finding::DoubleOwner { address, blocks, handles });
            }
        }
        self.audit.findings.append(&mut self.unallocated);
        self.audit.findings.append(&mut self.missing);
        self.audit.findings.append(&mut self.unnamed);
        self.audit.findings.append(&mut self.handles);
        self.claims();
        self.audit.findings.append(&mut self.outside);
        (self.audit.endpoints, self.audit.not_compared) = (self.named.endpoints, self.named.not_compared);
        self.audit
    }

    /// Checks whether affinities and blocks agree.
    fn claims(&mut self) {
        let findings = &mut self.audit.findings;
        for ((owner, block), state) in &self.claims {
            if *state != Some(AffinityState::Confirmed) {
                continue;
            }
            match self.blocks.get(block) {
                None => findings.push(Finding::BlockMissing { owner: owner.clone(), block: *block }),
                Some(Some(serves)) if serves.as_ref() != Some(owner) => {
                    let (owner, serves) = (owner.clone(), serves.clone());
                    findings.push(Finding::AffinityForeign { owner, block: *block, serves });
                }
                Some(_) => {}
            }
        }
        for (block, read) in &self.blocks {
            let Some(Some(owner)) = read else { continue };
            if !self.claims.contains_key(&(owner.clone(), *block)) {
                findings.push(Finding::AffinityMissing { owner: owner.clone(), block: *block });
            }
        }
    }
}

#[cfg(test)]
mod tests;
