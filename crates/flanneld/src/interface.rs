//! Which interface leads to the other nodes, and by which addresses they know this one (flannel.md section 1.4). [`Dump::read`] asks the
//! kernel, [`choose`] decides and asks nobody. Called once, at the start.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use regex::bytes::{Regex, RegexBuilder};
use russet_addr::Family;
use russet_netlink::{Address, AddressFlags, Link, NetlinkError, Route, RouteFilter, RouteKind, Socket, Way};

use crate::flags::Options;
use crate::source::Known;

/// The IP families that the network has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stack {
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
    /// Both.
    Dual,
}

/// The interface, and this node's addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct External {
    /// Its number.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// Its MTU in bytes, never 0.
    pub mtu: u32,
    /// Its IPv4 address that is used for tunnels and sockets; none in an IPv6 network.
    pub v4: Option<Ipv4Addr>,
    /// The same of IPv6; none in an IPv4 network.
    pub v6: Option<Ipv6Addr>,
    /// What other nodes are told; may be somebody else's address behind which this node is.
    pub public_v4: Option<Ipv4Addr>,
    /// The same of IPv6.
    pub public_v6: Option<Ipv6Addr>,
}

/// What the operator says about the interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Names or addresses.
    pub iface: Vec<String>,
    /// Regular expressions.
    pub iface_regex: Vec<String>,
    /// An address to reach; empty for none.
    pub can_reach: String,
    /// The public address; empty for none.
    pub public_ip: String,
    /// The public IPv6 address; empty for none.
    pub public_ipv6: String,
}

/// What the kernel has.
#[derive(Debug, Clone, Default)]
pub struct Dump {
    /// All links, in the order of their numbers.
    pub links: Vec<Link>,
    /// All addresses.
    pub addresses: Vec<Address>,
    /// Default routes of both families in the main table, in the kernel's order; read only where they decide.
    pub defaults: Vec<Route>,
    /// The way to `can_reach`; or why there is none.
    pub way: Option<Result<Way, String>>,
}

/// Why no interface is found, or one of several wishes is not met.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// The kernel did not answer.
    #[error("look for the interface: {0}")]
    Netlink(#[from] NetlinkError),
    /// No link has this name.
    #[error("there is no interface {0:?}; see `ip link`")]
    NoName(String),
    /// No link has this address.
    #[error("no interface has the {family} address {address}")]
    NoAddress {
        /// Which.
        address: IpAddr,
        /// The family that was looked at.
        family: Family,
    },
    /// The two addresses of a dual-stack node are on different links.
    #[error("public-ipv6 {0} is not on the interface that was asked for")]
    Apart(Ipv6Addr),
    /// A pattern that is none.
    #[error("iface-regex {pattern:?} is no regular expression: {reason}")]
    Pattern {
        /// As given.
        pattern: String,
        /// Why.
        reason: String,
    },
    /// A pattern that fits nothing.
    #[error("iface-regex {pattern:?} matches none of {candidates}")]
    NoMatch {
        /// As given.
        pattern: String,
        /// What there is.
        candidates: String,
    },
    /// The address to reach is none, or cannot be reached.
    #[error("iface-can-reach {address:?}: {reason}")]
    NoWay {
        /// As given.
        address: String,
        /// Why.
        reason: String,
    },
    /// Nobody named an interface, and no default route points at one.
    #[error("there is no {0} default route: name the interface with -iface")]
    NoDefault(Family),
    /// The default routes of the families point at different links.
    #[error(
        "the default routes of IPv4 and IPv6 leave by different interfaces, {0} and {1}: name one with -iface"
    )]
    TwoDefaults(String, String),
    /// The link has no address of the family.
    #[error("interface {name} has no usable {family} address")]
    Bare {
        /// The link.
        name: String,
        /// The family.
        family: Family,
    },
    /// The link says that its MTU is 0.
    #[error("interface {0} has MTU 0")]
    Mtu(String),
    /// A public address that is none.
    #[error("{flag} {value:?} is no {family} address")]
    Public {
        /// Which flag.
        flag: &'static str,
        /// As given.
        value: String,
        /// What it should be.
        family: Family,
    },
    /// All wishes failed; each was logged.
    #[error("none of iface, iface-regex and iface-can-reach leads to an interface")]
    NothingMatched,
}

/// The longest pattern compiled in bytes: names and addresses are matched, not books.
const PATTERN_MAX_BYTES: usize = 1 << 20;

/// A link, with addresses that were settled by the way it was found.
struct Found<'a> {
    link: &'a Link,
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
}

