//! Decides which subnets a node takes, given all existing leases (flannel.md section 3.3, with the
//! changes of sections 10 and 12). Pure except for the random number generator that is passed in.

use std::net::{Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};
use russet_model::flannel::{Attributes, NetworkConfig, SubnetKey};
use russet_store::Record;
use russet_sync::Rng;

use crate::{LeaseError, Wish};

/// Number of free subnets, from the first on, among which one is drawn.
const FREE_MAX: usize = 100;

/// A record whose key names subnets.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    pub(crate) record: Record,
    pub(crate) key: SubnetKey,
    /// Whether its key is the one under which this node would write it.
    pub(crate) in_place: bool,
    /// None for a value that cannot be parsed: its subnets still count as taken.
    pub(crate) attributes: Option<Attributes>,
}

/// The next step.
#[derive(Debug, Clone)]
pub(crate) enum Plan {
    /// This record is ours: write it again.
    Adopt(Listed),
    /// This record is ours and does not fit any more: delete it, and read again.
    Withdraw(Listed),
    /// These subnets are free: create a record.
    Create(SubnetKey),
}

/// Whether a lease is this node's. With IPv4 off, every node's `PublicIP` is 0.0.0.0 (flannel.md
/// T46).
pub(crate) fn is_ours(config_v4: bool, ours: &Attributes, theirs: &Attributes) -> bool {
    if config_v4 {
        return theirs.public_ip == ours.public_ip;
    }
    ours.public_ipv6.is_some() && theirs.public_ipv6 == ours.public_ipv6
}

/// Decides the next step.
pub(crate) fn plan(
    config: &NetworkConfig,
    wish: &Wish,
    listed: &[Listed],
    rng: &mut Rng,
) -> Result<Plan, LeaseError> {
    let ours = |one: &&Listed| {
        let theirs = one.attributes.as_ref();
        one.in_place && theirs.is_some_and(|theirs| is_ours(config.enable_ipv4, &wish.attributes, theirs))
    };
    let mine: Vec<&Listed> = listed.iter().filter(ours).collect();
    // Records that no daemon wrote (a copy beside the leases, garbage) do not take a subnet from
    // the node whose pods run in it.
    let real = |other: &&Listed| other.in_place && other.attributes.is_some();
    let alone = |one: &&Listed| {
        let others = listed.iter().filter(real);
        let mut others = others.filter(|other| mine.iter().all(|mine| mine.record.key != other.record.key));
        others.all(|other| !other.key.overlaps(&one.key))
    };
    let mut usable: Vec<&Listed> =
        mine.iter().copied().filter(|one| fits(config, &one.key)).filter(alone).collect();
    // Several exist only after a race: the previous subnet comes first, then the order of keys.
    usable.sort_by_key(|one| one.key != wish.previous);
    if let Some(one) = usable.first() {
        return Ok(Plan::Adopt((*one).clone()));
    }
    if let Some(one) = mine.first() {
        return Ok(Plan::Withdraw((*one).clone()));
    }
    Ok(Plan::Create(choose(config, &wish.previous, listed, rng)?))
}

/// Whether a lease of these subnets could have been made under this configuration: it has exactly
/// the families that are on. A key with both in a network with IPv4 only would end every IPv4-only
/// daemon that owns its IPv4 subnet (flannel.md section 0 item 1, T45).
fn fits(config: &NetworkConfig, key: &SubnetKey) -> bool {
    key.v4.is_some() == config.enable_ipv4
        && key.v6.is_some() == config.enable_ipv6
        && key.v4.is_none_or(|net| fits_v4(config, net))
        && key.v6.is_none_or(|net| fits_v6(config, net))
}

fn fits_v4(config: &NetworkConfig, net: Ipv4Net) -> bool {
    net.prefix_len() == config.subnet_len
        && net.addr() == net.network()
        && (config.subnet_min..=config.subnet_max).contains(&net.addr())
}

fn fits_v6(config: &NetworkConfig, net: Ipv6Net) -> bool {
    net.prefix_len() == config.ipv6_subnet_len
        && net.addr() == net.network()
        && (config.ipv6_subnet_min..=config.ipv6_subnet_max).contains(&net.addr())
}

