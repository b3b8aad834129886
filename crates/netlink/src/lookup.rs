//! Which way a packet would take: the kernel's own decision, rules and all tables included. Called by the daemons' choice of an interface.

use std::net::IpAddr;

use russet_addr::Family;

use crate::error::Result;
use crate::kernel::*;
use crate::route::RouteKind;
use crate::socket::Socket;
use crate::wire::{Message, MessageBuilder, array};

/// The way to one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// What happens to packets; `Local` for the machine's own addresses.
    pub kind: RouteKind,
    /// The index of the link that they leave by.
    pub oif: Option<u32>,
    /// The next hop; none when the address is on the link.
    pub gateway: Option<IpAddr>,
    /// The source address that they get.
    pub source: Option<IpAddr>,
}

// === impl Way ===

impl Way {
    /// Reads the answer to `RTM_GETROUTE` for one address.
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
    /// The way to `address`; ENETUNREACH and the like without one.
    pub fn way_to(&mut self, address: IpAddr) -> Result<Way> {
        let family = Family::of(address);
        let fill = |message: &mut MessageBuilder<'_>| {
            message.raw(&[af(family), family.bits(), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            message.attr_ip(RTA_DST, address);
        };
        self.get(|| format!("look up the way to {address}"), RTM_GETROUTE, fill, Way::decode)
    }
}
