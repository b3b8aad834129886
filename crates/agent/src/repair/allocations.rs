//! The store's content for one check: the entries to check, handle counts without allocated
//! addresses, and the records that prove that addresses are in use.
//!
//! An agent checks every ten minutes and is one of thousands, so it reads only its own blocks.
//! Endpoints are read only if there is an entry without other evidence, and one node per hour, in
//! turn, reads the handles of the whole cluster.

use std::collections::{BTreeSet, HashSet};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::net::IpAddr;

use russet_addr::{BlockCidr, Family, IpNet, NodeName};
use russet_ipam::Held;
use russet_model::{Block, DecodeError, Handle, HandleId, Key, KeyKind, Node, Prefix, WorkloadEndpoint};
use russet_store::{Record, Revision, Store, StoreError};

use super::liveness::Endpoint;

/// A record that must be known before anything is checked.
#[derive(Debug, thiserror::Error)]
pub enum AllocationsError {
    #[error("read {what}: {source}")]
    Store { what: String, source: StoreError },
    /// It might belong to a running pod.
    #[error("record {key} cannot be read, and may belong to a running pod: {source}")]
    Unreadable { key: Key, source: DecodeError },
    /// Without the record it is unknown which machine's addresses are meant.
    #[error("node {0} has no record in the store")]
    NoNode(NodeName),
}

/// The relevant content of the node's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRecord {
    /// When it was last written. Two machines with one name write it alternately.
    pub revision: Revision,
    /// The machine's own addresses, according to its record.
    pub addresses: Vec<IpAddr>,
    /// The addresses of its tunnels.
    pub tunnels: BTreeSet<IpAddr>,
}

/// A handle with counts of addresses that are not allocated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Residue {
    pub handle: HandleId,
    /// When it was last written.
    pub revision: Revision,
    /// The blocks in which it has no address, as the handle names them.
    pub blocks: Vec<String>,
    /// It has no address in any block.
    pub orphan: bool,
}

/// Entries and residues.
#[derive(Debug, Default)]
pub struct Allocations {
    pub entries: Vec<Held>,
    /// Number of blocks that were read.
    pub blocks: usize,
    /// Number of handles that were read.
    pub handles: usize,
    /// Handles with too high counts.
    pub residues: Vec<Residue>,
}

/// Whose entries are read.
#[derive(Debug, Clone, Copy)]
pub enum Wanted<'a> {
    /// Those of this node.
    Of(&'a NodeName),
    /// Those of nodes that are not among these.
    NotOf(&'a BTreeSet<String>),
}

/// A pass over all blocks and then all handles, which is the order of their keys.
struct Pass<'a> {
    wanted: Wanted<'a>,
    allocations: Allocations,
    /// Handle (its hash) and block, for each pair with an address. With a million hashes, two are
    /// equal once in 10^7 passes; then a residue is missed.
    held: HashSet<(u64, BlockCidr)>,
    /// Handles (their hashes) with an address in any block.
    holders: HashSet<u64>,
    /// Blocks that cannot be read may contain any address.
    unread: HashSet<BlockCidr>,
    hasher: RandomState,
}

pub async fn node(store: &dyn Store, name: &NodeName) -> Result<NodeRecord, AllocationsError> {
    let record = get(store, &Key::node(name)).await?.ok_or_else(|| AllocationsError::NoNode(name.clone()))?;
    let node = Node::decode(&record.value).map_err(unreadable(&record))?;
    let addresses = Family::BOTH.iter().filter_map(|family| node.spec.address(*family));
    let addresses = addresses.map(|net| net.addr()).collect();
    Ok(NodeRecord { revision: record.revision, addresses, tunnels: tunnels(&node) })
}

/// The names of all nodes that have a record, and the addresses of all their tunnels.
pub async fn nodes(store: &dyn Store) -> Result<(BTreeSet<String>, BTreeSet<IpAddr>), AllocationsError> {
    let (mut names, mut addresses, mut failed) = (BTreeSet::new(), BTreeSet::new(), None);
    scan(store, &Prefix::nodes(), &mut |record| match Node::decode(&record.value) {
        Ok(node) => {
            addresses.extend(tunnels(&node));
            if let KeyKind::Node(name) = record.key.kind() {
                names.insert(name.to_string());
            }
        }
        Err(source) => _ = failed.get_or_insert(AllocationsError::Unreadable { key: record.key, source }),
    })
    .await?;
    failed.map_or(Ok((names, addresses)), Err)
}

