//! Kinds of links, and the options of each kind.

use std::net::IpAddr;
use std::os::fd::RawFd;

use russet_addr::{IfName, Mac};

use super::{Flags, PacketSizes, attr_fd, attr_option, ifinfomsg};
use crate::kernel::*;
use crate::wire::{Attributes, MessageBuilder};

/// The kinds of links that can be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkKind {
    /// One end of a pair.
    Veth(Peer),
    /// The primary end of a pair whose programs run where a packet is sent, in the mode that has MACs; since Linux 6.7.
    Netkit(Peer),
    /// A bridge.
    Bridge(Bridge),
    /// A VXLAN tunnel endpoint.
    Vxlan(Vxlan),
    /// An IP-in-IP tunnel endpoint (kind `ipip`), IPv4 in IPv4 only.
    Ipip(Ipip),
    /// Any other kind with its encoded `IFLA_INFO_DATA` (may be empty): macvlan, wireguard, dummy,
    /// ...
    Other {
        /// The kernel's name of the kind.
        kind: &'static str,
        /// Attributes.
        data: Vec<u8>,
    },
}

/// The other end of a pair. It is always created down: the kernel refuses to create a veth's up
/// before its partner exists (ENOTCONN).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub name: IfName,
    /// An open network namespace in which it is created, instead of the socket's.
    pub netns: Option<RawFd>,
    /// Its MTU, in bytes.
    pub mtu_bytes: Option<u32>,
    /// Its MAC; random otherwise.
    pub mac: Option<Mac>,
    /// Length of the transmit queue.
    pub tx_queue_len: Option<u32>,
    /// Its largest packets inside the kernel.
    pub sizes: Option<PacketSizes>,
}

/// Options of a bridge; STP is always off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bridge {
    /// Whether it filters by VLAN.
    pub vlan_filtering: bool,
    /// Whether multicast is sent only to ports with listeners.
    pub mcast_snooping: bool,
}

/// Options of a VXLAN device, as written and as read back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vxlan {
    /// The network identifier, 24 bits.
    pub vni: u32,
    /// The outer source address.
    pub local: Option<IpAddr>,
    /// The index of the link through which outer packets leave.
    pub parent: Option<u32>,
    /// The outer UDP destination port.
    pub port: u16,
    /// The multicast group or remote for unknown destinations.
    pub group: Option<IpAddr>,
    /// Whether received packets create FDB entries.
    pub learning: bool,
    /// Whether lookups of unknown MACs cause notifications.
    pub l2miss: bool,
    /// Whether packets carry the sender's group policy.
    pub gbp: bool,
    /// Whether each packet carries its network and destination as metadata (`external`); the device
    /// then has no `vni`.
    pub collect_metadata: bool,
    /// The outer TTL; 0 is the kernel's default.
    pub ttl: u8,
    /// The outer don't-fragment bit.
    pub df: Df,
    /// Whether outer IPv4 packets have a UDP checksum.
    pub udp_csum: bool,
    /// Whether outer IPv6 packets are sent without UDP checksum.
    pub udp_zero_csum6_tx: bool,
    /// Whether outer IPv6 packets without UDP checksum are received.
    pub udp_zero_csum6_rx: bool,
}

/// Options of an IP-in-IP device; other attributes have the kernel's defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ipip {
    /// The outer source address.
    pub local: Option<IpAddr>,
    /// The only remote endpoint; without one, the gateway of the route is used.
    pub remote: Option<IpAddr>,
}

/// The don't-fragment bit of a tunnel's outer header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Df {
    /// Clear.
    #[default]
    Unset,
    /// Set.
    Set,
    /// Copied from the inner packet.
    Inherit,
}

/// Options of a bridge port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BridgePort {
    /// Whether a frame may leave through the port by which it came.
    pub hairpin: bool,
    /// Whether frames between isolated ports are dropped.
    pub isolated: bool,
}

// === impl LinkKind ===

impl LinkKind {
    /// The kernel's name of the kind.
    pub fn name(&self) -> &str {
        match self {
            LinkKind::Veth(_) => VETH,
            LinkKind::Netkit(_) => NETKIT,
            LinkKind::Bridge(_) => "bridge",
            LinkKind::Vxlan(_) => "vxlan",
            LinkKind::Ipip(_) => "ipip",
            LinkKind::Other { kind, .. } => kind,
        }
    }

