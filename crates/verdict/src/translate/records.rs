//! Records of etcd by their keys: v3 resources, and the v1 model, which has no kinds and flat rules
//! (policy.md section 1.9).
//!
//! v1 records are given the form of v3 and read by the same code. Their selectors are over effective
//! labels already, so that nothing is confined to a namespace.

use std::collections::BTreeMap;
use std::sync::Arc;

use russet_model::ResourceKind;
use russet_model::v1::rule_in_v3;
use serde_json::{Map, Value, json};

use super::read::{At, Problems};
use super::translator::Kind;
use super::{Refused, Translated, Translator, calico};
use crate::ir::{Action, PolicyId, PolicyKind, Problem, Profile, Rule};
use crate::world::{EndpointKey, Update};

const V3: &str = "/calico/resources/v3/projectcalico.org/";
const V1: &str = "/calico/v1/";

/// Members of v1 policies whose names v3 changed.
const RENAMED: [(&str, &str); 6] = [
    ("inbound_rules", "ingress"),
    ("outbound_rules", "egress"),
    ("untracked", "doNotTrack"),
    ("pre_dnat", "preDNAT"),
    ("apply_on_forward", "applyOnForward"),
    ("staged_action", "stagedAction"),
];

/// The parts of the profiles of the v1 model, each of which is a record.
#[derive(Debug, Clone, Default)]
pub(super) struct Profiles(BTreeMap<String, BTreeMap<&'static str, Value>>);

// === impl Translator ===

impl Translator {
    /// A record of etcd was written, or deleted if there is no value. `None` if the key is not one
    /// of these.
    pub fn record(&mut self, key: &str, value: Option<&Value>) -> Option<Translated> {
        if let Some(path) = key.strip_prefix(V3) {
            let (plural, names) = path.split_once('/')?;
            let (version, kind) = ResourceKind::from_plural(plural)?.document();
            Kind::find(version, kind)?;
            return Some(self.resource((version, kind), names, value));
        }
        let parts: Vec<String> = key.strip_prefix(V1)?.split('/').map(unescaped).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let read = self.v1_record(&parts, value)?;
        Some(self.or_instead(read))
    }

    /// The names are those of the key, which decides among policies of equal order.
    fn resource(&mut self, (version, kind): (&str, &str), names: &str, value: Option<&Value>) -> Translated {
        let (namespace, name) = names.rsplit_once('/').map_or((None, names), |(ns, name)| (Some(ns), name));
        let mut document = value.cloned().unwrap_or_else(|| json!({"metadata": {}}));
        if let Some(members) = document.as_object_mut() {
            members.insert("apiVersion".to_owned(), version.into());
            members.insert("kind".to_owned(), kind.into());
            let metadata = members.entry("metadata").or_insert_with(|| json!({}));
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.insert("name".to_owned(), name.into());
                metadata.insert("namespace".to_owned(), namespace.into());
            }
        }
        match value {
            Some(_) => self.put(&document),
            None => self.remove(&document),
        }
    }

    fn v1_record(&mut self, parts: &[&str], value: Option<&Value>) -> Option<Result<Translated, Refused>> {
        Some(match *parts {
            ["policy", "tier", tier, "metadata"] => one(tier_of(tier, value)),
            ["policy", "tier", tier, "policy", name] => self.policy_of(legacy_id(name), Some(tier), value),
            ["policy", "profile", name, part @ ("rules" | "labels" | "tags")] => {
                one(self.profiles.set(name, part, value))
            }
            ["policy", kind, namespace, name] => {
                let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
                let id = PolicyId {
                    kind: kind_of(kind)?,
                    namespace: namespace.map(Into::into),
                    name: name.into(),
                };
                self.policy_of((id, name), None, value)
            }
            ["netset", name] => one(set_of(None, name, value)),
            ["netset", namespace, name] => one(set_of(Some(namespace), name, value)),
            ["host", node, "endpoint", id] => one(host_endpoint_of(node, id, value)),
            _ => return None,
        })
    }

    fn policy_of(
        &mut self,
        (id, shown): (PolicyId, &str),
        tier: Option<&str>,
        value: Option<&Value>,
    ) -> Result<Translated, Refused> {
        let Some(value) = value else {
            return Ok(Translated { updates: self.remove_policy(id), problems: Vec::new() });
        };
        let mut spec =
            value.as_object().cloned().ok_or_else(|| At::root(value).problem("an object is wanted"))?;
        spec.shift_remove("namespace");
        convert_policy(&mut spec);
        if let Some(tier) = tier {
            spec.insert("tier".to_owned(), tier.into());
        }
        let name: &str = &id.name;
        let document =
            json!({"metadata": {"name": name, "namespace": id.namespace.as_deref()}, "spec": spec});
        let mut policy = calico::converted_policy(&At::root(&document), id, None)?;
        policy.name = shown.into();
        Ok(Translated { updates: self.set_policy(policy), problems: Vec::new() })
    }
}

