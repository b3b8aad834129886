//! What ports of bridges must not send to the others on their bridge. Table `bridge russet-policy`: what a bridge passes on from port to port never
//! meets the chains of `inet russet-policy`.
//!
//! ```text
//! chain prerouting { type filter hook prerouting priority raw; iifname "russ*" goto guard }
//! chain guard      { the rules of guard-icmpv6 and guard-udp of inet russet-policy; iifname vmap @ports }
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
//! A frame of an ordinary packet pays for three lookups. `meta protocol` is what follows the first VLAN tag, which the kernel takes out of the
//! frame, so a tagged packet is checked like others; a frame with two tags is not looked into, and therefore dropped.

mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use russet_addr::{Family, IfName, IpNet, Mac};
use russet_nft::{
    Chain, CommitError, Element, KeyPart, Nft, Rule, Set, Table, TableFamily, Transaction, Verdict,
};

use crate::error::PolicyError;
use crate::ruleset;

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

/// What is wrong with the table, its elements aside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// Something is missing: adding it repairs the table.
    Partial,
    /// Something is in the way, so the table has to be replaced.
    Wrong,
}

/// Attempts at a change that another program interfered with.
const MAX_TRIES: usize = 5;

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

/// Makes the table what it should be; true if it was not. Elements of ports that are not `known` are left as they are: another process may have put them.
pub(crate) fn ensure(nft: &mut Nft, known: Option<&Ports>) -> Result<bool, PolicyError> {
    change(nft, "repair", |nft| {
        let fault = fault(nft)?;
        let mut transaction = Transaction::new();
        if fault == Some(Fault::Wrong) {
            disarm(nft)?;
            transaction.destroy_table(&table());
        }
        if fault.is_some() {
            add_structure(&mut transaction);
        }
        let Some(known) = known else { return Ok(transaction) };
        for set in rules::sets() {
            let mut found = if fault == Some(Fault::Wrong) { Vec::new() } else { elements(nft, &set)? };
            found.retain(|element| ruleset::host_name(element).is_some_and(|name| known.contains_key(&name)));
            let of_set = known.iter().flat_map(|(name, guard)| guard.elements(name));
            let wanted: Vec<Element> =
                of_set.filter(|(other, _)| other.name == set.name).flat_map(|(_, all)| all).collect();
            replace(&mut transaction, &set, &found, &wanted);
        }
        Ok(transaction)
    })
}

/// Guards one port, however it was guarded before. The table is whole.
pub(crate) fn put(nft: &mut Nft, name: &IfName, guard: &PortGuard) -> Result<bool, PolicyError> {
    change(nft, &format!("guard port {name} in"), |nft| {
        let wanted = guard.elements(name);
        let of_set = |set: &Set| wanted.iter().find(|(other, _)| other.name == set.name);
        let mut transaction = Transaction::new();
        for set in rules::sets() {
            let wanted = of_set(&set).map_or(&[][..], |(_, elements)| elements);
            replace(&mut transaction, &set, &of_port(nft, &set, name)?, wanted);
        }
        Ok(transaction)
    })
}

/// Removes the elements of a port; true if there were any.
pub(crate) fn remove(nft: &mut Nft, name: &IfName) -> Result<bool, PolicyError> {
    change(nft, &format!("remove port {name} from"), |nft| {
        let mut transaction = Transaction::new();
        for set in rules::sets() {
            replace(&mut transaction, &set, &of_port(nft, &set, name)?, &[]);
        }
        Ok(transaction)
    })
}

/// Takes the table away.
pub(crate) fn withdraw(nft: &mut Nft) -> Result<(), PolicyError> {
    change(nft, "delete", |nft| {
        let mut transaction = Transaction::new();
        if nft.tables()?.iter().any(|info| info.table == table()) {
            transaction.delete_table(&table());
        }
        Ok(transaction)
    })
    .map(drop)
}

