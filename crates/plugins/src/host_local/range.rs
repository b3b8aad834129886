//! Ranges of addresses, parsed and completed as the Go plugin does (cni-runtime.md section 5.1),
//! and the order in which their addresses are allocated. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use russet_addr::{Family, IpNet};
use serde_json::{Map, Value};

/// A range of addresses of one subnet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// Without host bits.
    pub subnet: IpNet,
    /// The first address; may be the gateway, which is skipped.
    pub start: IpAddr,
    /// The last address.
    pub end: IpAddr,
    /// Never allocated.
    pub gateway: IpAddr,
}

/// Ranges of one family, from which a container gets one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeSet(Vec<Range>);

/// Host bits that a subnet must have: one with a longer prefix than /30 or /126 has no address for
/// a container besides the gateway's.
const SPARE_BITS: u8 = 2;

// === impl Range ===

impl Range {
    /// Reads a range from `object`, whose keys are compared case-insensitively, because containerd
    /// capitalises them.
    pub fn read(object: &Map<String, Value>) -> Result<Self, String> {
        let text = |key: &str| {
            let found = object.iter().find(|(known, _)| known.eq_ignore_ascii_case(key));
            match found.map(|(_, value)| value) {
                None | Some(Value::Null) => Ok(None),
                Some(Value::String(text)) => Ok(Some(text.as_str()).filter(|text| !text.is_empty())),
                Some(other) => Err(format!("{key}: text is wanted, found {other}")),
            }
        };
        let address = |key: &str| {
            let parse = |text: &str| text.parse::<IpAddr>().map(|ip| ip.to_canonical());
            text(key)?
                .map(|text| parse(text).map_err(|_| format!("{key}: {text:?} is no IP address")))
                .transpose()
        };
        let subnet = text("subnet")?.ok_or("subnet is missing")?;
        let net: IpNet = subnet.parse().map_err(|_| format!("subnet: {subnet:?} is no prefix"))?;
        Self::new(net, address("rangeStart")?, address("rangeEnd")?, address("gateway")?)
    }

    fn new(
        subnet: IpNet,
        start: Option<IpAddr>,
        end: Option<IpAddr>,
        gateway: Option<IpAddr>,
    ) -> Result<Self, String> {
        if subnet.prefix_len() > subnet.max_prefix_len() - SPARE_BITS {
            return Err(format!("network {subnet} too small to allocate from"));
        }
        if subnet.trunc() != subnet {
            return Err(format!("network {subnet} has host bits set, use {}", subnet.trunc()));
        }
        let family = Family::of_net(&subnet);
        let first = address(family, number(subnet.network()) + 1);
        let default_end = match family {
            Family::V4 => address(family, number(subnet.broadcast()) - 1),
            Family::V6 => subnet.broadcast(),
        };
        let range = Self {
            subnet,
            start: start.unwrap_or(first),
            end: end.unwrap_or(default_end),
            gateway: gateway.unwrap_or(first),
        };
        for (key, address) in
            [("gateway", range.gateway), ("rangeStart", range.start), ("rangeEnd", range.end)]
        {
            if !subnet.contains(&address) {
                return Err(format!("{key} {address} is not in network {subnet}"));
            }
        }
        if range.start > range.end {
            return Err(format!("rangeStart {} is after rangeEnd {}", range.start, range.end));
        }
        Ok(range)
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        (self.start..=self.end).contains(&address)
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.family() == other.family() && self.start <= other.end && other.start <= self.end
    }

    fn family(&self) -> Family {
        Family::of_net(&self.subnet)
    }
}

// === impl RangeSet ===

impl RangeSet {
    /// Creates a set of ranges; they must be of one family and must not overlap.
    pub fn new(ranges: Vec<Range>) -> Result<Self, String> {
        let Some(first) = ranges.first() else { return Err("it is empty".to_owned()) };
        if let Some(other) = ranges.iter().find(|range| range.family() != first.family()) {
            return Err(format!("{} and {} are of different families", first.subnet, other.subnet));
        }
        for (index, range) in ranges.iter().enumerate() {
            if let Some(other) = ranges.iter().take(index).find(|other| range.overlaps(other)) {
                return Err(format!("{} overlaps {}", other.subnet, range.subnet));
            }
        }
        Ok(Self(ranges))
    }

    /// The family of all its ranges.
    pub fn family(&self) -> Family {
        self.0.first().map_or(Family::V4, Range::family)
    }

    /// The range that contains the address.
    pub fn range_of(&self, address: IpAddr) -> Option<&Range> {
        self.0.iter().find(|range| range.contains(address))
    }

    /// Whether the sets have an address in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().any(|range| other.0.iter().any(|it| range.overlaps(it)))
    }

    /// The next free address in cyclic order after `last`; `last` itself comes last, so that a
    /// container that fails again and again does not get the same address each time. The search
    /// takes at most one step more than there are allocated addresses, so it is fast in a large
    /// range, too.
    pub fn next_free(&self, last: Option<IpAddr>, taken: &BTreeSet<IpAddr>) -> Option<(IpAddr, &Range)> {
        let before =
            last.and_then(|last| Some((last, self.0.iter().position(|range| range.contains(last))?)));
        let from = |range: &Range, first: u128, end: IpAddr| {
            (first..=number(end)).map(|it| address(range.family(), it)).find(|it| is_free(*it, range, taken))
        };
        let whole = |range: &Range| from(range, number(range.start), range.end);
        let Some((last, at)) = before else {
            return self.0.iter().find_map(|range| Some((whole(range)?, range)));
        };
        let (earlier, rest) = self.0.split_at_checked(at)?;
        let (here, later) = rest.split_first()?;
        if let Some(found) = from(here, number(last).saturating_add(1), here.end).filter(|_| last < here.end)
        {
            return Some((found, here));
        }
        let found = later.iter().chain(earlier).find_map(|range| Some((whole(range)?, range)));
        found.or_else(|| Some((from(here, number(here.start), last)?, here)))
    }

    /// Text for error messages.
    pub fn shown(&self) -> String {
        let ranges: Vec<String> =
            self.0.iter().map(|range| format!("{}-{}", range.start, range.end)).collect();
        ranges.join(",")
    }
}

