//! Finds the peer of a destination, and tells peers from other senders. It changes rarely, with the
//! leases, and the threads read it for every packet.
//!
//! A change builds the whole table anew (15,000 leases: some hundred microseconds). Readers keep
//! the last table and compare a generation number to notice a newer one, so reading takes no lock.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use russet_addr::Ipv4Net;

/// The table and its writers.
#[derive(Debug, Default)]
pub(super) struct Peers {
    state: Mutex<TableState>,
    /// Number of changes.
    generation: AtomicU64,
}

/// One reader's view of a [`Peers`].
#[derive(Debug)]
pub(super) struct Reader {
    peers: Arc<Peers>,
    seen: u64,
    ranges: Arc<Ranges>,
    senders: Arc<[Ipv4Addr]>,
}

#[derive(Debug, Default)]
struct TableState {
    /// By base address and length of the prefix.
    subnets: BTreeMap<(u32, u8), Ipv4Addr>,
    ranges: Arc<Ranges>,
    /// All peers, sorted.
    senders: Arc<[Ipv4Addr]>,
}

/// The address space, divided where the longest matching prefix changes: each entry has the first
/// address of a range and its peer.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ranges(Vec<(u32, Option<Ipv4Addr>)>);

// === impl Peers ===

impl Peers {
    /// Routes a subnet to this peer.
    pub(super) fn put(&self, subnet: Ipv4Net, via: Ipv4Addr) {
        self.change(|subnets| subnets.insert(key(subnet), via) != Some(via));
    }

    /// Removes the route of a subnet.
    pub(super) fn remove(&self, subnet: Ipv4Net) {
        self.change(|subnets| subnets.remove(&key(subnet)).is_some());
    }

    /// Replaces all subnets.
    pub(super) fn reset(&self, all: &[(Ipv4Net, Ipv4Addr)]) {
        let wanted: BTreeMap<_, _> = all.iter().map(|(subnet, via)| (key(*subnet), *via)).collect();
        self.change(|subnets| {
            let differs = *subnets != wanted;
            *subnets = wanted;
            differs
        });
    }

    fn change(&self, apply: impl FnOnce(&mut BTreeMap<(u32, u8), Ipv4Addr>) -> bool) {
        let mut state = self.lock();
        if apply(&mut state.subnets) {
            state.ranges = Arc::new(Ranges::from_subnets(&state.subnets));
            let mut senders: Vec<Ipv4Addr> = state.subnets.values().copied().collect();
            senders.sort_unstable();
            senders.dedup();
            state.senders = senders.into();
            self.generation.fetch_add(1, Ordering::Release);
        }
    }

    fn lock(&self) -> MutexGuard<'_, TableState> {
        // A panic cannot leave the map or the table half-changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Reader ===

impl Reader {
    pub(super) fn new(peers: Arc<Peers>) -> Self {
        let (seen, ranges, senders) = {
            let state = peers.lock();
            (peers.generation.load(Ordering::Acquire), Arc::clone(&state.ranges), Arc::clone(&state.senders))
        };
        Self { peers, seen, ranges, senders }
    }

    /// The peer of the longest matching prefix.
    pub(super) fn find(&mut self, destination: Ipv4Addr) -> Option<Ipv4Addr> {
        self.refresh();
        self.ranges.find(destination)
    }

    /// Whether a peer has this address.
    pub(super) fn has_sender(&mut self, address: Ipv4Addr) -> bool {
        self.refresh();
        self.senders.binary_search(&address).is_ok()
    }

    fn refresh(&mut self) {
        if self.peers.generation.load(Ordering::Acquire) != self.seen {
            *self = Self::new(Arc::clone(&self.peers));
        }
    }
}

// === impl Ranges ===

impl Ranges {
    /// Builds the ranges from prefixes in order of their base, wide before narrow: each is inside
    /// of the one before, or behind it.
    fn from_subnets(subnets: &BTreeMap<(u32, u8), Ipv4Addr>) -> Self {
        let mut ranges = Self(Vec::with_capacity(2 * subnets.len()));
        // The prefixes around the current address, each with its last address.
        let mut open: Vec<(u32, Ipv4Addr)> = Vec::new();
        for (&(base, len), &via) in subnets {
            while open.last().is_some_and(|(end, _)| *end < base) {
                ranges.close(&mut open);
            }
            ranges.begin(base, Some(via));
            open.push((base | host_mask(len), via));
        }
        while !open.is_empty() {
            ranges.close(&mut open);
        }
        ranges
    }

    /// Ends the innermost prefix; addresses behind it belong to the one around it.
    fn close(&mut self, open: &mut Vec<(u32, Ipv4Addr)>) {
        let ended = open.pop();
        if let Some(next) = ended.and_then(|(end, _)| end.checked_add(1)) {
            let outer = open.last().filter(|(end, _)| *end >= next).map(|(_, via)| *via);
            self.begin(next, outer);
        }
    }

