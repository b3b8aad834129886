//! Routes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use russet_addr::Family;

use crate::address::Scope;
use crate::batch::Batch;
use crate::error::Result;
use crate::kernel::*;
use crate::socket::Socket;
use crate::wire::{Attribute, Message, MessageBuilder, array, ip, with_ip};

/// A route, as written and as read back. Russet's routes read back equal to what was written,
/// except that IPv6 routes without a metric get [`Route::METRIC_V6`] and always have scope
/// `Universe`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Route {
    /// The destination.
    pub dst: IpNet,
    /// The next hop; an IPv4 route can have an IPv6 next hop.
    pub gateway: Option<IpAddr>,
    /// The index of the outgoing link.
    pub oif: Option<u32>,
    /// What happens to packets.
    pub kind: RouteKind,
    /// The distance of `dst`.
    pub scope: Scope,
    /// The originator: 114 for all routes of Russet.
    pub protocol: u8,
    /// The metric; the lowest is preferred.
    pub metric: Option<u32>,
    /// The table, usually [`Route::MAIN`].
    pub table: u32,
    /// Whether the gateway counts as on the link even without a route to it.
    pub onlink: bool,
    /// The MTU towards `dst` in bytes.
    pub mtu_bytes: Option<u32>,
    /// The source address of locally sent packets.
    pub prefsrc: Option<IpAddr>,
    /// The next hops of a multipath route; only read.
    pub multipath: Vec<NextHop>,
}

/// One of several next hops.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NextHop {
    /// The index of the outgoing link.
    pub oif: u32,
    /// The gateway.
    pub gateway: Option<IpAddr>,
}

/// `RTN_*`: the type of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum RouteKind {
    /// Forwards to the next hop.
    #[default]
    Unicast,
    /// Delivers locally.
    Local,
    /// Sends as broadcast.
    Broadcast,
    /// Drops silently.
    Blackhole,
    /// Answers that the destination is unreachable.
    Unreachable,
    /// Answers that the destination is forbidden.
    Prohibit,
    /// Continues with the next routing rule.
    Throw,
    /// Another number.
    Other(u8),
}

// === impl RouteKind ===

impl fmt::Display for RouteKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unicast => "unicast",
            Self::Local => "local",
            Self::Broadcast => "broadcast",
            Self::Blackhole => "blackhole",
            Self::Unreachable => "unreachable",
            Self::Prohibit => "prohibit",
            Self::Throw => "throw",
            Self::Other(number) => return write!(f, "{number}"),
        })
    }
}

/// Restricts a list of routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RouteFilter {
    /// Routes of this table.
    pub table: Option<u32>,
    /// Routes of this originator.
    pub protocol: Option<u8>,
    /// Routes through this link.
    pub oif: Option<u32>,
}

/// Bytes in `struct rtnexthop`.
const RTNEXTHOP_BYTES: usize = 8;

// === impl Route ===

impl Route {
    /// The main table.
    pub const MAIN: u32 = 254;
    /// The table of local addresses.
    pub const LOCAL: u32 = 255;
    /// The default metric of IPv6 routes.
    pub const METRIC_V6: u32 = 1024;
    /// `RTPROT_KERNEL`: routes that the kernel adds for addresses.
    pub const PROTOCOL_KERNEL: u8 = 2;
    /// `RTPROT_BOOT`, which `ip route` uses.
    pub const PROTOCOL_BOOT: u8 = 3;

    /// A unicast route in the main table, without a next hop.
    pub fn new(dst: IpNet) -> Self {
        Self {
            dst,
            gateway: None,
            oif: None,
            kind: RouteKind::Unicast,
            scope: Scope::Universe,
            protocol: Self::PROTOCOL_BOOT,
            metric: None,
            table: Self::MAIN,
            onlink: false,
            mtu_bytes: None,
            prefsrc: None,
            multipath: Vec::new(),
        }
    }

    /// A route through a gateway.
    pub fn via(dst: IpNet, gateway: IpAddr) -> Self {
        Self { gateway: Some(gateway), ..Self::new(dst) }
    }

    /// A route to a directly connected destination; for IPv4 with scope `Link`, which marks it as
    /// such.
    pub fn dev(dst: IpNet, oif: u32) -> Self {
        let scope = if matches!(dst, IpNet::V4(_)) { Scope::Link } else { Scope::Universe };
        Self { oif: Some(oif), scope, ..Self::new(dst) }
    }

    /// A route that drops packets to `dst`.
    pub fn blackhole(dst: IpNet) -> Self {
        Self { kind: RouteKind::Blackhole, ..Self::new(dst) }
    }

    /// IPv4 or IPv6.
    pub fn family(&self) -> Family {
        Family::of_net(&self.dst)
    }

