//! Counts the encapsulated packets between this node and peers that do not answer through the tunnel, which shows on which side they are
//! lost. All this is in the table `inet russet-peers`, which exists while there is such a peer:
//!
//! ```text
//! table inet russet-peers {
//!     flags owner
//!     set sent4         { type ipv4_addr; counter }                (the peers' own addresses)
//!     set received4     { type ipv4_addr . ipv4_addr; counter }    (the same, and those of their tunnel devices)
//!     set decapsulated4 { type ipv4_addr; counter }                (those of their tunnel devices)
//!     chain prerouting {
//!         type filter hook prerouting priority -399
//!         udp dport 4789 ip saddr . INNER-SADDR @received4
//!         iifname "vxlan.calico" ip saddr @decapsulated4
//!     }
//!     chain postrouting {
//!         type filter hook postrouting priority 2147483646
//!         udp dport 4789 INNER-SADDR OWN-TUNNEL-ADDRESS ip daddr @sent4
//!     }
//! }
//! ```
//!
//! and the same for IPv6. Each counts what comes from the address of the sender's tunnel device: probes, their answers, and what the
//! node itself sends to pods. So both ends count the same packets, whatever their pods send meanwhile. The table belongs to the
//! probes' socket: no other program changes it, and it ends with the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use russet_addr::{Family, IfName, NodeName};
use russet_nft::{
    Chain, ChainKind, CmpOp, CommitError, Element, Expr, Hook, KeyPart, KeyType, L4, NetlinkError, Nft,
    PayloadBase, Register, Rule, Set, Table, Transaction,
};
use russet_overlay::device_name;
use serde::{Deserialize, Serialize};

/// Encapsulated packets that this node has counted between itself and a peer that does not answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encapsulated {
    /// Sent to the peer: they have passed all rules of this node.
    pub sent: u64,
    /// Received from it: no rule of this node has seen them yet.
    pub received: u64,
    /// Of those, what has come out of the tunnel.
    pub decapsulated: u64,
    /// For how long they have been counted.
    pub for_s: u64,
}

/// One family of one peer.
pub type PeerKey = (NodeName, Family);

/// The addresses of a peer by which its packets are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// Its own address.
    pub underlay: IpAddr,
    /// That of its tunnel device.
    pub tunnel: IpAddr,
}

/// What encapsulated packets of this node look like.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Own {
    /// The UDP port.
    pub port: u16,
    /// The addresses of this node's tunnel devices.
    pub tunnels: BTreeMap<Family, IpAddr>,
}

/// The table, while there is one.
#[derive(Default)]
pub struct Counters {
    /// The socket to which the table belongs.
    nft: Option<Nft>,
    own: Own,
    peers: BTreeMap<PeerKey, Counted>,
    /// What was read last, and when.
    read: Option<(Instant, BTreeMap<PeerKey, Encapsulated>)>,
    failed_at: Option<Instant>,
}

struct Counted {
    ends: Ends,
    since: Instant,
}

/// What a set counts. The order is that in which they are read: what has arrived is not less than what has come out of the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Decapsulated,
    Received,
    Sent,
}

