//! Prefixes found by what they cover: the pools, the claimed blocks and the ranges that cannot be
//! claimed. Used by the pure part, which searches once per block and must not scan a list each
//! time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use russet_addr::{Family, IpNet, Ipv4Net, Ipv6Net, host_net};

/// A map from prefixes that finds the prefix covering another one. A lookup costs one search per
/// distinct prefix length.
#[derive(Debug, Clone)]
pub(crate) struct PrefixMap<T> {
    entries: BTreeMap<IpNet, T>,
    lengths: BTreeSet<(Family, u8)>,
}

/// Single addresses that a claim must not cover.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProtectedAddresses(BTreeSet<IpAddr>);

const fn v4(a: u8, b: u8, c: u8, d: u8, len: u8) -> Ipv4Net {
    Ipv4Net::new_assert(std::net::Ipv4Addr::new(a, b, c, d), len)
}

const fn v6(first: u16, sixth: u16, len: u8) -> Ipv6Net {
    Ipv6Net::new_assert(std::net::Ipv6Addr::new(first, 0, 0, 0, 0, sixth, 0, 0), len)
}

/// Ranges that can hold neither pods nor nodes (RFC 6890): this network, loopback, link-local
/// (169.254.1.1 is every pod's gateway), multicast, limited broadcast. 240.0.0.0/4 is absent:
/// clouds assign it to pods.
const RESERVED_V4: [Ipv4Net; 5] = [
    v4(0, 0, 0, 0, 8),
    v4(127, 0, 0, 0, 8),
    v4(169, 254, 0, 0, 16),
    v4(224, 0, 0, 0, 4),
    v4(255, 255, 255, 255, 32),
];

/// The same for IPv6: unspecified and loopback, IPv4-mapped, link-local, multicast.
const RESERVED_V6: [Ipv6Net; 4] = [v6(0, 0, 127), v6(0, 0xffff, 96), v6(0xfe80, 0, 10), v6(0xff00, 0, 8)];

/// Whether `net` has an address in common with a range that can hold neither pods nor nodes.
pub(crate) fn is_reserved(net: &IpNet) -> bool {
    match net {
        IpNet::V4(net) => RESERVED_V4.iter().any(|range| range.contains(net) || net.contains(range)),
        IpNet::V6(net) => RESERVED_V6.iter().any(|range| range.contains(net) || net.contains(range)),
    }
}

pub(crate) fn is_usable(address: IpAddr) -> bool {
    !is_reserved(&host_net(address))
}

// === impl PrefixMap ===

impl<T> Default for PrefixMap<T> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), lengths: BTreeSet::new() }
    }
}

impl<T> PrefixMap<T> {
    /// Inserts `value` at `net`, which must have no host bits.
    pub(crate) fn insert(&mut self, net: IpNet, value: T) -> Option<T> {
        self.lengths.insert((Family::of_net(&net), net.prefix_len()));
        self.entries.insert(net, value)
    }

    pub(crate) fn get(&self, net: &IpNet) -> Option<&T> {
        self.entries.get(net)
    }

    /// All entries, in the order of their prefixes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&IpNet, &T)> {
        self.entries.iter()
    }

    /// The longest entry that covers all of `net`, which may be `net` itself.
    pub(crate) fn covering(&self, net: &IpNet) -> Option<(&IpNet, &T)> {
        let family = Family::of_net(net);
        let lengths = self.lengths.range((family, 0)..=(family, net.prefix_len()));
        lengths.rev().find_map(|&(_, len)| {
            let candidate = IpNet::new(net.addr(), len).ok()?.trunc();
            self.entries.get_key_value(&candidate)
        })
    }
}

// === impl ProtectedAddresses ===

impl ProtectedAddresses {
    pub(crate) fn insert(&mut self, address: IpAddr) {
        self.0.insert(address);
    }

    /// The first guarded address that `net` covers.
    pub(crate) fn covered_by(&self, net: &IpNet) -> Option<IpAddr> {
        self.0.range(net.network()..=net.broadcast()).next().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn the_longest_covering_prefix_is_found() {
        let mut map = PrefixMap::default();
        for text in ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "fd00::/8"] {
            map.insert(net(text), text);
        }
        for (asked, found) in [
            ("10.1.2.0/26", Some("10.1.2.0/24")),
            ("10.1.2.0/24", Some("10.1.2.0/24")),
            ("10.1.0.0/23", Some("10.1.0.0/16")),
            ("10.0.0.0/8", Some("10.0.0.0/8")),
            ("10.0.0.0/7", None),
            ("11.0.0.0/26", None),
            ("fd01::/122", Some("fd00::/8")),
        ] {
            assert_eq!(map.covering(&net(asked)).map(|(_, text)| *text), found, "{asked}");
        }
    }

    #[test]
    fn ranges_that_can_hold_no_pod_are_reserved() {
        for text in [
            "0.0.0.0/0",
            "127.0.0.0/26",
            "169.254.1.0/26",
            "224.0.0.0/26",
            "239.1.2.0/24",
            "255.255.255.192/26",
            "0.0.0.0/32",
            "::/0",
            "::1/128",
            "::ffff:10.0.0.0/122",
            "fe80::/122",
            "ff02::/122",
        ] {
            assert!(is_reserved(&net(text)), "{text}");
        }
        for text in ["10.1.0.0/26", "240.0.0.0/26", "100.64.0.0/10", "fd00::/122", "2001:db8::/64"] {
            assert!(!is_reserved(&net(text)), "{text}");
        }
    }

    #[test]
    fn a_guarded_address_is_found_at_either_end() {
        let mut protected = ProtectedAddresses::default();
        protected.insert("10.1.0.63".parse().unwrap());
        assert_eq!(protected.covered_by(&net("10.1.0.0/26")), Some("10.1.0.63".parse().unwrap()));
        assert_eq!(protected.covered_by(&net("10.1.0.63/32")), Some("10.1.0.63".parse().unwrap()));
        assert_eq!(protected.covered_by(&net("10.1.0.64/26")), None);
        assert_eq!(protected.covered_by(&net("fd00::/64")), None);
    }
}
