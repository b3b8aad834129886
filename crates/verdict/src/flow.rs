//! A question: may this packet begin a flow?

use std::net::IpAddr;

use crate::ir::Protocol;

/// The first packet of a flow, as it is after translation of its destination and before that of its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// Its source.
    pub source: IpAddr,
    /// Its destination, of the same family.
    pub destination: IpAddr,
    /// Its protocol.
    pub protocol: Protocol,
    /// The source port; 0 for protocols without ports.
    pub source_port: u16,
    /// The destination port; for ICMP, type * 256 + code; 0 for other protocols.
    pub destination_port: u16,
}