#[derive(Debug, thiserror::Error)]
enum CountError {
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Commit(#[from] CommitError),
}

/// The most peers, of both families together, that are counted: as many as a record of the agent names.
pub const PEERS_MAX: usize = 16;
/// Counters are read at most so often.
const LOOK: Duration = Duration::from_secs(1);
/// The pause after the kernel has refused the table: it may have no nf_tables, or no tables with owners (Linux 5.12).
const RETRY: Duration = Duration::from_secs(60);
/// Behind defragmentation (`NF_IP_PRI_CONNTRACK_DEFRAG`, -400), before raw chains.
const FIRST: i32 = -399;
/// Before the confirmation of connections, which drops nothing that rules decide.
const LAST: i32 = i32::MAX - 1;
const PREROUTING: &str = "prerouting";
const POSTROUTING: &str = "postrouting";
/// From the UDP header to the inner IP header: UDP, VXLAN (RFC 7348 section 5), Ethernet.
const INNER_IP_BYTES: u32 = 8 + 8 + 14;

fn table() -> Table {
    Table::inet("russet-peers")
}

/// The offset of the source address in an IP header, and its length.
const fn saddr(family: Family) -> (u32, u32) {
    match family {
        Family::V4 => (12, 4),
        Family::V6 => (8, 16),
    }
}

// === impl Counters ===

impl Counters {
    /// Counts for these peers from now on, and for no others. What is counted for those that stay goes on.
    pub fn follow(&mut self, own: &Own, wanted: &BTreeMap<PeerKey, Ends>, now: Instant) {
        let has = self.peers.iter().map(|(key, counted)| (key, &counted.ends));
        if has.eq(wanted) && (*own == self.own || wanted.is_empty()) {
            return;
        }
        if wanted.is_empty() {
            self.stop();
            return;
        }
        if self.failed_at.is_some_and(|at| now.saturating_duration_since(at) < RETRY) {
            return;
        }
        match self.change(own, wanted) {
            Ok(()) => {
                let mut before = std::mem::take(&mut self.peers);
                let mut counted = |(key, ends): (&PeerKey, &Ends)| {
                    let same = before.remove(key).filter(|it| it.ends == *ends);
                    (key.clone(), same.unwrap_or(Counted { ends: *ends, since: now }))
                };
                self.peers = wanted.iter().map(&mut counted).collect();
                (self.read, self.failed_at) = (None, None);
            }
            Err(error) => self.fail(&error, now),
        }
    }

    /// What was counted for each peer, at most [`LOOK`] ago.
    pub fn look(&mut self, now: Instant) -> BTreeMap<PeerKey, Encapsulated> {
        let Some(nft) = self.nft.as_mut() else { return BTreeMap::new() };
        if let Some((_, read)) =
            self.read.as_ref().filter(|(at, _)| now.saturating_duration_since(*at) < LOOK)
        {
            return read.clone();
        }
        match read(nft, &self.peers, now) {
            Ok(read) => {
                self.read = Some((now, read.clone()));
                read
            }
            Err(error) => {
                self.fail(&error, now);
                BTreeMap::new()
            }
        }
    }

    /// Removes the table.
    fn stop(&mut self) {
        self.peers.clear();
        self.read = None;
        if let Some(mut nft) = self.nft.take()
            && let Err(error) = nft.commit(Transaction::new().delete_table(&table()))
        {
            // It goes with the socket.
            tracing::debug!(%error, "the table for packets of peers was not removed");
        }
    }

    fn fail(&mut self, error: &CountError, now: Instant) {
        tracing::debug!(%error, "encapsulated packets of peers that do not answer are not counted");
        self.stop();
        self.failed_at = Some(now);
    }

    fn change(&mut self, own: &Own, wanted: &BTreeMap<PeerKey, Ends>) -> Result<(), CountError> {
        let new = elements(wanted.iter());
        if let Some(nft) = self.nft.as_mut().filter(|_| *own == self.own) {
            let old = elements(self.peers.iter().map(|(key, counted)| (key, &counted.ends)));
            let mut change = Transaction::new();
            for (place, family, key) in old.difference(&new) {
                change.delete_elements(&set(*place, *family), &[Element::concatenation(key.clone())]);
            }
            add_elements(&mut change, new.difference(&old));
            return Ok(nft.commit(&change)?);
        }
        self.stop();
        let mut nft = Nft::open()?;
        let mut change = created(own);
        add_elements(&mut change, new.iter());
        nft.commit(&change)?;
        (self.nft, self.own) = (Some(nft), own.clone());
        Ok(())
    }
}

// === impl Place ===

impl Place {
    const ALL: [Self; 3] = [Self::Decapsulated, Self::Received, Self::Sent];

