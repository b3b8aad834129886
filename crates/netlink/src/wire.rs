//! The netlink encoding: a writer for messages and attributes, and readers that accept any input.
//!
//! Used by every typed request in this crate, and by `russet-nft`, whose messages have the same
//! framing. Framing as in linux/netlink.h: a 16-byte header, then the payload; attributes have a
//! 4-byte header and a payload; everything is padded to 4 bytes and in host byte order unless a
//! name says `be`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use russet_addr::Mac;

#[cfg(test)]
mod tests;

/// Writes one message at the end of a buffer.
#[derive(Debug)]
pub struct MessageBuilder<'a> {
    buffer: &'a mut Vec<u8>,
    start: usize,
    oversized: bool,
}

/// A received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// `nlmsg_type`.
    pub kind: u16,
    /// `nlmsg_flags`.
    pub flags: u16,
    /// The sequence number of the request that this answers.
    pub sequence: u32,
    /// In answers our own port; in notifications that of the socket that requested the change, 0 if
    /// the kernel does not report it.
    pub port: u32,
    /// The bytes after the 16-byte header.
    pub payload: &'a [u8],
}

/// The messages of one datagram, in order.
#[derive(Debug, Clone)]
pub struct Messages<'a>(&'a [u8]);

/// The length field is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed netlink message")]
pub struct Malformed;

/// One attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// `nla_type` without its flag bits.
    pub kind: u16,
    /// The bytes after the 4-byte header, without padding.
    pub payload: &'a [u8],
}

/// The attributes in a payload, in order; ends at the first malformed one.
#[derive(Debug, Clone)]
pub struct Attributes<'a>(&'a [u8]);

/// Bytes in `struct nlmsghdr`.
pub const HEADER_BYTES: usize = 16;
/// Bytes in `struct nlattr`.
const ATTRIBUTE_HEADER_BYTES: usize = 4;
/// `NLA_F_NESTED`.
const NESTED: u16 = 1 << 15;
/// `NLA_TYPE_MASK`: both flag bits off.
const KIND_MASK: u16 = 0x3fff;

const fn aligned(len: usize) -> usize {
    (len + 3) & !3
}

/// The bytes of an address, in network order.
pub(crate) fn with_ip<R>(address: IpAddr, f: impl FnOnce(&[u8]) -> R) -> R {
    match address {
        IpAddr::V4(ip) => f(&ip.octets()),
        IpAddr::V6(ip) => f(&ip.octets()),
    }
}

/// `N` bytes of `bytes` from `offset`, if there are so many.
pub(crate) fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..)?.first_chunk().copied()
}

/// Replaces bytes of `buffer` from `at` on; false when they are not all there.
pub(crate) fn overwrite(buffer: &mut [u8], at: usize, bytes: &[u8]) -> bool {
    let field = buffer.get_mut(at..).and_then(|rest| rest.get_mut(..bytes.len()));
    field.map(|field| field.copy_from_slice(bytes)).is_some()
}

// === impl MessageBuilder ===

impl<'a> MessageBuilder<'a> {
    /// Begins a message; the socket sets the sequence number.
    pub fn new(buffer: &'a mut Vec<u8>, kind: u16, flags: u16) -> Self {
        let start = buffer.len();
        buffer.extend_from_slice(&0u32.to_ne_bytes());
        buffer.extend_from_slice(&kind.to_ne_bytes());
        buffer.extend_from_slice(&flags.to_ne_bytes());
        buffer.extend_from_slice(&[0; 8]);
        Self { buffer, start, oversized: false }
    }