// === impl External ===

impl External {
    /// The addresses that other nodes are told, IPv4 first.
    pub fn public(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.public_v4.map(IpAddr::V4).into_iter().chain(self.public_v6.map(IpAddr::V6))
    }
}

// === impl Stack ===

impl Stack {
    /// From what the network has; none without any family.
    pub const fn of(v4: bool, v6: bool) -> Option<Self> {
        match (v4, v6) {
            (true, false) => Some(Self::V4),
            (false, true) => Some(Self::V6),
            (true, true) => Some(Self::Dual),
            (false, false) => None,
        }
    }

    /// Whether IPv4 is part of it.
    pub const fn has_v4(self) -> bool {
        matches!(self, Self::V4 | Self::Dual)
    }

    /// Whether IPv6 is part of it.
    pub const fn has_v6(self) -> bool {
        matches!(self, Self::V6 | Self::Dual)
    }
}

// === impl Wanted ===

impl Wanted {
    /// What the flags say, and the node's annotations, which win. Without any flag that names an interface, the public address is looked up as
    /// if it were `iface`.
    pub fn new(options: &Options, known: &Known) -> Self {
        let public_ip = known.public_ip.map_or_else(|| options.public_ip.clone(), |ip| ip.to_string());
        let public_ipv6 = known.public_ipv6.map_or_else(|| options.public_ipv6.clone(), |ip| ip.to_string());
        let public = [&public_ip, &public_ipv6].into_iter().find(|text| !text.is_empty());
        let iface = match public {
            Some(address) if !options.names_an_interface() => vec![address.clone()],
            _ => options.iface.clone(),
        };
        Self {
            iface,
            iface_regex: options.iface_regex.clone(),
            can_reach: options.iface_can_reach.clone(),
            public_ip,
            public_ipv6,
        }
    }

    fn says_nothing(&self) -> bool {
        self.iface.is_empty() && self.iface_regex.is_empty() && self.can_reach.is_empty()
    }
}

// === impl Dump ===

impl Dump {
    /// Reads what the wish needs.
    pub fn read(socket: &mut Socket, wanted: &Wanted) -> Result<Self, NetlinkError> {
        let mut dump = Self { links: socket.links()?, addresses: socket.addresses()?, ..Self::default() };
        dump.links.sort_by_key(|link| link.index);
        if wanted.says_nothing() {
            let filter = RouteFilter { table: Some(Route::MAIN), ..RouteFilter::default() };
            for family in Family::BOTH {
                let routes = socket.routes_where(family, filter)?;
                dump.defaults.extend(routes.into_iter().filter(is_default));
            }
        }
        if let Ok(address) = wanted.can_reach.parse() {
            dump.way = Some(socket.way_to(address).map_err(|error| error.to_string()));
        }
        Ok(dump)
    }

    fn link(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|link| link.index == index)
    }

    /// The link that has exactly this address.
    fn having(&self, address: IpAddr) -> Option<&Link> {
        self.addresses
            .iter()
            .filter(|held| held.net.addr() == address)
            .find_map(|held| self.link(held.ifindex))
    }

    /// The addresses of a link that may stand for this node, best first: global before link-local, without a lifetime before those with
    /// one, lasting before temporary; none that is deprecated or a duplicate.
    fn addresses_of(&self, link: &Link, family: Family) -> Vec<IpAddr> {
        let mut usable: Vec<&Address> = self
            .addresses
            .iter()
            .filter(|held| held.ifindex == link.index && Family::of_net(&held.net) == family)
            .filter(|held| !held.flags.contains(AddressFlags::DEPRECATED))
            .filter(|held| !held.flags.contains(AddressFlags::DADFAILED))
            .filter(|held| reach(held.net.addr()).is_some())
            .collect();
        usable.sort_by_key(|held| {
            let temporary = family == Family::V6 && held.flags.contains(AddressFlags::TEMPORARY);
            (reach(held.net.addr()), !held.flags.contains(AddressFlags::PERMANENT), temporary)
        });
        usable.into_iter().map(|held| held.net.addr()).collect()
    }

    fn v4_of(&self, link: &Link) -> Result<Ipv4Addr, InterfaceError> {
        let bare = || InterfaceError::Bare { name: link.name.clone(), family: Family::V4 };
        self.addresses_of(link, Family::V4).into_iter().find_map(v4).ok_or_else(bare)
    }

    fn v6_of(&self, link: &Link) -> Result<Ipv6Addr, InterfaceError> {
        let bare = || InterfaceError::Bare { name: link.name.clone(), family: Family::V6 };
        self.addresses_of(link, Family::V6).into_iter().find_map(v6).ok_or_else(bare)
    }
}

