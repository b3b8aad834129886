//! Route lookups: the kernel's decision for one destination, including rules and all tables. The
//! daemons use it to choose an interface.

use std::net::IpAddr;

use russet_addr::Family;

use crate::error::Result;
use crate::kernel::*;
use crate::route::RouteKind;
use crate::socket::Socket;
use crate::wire::{Message, MessageBuilder, array};

/// The route to one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteLookup {
    /// What happens to packets; `Local` for addresses of this machine.
    pub kind: RouteKind,
    /// The index of the outgoing link.
    pub oif: Option<u32>,
    /// The next hop; `None` if the address is on the link.
    pub gateway: Option<IpAddr>,
    /// The source address of locally sent packets.
    pub source: Option<IpAddr>,
}

// === impl RouteLookup ===

impl RouteLookup {
    /// Decodes the answer to `RTM_GETROUTE` for one address.
    fn decode(message: &Message<'_>) -> Option<Self> {
        if message.kind != RTM_NEWROUTE {
            return None;
        }
        let [kind] = array(message.payload, 7)?;
        let mut route = Self { kind: RouteKind::from_number(kind), oif: None, gateway: None, source: None };
        for attribute in message.attributes(RTMSG_BYTES) {
            match attribute.kind {
                RTA_OIF => route.oif = attribute.u32(),
                RTA_GATEWAY => route.gateway = attribute.ip(),
                RTA_VIA => route.gateway = crate::route::via(&attribute),
                RTA_PREFSRC => route.source = attribute.ip(),
                _ => {}
            }
        }
        Some(route)
    }
}

// === impl Socket ===

impl Socket {
    /// The route to `address`; an error such as ENETUNREACH if there is none.
    pub fn route_to(&mut self, address: IpAddr) -> Result<RouteLookup> {
        let family = Family::of(address);
        let fill = |message: &mut MessageBuilder<'_>| {
            message.raw(&[af(family), family.bits(), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            message.attr_ip(RTA_DST, address);
        };
        self.get(|| format!("look up the route to {address}"), RTM_GETROUTE, fill, RouteLookup::decode)
    }
}