    /// Appends the family header (`struct ifinfomsg`, `struct nfgenmsg`, ...) or any other raw bytes.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.buffer.extend_from_slice(bytes);
        self.pad();
        self
    }

    /// Appends an attribute.
    pub fn attr(&mut self, kind: u16, payload: &[u8]) -> &mut Self {
        self.attr_parts(kind, payload, &[])
    }

    /// Appends an attribute without payload.
    pub fn attr_flag(&mut self, kind: u16) -> &mut Self {
        self.attr(kind, &[])
    }

    /// Appends one byte.
    pub fn attr_u8(&mut self, kind: u16, value: u8) -> &mut Self {
        self.attr(kind, &[value])
    }

    /// Appends 16 bits in host order.
    pub fn attr_u16(&mut self, kind: u16, value: u16) -> &mut Self {
        self.attr(kind, &value.to_ne_bytes())
    }

    /// Appends 32 bits in host order.
    pub fn attr_u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attr(kind, &value.to_ne_bytes())
    }

    /// Appends 64 bits in host order.
    pub fn attr_u64(&mut self, kind: u16, value: u64) -> &mut Self {
        self.attr(kind, &value.to_ne_bytes())
    }

    /// Appends 16 bits in network order.
    pub fn attr_be16(&mut self, kind: u16, value: u16) -> &mut Self {
        self.attr(kind, &value.to_be_bytes())
    }

    /// Appends 32 bits in network order.
    pub fn attr_be32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.attr(kind, &value.to_be_bytes())
    }

    /// Appends 64 bits in network order.
    pub fn attr_be64(&mut self, kind: u16, value: u64) -> &mut Self {
        self.attr(kind, &value.to_be_bytes())
    }

    /// Appends text with the terminating NUL that the kernel requires.
    pub fn attr_str(&mut self, kind: u16, text: &str) -> &mut Self {
        self.attr_parts(kind, text.as_bytes(), &[0])
    }

    /// Appends an address: 4 or 16 bytes.
    pub fn attr_ip(&mut self, kind: u16, address: IpAddr) -> &mut Self {
        with_ip(address, |bytes| {
            self.attr(kind, bytes);
        });
        self
    }

    /// Appends an attribute whose payload `fill` writes.
    pub fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let at = self.buffer.len();
        self.buffer.extend_from_slice(&[0; ATTRIBUTE_HEADER_BYTES]);
        fill(self);
        let len = self.buffer.len() - at;
        self.attribute_header(at, kind | NESTED, len);
        self
    }

    /// Bytes written so far, header included.
    pub fn len(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// Always false: a message has a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Ends the message. False if an attribute was longer than its 16-bit length field allows; such
    /// a message must not be sent.
    pub fn finish(self) -> bool {
        let len = self.buffer.len() - self.start;
        let Ok(len) = u32::try_from(len) else { return false };
        overwrite(self.buffer, self.start, &len.to_ne_bytes()) && !self.oversized
    }

    pub(crate) fn attr_parts(&mut self, kind: u16, payload: &[u8], tail: &[u8]) -> &mut Self {
        let at = self.buffer.len();
        self.buffer.extend_from_slice(&[0; ATTRIBUTE_HEADER_BYTES]);
        self.buffer.extend_from_slice(payload);
        self.buffer.extend_from_slice(tail);
        let len = self.buffer.len() - at;
        self.attribute_header(at, kind, len);
        self.pad();
        self
    }

    fn attribute_header(&mut self, at: usize, kind: u16, len: usize) {
        let Ok(len) = u16::try_from(len) else {
            self.oversized = true;
            return;
        };
        overwrite(self.buffer, at, [len.to_ne_bytes(), kind.to_ne_bytes()].as_flattened());
    }

    fn pad(&mut self) {
        let len = self.buffer.len() - self.start;
        self.buffer.resize(self.start + aligned(len), 0);
    }
}

// === impl Messages ===

