//! Decodes sets and elements. Accepts any input, and skips what it cannot decode.

use std::time::Duration;

use russet_netlink::wire::{Attributes, Message};

use super::bytes::Bytes;
use super::element::{predecessor, to_network_order};
use super::{Element, KEY_MAX_BYTES, KeyPart, KeyType, Set, SetInfo, TYPE_BITS, Value, ValueType};
use crate::expr::counted;
use crate::kernel::*;
use crate::table::{Table, TableFamily};
use crate::userdata;
use crate::verdict::Verdict;

/// One member of a listed set: an element, or in an interval set the end of one.
struct Member {
    key: Vec<u8>,
    key_end: Option<Vec<u8>>,
    flags: u32,
    element: Element,
}

/// Decodes `NFT_MSG_NEWSET`.
pub(crate) fn decode_set(message: &Message<'_>) -> Option<SetInfo> {
    let family = TableFamily::from_number(*message.payload.first()?)?;
    let attributes = message.attributes(NFGENMSG_BYTES);
    let find = |kind| attributes.find(kind);
    let number = |kind| find(kind).and_then(|attribute| attribute.be32());
    let flags = number(NFTA_SET_FLAGS).unwrap_or(0);
    let key_len = number(NFTA_SET_KEY_LEN).unwrap_or(0).min(KEY_MAX_BYTES);
    let value = |kind| match kind {
        NFT_DATA_VERDICT => ValueType::Verdict,
        id => ValueType::Data(KeyType::from_id(id, number(NFTA_SET_DATA_LEN).unwrap_or(0))),
    };
    let size = find(NFTA_SET_DESC).and_then(|desc| desc.nested().find(NFTA_SET_DESC_SIZE)?.be32());
    let set = Set {
        table: Table::new(family, find(NFTA_SET_TABLE)?.text()),
        name: find(NFTA_SET_NAME)?.text(),
        key: key_types(number(NFTA_SET_KEY_TYPE).unwrap_or(0), key_len),
        value: number(NFTA_SET_DATA_TYPE).filter(|_| flags & NFT_SET_MAP != 0).map(value),
        interval: flags & NFT_SET_INTERVAL != 0,
        timeout: flags & NFT_SET_TIMEOUT != 0,
        constant: flags & NFT_SET_CONSTANT != 0,
        dynamic: flags & NFT_SET_EVAL != 0,
        counter: find(NFTA_SET_EXPR).is_some_and(|expression| counted(expression).is_some()),
        default_timeout: find(NFTA_SET_TIMEOUT).and_then(|value| value.be64()).map(Duration::from_millis),
        size,
        comment: find(NFTA_SET_USERDATA).and_then(|data| userdata::set_comment_of(data.payload)),
    };
    let handle = find(NFTA_SET_HANDLE).and_then(|handle| handle.be64()).unwrap_or(0);
    Some(SetInfo { set, handle, anonymous: flags & NFT_SET_ANONYMOUS != 0 })
}

/// Decodes the members in the messages of a dump, and joins ranges.
pub(crate) fn decode_elements<'a>(set: &Set, lists: impl IntoIterator<Item = &'a [u8]>) -> Vec<Element> {
    let members = lists.into_iter().flat_map(Attributes::new).filter_map(|member| {
        let member = decode_member(&member.nested());
        member.filter(|member| {
            member.flags & NFT_SET_ELEM_CATCHALL != 0 || member.key.len() == set.key_len() as usize
        })
    });
    if set.interval && !set.is_concatenation() {
        return joined_ranges(members.collect());
    }
    members
        .map(|member| {
            let last = member.key_end.as_ref().filter(|end| end.len() == member.key.len());
            let key = split(set, &member.key, last.unwrap_or(&member.key));
            Element { key, ..member.element }
        })
        .collect()
}

/// Decodes the elements that have counters in the messages of a dump, with the packets that each has counted. Not for intervals.
pub(crate) fn decode_counted<'a>(
    set: &Set,
    lists: impl IntoIterator<Item = &'a [u8]>,
) -> Vec<(Element, u64)> {
    let members = lists.into_iter().flat_map(Attributes::new).filter_map(|member| {
        let attributes = member.nested();
        let packets = attributes.find(NFTA_SET_ELEM_EXPR).and_then(counted)?;
        let member = decode_member(&attributes).filter(|it| it.key.len() == set.key_len() as usize)?;
        Some((Element { key: split(set, &member.key, &member.key), ..member.element }, packets))
    });
    members.collect()
}