fn one(update: Result<(Update, Vec<Problem>), Problem>) -> Result<Translated, Refused> {
    let (update, problems) = update?;
    Ok(Translated { updates: vec![update], problems })
}

fn unescaped(part: &str) -> String {
    part.replace("%2f", "/").replace("%25", "%")
}

fn kind_of(name: &str) -> Option<PolicyKind> {
    use PolicyKind::{
        ClusterNetworkPolicy, GlobalNetworkPolicy, KubernetesNetworkPolicy, NetworkPolicy,
        StagedGlobalNetworkPolicy, StagedKubernetesNetworkPolicy, StagedNetworkPolicy,
    };
    let all = [
        KubernetesNetworkPolicy,
        ClusterNetworkPolicy,
        NetworkPolicy,
        GlobalNetworkPolicy,
        StagedNetworkPolicy,
        StagedGlobalNetworkPolicy,
        StagedKubernetesNetworkPolicy,
    ];
    all.into_iter().find(|kind| kind.name() == name)
}

/// The ID of a policy in a key without a kind, and the name for display. A policy of a namespace has
/// that before its name.
fn legacy_id(full: &str) -> (PolicyId, &str) {
    let (namespace, name) = full.split_once('/').map_or((None, full), |(ns, name)| (Some(ns), name));
    let (staged, bare) = name.strip_prefix("staged:").map_or((false, name), |bare| (true, bare));
    let kind = match (staged, namespace.is_some()) {
        (true, true) if bare.starts_with("knp.default.") => PolicyKind::StagedKubernetesNetworkPolicy,
        (true, true) => PolicyKind::StagedNetworkPolicy,
        (true, false) => PolicyKind::StagedGlobalNetworkPolicy,
        (false, true) => PolicyKind::NetworkPolicy,
        (false, false) => PolicyKind::GlobalNetworkPolicy,
    };
    (PolicyId { kind, namespace: namespace.map(Into::into), name: name.into() }, bare)
}

/// Gives the members of a v1 policy the names and forms of v3. No types are both.
fn convert_policy(spec: &mut Map<String, Value>) {
    for (from, to) in RENAMED {
        if let Some(value) = spec.shift_remove(from) {
            spec.insert(to.to_owned(), value);
        }
    }
    for name in ["ingress", "egress"] {
        spec.get_mut(name).into_iter().for_each(convert_rules);
    }
    let types = spec.entry("types").or_insert(Value::Null);
    if types.is_null() || *types == json!([]) {
        *types = json!(["Ingress", "Egress"]);
    }
    for kind in types.as_array_mut().into_iter().flatten() {
        match kind.as_str() {
            Some("ingress") => *kind = "Ingress".into(),
            Some("egress") => *kind = "Egress".into(),
            _ => {}
        }
    }
}

/// Gives rules the form of v3. One that cannot be converted keeps its action and gets a member that
/// no rule has, so that it is read closed.
fn convert_rules(rules: &mut Value) {
    for rule in rules.as_array_mut().into_iter().flatten() {
        let Some(members) = rule.as_object() else { continue };
        *rule = rule_in_v3(members).unwrap_or_else(|error| {
            let allows =
                matches!(members.get("action").and_then(Value::as_str), None | Some("" | "allow" | "log"));
            let member = if error.at.is_empty() { "rule".to_owned() } else { error.at };
            Value::Object(Map::from_iter([
                ("action".to_owned(), if allows { "Allow" } else { "Deny" }.into()),
                (member, error.problem.into()),
            ]))
        });
    }
}

fn tier_of(name: &str, value: Option<&Value>) -> Result<(Update, Vec<Problem>), Problem> {
    let mut problems = Problems::default();
    let tier = value.map(|value| {
        let default_action = match value.get("default_action").and_then(Value::as_str) {
            Some("pass") => "Pass".into(),
            Some("deny") => "Deny".into(),
            _ => value.get("default_action").cloned().unwrap_or_default(),
        };
        let document = json!({"spec": {"order": value.get("order"), "defaultAction": default_action}});
        calico::tier(&At::root(&document), &mut problems)
    });
    Ok((Update::Tier(name.into(), tier.transpose()?), problems.finish()))
}

