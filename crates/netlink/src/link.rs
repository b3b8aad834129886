//! Links: creation in place, changes, deletion, and decoding of dumps.
//!
//! `attach` creates and dooms veths, `overlay` creates vxlan devices, the plugins create bridges.

mod kind;
mod read;
mod sizes;

use std::os::fd::RawFd;

use russet_addr::{IfName, Mac};

pub use kind::{Bridge, BridgePort, Df, Ipip, LinkKind, Peer, Vxlan};
pub use read::{Link, OperState};
pub use sizes::PacketSizes;

use crate::batch::Batch;
use crate::kernel::*;
use crate::wire::MessageBuilder;

/// A link to be created.
///
/// The kernel ignores an alias and an address generation mode during creation: use a [`LinkSet`]
/// for those.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkAdd {
    /// Its name.
    pub name: IfName,
    /// Its kind and the options of that kind.
    pub kind: LinkKind,
    /// Whether it is up from the beginning.
    pub up: bool,
    /// Its MTU in bytes; the kernel's default otherwise.
    pub mtu_bytes: Option<u32>,
    /// Its MAC; random otherwise.
    pub mac: Option<Mac>,
    /// The link group.
    pub group: Option<u32>,
    /// The index of the bridge that it is added to.
    pub master: Option<u32>,
    /// The index of the link below it (macvlan, ipvlan, vlan, ...); a vxlan device has its own field.
    pub parent: Option<u32>,
    /// Length of the transmit queue.
    pub tx_queue_len: Option<u32>,
    /// Its largest packets inside the kernel. During creation the kernel does not compare them with what the driver takes.
    pub sizes: Option<PacketSizes>,
    /// An open network namespace in which it is created, instead of the socket's.
    pub netns: Option<RawFd>,
}

/// A reference to a link.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LinkRef {
    /// By index.
    Index(u32),
    /// By name.
    Name(IfName),
}

/// A change of a link: properties that are `None` stay as they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkSet {
    /// The link to change; renaming requires an index.
    pub target: LinkRef,
    /// Up or down. The kernel does this before the address generation mode: use two requests for both.
    pub up: Option<bool>,
    /// Whether it receives frames for all addresses.
    pub promiscuous: Option<bool>,
    /// The new name. Before 6.2 the link must be down.
    pub name: Option<IfName>,
    /// At most 255 bytes; empty removes it.
    pub alias: Option<String>,
    /// The link group.
    pub group: Option<u32>,
    /// The MTU, in bytes.
    pub mtu_bytes: Option<u32>,
    /// Its MAC.
    pub mac: Option<Mac>,
    /// The index of the bridge that it is added to; 0 removes it from its bridge.
    pub master: Option<u32>,
    /// Length of the transmit queue.
    pub tx_queue_len: Option<u32>,
    /// Its largest packets inside the kernel; EINVAL above what the driver takes.
    pub sizes: Option<PacketSizes>,
    /// How IPv6 link-local addresses are generated.
    pub addr_gen_mode: Option<AddrGenMode>,
    /// Values of `net/ipv4/conf/LINK`, set without the side effects of writing the files: for a
    /// link that was never up.
    pub ipv4_conf: Vec<(Ipv4Conf, u32)>,
    /// An open network namespace to move it to. Costs 20 ms: create in place instead (dataplane.md section 3.1).
    pub netns: Option<RawFd>,
}

/// The links to delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkDel {
    /// The one with this index.
    Index(u32),
    /// The one with this name.
    Name(IfName),
    /// All of a group at once, which takes as long as one. Not found if the group is empty.
    Group(u32),
}

/// `IFLA_INET6_ADDR_GEN_MODE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddrGenMode {
    /// From the MAC (the kernel's default).
    Eui64,
    /// No link-local address at all.
    None,
    /// RFC 7217 with the system's secret.
    StablePrivacy,
    /// RFC 7217 with a random secret.
    Random,
}