    fn key(self, ends: &Ends) -> Vec<KeyPart> {
        match self {
            Self::Sent => vec![ends.underlay.into()],
            Self::Received => vec![ends.underlay.into(), ends.tunnel.into()],
            Self::Decapsulated => vec![ends.tunnel.into()],
        }
    }
}

fn set(place: Place, family: Family) -> Set {
    let address = KeyType::address(family);
    let (name, key) = match (place, family) {
        (Place::Sent, Family::V4) => ("sent4", vec![address]),
        (Place::Sent, Family::V6) => ("sent6", vec![address]),
        (Place::Received, Family::V4) => ("received4", vec![address; 2]),
        (Place::Received, Family::V6) => ("received6", vec![address; 2]),
        (Place::Decapsulated, Family::V4) => ("decapsulated4", vec![address]),
        (Place::Decapsulated, Family::V6) => ("decapsulated6", vec![address]),
    };
    Set::new(&table(), name, key).counter()
}

/// The elements of all sets: two peers may name the same address.
fn elements<'a>(
    peers: impl Iterator<Item = (&'a PeerKey, &'a Ends)>,
) -> BTreeSet<(Place, Family, Vec<KeyPart>)> {
    let of =
        |((_, family), ends): (&PeerKey, &Ends)| Place::ALL.map(|place| (place, *family, place.key(ends)));
    peers.flat_map(of).collect()
}

fn add_elements<'a>(
    change: &mut Transaction,
    elements: impl Iterator<Item = &'a (Place, Family, Vec<KeyPart>)>,
) {
    for (place, family, key) in elements {
        change.add_elements(&set(*place, *family), &[Element::concatenation(key.clone())]);
    }
}

