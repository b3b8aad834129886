//! What pods behind the bridges of this node do not send, whichever plugin made their interfaces: packets from addresses that the node does not
//! route to their bridge, and IP in IP and GRE to nodes. Used by `fabric`.
//!
//! ```text
//! table inet russet-flannel-pods {
//!     set bridges { type ifname; timeout; elements = { "cni0" timeout 5m } }
//!     set nodes4 { type ipv4_addr }                                   # and nodes6: the addresses of the leases
//!     set encapsulations { type inet_proto; elements = { 4, 41, 47 } }
//!     chain prerouting { type filter hook prerouting priority raw; iifname "cni0" goto guard }     # for each bridge
//!     chain guard {
//!         meta l4proto != tcp meta l4proto @encapsulations jump guard-encapsulated
//!         fib saddr . iif oif 0 goto guard-source
//!     }
//!     chain guard-encapsulated {
//!         iifname != @bridges accept
//!         ip daddr @nodes4 counter drop                                   # (IPv6 likewise)
//!         fib daddr type local counter drop
//!     }
//!     chain guard-source { ip6 saddr fe80::/10 accept; iifname != @bridges accept; counter drop }
//! }
//! ```
//!
//! Every packet of the node passes the first chain, so it compares names, which costs less than a lookup in a set; the set is for the few packets
//! that would be dropped. Pods on one bridge are kept apart by the plugin that made their ports, where it is ours. The elements of `bridges` run out some minutes after the
//! last comparison, and with them the guard: another daemon may take the node over.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};

use russet_addr::{Family, IfName, IpNet, Ipv6Net};
use russet_nft::{
    Chain, ChainKind, Element, Field, Hook, KeyPart, KeyType, L4, Nft, Rule, Set, Table, priority,
};

use super::guard::{ACTIVE, bring, open_nft, withdraw};
use crate::masquerade::{ENCAPSULATIONS, POD_ENCAPSULATION_DROP};
use crate::report::OverlayError;
use crate::ruleset::Ruleset;

/// The comment of the rule that drops packets from elsewhere.
pub const POD_SOURCE_DROP: &str = "an address that is not behind the pod's bridge";

/// The table, and what it was brought to last.
#[derive(Debug)]
pub(super) struct PodGuard {
    /// None on a kernel without nf_tables.
    nft: Option<Nft>,
    /// Whether the kernel looks sources up in its routes (`CONFIG_NFT_FIB_INET`); until it refuses.
    fib: bool,
    ensured: Option<(BTreeSet<IfName>, BTreeSet<IpAddr>)>,
}

const PREROUTING: &str = "prerouting";
const GUARD: &str = "guard";
const GUARD_SOURCE: &str = "guard-source";
const GUARD_ENCAPSULATED: &str = "guard-encapsulated";
/// `fe80::/10`
const LINK_LOCAL: IpNet = IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10));

// === impl PodGuard ===

impl PodGuard {
    /// Opens nf_tables; changes nothing yet.
    pub(super) fn open() -> Result<Self, OverlayError> {
        Ok(Self { nft: open_nft()?, fib: true, ensured: None })
    }

    /// Takes the table away.
    pub(super) fn withdraw(self) -> Result<(), OverlayError> {
        withdraw(self.nft, &table())
    }

    /// Guards exactly these bridges from now on, and keeps their pods' encapsulated packets from these nodes; true if the same had been in force
    /// before and was different.
    pub(super) fn ensure(
        &mut self,
        bridges: &BTreeSet<IfName>,
        nodes: &BTreeSet<IpAddr>,
    ) -> Result<bool, OverlayError> {
        let Some(nft) = &mut self.nft else { return Ok(false) };
        let repaired = match ensure(nft, bridges, nodes, self.fib) {
            Err(OverlayError::Nft(error)) if self.fib && error.is_not_found() => {
                ensure(nft, bridges, nodes, false)?;
                self.fib = false;
                // Reported once: everything else is in force.
                return Err(OverlayError::NoFib(error));
            }
            done => done?,
        };
        let wanted = (bridges.clone(), nodes.clone());
        let same = self.ensured.as_ref() == Some(&wanted);
        self.ensured = Some(wanted);
        Ok(repaired && same)
    }
}

