//! Connections that the kernel tracks, as far as they must be removed or judged again.
//!
//! When an address moves to another pod, or a port mapping is removed, tracked connections would
//! send the packets of the next client to the old destination. UDP connections have no end, so they
//! live as long as packets arrive. And their marks, in which `policy` notes that they were judged.

use std::collections::BTreeSet;
use std::net::IpAddr;

use russet_addr::Family;
use russet_netlink::wire::{Attribute, Attributes, Message, MessageBuilder};
use russet_netlink::{Batch, NetlinkError, Socket};

use crate::kernel::NFGENMSG_BYTES;
use crate::transaction::nfgenmsg;

/// Connection tracking of the network namespace in which this was opened.
#[derive(Debug)]
pub struct Conntrack {
    socket: Socket,
}

/// One tracked connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// Source and destination of its first packet, before translation.
    pub original: (IpAddr, IpAddr),
    /// Source and destination of the replies as they arrive here.
    pub reply: (IpAddr, IpAddr),
    /// Transport protocol.
    pub protocol: u8,
    /// The destination port of its first packet, before translation, if the protocol has ports.
    pub port: Option<u16>,
    /// The attributes that a request to delete it must repeat.
    key: Key,
}

/// One direction of a connection of a protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuple {
    /// Of its packets.
    pub source: IpAddr,
    /// Of its packets.
    pub destination: IpAddr,
    /// Transport protocol.
    pub protocol: u8,
    /// The port of the source.
    pub source_port: u16,
    /// The port of the destination.
    pub destination_port: u16,
}

/// Raw attributes that identify a connection for the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    family: u8,
    original: Vec<u8>,
    id: Option<Vec<u8>>,
    zone: Option<Vec<u8>>,
}

// linux/netfilter/nfnetlink_conntrack.h
const CT_NEW: u16 = 1 << 8;
const CT_GET: u16 = 1 << 8 | 1;
const CT_DELETE: u16 = 1 << 8 | 2;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_MARK: u16 = 8;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const CTA_MARK_MASK: u16 = 21;
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
/// `NLA_F_NESTED`
const NESTED: u16 = 1 << 15;

// === impl Conntrack ===