/// Commits what `make` gives, after another look where another program was faster; false if there was nothing to do.
fn change(
    nft: &mut Nft,
    verb: &str,
    mut make: impl FnMut(&mut Nft) -> Result<Transaction, PolicyError>,
) -> Result<bool, PolicyError> {
    for tries in 1.. {
        let transaction = make(nft)?;
        if transaction.is_empty() {
            return Ok(false);
        }
        match nft.commit(&transaction) {
            Ok(()) => break,
            Err(error) if tries < MAX_TRIES && (error.is_not_found() || error.is_exists()) => {}
            Err(source) => return Err(commit(verb, source)),
        }
    }
    Ok(true)
}

fn add_structure(transaction: &mut Transaction) {
    transaction.add_table(&table());
    rules::sets().iter().for_each(|set| _ = transaction.add_set(set));
    rules::chains().iter().for_each(|chain| _ = transaction.add_chain(chain));
    rules::chains().iter().for_each(|chain| _ = transaction.flush_chain(&table(), &chain.name));
    rules::rules().iter().for_each(|rule| _ = transaction.add_rule(rule));
}

fn fault(nft: &mut Nft) -> Result<Option<Fault>, PolicyError> {
    let Some(info) = nft.tables()?.into_iter().find(|info| info.table == table()) else {
        return Ok(Some(Fault::Partial));
    };
    let (wanted, chains) = (rules::rules(), rules::chains());
    let found: Vec<Chain> = nft.chains(&table())?.into_iter().map(|info| info.chain).collect();
    let sets: Vec<Set> = nft.sets(&table())?.into_iter().map(|info| info.set).collect();
    let foreign_chain = found.iter().any(|chain| !chains.contains(chain));
    let foreign_set = sets.iter().any(|set| !rules::sets().contains(set));
    if info.dormant || info.owner.is_some() || foreign_chain || foreign_set {
        return Ok(Some(Fault::Wrong));
    }
    if found.len() != chains.len() || sets.len() != rules::sets().len() {
        return Ok(Some(Fault::Partial));
    }
    let found = nft.rules(&table())?;
    let same = |chain: &Chain| {
        let found = found.iter().filter(|rule| rule.chain == chain.name).map(|rule| rule.digest);
        found.eq(wanted.iter().filter(|rule| rule.chain() == chain.name).map(Rule::digest))
    };
    Ok((!chains.iter().all(same)).then_some(Fault::Partial))
}

/// Removes the rules before the sets that they look into: within one transaction they would find nothing there for a moment, and drop.
fn disarm(nft: &mut Nft) -> Result<(), PolicyError> {
    let mut transaction = Transaction::new();
    match nft.commit(transaction.flush_table(&table())) {
        Err(error) if !error.is_not_found() => Err(commit("flush", error)),
        _ => Ok(()),
    }
}

/// The elements of a set; none where there is no such set.
fn elements(nft: &mut Nft, set: &Set) -> Result<Vec<Element>, PolicyError> {
    match nft.elements(set) {
        Ok(elements) => Ok(elements),
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(error) => Err(error.into()),
    }
}

fn of_port(nft: &mut Nft, set: &Set, name: &IfName) -> Result<Vec<Element>, PolicyError> {
    let mut found = elements(nft, set)?;
    found.retain(|element| ruleset::host_name(element).as_ref() == Some(name));
    Ok(found)
}

/// Deletes what is not wanted, then adds what is missing: the kernel refuses elements that overlap.
fn replace(transaction: &mut Transaction, set: &Set, found: &[Element], wanted: &[Element]) {
    let same = |one: &Element, other: &Element| (&one.key, &one.value) == (&other.key, &other.value);
    let without = |all: &[Element], others: &[Element]| -> Vec<Element> {
        all.iter().filter(|one| !others.iter().any(|other| same(one, other))).cloned().collect()
    };
    let (gone, missing) = (without(found, wanted), without(wanted, found));
    if !gone.is_empty() {
        transaction.delete_elements(set, &gone);
    }
    if !missing.is_empty() {
        transaction.add_elements(set, &missing);
    }
}

fn commit(verb: &str, source: CommitError) -> PolicyError {
    PolicyError::Commit { operation: format!("{verb} table {TABLE}"), source }
}

pub(crate) fn table() -> Table {
    Table::new(TableFamily::Bridge, "russet-policy")
}