    /// Decodes `RTM_NEWROUTE` and `RTM_DELROUTE`; `None` for other messages and for cached routes.
    pub fn decode(message: &Message<'_>) -> Option<Self> {
        if !matches!(message.kind, RTM_NEWROUTE | RTM_DELROUTE) {
            return None;
        }
        let [af, dst_len, _src_len, _tos, table, protocol, scope, kind] = array(message.payload, 0)?;
        let flags = array(message.payload, 8).map(u32::from_ne_bytes)?;
        let mut route = Self::new(IpNet::new(unspecified(family(af)?), dst_len).ok()?);
        if flags & RTM_F_CLONED != 0 {
            return None;
        }
        route.table = u32::from(table);
        route.protocol = protocol;
        route.scope = Scope::of(scope);
        route.kind = RouteKind::from_number(kind);
        route.onlink = flags & RTNH_F_ONLINK != 0;
        for attribute in message.attributes(RTMSG_BYTES) {
            route.take(&attribute)?;
        }
        if !route.kind.forwards() {
            // For IPv6 the kernel reports the loopback here.
            route.oif = None;
        }
        Some(route)
    }

    fn goes_through(&self, oif: u32) -> bool {
        self.oif == Some(oif) || self.multipath.iter().any(|hop| hop.oif == oif)
    }

    fn take(&mut self, attribute: &Attribute<'_>) -> Option<()> {
        match attribute.kind {
            RTA_DST => {
                let address = attribute.ip().filter(|ip| Family::of(*ip) == self.family())?;
                self.dst = IpNet::new(address, self.dst.prefix_len()).ok()?;
            }
            RTA_GATEWAY => self.gateway = attribute.ip(),
            RTA_VIA => self.gateway = via(attribute),
            RTA_OIF => self.oif = attribute.u32(),
            RTA_PRIORITY => self.metric = attribute.u32(),
            RTA_TABLE => self.table = attribute.u32().unwrap_or(self.table),
            RTA_PREFSRC => self.prefsrc = attribute.ip(),
            RTA_METRICS => self.mtu_bytes = attribute.nested().find(RTAX_MTU).and_then(|mtu| mtu.u32()),
            RTA_MULTIPATH => self.multipath = next_hops(attribute.payload),
            _ => {}
        }
        Some(())
    }

    fn encode(&self, message: &mut MessageBuilder<'_>, scope: Scope) {
        let family = self.family();
        let table = u8::try_from(self.table).unwrap_or(0);
        let scope = if family == Family::V4 { scope.number() } else { 0 };
        message.raw(&[
            af(family),
            self.dst.prefix_len(),
            0,
            0,
            table,
            self.protocol,
            scope,
            self.kind.number(),
        ]);
        message.raw(&if self.onlink { RTNH_F_ONLINK } else { 0 }.to_ne_bytes());
        if self.dst.prefix_len() > 0 {
            message.attr_ip(RTA_DST, self.dst.network());
        }
        match self.gateway {
            Some(gateway) if Family::of(gateway) == family => {
                message.attr_ip(RTA_GATEWAY, gateway);
            }
            Some(gateway) => attr_via(message, gateway),
            None => {}
        }
        if let Some(oif) = self.oif {
            message.attr_u32(RTA_OIF, oif);
        }
        if let Some(metric) = self.metric {
            message.attr_u32(RTA_PRIORITY, metric);
        }
        message.attr_u32(RTA_TABLE, self.table);
        if let Some(prefsrc) = self.prefsrc {
            message.attr_ip(RTA_PREFSRC, prefsrc);
        }
    }

    fn encode_new(&self, message: &mut MessageBuilder<'_>) {
        self.encode(message, self.scope);
        if let Some(mtu_bytes) = self.mtu_bytes {
            message.nested(RTA_METRICS, |metrics| {
                metrics.attr_u32(RTAX_MTU, mtu_bytes);
            });
        }
    }
}