/// The names of all nodes that have a record, from the keys alone.
pub async fn node_names(store: &dyn Store) -> Result<Vec<NodeName>, AllocationsError> {
    let prefix = Prefix::nodes();
    let keys = store.keys(&prefix).await;
    let keys = keys.map_err(|source| AllocationsError::Store { what: prefix.to_string(), source })?;
    let name = |key: Key| match key.kind() {
        KeyKind::Node(name) => Some(name),
        _ => None,
    };
    Ok(keys.into_iter().filter_map(name).collect())
}

/// The entries in the node's own blocks: one list of keys for each family, and one read for each
/// block.
pub async fn own(store: &dyn Store, name: &NodeName) -> Result<Allocations, AllocationsError> {
    let mut allocations = Allocations::default();
    for family in Family::BOTH {
        let prefix = Prefix::affinities_of(name, family);
        let keys = store.keys(&prefix).await;
        for key in keys.map_err(|source| AllocationsError::Store { what: prefix.to_string(), source })? {
            let KeyKind::Affinity { block, .. } = key.kind() else { continue };
            allocations.read(store, block, Wanted::Of(name)).await?;
        }
    }
    Ok(allocations)
}

/// The entries in some blocks, with one read each.
pub async fn some(
    store: &dyn Store,
    blocks: &BTreeSet<BlockCidr>,
    wanted: Wanted<'_>,
) -> Result<Allocations, AllocationsError> {
    let mut allocations = Allocations::default();
    for block in blocks {
        allocations.read(store, *block, wanted).await?;
    }
    Ok(allocations)
}

/// The entries and residues of the whole cluster at one moment: a handle and its block are written
/// together.
pub async fn all(store: &dyn Store, wanted: Wanted<'_>) -> Result<Allocations, AllocationsError> {
    let mut pass = Pass {
        wanted,
        allocations: Allocations::default(),
        held: HashSet::new(),
        holders: HashSet::new(),
        unread: HashSet::new(),
        hasher: RandomState::new(),
    };
    scan(store, &Prefix::from_stored("/calico/ipam/v2/"), &mut |record| pass.take(&record)).await?;
    Ok(pass.allocations)
}

/// All endpoints. One that cannot be decoded might have any address.
pub async fn endpoints(store: &dyn Store) -> Result<Vec<Endpoint>, AllocationsError> {
    let (mut found, mut failed) = (Vec::new(), None);
    scan(store, &Prefix::workload_endpoints(), &mut |record| match WorkloadEndpoint::decode(&record.value) {
        Ok(endpoint) => {
            let spec = endpoint.spec;
            let container = Some(spec.container_id).filter(|container| !container.is_empty());
            let inside = spec.ip_nats.iter().map(|nat| IpNet::from(nat.internal));
            let nets = spec.ip_networks.iter().copied().chain(inside).collect();
            found.push(Endpoint { key: record.key.to_string(), container, nets });
        }
        Err(source) => _ = failed.get_or_insert(AllocationsError::Unreadable { key: record.key, source }),
    })
    .await?;
    failed.map_or(Ok(found), Err)
}

/// Whether this node checks the handles of the whole cluster now: another node does so in each
/// hour, and all nodes compute the same result (agents of different versions may not; then two
/// check, or none, for an hour).
pub fn checks_handles_now(own: &NodeName, nodes: &[NodeName], hour: u64) -> bool {
    let rank = |name: &NodeName| {
        let mut hasher = DefaultHasher::new();
        (hour, name.as_str()).hash(&mut hasher);
        (hasher.finish(), name.to_string())
    };
    nodes.iter().map(rank).min().is_some_and(|first| first == rank(own))
}

fn tunnels(node: &Node) -> BTreeSet<IpAddr> {
    let vxlan = Family::BOTH.iter().filter_map(|family| node.spec.vxlan_tunnel(*family));
    let ipip = node.spec.bgp.as_ref().and_then(|bgp| bgp.ipv4_ipip_tunnel_addr);
    let probes = Family::BOTH.iter().filter_map(|family| node.probe_address(*family));
    vxlan.chain(ipip.map(IpAddr::V4)).chain(probes).collect()
}

