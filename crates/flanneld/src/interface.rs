//! Chooses the interface towards the other nodes, and the addresses under which they know this node
//! (flannel.md section 1.4). [`Dump::read`] reads the kernel; [`choose`] decides, and is pure.
//! Called once, at the start.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use regex::bytes::{Regex, RegexBuilder};
use russet_addr::Family;
use russet_netlink::{
    Address, AddressFlags, Link, NetlinkError, Route, RouteFilter, RouteKind, RouteLookup, Socket,
};

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
    pub ifindex: u32,
    pub name: String,
    /// Its MTU in bytes, never 0.
    pub mtu: u32,
    /// Its IPv4 address for tunnels and sockets; none in an IPv6 network.
    pub v4: Option<Ipv4Addr>,
    /// The same for IPv6; none in an IPv4 network.
    pub v6: Option<Ipv6Addr>,
    /// The published address; it may be another machine's, behind which this node is.
    pub public_v4: Option<Ipv4Addr>,
    /// The same for IPv6.
    pub public_v6: Option<Ipv6Addr>,
}

/// The operator's choice of the interface.
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

/// The kernel's links, addresses and routes.
#[derive(Debug, Clone, Default)]
pub struct Dump {
    /// All links, ordered by index.
    pub links: Vec<Link>,
    /// All addresses.
    pub addresses: Vec<Address>,
    /// Default routes of both families in the main table, in the kernel's order; read only if they
    /// decide.
    pub defaults: Vec<Route>,
    /// The route to `can_reach`, or the error of the lookup.
    pub route: Option<Result<RouteLookup, String>>,
}

/// Why no interface was found, or a requested one cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// Reading the kernel's state failed.
    #[error("look for the interface: {0}")]
    Netlink(#[from] NetlinkError),
    /// No link has this name.
    #[error("there is no interface {0:?}; list them with `ip link`")]
    NoName(String),
    /// No link has this address.
    #[error("no interface has the {family} address {address}")]
    NoAddress {
        address: IpAddr,
        /// The family that was searched.
        family: Family,
    },
    /// The two addresses of a dual-stack node are on different links.
    #[error("public-ipv6 {0} is not on the interface that -iface names")]
    Apart(Ipv6Addr),
    /// An invalid pattern.
    #[error("iface-regex {pattern:?} is not a regular expression: {reason}")]
    Pattern {
        /// The given pattern.
        pattern: String,
        reason: String,
    },
    /// A pattern without a match.
    #[error("iface-regex {pattern:?} matches none of {candidates}")]
    NoMatch {
        /// The given pattern.
        pattern: String,
        /// The existing names and addresses.
        candidates: String,
    },
    /// The address to reach is invalid or unreachable.
    #[error("iface-can-reach {address:?}: {reason}")]
    NoWay {
        /// The given address.
        address: String,
        reason: String,
    },
    /// No interface was requested, and no default route names one.
    #[error("there is no {0} default route: name the interface with -iface")]
    NoDefault(Family),
    /// The default routes of the families point at different links.
    #[error(
        "the default routes of IPv4 and IPv6 leave by different interfaces, {0} and {1}: name one with -iface"
    )]
    TwoDefaults(String, String),
    /// The link has no usable address of the family.
    #[error("interface {name} has no usable {family} address")]
    Bare {
        /// The link.
        name: String,
        family: Family,
    },
    /// The link's MTU is 0.
    #[error("interface {0} has MTU 0")]
    Mtu(String),
    /// An invalid public address.
    #[error("{flag} {value:?} is not an {family} address")]
    Public {
        flag: &'static str,
        /// The given value.
        value: String,
        /// The expected family.
        family: Family,
    },
    /// All requested interfaces failed; each failure was logged.
    #[error("none of iface, iface-regex and iface-can-reach leads to an interface")]
    NothingMatched,
}

/// Limit of a compiled pattern in bytes; names and addresses are short.
const PATTERN_MAX_BYTES: usize = 1 << 20;

/// A link, with addresses if the method of finding it determined them.
struct Candidate<'a> {
    link: &'a Link,
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
}

// === impl External ===

impl External {
    /// The published addresses, IPv4 first.
    pub fn public(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.public_v4.map(IpAddr::V4).into_iter().chain(self.public_v6.map(IpAddr::V6))
    }
}

// === impl Stack ===

impl Stack {
    /// The stack of the enabled families; none without any.
    pub const fn from_families(v4: bool, v6: bool) -> Option<Self> {
        match (v4, v6) {
            (true, false) => Some(Self::V4),
            (false, true) => Some(Self::V6),
            (true, true) => Some(Self::Dual),
            (false, false) => None,
        }
    }

    pub const fn has_v4(self) -> bool {
        matches!(self, Self::V4 | Self::Dual)
    }

    pub const fn has_v6(self) -> bool {
        matches!(self, Self::V6 | Self::Dual)
    }
}

// === impl Wanted ===

impl Wanted {
    /// Combines the flags and the node's annotations, which win. Without a flag that names an
    /// interface, the public address is used as if it were `iface`.
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
    /// Reads what the request needs.
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
            dump.route = Some(socket.route_to(address).map_err(|error| error.to_string()));
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

