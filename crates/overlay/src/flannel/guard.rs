//! Who may send to our vxlan device's port: the addresses of the leases, and no pod of this node (policy.md section 3.6). A sender that can place a tunnel
//! packet chooses its inner source. Used by `fabric`, which says when peers come and go.
//!
//! ```text
//! table inet russet-flannel-1 {                                   # the number of the network
//!     set active { type inet_proto; timeout; elements = { udp timeout 5m } }
//!     chain input   { type filter hook input priority filter;   udp dport 8472 goto tunnel }
//!     chain forward { type filter hook forward priority filter; udp dport 8472 goto tunnel-on }
//!     chain tunnel    { meta l4proto != @active accept; @th,96,24 != 1 accept; iifname @pods drop; ip saddr != @peers4 drop; (IPv6 likewise) }
//!     chain tunnel-on { meta l4proto != @active accept; iifname @pods drop; ip saddr OWN drop; (IPv6 likewise) }
//! }
//! ```
//!
//! Only a running daemon knows the peers. Another one that takes the node over must not find peers shut out that came later, so `active` runs out some
//! minutes after the last comparison, and with it the guard.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use russet_addr::{Family, IfName, IpNet};
use russet_linux::probe::{self, Feature};
use russet_nft::{
    Chain, ChainKind, Element, Expr, Field, Hook, KeyPart, KeyType, L4, Nft, PayloadBase, Register, Rule,
    Set, Table, Transaction, priority,
};

use crate::report::OverlayError;

/// The table of one network, and the peers that were put into it.
#[derive(Debug)]
pub(crate) struct TunnelGuard {
    /// None on a kernel without nf_tables.
    nft: Option<Nft>,
    tunnel: Tunnel,
    known: BTreeSet<IpAddr>,
    /// What the table was brought to last.
    ensured: Option<Senders>,
}

/// What never changes while the daemon runs.
#[derive(Debug, Clone)]
pub(crate) struct Tunnel {
    /// The UDP port.
    pub(crate) port: u16,
    /// The network's number.
    pub(crate) vni: u32,
    /// The families that have a device.
    pub(crate) families: Vec<Family>,
}

/// What the guard looks senders up in, as it should be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Senders {
    /// Where peers send from.
    pub(crate) peers: BTreeSet<IpAddr>,
    /// The links of this node that its pods are behind.
    pub(crate) pods: BTreeSet<IfName>,
    /// Our own subnets.
    pub(crate) own: Vec<IpNet>,
}

/// How long the guard holds after the last comparison. The daemon compares every minute; one that is started again takes seconds.
pub(super) const ACTIVE: Duration = Duration::from_secs(300);
const INPUT: &str = "input";
const FORWARD: &str = "forward";
const TUNNEL: &str = "tunnel";
const TUNNEL_ON: &str = "tunnel-on";

/// Sets, chains and rules.
pub(super) struct Ruleset {
    pub(super) sets: Vec<(Set, Vec<Element>)>,
    pub(super) chains: Vec<Chain>,
    pub(super) rules: Vec<Rule>,
}

// === impl TunnelGuard ===

impl TunnelGuard {
    /// Opens nf_tables; changes nothing yet.
    pub(crate) fn open(tunnel: Tunnel) -> Result<Self, OverlayError> {
        Ok(Self { nft: open_nft()?, tunnel, known: BTreeSet::new(), ensured: None })
    }

    /// Whether the kernel can guard at all.
    pub(crate) const fn is_supported(&self) -> bool {
        self.nft.is_some()
    }

    /// Lets further peers send: before there is a route to them. What the table lacks [`ensure`](Self::ensure) brings.
    pub(crate) fn admit(&mut self, peers: impl IntoIterator<Item = IpAddr>) -> Result<(), OverlayError> {
        let new: Vec<IpAddr> = peers.into_iter().filter(|peer| !self.known.contains(peer)).collect();
        self.change(&new, false)?;
        self.known.extend(new);
        Ok(())
    }

    /// Lets peers send no more: when no route leads to them.
    pub(crate) fn dismiss(&mut self, peers: &[IpAddr]) -> Result<(), OverlayError> {
        let gone: Vec<IpAddr> = peers.iter().copied().filter(|peer| self.known.contains(peer)).collect();
        self.change(&gone, true)?;
        gone.iter().for_each(|peer| _ = self.known.remove(peer));
        Ok(())
    }

