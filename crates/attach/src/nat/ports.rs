//! Ports of the node that lead to pods, for the plugin `portmap`.
//!
//! A verdict map finds the pod's chain by address, protocol and port, however many are published; a
//! second map for all addresses of the node is used after it. A key exists only once, so a port
//! that is in use is an error of ADD, and not silently shadowed.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use russet_addr::{Family, IfName, IpNet, NetworkName};
use russet_nft::{
    Chain, ChainKind, Conntrack, Element, Field, Hook, KeyPart, KeyType, L4, Masquerade, Nft, Rule, Set,
    Transaction, Verdict, priority,
};

use super::{NatError, change, elements, is_stale, label, table};
use crate::naming;
use crate::owner::Owner;

/// The ports that a container publishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// The owner.
    pub owner: Owner,
    /// The ports.
    pub rules: Vec<PortRule>,
    /// The pod's addresses with their networks: packets from there, and from the node's 127.0.0.1,
    /// get the node's address, because their answers would not come back through the node
    /// otherwise. None if this is not wanted.
    pub hairpin: Vec<IpNet>,
    /// All packets get the node's address.
    pub masquerade_all: bool,
    /// Packets that do not match all of these are ignored.
    pub conditions: Vec<Condition>,
}

/// One port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortRule {
    /// The protocol.
    pub protocol: L4,
    /// The node's address; none for all of them.
    pub host_ip: Option<IpAddr>,
    /// The node's port.
    pub host_port: u16,
    /// The pod's address.
    pub to: IpAddr,
    /// The pod's port.
    pub to_port: u16,
}

/// A condition on a packet's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Condition {
    /// The prefix.
    pub net: IpNet,
    /// The source must match; otherwise the destination.
    pub source: bool,
    /// The condition is negated.
    pub not: bool,
}

/// Why ports could not be published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// nf_tables.
    #[error(transparent)]
    Nat(#[from] NatError),
    /// Another owner has the port.
    #[error("{port} is published by {owner} already")]
    Taken {
        /// The port as text.
        port: String,
        /// Its owner.
        owner: String,
    },
}

const PREROUTING: &str = "ports-prerouting";
const OUTPUT: &str = "ports-output";
const POSTROUTING: &str = "ports-postrouting";
const GUARD: &str = "ports-guard";
/// The chain that looks up packets to the node's own addresses.
const LOOKUP: &str = "ports-lookup";
/// Prefix of the chains of one container.
const CHAIN_PREFIX: &str = "ports-of-";
/// Digits of a hash in a chain's name.
const CHAIN_CHARS: usize = 24;
/// Addresses of the node that only the node itself may use.
const LOOPBACK: IpNet = IpNet::new_assert(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8);

/// Publishes ports and removes earlier ones of the owner, and stale ones of containers that had its
/// address.
pub fn publish(nft: &mut Nft, what: &Publication) -> Result<(), PublishError> {
    let mut taken = None;
    let done = change(nft, "publish ports", &mut |nft| {
        let present = PublishedPorts::read(nft)?;
        let own = what.owner.label();
        let ours: BTreeSet<IpAddr> = what.rules.iter().map(|rule| rule.to).collect();
        let dead: BTreeSet<&str> = (present.elements.iter())
            .filter(|(_, element)| {
                label(element) == own || target(element).is_some_and(|it| ours.contains(&it))
            })
            .map(|(_, element)| label(element))
            .collect();
        let mut transaction = Transaction::new();
        let wanted = wanted(what);
        taken = (present.elements.iter())
            .filter(|(_, element)| !dead.contains(label(element)))
            .find(|(set, element)| {
                wanted.iter().any(|(s, e)| s.name == set.name && e.key == element.key && s.value.is_some())
            })
            .map(|(_, element)| (shown(element), label(element).to_owned()));
        if taken.is_some() {
            return Ok(transaction);
        }
        add_chains(&mut transaction);
        present.remove(&mut transaction, &|owner| dead.contains(owner) && owner != own);
        present.remove_elements(&mut transaction, &|owner| owner == own);
        add_rules(&mut transaction, what);
        for (set, element) in &wanted {
            transaction.add_elements(set, std::slice::from_ref(element));
        }
        Ok(transaction)
    });
    if let Some((port, owner)) = taken {
        return Err(PublishError::Taken { port, owner });
    }
    done?;
    Ok(forget_flows(&what.rules)?)
}

