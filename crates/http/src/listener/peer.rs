//! The peer of a connection, as far as limits are concerned.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use rustix::process::geteuid;

/// The connections of one peer share its slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Peer {
    /// A process of this machine.
    Process {
        /// The process ID; 0 for all whose PID namespace hides it.
        pid: u32,
        /// The user of the process when it connected.
        uid: u32,
    },
    /// A host, or an IPv6 network of 64 bits, which belongs to one customer. All of loopback is one
    /// host.
    Host(IpAddr),
}

/// The network part of an IPv6 address.
const NETWORK_BITS: u128 = u128::MAX << 64;

// === impl Peer ===

impl Peer {
    /// The peer with this address.
    pub fn at(address: IpAddr) -> Self {
        Self::Host(match address.to_canonical() {
            address if address.is_loopback() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & NETWORK_BITS)),
            address => address,
        })
    }

    /// Whether it is root, or the user of this process.
    pub(crate) fn is_root_or_own_user(self) -> bool {
        matches!(self, Self::Process { uid, .. } if uid == 0 || uid == geteuid().as_raw())
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, uid } => write!(f, "process {pid} of user {uid}"),
            Self::Host(address) if address.is_loopback() => f.write_str("this machine"),
            Self::Host(IpAddr::V6(address)) => write!(f, "{address}/64"),
            Self::Host(address) => write!(f, "{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_ipv6_network_are_one_peer() {
        let at = |text: &str| Peer::at(text.parse().unwrap());
        assert_eq!(at("127.0.0.1"), at("127.9.9.9"));
        assert_eq!(at("127.0.0.1"), at("::1"));
        assert_eq!(at("10.0.0.1"), at("::ffff:10.0.0.1"));
        assert_eq!(at("fd00::1"), at("fd00::ffff:2"));
        assert_ne!(at("fd00::1"), at("fd00:0:0:1::1"));
        assert_ne!(at("10.0.0.1"), at("10.0.0.2"));
        assert_eq!(at("127.0.0.1").to_string(), "this machine");
    }
}
