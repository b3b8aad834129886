//! Addresses of links.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::BitOr;

use ipnet::IpNet;
use russet_addr::Family;

use crate::batch::Batch;
use crate::error::Result;
use crate::kernel::*;
use crate::socket::Socket;
use crate::wire::{Message, MessageBuilder, array};

/// An address of a link, as written and as read back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    /// The index of the link.
    pub ifindex: u32,
    /// The address, host bits included, and the length of its prefix.
    pub net: IpNet,
    /// The address of the other end of a point-to-point link.
    pub peer: Option<IpAddr>,
    /// The broadcast address.
    pub broadcast: Option<Ipv4Addr>,
    /// How far the address is valid.
    pub scope: Scope,
    /// `IFA_F_*`. With [`AddressFlags::DEPRECATED`] it is added with a preferred lifetime of 0.
    pub flags: AddressFlags,
    /// The program that has added it; 0 if that is not known. The kernel keeps it since Linux 5.18.
    pub protocol: u8,
}

/// `IFA_F_*`, linux/if_addr.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AddressFlags(pub u32);

/// `RT_SCOPE_*`: how far away something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Scope {
    /// Anywhere (`global` in the output of `ip`).
    #[default]
    Universe,
    /// Inside the site.
    Site,
    /// On the link.
    Link,
    /// On this machine.
    Host,
    /// Nowhere; in a deletion, any scope.
    Nowhere,
    /// Another number.
    Other(u8),
}

// === impl Address ===

impl Address {
    /// A global address. IPv6 addresses skip duplicate address detection, which takes a second or
    /// more.
    pub fn new(ifindex: u32, net: IpNet) -> Self {
        let flags = match net {
            IpNet::V4(_) => AddressFlags::default(),
            IpNet::V6(_) => AddressFlags::NODAD,
        };
        Self { ifindex, net, peer: None, broadcast: None, scope: Scope::Universe, flags, protocol: 0 }
    }

    /// Decodes `RTM_NEWADDR` and `RTM_DELADDR`; `None` for other messages.
    pub fn decode(message: &Message<'_>) -> Option<Self> {
        if !matches!(message.kind, RTM_NEWADDR | RTM_DELADDR) {
            return None;
        }
        let [af, prefix_len, flags, scope] = array(message.payload, 0)?;
        let ifindex = array(message.payload, 4).map(u32::from_ne_bytes)?;
        let (mut local, mut other, mut broadcast) = (None, None, None);
        let (mut flags, mut protocol) = (u32::from(flags), 0);
        for attribute in message.attributes(IFADDRMSG_BYTES) {
            match attribute.kind {
                IFA_LOCAL => local = attribute.ip(),
                IFA_ADDRESS => other = attribute.ip(),
                IFA_BROADCAST => broadcast = attribute.ip(),
                IFA_FLAGS => flags = attribute.u32().unwrap_or(flags),
                IFA_PROTO => protocol = attribute.u8().unwrap_or(0),
                _ => {}
            }
        }
        let address = local.or(other).filter(|ip| family(af) == Some(Family::of(*ip)))?;
        Some(Self {
            ifindex,
            net: IpNet::new(address, prefix_len).ok()?,
            peer: other.filter(|other| *other != address),
            broadcast: broadcast.and_then(|ip| if let IpAddr::V4(ip) = ip { Some(ip) } else { None }),
            scope: Scope::of(scope),
            flags: AddressFlags(flags),
            protocol,
        })
    }