    pub(super) fn encode(&self, message: &mut MessageBuilder<'_>) {
        if matches!(self, LinkKind::Veth(_)) {
            one_queue(message);
        }
        message.nested(IFLA_LINKINFO, |info| {
            info.attr_str(IFLA_INFO_KIND, self.name());
            match self {
                LinkKind::Veth(peer) => {
                    info.nested(IFLA_INFO_DATA, |data| {
                        data.nested(VETH_INFO_PEER, |message| peer.encode(message));
                    });
                }
                LinkKind::Netkit(peer) => {
                    info.nested(IFLA_INFO_DATA, |data| {
                        data.nested(IFLA_NETKIT_PEER_INFO, |message| peer.encode(message));
                        data.attr_u32(IFLA_NETKIT_MODE, NETKIT_L2);
                    });
                }
                LinkKind::Bridge(bridge) => {
                    info.nested(IFLA_INFO_DATA, |data| bridge.encode(data));
                }
                LinkKind::Vxlan(vxlan) => {
                    info.nested(IFLA_INFO_DATA, |data| vxlan.encode(data));
                }
                LinkKind::Ipip(ipip) => {
                    info.nested(IFLA_INFO_DATA, |data| ipip.encode(data));
                }
                LinkKind::Other { data, .. } if data.is_empty() => {}
                LinkKind::Other { data, .. } => {
                    info.nested(IFLA_INFO_DATA, |info| {
                        info.raw(data);
                    });
                }
            }
        });
    }
}

/// Without this, a veth gets a queue per possible CPU, each with its memory.
fn one_queue(message: &mut MessageBuilder<'_>) {
    message.attr_u32(IFLA_NUM_TX_QUEUES, 1).attr_u32(IFLA_NUM_RX_QUEUES, 1);
}

// === impl Peer ===

impl Peer {
    /// A peer in the same namespace, with default options.
    pub fn new(name: IfName) -> Self {
        Self { name, netns: None, mtu_bytes: None, mac: None, tx_queue_len: None, sizes: None }
    }

    fn encode(&self, message: &mut MessageBuilder<'_>) {
        ifinfomsg(message, 0, Flags::default());
        message.attr_str(IFLA_IFNAME, self.name.as_str());
        attr_option(message, IFLA_MTU, self.mtu_bytes);
        if let Some(mac) = self.mac {
            message.attr(IFLA_ADDRESS, &mac.octets());
        }
        attr_option(message, IFLA_TXQLEN, self.tx_queue_len);
        PacketSizes::encode(self.sizes, message);
        attr_fd(message, self.netns);
        one_queue(message);
    }
}

// === impl Bridge ===

impl Bridge {
    fn encode(&self, data: &mut MessageBuilder<'_>) {
        // Without STP a port needs no listening and learning time.
        data.attr_u32(IFLA_BR_FORWARD_DELAY, 0).attr_u32(IFLA_BR_STP_STATE, 0);
        if self.vlan_filtering {
            // Off is the default, and kernels without VLAN filtering refuse even that.
            data.attr_u8(IFLA_BR_VLAN_FILTERING, 1);
        }
        data.attr_u8(IFLA_BR_MCAST_SNOOPING, u8::from(self.mcast_snooping));
    }
}

// === impl BridgePort ===

impl BridgePort {
    pub(super) fn encode(self, message: &mut MessageBuilder<'_>) {
        message.nested(IFLA_LINKINFO, |info| {
            info.attr_str(IFLA_INFO_SLAVE_KIND, "bridge");
            info.nested(IFLA_INFO_SLAVE_DATA, |data| {
                data.attr_u8(IFLA_BRPORT_MODE, u8::from(self.hairpin));
                if self.isolated {
                    // Off is the default, and kernels before 4.18 do not know the attribute.
                    data.attr_u8(IFLA_BRPORT_ISOLATED, 1);
                }
            });
        });
    }

    pub(super) fn decode(data: Attributes<'_>) -> Self {
        let mut port = Self::default();
        for attribute in data {
            let on = attribute.u8().unwrap_or(0) != 0;
            match attribute.kind {
                IFLA_BRPORT_MODE => port.hairpin = on,
                IFLA_BRPORT_ISOLATED => port.isolated = on,
                _ => {}
            }
        }
        port
    }
}

// === impl Vxlan ===

impl Vxlan {
    /// A device without learning, whose source address follows from the route.
    pub fn new(vni: u32, port: u16) -> Self {
        Self {
            vni,
            local: None,
            parent: None,
            port,
            group: None,
            learning: false,
            l2miss: false,
            gbp: false,
            collect_metadata: false,
            ttl: 0,
            df: Df::Unset,
            udp_csum: false,
            udp_zero_csum6_tx: false,
            udp_zero_csum6_rx: false,
        }
    }