/// A file of `net/ipv4/conf/LINK` (linux/ip.h, `IPV4_DEVCONF_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ipv4Conf {
    /// `forwarding`.
    Forwarding,
    /// `proxy_arp`.
    ProxyArp,
    /// `rp_filter`.
    RpFilter,
    /// `route_localnet`.
    RouteLocalnet,
}

/// The fields of `struct ifinfomsg` besides the index.
#[derive(Default, Clone, Copy)]
struct Flags {
    set: u32,
    change: u32,
}

// === impl LinkAdd ===

impl LinkAdd {
    /// A link that is down, with default options.
    pub fn new(name: IfName, kind: LinkKind) -> Self {
        Self {
            name,
            kind,
            up: false,
            mtu_bytes: None,
            mac: None,
            group: None,
            master: None,
            parent: None,
            tx_queue_len: None,
            sizes: None,
            netns: None,
        }
    }

    /// A veth pair.
    pub fn veth(name: IfName, peer: Peer) -> Self {
        Self::new(name, LinkKind::Veth(peer))
    }

    /// A netkit pair, of which this is the primary end.
    pub fn netkit(name: IfName, peer: Peer) -> Self {
        Self::new(name, LinkKind::Netkit(peer))
    }

    fn encode(&self, message: &mut MessageBuilder<'_>) {
        ifinfomsg(message, 0, Flags::up(self.up.then_some(true)));
        message.attr_str(IFLA_IFNAME, self.name.as_str());
        attr_option(message, IFLA_MTU, self.mtu_bytes);
        if let Some(mac) = self.mac {
            message.attr(IFLA_ADDRESS, &mac.octets());
        }
        attr_option(message, IFLA_GROUP, self.group);
        attr_option(message, IFLA_MASTER, self.master);
        attr_option(message, IFLA_LINK, self.parent);
        attr_option(message, IFLA_TXQLEN, self.tx_queue_len);
        PacketSizes::encode(self.sizes, message);
        attr_fd(message, self.netns);
        self.kind.encode(message);
    }
}

// === impl LinkSet ===

impl LinkSet {
    /// An empty change of a link, by index.
    pub fn index(index: u32) -> Self {
        Self::new(LinkRef::Index(index))
    }

    /// An empty change of a link, by name.
    pub fn named(name: IfName) -> Self {
        Self::new(LinkRef::Name(name))
    }

    /// An empty change of a link.
    pub fn new(target: LinkRef) -> Self {
        Self {
            target,
            up: None,
            promiscuous: None,
            name: None,
            alias: None,
            group: None,
            mtu_bytes: None,
            mac: None,
            master: None,
            tx_queue_len: None,
            sizes: None,
            addr_gen_mode: None,
            ipv4_conf: Vec::new(),
            netns: None,
        }
    }

    fn encode(&self, message: &mut MessageBuilder<'_>) {
        let index = if let LinkRef::Index(index) = self.target { index } else { 0 };
        ifinfomsg(message, index, Flags::up(self.up).promiscuous(self.promiscuous));
        if let LinkRef::Name(name) = &self.target {
            message.attr_str(IFLA_IFNAME, name.as_str());
        }
        if let Some(name) = &self.name {
            message.attr_str(IFLA_IFNAME, name.as_str());
        }
        if let Some(alias) = &self.alias {
            message.attr(IFLA_IFALIAS, alias.as_bytes());
        }
        attr_option(message, IFLA_GROUP, self.group);
        attr_option(message, IFLA_MTU, self.mtu_bytes);
        if let Some(mac) = self.mac {
            message.attr(IFLA_ADDRESS, &mac.octets());
        }
        attr_option(message, IFLA_MASTER, self.master);
        attr_option(message, IFLA_TXQLEN, self.tx_queue_len);
        PacketSizes::encode(self.sizes, message);
        attr_fd(message, self.netns);
        if self.addr_gen_mode.is_some() || !self.ipv4_conf.is_empty() {
            message.nested(IFLA_AF_SPEC, |spec| self.encode_families(spec));
        }
    }

