//! What is wrong with a store's addresses: the records in, findings out (calico-ipam.md sections 1.3, 3.9, 5.2). Pure. For `russet ipam check`.
//!
//! The records should be of one moment: between two reads a living cluster moves a handle and its block, which would look like a fault.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use russet_addr::{BlockCidr, Family};
use russet_model::{
    Affinity, AffinityState, Attribute, Block, Handle, HandleId, IpPool, Key, KeyKind, Node, WorkloadEndpoint,
};
use russet_store::Record;

mod finding;

pub use finding::{Finding, Holder};

/// What was looked at, and what was found.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Audit {
    /// How many blocks there are.
    pub blocks: usize,
    /// How many addresses are taken.
    pub allocations: usize,
    /// How many handles there are.
    pub handles: usize,
    /// How many affinities there are.
    pub affinities: usize,
    /// What is wrong, what is worst first.
    pub findings: Vec<Finding>,
}

/// Judges the records of a store; those of no concern here may be among them. One block is in memory decoded at a time.
pub fn audit(records: &[Record]) -> Audit {
    let mut index = Index::default();
    for record in records {
        index.add(record);
    }
    index.overlaps();
    for record in records {
        if let KeyKind::Block(cidr) = record.key.kind() {
            index.block(record, cidr);
        }
    }
    index.finish()
}

/// What is kept of the records until all of them were seen.
#[derive(Default)]
struct Index {
    audit: Audit,
    pools: Vec<IpNet>,
    /// Addresses that an endpoint or a node's tunnel has by its own record.
    named: BTreeSet<IpAddr>,
    /// A record that names addresses cannot be read, so that nothing is surely unused.
    blind: bool,
    /// Every block by its key, with its owner once it was read.
    blocks: BTreeMap<BlockCidr, Option<Option<String>>>,
    /// Every claim by owner and block; none where its record cannot be read.
    claims: BTreeMap<(String, BlockCidr), Option<AffinityState>>,
    /// Every handle; none where its record cannot be read.
    handles: BTreeMap<HandleId, Option<(Handle, u64)>>,
    /// How many addresses each handle has in each block.
    held: BTreeMap<String, BTreeMap<BlockCidr, u64>>,
    /// Blocks that share addresses with another.
    shared: BTreeSet<BlockCidr>,
    /// Who has an address of a shared block.
    owners: BTreeMap<IpAddr, Vec<(BlockCidr, Option<String>)>>,
    /// Addresses whose handles were not found.
    unreached: Vec<Finding>,
    outside: Vec<Finding>,
}

// === impl Index ===

impl Index {
    /// Takes what is small; blocks have their turn later.
    fn add(&mut self, record: &Record) {
        match record.key.kind() {
            KeyKind::Block(cidr) => _ = self.blocks.insert(cidr, None),
            KeyKind::Affinity { node, block } => self.claim(format!("host:{node}"), block, record),
            KeyKind::VirtualAffinity { owner, block } => {
                self.claim(format!("virtual:{owner}"), block, record);
            }
            KeyKind::Handle(id) => {
                let handle = self.kept(record, Handle::decode(&record.value));
                self.handles.insert(id, handle.map(|handle| (handle, record.revision.0)));
            }
            KeyKind::Pool(_) => {
                let pool = self.kept(record, IpPool::decode(&record.value));
                self.pools.extend(pool.map(|pool| pool.spec.cidr));
            }
            KeyKind::Node(_) => match self.kept(record, Node::decode(&record.value)) {
                Some(node) => {
                    self.named.extend(Family::BOTH.iter().filter_map(|f| node.spec.vxlan_tunnel(*f)));
                    let ipip = node.spec.bgp.and_then(|bgp| bgp.ipv4_ipip_tunnel_addr);
                    self.named.extend(ipip.map(IpAddr::V4));
                }
                None => self.blind = true,
            },
            KeyKind::WorkloadEndpoint { .. } => {
                match self.kept(record, WorkloadEndpoint::decode(&record.value)) {
                    Some(endpoint) => self.named.extend(endpoint.spec.ip_networks.iter().map(IpNet::addr)),
                    None => self.blind = true,
                }
            }
            _ => {}
        }
    }

    fn claim(&mut self, owner: String, block: BlockCidr, record: &Record) {
        let affinity = self.kept(record, Affinity::decode(&record.value));
        self.claims.insert((owner, block), affinity.map(|affinity| affinity.state));
    }

    /// A record that could be read; the others are findings.
    fn kept<T>(&mut self, record: &Record, decoded: Result<T, russet_model::DecodeError>) -> Option<T> {
        decoded.map_err(|error| self.unreadable(&record.key, error.to_string())).ok()
    }