impl<'a> Messages<'a> {
    /// An iterator over a datagram.
    pub fn new(datagram: &'a [u8]) -> Self {
        Self(datagram)
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let bytes = std::mem::take(&mut self.0);
        let len = array(bytes, 0).map_or(0, |b| u32::from_ne_bytes(b) as usize);
        let Some(payload) = bytes.get(HEADER_BYTES..len) else { return Some(Err(Malformed)) };
        self.0 = bytes.get(aligned(len)..).unwrap_or_default();
        let u16_at = |offset| array(bytes, offset).map_or(0, u16::from_ne_bytes);
        Some(Ok(Message {
            kind: u16_at(4),
            flags: u16_at(6),
            sequence: array(bytes, 8).map_or(0, u32::from_ne_bytes),
            port: array(bytes, 12).map_or(0, u32::from_ne_bytes),
            payload,
        }))
    }
}

// === impl Message ===

impl<'a> Message<'a> {
    /// The attributes after a family header of `header_bytes`.
    pub fn attributes(&self, header_bytes: usize) -> Attributes<'a> {
        Attributes::new(self.payload.get(aligned(header_bytes)..).unwrap_or_default())
    }
}

// === impl Attributes ===

impl<'a> Attributes<'a> {
    /// An iterator over a payload.
    pub fn new(payload: &'a [u8]) -> Self {
        Self(payload)
    }

    /// The first attribute of a kind.
    pub fn find(&self, kind: u16) -> Option<Attribute<'a>> {
        Iterator::find(&mut self.clone(), |attribute| attribute.kind == kind)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Attribute<'a>;

    fn next(&mut self) -> Option<Attribute<'a>> {
        let bytes = std::mem::take(&mut self.0);
        let len = usize::from(u16::from_ne_bytes(array(bytes, 0)?));
        let kind = u16::from_ne_bytes(array(bytes, 2)?);
        if len < ATTRIBUTE_HEADER_BYTES {
            return None;
        }
        let payload = bytes.get(ATTRIBUTE_HEADER_BYTES..len)?;
        self.0 = bytes.get(aligned(len)..).unwrap_or_default();
        Some(Attribute { kind: kind & KIND_MASK, payload })
    }
}

// === impl Attribute ===

impl<'a> Attribute<'a> {
    /// One byte.
    pub fn u8(&self) -> Option<u8> {
        array(self.payload, 0).map(|[byte]| byte)
    }

    /// 16 bits in host order.
    pub fn u16(&self) -> Option<u16> {
        array(self.payload, 0).map(u16::from_ne_bytes)
    }

    /// 32 bits in host order.
    pub fn u32(&self) -> Option<u32> {
        array(self.payload, 0).map(u32::from_ne_bytes)
    }

    /// 64 bits in host order.
    pub fn u64(&self) -> Option<u64> {
        array(self.payload, 0).map(u64::from_ne_bytes)
    }

    /// 16 bits in network order.
    pub fn be16(&self) -> Option<u16> {
        array(self.payload, 0).map(u16::from_be_bytes)
    }

    /// 32 bits in network order.
    pub fn be32(&self) -> Option<u32> {
        array(self.payload, 0).map(u32::from_be_bytes)
    }

    /// 64 bits in network order.
    pub fn be64(&self) -> Option<u64> {
        array(self.payload, 0).map(u64::from_be_bytes)
    }

    /// Text up to its NUL; bytes that are not UTF-8 are replaced.
    pub fn text(&self) -> String {
        let text = self.payload.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }

    /// An address of 4 or 16 bytes.
    pub fn ip(&self) -> Option<IpAddr> {
        ip(self.payload)
    }

    /// An Ethernet address; `None` if it does not have 6 bytes.
    pub fn mac(&self) -> Option<Mac> {
        self.payload.try_into().ok().map(Mac)
    }

    /// The nested attributes.
    pub fn nested(&self) -> Attributes<'a> {
        Attributes::new(self.payload)
    }
}

/// An address of 4 or 16 bytes.
pub(crate) fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => array::<4>(bytes, 0).map(|b| IpAddr::V4(Ipv4Addr::from(b))),
        16 => array::<16>(bytes, 0).map(|b| IpAddr::V6(Ipv6Addr::from(b))),
        _ => None,
    }
}