    /// Takes the table away.
    pub(crate) fn withdraw(self) -> Result<(), OverlayError> {
        let (table, Some(mut nft)) = (self.tunnel.table(), self.nft) else { return Ok(()) };
        if nft.tables()?.iter().any(|info| info.table == table) {
            let mut transaction = Transaction::new();
            nft.commit(transaction.delete_table(&table))?;
        }
        Ok(())
    }

    fn change(&mut self, peers: &[IpAddr], remove: bool) -> Result<(), OverlayError> {
        let Some(nft) = &mut self.nft else { return Ok(()) };
        let mut transaction = Transaction::new();
        for family in &self.tunnel.families {
            let of_family = peers.iter().filter(|peer| Family::of(**peer) == *family);
            let elements: Vec<Element> = of_family.map(|peer| Element::new(KeyPart::from(*peer))).collect();
            let set = self.tunnel.peers(*family);
            match (elements.is_empty(), remove) {
                (true, _) => {}
                (false, true) => _ = transaction.delete_elements(&set, &elements),
                (false, false) => _ = transaction.add_elements(&set, &elements),
            }
        }
        if transaction.is_empty() {
            return Ok(());
        }
        match nft.commit(&transaction) {
            // The table, or what others did to it, is the next comparison's.
            Err(error) if error.is_not_found() || error.is_exists() => Ok(()),
            done => Ok(done?),
        }
    }

    /// Brings the table to exactly this, and lets the guard hold from now on; true if something had been brought to this before and
    /// was different.
    pub(crate) fn ensure(&mut self, senders: &Senders) -> Result<bool, OverlayError> {
        let Some(nft) = &mut self.nft else { return Ok(false) };
        let wanted = self.tunnel.ruleset(senders);
        let table = self.tunnel.table();
        let in_force = is_in_force(nft, &table, &wanted)?;
        let mut transaction = Transaction::new();
        if !in_force {
            disarm(nft, &table)?;
            transaction.destroy_table(&table);
            transaction.add_table_with_comment(&table, "russet: who may send to flannel's vxlan port");
            transaction.add_set(&self.tunnel.active());
            for (set, elements) in &wanted.sets {
                transaction.add_set(set).add_elements(set, elements);
            }
            wanted.chains.iter().for_each(|chain| _ = transaction.add_chain(chain));
            wanted.rules.iter().for_each(|rule| _ = transaction.add_rule(rule));
        } else {
            // What is there keeps its time unless it goes.
            transaction.flush_set(&table, &self.tunnel.active().name);
        }
        let active = Element::new(KeyPart::protocol(L4::Udp as u8)).timeout(ACTIVE);
        transaction.add_elements(&self.tunnel.active(), &[active]);
        nft.commit(&transaction)?;
        self.known.clone_from(&senders.peers);
        let repaired = !in_force && self.ensured.as_ref() == Some(senders);
        self.ensured = Some(senders.clone());
        Ok(repaired)
    }
}

/// None on a kernel without nf_tables.
pub(super) fn open_nft() -> Result<Option<Nft>, OverlayError> {
    match Nft::open() {
        _ if matches!(probe::supports(Feature::NfTables), Ok(false)) => Ok(None),
        Ok(nft) => Ok(Some(nft)),
        Err(error) => Err(error.into()),
    }
}

/// Takes the rules away before the sets that they look into: within one transaction they would find nothing in them for a moment, and drop.
pub(super) fn disarm(nft: &mut Nft, table: &Table) -> Result<(), OverlayError> {
    let mut transaction = Transaction::new();
    match nft.commit(transaction.flush_table(table)) {
        Err(error) if error.is_not_found() => Ok(()),
        done => Ok(done?),
    }
}

