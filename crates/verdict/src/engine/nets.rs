//! The prefixes that predicates know, and the disjoint prefixes into which they cut the addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use russet_addr::{Family, IpNet};

use super::predicate::PredicateId;
use crate::world::SetId;

/// Prefixes by their first address and length, so that what a prefix contains follows it.
#[derive(Debug, Default)]
pub(super) struct Nets {
    known: BTreeMap<IpNet, Net>,
    /// How many prefixes of each length there are.
    lengths: BTreeMap<(Family, u8), usize>,
}

/// What is known of a prefix.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Net {
    /// The network sets that have it, if a predicate matches them.
    pub(super) sets: BTreeSet<SetId>,
    /// The predicates that it is a positive prefix of.
    pub(super) within: BTreeSet<PredicateId>,
    /// The predicates that it is an exception of.
    pub(super) except: BTreeSet<PredicateId>,
}

// === impl Nets ===

impl Nets {
    /// Changes what is known of a prefix.
    pub(super) fn change(&mut self, net: IpNet, change: impl FnOnce(&mut Net)) {
        let length = (Family::of_net(&net), net.prefix_len());
        let is_new = !self.known.contains_key(&net);
        let known = self.known.entry(net).or_default();
        change(known);
        let is_gone = *known == Net::default();
        if is_gone {
            self.known.remove(&net);
        }
        if is_new && !is_gone {
            *self.lengths.entry(length).or_default() += 1;
        } else if is_gone
            && !is_new
            && let Some(count) = self.lengths.get_mut(&length)
        {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&length);
            }
        }
    }

    pub(super) fn contains(&self, net: &IpNet) -> bool {
        self.known.contains_key(net)
    }

    /// What is known of a prefix and of those that contain it, the longest first.
    pub(super) fn covering(&self, net: IpNet) -> impl Iterator<Item = (IpNet, &Net)> {
        let family = Family::of_net(&net);
        self.lengths.range((family, 0)..=(family, net.prefix_len())).rev().filter_map(
            move |((_, length), _)| {
                let outer = IpNet::new(net.addr(), *length).ok()?.trunc();
                Some((outer, self.known.get(&outer)?))
            },
        )
    }

    /// The prefixes in another one, and it itself.
    pub(super) fn inside(&self, net: IpNet) -> impl Iterator<Item = IpNet> {
        self.known.range(all_inside(net)).map(|(net, _)| *net)
    }

    /// A prefix without those in it that are known and are more than one address: disjoint prefixes.
    pub(super) fn region(&self, net: IpNet) -> Vec<IpNet> {
        let mut children: Vec<IpNet> = Vec::new();
        for inner in self.inside(net).filter(|inner| *inner != net && !is_host(*inner)) {
            if !children.last().is_some_and(|last| last.contains(&inner)) {
                children.push(inner);
            }
        }
        let mut region = Vec::new();
        cut(net, &children, &mut region);
        region
    }

    /// How many prefixes are known.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}

/// Whether a prefix is one address.
pub(super) fn is_host(net: IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}

/// The range of the addresses of a prefix.
pub(super) fn addresses(net: IpNet) -> RangeInclusive<IpAddr> {
    net.network()..=net.broadcast()
}

/// The range of the prefixes in a prefix, in the order of prefixes.
pub(super) fn all_inside(net: IpNet) -> RangeInclusive<IpNet> {
    net..=IpNet::from(net.broadcast())
}

/// What remains of a prefix without `holes`, which are in it, disjoint and in order. The recursion
/// is as deep as an address has bits.
fn cut(net: IpNet, holes: &[IpNet], region: &mut Vec<IpNet>) {
    match holes {
        [] => region.push(net),
        [hole, ..] if *hole == net => {}
        _ => {
            let Ok(halves) = net.subnets(net.prefix_len() + 1) else { return };
            for half in halves {
                let start = holes.partition_point(|hole| hole.addr() < half.network());
                let end = holes.partition_point(|hole| hole.addr() <= half.broadcast());
                cut(half, holes.get(start..end).unwrap_or_default(), region);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn nets(texts: &[&str]) -> Nets {
        let mut nets = Nets::default();
        for text in texts {
            nets.change(net(text), |net| _ = net.except.insert(PredicateId::OVERFLOW));
        }
        nets
    }

    #[test]
    fn a_region_is_the_prefix_without_the_prefixes_in_it() {
        let nets = nets(&["10.0.0.0/8", "10.0.0.0/16", "10.0.0.0/24", "10.128.0.0/9", "10.1.0.1/32"]);
        let region = nets.region(net("10.0.0.0/8"));
        assert_eq!(
            region,
            [
                "10.1.0.0/16",
                "10.2.0.0/15",
                "10.4.0.0/14",
                "10.8.0.0/13",
                "10.16.0.0/12",
                "10.32.0.0/11",
                "10.64.0.0/10"
            ]
            .map(net)
        );
        assert_eq!(nets.region(net("10.0.0.0/24")), [net("10.0.0.0/24")]);
        assert_eq!(nets.region(net("10.0.0.0/16")).len(), 8);
    }

    #[test]
    fn covering_prefixes_come_from_the_longest_to_the_shortest() {
        let nets = nets(&["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "::/0"]);
        let covering = |text: &str| nets.covering(net(text)).map(|(net, _)| net).collect::<Vec<_>>();
        assert_eq!(
            covering("10.1.2.3/32"),
            ["10.1.2.3/32", "10.1.0.0/16", "10.0.0.0/8", "0.0.0.0/0"].map(net)
        );
        assert_eq!(covering("10.0.0.0/8"), ["10.0.0.0/8", "0.0.0.0/0"].map(net));
        assert_eq!(covering("2001:db8::/32"), ["::/0"].map(net));
    }

    #[test]
    fn lengths_are_forgotten_with_their_last_prefix() {
        let mut nets = nets(&["10.0.0.0/8"]);
        nets.change(net("10.0.0.0/8"), |net| net.except.clear());
        assert!(nets.known.is_empty() && nets.lengths.is_empty());
    }
}
