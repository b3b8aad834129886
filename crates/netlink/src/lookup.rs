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
pub struct Way {
    /// What happens to packets; `Local` for addresses of this machine.
    pub kind: RouteKind,
    /// The index of the outgoing link.
    pub oif: Option<u32>,
    /// The next hop; `None` if the address is on the link.
    pub gateway: Option<IpAddr>,
    /// The source address of locally sent packets.
    pub source: Option<IpAddr>,
}

// === impl Way ===

impl Way {
    /// Decodes the answer to `RTM_GETROUTE` for one address.
    fn decode(message: &Message<'_>) -> Option<Self> {
        if message.kind != RTM_NEWROUTE {
            return None;
        }
        let [kind] = array(message.payload, 7)?;
        let mut way = Self { kind: RouteKind::from_number(kind), oif: None, gateway: None, source: None };
        for attribute in message.attributes(RTMSG_BYTES) {
            match attribute.kind {
                RTA_OIF => way.oif = attribute.u32(),
                RTA_GATEWAY => way.gateway = attribute.ip(),
                RTA_VIA => way.gateway = crate::route::via(&attribute),
                RTA_PREFSRC => way.source = attribute.ip(),
                _ => {}
            }
        }
        Some(way)
    }
}

// === impl Socket ===

impl Socket {
    /// The route to `address`; an error such as ENETUNREACH if there is none.
    pub fn way_to(&mut self, address: IpAddr) -> Result<Way> {
        let family = Family::of(address);
        let fill = |message: &mut MessageBuilder<'_>| {
            message.raw(&[af(family), family.bits(), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            message.attr_ip(RTA_DST, address);
        };
        self.get(|| format!("look up the way to {address}"), RTM_GETROUTE, fill, Way::decode)
    }
}
