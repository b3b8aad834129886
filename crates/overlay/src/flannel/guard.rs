//! Who may send to our vxlan device's port: the addresses of the leases, and no pod of this node (policy.md section 3.6). A sender that can place a tunnel
//! packet chooses its inner source. Used by `fabric`, which says when peers come and go.
//!
//! ```text
//! table inet russet-flannel-1 {                                   # the number of the network
//!     set active { type inet_proto; timeout; elements = { udp timeout 5m } }
//!     chain input   { type filter hook input priority filter;   udp dport 8472 goto tunnel }
//!     chain forward { type filter hook forward priority filter; udp dport 8472 goto tunnel-on }
//!     chain tunnel {
//!         ip saddr @peers4 iifname != "cni0" accept; (each link of pods; IPv6 likewise)
//!         meta l4proto != @active accept; @th,96,24 != 1 accept; iifname @pods drop; ip saddr != @peers4 drop; (IPv6 likewise)
//!     }
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
use crate::ruleset::{ObservedTable, Ruleset};

/// The table of one network, and the peers that were put into it.
#[derive(Debug)]
pub(crate) struct TunnelGuard {
    /// None on a kernel without nf_tables.
    nft: Option<Nft>,
    tunnel: Tunnel,
    known: BTreeSet<IpAddr>,
    /// The links and subnets that the table was brought to last.
    ensured: Option<(BTreeSet<IfName>, Vec<IpNet>)>,
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
const COMMENT: &str = "russet: who may send to flannel's vxlan port";
const INPUT: &str = "input";
const FORWARD: &str = "forward";
const TUNNEL: &str = "tunnel";
const TUNNEL_ON: &str = "tunnel-on";

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
        withdraw(self.nft, &self.tunnel.table())
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
    pub(crate) fn ensure(&mut self, senders: Senders) -> Result<bool, OverlayError> {
        let Some(nft) = &mut self.nft else { return Ok(false) };
        let wanted = self.tunnel.ruleset(&senders);
        let active = Element::new(KeyPart::protocol(L4::Udp as u8)).timeout(ACTIVE);
        let in_force = bring(nft, &self.tunnel.table(), COMMENT, &self.tunnel.active(), &[active], &wanted)?;
        let ensured = Some((senders.pods, senders.own));
        let repaired = !in_force && self.ensured == ensured && self.known == senders.peers;
        (self.ensured, self.known) = (ensured, senders.peers);
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

/// Deletes a guard's table.
pub(super) fn withdraw(nft: Option<Nft>, table: &Table) -> Result<(), OverlayError> {
    let Some(mut nft) = nft else { return Ok(()) };
    if nft.tables()?.iter().any(|info| info.table == *table) {
        nft.commit(Transaction::new().delete_table(table))?;
    }
    Ok(())
}

/// Brings a guard's table to exactly this, and fills its set `active` anew, whose elements run out. Returns whether the rest was in force.
pub(super) fn bring(
    nft: &mut Nft,
    table: &Table,
    comment: &str,
    active: &Set,
    elements: &[Element],
    wanted: &Ruleset,
) -> Result<bool, OverlayError> {
    let mut found = ObservedTable::read(nft, table, "")?;
    found.sets.retain(|(set, _)| set.name != active.name);
    let in_force = wanted.is_in_force(&found);
    let mut transaction = Transaction::new();
    if in_force {
        // What is there keeps its time unless it goes.
        transaction.flush_set(table, &active.name);
    } else {
        // Rules before the sets that they look into: within one transaction they would find nothing in them for a moment, and drop.
        match nft.commit(Transaction::new().flush_table(table)) {
            Err(error) if error.is_not_found() => {}
            done => done?,
        }
        transaction.destroy_table(table).add_table_with_comment(table, comment).add_set(active);
        wanted.add_to(&mut transaction);
    }
    nft.commit(transaction.add_elements(active, elements))?;
    Ok(in_force)
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
        Ruleset { sets, chains, rules: self.rules(senders) }
    }

    fn rules(&self, senders: &Senders) -> Vec<Rule> {
        let rule = |chain: &str| Rule::in_chain(&self.table(), chain);
        let enters = |chain: &str, to: &str| rule(chain).protocol(L4::Udp).dport(self.port).goto(to);
        let active = self.active().name;
        let stale = |chain: &str| rule(chain).is_not_in(&[Field::L4Proto], active.clone()).accept();
        let drops = |rule: Rule, why: &str| rule.counter().drop().comment(why);
        let from_pod = |chain: &str| {
            let by_link = rule(chain).is_in(&[Field::IifName], self.pods().name);
            drops(by_link, crate::masquerade::POD_TUNNEL_DROP)
        };
        let mut rules = vec![enters(INPUT, TUNNEL), enters(FORWARD, TUNNEL_ON)];
        // Nearly all packets leave here.
        rules.extend(self.families.iter().map(|family| {
            let peer = rule(TUNNEL).saddr_in(*family, self.peers(*family).name);
            senders.pods.iter().fold(peer, Rule::iif_not).accept()
        }));
        rules.push(stale(TUNNEL));
        rules.push(other_network(rule(TUNNEL), self.vni).accept());
        rules.push(from_pod(TUNNEL));
        for family in &self.families {
            let foreign = rule(TUNNEL).saddr_not_in(*family, self.peers(*family).name);
            rules.push(drops(foreign, crate::masquerade::FOREIGN_TUNNEL_DROP));
        }
        rules.extend([stale(TUNNEL_ON), from_pod(TUNNEL_ON)]);
        rules.extend(
            senders
                .own
                .iter()
                .map(|own| drops(rule(TUNNEL_ON).saddr(*own), crate::masquerade::POD_TUNNEL_DROP)),
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
