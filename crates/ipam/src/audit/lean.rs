//! A fast reader for the audit: decodes only what is needed of a block and a handle, several times
//! faster than `russet_model` decodes all of it.
//!
//! It accepts only what `russet_model` would accept, with the same result. In any doubt - an
//! unknown field, a type that does not fit, a broken invariant - `russet_model` decides, and
//! produces the error.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use russet_addr::BlockCidr;
use russet_model::{Attribute, Block, DecodeError, Handle, HandleId};
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

/// What the audit needs of a block.
#[derive(Debug, PartialEq)]
pub(super) struct Lean<'a> {
    pub(super) cidr: BlockCidr,
    pub(super) affinity: Option<String>,
    /// Allocated addresses, including those in cooldown, with the index of their handle; none where
    /// no active handle has it.
    pub(super) used: Vec<(u16, Option<usize>)>,
    /// The handle of each attribute, sanitized.
    pub(super) handles: Vec<Cow<'a, str>>,
}

/// Whether an address is only reserved by Windows peers.
pub(super) fn is_reserved(handle: Option<&str>) -> bool {
    handle.is_some_and(|handle| handle.eq_ignore_ascii_case(HandleId::WINDOWS_RESERVED))
}

/// For a handle with a count for one block only, written as peers and Russet write it: the block's
/// text, and the count. None for any other.
pub(super) fn sole_count(bytes: &[u8]) -> Option<(&[u8], u64)> {
    let rest = bytes.strip_prefix(br#"{"block":{""#)?.strip_suffix(br#"},"deleted":false}"#)?;
    let colon = rest.windows(2).position(|pair| pair == b"\":")?;
    let (block, rest) = rest.split_at_checked(colon)?;
    let digits = rest.strip_prefix(b"\":")?;
    let plain = |digits: &[u8]| {
        digits.iter().all(u8::is_ascii_digit) && (digits.len() == 1 || !digits.starts_with(b"0"))
    };
    let digits = Some(digits).filter(|digits| !digits.is_empty() && plain(digits))?;
    Some((block, std::str::from_utf8(digits).ok()?.parse().ok()?))
}

/// Reads a handle.
pub(super) fn handle(bytes: &[u8]) -> Result<Handle, DecodeError> {
    match serde_json::from_slice::<RawHandle>(bytes) {
        Ok(raw) => {
            let deleted = raw.deleted.unwrap_or(false);
            Ok(Handle { block: raw.block.unwrap_or_default(), deleted, ..Handle::default() })
        }
        Err(_) => Handle::decode(bytes),
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHandle {
    block: Option<BTreeMap<String, u64>>,
    deleted: Option<bool>,
}

/// A block's fields: those that matter, and those that must only have the right type.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Raw<'a> {
    #[serde(borrow)]
    cidr: Cow<'a, str>,
    affinity: Option<String>,
    #[serde(rename = "affinity_claim_time")]
    _affinity_claim_time: Option<Text>,
    allocations: Option<Vec<Option<usize>>>,
    unallocated: Option<Vec<usize>>,
    #[serde(borrow)]
    attributes: Option<Vec<RawAttribute<'a>>>,
    #[serde(rename = "sequenceNumber")]
    _sequence_number: Option<u64>,
    #[serde(rename = "sequenceNumberForAllocation")]
    _sequence_numbers: Option<Numbers>,
    #[serde(rename = "deleted")]
    _deleted: Option<bool>,
    #[serde(rename = "hostAffinity")]
    _host_affinity: Option<Text>,
    #[serde(rename = "strictAffinity")]
    _strict_affinity: Option<bool>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAttribute<'a> {
    #[serde(borrow)]
    handle_id: Option<Borrowed<'a>>,
    #[serde(rename = "secondary")]
    _secondary: Option<Strings>,
    #[serde(rename = "alternateOwnerAttrs")]
    _alternate_owner: Option<Strings>,
    #[serde(rename = "releasedAt")]
    released_at: Option<Text>,
}

/// A string that borrows if it can; serde's `Option<Cow>` never does.
struct Borrowed<'a>(Cow<'a, str>);

/// Any string, dropped.
struct Text;

/// A map of strings or nulls, dropped.
struct Strings;

/// A map of unsigned integers, dropped.
struct Numbers;

// === impl Lean ===

impl<'a> Lean<'a> {
    /// Decodes a block and checks its invariants.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        match Self::fast(bytes) {
            Some(lean) => Ok(lean),
            None => Block::decode(bytes).map(|block| Self::of(&block)),
        }
    }

    /// A block of the usual form; none if it needs a closer look.
    fn fast(bytes: &'a [u8]) -> Option<Self> {
        // Checking UTF-8 once is faster than for every string.
        let raw: Raw<'a> = serde_json::from_str(std::str::from_utf8(bytes).ok()?).ok()?;
        let cidr = raw.cidr.parse().ok()?;
        let allocations = raw.allocations.unwrap_or_default();
        let attributes = raw.attributes.unwrap_or_default();
        if !keeps_invariants(cidr, &allocations, &raw.unallocated.unwrap_or_default(), attributes.len()) {
            return None;
        }
        let is_long = |owner: &RawAttribute<'_>| {
            owner.handle_id.as_ref().is_some_and(|handle| handle.0.len() > Attribute::HANDLE_MAX_BYTES)
        };
        if raw.affinity.as_ref().is_some_and(|owner| owner.len() > Block::AFFINITY_MAX_BYTES)
            || attributes.iter().any(is_long)
        {
            return None;
        }
        let living = attributes.iter().map(|owner| owner.handle_id.is_some() && owner.released_at.is_none());
        let living: Vec<bool> = living.collect();
        let names = attributes.into_iter().map(|owner| match owner.handle_id {
            Some(Borrowed(Cow::Borrowed(handle))) => Cow::Borrowed(HandleId::sanitized(handle)),
            Some(Borrowed(Cow::Owned(handle))) => Cow::Owned(HandleId::sanitized(&handle).to_owned()),
            None => Cow::Borrowed(""),
        });
        let handles: Vec<Cow<'a, str>> = names.collect();
        let affinity = raw.affinity.filter(|owner| !owner.is_empty());
        Some(Self { cidr, affinity, used: used(&allocations, &handles, &living), handles })
    }

    fn of(block: &Block) -> Self {
        let living = |owner: &Attribute| owner.handle_id.is_some() && owner.released_at.is_none();
        let living: Vec<bool> = block.attributes().iter().map(living).collect();
        let name = |owner: &Attribute| {
            Cow::Owned(HandleId::sanitized(owner.handle_id.as_deref().unwrap_or_default()).to_owned())
        };
        let handles: Vec<Cow<'a, str>> = block.attributes().iter().map(name).collect();
        let used = used(&block.allocations, &handles, &living);
        Self { cidr: block.cidr, affinity: block.affinity.clone(), used, handles }
    }
}

