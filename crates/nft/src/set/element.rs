//! Elements: the keys of a set, and the values of a map.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::IpNet;
use russet_addr::{IfName, Mac};
use russet_netlink::wire::MessageBuilder;

use super::bytes::Bytes;
use super::{KEY_MAX_BYTES, Set, millis};
use crate::kernel::*;
use crate::userdata;
use crate::verdict::{Verdict, encode_value};

/// An element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// One part for each type of the set's key; an empty key matches what no other element does.
    pub key: Vec<KeyPart>,
    /// The value in a map.
    pub value: Option<Value>,
    /// The timeout.
    pub timeout: Option<Duration>,
    /// Shown by `nft list`.
    pub comment: Option<String>,
}

/// A value, or a range of values, of one type: first and last, in network order.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyPart {
    pub(crate) first: Bytes,
    pub(crate) last: Bytes,
}

/// A value in a map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A verdict.
    Verdict(Verdict),
    /// Bytes as in a register.
    Data(Vec<u8>),
}

/// The size of an element in a message besides its keys, values and texts: headers and numbers of
/// both ends.
const ELEMENT_OVERHEAD_BYTES: usize = 120;

// === impl Element ===

impl Element {
    /// An element of a set with a simple key.
    pub fn new(part: impl Into<KeyPart>) -> Self {
        Self::concatenation([part.into()])
    }

    /// An element whose key has several parts.
    pub fn concatenation(key: impl Into<Vec<KeyPart>>) -> Self {
        Self { key: key.into(), value: None, timeout: None, comment: None }
    }

    /// The elements that cover exactly `prefixes`, in order: interval sets refuse overlapping
    /// elements, and pools may be nested.
    pub fn cover(prefixes: impl IntoIterator<Item = IpNet>) -> Vec<Self> {
        let mut parts: Vec<KeyPart> = prefixes.into_iter().map(KeyPart::from).collect();
        // By length first, because ranges of different families never merge.
        parts.sort_by(|a, b| (a.first.len(), &a.first, &a.last).cmp(&(b.first.len(), &b.first, &b.last)));
        let mut merged: Vec<KeyPart> = Vec::with_capacity(parts.len());
        for part in parts {
            match merged.last_mut() {
                Some(open) if open.touches(&part) => {
                    open.last = part.last.max(std::mem::take(&mut open.last))
                }
                _ => merged.push(part),
            }
        }
        merged.into_iter().map(Self::new).collect()
    }

    /// Sets the verdict.
    pub fn verdict(mut self, verdict: Verdict) -> Self {
        self.value = Some(Value::Verdict(verdict));
        self
    }

    /// Sets the value.
    pub fn data(mut self, value: impl Into<KeyPart>) -> Self {
        self.value = Some(Value::Data(value.into().first.to_vec()));
        self
    }

    /// Sets the timeout.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the comment, of at most 127 bytes.
    pub fn comment(mut self, text: impl Into<String>) -> Self {
        self.comment = Some(text.into());
        self
    }

