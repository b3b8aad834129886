//! Blocks, affinities, handles and the allocator's settings (kubernetes.md section 1.5). Their
//! records in etcd have no envelope, and some members have other names.

use russet_addr::{BlockCidr, NodeName};
use russet_model::{HandleId, Key, KeyKind};
use serde_json::{Map, Value, json};

use super::{ConvertError, Converted, METADATA, encoded, text, wrong};
use crate::Group;
use crate::companion::Companion;
use crate::names::affinity_labels;
use crate::place::Collection;

type Object = Map<String, Value>;

/// Members of a block and of the settings: the name in etcd, and the one in Kubernetes.
const BLOCK_MEMBERS: [(&str, &str); 9] = [
    ("cidr", "cidr"),
    ("affinity", "affinity"),
    ("affinity_claim_time", "affinityClaimTime"),
    ("allocations", "allocations"),
    ("unallocated", "unallocated"),
    ("attributes", "attributes"),
    ("sequenceNumber", "sequenceNumber"),
    ("sequenceNumberForAllocation", "sequenceNumberForAllocation"),
    ("deleted", "deleted"),
];
const CONFIG_MEMBERS: [(&str, &str); 2] =
    [("strict_affinity", "strictAffinity"), ("auto_allocate_blocks", "autoAllocateBlocks")];

/// The record of an IPAMBlock.
pub(super) fn block(object: &Value) -> Result<Converted, ConvertError> {
    let mut spec = spec_of(object)?;
    let cidr = member(&spec, "cidr")?.parse().map_err(wrong)?;
    let is_deleted = is_true(spec.get("deleted"));
    let mut value = Object::new();
    for (stored, named) in BLOCK_MEMBERS {
        match spec.remove(named) {
            Some(member) => value.insert(stored.to_owned(), member),
            // The only members that etcd's form has even without a value.
            None if matches!(stored, "affinity" | "sequenceNumberForAllocation") => {
                value.insert(stored.to_owned(), Value::Null)
            }
            None if stored == "deleted" => value.insert(stored.to_owned(), json!(false)),
            None => None,
        };
    }
    // Always there and always false, while etcd's form has it only if it is true.
    let is_strict = spec.remove("strictAffinity").is_some_and(|strict| is_true(Some(&strict)));
    if is_strict {
        value.insert("strictAffinity".to_owned(), json!(true));
    }
    value.append(&mut spec);
    Ok(converted(Key::block(cidr), value, is_deleted))
}

/// The record of a BlockAffinity: its owner and its block are in the key.
pub(super) fn affinity(object: &Value) -> Result<Converted, ConvertError> {
    let mut spec = spec_of(object)?;
    let block: BlockCidr = member(&spec, "cidr")?.parse().map_err(wrong)?;
    let owner = member(&spec, "node")?;
    let key = match spec.get("type").and_then(Value::as_str) {
        None | Some("" | "host") => Key::affinity(&NodeName::new(owner).map_err(wrong)?, block),
        Some("virtual") => {
            let family = block.family().segment();
            Key::from_stored(format!("/calico/ipam/v2/virtual/{owner}/{family}/block/{}", block.key_text()))
        }
        Some(other) => return Err(ConvertError(format!("an affinity of type {other:?}"))),
    };
    let is_deleted = is_true(spec.get("deleted"));
    let mut value = Object::new();
    value.insert("state".to_owned(), spec.remove("state").unwrap_or_else(|| json!("")));
    value.insert("deleted".to_owned(), json!(false));
    for name in ["cidr", "node", "type", "deleted"] {
        spec.remove(name);
    }
    value.append(&mut spec);
    Ok(converted(key, value, is_deleted))
}

/// The record of an IPAMHandle.
pub(super) fn handle(object: &Value) -> Result<Converted, ConvertError> {
    let mut spec = spec_of(object)?;
    let id = HandleId::new(member(&spec, "handleID")?).map_err(wrong)?;
    let is_deleted = is_true(spec.get("deleted"));
    let mut value = Object::new();
    value.insert(
        "block".to_owned(),
        spec.remove("block").filter(Value::is_object).unwrap_or_else(|| json!({})),
    );
    value.insert("deleted".to_owned(), json!(false));
    for name in ["handleID", "deleted"] {
        spec.remove(name);
    }
    value.append(&mut spec);
    Ok(converted(Key::handle(&id), value, is_deleted))
}

/// The record of the settings: etcd's form omits false and 0.
pub(super) fn config(object: &Value) -> Result<Converted, ConvertError> {
    let mut spec = spec_of(object)?;
    let mut value = Object::new();
    for (stored, named) in CONFIG_MEMBERS {
        if let Some(member) = spec.remove(named) {
            value.insert(stored.to_owned(), member);
        }
    }
    value.append(&mut spec);
    value.retain(|_, member| *member != json!(false) && *member != json!(0));
    Ok(converted(Key::ipam_config(), value, false))
}

