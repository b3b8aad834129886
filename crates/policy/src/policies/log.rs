//! What the rules of the tables of decisions and of host endpoints log: the packet, read as the first of a flow, and how many the kernel's limit
//! suppressed. A packet is of another machine, so any bytes are possible.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use russet_nft::{LoggedPacket, Nft, Table};
use russet_verdict::flow::Flow;
use russet_verdict::hosts::Entrance;
use russet_verdict::ir::{Direction, Protocol};

use super::skeleton::{DIRECTIONS, Logged, denying_chains, log_prefix, table};
use crate::error::PolicyError;
use crate::hosts;

/// A packet that a rule logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedFlow {
    /// The end whose policies decided: the destination's ingress, or the source's egress.
    pub direction: Direction,
    /// Whether it passed this end; such packets are logged where a rule asks for it, and while connections
    /// that pass are sampled.
    pub allowed: bool,
    /// What began the flow: of a reply, the request that it answers.
    pub flow: Flow,
    /// Of a packet at the node's own interfaces, where a host endpoint may have decided, with the index of the
    /// interface: what is forwarded is at two. The direction is that of the first.
    pub host: Option<Vec<(Entrance, u32)>>,
}

/// Packets of the chains that deny, since the table, or its rules, were created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeniedPackets {
    pub dropped: u64,
    /// The others were suppressed by the limit.
    pub logged: u64,
}

/// The addresses and the transport protocol of a packet, and what follows.
struct Header<'a> {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    transport: &'a [u8],
}

/// More extension headers than packets have that are no attack.
const EXTENSIONS_MAX: usize = 8;

// === impl LoggedFlow ===

impl LoggedFlow {
    /// Reads a packet; `None` if it is none of this table's, or none of IP.
    pub fn read(packet: &LoggedPacket) -> Option<Self> {
        if let Some(allowed) = hosts::logged(&packet.prefix) {
            let flow = Header::read(&packet.bytes)?.flow();
            let host = entrances(packet);
            let direction = host.first().map_or(Direction::Ingress, |(entrance, _)| entrance.direction());
            return Some(Self { direction, allowed, flow, host: Some(host) });
        }
        let (logged, direction) = [Logged::Denied, Logged::DeniedReply, Logged::Allowed, Logged::Sampled]
            .into_iter()
            .flat_map(|logged| DIRECTIONS.map(|direction| (logged, direction)))
            .find(|(logged, direction)| packet.prefix == log_prefix(*logged, *direction))?;
        let flow = Header::read(&packet.bytes)?.flow();
        let flow = if logged == Logged::DeniedReply { answered(flow) } else { flow };
        Some(Self {
            direction,
            allowed: matches!(logged, Logged::Allowed | Logged::Sampled),
            flow,
            host: None,
        })
    }

    /// The address of the end whose policies decided.
    pub const fn local(&self) -> IpAddr {
        match self.direction {
            Direction::Ingress => self.flow.destination,
            Direction::Egress => self.flow.source,
        }
    }
}

/// Where a packet at an interface of the node may have been judged.
fn entrances(packet: &LoggedPacket) -> Vec<(Entrance, u32)> {
    let (came, goes) = (packet.in_index, packet.out_index);
    // The numbers of `enum nf_inet_hooks`.
    let at = match packet.hook {
        Some(0) => vec![(Entrance::RawIn, came), (Entrance::PreDnat, came)],
        Some(1) => vec![(Entrance::Input, came)],
        Some(2) => vec![(Entrance::ForwardIn, came), (Entrance::ForwardOut, goes)],
        Some(3) => vec![(Entrance::RawOut, goes)],
        Some(4) => vec![(Entrance::Output, goes)],
        _ => Vec::new(),
    };
    at.into_iter().filter_map(|(entrance, index)| Some((entrance, index?))).collect()
}