    fn encode_families(&self, spec: &mut MessageBuilder<'_>) {
        if !self.ipv4_conf.is_empty() {
            spec.nested(u16::from(AF_INET), |inet| {
                inet.nested(IFLA_INET_CONF, |conf| {
                    self.ipv4_conf.iter().for_each(|(file, value)| {
                        conf.attr_u32(file.number(), *value);
                    });
                });
            });
        }
        if let Some(mode) = self.addr_gen_mode {
            spec.nested(u16::from(AF_INET6), |inet6| {
                inet6.attr_u8(IFLA_INET6_ADDR_GEN_MODE, mode.number());
            });
        }
    }
}

// === impl Ipv4Conf ===

impl Ipv4Conf {
    /// The setting with this file name.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "forwarding" => Self::Forwarding,
            "proxy_arp" => Self::ProxyArp,
            "rp_filter" => Self::RpFilter,
            "route_localnet" => Self::RouteLocalnet,
            _ => return None,
        })
    }

    const fn number(self) -> u16 {
        match self {
            Self::Forwarding => 1,
            Self::ProxyArp => 3,
            Self::RpFilter => 8,
            Self::RouteLocalnet => 26,
        }
    }
}

// === impl AddrGenMode ===

impl AddrGenMode {
    pub(crate) const fn number(self) -> u8 {
        match self {
            AddrGenMode::Eui64 => 0,
            AddrGenMode::None => 1,
            AddrGenMode::StablePrivacy => 2,
            AddrGenMode::Random => 3,
        }
    }
}

// === impl Flags ===

impl Flags {
    fn up(up: Option<bool>) -> Self {
        match up {
            None => Self::default(),
            Some(up) => Self { set: if up { IFF_UP } else { 0 }, change: IFF_UP },
        }
    }

    fn promiscuous(mut self, on: Option<bool>) -> Self {
        if let Some(on) = on {
            self.set |= if on { IFF_PROMISC } else { 0 };
            self.change |= IFF_PROMISC;
        }
        self
    }
}

// === impl Batch ===

/// Links.
impl Batch {
    /// Creates a link; EEXIST if the name is in use.
    pub fn add_link(&mut self, link: &LinkAdd) -> &mut Self {
        self.push(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, |message| link.encode(message))
    }

    /// Changes a link.
    pub fn set_link(&mut self, change: &LinkSet) -> &mut Self {
        self.push(RTM_SETLINK, 0, |message| change.encode(message));
        if change.name.is_some() && matches!(change.target, LinkRef::Name(_)) {
            self.refuse("only a link given by index can be renamed");
        }
        self
    }

    /// Changes a bridge port. The link must have been added to the bridge by an earlier request.
    pub fn set_bridge_port(&mut self, index: u32, port: &BridgePort) -> &mut Self {
        self.push(RTM_NEWLINK, 0, |message| {
            ifinfomsg(message, index, Flags::default());
            port.encode(message);
        })
    }

    /// Deletes a link, or all of a group.
    pub fn delete_link(&mut self, which: &LinkDel) -> &mut Self {
        self.push(RTM_DELLINK, 0, |message| {
            ifinfomsg(message, if let LinkDel::Index(index) = which { *index } else { 0 }, Flags::default());
            match which {
                LinkDel::Index(_) => {}
                LinkDel::Name(name) => {
                    message.attr_str(IFLA_IFNAME, name.as_str());
                }
                LinkDel::Group(group) => {
                    message.attr_u32(IFLA_GROUP, *group);
                }
            }
        })
    }
}

fn ifinfomsg(message: &mut MessageBuilder<'_>, index: u32, flags: Flags) {
    let mut header = [0; IFINFOMSG_BYTES];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.set.to_ne_bytes());
    header[12..16].copy_from_slice(&flags.change.to_ne_bytes());
    message.raw(&header);
}

fn attr_option(message: &mut MessageBuilder<'_>, kind: u16, value: Option<u32>) {
    if let Some(value) = value {
        message.attr_u32(kind, value);
    }
}

fn attr_fd(message: &mut MessageBuilder<'_>, fd: Option<RawFd>) {
    if let Some(fd) = fd {
        message.attr(IFLA_NET_NS_FD, &fd.to_ne_bytes());
    }
}