    fn begin(&mut self, start: u32, via: Option<Ipv4Addr>) {
        match self.0.last_mut() {
            Some(last) if last.0 == start => last.1 = via,
            _ => self.0.push((start, via)),
        }
    }

    fn find(&self, destination: Ipv4Addr) -> Option<Ipv4Addr> {
        let behind = self.0.partition_point(|(start, _)| *start <= destination.to_bits());
        self.0.get(behind.checked_sub(1)?)?.1
    }
}

fn key(subnet: Ipv4Net) -> (u32, u8) {
    (subnet.network().to_bits(), subnet.prefix_len())
}

fn host_mask(len: u8) -> u32 {
    u32::MAX.checked_shr(u32::from(len)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn net(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    fn ip(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    #[test]
    fn readers_see_changes_and_the_longest_prefix_wins() {
        let peers = Arc::new(Peers::default());
        let mut reader = Reader::new(Arc::clone(&peers));
        assert_eq!(reader.find(ip("10.1.2.3")), None);
        peers.put(net("10.1.0.0/16"), ip("1.0.0.1"));
        peers.put(net("10.1.2.7/24"), ip("1.0.0.2"));
        for (destination, via) in [
            ("10.0.255.255", None),
            ("10.1.0.0", Some("1.0.0.1")),
            ("10.1.2.0", Some("1.0.0.2")),
            ("10.1.2.255", Some("1.0.0.2")),
            ("10.1.3.0", Some("1.0.0.1")),
            ("10.2.0.0", None),
        ] {
            assert_eq!(reader.find(ip(destination)), via.map(ip), "{destination}");
        }
        peers.remove(net("10.1.2.0/24"));
        assert_eq!(reader.find(ip("10.1.2.3")), Some(ip("1.0.0.1")));
        peers.reset(&[(net("0.0.0.0/0"), ip("1.0.0.9")), (net("255.255.255.255/32"), ip("1.0.0.8"))]);
        assert_eq!(reader.find(ip("10.1.2.3")), Some(ip("1.0.0.9")));
        assert_eq!(reader.find(ip("255.255.255.255")), Some(ip("1.0.0.8")));
        peers.reset(&[]);
        assert_eq!(reader.find(ip("10.1.2.3")), None);
    }

    #[test]
    fn only_peers_are_senders() {
        let peers = Arc::new(Peers::default());
        let mut reader = Reader::new(Arc::clone(&peers));
        assert!(!reader.has_sender(ip("1.0.0.1")));
        peers.put(net("10.1.0.0/24"), ip("1.0.0.1"));
        peers.put(net("10.2.0.0/24"), ip("1.0.0.1"));
        peers.put(net("10.3.0.0/24"), ip("0.255.0.9"));
        assert!(reader.has_sender(ip("1.0.0.1")) && reader.has_sender(ip("0.255.0.9")));
        peers.remove(net("10.1.0.0/24"));
        assert!(reader.has_sender(ip("1.0.0.1")), "one of its subnets is left");
        peers.remove(net("10.2.0.0/24"));
        assert!(!reader.has_sender(ip("1.0.0.1")));
    }

    #[test]
    fn an_equal_table_is_no_change() {
        let peers = Peers::default();
        let change = || peers.put(net("10.1.0.0/16"), ip("1.0.0.1"));
        change();
        change();
        peers.remove(net("10.2.0.0/16"));
        peers.reset(&[(net("10.1.0.0/16"), ip("1.0.0.1"))]);
        assert_eq!(peers.generation.load(Ordering::Relaxed), 1);
    }

    proptest! {
        /// Few bits, so that prefixes nest and touch.
        #[test]
        fn lookups_equal_a_search_of_all_prefixes(
            all in prop::collection::vec((0u32..64, 26u8..=32, 1u32..5), 0..20),
            high: bool,
        ) {
            let base = if high { u32::MAX - 63 } else { 0 };
            let subnets: Vec<(Ipv4Net, Ipv4Addr)> = all
                .iter()
                .map(|(at, len, via)| (Ipv4Net::new((base + at).into(), *len).unwrap().trunc(), Ipv4Addr::from(*via)))
                .collect();
            let peers = Arc::new(Peers::default());
            peers.reset(&subnets);
            let mut reader = Reader::new(peers);
            for destination in (0..64).map(|at| Ipv4Addr::from(base + at)) {
                // Of two equal prefixes the later one counts.
                let longest = subnets.iter().filter(|(subnet, _)| subnet.contains(&destination)).max_by_key(|(subnet, _)| subnet.prefix_len());
                prop_assert_eq!(reader.find(destination), longest.map(|(_, via)| *via));
            }
        }
    }
}
