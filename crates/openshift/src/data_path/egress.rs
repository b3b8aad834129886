//! What pods may not reach outside of the cluster, by network ID: what OpenShift's EgressNetworkPolicies say
//! (kubernetes.md section 6.4), as sets of addresses.
//!
//! A link's element in the map `egress` says what applies to it: nothing, or the chain of its network ID, which
//! drops packets to the addresses of one set. A link without an element reaches nothing outside of the cluster:
//! it is not known yet what its network ID may reach.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use russet_addr::{Family, IfName, Ipv4Net};
use russet_model::openshift::NetId;
use russet_nft::{
    Chain, Element, KeyPart, NetlinkError, Nft, Rule, Set, SetInfo, Transaction, Value, Verdict,
};

use super::Ports;
use super::rules::{Name, table};

/// Addresses, from the first to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    pub first: Ipv4Addr,
    pub last: Ipv4Addr,
}

/// The addresses outside of the cluster that are denied: ranges in order that do not touch each other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Denied(Vec<Range>);

/// What is denied to the pods of every network ID that is known.
pub type Egress = BTreeMap<NetId, Arc<Denied>>;

/// Limit of the ranges that a node writes: each takes about 200 bytes of the kernel's memory. What exceeds it is
/// denied everything, beginning with the network ID that has most.
const RANGES_MAX: usize = 100_000;
/// The beginning of the names of chains, one for each network ID with a restriction.
const CHAIN: &str = "egress-";
/// The beginning of the names of their sets.
const SET: &str = "denied-";

/// Nothing is denied to the global network ID, whatever else is known.
pub fn open_to_global() -> Egress {
    Egress::from([(NetId::GLOBAL, Arc::default())])
}

// === impl Denied ===

impl Denied {
    /// Every address.
    pub fn everything() -> Self {
        Self(vec![Range { first: Ipv4Addr::UNSPECIFIED, last: Ipv4Addr::BROADCAST }])
    }

    /// What these rules deny, of which `true` allows. The first one that covers an address decides about it, and
    /// what none covers is allowed.
    pub fn by_rules(rules: &[(bool, Ipv4Net)]) -> Self {
        let mut edges = Vec::with_capacity(rules.len() * 2);
        for (index, (_, net)) in rules.iter().enumerate() {
            edges.push((u64::from(net.network().to_bits()), index, true));
            edges.push((u64::from(net.broadcast().to_bits()) + 1, index, false));
        }
        edges.sort_unstable();
        let mut denied = Self::default();
        let mut covering: BTreeSet<usize> = BTreeSet::new();
        let nexts = edges.iter().skip(1).map(|(position, ..)| *position);
        for ((first, index, begins), next) in edges.iter().zip(nexts) {
            match begins {
                true => covering.insert(*index),
                false => covering.remove(index),
            };
            let decides = covering.first().and_then(|index| rules.get(*index));
            if next > *first && decides.is_some_and(|(is_allowed, _)| !is_allowed) {
                denied.append(*first, next - 1);
            }
        }
        denied
    }

