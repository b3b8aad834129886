//! The digest of a rule: equal for a rule to be sent and for the same rule as the kernel lists it.
//!
//! The bytes differ, because the kernel does not set the flag of nested attributes, and counters
//! change. Therefore the digest covers the structure, and of a counter only its existence.

use russet_netlink::wire::{Attribute, Attributes};

use crate::kernel::*;
use crate::verdict::Verdict;

/// FNV-1a, 64 bits: stable over releases, because it is stored in comments.
struct Fnv(u64);

/// The digest of a list of expressions (the contents of `NFTA_RULE_EXPRESSIONS`).
pub(crate) fn digest(expressions: &Attributes<'_>) -> u64 {
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    for element in expressions.clone() {
        let parts = element.nested();
        let name = parts.find(NFTA_EXPR_NAME).map(|name| name.text()).unwrap_or_default();
        hash.bytes(name.as_bytes());
        // Counters change, and the kernel may include the state of a limit.
        if name == "counter" {
            continue;
        }
        for attribute in parts.find(NFTA_EXPR_DATA).into_iter().flat_map(|data| data.nested()) {
            hash.attribute(attribute, is_data(&name, attribute.kind));
        }
    }
    hash.0
}

/// The names of the expressions in a list; extensions of iptables with their own names.
pub(crate) fn names(expressions: &Attributes<'_>) -> Vec<String> {
    let name = |element: Attribute<'_>| {
        let name = element.nested().find(NFTA_EXPR_NAME)?.text();
        Some(match extension(element) {
            Some((extension, _)) => format!("{name} {extension}"),
            None => name,
        })
    };
    expressions.clone().filter_map(name).collect()
}

/// The verdict of the list, if it is the same for all packets that its matches accept.
pub(crate) fn verdict(expressions: &Attributes<'_>) -> Option<Verdict> {
    let verdict = |element: Attribute<'_>| {
        let data = element.nested().find(NFTA_EXPR_DATA)?.nested();
        Verdict::decode(&data.find(NFTA_IMMEDIATE_DATA)?.nested())
    };
    let is_immediate = |element: &Attribute<'_>| {
        element.nested().find(NFTA_EXPR_NAME).is_some_and(|name| name.text() == "immediate")
    };
    expressions.clone().filter(is_immediate).filter_map(verdict).last()
}

/// The packet count of the counters in a list; `None` without counters.
pub(crate) fn packets(expressions: &Attributes<'_>) -> Option<u64> {
    expressions.clone().filter_map(counted).reduce(u64::wrapping_add)
}

/// The packet count of an expression, if it is a counter.
pub(crate) fn counted(expression: Attribute<'_>) -> Option<u64> {
    let parts = expression.nested();
    parts.find(NFTA_EXPR_NAME).filter(|name| name.text() == "counter")?;
    parts.find(NFTA_EXPR_DATA)?.nested().find(NFTA_COUNTER_PACKETS)?.be64()
}

/// The comment in iptables' comment match.
pub(crate) fn extension_comment(expressions: &Attributes<'_>) -> Option<String> {
    let (_, text) = expressions.clone().filter_map(extension).find(|(name, _)| name == "comment")?;
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    Some(String::from_utf8_lossy(text.get(..end)?).into_owned())
}

/// An extension of iptables: its name and its private data.
pub(crate) fn extension(element: Attribute<'_>) -> Option<(String, Vec<u8>)> {
    let parts = element.nested();
    let name = parts.find(NFTA_EXPR_NAME)?.text();
    if !matches!(name.as_str(), "match" | "target") {
        return None;
    }
    // Matches and targets have the same attributes.
    let data = parts.find(NFTA_EXPR_DATA)?.nested();
    let info = data.find(NFTA_EXTENSION_INFO).map(|info| info.payload.to_vec()).unwrap_or_default();
    Some((data.find(NFTA_EXTENSION_NAME)?.text(), info))
}

/// Whether an attribute of an expression contains data, that is, nested attributes.
fn is_data(expression: &str, kind: u16) -> bool {
    matches!(
        (expression, kind),
        ("immediate", NFTA_IMMEDIATE_DATA)
            | ("cmp", NFTA_CMP_DATA)
            | ("bitwise", NFTA_BITWISE_MASK | NFTA_BITWISE_XOR)
            | ("range", NFTA_RANGE_FROM_DATA | NFTA_RANGE_TO_DATA)
    )
}

// === impl Fnv ===

impl Fnv {
    fn bytes(&mut self, bytes: &[u8]) {
        // The length first, so that adjacent fields cannot be confused.
        for byte in (bytes.len() as u64).to_le_bytes().iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn attribute(&mut self, attribute: Attribute<'_>, is_data: bool) {
        self.bytes(&attribute.kind.to_le_bytes());
        if !is_data {
            return self.bytes(attribute.payload);
        }
        for inner in attribute.nested() {
            self.bytes(&inner.kind.to_le_bytes());
            match inner.kind {
                NFTA_DATA_VERDICT => inner.nested().for_each(|part| self.attribute(part, false)),
                _ => self.bytes(inner.payload),
            }
        }
    }
}