    /// The addresses of a link that may represent this node, best first: global before link-local,
    /// unlimited before limited lifetime, permanent before temporary; no deprecated or duplicate
    /// ones.
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

/// Finds the interface. A requested one that cannot be used is logged if another one can.
pub fn choose(dump: &Dump, stack: Stack, wanted: &Wanted) -> Result<External, InterfaceError> {
    if wanted.says_nothing() {
        return by_default(dump, stack).and_then(|candidate| settle(dump, stack, candidate, wanted));
    }
    let named = wanted.iface.iter().map(|value| by_value(dump, stack, value, wanted));
    let matched = wanted.iface_regex.iter().map(|pattern| by_pattern(dump, stack, pattern));
    let reached = Some(&wanted.can_reach).filter(|address| !address.is_empty());
    let reached = reached.into_iter().map(|address| by_route(dump, address));
    for attempt in named.chain(matched).chain(reached) {
        match attempt.and_then(|candidate| settle(dump, stack, candidate, wanted)) {
            Ok(external) => return Ok(external),
            Err(error) => tracing::warn!(%error, "a requested interface is not used"),
        }
    }
    Err(InterfaceError::NothingMatched)
}

/// Evaluates an `iface` value: an address or a name.
fn by_value<'a>(
    dump: &'a Dump,
    stack: Stack,
    value: &str,
    wanted: &Wanted,
) -> Result<Candidate<'a>, InterfaceError> {
    let Ok(address) = value.parse::<IpAddr>() else {
        let link = dump.links.iter().find(|link| link.name == value);
        return link.map(Candidate::at).ok_or_else(|| InterfaceError::NoName(value.to_owned()));
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
    let mut candidate = Candidate::at(dump.having(address).ok_or_else(|| missing(address))?);
    (candidate.v4, candidate.v6) = (v4(address), v6(address));
    if stack == Stack::Dual && candidate.v6.is_none() && !wanted.public_ipv6.is_empty() {
        let public = public_v6(wanted)?.ok_or(InterfaceError::NothingMatched)?;
        let other = dump.having(public.into()).ok_or_else(|| missing(public.into()))?;
        if other.index != candidate.link.index {
            return Err(InterfaceError::Apart(public));
        }
        candidate.v6 = Some(public);
    }
    Ok(candidate)
}

/// Evaluates an `iface-regex`: over the addresses of every link, then over the names.
fn by_pattern<'a>(dump: &'a Dump, stack: Stack, pattern: &str) -> Result<Candidate<'a>, InterfaceError> {
    let expression = compile(pattern)?;
    let fits = |address: &IpAddr| expression.is_match(address.to_string().as_bytes());
    for link in &dump.links {
        let first = |family| dump.addresses_of(link, family).into_iter().find(&fits);
        let candidate = Candidate {
            link,
            v4: stack.has_v4().then(|| first(Family::V4)).flatten().and_then(v4),
            v6: stack.has_v6().then(|| first(Family::V6)).flatten().and_then(v6),
        };
        if candidate.v4.is_some() == stack.has_v4() && candidate.v6.is_some() == stack.has_v6() {
            return Ok(candidate);
        }
    }
    let by_name = dump.links.iter().find(|link| expression.is_match(link.name.as_bytes()));
    by_name.map(Candidate::at).ok_or_else(|| {
        let candidates = dump.links.iter().map(|link| link.name.escape_debug().to_string());
        let candidates = candidates.collect::<Vec<_>>().join(", ");
        InterfaceError::NoMatch { pattern: pattern.to_owned(), candidates }
    })
}

/// Matches bytes and ASCII classes, like Go: names and addresses are ASCII.
fn compile(pattern: &str) -> Result<Regex, InterfaceError> {
    let built = RegexBuilder::new(pattern).unicode(false).size_limit(PATTERN_MAX_BYTES).build();
    // The error text is a drawing of several lines; the last one has the reason.
    let reason = |error: regex::Error| {
        let text = error.to_string();
        let last = text.lines().next_back().unwrap_or_default();
        last.strip_prefix("error: ").unwrap_or(last).to_owned()
    };
    built.map_err(|error| InterfaceError::Pattern { pattern: pattern.to_owned(), reason: reason(error) })
}

/// Evaluates `iface-can-reach`: the link and the source address of the route.
fn by_route<'a>(dump: &'a Dump, address: &str) -> Result<Candidate<'a>, InterfaceError> {
    let failed =
        |reason: &str| InterfaceError::NoWay { address: address.to_owned(), reason: reason.to_owned() };
    let route = dump.route.as_ref().ok_or_else(|| failed("this is not an IP address"))?;
    let route = route.as_ref().map_err(|error| failed(error))?;
    let link =
        route.oif.and_then(|oif| dump.link(oif)).ok_or_else(|| failed("the route there has no interface"))?;
    Ok(Candidate { link, v4: route.source.and_then(v4), v6: route.source.and_then(v6) })
}

/// Evaluates the first default route; in a dual-stack network those of both families.
fn by_default(dump: &Dump, stack: Stack) -> Result<Candidate<'_>, InterfaceError> {
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
    Ok(Candidate::at(link))
}

fn is_default(route: &Route) -> bool {
    route.dst.prefix_len() == 0 && route.kind == RouteKind::Unicast
}

/// A route with several next hops counts by its first.
fn leaves_by(route: &Route) -> Option<u32> {
    route.oif.or_else(|| route.multipath.first().map(|hop| hop.oif))
}

/// Fills in the addresses that the method of finding left open.
fn settle(
    dump: &Dump,
    stack: Stack,
    candidate: Candidate<'_>,
    wanted: &Wanted,
) -> Result<External, InterfaceError> {
    let link = candidate.link;
    if link.mtu_bytes == 0 {
        return Err(InterfaceError::Mtu(link.name.clone()));
    }
    let v4 = match candidate.v4 {
        _ if !stack.has_v4() => None,
        Some(address) => Some(address),
        None => Some(dump.v4_of(link)?),
    };
    let v6 = match candidate.v6 {
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

/// 0 for global addresses, 1 for link-local ones, none for others.
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

// === impl Candidate ===

impl<'a> Candidate<'a> {
    fn at(link: &'a Link) -> Self {
        Self { link, v4: None, v6: None }
    }
}

#[cfg(test)]
mod tests;