/// Finds the interface. What does not lead to one is logged, as long as something else does.
pub fn choose(dump: &Dump, stack: Stack, wanted: &Wanted) -> Result<External, InterfaceError> {
    if wanted.says_nothing() {
        return by_default(dump, stack).and_then(|found| settle(dump, stack, found, wanted));
    }
    let named = wanted.iface.iter().map(|value| by_value(dump, stack, value, wanted));
    let matched = wanted.iface_regex.iter().map(|pattern| by_pattern(dump, stack, pattern));
    let reached = Some(&wanted.can_reach).filter(|address| !address.is_empty());
    let reached = reached.into_iter().map(|address| by_way(dump, address));
    for attempt in named.chain(matched).chain(reached) {
        match attempt.and_then(|found| settle(dump, stack, found, wanted)) {
            Ok(external) => return Ok(external),
            Err(error) => tracing::warn!(%error, "an interface that was asked for is not used"),
        }
    }
    Err(InterfaceError::NothingMatched)
}

/// An `iface` value: an address or a name.
fn by_value<'a>(
    dump: &'a Dump,
    stack: Stack,
    value: &str,
    wanted: &Wanted,
) -> Result<Found<'a>, InterfaceError> {
    let Ok(address) = value.parse::<IpAddr>() else {
        let link = dump.links.iter().find(|link| link.name == value);
        return link.map(Found::at).ok_or_else(|| InterfaceError::NoName(value.to_owned()));
    };
    let family = match stack {
        Stack::V4 => Family::V4,
        Stack::V6 => Family::V6,
        Stack::Dual => Family::of(address),
    };
    let missing = |address| InterfaceError::NoAddress { address, family };
    if Family::of(address) != family {
        return Err(missing(address));
    }
    let mut found = Found::at(dump.having(address).ok_or_else(|| missing(address))?);
    (found.v4, found.v6) = (v4(address), v6(address));
    if stack == Stack::Dual && found.v6.is_none() && !wanted.public_ipv6.is_empty() {
        let public = public_v6(wanted)?.ok_or(InterfaceError::NothingMatched)?;
        let other = dump.having(public.into()).ok_or_else(|| missing(public.into()))?;
        if other.index != found.link.index {
            return Err(InterfaceError::Apart(public));
        }
        found.v6 = Some(public);
    }
    Ok(found)
}

/// An `iface-regex`: over the addresses of every link, then over the names.
fn by_pattern<'a>(dump: &'a Dump, stack: Stack, pattern: &str) -> Result<Found<'a>, InterfaceError> {
    let expression = compile(pattern)?;
    let fits = |address: &IpAddr| expression.is_match(address.to_string().as_bytes());
    for link in &dump.links {
        let first = |family| dump.addresses_of(link, family).into_iter().find(&fits);
        let found = Found {
            link,
            v4: stack.has_v4().then(|| first(Family::V4)).flatten().and_then(v4),
            v6: stack.has_v6().then(|| first(Family::V6)).flatten().and_then(v6),
        };
        if found.v4.is_some() == stack.has_v4() && found.v6.is_some() == stack.has_v6() {
            return Ok(found);
        }
    }
    let by_name = dump.links.iter().find(|link| expression.is_match(link.name.as_bytes()));
    by_name.map(Found::at).ok_or_else(|| {
        let candidates = dump.links.iter().map(|link| link.name.escape_debug().to_string());
        let candidates = candidates.collect::<Vec<_>>().join(", ");
        InterfaceError::NoMatch { pattern: pattern.to_owned(), candidates }
    })
}

/// Bytes and ASCII classes, as Go's: names and addresses are no prose.
fn compile(pattern: &str) -> Result<Regex, InterfaceError> {
    let built = RegexBuilder::new(pattern).unicode(false).size_limit(PATTERN_MAX_BYTES).build();
    // The text is a drawing of several lines; what is wrong stands in the last.
    let reason = |error: regex::Error| {
        let text = error.to_string();
        let last = text.lines().next_back().unwrap_or_default();
        last.strip_prefix("error: ").unwrap_or(last).to_owned()
    };
    built.map_err(|error| InterfaceError::Pattern { pattern: pattern.to_owned(), reason: reason(error) })
}

