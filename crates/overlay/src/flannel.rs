//! The kernel's side of flannel's backends: the devices, routes, neighbours and forwarding entries
//! that a node needs for the leases of its peers (flannel.md sections 4, 6 and 14). Called by the
//! flannel daemon; the engine is that of the rest of this crate: `desired` values, dumps, a `plan`,
//! `apply`.
//!
//! [`Fabric`] is synchronous and works in the network namespace of the thread that opened it;
//! sysctls follow the calling thread. A daemon calls [`prepare`](Fabric::prepare) before it
//! acquires a lease, [`own`](Fabric::own) after that, [`reset`](Fabric::reset) with every snapshot
//! of the peers, [`change`](Fabric::change) with every event, and [`drifted`](Fabric::drifted)
//! whenever the fabric's descriptor is readable, then [`resync`](Fabric::resync) if it returned
//! true.

mod drift;
mod fabric;
mod guard;
mod host_gw;
mod ipip;
mod peer_table;
mod pods;
mod rules;
mod vxlan;
mod wireguard;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use russet_addr::{Family, IfName, IpNet, Ipv4Net, Ipv6Net, Mac};
use russet_netlink::NetlinkError;

pub use fabric::{DeviceState, ExistingDevice, Fabric};
pub use pods::POD_SOURCE_DROP;
pub use wireguard::{KeyError, Mode, Psk, Wireguard, WireguardEnd};

use crate::refusal::Subject;
use crate::report::OverlayError;

/// The protocol of all our routes, by which the routes of an earlier run are recognised. Peers
/// never see it; flannel's own routes have `boot`, the default.
pub const ROUTE_PROTOCOL: u8 = 115;
/// The UDP port of the vxlan backend if none is configured: the kernel's default, not IANA's.
pub const VXLAN_PORT: u16 = 8472;

/// How nodes reach each other's pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// Through a vxlan device.
    Vxlan(Vxlan),
    /// By routes to nodes on the same link.
    HostGw,
    /// Through an IP-in-IP device; IPv4 only (flannel.md section 6.4).
    Ipip {
        /// Whether peers on our link are reached by plain routes.
        direct_routing: bool,
    },
    /// Through WireGuard devices (flannel.md section 6.5).
    Wireguard(Box<Wireguard>),
    /// Through the proxy in `flanneld::udp`, which maintains its own device. Here, as for `Alloc`,
    /// only leftovers of other backends are removed.
    Udp,
    /// Leases only.
    Alloc,
}

/// The vxlan backend's options (flannel.md section 6.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vxlan {
    /// The network identifier; also in the device's name.
    pub vni: u32,
    /// The UDP port; 0 is [`VXLAN_PORT`].
    pub port: u16,
    /// Whether packets carry the sender's group policy.
    pub gbp: bool,
    /// Whether peers on our link are reached by plain routes.
    pub direct_routing: bool,
    /// Whether the device learns from what it receives.
    pub learning: bool,
    /// The MTU in bytes to use instead of the underlay's own.
    pub mtu: Option<u32>,
    /// The MACs of the IPv4 and of the IPv6 device that peers know already, used if the devices
    /// must be created.
    pub mac: [Option<Mac>; 2],
}

/// The interface that leads to the peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Underlay {
    pub ifindex: u32,
    pub name: IfName,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Its own IPv4 address, which need not be the one that peers use.
    pub v4: Option<Ipv4Addr>,
    /// Its own IPv6 address.
    pub v6: Option<Ipv6Addr>,
}

/// The networks whose subnets nodes lease; a family without one is off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Networks {
    pub v4: Option<Ipv4Net>,
    pub v6: Option<Ipv6Net>,
}

/// Identifies a peer by the subnets that it has leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerKey {
    /// Its IPv4 subnet.
    pub v4: Option<Ipv4Net>,
    /// Its IPv6 subnet.
    pub v6: Option<Ipv6Net>,
}

/// A usable lease of another node: the caller leaves out those of other backends (flannel.md section 4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub subnet: Option<Ipv4Net>,
    pub subnet_v6: Option<Ipv6Net>,
    /// Its underlay address; 0.0.0.0 when IPv4 is off.
    pub public_ip: Ipv4Addr,
    /// Its underlay address over IPv6.
    pub public_ipv6: Option<Ipv6Addr>,
    /// The MACs of its IPv4 and of its IPv6 vxlan device.
    pub mac: [Option<Mac>; 2],
    /// The ends of its WireGuard tunnels.
    pub wireguard: [Option<WireguardEnd>; 2],
}

/// What a backend can publish before there is a lease.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prepared {
    /// The MACs of our vxlan devices, to be published with the lease.
    pub mac: [Option<Mac>; 2],
    /// The MTU in bytes that pods may use.
    pub mtu: u32,
    pub device: [Option<IfName>; 2],
    /// Our ends of the WireGuard tunnels, to be published with the lease.
    pub wireguard: [Option<WireguardEnd>; 2],
    /// Devices that did not match and were created anew, with the reason.
    pub replaced: Vec<String>,
}