fn is_free(address: IpAddr, range: &Range, taken: &BTreeSet<IpAddr>) -> bool {
    address != range.gateway && !taken.contains(&address)
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_bits().into(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The address with this number; the numbers of IPv4 addresses have 32 bits.
fn address(family: Family, number: u128) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(u32::try_from(number).unwrap_or(u32::MAX).into()),
        Family::V6 => IpAddr::V6(number.into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn range(value: Value) -> Result<Range, String> {
        Range::read(value.as_object().unwrap())
    }

    fn set(values: &[Value]) -> RangeSet {
        RangeSet::new(values.iter().map(|value| range(value.clone()).unwrap()).collect()).unwrap()
    }

    fn taken(list: &[&str]) -> BTreeSet<IpAddr> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// All addresses in the order of allocation, starting after `last`.
    fn all(set: &RangeSet, last: Option<&str>) -> Vec<String> {
        let (mut taken, mut last) = (BTreeSet::new(), last.map(|last| last.parse().unwrap()));
        let mut given = Vec::new();
        while let Some((address, _)) = set.next_free(last, &taken) {
            taken.insert(address);
            given.push(address.to_string());
            last = Some(address);
        }
        given
    }

    #[test]
    fn a_range_defaults_to_all_but_the_networks_own_addresses() {
        // cni-runtime.md section 5.1
        let four = range(json!({"subnet": "10.1.2.0/24"})).unwrap();
        assert_eq!(
            [four.start, four.end, four.gateway].map(|it| it.to_string()),
            ["10.1.2.1", "10.1.2.254", "10.1.2.1"]
        );
        let six = range(json!({"Subnet": "fd00::/112", "RangeStart": "fd00::10"})).unwrap();
        assert_eq!(
            [six.start, six.end, six.gateway].map(|it| it.to_string()),
            ["fd00::10", "fd00::ffff", "fd00::1"]
        );
    }

    #[test]
    fn invalid_ranges_are_refused() {
        // cni-runtime.md sections 5.1 and 6.2 item 36
        for (bad, why) in [
            (json!({"subnet": "10.0.0.0/31"}), "too small to allocate from"),
            (json!({"subnet": "10.0.0.0/32"}), "too small to allocate from"),
            (json!({"subnet": "fd00::/127"}), "too small to allocate from"),
            (json!({"subnet": "10.0.0.5/24"}), "host bits"),
            (json!({"subnet": "10.0.0.0/24", "gateway": "10.0.1.1"}), "gateway 10.0.1.1 is not in"),
            (json!({"subnet": "10.0.0.0/24", "rangeStart": "10.0.1.1"}), "rangeStart"),
            (json!({"subnet": "10.0.0.0/24", "rangeEnd": "fd00::1"}), "rangeEnd"),
            (json!({"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.9", "rangeEnd": "10.0.0.8"}), "is after"),
            (json!({"subnet": "10.0.0.0"}), "no prefix"),
            (json!({"subnet": 7}), "text is wanted"),
            (json!({"gateway": "10.0.0.1"}), "subnet is missing"),
        ] {
            let error = range(bad.clone()).unwrap_err();
            assert!(error.contains(why), "{bad}: {error}");
        }
        let four = range(json!({"subnet": "10.0.0.0/24"})).unwrap();
        let six = range(json!({"subnet": "fd00::/64"})).unwrap();
        assert!(RangeSet::new(vec![four.clone(), six]).unwrap_err().contains("families"));
        assert!(RangeSet::new(vec![four.clone(), four]).unwrap_err().contains("overlaps"));
        assert!(RangeSet::new(Vec::new()).is_err());
        assert!(range(json!({"subnet": "0.0.0.0/0"})).is_ok() && range(json!({"subnet": "::/0"})).is_ok());
    }

    #[test]
    fn addresses_are_allocated_in_cyclic_order_after_the_last_one() {
        // cni-runtime.md section 5.1: start after last_reserved, wrap once, skip the gateway
        let set = set(&[
            json!({"subnet": "10.0.0.0/29"}),
            json!({"subnet": "10.0.1.0/24", "rangeStart": "10.0.1.7", "rangeEnd": "10.0.1.8"}),
        ]);
        let in_order = ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.1.7", "10.0.1.8"];
        assert_eq!(all(&set, None), in_order);
        let mut turned = in_order.to_vec();
        turned.rotate_left(3);
        assert_eq!(all(&set, Some("10.0.0.4")), turned);
        turned.rotate_left(3);
        assert_eq!(all(&set, Some("10.0.1.7")), turned);
        assert_eq!(all(&set, Some("10.0.1.8")), in_order);
        assert_eq!(all(&set, Some("192.0.2.1")), in_order, "of ranges that were changed");
    }

    #[test]
    fn the_next_address_of_a_huge_range_is_found_quickly() {
        let set = set(&[json!({"subnet": "::/0", "rangeStart": "fd00::"})]);
        let taken = taken(&["fd00::", "fd00::1"]);
        assert_eq!(set.next_free(None, &taken).unwrap().0.to_string(), "fd00::2");
        let end = Some("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().unwrap());
        assert_eq!(set.next_free(end, &taken).unwrap().0.to_string(), "fd00::2");
    }
}
