//! Which features the running kernel has, found by trying each in a throwaway network namespace.
//!
//! `doctor` reports them, the test kit decides skips by them. Trying may load a module, which is how the feature would
//! come to be in real use as well; looking at `/proc/modules` or a configuration would miss what is built in.

use std::fmt;
use std::str::FromStr;

use russet_netlink::wire::MessageBuilder;
use russet_netlink::{Batch, NetlinkError, Socket};

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

/// How a feature is tried.
enum How {
    /// By creating a link whose kind has the feature's name.
    Link,
    /// By a netfilter request of this type that only reads.
    Netfilter(u16),
}

/// A probe without an answer: neither yes nor no.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// No throwaway namespace could be made.
    #[error("probe the kernel for {feature}: {source}")]
    NetNs {
        /// What was probed.
        feature: Feature,
        /// Why not.
        source: NetNsError,
    },
    /// The kernel answered something else than yes or no.
    #[error("probe the kernel for {feature}: {source}")]
    Netlink {
        /// What was probed.
        feature: Feature,
        /// What it said.
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

/// Whether the kernel has `feature`. Needs the right to make a network namespace; costs a few milliseconds.
pub fn supports(feature: Feature) -> Result<bool, ProbeError> {
    let net = |source| ProbeError::NetNs { feature, source };
    let answer = NetNs::create_unnamed().map_err(net)?.run_in_thread(|| match feature.how() {
        How::Link => knows_link(feature.name()),
        How::Netfilter(request) => answers(request),
    });
    answer.map_err(net)?.map_err(|source| ProbeError::Netlink { feature, source })
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
        // A known kind that misses its options, say macvlan its lower link.
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
        // What nfnetlink says when nobody has registered for the subsystem.
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
    fn what_russet_is_built_on_is_there_and_an_invented_kind_is_not() {
        for feature in [Feature::Veth, Feature::Bridge, Feature::Vxlan, Feature::Macvlan, Feature::NfTables] {
            assert!(supports(feature).unwrap(), "{feature}");
        }
        let netns = NetNs::create_unnamed().unwrap();
        assert!(!netns.run_in_thread(|| knows_link("teleport")).unwrap().unwrap());
    }
}