fn set_of(
    namespace: Option<&str>,
    name: &str,
    value: Option<&Value>,
) -> Result<(Update, Vec<Problem>), Problem> {
    let labels = value.and_then(|value| value.get("labels"));
    let nets = value.and_then(|value| value.get("nets"));
    let document =
        json!({"metadata": {"name": name, "namespace": namespace, "labels": labels}, "spec": {"nets": nets}});
    let (document, global) = (At::root(&document), namespace.is_none());
    let mut problems = Problems::default();
    let set = value.map(|_| calico::network_set(&document, global, &mut problems)).transpose()?;
    let id = calico::set_id(&document.metadata()?, global)?;
    Ok((Update::NetworkSet(id, set.map(Arc::new)), problems.finish()))
}

/// A host endpoint, whose name is that of its node and its own: v1 names are of one node.
fn host_endpoint_of(node: &str, id: &str, value: Option<&Value>) -> Result<(Update, Vec<Problem>), Problem> {
    let key = EndpointKey(format!("host/{node}/{id}").into());
    let Some(value) = value else { return Ok((Update::Endpoint(key, None), Vec::new())) };
    let list = |name| value.get(name).and_then(Value::as_array).into_iter().flatten().cloned();
    let expected: Vec<Value> = list("expected_ipv4_addrs").chain(list("expected_ipv6_addrs")).collect();
    let document = json!({
        "metadata": {"name": id, "labels": value.get("labels")},
        "spec": {"node": node, "interfaceName": value.get("name"), "expectedIPs": expected,
                 "profiles": value.get("profile_ids"), "ports": list("ports").map(capitals).collect::<Vec<_>>()},
    });
    let mut problems = Problems::default();
    let endpoint = calico::host_endpoint(&At::root(&document), &mut problems)?;
    Ok((Update::Endpoint(key, Some(Arc::new(endpoint))), problems.finish()))
}

/// A named port whose protocol is in v3's capitals.
fn capitals(mut port: Value) -> Value {
    if let Some(Value::String(protocol)) = port.get_mut("protocol") {
        *protocol = protocol.to_uppercase();
    }
    port
}

// === impl Profiles ===

impl Profiles {
    /// One part of a profile changed. Without rules the profile denies everything, as if it were
    /// unknown, but its labels count.
    fn set(
        &mut self,
        name: &str,
        part: &str,
        value: Option<&Value>,
    ) -> Result<(Update, Vec<Problem>), Problem> {
        let part = ["rules", "labels", "tags"].into_iter().find(|known| *known == part).unwrap_or("rules");
        let parts = self.0.entry(name.to_owned()).or_default();
        match value {
            Some(value) => parts.insert(part, value.clone()),
            None => parts.remove(part),
        };
        if parts.is_empty() {
            self.0.remove(name);
            return Ok((Update::Profile(name.into(), None), Vec::new()));
        }
        let (profile, problems) = profile_of(parts)?;
        Ok((Update::Profile(name.into(), Some(Arc::new(profile))), problems))
    }
}

fn profile_of(parts: &BTreeMap<&'static str, Value>) -> Result<(Profile, Vec<Problem>), Problem> {
    let mut labels = parts.get("labels").and_then(Value::as_object).cloned().unwrap_or_default();
    for tag in parts.get("tags").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str) {
        labels.entry(tag).or_insert_with(|| "".into());
    }
    let rules = |name| {
        let mut rules = parts.get("rules").and_then(|rules| rules.get(name)).cloned().unwrap_or_default();
        convert_rules(&mut rules);
        rules
    };
    let document = json!({"spec": {"ingress": rules("inbound_rules"), "egress": rules("outbound_rules"), "labelsToApply": labels}});
    let mut problems = Problems::default();
    let mut profile = calico::profile(&At::root(&document), &mut problems)?;
    if !parts.contains_key("rules") {
        let deny = vec![Rule::any(Action::Deny, "rules")];
        (profile.ingress, profile.egress) = (deny.clone(), deny);
    }
    Ok((profile, problems.finish()))
}

#[cfg(test)]
mod tests;