    /// Why it cannot be in `set`, if it cannot.
    pub(crate) fn fault(&self, set: &Set) -> Option<&'static str> {
        let catch_all = self.key.is_empty();
        let lengths = |part: &KeyPart| (part.first.len(), part.last.len());
        let fits = |(part, key): (&KeyPart, &super::KeyType)| {
            let len = key.len_bytes() as usize;
            lengths(part) == (len, len)
        };
        if !catch_all && (self.key.len() != set.key.len() || !self.key.iter().zip(&set.key).all(fits)) {
            return Some("its key has another type than the set");
        }
        if !set.interval && self.key.iter().any(|part| part.first != part.last) {
            return Some("the set has no ranges (flags interval)");
        }
        let is_unordered =
            |(part, key): (&KeyPart, &super::KeyType)| key.is_host_order() && part.first != part.last;
        if self.key.iter().zip(&set.key).any(is_unordered) {
            return Some(super::UNORDERED);
        }
        (self.value.is_some() != set.value.is_some())
            .then_some("a value is for maps, and every element there has one")
    }

    /// An upper bound for the bytes that [`encode`](Self::encode) appends.
    pub(crate) fn encoded_len_max(&self) -> usize {
        let key: usize = self.key.iter().map(|part| part.first.len() + 4).sum();
        let value = match &self.value {
            Some(Value::Verdict(verdict)) => verdict.chain().map_or(0, str::len),
            Some(Value::Data(data)) => data.len(),
            None => 0,
        };
        key * 2 + value + self.comment.as_ref().map_or(0, String::len) + ELEMENT_OVERHEAD_BYTES
    }

    /// Appends it as one member of a list, or as two in an interval set.
    pub(crate) fn encode(&self, set: &Set, list: &mut MessageBuilder<'_>) {
        let first = self.joined(set, |part| &part.first);
        let last = if set.interval { self.joined(set, |part| &part.last) } else { Vec::new() };
        list.nested(NFTA_LIST_ELEM, |element| {
            if self.key.is_empty() {
                element.attr_be32(NFTA_SET_ELEM_FLAGS, NFT_SET_ELEM_CATCHALL);
            } else {
                encode_value(element, NFTA_SET_ELEM_KEY, &first);
            }
            if set.interval && set.is_concatenation() && !self.key.is_empty() {
                encode_value(element, NFTA_SET_ELEM_KEY_END, &last);
            }
            self.encode_rest(element);
        });
        if set.interval && !set.is_concatenation() {
            // A range up to the last key has no end member.
            if let Some(end) = successor(&last) {
                list.nested(NFTA_LIST_ELEM, |element| {
                    encode_value(element, NFTA_SET_ELEM_KEY, &end);
                    element.attr_be32(NFTA_SET_ELEM_FLAGS, NFT_SET_ELEM_INTERVAL_END);
                });
            }
        }
    }

    fn encode_rest(&self, element: &mut MessageBuilder<'_>) {
        match &self.value {
            Some(Value::Verdict(verdict)) => verdict.encode(element, NFTA_SET_ELEM_DATA),
            Some(Value::Data(data)) => encode_value(element, NFTA_SET_ELEM_DATA, data),
            None => {}
        }
        if let Some(timeout) = self.timeout {
            element.attr_be64(NFTA_SET_ELEM_TIMEOUT, millis(timeout));
        }
        if let Some(text) = &self.comment {
            element.attr(NFTA_SET_ELEM_USERDATA, &userdata::comment(text));
        }
    }

    fn joined(&self, set: &Set, bytes: impl Fn(&KeyPart) -> &Bytes) -> Vec<u8> {
        let mut joined = Vec::with_capacity(KEY_MAX_BYTES as usize);
        for (part, key) in self.key.iter().zip(&set.key) {
            let start = joined.len();
            joined.extend_from_slice(bytes(part));
            if set.converts(*key)
                && let Some(number) = joined.get_mut(start..)
            {
                to_network_order(number);
            }
            joined.resize(start + set.part_len(*key), 0);
        }
        joined
    }
}

// === impl KeyPart ===

impl KeyPart {
    /// A transport protocol's number.
    pub fn protocol(number: u8) -> Self {
        Self::single([number])
    }

    /// A port.
    pub fn port(port: u16) -> Self {
        Self::single(port.to_be_bytes())
    }

    /// A range of ports.
    pub fn ports(ports: RangeInclusive<u16>) -> Self {
        Self { first: ports.start().to_be_bytes().into(), last: ports.end().to_be_bytes().into() }
    }

    /// A mark.
    pub fn mark(mark: u32) -> Self {
        Self::single(mark.to_ne_bytes())
    }

    /// A classid, with its major number in the upper 16 bits.
    pub fn class_id(number: u32) -> Self {
        Self::single(number.to_ne_bytes())
    }

    /// The index of an interface.
    pub fn if_index(index: u32) -> Self {
        Self::single(index.to_ne_bytes())
    }

    /// The name of an interface.
    pub fn if_name(name: &IfName) -> Self {
        Self::single(padded_name(name.as_str()))
    }

    /// A MAC.
    pub fn mac(mac: Mac) -> Self {
        Self::single(mac.0)
    }

    /// A range of addresses of the same family.
    pub fn addresses(addresses: RangeInclusive<IpAddr>) -> Self {
        Self { first: bytes_of(*addresses.start()), last: bytes_of(*addresses.end()) }
    }

