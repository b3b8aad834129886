//! The handle's record: how many addresses its owner has in each block, as an upper bound
//! (calico-ipam.md section 1.6).

use std::collections::BTreeMap;

use russet_addr::BlockCidr;

use crate::json::{self, DecodeError, Extra, Fields, Object};

/// An index of the blocks. Its counts are upper bounds; only the blocks are authoritative.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Handle {
    /// Block (with `/`) to count. Never `null` on the wire: that crashes a Go peer.
    pub block: BTreeMap<String, u64>,
    /// Always false outside Kubernetes.
    pub deleted: bool,
    /// Unknown members.
    pub extra: Extra,
}

// === impl Handle ===

impl Handle {
    /// Reads a handle.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Fields::parse("handle", bytes)?;
        let block = fields.number_map("block")?.unwrap_or_default();
        let deleted = fields.boolean("deleted")?.unwrap_or(false);
        Ok(Self { block, deleted, extra: fields.rest() })
    }

    /// Writes the handle.
    pub fn encode(&self) -> Vec<u8> {
        let value =
            Object::default().put("block", json::number_map(&self.block)).put("deleted", self.deleted);
        json::encode(&value.finish(&self.extra))
    }

    /// Its count for `block`.
    pub fn count(&self, block: BlockCidr) -> u64 {
        self.block.get(&block.to_string()).copied().unwrap_or(0)
    }

    /// Adds `addresses` to the count for `block`.
    pub fn add(&mut self, block: BlockCidr, addresses: u64) {
        let count = self.block.entry(block.to_string()).or_insert(0);
        *count = count.saturating_add(addresses);
    }

    /// Sets the count for `block`; 0 removes the entry.
    pub fn set(&mut self, block: BlockCidr, addresses: u64) {
        match addresses {
            0 => self.block.remove(&block.to_string()),
            _ => self.block.insert(block.to_string(), addresses),
        };
    }

    /// The blocks in the record, without invalid names.
    pub fn blocks(&self) -> impl Iterator<Item = BlockCidr> + '_ {
        self.block.keys().filter_map(|text| text.parse().ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_survives_a_round_trip_byte_for_byte() {
        // calico-ipam.md section 1.6, TV2, TV13
        for text in [
            r#"{"block":{"10.1.0.16/29":1,"fd80:24e2:f998:72d6::/122":1},"deleted":false}"#,
            r#"{"block":{},"deleted":false,"later":[1]}"#,
        ] {
            assert_eq!(String::from_utf8(Handle::decode(text.as_bytes()).unwrap().encode()).unwrap(), text);
        }
    }

    #[test]
    fn a_null_map_is_read_and_never_written() {
        // calico-ipam.md section 1.6: a Go peer that increments it crashes
        let handle = Handle::decode(br#"{"block":null,"deleted":false}"#).unwrap();
        assert_eq!(handle.encode(), br#"{"block":{},"deleted":false}"#);
    }

    #[test]
    fn counts_are_integers() {
        for text in [r#"{"block":{"10.1.0.0/26":1.0}}"#, r#"{"block":{"10.1.0.0/26":-1}}"#, r#"{"block":[]}"#]
        {
            assert!(Handle::decode(text.as_bytes()).is_err(), "{text}");
        }
    }
}
