//! Sysctls of links over rtnetlink: only a few exist there, but the kernel sends events for them,
//! and lists those of all links at once. The agent's drift detection uses this; other code reads
//! and writes files below `/proc/sys`.

use russet_addr::Family;

use crate::error::Result;
use crate::kernel::*;
use crate::socket::Socket;
use crate::wire::{Message, MessageBuilder, array};

/// Sysctls of a link, or of all links; those that a message does not contain are `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Conf {
    /// IPv4 or IPv6.
    pub family: Family,
    /// The link or default that they belong to.
    pub of: ConfTarget,
    /// Whether forwarding is enabled.
    pub forwarding: Option<bool>,
    /// The reverse-path filter; IPv4 only.
    pub rp_filter: Option<u32>,
    /// Whether it answers for other addresses: `proxy_arp`, `proxy_ndp`.
    pub proxy: Option<bool>,
}

/// The owner of sysctls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConfTarget {
    /// `conf/all`
    All,
    /// `conf/default`
    Default,
    /// Those of the link with this index.
    Link(u32),
}

/// `NETCONFA_IFINDEX_ALL`, linux/netconf.h
const ALL: u32 = -1i32 as u32;
/// `NETCONFA_IFINDEX_DEFAULT`
const DEFAULT: u32 = -2i32 as u32;

// === impl Conf ===

impl Conf {
    /// Decodes `RTM_NEWNETCONF` and `RTM_DELNETCONF`; `None` for other messages.
    pub fn decode(message: &Message<'_>) -> Option<Self> {
        if !matches!(message.kind, RTM_NEWNETCONF | RTM_DELNETCONF) {
            return None;
        }
        let [number] = array(message.payload, 0)?;
        let attributes = message.attributes(NETCONFMSG_BYTES);
        let value = |kind| attributes.find(kind).and_then(|attribute| attribute.u32());
        let of = match value(NETCONFA_IFINDEX)? {
            ALL => ConfTarget::All,
            DEFAULT => ConfTarget::Default,
            ifindex => ConfTarget::Link(ifindex),
        };
        Some(Self {
            family: family(number)?,
            of,
            forwarding: value(NETCONFA_FORWARDING).map(|on| on != 0),
            rp_filter: value(NETCONFA_RP_FILTER),
            proxy: value(NETCONFA_PROXY_NEIGH).map(|on| on != 0),
        })
    }
}

// === impl Socket ===

impl Socket {
    /// The sysctls of all links of a family.
    pub fn confs(&mut self, family: Family) -> Result<Vec<Conf>> {
        let fill = |message: &mut MessageBuilder<'_>| {
            message.raw(&[af(family)]);
        };
        self.dump("list sysctls of links", RTM_GETNETCONF, fill, Conf::decode)
    }
}