fn unspecified(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// `struct rtvia`: a family and an address.
pub(crate) fn via(attribute: &Attribute<'_>) -> Option<IpAddr> {
    let af = u16::from_ne_bytes(array(attribute.payload, 0)?);
    let address = ip(attribute.payload.get(2..)?)?;
    (family(u8::try_from(af).ok()?)? == Family::of(address)).then_some(address)
}

fn attr_via(message: &mut MessageBuilder<'_>, gateway: IpAddr) {
    let family = u16::from(af(Family::of(gateway))).to_ne_bytes();
    with_ip(gateway, |address| {
        message.attr_parts(RTA_VIA, &family, address);
    });
}

fn next_hops(mut bytes: &[u8]) -> Vec<NextHop> {
    let mut hops = Vec::new();
    while let Some(header) = array::<RTNEXTHOP_BYTES>(bytes, 0) {
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let Some(attributes) = bytes.get(RTNEXTHOP_BYTES..len) else { break };
        let oif = u32::from_ne_bytes([header[4], header[5], header[6], header[7]]);
        let mut hop = NextHop { oif, gateway: None };
        for attribute in crate::wire::Attributes::new(attributes) {
            match attribute.kind {
                RTA_GATEWAY => hop.gateway = attribute.ip(),
                RTA_VIA => hop.gateway = via(&attribute),
                _ => {}
            }
        }
        hops.push(hop);
        bytes = bytes.get((len + 3) & !3..).unwrap_or_default();
    }
    hops
}

// === impl RouteKind ===

impl RouteKind {
    /// Whether the route forwards packets through a link.
    pub const fn forwards(self) -> bool {
        !matches!(
            self,
            RouteKind::Blackhole | RouteKind::Unreachable | RouteKind::Prohibit | RouteKind::Throw
        )
    }

    /// The keyword of `ip route`; empty for unicast, for which there is none.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            RouteKind::Unicast => "",
            RouteKind::Local => "local ",
            RouteKind::Broadcast => "broadcast ",
            RouteKind::Blackhole => "blackhole ",
            RouteKind::Unreachable => "unreachable ",
            RouteKind::Prohibit => "prohibit ",
            RouteKind::Throw => "throw ",
            RouteKind::Other(_) => "special ",
        }
    }

    const fn number(self) -> u8 {
        match self {
            RouteKind::Unicast => 1,
            RouteKind::Local => 2,
            RouteKind::Broadcast => 3,
            RouteKind::Blackhole => 6,
            RouteKind::Unreachable => 7,
            RouteKind::Prohibit => 8,
            RouteKind::Throw => 9,
            RouteKind::Other(number) => number,
        }
    }

    pub(crate) const fn from_number(number: u8) -> Self {
        match number {
            1 => RouteKind::Unicast,
            2 => RouteKind::Local,
            3 => RouteKind::Broadcast,
            6 => RouteKind::Blackhole,
            7 => RouteKind::Unreachable,
            8 => RouteKind::Prohibit,
            9 => RouteKind::Throw,
            number => RouteKind::Other(number),
        }
    }
}

// === impl Batch ===

/// Routes.
impl Batch {
    /// Adds a route; EEXIST if there is one with the same destination, metric and table.
    pub fn add_route(&mut self, route: &Route) -> &mut Self {
        self.push(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, |message| route.encode_new(message))
    }

    /// Replaces the route with the same destination, metric and table, or adds one.
    pub fn replace_route(&mut self, route: &Route) -> &mut Self {
        self.push(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_REPLACE, |message| route.encode_new(message))
    }

    /// Adds a route after those with the same destination, metric and table.
    pub fn append_route(&mut self, route: &Route) -> &mut Self {
        self.push(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_APPEND, |message| route.encode_new(message))
    }

    /// Deletes the first route with this destination, table, type and originator, and this metric,
    /// gateway, link and source if they are set; ESRCH if there is none.
    pub fn delete_route(&mut self, route: &Route) -> &mut Self {
        self.push(RTM_DELROUTE, 0, |message| route.encode(message, Scope::Nowhere))
    }
}

// === impl Socket ===

/// Routes.
impl Socket {
    /// All routes of a family, in all tables.
    pub fn routes(&mut self, family: Family) -> Result<Vec<Route>> {
        self.routes_where(family, RouteFilter::default())
    }

    /// The routes of a family that match the filter; the kernel filters as far as it can.
    pub fn routes_where(&mut self, family: Family, filter: RouteFilter) -> Result<Vec<Route>> {
        let fill = |message: &mut MessageBuilder<'_>| {
            message.raw(&[af(family), 0, 0, 0, 0, filter.protocol.unwrap_or(0), 0, 0, 0, 0, 0, 0]);
            if let Some(table) = filter.table {
                message.attr_u32(RTA_TABLE, table);
            }
            if let Some(oif) = filter.oif {
                message.attr_u32(RTA_OIF, oif);
            }
        };
        let wanted = |route: &Route| {
            filter.table.is_none_or(|table| route.table == table)
                && filter.protocol.is_none_or(|protocol| route.protocol == protocol)
                && filter.oif.is_none_or(|oif| route.goes_through(oif))
        };
        let decode = |message: &Message<'_>| Route::decode(message).filter(wanted);
        match self.dump(&format!("list {family} routes"), RTM_GETROUTE, fill, decode) {
            // The table or the link does not exist, so there are no routes.
            Err(error) if error.is_not_found() => Ok(Vec::new()),
            result => result,
        }
    }
}
