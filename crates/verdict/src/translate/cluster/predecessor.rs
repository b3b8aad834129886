//! AdminNetworkPolicy and BaselineAdminNetworkPolicy v1alpha1, from which ClusterNetworkPolicy was
//! made: given its form, and read as one.

use serde_json::{Map, Value, json};

use crate::ir::PolicyKind;

/// The names of protocols in the old API and in the new one.
const PROTOCOLS: [(&str, &str); 3] = [("TCP", "tcp"), ("UDP", "udp"), ("SCTP", "sctp")];

/// The object in the form of a ClusterNetworkPolicy.
pub(super) fn converted(object: &Value, kind: PolicyKind) -> Value {
    let mut object = object.clone();
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return object };
    let is_baseline = kind == PolicyKind::BaselineAdminNetworkPolicy;
    if is_baseline {
        spec.insert("priority".to_owned(), super::PRIORITY_MAX.into());
    }
    spec.insert("tier".to_owned(), if is_baseline { "Baseline" } else { "Admin" }.into());
    for name in ["ingress", "egress"] {
        let rules = spec.get_mut(name).and_then(Value::as_array_mut);
        for rule in rules.into_iter().flatten().filter_map(Value::as_object_mut) {
            convert_rule(rule, is_baseline);
        }
    }
    object
}

/// What the old API does not have gets a name that the new one does not have, so that it is read
/// closed.
fn convert_rule(rule: &mut Map<String, Value>, is_baseline: bool) {
    if let Some(action) = rule.get_mut("action") {
        *action = match action.as_str() {
            Some("Allow") => "Accept".into(),
            Some("Deny") => "Deny".into(),
            Some("Pass") if !is_baseline => "Pass".into(),
            _ => Value::Null,
        };
    }
    if let Some(unknown) = rule.shift_remove("protocols") {
        rule.insert("protocols of another version".to_owned(), unknown);
    }
    if let Some(mut ports) = rule.shift_remove("ports") {
        ports.as_array_mut().into_iter().flatten().for_each(|port| *port = converted_port(port));
        rule.insert("protocols".to_owned(), ports);
    }
}

fn converted_port(port: &Value) -> Value {
    let members = port.as_object().filter(|members| members.len() == 1);
    let one = members.and_then(|members| members.iter().next()).and_then(|(name, value)| {
        if name == "namedPort" {
            return Some(json!({"destinationNamedPort": value}));
        }
        let mut left = value.as_object()?.clone();
        let protocol = left.shift_remove("protocol").unwrap_or_else(|| "TCP".into());
        let (_, protocol) = PROTOCOLS.iter().find(|(old, _)| protocol.as_str() == Some(*old))?;
        let number = left.shift_remove("port").filter(|_| left.is_empty());
        let destination = match name.as_str() {
            "portNumber" => json!({"number": number?}),
            "portRange" if number.is_none() => json!({"range": left}),
            _ => return None,
        };
        Some(json!({*protocol: {"destinationPort": destination}}))
    });
    one.unwrap_or_else(|| json!({"port": port}))
}