/// `iface-can-reach`: the link and the source address of the way there.
fn by_way<'a>(dump: &'a Dump, address: &str) -> Result<Found<'a>, InterfaceError> {
    let failed =
        |reason: &str| InterfaceError::NoWay { address: address.to_owned(), reason: reason.to_owned() };
    let way = dump.way.as_ref().ok_or_else(|| failed("this is no IP address"))?;
    let way = way.as_ref().map_err(|error| failed(error))?;
    let link =
        way.oif.and_then(|oif| dump.link(oif)).ok_or_else(|| failed("the way there has no interface"))?;
    Ok(Found { link, v4: way.source.and_then(v4), v6: way.source.and_then(v6) })
}

/// The link of the first default route; in a dual-stack network that of both families.
fn by_default(dump: &Dump, stack: Stack) -> Result<Found<'_>, InterfaceError> {
    let of = |family| {
        let mut routes = dump.defaults.iter().filter(|route| route.family() == family);
        routes.find_map(leaves_by).and_then(|oif| dump.link(oif)).ok_or(InterfaceError::NoDefault(family))
    };
    let link = of(if stack.has_v4() { Family::V4 } else { Family::V6 })?;
    if stack == Stack::Dual {
        let other = of(Family::V6)?;
        if other.index != link.index {
            return Err(InterfaceError::TwoDefaults(link.name.clone(), other.name.clone()));
        }
    }
    Ok(Found::at(link))
}

fn is_default(route: &Route) -> bool {
    route.dst.prefix_len() == 0 && route.kind == RouteKind::Unicast
}

/// A route of several next hops counts by its first.
fn leaves_by(route: &Route) -> Option<u32> {
    route.oif.or_else(|| route.multipath.first().map(|hop| hop.oif))
}

/// Fills in what the way of finding left open.
fn settle(dump: &Dump, stack: Stack, found: Found<'_>, wanted: &Wanted) -> Result<External, InterfaceError> {
    let link = found.link;
    if link.mtu_bytes == 0 {
        return Err(InterfaceError::Mtu(link.name.clone()));
    }
    let v4 = match found.v4 {
        _ if !stack.has_v4() => None,
        Some(address) => Some(address),
        None => Some(dump.v4_of(link)?),
    };
    let v6 = match found.v6 {
        _ if !stack.has_v6() => None,
        Some(address) => Some(address),
        None => Some(dump.v6_of(link)?),
    };
    let (public_v4, public_v6) = (public_v4(wanted)?, public_v6(wanted)?);
    Ok(External {
        ifindex: link.index,
        name: link.name.clone(),
        mtu: link.mtu_bytes,
        v4,
        v6,
        public_v4: if stack.has_v4() { public_v4.or(v4) } else { None },
        public_v6: if stack.has_v6() { public_v6.or(v6) } else { None },
    })
}

fn public_v4(wanted: &Wanted) -> Result<Option<Ipv4Addr>, InterfaceError> {
    public("public-ip", &wanted.public_ip, Family::V4)
}

fn public_v6(wanted: &Wanted) -> Result<Option<Ipv6Addr>, InterfaceError> {
    public("public-ipv6", &wanted.public_ipv6, Family::V6)
}

fn public<T: std::str::FromStr>(
    flag: &'static str,
    value: &str,
    family: Family,
) -> Result<Option<T>, InterfaceError> {
    if value.is_empty() {
        return Ok(None);
    }
    value.parse().map(Some).map_err(|_| InterfaceError::Public { flag, value: value.to_owned(), family })
}

/// 0 for addresses that are good everywhere, 1 for those of a link, none for the rest.
fn reach(address: IpAddr) -> Option<u8> {
    let (nowhere, link_local) = match address {
        IpAddr::V4(v4) => (v4.is_broadcast(), v4.is_link_local()),
        IpAddr::V6(v6) => (false, v6.is_unicast_link_local()),
    };
    if nowhere || address.is_unspecified() || address.is_loopback() || address.is_multicast() {
        return None;
    }
    Some(u8::from(link_local))
}

fn v4(address: IpAddr) -> Option<Ipv4Addr> {
    if let IpAddr::V4(v4) = address { Some(v4) } else { None }
}

fn v6(address: IpAddr) -> Option<Ipv6Addr> {
    if let IpAddr::V6(v6) = address { Some(v6) } else { None }
}

// === impl Found ===

impl<'a> Found<'a> {
    fn at(link: &'a Link) -> Self {
        Self { link, v4: None, v6: None }
    }
}

#[cfg(test)]
mod tests;