/// True if the table was not as it should be.
fn ensure(
    nft: &mut Nft,
    bridges: &BTreeSet<IfName>,
    nodes: &BTreeSet<IpAddr>,
    fib: bool,
) -> Result<bool, OverlayError> {
    let active = bridges.iter().map(|name| Element::new(KeyPart::if_name(name)).timeout(ACTIVE));
    let (active, wanted) = (active.collect::<Vec<_>>(), ruleset(bridges, nodes, fib));
    let comment = "russet: what pods of flannel do not send";
    Ok(!bring(nft, &table(), comment, &bridges_set(), &active, &wanted)?)
}

fn table() -> Table {
    Table::inet("russet-flannel-pods")
}

fn bridges_set() -> Set {
    Set::new(&table(), "bridges", [KeyType::IfName]).timeout(None)
}

fn nodes_set(family: Family) -> Set {
    let name = match family {
        Family::V4 => "nodes4",
        Family::V6 => "nodes6",
    };
    Set::new(&table(), name, [KeyType::address(family)])
}

fn encapsulations_set() -> Set {
    Set::new(&table(), "encapsulations", [KeyType::InetProto])
}

fn ruleset(bridges: &BTreeSet<IfName>, nodes: &BTreeSet<IpAddr>, fib: bool) -> Ruleset {
    let protocols = ENCAPSULATIONS.map(|number| Element::new(KeyPart::protocol(number)));
    let mut sets = vec![(encapsulations_set(), Vec::from(protocols))];
    for family in Family::BOTH {
        let of_family = nodes.iter().filter(|node| Family::of(**node) == family);
        sets.push((nodes_set(family), of_family.map(|node| Element::new(KeyPart::from(*node))).collect()));
    }
    let prerouting = Chain::base(&table(), PREROUTING, ChainKind::Filter, Hook::Prerouting, priority::RAW);
    let mut chains =
        [GUARD_SOURCE, GUARD_ENCAPSULATED, GUARD].map(|name| Chain::new(&table(), name)).to_vec();
    chains.push(prerouting);
    Ruleset { sets, chains, rules: rules(bridges, fib) }
}

fn rules(bridges: &BTreeSet<IfName>, fib: bool) -> Vec<Rule> {
    let rule = |chain: &str| Rule::in_chain(&table(), chain);
    let drops = |rule: Rule, why: &str| rule.counter().drop().comment(why);
    let stale = |chain: &str| rule(chain).is_not_in(&[Field::IifName], bridges_set().name).accept();
    let mut rules: Vec<Rule> =
        bridges.iter().map(|bridge| rule(PREROUTING).iif(bridge).goto(GUARD)).collect();
    let encapsulated = rule(GUARD).protocol_not(L4::Tcp).is_in(&[Field::L4Proto], encapsulations_set().name);
    rules.extend([encapsulated.jump(GUARD_ENCAPSULATED), stale(GUARD_ENCAPSULATED)]);
    for family in Family::BOTH {
        let to_node = rule(GUARD_ENCAPSULATED).daddr_in(family, nodes_set(family).name);
        rules.push(drops(to_node, POD_ENCAPSULATION_DROP));
    }
    if fib {
        rules.push(drops(rule(GUARD_ENCAPSULATED).to_this_machine(), POD_ENCAPSULATION_DROP));
        rules.push(rule(GUARD).source_elsewhere().goto(GUARD_SOURCE));
    }
    // Neighbour discovery, and no router sends them on.
    rules.push(rule(GUARD_SOURCE).saddr(LINK_LOCAL).accept());
    rules.extend([stale(GUARD_SOURCE), drops(rule(GUARD_SOURCE), POD_SOURCE_DROP)]);
    rules
}
