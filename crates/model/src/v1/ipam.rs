//! Converts blocks and handles between the two models (calico-ipam.md sections 1.3, 1.6 and 1.9).
//! They have the same paths.

use russet_addr::NodeName;
use serde_json::Value;

use crate::json::{self, Extra, Object};
use crate::{Attribute, Block, Handle};

/// A block in the form of v3: `hostAffinity` becomes `affinity`, which v3 readers would otherwise
/// take for missing. Sequence numbers stay 0, as v3 reads a missing one; only the revision guards,
/// as in v1.
pub fn block_to_v3(block: &Block) -> Block {
    let legacy = block.host_affinity.as_deref().and_then(|node| NodeName::new(node).ok());
    let affinity = block.affinity.clone().or_else(|| legacy.map(|node| Block::affinity_of(&node)));
    Block { affinity, host_affinity: None, ..block.clone() }
}

/// The bytes of a block as a v1 peer writes them: without sequence numbers, claim time and
/// `deleted`, with `strictAffinity`. Unknown members stay.
pub fn block_from_v3(block: &Block) -> Vec<u8> {
    let plain = Block { affinity_claim_time: None, strict_affinity: false, ..block.clone() };
    let Ok(Value::Object(mut members)) = serde_json::from_slice(&plain.encode()) else {
        // The bytes were just encoded from an object.
        return plain.encode();
    };
    for name in ["sequenceNumber", "sequenceNumberForAllocation", "deleted", "attributes"] {
        members.shift_remove(name);
    }
    let mut take = |name: &str| members.shift_remove(name).unwrap_or_default();
    let value = Object::default()
        .put("cidr", take("cidr"))
        .put("affinity", take("affinity"))
        .put("strictAffinity", block.strict_affinity)
        .put("allocations", take("allocations"))
        .put("unallocated", take("unallocated"))
        .put("attributes", block.attributes().iter().map(owner_from_v3).collect::<Vec<_>>())
        .finish(&members);
    json::encode(&value)
}

/// Both members always, null if there is none.
fn owner_from_v3(owner: &Attribute) -> Value {
    let secondary = owner.secondary.as_ref().map(json::string_map);
    Object::default()
        .put("handle_id", owner.handle_id.clone())
        .put("secondary", secondary)
        .finish(&owner.extra)
}

/// The bytes of a handle as a v1 peer writes them: without `deleted`.
pub fn handle_from_v3(handle: &Handle) -> Vec<u8> {
    let value = Object::default().put("block", json::number_map(&handle.block));
    let unknown: &Extra = &handle.extra;
    json::encode(&value.finish(unknown))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = r#"{"cidr":"10.1.0.0/30","affinity":"host:node-a","strictAffinity":false,"allocations":[0,null,null,null],"unallocated":[1,2,3],"attributes":[{"handle_id":"shop.web-0","secondary":{}}]}"#;

    #[test]
    fn a_block_of_v1_is_read_and_written_back_byte_for_byte() {
        let block = Block::decode(V1.as_bytes()).unwrap();
        assert_eq!(String::from_utf8(block_from_v3(&block)).unwrap(), V1);
        assert_eq!((block.sequence_number, block.sequence_number_of(0)), (0, 0));
    }

    #[test]
    fn what_v3_added_is_left_out_and_what_nobody_knows_stays() {
        let mut block = Block::decode(V1.as_bytes()).unwrap();
        block.sequence_number = 1 << 60;
        block.sequence_numbers = Some([("0".to_owned(), 7)].into());
        block.affinity_claim_time = Some("2026-01-02T03:00:00Z".to_owned());
        block.extra.insert("future".to_owned(), 1.into());
        let text = String::from_utf8(block_from_v3(&block)).unwrap();
        assert_eq!(text, format!(r#"{},"future":1}}"#, V1.strip_suffix('}').unwrap()));
        block.attributes = None;
        assert!(String::from_utf8(block_from_v3(&block)).unwrap().contains(r#""attributes":[]"#));
    }

    #[test]
    fn the_oldest_spelling_of_an_affinity_counts() {
        let text = V1.replace(r#""affinity":"host:node-a""#, r#""affinity":null,"hostAffinity":"node-a""#);
        let block = block_to_v3(&Block::decode(text.as_bytes()).unwrap());
        assert!(block.serves(&NodeName::new("node-a").unwrap()));
        assert!(!String::from_utf8(block.encode()).unwrap().contains("hostAffinity"));
        let python = V1.replace("host:node-a", "");
        assert_eq!(block_to_v3(&Block::decode(python.as_bytes()).unwrap()).affinity, None);
    }

    #[test]
    fn a_strict_block_stays_strict() {
        // calico-ipam.md section 1.3: enforced by peers up to 3.13
        let text = V1.replace(r#""strictAffinity":false"#, r#""strictAffinity":true"#);
        let text = text.replace(r#""secondary":{}"#, r#""secondary":{"node":"n"}"#);
        let there = block_to_v3(&Block::decode(text.as_bytes()).unwrap());
        let back = Block::decode(&there.encode()).unwrap();
        assert_eq!(String::from_utf8(block_from_v3(&back)).unwrap(), text);
    }

    #[test]
    fn a_handle_of_v1_is_read_and_written_back_byte_for_byte() {
        let text = r#"{"block":{"10.1.0.0/26":1}}"#;
        assert_eq!(
            String::from_utf8(handle_from_v3(&Handle::decode(text.as_bytes()).unwrap())).unwrap(),
            text
        );
    }
}