/// Starts and ends are not sorted; an end belongs to the start before it, and the last start may
/// have none.
fn joined_ranges(mut members: Vec<Member>) -> Vec<Element> {
    let is_end = |member: &Member| member.flags & NFT_SET_ELEM_INTERVAL_END != 0;
    members.sort_by(|a, b| (&a.key, !is_end(a)).cmp(&(&b.key, !is_end(b))));
    let mut elements: Vec<Element> = Vec::new();
    let mut open: Option<Member> = None;
    let close = |open: &mut Option<Member>, end: Option<&[u8]>, elements: &mut Vec<Element>| {
        if let Some(start) = open.take() {
            let last = end.and_then(predecessor).unwrap_or_else(|| vec![0xff; start.key.len()]);
            elements.push(Element {
                key: vec![KeyPart { first: start.key.into(), last: last.into() }],
                ..start.element
            });
        }
    };
    for member in members {
        if member.flags & NFT_SET_ELEM_CATCHALL != 0 {
            elements.push(member.element);
        } else if is_end(&member) {
            close(&mut open, Some(&member.key), &mut elements);
        } else {
            close(&mut open, Some(&member.key), &mut elements);
            open = Some(member);
        }
    }
    close(&mut open, None, &mut elements);
    elements
}

fn decode_member(attributes: &Attributes<'_>) -> Option<Member> {
    let find = |kind| attributes.find(kind);
    let bytes = |kind| Some(find(kind)?.nested().find(NFTA_DATA_VALUE)?.payload.to_vec());
    let flags = find(NFTA_SET_ELEM_FLAGS).and_then(|flags| flags.be32()).unwrap_or(0);
    let value = find(NFTA_SET_ELEM_DATA).and_then(|data| {
        let data = data.nested();
        let plain = || Some(Value::Data(data.find(NFTA_DATA_VALUE)?.payload.to_vec()));
        Verdict::decode(&data).map(Value::Verdict).or_else(plain)
    });
    let element = Element {
        key: Vec::new(),
        value,
        timeout: find(NFTA_SET_ELEM_TIMEOUT).and_then(|timeout| timeout.be64()).map(Duration::from_millis),
        comment: find(NFTA_SET_ELEM_USERDATA).and_then(|data| userdata::comment_of(data.payload)),
    };
    let key = match bytes(NFTA_SET_ELEM_KEY) {
        Some(key) => key,
        None if flags & NFT_SET_ELEM_CATCHALL != 0 => Vec::new(),
        None => return None,
    };
    Some(Member { key, key_end: bytes(NFTA_SET_ELEM_KEY_END), flags, element })
}

fn split(set: &Set, first: &[u8], last: &[u8]) -> Vec<KeyPart> {
    let mut at = 0;
    let mut parts = Vec::with_capacity(set.key.len());
    for key in &set.key {
        let range = at..at + key.len_bytes() as usize;
        at += set.part_len(*key);
        if let (Some(first), Some(last)) = (first.get(range.clone()), last.get(range)) {
            let bytes = |bytes: &[u8]| {
                let mut bytes = bytes.to_vec();
                if set.converts(*key) {
                    to_network_order(&mut bytes);
                }
                Bytes::from(bytes)
            };
            parts.push(KeyPart { first: bytes(first), last: bytes(last) });
        }
    }
    parts
}

/// The types that nft has combined into one number. If one is unknown, the lengths are unknown, and
/// the key counts as one part.
fn key_types(mut id: u32, key_len: u32) -> Vec<KeyType> {
    let whole = KeyType::from_id(id, key_len);
    if !matches!(whole, KeyType::Other { .. }) {
        return vec![whole];
    }
    let mut types = Vec::new();
    while id != 0 {
        types.insert(0, KeyType::from_id(id & ((1 << TYPE_BITS) - 1), 0));
        id >>= TYPE_BITS;
    }
    let len: u32 = types.iter().map(|key| key.len_bytes().next_multiple_of(4)).sum();
    let known = types.iter().all(|key| !matches!(key, KeyType::Other { .. }));
    if known && len == key_len { types } else { vec![whole] }
}