/// The table without elements.
fn created(own: &Own) -> Transaction {
    let base = |name, hook, priority| Chain::base(&table(), name, ChainKind::Filter, hook, priority);
    let mut change = Transaction::new();
    change.add_owned_table(&table());
    let prerouting = base(PREROUTING, Hook::Prerouting, FIRST);
    let postrouting = base(POSTROUTING, Hook::Postrouting, LAST);
    change.add_chain(&prerouting).add_chain(&postrouting);
    for (family, tunnel) in &own.tunnels {
        Place::ALL.into_iter().for_each(|place| _ = change.add_set(&set(place, *family)));
        let outer = |chain: &Chain| Rule::new(chain).family(*family).protocol(L4::Udp).dport(own.port);
        let (offset, len) = saddr(*family);
        let network = |to| Expr::Payload { base: PayloadBase::Network, offset, len, to };
        let inner = |to| {
            let offset = INNER_IP_BYTES + offset;
            Expr::Payload { base: PayloadBase::Transport, offset, len, to }
        };
        let found = |place| {
            let set = set(place, *family).name;
            Expr::Lookup { set, key: Register::FIRST, not: false }
        };
        // A register has 4 bytes.
        let second = Register(u8::try_from(len / 4).unwrap_or(Register::SECOND.0));
        let received = outer(&prerouting).expr(network(Register::FIRST)).expr(inner(second));
        change.add_rule(&received.expr(found(Place::Received)));
        if let Ok(device) = IfName::new(device_name(*family)) {
            let name = set(Place::Decapsulated, *family).name;
            change.add_rule(&Rule::new(&prerouting).iif(&device).saddr_in(*family, name));
        }
        let from_us = Expr::Cmp { op: CmpOp::Eq, register: Register::FIRST, value: octets(*tunnel) };
        let sent = outer(&postrouting).expr(inner(Register::FIRST)).expr(from_us);
        change.add_rule(&sent.daddr_in(*family, set(Place::Sent, *family).name));
    }
    change
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn read(
    nft: &mut Nft,
    peers: &BTreeMap<PeerKey, Counted>,
    now: Instant,
) -> Result<BTreeMap<PeerKey, Encapsulated>, CountError> {
    let families: BTreeSet<Family> = peers.keys().map(|(_, family)| *family).collect();
    let mut packets = BTreeMap::new();
    for place in Place::ALL {
        for family in &families {
            let counted = nft.counted(&set(place, *family))?;
            packets
                .extend(counted.into_iter().map(|(element, count)| ((place, *family, element.key), count)));
        }
    }
    let of = |(key, counted): (&PeerKey, &Counted)| {
        let count = |place: Place| packets.get(&(place, key.1, place.key(&counted.ends))).copied();
        let found = Encapsulated {
            sent: count(Place::Sent)?,
            received: count(Place::Received)?,
            decapsulated: count(Place::Decapsulated)?,
            for_s: now.saturating_duration_since(counted.since).as_secs(),
        };
        Some((key.clone(), found))
    };
    Ok(peers.iter().filter_map(of).collect())
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use russet_testkit::{eventually, in_netns_with_loopback, run};

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn own() -> Own {
        let tunnels = [(Family::V4, address("10.244.0.1")), (Family::V6, address("fd01::1"))];
        Own { port: 4789, tunnels: tunnels.into() }
    }

    fn peer(name: &str, underlay: &str, tunnel: &str) -> (PeerKey, Ends) {
        let (underlay, tunnel) = (address(underlay), address(tunnel));
        ((NodeName::new(name).unwrap(), Family::of(underlay)), Ends { underlay, tunnel })
    }

    /// A tunnel packet whose inner packet has this source.
    fn packet(inner: IpAddr) -> Vec<u8> {
        let mut packet = vec![0; 22];
        let before = saddr(Family::of(inner)).0 as usize;
        packet.extend(vec![0; before]);
        packet.extend(octets(inner));
        packet.extend(vec![0; 30]);
        packet
    }

    /// Sends `count` tunnel packets with outer and inner addresses.
    fn send(from: &str, to: &str, inner: &str, count: usize) {
        let socket = UdpSocket::bind((address(from), 0)).unwrap();
        (0..count).for_each(|_| _ = socket.send_to(&packet(address(inner)), (address(to), 4789)));
    }

    fn tables() -> usize {
        Nft::open().unwrap().tables().unwrap().len()
    }

    #[test]
    #[ignore = "kernel: nf_tables, root; tool: ip, nft"]
    fn packets_are_counted_for_peers_by_outer_and_inner_addresses_while_there_is_such_a_peer() {
        in_netns_with_loopback(|| {
            run("ip", &["address", "add", "fd00::2/128", "dev", "lo", "nodad"]);
            run("ip", &["address", "add", "fd00::3/128", "dev", "lo", "nodad"]);
            let (mut counters, now) = (Counters::default(), Instant::now());
            counters.follow(&own(), &BTreeMap::new(), now);
            assert_eq!(tables(), 0);
            let b = peer("b", "127.0.0.2", "10.244.2.1");
            let six = peer("b", "fd00::2", "fd01::2");
            let wanted = BTreeMap::from([b.clone(), six.clone()]);
            counters.follow(&own(), &wanted, now);
            assert_eq!(tables(), 1);
            send("127.0.0.1", "127.0.0.2", "10.244.0.1", 3);
            // Of a pod, and to another peer.
            send("127.0.0.1", "127.0.0.2", "10.244.0.9", 1);
            send("127.0.0.1", "127.0.0.3", "10.244.0.1", 1);
            send("127.0.0.2", "127.0.0.1", "10.244.2.1", 2);
            send("127.0.0.2", "127.0.0.1", "10.244.2.9", 1);
            send("127.0.0.3", "127.0.0.1", "10.244.2.1", 1);
            send("fd00::3", "fd00::2", "fd01::1", 4);
            send("fd00::2", "fd00::3", "fd01::2", 5);
            let later = now + Duration::from_secs(7);
            let counted = |sent, received, for_s| Encapsulated { sent, received, decapsulated: 0, for_s };
            // The kernel may receive what was sent on a loopback a moment later.
            eventually(Duration::from_secs(10), || counters.look(later)[&six.0].received == 5);
            let found = counters.look(later);
            assert_eq!((found[&b.0], found[&six.0]), (counted(3, 2, 7), counted(4, 5, 7)));
            // Another program cannot take it away, and a peer that stays is counted on.
            run("nft", &["flush", "ruleset"]);
            assert_eq!(tables(), 1);
            let c = peer("c", "127.0.0.3", "10.244.3.1");
            counters.follow(&own(), &BTreeMap::from([b.clone(), c.clone()]), later);
            send("127.0.0.1", "127.0.0.3", "10.244.0.1", 1);
            let found = counters.look(later);
            assert_eq!((found[&b.0], found[&c.0]), (counted(3, 2, 7), counted(1, 0, 0)));
            assert_eq!(found.len(), 2);
            counters.follow(&own(), &BTreeMap::new(), later);
            assert_eq!((tables(), counters.look(later).len()), (0, 0));
            // With the thread, the table goes.
            counters.follow(&own(), &wanted, later);
            assert_eq!(tables(), 1);
            drop(counters);
            assert_eq!(tables(), 0);
        });
    }
}
