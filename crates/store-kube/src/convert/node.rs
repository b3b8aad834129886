//! Nodes: Calico's node is in annotations of Kubernetes' (kubernetes.md section 1.7).

use russet_addr::{Family, NodeName};
use russet_model::{API_VERSION, Key, probe_annotation};
use serde_json::{Map, Value, json};

use super::{ConvertError, Converted, encoded, name_of, text, wrong};
use crate::companion::Companion;
use crate::names::converted_uid;

type Object = Map<String, Value>;

/// Annotations of a node, and where their values are in the record.
const ANNOTATIONS: [(&str, &str); 13] = [
    ("IPv4Address", "/spec/bgp/ipv4Address"),
    ("IPv6Address", "/spec/bgp/ipv6Address"),
    ("IPv4IPIPTunnelAddr", "/spec/bgp/ipv4IPIPTunnelAddr"),
    ("ASNumber", "/spec/bgp/asNumber"),
    ("RouteReflectorClusterID", "/spec/bgp/routeReflectorClusterID"),
    ("IPv4VXLANTunnelAddr", "/spec/ipv4VXLANTunnelAddr"),
    ("VXLANTunnelMACAddr", "/spec/vxlanTunnelMACAddr"),
    ("IPv6VXLANTunnelAddr", "/spec/ipv6VXLANTunnelAddr"),
    ("VXLANTunnelMACAddrV6", "/spec/vxlanTunnelMACAddrV6"),
    ("IPv4WireguardInterfaceAddr", "/spec/wireguard/interfaceIPv4Address"),
    ("IPv6WireguardInterfaceAddr", "/spec/wireguard/interfaceIPv6Address"),
    ("WireguardPublicKey", "/status/wireguardPublicKey"),
    ("WireguardPublicKeyV6", "/status/wireguardPublicKeyV6"),
];
/// Annotations whose values are JSON.
const INTERFACES: &str = "projectcalico.org/Interfaces";
const LABELS: &str = "projectcalico.org/labels";
const OTHER_ANNOTATIONS: &str = "projectcalico.org/annotations";
const PREFIX: &str = "projectcalico.org/";

/// The record of a node. An annotation with an invalid value counts as missing.
pub(super) fn to_record(object: &Value) -> Result<Converted, ConvertError> {
    let name = name_of(object)?;
    let key = Key::node(&NodeName::new(name).map_err(wrong)?);
    let annotations = object.pointer("/metadata/annotations").and_then(Value::as_object);
    let annotation = |name: &str| annotations.and_then(|all| all.get(name)?.as_str());
    let mut value =
        json!({ "kind": "Node", "apiVersion": API_VERSION, "metadata": metadata(object, name), "spec": {} });
    for (short, pointer) in ANNOTATIONS {
        let Some(text) = annotation(&format!("{PREFIX}{short}")).filter(|text| !text.is_empty()) else {
            continue;
        };
        match parsed(short, text) {
            Some(member) => set(&mut value, pointer, member),
            None => tracing::warn!(
                node = name,
                annotation = short,
                value = text,
                "invalid annotation of a node ignored"
            ),
        }
    }
    if let Some(interfaces) = annotation(INTERFACES).and_then(|text| serde_json::from_str::<Value>(text).ok())
    {
        set(&mut value, "/spec/interfaces", interfaces);
    }
    let addresses = object.pointer("/status/addresses").and_then(Value::as_array).into_iter().flatten();
    let addresses: Vec<Value> = addresses
        .filter(|address| matches!(text(address, "/type"), Some("InternalIP" | "ExternalIP")))
        .map(|address| json!({ "address": address.get("address"), "type": address.get("type") }))
        .collect();
    if !addresses.is_empty() {
        set(&mut value, "/spec/addresses", json!(addresses));
    }
    set(&mut value, "/spec/orchRefs", json!([{ "nodeName": name, "orchestrator": "k8s" }]));
    if let Some(ranges) = object.pointer("/spec/podCIDRs").filter(|ranges| ranges.is_array()) {
        set(&mut value, "/status/podCIDRs", ranges.clone());
    }
    Ok(Converted { key, value: Some(encoded(&value)) })
}