/// Removes the ports of an owner, if there are any.
pub fn unpublish(nft: &mut Nft, owner: &Owner) -> Result<(), NatError> {
    let wanted = owner.label();
    withdraw(nft, &|element| label(element) == wanted)
}

/// Removes the ports of a network's containers that are not valid.
pub fn collect_ports(nft: &mut Nft, network: &NetworkName, valid: &[Owner]) -> Result<(), NatError> {
    let network = Owner::network_label(network);
    withdraw(nft, &|element| is_stale(element, &network, valid))
}

/// The owners of published ports, and their addresses.
pub(super) fn addresses(nft: &mut Nft) -> Result<Vec<(String, Option<IpAddr>)>, NatError> {
    let present = PublishedPorts::read(nft)?;
    Ok(present.elements.iter().map(|(_, element)| (label(element).to_owned(), target(element))).collect())
}

/// Removes the elements with these labels.
pub(super) fn forget(nft: &mut Nft, labels: &BTreeSet<String>) -> Result<(), NatError> {
    withdraw(nft, &|element| labels.contains(label(element)))
}

/// What is missing of a publication, as text.
pub fn unpublished(nft: &mut Nft, what: &Publication) -> Result<Vec<String>, NatError> {
    let own = what.owner.label();
    let present = PublishedPorts::read(nft)?;
    let has = |set: &Set, wanted: &Element| {
        let mut all = present.elements.iter();
        all.any(|(s, e)| s.name == set.name && e.key == wanted.key && label(e) == own)
    };
    let mut missing: Vec<String> = wanted(what)
        .iter()
        .filter(|(set, element)| !has(set, element))
        .map(|(_, element)| shown(element))
        .collect();
    let found = match nft.rules_of(&table(), &chain_name(&own)) {
        Ok(rules) => rules.iter().map(|rule| rule.digest).collect(),
        Err(error) if error.is_not_found() => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let rules = rules(what);
    missing
        .extend((rules.iter().filter(|rule| !found.contains(&rule.digest()))).map(|_| "a rule".to_owned()));
    Ok(missing)
}

fn withdraw(nft: &mut Nft, unwanted: &dyn Fn(&Element) -> bool) -> Result<(), NatError> {
    let mut flows = Vec::new();
    change(nft, "take back published ports", &mut |nft| {
        let present = PublishedPorts::read(nft)?;
        let owners: BTreeSet<&str> =
            present.elements.iter().map(|(_, element)| element).filter(|e| unwanted(e)).map(label).collect();
        flows = (present.elements.iter())
            .filter(|(set, element)| set.value.is_some() && owners.contains(label(element)))
            .filter_map(|(_, element)| port_rule(element))
            .collect();
        let mut transaction = Transaction::new();
        present.remove(&mut transaction, &|owner| owners.contains(owner));
        Ok(transaction)
    })?;
    forget_flows(&flows)
}

/// UDP has no end of a connection: packets of an active client would keep their old translation, or
/// none.
fn forget_flows(rules: &[PortRule]) -> Result<(), NatError> {
    let udp: Vec<&PortRule> = rules.iter().filter(|rule| rule.protocol == L4::Udp).collect();
    if udp.is_empty() {
        return Ok(());
    }
    let mut conntrack = Conntrack::open()?;
    for family in Family::BOTH {
        let of_family: Vec<&&PortRule> = udp.iter().filter(|rule| Family::of(rule.to) == family).collect();
        if of_family.is_empty() {
            continue;
        }
        conntrack.forget_where(family, |flow| {
            let to = |rule: &PortRule| {
                flow.port == Some(rule.host_port) && rule.host_ip.is_none_or(|ip| ip == flow.original.1)
            };
            flow.protocol == L4::Udp as u8 && of_family.iter().any(|rule| to(rule))
        })?;
    }
    Ok(())
}

/// All published ports.
struct PublishedPorts {
    elements: Vec<(Set, Element)>,
    chains: Vec<String>,
}

// === impl PublishedPorts ===

impl PublishedPorts {
    fn read(nft: &mut Nft) -> Result<Self, NatError> {
        let mut all = Vec::new();
        for set in Family::BOTH.into_iter().flat_map(sets) {
            all.extend(elements(nft, &set, &|_| true)?.into_iter().map(|element| (set.clone(), element)));
        }
        let chains = match nft.chains(&table()) {
            Ok(chains) => chains.into_iter().map(|info| info.chain.name).collect(),
            Err(error) if error.is_not_found() => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        Ok(Self { elements: all, chains })
    }

    fn remove_elements(&self, transaction: &mut Transaction, of: &dyn Fn(&str) -> bool) {
        for (set, element) in self.elements.iter().filter(|(_, element)| of(label(element))) {
            transaction.delete_elements(set, std::slice::from_ref(element));
        }
    }

    /// Elements and chains.
    fn remove(&self, transaction: &mut Transaction, of: &dyn Fn(&str) -> bool) {
        self.remove_elements(transaction, of);
        let owners: BTreeSet<&str> =
            self.elements.iter().map(|(_, element)| label(element)).filter(|owner| of(owner)).collect();
        for chain in owners.into_iter().map(chain_name).filter(|chain| self.chains.contains(chain)) {
            transaction.delete_chain(&table(), &chain);
        }
    }
}

fn add_chains(transaction: &mut Transaction) {
    let table = table();
    let nat = |name, hook, priority| Chain::base(&table, name, ChainKind::Nat, hook, priority);
    let prerouting = nat(PREROUTING, Hook::Prerouting, priority::DSTNAT);
    let output = nat(OUTPUT, Hook::Output, priority::DSTNAT);
    let postrouting = nat(POSTROUTING, Hook::Postrouting, priority::SRCNAT);
    let guard = Chain::base(&table, GUARD, ChainKind::Filter, Hook::Prerouting, priority::RAW);
    let lookup = Chain::new(&table, LOOKUP);
    transaction.add_table(&table);
    for chain in [&lookup, &prerouting, &output, &postrouting, &guard] {
        transaction.add_chain(chain).flush_chain(&table, &chain.name);
    }
    for set in Family::BOTH.into_iter().flat_map(sets) {
        transaction.add_set(&set);
    }
    for chain in [&prerouting, &output] {
        transaction.add_rule(&Rule::new(chain).to_this_machine().jump(LOOKUP));
    }
    for family in Family::BOTH {
        let [addressed, any, hairpin] = sets(family);
        let one = [Field::Daddr(family), Field::L4Proto, Field::Dport];
        transaction.add_rule(&Rule::new(&lookup).vmap(&one, addressed.name));
        let all = Rule::new(&lookup).family(family).vmap(&[Field::L4Proto, Field::Dport], any.name);
        transaction.add_rule(&all);
        let back = Rule::new(&postrouting).ct_dnat();
        let back = back.is_in(&[Field::Saddr(family), Field::Daddr(family)], hairpin.name);
        transaction.add_rule(&back.masquerade(Masquerade::default()));
    }
    // With route_localnet a neighbour could otherwise reach listeners on 127.0.0.1.
    let foreign_loopback = Rule::new(&guard).daddr(LOOPBACK).iif_not(&IfName::loopback());
    transaction.add_rule(&foreign_loopback.drop());
}

fn add_rules(transaction: &mut Transaction, what: &Publication) {
    let chain = own_chain(what);
    transaction.add_chain(&chain).flush_chain(&table(), &chain.name);
    for rule in rules(what) {
        transaction.add_rule(&rule);
    }
}

fn rules(what: &Publication) -> Vec<Rule> {
    let chain = own_chain(what);
    let rule = |it: &PortRule| {
        let mut rule = Rule::new(&chain).family(Family::of(it.to));
        for condition in what.conditions.iter().filter(|one| Family::of_net(&one.net) == Family::of(it.to)) {
            rule = match (condition.source, condition.not) {
                (true, false) => rule.saddr(condition.net),
                (true, true) => rule.saddr_not(condition.net),
                (false, false) => rule.daddr(condition.net),
                (false, true) => rule.daddr_not(condition.net),
            };
        }
        if let Some(host_ip) = it.host_ip {
            rule = rule.daddr(host_ip.into());
        }
        rule.protocol(it.protocol).dport(it.host_port).dnat(it.to, Some(it.to_port))
    };
    what.rules.iter().map(rule).collect()
}

/// The elements of a publication, each with its set.
fn wanted(what: &Publication) -> Vec<(Set, Element)> {
    let own = what.owner.label();
    let chain = chain_name(&own);
    let mut all: Vec<(Set, Element)> = Vec::new();
    for rule in &what.rules {
        let [addressed, any, _] = sets(Family::of(rule.to));
        let port = [KeyPart::protocol(rule.protocol as u8), KeyPart::port(rule.host_port)];
        let (set, key) = match rule.host_ip {
            Some(ip) => (addressed, [vec![KeyPart::from(ip)], port.to_vec()].concat()),
            None => (any, port.to_vec()),
        };
        let element =
            Element::concatenation(key).verdict(Verdict::goto(&chain)).comment(format!("{own} {}", rule.to));
        if !all.iter().any(|(s, e)| s.name == set.name && e.key == element.key) {
            all.push((set, element));
        }
    }
    for net in &what.hairpin {
        let family = Family::of_net(net);
        let [.., hairpin] = sets(family);
        let loopback = (family == Family::V4 && !what.masquerade_all).then_some(LOOPBACK);
        let sources = if what.masquerade_all { family.default_net() } else { net.trunc() };
        for source in [Some(sources), loopback].into_iter().flatten() {
            let key = [KeyPart::from(source), KeyPart::from(net.addr())];
            let element = Element::concatenation(key).comment(format!("{own} {}", net.addr()));
            all.push((hairpin.clone(), element));
        }
    }
    all
}

/// Ports of one address; ports of all addresses; pairs that need the node's address as source.
fn sets(family: Family) -> [Set; 3] {
    let (addressed, any, hairpin) = match family {
        Family::V4 => ("ports-addressed4", "ports-any4", "ports-hairpin4"),
        Family::V6 => ("ports-addressed6", "ports-any6", "ports-hairpin6"),
    };
    let address = KeyType::address(family);
    let key = [KeyType::InetProto, KeyType::InetService];
    [
        Set::verdict_map(&table(), addressed, [&[address][..], &key].concat()),
        Set::verdict_map(&table(), any, key),
        Set::new(&table(), hairpin, [address, address]).interval(),
    ]
}

fn own_chain(what: &Publication) -> Chain {
    Chain::new(&table(), chain_name(&what.owner.label()))
}

fn chain_name(label: &str) -> String {
    format!("{CHAIN_PREFIX}{}", naming::hex(label.as_bytes(), CHAIN_CHARS))
}

/// The pod's address in an element's comment.
fn target(element: &Element) -> Option<IpAddr> {
    element.comment.as_deref()?.split_once(' ')?.1.parse().ok()
}

/// The port of an element; the pod's own port is not in it.
fn port_rule(element: &Element) -> Option<PortRule> {
    let number = |part: &KeyPart| part.bytes().0.to_vec();
    let (host_ip, protocol, port) = match element.key.as_slice() {
        [address, protocol, port] => (address.first_address(), number(protocol), number(port)),
        [protocol, port] => (None, number(protocol), number(port)),
        _ => return None,
    };
    let protocol = [L4::Tcp, L4::Udp, L4::Sctp].into_iter().find(|it| protocol == [*it as u8])?;
    let host_port = u16::from_be_bytes(port.try_into().ok()?);
    Some(PortRule { protocol, host_ip, host_port, to: target(element)?, to_port: 0 })
}

/// As text, for errors.
fn shown(element: &Element) -> String {
    match port_rule(element) {
        Some(PortRule { protocol, host_ip: Some(ip), host_port, .. }) => {
            format!("{protocol:?} port {host_port} of {ip}")
        }
        Some(PortRule { protocol, host_port, .. }) => format!("{protocol:?} port {host_port}"),
        None => "the way back".to_owned(),
    }
}
