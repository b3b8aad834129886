//! Compares allocations with the records that name their addresses: workload endpoints, and nodes
//! for their tunnels (calico-ipam.md section 5.2). In both directions: an address in a record
//! without an allocation, and an allocation without a record.
//!
//! The records are read before the blocks, and again afterwards if there are findings: an ADD
//! allocates before it writes the endpoint, so the second read finds an endpoint that was created
//! meanwhile, and misses one that was deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use russet_addr::{Family, IpNet};
use russet_model::{Attribute, DecodeError, HandleId, KeyKind, Node, ResourceKind, WorkloadEndpoint};
use russet_store::Record;

/// Suffix of the type attribute of tunnel addresses: `vxlanTunnelAddress`, `ipipTunnelAddress`,
/// `wireguardTunnelAddress`.
const TUNNEL: &str = "TunnelAddress";

/// The addresses in records, compared with the blocks.
#[derive(Debug, Default)]
pub(super) struct Named {
    /// Every address in a record, and whether a block has it allocated.
    addresses: BTreeMap<IpAddr, bool>,
    /// Allocated addresses without a record, each with the number of its block.
    unnamed: BTreeMap<IpAddr, u32>,
    /// Number of workload endpoints.
    pub(super) endpoints: usize,
    /// The datastore is one of Calico's, where every pod has an endpoint.
    is_calicos: bool,
    /// A record that may name addresses cannot be decoded.
    pub(super) blind: bool,
    /// Allocations that no record of this datastore can confirm.
    pub(super) not_compared: usize,
}

/// Which record, if any, should name an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// A pod's, or of unknown origin: an endpoint names it.
    Pod,
    /// A node's, for its tunnel or for probes: the node's record names it.
    Tunnel,
    /// A service's or a virtual machine's, which may be switched off: records elsewhere name it.
    Elsewhere,
    /// No active owner: reserved by a Windows peer, or in cooldown.
    None,
}

// === impl Owner ===

impl Owner {
    /// The owner of an allocation, by its attribute.
    pub fn of(attribute: &Attribute) -> Self {
        let handle = attribute.handle_id.as_deref().map(HandleId::sanitized);
        let virtual_machine = !attribute.alternate_owner.is_empty()
            || handle.is_some_and(|handle| handle.contains(".vmi."))
            || attribute.secondary.iter().flatten().any(|(name, _)| name.starts_with("vm"));
        let tunnel = handle.is_some_and(|handle| handle.contains("-tunnel-addr-"));
        match attribute.get("type") {
            _ if super::lean::is_reserved(handle) || attribute.released_at.is_some() => Self::None,
            Some(kind) if kind.ends_with(TUNNEL) => Self::Tunnel,
            Some(_) => Self::Elsewhere,
            None if tunnel => Self::Tunnel,
            None if virtual_machine => Self::Elsewhere,
            None => Self::Pod,
        }
    }
}

/// The addresses in a record; none if it is of another kind.
fn addresses(record: &Record) -> Option<Result<Vec<IpAddr>, DecodeError>> {
    match record.key.kind() {
        KeyKind::Node(_) => Some(Node::decode(&record.value).map(|node| tunnels(&node))),
        KeyKind::WorkloadEndpoint { .. } => Some(
            WorkloadEndpoint::decode(&record.value)
                .map(|endpoint| endpoint.spec.ip_networks.iter().map(IpNet::addr).collect()),
        ),
        _ => None,
    }
}

/// The addresses of a node's tunnel devices of all kinds, and those that it has only for probes.
fn tunnels(node: &Node) -> Vec<IpAddr> {
    let vxlan = Family::BOTH.iter().filter_map(|family| node.spec.vxlan_tunnel(*family));
    let ipip = node.spec.bgp.as_ref().and_then(|bgp| bgp.ipv4_ipip_tunnel_addr).map(IpAddr::V4);
    let wireguard = node.spec.extra.get("wireguard");
    let wireguard = ["interfaceIPv4Address", "interfaceIPv6Address"]
        .into_iter()
        .filter_map(|name| wireguard?.get(name)?.as_str()?.parse().ok());
    let probes = Family::BOTH.iter().filter_map(|family| node.probe_address(*family));
    vxlan.chain(ipip).chain(wireguard).chain(probes).collect()
}

// === impl Named ===

impl Named {
    /// Adds a record, before the blocks. Records of other kinds only show whether the datastore is
    /// Calico's. An error if the record may name addresses and cannot be decoded.
    pub(super) fn add(&mut self, record: &Record) -> Result<(), DecodeError> {
        if matches!(record.key.kind(), KeyKind::Resource { kind: ResourceKind::ClusterInformation, .. }) {
            self.is_calicos = true;
        }
        self.endpoints += usize::from(matches!(record.key.kind(), KeyKind::WorkloadEndpoint { .. }));
        match addresses(record) {
            None => Ok(()),
            Some(Ok(found)) => {
                self.addresses.extend(found.into_iter().map(|address| (address, false)));
                Ok(())
            }
            Some(Err(error)) => {
                self.blind = true;
                Err(error)
            }
        }
    }

    /// Whether every pod of this datastore has an endpoint. Pods of plugin `russet` have none.
    pub(super) fn is_compared(&self) -> bool {
        self.is_calicos || self.endpoints > 0
    }

    pub(super) fn names(&self, address: &IpAddr) -> bool {
        self.addresses.contains_key(address)
    }

    /// Notes that a block has the address allocated.
    pub(super) fn allocated(&mut self, address: IpAddr, block: u32) {
        let is_compared = self.is_compared();
        match self.addresses.get_mut(&address) {
            Some(allocated) => *allocated = true,
            None if is_compared => _ = self.unnamed.insert(address, block),
            None => self.not_compared += 1,
        }
    }

    /// Whether the records have to be read again, each passed to [`again`](Self::again).
    pub(super) fn has_doubts(&self) -> bool {
        !self.unnamed.is_empty() || self.addresses.values().any(|allocated| !allocated)
    }

    /// Reads a record for the second time and returns the addresses that were in it the first time,
    /// too, and are not allocated.
    pub(super) fn again(&mut self, record: &Record) -> Vec<IpAddr> {
        let Some(Ok(found)) = addresses(record) else { return Vec::new() };
        found.iter().for_each(|address| _ = self.unnamed.remove(address));
        let unallocated = |address: &IpAddr| self.addresses.get(address) == Some(&false);
        found.into_iter().filter(unallocated).collect()
    }

    /// The numbers of the blocks with allocations that no record names.
    pub(super) fn doubtful_blocks(&self) -> BTreeSet<u32> {
        self.unnamed.values().copied().collect()
    }

    /// Whether no record names an allocated address, although one should.
    pub(super) fn is_unnamed(&mut self, address: &IpAddr, owner: Owner) -> bool {
        if self.unnamed.remove(address).is_none() || owner == Owner::None {
            return false;
        }
        if owner == Owner::Elsewhere || self.blind {
            self.not_compared += 1;
            return false;
        }
        true
    }
}