/// The flow to which a packet like the first one of `flow` is a reply. Replies of ICMP are never judged.
const fn answered(flow: Flow) -> Flow {
    Flow {
        source: flow.destination,
        destination: flow.source,
        protocol: flow.protocol,
        source_port: flow.destination_port,
        destination_port: flow.source_port,
    }
}

// === impl Header ===

impl<'a> Header<'a> {
    fn read(packet: &'a [u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => Self::read_v4(packet),
            6 => Self::read_v6(packet),
            _ => None,
        }
    }

    fn read_v4(packet: &'a [u8]) -> Option<Self> {
        let words = usize::from(packet.first()? & 0xf);
        let address = |at: usize| Some(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?));
        if words < 5 {
            return None;
        }
        Some(Self {
            source: address(12)?.into(),
            destination: address(16)?.into(),
            protocol: *packet.get(9)?,
            transport: packet.get(words * 4..).unwrap_or_default(),
        })
    }

    fn read_v6(packet: &'a [u8]) -> Option<Self> {
        let address = |at: usize| Some(Ipv6Addr::from(*packet.get(at..)?.first_chunk::<16>()?));
        let (source, destination) = (address(8)?.into(), address(24)?.into());
        let (mut protocol, mut transport) = (*packet.get(6)?, packet.get(40..).unwrap_or_default());
        for _ in 0..EXTENSIONS_MAX {
            let Some((next, rest)) = behind_extension(protocol, transport) else { break };
            (protocol, transport) = (next, rest);
        }
        Some(Self { source, destination, protocol, transport })
    }

    fn flow(&self) -> Flow {
        let number = |at: usize| {
            let bytes = self.transport.get(at..).and_then(<[u8]>::first_chunk::<2>);
            bytes.map_or(0, |bytes| u16::from_be_bytes(*bytes))
        };
        let protocol = Protocol(self.protocol);
        let (source_port, destination_port) = match protocol {
            Protocol::ICMP | Protocol::ICMPV6 => (0, number(0)),
            _ if protocol.has_ports() => (number(0), number(2)),
            _ => (0, 0),
        };
        let Self { source, destination, .. } = *self;
        Flow { source, destination, protocol, source_port, destination_port }
    }
}

/// The header behind an extension of IPv6, if `protocol` is one and it is all there.
fn behind_extension(protocol: u8, bytes: &[u8]) -> Option<(u8, &[u8])> {
    let (next, length) = (*bytes.first()?, usize::from(*bytes.get(1)?));
    let length = match protocol {
        // Options for each router, routing, options for the destination.
        0 | 43 | 60 => (length + 1) * 8,
        // A fragment; connection tracking has put the others behind it.
        44 => 8,
        // Authentication.
        51 => (length + 2) * 4,
        _ => return None,
    };
    Some((next, bytes.get(length..)?))
}

// === impl DeniedPackets ===

impl DeniedPackets {
    /// Reads the counters of the table of decisions; none without it.
    pub fn read(nft: &mut Nft) -> Result<Self, PolicyError> {
        Self::of(nft, &table(), DIRECTIONS.into_iter().flat_map(denying_chains))
    }

    /// Reads those of the table of host endpoints.
    pub fn read_hosts(nft: &mut Nft) -> Result<Self, PolicyError> {
        Self::of(nft, &hosts::hosts_table(), hosts::DENYING.map(str::to_owned))
    }

    fn of(
        nft: &mut Nft,
        table: &Table,
        chains: impl IntoIterator<Item = String>,
    ) -> Result<Self, PolicyError> {
        let mut sum = Self::default();
        for chain in chains {
            for rule in nft.rules_of(table, &chain)? {
                let packets = rule.packets.unwrap_or(0);
                match rule.expressions.iter().any(|name| name == "log") {
                    true => sum.logged += packets,
                    false => sum.dropped += packets,
                }
            }
        }
        Ok(sum)
    }

    /// What the limit suppressed.
    pub const fn suppressed(&self) -> u64 {
        self.dropped.saturating_sub(self.logged)
    }
}

#[cfg(test)]
mod tests;