impl Conntrack {
    /// Opens connection tracking in the calling thread's network namespace.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { socket: Socket::netfilter()? })
    }

    /// All connections of a family.
    pub fn connections(&mut self, family: Family) -> Result<Vec<Connection>, NetlinkError> {
        self.select(family, |_| true)
    }

    /// The direction in which the connection began that a packet like this belongs to; none if it is not tracked.
    pub fn origin(&mut self, tuple: &Tuple) -> Result<Option<Tuple>, NetlinkError> {
        let found = self.socket.get(
            || format!("look for the connection of {} to {}", tuple.source, tuple.destination),
            CT_GET,
            |message| {
                message.raw(&nfgenmsg(address_family(Family::of(tuple.source)), 0));
                message.nested(CTA_TUPLE_ORIG | NESTED, |message| tuple.fill(message));
            },
            |message| Tuple::decode(&message.attributes(NFGENMSG_BYTES).find(CTA_TUPLE_ORIG)?.nested()),
        );
        match found {
            Ok(origin) => Ok(Some(origin)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Deletes all connections from or to one of the addresses, before or after translation;
    /// returns how many there were. A connection that ended meanwhile is no error.
    pub fn forget(&mut self, addresses: &BTreeSet<IpAddr>) -> Result<usize, NetlinkError> {
        let mut forgotten = 0;
        for family in Family::BOTH {
            if addresses.iter().any(|address| Family::of(*address) == family) {
                let doomed = self.select(family, |connection| connection.involves(addresses))?;
                forgotten += self.delete(&doomed)?;
            }
        }
        Ok(forgotten)
    }

    /// Deletes all connections of a family for which `wanted` returns true; returns how many there
    /// were.
    pub fn forget_where(
        &mut self,
        family: Family,
        wanted: impl Fn(&Connection) -> bool,
    ) -> Result<usize, NetlinkError> {
        let doomed = self.select(family, wanted)?;
        self.delete(&doomed)
    }

    /// Clears bits of the marks of all connections whose mark has `value` in the bits of `selector` and
    /// anything in those of `clear`; returns how many there were.
    pub fn clear_mark(&mut self, clear: u32, value: u32, selector: u32) -> Result<usize, NetlinkError> {
        let mut cleared = 0;
        for family in Family::BOTH {
            let found = self.select_by_mark(family, value, selector)?;
            let marked = found.iter().filter(|(_, mark)| mark & clear != 0);
            cleared +=
                self.execute(marked.map(|(connection, _)| &connection.key), CT_NEW, |message, key| {
                    message.raw(&nfgenmsg(key.family, 0)).attr(CTA_TUPLE_ORIG | NESTED, &key.original);
                    key.zone.iter().for_each(|zone| _ = message.attr(CTA_ZONE, zone));
                    message.attr_be32(CTA_MARK, 0).attr_be32(CTA_MARK_MASK, clear);
                })?;
        }
        Ok(cleared)
    }

    /// The connections whose mark has `value` in the bits of `selector`, with their marks.
    fn select_by_mark(
        &mut self,
        family: Family,
        value: u32,
        selector: u32,
    ) -> Result<Vec<(Connection, u32)>, NetlinkError> {
        self.socket.dump(
            &format!("list {family} connections by mark"),
            CT_GET,
            |message| {
                message.raw(&nfgenmsg(address_family(family), 0));
                message.attr_be32(CTA_MARK, value).attr_be32(CTA_MARK_MASK, selector);
            },
            |message| {
                // The kernel omits a mark of zero.
                let mark = message.attributes(NFGENMSG_BYTES).find(CTA_MARK).and_then(|mark| mark.be32());
                Some((Connection::decode(message)?, mark.unwrap_or(0)))
            },
        )
    }

    fn select(
        &mut self,
        family: Family,
        wanted: impl Fn(&Connection) -> bool,
    ) -> Result<Vec<Connection>, NetlinkError> {
        self.socket.dump(
            &format!("list {family} connections"),
            CT_GET,
            |message| {
                message.raw(&nfgenmsg(address_family(family), 0));
            },
            |message| Connection::decode(message).filter(&wanted),
        )
    }

    fn delete(&mut self, connections: &[Connection]) -> Result<usize, NetlinkError> {
        self.execute(connections.iter().map(|connection| &connection.key), CT_DELETE, |message, key| {
            message.raw(&nfgenmsg(key.family, 0)).attr(CTA_TUPLE_ORIG | NESTED, &key.original);
            // The id keeps a newer connection with the same addresses and ports from being deleted.
            for (kind, value) in [(CTA_ID, &key.id), (CTA_ZONE, &key.zone)] {
                if let Some(value) = value {
                    message.attr(kind, value);
                }
            }
        })
    }

    /// Sends one request for each connection; returns how many of them still existed.
    fn execute<'k>(
        &mut self,
        keys: impl Iterator<Item = &'k Key>,
        kind: u16,
        fill: impl Fn(&mut MessageBuilder<'_>, &Key),
    ) -> Result<usize, NetlinkError> {
        let mut batch = Batch::describing(describe);
        keys.for_each(|key| _ = batch.push(kind, 0, |message| fill(message, key)));
        let mut done = 0;
        for result in self.socket.execute_all(&batch) {
            match result {
                Ok(()) => done += 1,
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }
}

// === impl Tuple ===

impl Tuple {
    fn fill(&self, message: &mut MessageBuilder<'_>) {
        let (source, destination) = match Family::of(self.source) {
            Family::V4 => (CTA_IP_V4_SRC, CTA_IP_V4_DST),
            Family::V6 => (CTA_IP_V6_SRC, CTA_IP_V6_DST),
        };
        message.nested(CTA_TUPLE_IP | NESTED, |message| {
            message.attr_ip(source, self.source).attr_ip(destination, self.destination);
        });
        message.nested(CTA_TUPLE_PROTO | NESTED, |message| {
            message.attr_u8(CTA_PROTO_NUM, self.protocol);
            message.attr_be16(CTA_PROTO_SRC_PORT, self.source_port);
            message.attr_be16(CTA_PROTO_DST_PORT, self.destination_port);
        });
    }

    fn decode(tuple: &Attributes<'_>) -> Option<Self> {
        let (source, destination) = addresses(tuple)?;
        let transport = tuple.find(CTA_TUPLE_PROTO)?.nested();
        Some(Self {
            source,
            destination,
            protocol: transport.find(CTA_PROTO_NUM)?.u8()?,
            source_port: transport.find(CTA_PROTO_SRC_PORT)?.be16()?,
            destination_port: transport.find(CTA_PROTO_DST_PORT)?.be16()?,
        })
    }
}

// === impl Connection ===

impl Connection {
    /// Whether one of its four addresses is in `addresses`.
    pub fn involves(&self, addresses: &BTreeSet<IpAddr>) -> bool {
        let all = [self.original.0, self.original.1, self.reply.0, self.reply.1];
        all.iter().any(|address| addresses.contains(address))
    }

    fn decode(message: &Message<'_>) -> Option<Self> {
        let attributes = message.attributes(NFGENMSG_BYTES);
        let original = attributes.find(CTA_TUPLE_ORIG)?;
        let raw = |kind| attributes.find(kind).map(|attribute| attribute.payload.to_vec());
        let transport = original.nested().find(CTA_TUPLE_PROTO)?.nested();
        let protocol = transport.find(CTA_PROTO_NUM)?.u8()?;
        let port = transport.find(CTA_PROTO_DST_PORT).and_then(|port| port.be16());
        Some(Self {
            original: addresses(&original.nested())?,
            reply: addresses(&attributes.find(CTA_TUPLE_REPLY)?.nested())?,
            protocol,
            port,
            key: Key {
                family: *message.payload.first()?,
                original: original.payload.to_vec(),
                id: raw(CTA_ID),
                zone: raw(CTA_ZONE),
            },
        })
    }
}

/// Source and destination of a tuple.
fn addresses(tuple: &Attributes<'_>) -> Option<(IpAddr, IpAddr)> {
    let ip = tuple.find(CTA_TUPLE_IP)?.nested();
    let either = |v4, v6| ip.find(v4).or_else(|| ip.find(v6)).and_then(|address: Attribute<'_>| address.ip());
    Some((either(CTA_IP_V4_SRC, CTA_IP_V6_SRC)?, either(CTA_IP_V4_DST, CTA_IP_V6_DST)?))
}

fn describe(message: &Message<'_>) -> String {
    let tuple = message.attributes(NFGENMSG_BYTES).find(CTA_TUPLE_ORIG);
    let verb = if message.kind == CT_NEW { "clear the mark of connection" } else { "forget connection" };
    match tuple.and_then(|tuple| addresses(&tuple.nested())) {
        Some((source, destination)) => format!("{verb} {source} to {destination}"),
        None => verb.to_owned(),
    }
}

const fn address_family(family: Family) -> u8 {
    match family {
        Family::V4 => libc::AF_INET as u8,
        Family::V6 => libc::AF_INET6 as u8,
    }
}

/// Runs the decoders, for tests with arbitrary input.
#[cfg(test)]
pub(crate) fn decode_for_test(message: &Message<'_>) -> (Option<Connection>, String) {
    let tuple = message.attributes(NFGENMSG_BYTES).find(CTA_TUPLE_ORIG);
    let _ = tuple.and_then(|tuple| Tuple::decode(&tuple.nested()));
    (Connection::decode(message), describe(message))
}