/// The strategic merge patch of a node's status that makes it hold this record: only annotations
/// that differ from those that were read. Other parts of a node are not Calico's to write.
pub(crate) fn patch(value: &[u8], companion: &Companion) -> Result<Option<Value>, ConvertError> {
    let value: Value =
        serde_json::from_slice(value).map_err(|error| wrong(format!("the value is not JSON: {error}")))?;
    let name = name_of(&value)?;
    let read = json!({ "metadata": companion.metadata });
    let mut known = metadata(&read, name);
    // Those annotations are ours.
    let mut given = value.pointer("/metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    let (had_probes, wanted_probes) = (take_probe_addresses(&mut known), take_probe_addresses(&mut given));
    for member in ["labels", "annotations"] {
        if given.get(member).is_some_and(|given| Some(given) != known.get(member)) {
            return Err(ConvertError(format!(
                "{member} of a node belong to Kubernetes: set them with kubectl"
            )));
        }
    }
    let had = companion.metadata.get("annotations").and_then(Value::as_object);
    let mut changed = Object::new();
    for (short, pointer) in ANNOTATIONS {
        let name = format!("{PREFIX}{short}");
        let wanted = value.pointer(pointer).filter(|member| !member.is_null());
        let wanted = wanted.map(|member| member.as_str().map_or_else(|| member.to_string(), str::to_owned));
        let had = had.and_then(|all| all.get(&name)?.as_str());
        // What was invalid was not in the record that the caller read, and is not ours to remove.
        let is_unread = wanted.is_none() && had.is_some_and(|text| parsed(short, text).is_none());
        if wanted.as_deref() != had && !is_unread {
            changed.insert(name, json!(wanted));
        }
    }
    for name in Family::BOTH.map(probe_annotation) {
        let (had, wanted) = (had_probes.get(name), wanted_probes.get(name));
        if had != wanted {
            changed.insert(name.to_owned(), json!(wanted));
        }
    }
    Ok((!changed.is_empty()).then(|| json!({ "metadata": { "annotations": changed } })))
}

/// Removes the annotations with the node's addresses for probes from its metadata, and returns them.
fn take_probe_addresses(metadata: &mut Object) -> Object {
    let mut taken = Object::new();
    let Some(Value::Object(annotations)) = metadata.get_mut("annotations") else { return taken };
    for name in Family::BOTH.map(probe_annotation) {
        taken.extend(annotations.remove(name).map(|address| (name.to_owned(), address)));
    }
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    taken
}

/// Calico's view of a node's metadata: Kubernetes' labels and annotations win over those that were
/// set through Calico only.
fn metadata(object: &Value, name: &str) -> Object {
    let of_object =
        |member: &str| object.pointer("/metadata").and_then(|all| all.get(member)?.as_object().cloned());
    let annotations = of_object("annotations").unwrap_or_default();
    let own = |name: &str| -> Object {
        annotations.get(name).and_then(|text| serde_json::from_str(text.as_str()?).ok()).unwrap_or_default()
    };
    let mut labels = own(LABELS);
    labels.extend(of_object("labels").unwrap_or_default());
    let mut others = own(OTHER_ANNOTATIONS);
    others.extend(
        annotations
            .iter()
            .filter(|(name, _)| !name.starts_with(PREFIX))
            .map(|(name, text)| (name.clone(), text.clone())),
    );
    let mut metadata = Object::new();
    metadata.insert("name".to_owned(), json!(name));
    if let Some(uid) = text(object, "/metadata/uid") {
        metadata.insert("uid".to_owned(), json!(converted_uid(uid).unwrap_or_else(|| uid.to_owned())));
    }
    metadata.insert("creationTimestamp".to_owned(), json!(text(object, "/metadata/creationTimestamp")));
    for (name, map) in [("labels", labels), ("annotations", others)] {
        if !map.is_empty() {
            metadata.insert(name.to_owned(), Value::Object(map));
        }
    }
    metadata
}

/// The value of an annotation, if it is valid.
fn parsed(short: &str, text: &str) -> Option<Value> {
    use std::net::{Ipv4Addr, Ipv6Addr};
    let address = |text: &str| text.split('/').next().unwrap_or_default().to_owned();
    let is_valid = match short {
        "IPv4Address" => address(text).parse::<Ipv4Addr>().is_ok() && is_prefix_length(text, 32),
        "IPv6Address" => address(text).parse::<Ipv6Addr>().is_ok() && is_prefix_length(text, 128),
        "ASNumber" => return text.parse::<u32>().ok().map(Value::from),
        "IPv4IPIPTunnelAddr" | "IPv4VXLANTunnelAddr" | "IPv4WireguardInterfaceAddr" => {
            text.parse::<Ipv4Addr>().is_ok()
        }
        "IPv6VXLANTunnelAddr" | "IPv6WireguardInterfaceAddr" => text.parse::<Ipv6Addr>().is_ok(),
        "VXLANTunnelMACAddr" | "VXLANTunnelMACAddrV6" => text.parse::<russet_addr::Mac>().is_ok(),
        _ => true,
    };
    is_valid.then(|| json!(text))
}

fn is_prefix_length(text: &str, max: u8) -> bool {
    text.split_once('/').is_none_or(|(_, length)| length.parse::<u8>().is_ok_and(|length| length <= max))
}

/// Sets a member, with the objects around it.
fn set(value: &mut Value, pointer: &str, member: Value) {
    let mut at = value;
    for name in pointer.split('/').skip(1) {
        let Value::Object(members) = at else { return };
        at = members.entry(name).or_insert_with(|| json!({}));
    }
    *at = member;
}
