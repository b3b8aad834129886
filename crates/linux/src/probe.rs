//! Finds out which features the running kernel has, by trying each in a temporary network
//! namespace.
//!
//! `doctor` reports them, and the test kit skips tests by them. A trial may load a module, as real
//! use of the feature would; `/proc/modules` or a kernel configuration would miss built-in
//! features.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use russet_addr::host_net;
use russet_netlink::wire::MessageBuilder;
use russet_netlink::{Address, Batch, NetlinkError, Socket};

use crate::netns::{NetNs, NetNsError};

macro_rules! features {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $how:expr;)*) => {
        /// A part of the kernel that may be missing.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Feature {
            $($(#[$doc])* $variant,)*
        }

        impl Feature {
            /// All of them.
            pub const ALL: &'static [Feature] = &[$(Feature::$variant),*];

            /// Its name, as `tests/skips.txt` and `doctor` spell it.
            pub const fn name(self) -> &'static str {
                match self { $(Feature::$variant => $name,)* }
            }

            const fn how(self) -> How {
                match self { $(Feature::$variant => $how,)* }
            }
        }
    };
}

features! {
    /// The kernel keeps which program has added an address, since Linux 5.18.
    AddressProtocol = "address-protocol", How::Address;
    /// Ethernet bridge.
    Bridge = "bridge", How::Link;
    /// Connection tracking's netlink interface.
    Conntrack = "conntrack", How::Netfilter(CTNETLINK_GET_STATS);
    /// Dummy links.
    Dummy = "dummy", How::Link;
    /// Intermediate functional block, for the shaping of ingress.
    Ifb = "ifb", How::Link;
    /// IPVLAN.
    Ipvlan = "ipvlan", How::Link;
    /// MACVLAN.
    Macvlan = "macvlan", How::Link;
    /// Pairs of links whose programs run where a packet is sent.
    Netkit = "netkit", How::Link;
    /// nf_tables.
    NfTables = "nf_tables", How::Netfilter(NFT_MSG_GETGEN);
    /// Virtual ethernet pairs.
    Veth = "veth", How::Link;
    /// 802.1Q.
    Vlan = "vlan", How::Link;
    /// Virtual routing and forwarding.
    Vrf = "vrf", How::Link;
    /// VXLAN tunnels.
    Vxlan = "vxlan", How::Link;
    /// WireGuard tunnels.
    Wireguard = "wireguard", How::Link;
}

/// How a feature is probed.
enum How {
    /// By an address that is added with a protocol and read.
    Address,
    /// By creating a link whose kind is the feature's name.
    Link,
    /// By a read-only netfilter request of this type.
    Netfilter(u16),
}

/// A probe without a conclusive answer.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The temporary namespace could not be created.
    #[error("probe the kernel for {feature}: {source}")]
    NetNs {
        /// What was probed.
        feature: Feature,
        source: NetNsError,
    },
    /// The kernel answered with an unexpected error.
    #[error("probe the kernel for {feature}: {source}")]
    Netlink {
        /// What was probed.
        feature: Feature,
        source: NetlinkError,
    },
}

/// No feature has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown kernel feature {0:?}")]
pub struct FeatureError(String);

/// `(NFNL_SUBSYS_NFTABLES << 8) | NFT_MSG_GETGEN`
const NFT_MSG_GETGEN: u16 = 10 << 8 | 16;
/// `(NFNL_SUBSYS_CTNETLINK << 8) | IPCTNL_MSG_CT_GET_STATS`
const CTNETLINK_GET_STATS: u16 = 1 << 8 | 5;
// linux/rtnetlink.h and linux/if_link.h
const RTM_NEWLINK: u16 = 16;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFINFOMSG_BYTES: usize = 16;
const NFGENMSG_BYTES: usize = 4;
const CREATE_EXCLUSIVELY: u16 = 0x600;

const LOOPBACK: u32 = 1;
const PROBED_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const PROBED_PROTOCOL: u8 = 114;

/// Whether the kernel has `feature`. Requires the right to create a network namespace; takes a few
/// milliseconds.
pub fn supports(feature: Feature) -> Result<bool, ProbeError> {
    let net = |source| ProbeError::NetNs { feature, source };
    let answer = NetNs::create_unnamed().map_err(net)?.run_in_thread(|| match feature.how() {
        How::Address => keeps_protocol(),
        How::Link => knows_link(feature.name()),
        How::Netfilter(request) => answers(request),
    });
    answer.map_err(net)?.map_err(|source| ProbeError::Netlink { feature, source })
}

fn keeps_protocol() -> Result<bool, NetlinkError> {
    let mut socket = Socket::route()?;
    let added = Address { protocol: PROBED_PROTOCOL, ..Address::new(LOOPBACK, host_net(PROBED_ADDRESS)) };
    socket.execute(Batch::new().add_address(&added)).map_err(NetlinkError::from)?;
    let found = socket.addresses_of(LOOPBACK)?;
    Ok(found.iter().any(|address| address.protocol == PROBED_PROTOCOL))
}

fn knows_link(kind: &str) -> Result<bool, NetlinkError> {
    let mut batch = Batch::new();
    batch.push(RTM_NEWLINK, CREATE_EXCLUSIVELY, |message| {
        message.raw(&[0; IFINFOMSG_BYTES]).nested(IFLA_LINKINFO, |info| {
            info.attr_str(IFLA_INFO_KIND, kind);
        });
    });
    match Socket::route()?.execute(&batch).map_err(NetlinkError::from) {
        Ok(()) => Ok(true),
        Err(error) if error.is_unsupported() => Ok(false),
        // A known kind with missing options, such as macvlan without its lower link.
        Err(error) if matches!(error.errno(), Some(libc::EINVAL | libc::ENODEV)) => Ok(true),
        Err(error) => Err(error),
    }
}

fn answers(request: u16) -> Result<bool, NetlinkError> {
    let operation = || format!("ask netfilter subsystem {}", request >> 8);
    let fill = |message: &mut MessageBuilder<'_>| {
        message.raw(&[0; NFGENMSG_BYTES]);
    };
    match Socket::netfilter()?.get(operation, request, fill, |_| Some(())) {
        Ok(()) => Ok(true),
        // nfnetlink's answer if no module has registered for the subsystem.
        Err(error) if error.errno() == Some(libc::EINVAL) => Ok(false),
        Err(NetlinkError::Io { source, .. }) if source.raw_os_error() == Some(libc::EPROTONOSUPPORT) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

// === impl Feature ===

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Feature {
    type Err = FeatureError;

    fn from_str(name: &str) -> Result<Self, FeatureError> {
        let found = Self::ALL.iter().copied().find(|feature| feature.name() == name);
        found.ok_or_else(|| FeatureError(name.chars().take(40).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_is_found_by_its_name() {
        for feature in Feature::ALL {
            assert_eq!(feature.name().parse(), Ok(*feature));
        }
        assert!("teleport".parse::<Feature>().is_err());
    }

    #[test]
    #[ignore = "kernel: probing needs root"]
    fn required_features_are_found_and_an_unknown_kind_is_not() {
        for feature in [
            Feature::AddressProtocol,
            Feature::Veth,
            Feature::Bridge,
            Feature::Vxlan,
            Feature::Macvlan,
            Feature::NfTables,
        ] {
            assert!(supports(feature).unwrap(), "{feature}");
        }
        let netns = NetNs::create_unnamed().unwrap();
        assert!(!netns.run_in_thread(|| knows_link("teleport")).unwrap().unwrap());
    }
}