    /// The first address of a range of addresses.
    pub fn first_address(&self) -> Option<IpAddr> {
        address(&self.first)
    }

    /// The last address of a range of addresses.
    pub fn last_address(&self) -> Option<IpAddr> {
        address(&self.last)
    }

    /// The bytes of its first and last value.
    pub fn bytes(&self) -> (&[u8], &[u8]) {
        (&self.first, &self.last)
    }

    pub(crate) fn single(bytes: impl Into<Bytes>) -> Self {
        let first = bytes.into();
        Self { last: first.clone(), first }
    }

    /// Whether `later`, which begins no earlier, overlaps or directly follows this range.
    fn touches(&self, later: &KeyPart) -> bool {
        self.first.len() == later.first.len()
            && (later.first <= self.last || successor(&self.last).is_some_and(|end| *end == *later.first))
    }
}

impl From<IpAddr> for KeyPart {
    fn from(address: IpAddr) -> Self {
        Self::single(bytes_of(address))
    }
}

impl From<IpNet> for KeyPart {
    fn from(net: IpNet) -> Self {
        Self { first: bytes_of(net.network()), last: bytes_of(net.broadcast()) }
    }
}

/// The next key in network order; `None` after the last.
pub(crate) fn successor(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut next = bytes.to_vec();
    for byte in next.iter_mut().rev() {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return Some(next);
        }
    }
    None
}

/// The previous key in network order; `None` before the first.
pub(crate) fn predecessor(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut previous = bytes.to_vec();
    for byte in previous.iter_mut().rev() {
        *byte = byte.wrapping_sub(1);
        if *byte != 0xff {
            return Some(previous);
        }
    }
    None
}

/// Brings the bytes of a number into network order from host order, or the other way round.
pub(crate) fn to_network_order(bytes: &mut [u8]) {
    if cfg!(target_endian = "little") {
        bytes.reverse();
    }
}

/// A name as in a register: 16 bytes, padded with NULs.
pub(crate) fn padded_name(name: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(name.bytes()) {
        *to = from;
    }
    bytes
}

pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

fn bytes_of(address: IpAddr) -> Bytes {
    match address {
        IpAddr::V4(ip) => ip.octets().into(),
        IpAddr::V6(ip) => ip.octets().into(),
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    if let Ok(octets) = <[u8; 4]>::try_from(bytes) {
        return Some(IpAddr::from(octets));
    }
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covered(prefixes: &[&str]) -> Vec<(String, String)> {
        let shown = |ip: Option<IpAddr>| ip.unwrap().to_string();
        Element::cover(prefixes.iter().map(|text| text.parse().unwrap()))
            .iter()
            .map(|element| (shown(element.key[0].first_address()), shown(element.key[0].last_address())))
            .collect()
    }

    fn pairs(ranges: &[(&str, &str)]) -> Vec<(String, String)> {
        ranges.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
    }

    #[test]
    fn prefixes_within_and_beside_each_other_become_one_range() {
        let ranges = covered(&["10.1.0.0/17", "10.1.128.0/17", "10.1.3.0/24", "10.9.0.0/16", "10.1.0.0/17"]);
        assert_eq!(ranges, pairs(&[("10.1.0.0", "10.1.255.255"), ("10.9.0.0", "10.9.255.255")]));
    }

    #[test]
    fn the_whole_space_and_its_end_are_covered() {
        assert_eq!(covered(&["0.0.0.0/0", "10.0.0.0/8"]), pairs(&[("0.0.0.0", "255.255.255.255")]));
        let end = covered(&["255.255.255.255/32", "255.255.255.254/32"]);
        assert_eq!(end, pairs(&[("255.255.255.254", "255.255.255.255")]));
    }

    #[test]
    fn the_families_are_never_merged() {
        assert_eq!(covered(&["255.0.0.0/8", "::/8"]).len(), 2);
    }

    #[test]
    fn neighbours_in_key_order_are_inverse() {
        for bytes in [[0, 0], [0, 255], [1, 0], [254, 255]] {
            assert_eq!(predecessor(&successor(&bytes).unwrap()).unwrap(), bytes);
        }
        assert_eq!((successor(&[255, 255]), predecessor(&[0, 0])), (None, None));
    }
}
