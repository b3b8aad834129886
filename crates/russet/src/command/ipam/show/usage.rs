//! Usage of pools and blocks, as calicoctl counts it: every address that is not free is in use
//! (calico-ipam.md section 5.2). Pure.

use ipnet::IpNet;
use russet_addr::Family;
use russet_model::{Block, IpPool};
use serde::{Serialize, Serializer};

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Usage {
    grouping: &'static str,
    cidr: String,
    #[serde(serialize_with = "number")]
    total: u128,
    #[serde(serialize_with = "number")]
    in_use: u128,
    #[serde(serialize_with = "number")]
    free: u128,
    #[serde(skip_serializing_if = "Option::is_none")]
    affinity: Option<String>,
}

/// One row per pool, each followed by its blocks if `show_blocks` is set. Blocks outside of all
/// pools come last, and always, since nothing else shows them.
pub fn usage(pools: &[IpPool], blocks: &[Block], show_blocks: bool) -> Vec<Usage> {
    let mut rows = Vec::new();
    for pool in pools {
        let cidr = pool.spec.cidr;
        let inside = || blocks.iter().filter(|block| cidr.contains(&block.cidr.net()));
        let in_use = inside().map(used).sum();
        rows.push(Usage::new("IP Pool", cidr, in_use, None));
        rows.extend(inside().filter(|_| show_blocks).map(row));
    }
    let outside = |block: &&Block| !pools.iter().any(|pool| pool.spec.cidr.contains(&block.cidr.net()));
    rows.extend(blocks.iter().filter(outside).map(row));
    rows
}

fn row(block: &Block) -> Usage {
    Usage::new("Block", block.cidr.net(), used(block), block.affinity.clone())
}

fn used(block: &Block) -> u128 {
    (block.cidr.size() - block.unallocated.len()) as u128
}

/// How many addresses a prefix has; ::/0 has one more than `u128` can count.
fn size(cidr: IpNet) -> u128 {
    let host_bits = Family::of_net(&cidr).bits() - cidr.prefix_len();
    1_u128.checked_shl(u32::from(host_bits)).unwrap_or(u128::MAX)
}

/// JSON has numbers of any size, but serde_json's `Value` does not.
fn number<S: Serializer>(value: &u128, serializer: S) -> Result<S::Ok, S::Error> {
    let raw = serde_json::value::RawValue::from_string(value.to_string());
    raw.map_err(serde::ser::Error::custom)?.serialize(serializer)
}

// === impl Usage ===

impl Usage {
    /// The columns; the last is for wide tables.
    pub const HEADING: [&'static str; 6] =
        ["GROUPING", "CIDR", "IPS TOTAL", "IPS IN USE", "IPS FREE", "AFFINITY"];

    fn new(grouping: &'static str, cidr: IpNet, in_use: u128, affinity: Option<String>) -> Self {
        let total = size(cidr);
        let free = total.saturating_sub(in_use);
        Self { grouping, cidr: cidr.to_string(), total, in_use, free, affinity }
    }

    pub fn row(&self, wide: bool) -> Vec<String> {
        let share = |part: u128| format!("{part} ({}%)", percent(part, self.total));
        let numbers = [self.total.to_string(), share(self.in_use), share(self.free)];
        let affinity = wide.then(|| self.affinity.clone().unwrap_or_else(|| "-".to_owned()));
        [self.grouping.to_owned(), self.cidr.clone()].into_iter().chain(numbers).chain(affinity).collect()
    }
}

/// Rounded to the nearest whole number.
fn percent(part: u128, total: u128) -> u128 {
    match part.checked_mul(100) {
        Some(hundredfold) => (hundredfold + total / 2) / total,
        None => part / (total / 100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use russet_model::IpPoolSpec;

    #[test]
    fn pools_blocks_and_what_is_outside_are_rows() {
        // calico-ipam.md section 5.2: a block that cools down or is reserved counts as used
        let block = |text: &str| Block::decode(text.as_bytes()).unwrap();
        let blocks = [
            block(
                r#"{"cidr":"10.1.0.0/30","affinity":"host:a","allocations":[0,null,null,null],"unallocated":[1,2,3],"attributes":[{"releasedAt":"2026-01-02T03:10:00Z"}]}"#,
            ),
            block(
                r#"{"cidr":"10.9.0.0/31","affinity":null,"allocations":[null,null],"unallocated":[0,1],"attributes":[]}"#,
            ),
        ];
        let pool = |cidr: &str| IpPool::new("p", IpPoolSpec::new(cidr.parse().unwrap()));
        let rows = usage(&[pool("10.1.0.0/24"), pool("fd00::/48")], &blocks, true);
        let text: Vec<String> = rows.iter().map(|row| row.row(false).join(" ")).collect();
        assert_eq!(
            text,
            [
                "IP Pool 10.1.0.0/24 256 1 (0%) 255 (100%)",
                "Block 10.1.0.0/30 4 1 (25%) 3 (75%)",
                "IP Pool fd00::/48 1208925819614629174706176 0 (0%) 1208925819614629174706176 (100%)",
                "Block 10.9.0.0/31 2 0 (0%) 2 (100%)",
            ]
        );
        assert_eq!(usage(&[pool("10.1.0.0/24")], &blocks, false).len(), 2);
        let json = serde_json::to_string(&rows[2]).unwrap();
        assert!(json.contains(r#""total":1208925819614629174706176,"#), "{json}");
    }

    #[test]
    fn even_the_whole_of_ipv6_has_a_size() {
        assert_eq!(Usage::new("IP Pool", "::/0".parse().unwrap(), 7, None).row(false)[3], "7 (0%)");
    }
}