/// Errors because of which a backend cannot work at all.
#[derive(Debug, thiserror::Error)]
pub enum FlannelError {
    /// A socket, or the first request to the kernel.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// A device could not be made or changed.
    #[error(transparent)]
    Device(OverlayError),
    /// The interface lacks an address of a family that is on.
    #[error("interface {interface} has no {family} address, which backend {backend} needs")]
    NoAddress {
        interface: IfName,
        family: Family,
        /// The backend's name.
        backend: &'static str,
    },
    /// The public address is not an address of the interface.
    #[error(
        "public address {public} is not the address of interface {interface}, which backend {backend} needs"
    )]
    NotLocal {
        /// The public address.
        public: IpAddr,
        interface: IfName,
        /// The backend's name.
        backend: &'static str,
    },
    /// The underlay's MTU is too small for the tunnel's overhead.
    #[error("MTU {mtu} of the underlay leaves too little room for the {family} tunnel")]
    MtuTooSmall {
        /// The underlay's MTU in bytes.
        mtu: u32,
        /// The tunnel's family.
        family: Family,
    },
    /// The number is not a VXLAN network identifier.
    #[error("VNI {0} is not below 16777216")]
    Vni(u32),
    /// The kernel lacks the backend's device type.
    #[error("backend {backend} needs {feature}, which this kernel does not have: {source}")]
    Unsupported {
        /// The backend's name.
        backend: &'static str,
        /// What is missing: the option of the kernel's configuration, and the module.
        feature: &'static str,
        /// The kernel's answer.
        source: NetlinkError,
    },
    /// A foreign link has the name of our device.
    #[error("link {device} is no {wanted} device; remove it or give it another name")]
    Taken {
        device: IfName,
        /// The kind of ours.
        wanted: &'static str,
    },
    /// The private key of WireGuard could not be read or written.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The name of a device is invalid.
    #[error(transparent)]
    Name(#[from] russet_addr::NameError),
}

const UDP_OVERHEAD: u32 = 28;

// === impl Backend ===

impl Backend {
    /// The `BackendType` of leases of this backend; empty where leases name none (flannel.md
    /// section 3.2).
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Vxlan(_) => "vxlan",
            Self::HostGw => "host-gw",
            Self::Ipip { .. } => "ipip",
            Self::Wireguard(_) => "wireguard",
            Self::Udp | Self::Alloc => "",
        }
    }

    /// The MTU in bytes that pods may use, for backends without a device.
    pub(crate) fn mtu(&self, underlay: u32) -> u32 {
        match self {
            Self::Udp => underlay.saturating_sub(UDP_OVERHEAD),
            _ => underlay,
        }
    }

    /// Refuses a public address that the backend cannot work with: host-gw's peers route to it (flannel.md section 6.3).
    pub fn check_public(&self, underlay: &Underlay, public: IpAddr) -> Result<(), FlannelError> {
        let own = underlay.address(Family::of(public));
        if matches!(self, Self::HostGw) && own != Some(public) {
            let interface = underlay.name.clone();
            return Err(FlannelError::NotLocal { public, interface, backend: self.name() });
        }
        Ok(())
    }
}

// === impl Underlay ===

impl Underlay {
    pub(crate) fn address(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => self.v4.map(IpAddr::V4),
            Family::V6 => self.v6.map(IpAddr::V6),
        }
    }
}

// === impl Networks ===

impl Networks {
    pub(crate) fn of_family(&self, family: Family) -> Option<IpNet> {
        trunc_net(self.v4, self.v6, family)
    }

    /// The families that are on.
    pub(crate) fn families(&self) -> impl Iterator<Item = Family> + use<> {
        let networks = *self;
        Family::BOTH.into_iter().filter(move |family| networks.of_family(*family).is_some())
    }
}

// === impl PeerKey ===

impl PeerKey {
    /// The subjects of its refusals.
    pub(crate) fn subjects(&self) -> impl Iterator<Item = Subject> + use<> {
        let key = *self;
        Family::BOTH
            .into_iter()
            .filter_map(move |family| trunc_net(key.v4, key.v6, family))
            .map(Subject::Block)
    }
}

// === impl Peer ===

impl Peer {
    pub const fn key(&self) -> PeerKey {
        PeerKey { v4: self.subnet, v6: self.subnet_v6 }
    }

    pub(crate) fn subnet(&self, family: Family) -> Option<IpNet> {
        trunc_net(self.subnet, self.subnet_v6, family)
    }

    pub(crate) fn public(&self, family: Family) -> Option<IpAddr> {
        match family {
            Family::V4 => Some(IpAddr::V4(self.public_ip)).filter(|ip| !ip.is_unspecified()),
            Family::V6 => self.public_ipv6.map(IpAddr::V6).filter(|ip| !ip.is_unspecified()),
        }
    }
}

fn trunc_net(v4: Option<Ipv4Net>, v6: Option<Ipv6Net>, family: Family) -> Option<IpNet> {
    match family {
        Family::V4 => v4.map(|net| IpNet::V4(net.trunc())),
        Family::V6 => v6.map(|net| IpNet::V6(net.trunc())),
    }
}
