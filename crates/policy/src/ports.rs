//! What ports of bridges must not send to the others on their bridge. Table `bridge russet-policy`: what a bridge passes on from port to port never
//! meets the chains of `inet russet-policy`.
//!
//! ```text
//! chain prerouting {
//!     type filter hook prerouting priority raw
//!     meta l4proto tcp iifname . ether saddr . ip saddr @sources4 accept; (IPv6 likewise)
//!     iifname "russ*" goto guard
//! }
//! chain guard      { meta l4proto ipv6-icmp jump guard-icmpv6; meta l4proto udp jump guard-udp; iifname vmap @ports }
//! chains guard-icmpv6 and guard-udp: as in inet russet-policy
//! map ports        { type ifname : verdict; elements = { "russ1" : goto own-source, "russ2" : goto own-mac } }
//! chain own-source {
//!     iifname . ether saddr . ip saddr @sources4 accept
//!     meta l4proto != ipv6-icmp iifname . ether saddr . ip6 saddr @sources6 accept
//!     iifname . ether saddr != @macs counter drop
//!     meta protocol arp goto own-arp; meta protocol ip goto own-ip4; meta protocol ip6 goto own-ip6
//!     meta protocol { 8021q, 8021ad } counter drop, one rule each
//! }
//! chain own-mac    { iifname . ether saddr != @macs counter drop }
//! chain own-arp    { iifname . arp saddr ether . arp saddr ip @sources4 accept; iifname . arp saddr ether != @macs counter drop; the rest as in own-ip4 }
//! chain own-ip4    { ip saddr 0.0.0.0 accept; iifname . ip saddr @prefixes4 accept; counter drop }
//! chain own-ip6    {
//!     icmpv6 type nd-neighbor-advert jump own-target
//!     ip6 saddr :: icmpv6 type nd-neighbor-solicit jump own-target
//!     iifname . ether saddr . ip6 saddr @sources6 accept; ip6 saddr :: accept; iifname . ip6 saddr @prefixes6 accept; counter drop
//! }
//! chain own-target { iifname . ether saddr . icmpv6 taddr @sources6 return; iifname . icmpv6 taddr @prefixes6 return; counter drop }
//! ```
//!
//! A TCP frame of a guarded port pays for one lookup, of another protocol for two. `meta protocol` is what follows the first VLAN tag, which the kernel takes out of the
//! frame, so a tagged packet is checked like others; a frame with two tags is not looked into, and therefore dropped.

mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use russet_addr::{Family, IfName, IpNet, Mac};
use russet_linux::NetNs;
use russet_nft::{Element, KeyPart, Nft, Set, Table, TableFamily, Transaction, Verdict};

use crate::error::PolicyError;
use crate::ruleset;
use crate::table_spec::{Fault, TableSpec, elements, replace};

/// The table, as people and errors call it.
pub(crate) const TABLE: &str = "bridge russet-policy";

/// What a port of a bridge may send. Ports without one may send anything but what routers and DHCP servers send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortGuard {
    /// The only MAC that it sends from.
    pub mac: Mac,
    /// The only addresses that it sends from; none: any.
    pub sources: Option<PortSources>,
}

/// What a port may send from, besides the unspecified address and the link-local address that belongs to its MAC.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortSources {
    /// The pod's addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// What it was allowed besides these.
    pub prefixes: Vec<IpNet>,
}

/// The ports that are guarded, by the name of their end on the node.
pub(crate) type Ports = BTreeMap<IfName, PortGuard>;

/// Elements by set.
type Elements = Vec<(Set, Vec<Element>)>;

// === impl PortGuard ===