    fn encode(&self, data: &mut MessageBuilder<'_>) {
        match self.collect_metadata {
            true => data.attr_u8(IFLA_VXLAN_COLLECT_METADATA, 1),
            false => data.attr_u32(IFLA_VXLAN_ID, self.vni),
        };
        attr_address(data, [IFLA_VXLAN_LOCAL, IFLA_VXLAN_LOCAL6], self.local);
        attr_address(data, [IFLA_VXLAN_GROUP, IFLA_VXLAN_GROUP6], self.group);
        attr_option(data, IFLA_VXLAN_LINK, self.parent);
        data.attr_be16(IFLA_VXLAN_PORT, self.port);
        data.attr_u8(IFLA_VXLAN_LEARNING, u8::from(self.learning));
        if self.l2miss {
            data.attr_u8(IFLA_VXLAN_L2MISS, 1);
        }
        if self.gbp {
            data.attr_flag(IFLA_VXLAN_GBP);
        }
        data.attr_u8(IFLA_VXLAN_TTL, self.ttl);
        match self.df {
            Df::Unset => {}
            Df::Set => {
                data.attr_u8(IFLA_VXLAN_DF, 1);
            }
            Df::Inherit => {
                data.attr_u8(IFLA_VXLAN_DF, 2);
            }
        }
        data.attr_u8(IFLA_VXLAN_UDP_CSUM, u8::from(self.udp_csum));
        data.attr_u8(IFLA_VXLAN_UDP_ZERO_CSUM6_TX, u8::from(self.udp_zero_csum6_tx));
        data.attr_u8(IFLA_VXLAN_UDP_ZERO_CSUM6_RX, u8::from(self.udp_zero_csum6_rx));
    }

    pub(super) fn decode(data: Attributes<'_>) -> Self {
        let mut vxlan = Self::new(0, 0);
        for attribute in data {
            let on = attribute.u8().unwrap_or(0) != 0;
            match attribute.kind {
                IFLA_VXLAN_ID => vxlan.vni = attribute.u32().unwrap_or(0),
                // The kernel may include an unset address of the other family.
                IFLA_VXLAN_LOCAL | IFLA_VXLAN_LOCAL6 => {
                    vxlan.local = attribute.ip().filter(|ip| !ip.is_unspecified()).or(vxlan.local);
                }
                IFLA_VXLAN_GROUP | IFLA_VXLAN_GROUP6 => {
                    vxlan.group = attribute.ip().filter(|ip| !ip.is_unspecified()).or(vxlan.group);
                }
                IFLA_VXLAN_LINK => vxlan.parent = attribute.u32().filter(|index| *index != 0),
                IFLA_VXLAN_PORT => vxlan.port = attribute.be16().unwrap_or(0),
                IFLA_VXLAN_LEARNING => vxlan.learning = on,
                IFLA_VXLAN_L2MISS => vxlan.l2miss = on,
                IFLA_VXLAN_GBP => vxlan.gbp = true,
                IFLA_VXLAN_COLLECT_METADATA => vxlan.collect_metadata = on,
                IFLA_VXLAN_TTL => vxlan.ttl = attribute.u8().unwrap_or(0),
                IFLA_VXLAN_DF => vxlan.df = Df::from_number(attribute.u8().unwrap_or(0)),
                IFLA_VXLAN_UDP_CSUM => vxlan.udp_csum = on,
                IFLA_VXLAN_UDP_ZERO_CSUM6_TX => vxlan.udp_zero_csum6_tx = on,
                IFLA_VXLAN_UDP_ZERO_CSUM6_RX => vxlan.udp_zero_csum6_rx = on,
                _ => {}
            }
        }
        vxlan
    }
}

/// Addresses have a different attribute for each family.
fn attr_address(data: &mut MessageBuilder<'_>, [v4, v6]: [u16; 2], address: Option<IpAddr>) {
    if let Some(address) = address {
        data.attr_ip(if address.is_ipv4() { v4 } else { v6 }, address);
    }
}

// === impl Ipip ===

impl Ipip {
    fn encode(&self, data: &mut MessageBuilder<'_>) {
        for (kind, address) in [(IFLA_IPTUN_LOCAL, self.local), (IFLA_IPTUN_REMOTE, self.remote)] {
            if let Some(address) = address {
                data.attr_ip(kind, address);
            }
        }
        data.attr_u8(IFLA_IPTUN_PROTO, IPPROTO_IPIP);
    }

    pub(super) fn decode(data: Attributes<'_>) -> Self {
        let mut ipip = Self::default();
        for attribute in data {
            let address = attribute.ip().filter(|ip| !ip.is_unspecified());
            match attribute.kind {
                IFLA_IPTUN_LOCAL => ipip.local = address,
                IFLA_IPTUN_REMOTE => ipip.remote = address,
                _ => {}
            }
        }
        ipip
    }
}

// === impl Df ===

impl Df {
    const fn from_number(number: u8) -> Self {
        match number {
            1 => Df::Set,
            2 => Df::Inherit,
            _ => Df::Unset,
        }
    }
}
