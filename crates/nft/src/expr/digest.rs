//! A rule's digest: equal for a rule that we would send and for the same rule as the kernel lists it.
//!
//! The bytes themselves differ, because the kernel neither sets the flag of nested attributes nor keeps counters at
//! zero. The digest therefore covers the structure, and of a counter only that it is there.

use russet_netlink::wire::{Attribute, Attributes};

use crate::kernel::*;

/// FNV-1a, 64 bits: stable over releases, so that it may be written into a comment.
struct Fnv(u64);

/// The digest of a list of expressions (the inside of `NFTA_RULE_EXPRESSIONS`).
pub(crate) fn digest(expressions: &Attributes<'_>) -> u64 {
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    for element in expressions.clone() {
        let parts = element.nested();
        let name = parts.find(NFTA_EXPR_NAME).map(|name| name.text()).unwrap_or_default();
        hash.bytes(name.as_bytes());
        // Counters change by themselves; the kernel may have put a limit's state there.
        if name == "counter" {
            continue;
        }
        for attribute in parts.find(NFTA_EXPR_DATA).into_iter().flat_map(|data| data.nested()) {
            hash.attribute(attribute, is_data(&name, attribute.kind));
        }
    }
    hash.0
}

/// The names of the expressions in a list.
pub(crate) fn names(expressions: &Attributes<'_>) -> Vec<String> {
    let name = |element: Attribute<'_>| element.nested().find(NFTA_EXPR_NAME).map(|name| name.text());
    expressions.clone().filter_map(name).collect()
}

/// Whether an attribute of an expression holds data, that is attributes of its own.
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
        // The length first, so that two fields never run into each other.
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