impl PortGuard {
    fn elements(&self, name: &IfName) -> Elements {
        let (end, mac) = (KeyPart::if_name(name), KeyPart::mac(self.mac));
        let chain = if self.sources.is_some() { rules::OWN_SOURCE } else { rules::OWN_MAC };
        let port = Element::new(end.clone()).verdict(Verdict::goto(chain));
        let mut all = vec![
            (rules::ports(), vec![port]),
            (rules::macs(), vec![Element::concatenation([end.clone(), mac.clone()])]),
        ];
        let Some(PortSources { addresses, prefixes }) = &self.sources else { return all };
        let mut addresses = addresses.clone();
        addresses.insert(IpAddr::V6(self.mac.link_local()));
        for family in Family::BOTH {
            let of_family = addresses.iter().filter(|address| Family::of(**address) == family);
            let element = |address: &IpAddr| {
                Element::concatenation([end.clone(), mac.clone(), KeyPart::from(*address)])
            };
            all.push((rules::sources(family), of_family.map(element).collect()));
            all.push((rules::prefixes(family), ruleset::source_elements(family, name, prefixes)));
        }
        all
    }
}

/// The changes that make the table what it should be. Elements of ports that are not `known` are left as they are: another process may have put them.
pub(crate) fn repairing(nft: &mut Nft, known: Option<&Ports>) -> Result<Transaction, PolicyError> {
    let mut transaction = Transaction::new();
    let fault = spec().repair(nft, &mut transaction)?;
    let Some(known) = known else { return Ok(transaction) };
    for set in rules::sets() {
        let anew = matches!(fault, Some(Fault::Wrong(_)));
        let mut found = if anew { None } else { elements(nft, &set)? }.unwrap_or_default();
        found.retain(|element| ruleset::host_name(element).is_some_and(|name| known.contains_key(&name)));
        let of_set = known.iter().flat_map(|(name, guard)| guard.elements(name));
        let wanted: Vec<Element> =
            of_set.filter(|(other, _)| other.name == set.name).flat_map(|(_, all)| all).collect();
        replace(&mut transaction, &set, &found, &wanted);
    }
    Ok(transaction)
}

/// Whether the port is guarded by exactly this, in a table without faults. Changes nothing.
pub(crate) fn is_guarded(nft: &mut Nft, name: &IfName, guard: &PortGuard) -> Result<bool, PolicyError> {
    Ok(spec().fault(nft)?.is_none() && guarding(nft, name, Some(guard))?.is_empty())
}

/// Whether the kernel has nf_tables for bridges. Tries it in a network namespace of its own.
pub(crate) fn is_supported() -> Result<bool, PolicyError> {
    let operation = || "probe the kernel for nf_tables of bridges".to_owned();
    let probe = || {
        let mut transaction = Transaction::new();
        Ok::<_, PolicyError>(Nft::open()?.commit(transaction.add_table(&table())))
    };
    let probed = NetNs::create_unnamed().and_then(|netns| netns.run_in_thread(probe));
    let probed = probed.map_err(|source| PolicyError::NetNs { operation: operation(), source })?;
    match probed? {
        Ok(()) => Ok(true),
        Err(error) if error.is_unsupported() => Ok(false),
        Err(source) => Err(PolicyError::Commit { operation: operation(), source }),
    }
}

/// The changes after which the port is guarded by exactly this, or not at all.
pub(crate) fn guarding(
    nft: &mut Nft,
    name: &IfName,
    guard: Option<&PortGuard>,
) -> Result<Transaction, PolicyError> {
    let wanted = guard.map(|guard| guard.elements(name)).unwrap_or_default();
    let mut transaction = Transaction::new();
    for set in rules::sets() {
        let wanted = wanted.iter().find(|(other, _)| other.name == set.name);
        let mut found = elements(nft, &set)?.unwrap_or_default();
        found.retain(|element| ruleset::host_name(element).as_ref() == Some(name));
        replace(&mut transaction, &set, &found, wanted.map_or(&[], |(_, elements)| elements));
    }
    Ok(transaction)
}

/// The table as it should be.
fn spec() -> TableSpec {
    TableSpec {
        table: table(),
        sets: rules::sets().into(),
        chains: rules::chains(),
        rules: rules::rules(),
        unknown_rules: None,
        obsolete_chains: &[],
        disarms: true,
    }
}

pub(crate) fn table() -> Table {
    Table::new(TableFamily::Bridge, "russet-policy")
}