    /// Appends a range that is behind all others.
    fn append(&mut self, first: u64, last: u64) {
        // Positions are at most 2^32, and that only where the last range has ended.
        let address = |position: u64| Ipv4Addr::from_bits(u32::try_from(position).unwrap_or(u32::MAX));
        match self.0.last_mut() {
            Some(open) if u64::from(open.last.to_bits()) + 1 == first => open.last = address(last),
            _ => self.0.push(Range { first: address(first), last: address(last) }),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn ranges(&self) -> &[Range] {
        &self.0
    }

    pub fn contains(&self, address: Ipv4Addr) -> bool {
        self.0.iter().any(|range| range.first <= address && address <= range.last)
    }

    /// A number that another content is unlikely to have (FNV-1a). A namespace that provokes it harms only itself.
    fn digest(&self) -> u64 {
        let bytes = self.0.iter().flat_map(|range| [range.first.octets(), range.last.octets()]).flatten();
        bytes
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    fn elements(&self) -> Vec<Element> {
        let element =
            |range: &Range| KeyPart::addresses(IpAddr::from(range.first)..=IpAddr::from(range.last));
        self.0.iter().map(element).map(Element::new).collect()
    }

    /// The ranges of a set. One that cannot be read is none of ours: then everything is denied.
    fn read(elements: &[Element]) -> Self {
        let range =
            |element: &Element| match element.key.first().map(|it| (it.first_address(), it.last_address())) {
                Some((Some(IpAddr::V4(first)), Some(IpAddr::V4(last)))) => Some(Range { first, last }),
                _ => None,
            };
        let mut ranges: Vec<Range> = elements.iter().filter_map(range).collect();
        ranges.sort_unstable();
        if ranges.len() == elements.len() { Self(ranges) } else { Self::everything() }
    }
}

/// What applies to the ports of a node.
#[derive(Debug)]
pub(super) struct Outside<'a> {
    egress: &'a Egress,
    /// What is denied to the network IDs of the ports, as far as anything is.
    restricted: Egress,
}

// === impl Outside ===

impl<'a> Outside<'a> {
    pub(super) fn new(ports: &Ports, egress: &'a Egress) -> Self {
        let ids: BTreeSet<NetId> = ports.values().filter_map(|port| port.netid).collect();
        let known = ids.into_iter().filter_map(|netid| Some((netid, Arc::clone(egress.get(&netid)?))));
        let mut found: Vec<(NetId, Arc<Denied>)> = known.filter(|(_, denied)| !denied.is_empty()).collect();
        found.sort_by_key(|(_, denied)| denied.0.len());
        let mut count = 0;
        for (netid, denied) in &mut found {
            count += denied.0.len();
            if count > RANGES_MAX && denied.0.len() > 1 {
                russet_store::refused(
                    "everything outside of the cluster is denied to a network ID",
                    *netid,
                    format!(
                        "the EgressNetworkPolicies of this node's pods have more than {RANGES_MAX} ranges"
                    ),
                );
                *denied = Arc::new(Denied::everything());
            }
        }
        Self { egress, restricted: found.into_iter().collect() }
    }

    /// The verdict of a link in the map, by the network ID of its pod; none if that is not known.
    pub(super) fn verdict(&self, netid: NetId) -> Option<Verdict> {
        match self.restricted.get(&netid) {
            Some(denied) => Some(Verdict::goto(names(netid, denied).0)),
            None => self.egress.contains_key(&netid).then_some(Verdict::Return),
        }
    }

    /// The link's element in the map.
    pub(super) fn element(&self, link: &IfName, netid: NetId) -> Option<Element> {
        Some(Element::new(KeyPart::if_name(link)).verdict(self.verdict(netid)?))
    }

    /// The chains of network IDs, with their rules and sets.
    pub(super) fn parts(&self) -> impl Iterator<Item = (Chain, Rule, (Set, Vec<Element>))> {
        self.restricted.iter().map(|(netid, denied)| parts(*netid, denied))
    }
}

/// Whether a chain or set is of one network ID: these come and go with the policies.
pub(super) fn is_of_netid(name: &str) -> bool {
    name.starts_with(CHAIN) || name.starts_with(SET)
}

/// The names of the chain and of the set. They change with the content: the kernel may not find an element of ranges
/// while a transaction changes others of the same set.
fn names(netid: NetId, denied: &Denied) -> (String, String) {
    let digest = denied.digest();
    (format!("{CHAIN}{netid}-{digest:016x}"), format!("{SET}{netid}-{digest:016x}"))
}

fn set_named(name: impl Into<String>) -> Set {
    Set::prefixes(&table(), name, Family::V4)
}

/// What drops packets to what is denied: a chain, its rule, and the set of the rule with its elements.
pub(super) fn parts(netid: NetId, denied: &Denied) -> (Chain, Rule, (Set, Vec<Element>)) {
    let (chain, set) = names(netid, denied);
    let rule = Rule::in_chain(&table(), chain.as_str()).daddr_in(Family::V4, set.as_str());
    let rule = rule.counter().drop().comment("an EgressNetworkPolicy denies it");
    let chain = Chain::new(&table(), chain).comment("what an EgressNetworkPolicy denies");
    (chain, rule, (set_named(set), denied.elements()))
}

/// Creates what comes. It has to be there before elements refer to it: a packet that is judged meanwhile would find the
/// chain without its rule.
pub(super) fn creation(was: &Outside<'_>, wanted: &Outside<'_>) -> Transaction {
    let mut transaction = Transaction::new();
    for (netid, denied) in &wanted.restricted {
        let before = was.restricted.get(netid);
        let (chain, rule, (set, elements)) = parts(*netid, denied);
        if before.is_none_or(|before| names(*netid, before) != names(*netid, denied)) {
            transaction.add_set(&set).add_elements(&set, &elements).add_chain(&chain).add_rule(&rule);
        } else if before != Some(denied) {
            // Two contents have one digest.
            transaction.flush_set(&set.table, &set.name).add_elements(&set, &elements);
        }
    }
    transaction
}

/// Deletes what goes, to which no element refers any more.
pub(super) fn delete(transaction: &mut Transaction, was: &Outside<'_>, wanted: &Outside<'_>) {
    for (netid, denied) in &was.restricted {
        let (chain, set) = names(*netid, denied);
        let stays = wanted.restricted.get(netid).is_some_and(|wanted| names(*netid, wanted).0 == chain);
        if !stays {
            transaction.delete_chain(&table(), &chain).delete_set(&table(), &set);
        }
    }
}

/// What an earlier run left in force, of the links with these network IDs. The table of a version that restricted
/// nothing keeps to that until the policies are known; without a table nothing is known.
pub(super) fn read(nft: &mut Nft, netids: &BTreeMap<IfName, NetId>) -> Result<Egress, NetlinkError> {
    let mut egress = open_to_global();
    match by_link(nft)? {
        None => egress.extend(netids.values().map(|netid| (*netid, Arc::default()))),
        Some(links) => egress.extend(
            links.into_iter().filter_map(|(link, denied)| Some((*netids.get(&link)?, Arc::new(denied)))),
        ),
    }
    Ok(egress)
}

/// What the table denies to each link; none if it is not there, or is one that restricts nothing. A link that is
/// missing reaches nothing outside of the cluster.
pub(super) fn by_link(nft: &mut Nft) -> Result<Option<BTreeMap<IfName, Denied>>, NetlinkError> {
    let sets = nft.sets(&table())?;
    let map = Name::Egress.set();
    if !sets.iter().any(|info| info.set.name == map.name) {
        return Ok(None);
    }
    let mut links = BTreeMap::new();
    for element in nft.elements(&map)? {
        let Some(link) = element.key.first().and_then(link_of) else { continue };
        let denied = match element.value {
            Some(Value::Verdict(Verdict::Return)) => Denied::default(),
            Some(Value::Verdict(verdict)) => read_set(nft, &sets, &verdict)?,
            _ => Denied::everything(),
        };
        links.insert(link, denied);
    }
    Ok(Some(links))
}

/// What the chain of a verdict denies.
fn read_set(nft: &mut Nft, sets: &[SetInfo], verdict: &Verdict) -> Result<Denied, NetlinkError> {
    let name = verdict.chain().and_then(|chain| chain.strip_prefix(CHAIN)).map(|rest| format!("{SET}{rest}"));
    match name.filter(|name| sets.iter().any(|info| info.set.name == *name)) {
        Some(name) => Ok(Denied::read(&nft.elements(&set_named(name))?)),
        None => Ok(Denied::everything()),
    }
}

/// The link whose name is the key of an element.
pub(super) fn link_of(part: &KeyPart) -> Option<IfName> {
    let (name, _) = part.bytes();
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    IfName::new(std::str::from_utf8(name.get(..end)?).ok()?).ok()
}

#[cfg(test)]
mod tests;