fn entries<'a>(block: &'a Block, wanted: Wanted<'a>) -> impl Iterator<Item = Held> + 'a {
    let entry = move |ordinal: usize| {
        let attribute = block.attribute(ordinal)?;
        let node = attribute.get("node")?;
        let meant = match wanted {
            Wanted::Of(name) => node == name.as_str(),
            Wanted::NotOf(names) => !names.contains(node),
        };
        meant.then_some(())?;
        Some(Held {
            address: block.cidr.address(ordinal)?,
            block: block.cidr,
            attribute: attribute.clone(),
            sequence_number: block.sequence_number_of(ordinal),
        })
    };
    (0..block.cidr.size()).filter_map(entry)
}

/// A block that cannot be decoded is skipped with all its addresses: `russet ipam check` reports
/// it.
fn readable(record: &Record, cidr: BlockCidr) -> Option<Block> {
    Block::decode(&record.value).ok().filter(|block| block.cidr == cidr)
}

async fn get(store: &dyn Store, key: &Key) -> Result<Option<Record>, AllocationsError> {
    store.get(key).await.map_err(|source| AllocationsError::Store { what: key.to_string(), source })
}

async fn scan(
    store: &dyn Store,
    prefix: &Prefix,
    take: &mut dyn FnMut(Record),
) -> Result<(), AllocationsError> {
    let scanned = store.scan(prefix, take).await;
    scanned.map(drop).map_err(|source| AllocationsError::Store { what: prefix.to_string(), source })
}

fn unreadable(record: &Record) -> impl FnOnce(DecodeError) -> AllocationsError {
    let key = record.key.clone();
    move |source| AllocationsError::Unreadable { key, source }
}

// === impl Allocations ===

impl Allocations {
    async fn read(
        &mut self,
        store: &dyn Store,
        cidr: BlockCidr,
        wanted: Wanted<'_>,
    ) -> Result<(), AllocationsError> {
        let Some(record) = get(store, &Key::block(cidr)).await? else { return Ok(()) };
        self.blocks += 1;
        if let Some(block) = readable(&record, cidr) {
            self.entries.extend(entries(&block, wanted));
        }
        Ok(())
    }
}

// === impl Pass ===

impl Pass<'_> {
    fn take(&mut self, record: &Record) {
        match record.key.kind() {
            KeyKind::Block(cidr) => self.block(record, cidr),
            KeyKind::Handle(id) => self.handle(record, id),
            _ => {}
        }
    }

    fn block(&mut self, record: &Record, cidr: BlockCidr) {
        self.allocations.blocks += 1;
        let Some(block) = readable(record, cidr) else {
            self.unread.insert(cidr);
            return;
        };
        for ordinal in 0..cidr.size() {
            let handle = block.attribute(ordinal).and_then(|attribute| attribute.handle_id.as_deref());
            if let Some(handle) = handle.map(HandleId::sanitized) {
                let hash = self.hasher.hash_one(handle);
                self.held.insert((hash, cidr));
                self.holders.insert(hash);
            }
        }
        self.allocations.entries.extend(entries(&block, self.wanted));
    }

    /// A handle's counts for blocks in which it has no address. Too high a count for a block in
    /// which it has one is left: it does no harm and ends with the pod, and a peer that is about to
    /// write would subtract from it.
    fn handle(&mut self, record: &Record, handle: HandleId) {
        self.allocations.handles += 1;
        let Ok(stored) = Handle::decode(&record.value) else { return };
        if stored.blocks().any(|block| self.unread.contains(&block)) {
            return;
        }
        let hash = self.hasher.hash_one(handle.as_str());
        let vain = |block: &BlockCidr| !self.held.contains(&(hash, *block));
        let blocks: Vec<String> = stored.blocks().filter(vain).map(|block| block.to_string()).collect();
        let orphan = !self.holders.contains(&hash) && blocks.len() == stored.block.len();
        if orphan || !blocks.is_empty() {
            self.allocations.residues.push(Residue { handle, revision: record.revision, blocks, orphan });
        }
    }
}

#[cfg(test)]
mod tests;
