//! A node's ranges of pods' addresses.

use russet_addr::{BlockCidr, Family, IpNet};
use serde_json::Value;

/// The first of a node's `podCIDRs` of each family. IPv4 first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges([Option<IpNet>; 2]);

/// Addresses that a node uses of a range: 2^10 is enough for the pods of any node, and IPv6 ranges
/// are usually a /64.
const USED_BITS: u8 = 10;
/// Addresses of a block: 2^8. A change of a block writes the whole block.
const BLOCK_BITS: u8 = 8;

/// The prefix length of the blocks of a range.
pub fn block_prefix_len(range: IpNet) -> u8 {
    range.prefix_len().max(Family::of_net(&range).bits() - BLOCK_BITS)
}

// === impl Ranges ===

impl Ranges {
    /// Those in a node's record; text that is no prefix counts as missing.
    pub fn of(value: &[u8]) -> Self {
        let node: Value = serde_json::from_slice(value).unwrap_or_default();
        let texts = node.pointer("/status/podCIDRs").and_then(Value::as_array).into_iter().flatten();
        let nets: Vec<IpNet> = texts.filter_map(|text| text.as_str()?.parse().ok()).collect();
        let first = |family| nets.iter().find(|net| Family::of_net(net) == family).map(IpNet::trunc);
        Self(Family::BOTH.map(first))
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().flatten().next().is_none()
    }

    pub fn ipv4(&self) -> Option<IpNet> {
        self.0[0]
    }

    pub fn ipv6(&self) -> Option<IpNet> {
        self.0[1]
    }

    /// The part of each range that pods get addresses of: its beginning.
    pub fn used(&self) -> impl Iterator<Item = IpNet> {
        self.0.iter().flatten().filter_map(|range| {
            let longest = Family::of_net(range).bits() - USED_BITS;
            IpNet::new(range.addr(), range.prefix_len().max(longest)).ok()
        })
    }

    /// The same, as other nodes route it.
    pub fn routed(&self) -> impl Iterator<Item = BlockCidr> {
        self.used().filter_map(|net| BlockCidr::new(net).ok())
    }

    /// The blocks in it.
    pub fn blocks(&self) -> impl Iterator<Item = BlockCidr> {
        self.used().flat_map(|net| {
            let length = block_prefix_len(net);
            (0..BlockCidr::count_in(net, length))
                .filter_map(move |index| BlockCidr::nth_in(net, length, index))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(texts: &[&str]) -> Ranges {
        Ranges::of(serde_json::json!({ "status": { "podCIDRs": texts } }).to_string().as_bytes())
    }

    fn texts<T: ToString>(of: impl Iterator<Item = T>) -> Vec<String> {
        of.map(|each| each.to_string()).collect()
    }

    #[test]
    fn the_usual_ranges_are_a_block_and_the_beginning_of_a_64() {
        let ranges = ranges(&["10.244.3.0/24", "fd00:10:244:3::/64"]);
        assert_eq!(texts(ranges.used()), ["10.244.3.0/24", "fd00:10:244:3::/118"]);
        assert_eq!(texts(ranges.routed()), ["10.244.3.0/24", "fd00:10:244:3::/118"]);
        assert_eq!(
            texts(ranges.blocks()),
            [
                "10.244.3.0/24",
                "fd00:10:244:3::/120",
                "fd00:10:244:3::100/120",
                "fd00:10:244:3::200/120",
                "fd00:10:244:3::300/120"
            ]
        );
    }

    #[test]
    fn small_ranges_are_one_block_and_large_ones_four() {
        assert_eq!(texts(ranges(&["10.0.0.16/28"]).blocks()), ["10.0.0.16/28"]);
        assert_eq!(texts(ranges(&["10.0.0.0/16"]).used()), ["10.0.0.0/22"]);
        assert_eq!(ranges(&["10.0.0.0/16"]).blocks().count(), 4);
    }

    #[test]
    fn what_is_no_prefix_counts_as_missing() {
        assert!(ranges(&["none", ""]).is_empty());
        assert!(Ranges::of(b"{}").is_empty() && Ranges::of(b"no JSON").is_empty());
        assert_eq!(ranges(&["10.1.2.9/24", "10.9.0.0/24"]).ipv4().unwrap().to_string(), "10.1.2.0/24");
    }
}