    fn unreadable(&mut self, key: &Key, reason: String) {
        self.audit.findings.push(Finding::Unreadable { key: key.clone(), reason });
    }

    /// Blocks are in the order of their addresses, the larger first: those that hold the present one are on the stack.
    fn overlaps(&mut self) {
        let mut around: Vec<BlockCidr> = Vec::new();
        for &block in self.blocks.keys() {
            while around.pop_if(|outer| !outer.net().contains(&block.net())).is_some() {}
            if let Some(&outer) = around.last() {
                self.shared.extend([outer, block]);
                self.audit.findings.push(Finding::Overlap { block, other: outer });
            }
            around.push(block);
        }
    }

    fn block(&mut self, record: &Record, cidr: BlockCidr) {
        let Some(block) = self.kept(record, Block::decode(&record.value)) else { return };
        if block.cidr != cidr {
            return self.unreadable(&record.key, format!("block {} is stored there", block.cidr));
        }
        let mut outside = 0;
        for ordinal in 0..cidr.size() {
            let (Some(owner), Some(address)) = (block.attribute(ordinal), cidr.address(ordinal)) else {
                continue;
            };
            let handle = owner.handle_id.as_deref().map(HandleId::sanitized);
            if handle.is_some_and(|handle| handle.eq_ignore_ascii_case(HandleId::WINDOWS_RESERVED)) {
                continue;
            }
            self.audit.allocations += 1;
            outside += usize::from(!self.pools.iter().any(|pool| pool.contains(&address)));
            if self.shared.contains(&cidr) {
                self.owners.entry(address).or_default().push((cidr, handle.map(str::to_owned)));
            }
            if let Some(handle) = handle.filter(|_| owner.released_at.is_none()) {
                self.held(&block, owner, handle, address, block.sequence_number_of(ordinal));
            }
        }
        if outside > 0 {
            self.outside.push(Finding::OutsidePools { block: cidr, addresses: outside });
        }
        self.blocks.insert(cidr, Some(block.affinity));
    }

    /// One address that a handle has.
    fn held(&mut self, block: &Block, owner: &Attribute, handle: &str, address: IpAddr, number: u64) {
        *self.held.entry(handle.to_owned()).or_default().entry(block.cidr).or_default() += 1;
        if HandleId::new(handle).is_ok_and(|id| self.handles.contains_key(&id)) {
            return;
        }
        // Tunnels and services have a `type`; not all of their records are read here, so theirs are never said to be leaked.
        let known = self.blind || self.named.contains(&address) || owner.get("type").is_some();
        self.unreached.push(Finding::HandleMissing {
            address,
            block: block.cidr,
            sequence_number: number,
            may_be_used: known,
            holder: Holder::of(owner),
        });
    }

    fn finish(mut self) -> Audit {
        self.audit.blocks = self.blocks.len();
        self.audit.handles = self.handles.len();
        self.audit.affinities = self.claims.len();
        for (address, owners) in std::mem::take(&mut self.owners) {
            if owners.len() > 1 {
                let (blocks, handles) = owners.into_iter().unzip();
                self.audit.findings.push(Finding::DoubleOwner { address, blocks, handles });
            }
        }
        self.audit.findings.append(&mut self.unreached);
        self.handles();
        self.claims();
        self.audit.findings.append(&mut self.outside);
        self.audit
    }

    /// Whether the handles count what the blocks hold.
    fn handles(&mut self) {
        for (id, stored) in &self.handles {
            let Some((handle, revision)) = stored else { continue };
            let unread = handle.blocks().any(|block| self.blocks.get(&block) == Some(&None));
            let held = self.held.get(id.as_str());
            let Some(held) = held else {
                if !unread {
                    let (handle, revision) = (id.clone(), *revision);
                    self.audit.findings.push(Finding::HandleLeaked { handle, revision });
                }
                continue;
            };
            let counted: BTreeSet<String> = handle.block.keys().cloned().collect();
            for block in held.keys().map(ToString::to_string).collect::<BTreeSet<_>>().union(&counted) {
                let counted = handle.block.get(block).copied().unwrap_or(0);
                let cidr: Option<BlockCidr> = block.parse().ok();
                let found = cidr.and_then(|cidr| held.get(&cidr)).copied().unwrap_or(0);
                let unread = cidr.is_some_and(|cidr| self.blocks.get(&cidr) == Some(&None));
                if counted != found && !unread {
                    let block = block.clone();
                    let finding = Finding::HandleCount { handle: id.clone(), block, counted, held: found };
                    self.audit.findings.push(finding);
                }
            }
        }
    }

    /// Whether claims and blocks agree about whom a block serves.
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