    fn encode(&self, message: &mut MessageBuilder<'_>) {
        let mut header = [0; IFADDRMSG_BYTES];
        header[0] = af(Family::of_net(&self.net));
        header[1] = self.net.prefix_len();
        header[3] = self.scope.number();
        header[4..8].copy_from_slice(&self.ifindex.to_ne_bytes());
        message.raw(&header);
        message.attr_ip(IFA_LOCAL, self.net.addr());
        message.attr_ip(IFA_ADDRESS, self.peer.unwrap_or(self.net.addr()));
        if let Some(broadcast) = self.broadcast {
            message.attr_ip(IFA_BROADCAST, broadcast.into());
        }
        if self.flags != AddressFlags::default() {
            message.attr_u32(IFA_FLAGS, self.flags.0);
        }
        if self.flags.contains(AddressFlags::DEPRECATED) {
            message.attr(IFA_CACHEINFO, &deprecated_for_ever());
        }
        if self.protocol != 0 {
            message.attr_u8(IFA_PROTO, self.protocol);
        }
    }
}

/// `struct ifa_cacheinfo`: preferred for 0 s, and valid without end.
fn deprecated_for_ever() -> [u8; 16] {
    let mut lifetimes = [0; 16];
    lifetimes[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
    lifetimes
}

// === impl AddressFlags ===

impl AddressFlags {
    /// A temporary IPv6 privacy address; for IPv4 the same bit marks a secondary address.
    pub const TEMPORARY: Self = Self(0x01);
    /// No duplicate address detection.
    pub const NODAD: Self = Self(0x02);
    /// Duplicate address detection found a duplicate.
    pub const DADFAILED: Self = Self(0x08);
    /// Deprecated: not used for new connections.
    pub const DEPRECATED: Self = Self(0x20);
    /// Duplicate address detection is in progress.
    pub const TENTATIVE: Self = Self(0x40);
    /// Unlimited lifetime; the kernel sets this flag.
    pub const PERMANENT: Self = Self(0x80);
    /// The kernel adds no route for the prefix.
    pub const NOPREFIXROUTE: Self = Self(0x200);

    /// Whether all of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for AddressFlags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

// === impl Scope ===

impl Scope {
    pub(crate) const fn number(self) -> u8 {
        match self {
            Scope::Universe => 0,
            Scope::Site => 200,
            Scope::Link => 253,
            Scope::Host => 254,
            Scope::Nowhere => 255,
            Scope::Other(number) => number,
        }
    }

    /// The scope with this number (`RT_SCOPE_*`).
    pub const fn of(number: u8) -> Self {
        match number {
            0 => Scope::Universe,
            200 => Scope::Site,
            253 => Scope::Link,
            254 => Scope::Host,
            255 => Scope::Nowhere,
            number => Scope::Other(number),
        }
    }
}

// === impl Batch ===

/// Addresses.
impl Batch {
    /// Adds an address; EEXIST if the link has it.
    pub fn add_address(&mut self, address: &Address) -> &mut Self {
        self.push(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, |message| address.encode(message))
    }

    /// Adds an address, or changes the flags of an existing one.
    pub fn replace_address(&mut self, address: &Address) -> &mut Self {
        self.push(RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, |message| address.encode(message))
    }

    /// Deletes an address; EADDRNOTAVAIL if it does not exist.
    pub fn delete_address(&mut self, address: &Address) -> &mut Self {
        self.push(RTM_DELADDR, 0, |message| address.encode(message))
    }
}

// === impl Socket ===

/// Addresses.
impl Socket {
    /// All addresses of all links, IPv4 first.
    pub fn addresses(&mut self) -> Result<Vec<Address>> {
        self.addresses_of(0)
    }

    /// The addresses of one link, or of all links for index 0.
    pub fn addresses_of(&mut self, ifindex: u32) -> Result<Vec<Address>> {
        let mut header = [0; IFADDRMSG_BYTES];
        header[4..8].copy_from_slice(&ifindex.to_ne_bytes());
        let fill = |message: &mut MessageBuilder<'_>| {
            message.raw(&header);
        };
        let wanted = |address: &Address| ifindex == 0 || address.ifindex == ifindex;
        self.dump("list addresses", RTM_GETADDR, fill, |message| Address::decode(message).filter(wanted))
    }
}