/// Chooses for each family: the previous subnet if it is allowed and free, else one of the first
/// free ones.
fn choose(
    config: &NetworkConfig,
    previous: &SubnetKey,
    listed: &[Listed],
    rng: &mut Rng,
) -> Result<SubnetKey, LeaseError> {
    let mut key = SubnetKey::default();
    if config.enable_ipv4 {
        let taken: Vec<Ipv4Net> = listed.iter().filter_map(|one| one.key.v4).collect();
        let is_free = |net: &Ipv4Net| {
            let net = SubnetKey { v4: Some(*net), v6: None };
            taken.iter().all(|other| !net.overlaps(&SubnetKey { v4: Some(*other), v6: None }))
        };
        let before = previous.v4.filter(|net| fits_v4(config, *net)).filter(is_free);
        key.v4 = Some(before.map_or_else(|| draw_v4(config, &taken, rng), Ok)?);
    }
    if config.enable_ipv6 {
        let taken: Vec<Ipv6Net> = listed.iter().filter_map(|one| one.key.v6).collect();
        let is_free = |net: &Ipv6Net| {
            let net = SubnetKey { v4: None, v6: Some(*net) };
            taken.iter().all(|other| !net.overlaps(&SubnetKey { v4: None, v6: Some(*other) }))
        };
        let before = previous.v6.filter(|net| fits_v6(config, *net)).filter(is_free);
        key.v6 = Some(before.map_or_else(|| draw_v6(config, &taken, rng), Ok)?);
    }
    Ok(key)
}

fn draw_v4(config: &NetworkConfig, taken: &[Ipv4Net], rng: &mut Rng) -> Result<Ipv4Net, LeaseError> {
    let (first, last) = (config.subnet_min, config.subnet_max);
    let bounds = |net: &Ipv4Net| (net.network().to_bits().into(), net.broadcast().to_bits().into());
    let size = 1 << (32 - u32::from(config.subnet_len));
    let free = free(first.to_bits().into(), last.to_bits().into(), size, taken.iter().map(bounds).collect());
    let base = draw(&free, rng).and_then(|base| u32::try_from(base).ok());
    let net = base.and_then(|base| Ipv4Net::new(Ipv4Addr::from_bits(base), config.subnet_len).ok());
    net.ok_or_else(|| LeaseError::OutOfSubnets {
        family: "IPv4",
        first: first.to_string(),
        last: last.to_string(),
    })
}

fn draw_v6(config: &NetworkConfig, taken: &[Ipv6Net], rng: &mut Rng) -> Result<Ipv6Net, LeaseError> {
    let (first, last) = (config.ipv6_subnet_min, config.ipv6_subnet_max);
    let bounds = |net: &Ipv6Net| (net.network().to_bits(), net.broadcast().to_bits());
    let size = 1 << (128 - u32::from(config.ipv6_subnet_len));
    let free = free(first.to_bits(), last.to_bits(), size, taken.iter().map(bounds).collect());
    let net = draw(&free, rng)
        .and_then(|base| Ipv6Net::new(Ipv6Addr::from_bits(base), config.ipv6_subnet_len).ok());
    net.ok_or_else(|| LeaseError::OutOfSubnets {
        family: "IPv6",
        first: first.to_string(),
        last: last.to_string(),
    })
}

fn draw(free: &[u128], rng: &mut Rng) -> Option<u128> {
    let place = usize::try_from(rng.below(u64::try_from(free.len()).ok()?)).ok()?;
    free.get(place).copied()
}

/// The first free ranges of `size` from `first` to `last`; `taken` are pairs of first and last
/// address.
fn free(first: u128, last: u128, size: u128, mut taken: Vec<(u128, u128)>) -> Vec<u128> {
    taken.sort_unstable();
    let mut taken = taken.into_iter().peekable();
    let mut free = Vec::new();
    let mut at = first;
    while at <= last && free.len() < FREE_MAX {
        // Sorted by their beginning: a range that ends before this one also ends before every later
        // one.
        let next = match taken.peek() {
            Some((_, end)) if *end < at => {
                taken.next();
                continue;
            }
            Some((begin, end)) if *begin - (*begin).min(at) < size => {
                let past = (*end - first) / size + 1;
                taken.next();
                past.checked_mul(size).and_then(|past| first.checked_add(past))
            }
            _ => {
                free.push(at);
                at.checked_add(size)
            }
        };
        let Some(next) = next else { break };
        at = next;
    }
    free
}

#[cfg(test)]
mod tests;
