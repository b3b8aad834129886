//! Prefixes for addresses outside of the cluster.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use russet_addr::IpNet;

/// So many addresses of a family are written one by one.
const ADDRESSES_MAX: usize = 8;
/// No shorter prefix is made: of IPv4 as policy.md section 5.5 says, of IPv6 what a site gets (RFC 6177).
const SHORTEST_V4: u8 = 16;
const SHORTEST_V6: u8 = 48;

/// The addresses of the cluster.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub pods: BTreeSet<IpAddr>,
    pub nodes: BTreeSet<IpAddr>,
}

/// Prefixes that contain `seen`, in order: each address, or from nine of a family on the smallest prefixes that
/// cover them, which contain none of `known`. Where pods are, each address is written: its neighbours may be
/// pods of tomorrow, and it itself a tunnel or the source of masquerading.
pub(super) fn cover(seen: &BTreeSet<IpAddr>, known: &Known) -> Vec<IpNet> {
    let is_near = |address: &&IpAddr| {
        let net = net(**address, shortest(**address));
        known.pods.range(net.network()..=net.broadcast()).next().is_some()
    };
    let (near, far): (Vec<IpAddr>, Vec<IpAddr>) = seen.iter().partition(is_near);
    let known: BTreeSet<IpAddr> = known.pods.union(&known.nodes).copied().collect();
    let known: BTreeSet<IpAddr> = known.difference(seen).copied().collect();
    let (v4, v6): (Vec<IpAddr>, Vec<IpAddr>) = far.into_iter().partition(|address| address.is_ipv4());
    let mut nets: Vec<IpNet> = near.into_iter().map(IpNet::from).collect();
    for addresses in [v4, v6] {
        if addresses.len() <= ADDRESSES_MAX {
            nets.extend(addresses.into_iter().map(IpNet::from));
        } else {
            split(&addresses, &known, &mut nets);
        }
    }
    nets.sort();
    nets
}

/// Adds the smallest prefix of sorted addresses of one family, or those of its two halves.
fn split(addresses: &[IpAddr], known: &BTreeSet<IpAddr>, nets: &mut Vec<IpNet>) {
    let [first, .., last] = addresses else {
        nets.extend(addresses.iter().copied().map(IpNet::from));
        return;
    };
    let len = match first {
        IpAddr::V4(_) => common(*first, *last).saturating_sub(96),
        IpAddr::V6(_) => common(*first, *last),
    };
    let net = net(*first, len);
    if len >= shortest(*first) && known.range(net.network()..=net.broadcast()).next().is_none() {
        nets.push(net);
        return;
    }
    // The bit behind the common ones separates the halves, both of which have an address.
    let bit = |address: &IpAddr| address_bits(*address) >> (127 - common(*first, *last)) & 1 == 1;
    let middle = addresses.partition_point(|address| !bit(address));
    let (low, high) = addresses.split_at(middle);
    split(low, known, nets);
    split(high, known, nets);
}

fn shortest(address: IpAddr) -> u8 {
    if address.is_ipv4() { SHORTEST_V4 } else { SHORTEST_V6 }
}

fn net(address: IpAddr, len: u8) -> IpNet {
    let net = IpNet::new(address, len).unwrap_or_else(|_| IpNet::from(address));
    net.trunc()
}

/// How many bits of 128 two different addresses of a family have in common at the front.
fn common(one: IpAddr, other: IpAddr) -> u8 {
    u8::try_from((address_bits(one) ^ address_bits(other)).leading_zeros()).unwrap_or(127).min(127)
}

/// An address of IPv4 is in the last 32 bits.
fn address_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(Ipv4Addr::to_bits(address)),
        IpAddr::V6(address) => Ipv6Addr::to_bits(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(all: &[&str]) -> BTreeSet<IpAddr> {
        all.iter().map(|it| it.parse().unwrap()).collect()
    }

    /// With these addresses of nodes.
    fn covered(seen: &[&str], nodes: &[&str]) -> Vec<String> {
        let known = Known { pods: BTreeSet::new(), nodes: set(nodes) };
        cover(&set(seen), &known).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn addresses_among_pods_are_written_one_by_one() {
        let tunnels: Vec<String> = (0..9).map(|node| format!("10.244.{node}.0")).collect();
        let sites: Vec<String> = (0..9).map(|site| format!("2001:db8:1:{site}::1")).collect();
        let far: Vec<String> = (1..=9).map(|last| format!("203.0.113.{last}")).collect();
        let all: Vec<&str> = [&tunnels, &sites, &far].into_iter().flatten().map(String::as_str).collect();
        let known = Known { pods: set(&["10.244.200.7", "2001:db8:1:ffff::7"]), nodes: BTreeSet::new() };
        let nets: Vec<String> = cover(&set(&all), &known).iter().map(ToString::to_string).collect();
        let single = |front: &str| nets.iter().filter(|net| net.starts_with(front)).count();
        assert_eq!((single("10.244."), single("2001:db8:1:"), nets.len()), (9, 9, 19), "{nets:?}");
        assert!(nets.iter().any(|net| net == "203.0.113.0/28"), "{nets:?}");
    }

    #[test]
    fn eight_addresses_are_written_one_by_one_and_nine_as_their_smallest_prefix() {
        let addresses: Vec<String> = (1..=9).map(|last| format!("203.0.113.{last}")).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let eight = covered(&addresses[..8], &[]);
        assert_eq!((eight.len(), eight[0].as_str()), (8, "203.0.113.1/32"));
        assert_eq!(covered(&addresses, &[]), ["203.0.113.0/28"]);
        // A node within the prefix is not let in by it.
        assert_eq!(
            covered(&addresses, &["203.0.113.10"]),
            ["203.0.113.0/29", "203.0.113.8/31"],
            "203.0.113.10 is in no prefix"
        );
    }

    #[test]
    fn no_prefix_is_shorter_than_that_of_a_site() {
        let mut far: Vec<String> = (1..=9).map(|last| format!("203.0.113.{last}")).collect();
        far.extend(["203.1.0.1", "8.8.8.8", "2001:db8::1"].map(str::to_owned));
        let far: Vec<&str> = far.iter().map(String::as_str).collect();
        let nets = covered(&far, &[]);
        assert_eq!(nets, ["8.8.8.8/32", "203.0.113.0/28", "203.1.0.1/32", "2001:db8::1/128"]);
        let v6: Vec<String> = (0..9).map(|site| format!("2001:db8:1:{site}::1")).collect();
        let mut v6: Vec<&str> = v6.iter().map(String::as_str).collect();
        assert_eq!(covered(&v6, &[]), ["2001:db8:1::/60"]);
        v6.push("2001:db8:2::1");
        assert_eq!(covered(&v6, &[]), ["2001:db8:1::/60", "2001:db8:2::1/128"]);
    }
}