/// The addresses in use. An attribute without a handle has an empty name, which no handle has.
fn used(
    allocations: &[Option<usize>],
    handles: &[Cow<'_, str>],
    living: &[bool],
) -> Vec<(u16, Option<usize>)> {
    let one = |(ordinal, slot): (usize, &Option<usize>)| {
        let owner = (*slot)?;
        if is_reserved(handles.get(owner).map(AsRef::as_ref)) {
            return None;
        }
        let lives = living.get(owner).copied().unwrap_or(false);
        Some((u16::try_from(ordinal).ok()?, lives.then_some(owner)))
    };
    allocations.iter().enumerate().filter_map(one).collect()
}

/// The five invariants of calico-ipam.md section 1.3, as `russet_model` checks them.
fn keeps_invariants(
    cidr: BlockCidr,
    allocations: &[Option<usize>],
    unallocated: &[usize],
    attributes: usize,
) -> bool {
    let size = cidr.size();
    if allocations.len() != size {
        return false;
    }
    let mut referenced = vec![false; attributes];
    let mut known: Vec<bool> = allocations.iter().map(Option::is_some).collect();
    for index in allocations.iter().flatten() {
        match referenced.get_mut(*index) {
            Some(referenced) => *referenced = true,
            None => return false,
        }
    }
    for ordinal in unallocated {
        match known.get_mut(*ordinal) {
            Some(known) if !*known => *known = true,
            _ => return false,
        }
    }
    referenced.into_iter().chain(known).all(|true_| true_)
}

// === what only has a type ===

impl<'de: 'a, 'a> Deserialize<'de> for Borrowed<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Taker;
        impl<'de> Visitor<'de> for Taker {
            type Value = Borrowed<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Borrowed(Cow::Borrowed(text)))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Borrowed(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Taker)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Taker;
        impl Visitor<'_> for Taker {
            type Value = Text;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Text, E> {
                if text.len() > Attribute::MEMBER_MAX_BYTES { Err(E::custom("too long")) } else { Ok(Text) }
            }
        }
        deserializer.deserialize_str(Taker)
    }
}

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Taker;
        impl<'de> Visitor<'de> for Taker {
            type Value = Strings;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Strings, A::Error> {
                while map.next_entry::<Text, Option<Text>>()?.is_some() {}
                Ok(Strings)
            }
        }
        deserializer.deserialize_map(Taker)
    }
}

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Taker;
        impl<'de> Visitor<'de> for Taker {
            type Value = Numbers;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of unsigned integers")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Numbers, A::Error> {
                while map.next_entry::<Text, u64>()?.is_some() {}
                Ok(Numbers)
            }
        }
        deserializer.deserialize_map(Taker)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use russet_testkit::blocks::full_block;

    use super::*;

    /// Blocks with what real ones have: free addresses, an address that cools down, none at all, escapes, a Windows reservation.
    const BLOCKS: &[&str] = &[
        r#"{"cidr":"10.1.0.16/30","affinity":"host:node-a","affinity_claim_time":"2026-01-02T03:00:00Z","allocations":[0,1,1,null],"unallocated":[3],"attributes":[{"handle_id":"net.aaaa","secondary":{"namespace":"default","node":null}},{"handle_id":"net.bbbb\r\neth0","releasedAt":"2026-01-02T03:00:00Z"}],"sequenceNumber":1767322800000000003,"sequenceNumberForAllocation":{"0":1767322800000000000},"deleted":false}"#,
        r#"{"cidr":"10.1.0.16/31","affinity":null,"allocations":[0,1],"unallocated":[],"attributes":[{"handle_id":"Windows-Reserved-IPAM-Handle"},{"secondary":{"type":"x"}}],"sequenceNumber":1,"sequenceNumberForAllocation":null,"deleted":false,"hostAffinity":"x","strictAffinity":true}"#,
        r#"{"cidr":"fd00::/127","allocations":[null,null],"unallocated":[1,0],"attributes":null,"later":{"a":1e9}}"#,
    ];

    fn assert_same(bytes: &[u8]) {
        let whole = Block::decode(bytes);
        if let Some(fast) = Lean::fast(bytes) {
            assert_eq!(fast, Lean::of(&whole.unwrap()), "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn the_fast_reader_returns_what_russet_model_returns() {
        let full = full_block(1, 1).records[0].1.clone();
        for bytes in BLOCKS.iter().map(|text| text.as_bytes()).chain([&full[..]]) {
            assert_same(bytes);
        }
        assert!(Lean::fast(&full).is_some() && Lean::fast(BLOCKS[0].as_bytes()).is_some());
        let lean = Lean::read(BLOCKS[1].as_bytes()).unwrap();
        assert_eq!(lean.used, [(1, None)]);
    }

    #[test]
    fn texts_that_are_too_long_are_refused_as_in_russet_model() {
        let long = |bytes: usize| "a".repeat(bytes);
        for (old, new) in [
            ("net.aaaa", long(Attribute::HANDLE_MAX_BYTES + 1)),
            ("host:node-a", long(Block::AFFINITY_MAX_BYTES + 1)),
            ("default", long(Attribute::MEMBER_MAX_BYTES + 1)),
            ("namespace", long(Attribute::MEMBER_MAX_BYTES + 1)),
        ] {
            let block = BLOCKS[0].replace(old, &new);
            let error = Lean::read(block.as_bytes()).unwrap_err().to_string();
            assert!(error.contains("are accepted") && error.len() < 500, "{error}");
            let block = BLOCKS[0].replace(old, &new[1..]);
            assert!(Lean::read(block.as_bytes()).is_ok(), "{old}");
        }
    }

    #[test]
    fn unknown_fields_are_left_to_russet_model() {
        assert_eq!(Lean::fast(BLOCKS[2].as_bytes()), None);
        assert_eq!(Lean::read(BLOCKS[2].as_bytes()).unwrap().used, []);
        let handle = super::handle(br#"{"block":{"10.1.0.16/30":2},"later":1}"#).unwrap();
        assert_eq!((handle.block.len(), handle.extra.len()), (1, 1));
    }

    proptest! {
        /// One byte replaced, or two fields exchanged: the fast reader never accepts what
        /// `russet_model` refuses.
        #[test]
        fn a_changed_block_is_never_accepted_by_the_fast_reader_alone(
            block in 0..BLOCKS.len(),
            at in any::<prop::sample::Index>(),
            byte in prop::sample::select(b"0123456789{}[]\",:nul-.e\\\r \xff".to_vec()),
            cut in any::<bool>(),
        ) {
            let mut bytes = BLOCKS[block].as_bytes().to_vec();
            let index = at.index(bytes.len());
            if cut {
                bytes.remove(index);
            } else {
                bytes[index] = byte;
            }
            assert_same(&bytes);
            if let Ok(raw) = super::handle(&bytes) {
                prop_assert_eq!(raw, Handle::decode(&bytes).unwrap());
            }
        }

        /// Whatever `sole_count` accepts as a handle of one block is one.
        #[test]
        fn a_sole_count_is_what_the_whole_reader_reads(
            at in any::<prop::sample::Index>(),
            byte in prop::sample::select(b"0123456789{}[]\",:tru-.e\\ \xff".to_vec()),
            how in 0..3,
        ) {
            let mut bytes = br#"{"block":{"10.1.0.16/30":12},"deleted":false}"#.to_vec();
            let index = at.index(bytes.len());
            match how {
                0 => _ = bytes.remove(index),
                1 => bytes[index] = byte,
                _ => bytes.insert(index, byte),
            }
            // The audit uses it only if the block's text is that of a block it knows.
            if let Some((b"10.1.0.16/30", count)) = super::sole_count(&bytes) {
                let whole = Handle::decode(&bytes).unwrap();
                prop_assert_eq!(whole.block, [("10.1.0.16/30".to_owned(), count)].into());
                prop_assert!(!whole.deleted && whole.extra.is_empty());
            }
        }
    }
}