/// The object of a record, without its identity.
pub(super) fn to_object(
    collection: Collection,
    key: &Key,
    mut value: Object,
    companion: Option<&Companion>,
    group: Group,
) -> Result<Object, ConvertError> {
    let mut labels = None;
    let mut spec = Object::new();
    match (collection, key.kind()) {
        (Collection::Blocks, KeyKind::Block(_)) => block_spec(&mut spec, &mut value),
        (Collection::Affinities, KeyKind::Affinity { node, block }) => {
            affinity_spec(&mut spec, &mut value, ("host", node.as_str(), block), group);
            labels = Some(affinity_labels("host", node.as_str(), block.family()));
        }
        (Collection::Affinities, KeyKind::VirtualAffinity { owner, block }) => {
            affinity_spec(&mut spec, &mut value, ("virtual", &owner, block), group);
            labels = Some(affinity_labels("virtual", &owner, block.family()));
        }
        (Collection::Handles, KeyKind::Handle(id)) => {
            // Two IDs that differ in case only share an object, which keeps the first one's spelling.
            let stored = companion.and_then(|companion| companion.handle_id.clone());
            let block = value.remove("block").filter(Value::is_object).unwrap_or_else(|| json!({}));
            spec.insert("block".to_owned(), block);
            spec.insert("deleted".to_owned(), json!(is_true(value.remove("deleted").as_ref())));
            spec.insert("handleID".to_owned(), json!(stored.unwrap_or_else(|| id.as_str().to_owned())));
        }
        (Collection::IpamConfig, KeyKind::IpamConfig) => {
            for (stored, named) in CONFIG_MEMBERS {
                spec.insert(named.to_owned(), value.remove(stored).unwrap_or_else(|| json!(false)));
            }
        }
        _ => return Err(ConvertError(format!("{key} is no key of the allocator"))),
    }
    spec.append(&mut value);
    let metadata = metadata(companion, labels.as_ref().map(|labels| json!(labels)), group);
    Ok(Object::from_iter([
        ("metadata".to_owned(), Value::Object(metadata)),
        ("spec".to_owned(), Value::Object(spec)),
    ]))
}

fn block_spec(spec: &mut Object, value: &mut Object) {
    for (stored, named) in BLOCK_MEMBERS {
        // A null is dropped by the server, or refused.
        if let Some(member) = value.remove(stored).filter(|member| !member.is_null()) {
            spec.insert(named.to_owned(), member);
        }
    }
    spec.entry("attributes").or_insert_with(|| json!([]));
    spec.insert("strictAffinity".to_owned(), json!(is_true(value.remove("strictAffinity").as_ref())));
}

fn affinity_spec(spec: &mut Object, value: &mut Object, owned: (&str, &str, BlockCidr), group: Group) {
    let (kind, owner, block) = owned;
    let is_deleted = is_true(value.remove("deleted").as_ref());
    let state = value.remove("state").unwrap_or_else(|| json!(""));
    spec.insert("cidr".to_owned(), json!(block.to_string()));
    spec.insert(
        "deleted".to_owned(),
        match group {
            Group::V1 => json!(is_deleted.to_string()),
            Group::V3 => json!(is_deleted),
        },
    );
    spec.insert("node".to_owned(), json!(owner));
    spec.insert("state".to_owned(), state);
    spec.insert("type".to_owned(), json!(kind));
}

/// The metadata of an object of the allocator: what it had, and the labels that it must have, in the
/// older group also inside the annotation.
fn metadata(companion: Option<&Companion>, labels: Option<Value>, group: Group) -> Object {
    let mut metadata = companion.map(|companion| companion.metadata.clone()).unwrap_or_default();
    if let Some(Value::Object(mut wanted)) = labels.clone() {
        let known = metadata.entry("labels").or_insert_with(|| json!({}));
        if let Some(known) = known.as_object_mut() {
            known.append(&mut wanted);
        }
    }
    if group == Group::V3 {
        return metadata;
    }
    let stored = metadata.get("annotations").and_then(|all| all.get(METADATA)).and_then(Value::as_str);
    let stored = stored.and_then(|text| serde_json::from_str(text).ok());
    let mut carried: Object =
        stored.unwrap_or_else(|| Object::from_iter([("creationTimestamp".to_owned(), Value::Null)]));
    if let Some(Value::Object(mut wanted)) = labels {
        let known = carried.entry("labels").or_insert_with(|| json!({}));
        if let Some(known) = known.as_object_mut() {
            known.append(&mut wanted);
        }
    }
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    if let Some(annotations) = annotations.as_object_mut() {
        annotations.insert(METADATA.to_owned(), json!(Value::Object(carried).to_string()));
    }
    metadata
}

fn converted(key: Key, value: Object, is_deleted: bool) -> Converted {
    Converted { key, value: (!is_deleted).then(|| encoded(&Value::Object(value))) }
}

fn spec_of(object: &Value) -> Result<Object, ConvertError> {
    let spec = object.get("spec").and_then(Value::as_object).cloned();
    spec.ok_or_else(|| ConvertError("it has no spec".to_owned()))
}

fn member<'a>(spec: &'a Object, name: &str) -> Result<&'a str, ConvertError> {
    let member = spec.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    member.ok_or_else(|| ConvertError(format!("spec.{name} is missing or no text")))
}

/// `true`, or the text that the older group has for it.
fn is_true(member: Option<&Value>) -> bool {
    match member {
        Some(Value::Bool(flag)) => *flag,
        Some(Value::String(text)) => text == "true",
        _ => false,
    }
}

/// Whether the labels of an affinity of a node are those by which it is listed.
pub(crate) fn is_labelled(object: &Value) -> bool {
    let Ok(Converted { key, .. }) = affinity(object) else { return true };
    let KeyKind::Affinity { node, block } = key.kind() else { return true };
    let labels = affinity_labels("host", node.as_str(), block.family());
    let has = |name: &str, value: &str| {
        object.pointer("/metadata/labels").and_then(|all| all.get(name)?.as_str()) == Some(value)
    };
    text(object, "/spec/type") == Some("host") && labels.iter().all(|(name, value)| has(name, value))
}