pub(super) fn is_in_force(nft: &mut Nft, table: &Table, wanted: &Ruleset) -> Result<bool, OverlayError> {
    let chains: Vec<Chain> = nft.chains(table)?.into_iter().map(|info| info.chain).collect();
    if chains.len() != wanted.chains.len() || !wanted.chains.iter().all(|chain| chains.contains(chain)) {
        return Ok(false);
    }
    let rules = nft.rules(table)?;
    for chain in &wanted.chains {
        let found = rules.iter().filter(|rule| rule.chain == chain.name).map(|rule| rule.digest);
        if !found.eq(wanted.rules.iter().filter(|rule| rule.chain() == chain.name).map(Rule::digest)) {
            return Ok(false);
        }
    }
    let sets = nft.sets(table)?;
    for (set, elements) in &wanted.sets {
        let same = |found: &Set| (&found.key, found.interval) == (&set.key, set.interval);
        if !sets.iter().any(|info| info.set.name == set.name && same(&info.set)) {
            return Ok(false);
        }
        let keys = |all: &[Element]| all.iter().map(|element| element.key.clone()).collect::<BTreeSet<_>>();
        if keys(&nft.elements(set)?) != keys(elements) {
            return Ok(false);
        }
    }
    Ok(true)
}

// === impl Tunnel ===

impl Tunnel {
    fn table(&self) -> Table {
        Table::inet(format!("russet-flannel-{}", self.vni))
    }

    fn active(&self) -> Set {
        Set::new(&self.table(), "active", [KeyType::InetProto]).timeout(None)
    }

    fn peers(&self, family: Family) -> Set {
        let name = match family {
            Family::V4 => "peers4",
            Family::V6 => "peers6",
        };
        Set::new(&self.table(), name, [KeyType::address(family)])
    }

    fn pods(&self) -> Set {
        Set::new(&self.table(), "pods", [KeyType::IfName])
    }

    fn ruleset(&self, senders: &Senders) -> Ruleset {
        let table = self.table();
        let base = |name, hook| Chain::base(&table, name, ChainKind::Filter, hook, priority::FILTER);
        let chains = vec![
            Chain::new(&table, TUNNEL),
            Chain::new(&table, TUNNEL_ON),
            base(INPUT, Hook::Input),
            base(FORWARD, Hook::Forward),
        ];
        let pods = senders.pods.iter().map(|name| Element::new(KeyPart::if_name(name))).collect();
        let mut sets = vec![(self.pods(), pods)];
        for family in &self.families {
            let peers = senders.peers.iter().filter(|peer| Family::of(**peer) == *family);
            let elements = peers.map(|peer| Element::new(KeyPart::from(*peer))).collect();
            sets.push((self.peers(*family), elements));
        }
        Ruleset { sets, chains, rules: self.rules(&senders.own) }
    }

    fn rules(&self, own: &[IpNet]) -> Vec<Rule> {
        let rule = |chain: &str| Rule::in_chain(&self.table(), chain);
        let enters = |chain: &str, to: &str| rule(chain).protocol(L4::Udp).dport(self.port).goto(to);
        let active = self.active().name;
        let stale = |chain: &str| rule(chain).is_not_in(&[Field::L4Proto], active.clone()).accept();
        let drops = |rule: Rule, why: &str| rule.counter().drop().comment(why);
        let from_pod = |chain: &str| {
            let by_link = rule(chain).is_in(&[Field::IifName], self.pods().name);
            drops(by_link, crate::masquerade::POD_TUNNEL_DROP)
        };
        let mut rules = vec![enters(INPUT, TUNNEL), enters(FORWARD, TUNNEL_ON), stale(TUNNEL)];
        rules.push(other_network(rule(TUNNEL), self.vni).accept());
        rules.push(from_pod(TUNNEL));
        for family in &self.families {
            let foreign = rule(TUNNEL).saddr_not_in(*family, self.peers(*family).name);
            rules.push(drops(foreign, crate::masquerade::FOREIGN_TUNNEL_DROP));
        }
        rules.extend([stale(TUNNEL_ON), from_pod(TUNNEL_ON)]);
        rules.extend(
            own.iter().map(|own| drops(rule(TUNNEL_ON).saddr(*own), crate::masquerade::POD_TUNNEL_DROP)),
        );
        rules
    }
}

/// `@th,96,24 != VNI`: other programs, and other networks of ours, may use the same port.
fn other_network(rule: Rule, vni: u32) -> Rule {
    let register = Register::FIRST;
    let [_, value @ ..] = vni.to_be_bytes();
    rule.expr(Expr::Payload { base: PayloadBase::Transport, offset: 12, len: 3, to: register })
        .expr(Expr::Cmp { op: russet_nft::CmpOp::Neq, register, value: value.to_vec() })
}
