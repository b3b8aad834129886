//! The v1 profile, three keys (calico-cni.md sections 2.3 and 4P.1), and its form in v3.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::json::{self, DecodeError, Extra, Fields, Object};
use crate::v1::ProfilePart;
use crate::{ProfileRule, ProfileSpec, RuleSide};

/// Prefixes of the names of profiles for namespaces, in v1 and in v3.
const NAMESPACE_V1: &str = "k8s_ns.";
const NAMESPACE_V3: &str = "kns.";

/// A profile, assembled from its keys. A missing part is empty.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Profile {
    /// The names of its endpoints in rules.
    pub tags: Vec<String>,
    /// Labels that its endpoints inherit.
    pub labels: BTreeMap<String, String>,
    /// Rules for incoming packets, snake_case, unchanged.
    pub inbound: Vec<Extra>,
    /// Rules for outgoing packets.
    pub outbound: Vec<Extra>,
}

// === impl Profile ===

impl Profile {
    /// The profile that the plugin creates for a network: outgoing packets are allowed, incoming
    /// ones from endpoints with the same tag, and with Kubernetes from all.
    pub fn of_network(network: &str, only_from_network: bool) -> Self {
        let allow = || Extra::from_iter([("action".to_owned(), Value::from("allow"))]);
        let mut inbound = allow();
        if only_from_network {
            inbound.insert("src_tag".to_owned(), network.into());
        }
        Self {
            tags: vec![network.to_owned()],
            labels: BTreeMap::new(),
            inbound: vec![inbound],
            outbound: vec![allow()],
        }
    }

    /// Adds one part in its stored form.
    pub fn read(&mut self, part: ProfilePart, bytes: &[u8]) -> Result<(), DecodeError> {
        match part {
            ProfilePart::Tags => self.tags = tags(bytes)?,
            ProfilePart::Labels => {
                // Wrapped in an object, because the decoders handle only members.
                let wrapped = [br#"{"labels":"#, bytes, b"}"].concat();
                let mut fields = Fields::parse("v1 profile", &wrapped)?;
                self.labels = fields.string_map("labels")?.unwrap_or_default();
            }
            ProfilePart::Rules => {
                let mut fields = Fields::parse("v1 profile", bytes)?;
                let mut rules = |name| -> Result<Vec<Extra>, DecodeError> {
                    Ok(fields.objects(name)?.unwrap_or_default().into_iter().map(Fields::rest).collect())
                };
                (self.inbound, self.outbound) = (rules("inbound_rules")?, rules("outbound_rules")?);
            }
        }
        Ok(())
    }

    /// The bytes of one part.
    pub fn encode(&self, part: ProfilePart) -> Vec<u8> {
        json::encode(&match part {
            ProfilePart::Tags => Value::from(self.tags.clone()),
            ProfilePart::Labels => json::string_map(&self.labels),
            ProfilePart::Rules => {
                let list = |rules: &[Extra]| {
                    let rules: Vec<Value> = rules.iter().cloned().map(Value::Object).collect();
                    (!rules.is_empty()).then_some(rules)
                };
                Object::default()
                    .put_some("inbound_rules", list(&self.inbound))
                    .put_some("outbound_rules", list(&self.outbound))
                    .finish(&Extra::new())
            }
        })
    }

    /// The same profile in v3, where tags are labels without a value. A rule with an unknown
    /// condition is an error: without the condition it would accept packets that it should not.
    pub fn to_v3(&self) -> Result<ProfileSpec, DecodeError> {
        let convert = |rules: &[Extra]| rules.iter().map(rule_to_v3).collect::<Result<Vec<_>, _>>();
        let mut labels = self.labels.clone();
        for tag in &self.tags {
            labels.entry(tag.clone()).or_default();
        }
        Ok(ProfileSpec {
            ingress: convert(&self.inbound)?,
            egress: convert(&self.outbound)?,
            labels_to_apply: labels,
            extra: Extra::new(),
        })
    }
}

/// The name of a profile in v3: those of namespaces have another prefix.
pub fn profile_name_in_v3(name: &str) -> String {
    match name.strip_prefix(NAMESPACE_V1) {
        Some(namespace) => format!("{NAMESPACE_V3}{namespace}"),
        None => name.to_owned(),
    }
}

fn tags(bytes: &[u8]) -> Result<Vec<String>, DecodeError> {
    let wrapped = [br#"{"tags":"#, bytes, b"}"].concat();
    Fields::parse("v1 profile", &wrapped)?.strings("tags")
}

fn wrong(at: &str, problem: &str) -> DecodeError {
    DecodeError { what: "v1 rule", at: at.to_owned(), problem: problem.to_owned() }
}

/// A rule of a v1 policy or profile in v3's form, with all conditions. `http` is v3's already; what
/// is only informative is left out.
pub fn rule_in_v3(rule: &Extra) -> Result<Value, DecodeError> {
    rule_to_v3(rule).map(|rule| rule.to_value())
}

fn rule_to_v3(rule: &Extra) -> Result<ProfileRule, DecodeError> {
    let mut left = rule.clone();
    let action = match left.shift_remove("action").as_ref().and_then(Value::as_str) {
        None | Some("" | "allow") => "Allow",
        Some("deny") => "Deny",
        Some("log") => "Log",
        Some("next-tier" | "pass") => "Pass",
        Some(_) => return Err(wrong("action", "it is none of allow, deny, log, next-tier")),
    };
    let source = side(&mut left, "src")?;
    let destination = side(&mut left, "dst")?;
    let mut extra = Extra::new();
    for (from, to) in [("protocol", "protocol"), ("!protocol", "notProtocol"), ("ip_version", "ipVersion")] {
        if let Some(value) = left.shift_remove(from) {
            let value = if from == "ip_version" { value } else { protocol(value) };
            extra.insert(to.to_owned(), value);
        }
    }
    for (negation, to) in [("", "icmp"), ("!", "notICMP")] {
        let mut icmp = Extra::new();
        for (from, member) in [("icmp_type", "type"), ("icmp_code", "code")] {
            if let Some(value) = left.shift_remove(&format!("{negation}{from}")) {
                icmp.insert(member.to_owned(), value);
            }
        }
        if !icmp.is_empty() {
            extra.insert(to.to_owned(), Value::Object(icmp));
        }
    }
    extra.extend(
        left.shift_remove("http").filter(|http| !http.is_null()).map(|http| ("http".to_owned(), http)),
    );
    left.retain(|name, _| !matches!(name.as_str(), "log_prefix" | "metadata") && !name.starts_with("orig_"));
    match left.keys().next() {
        None => Ok(ProfileRule { action: action.to_owned(), source, destination, extra }),
        Some(name) => Err(wrong(name, "this condition is not known, and must not get lost")),
    }
}

/// v3 writes the names of protocols in capitals; numbers stay.
fn protocol(value: Value) -> Value {
    match value {
        Value::String(name) => Value::from(match name.as_str() {
            "udplite" => "UDPLite".to_owned(),
            "icmpv6" => "ICMPv6".to_owned(),
            name => name.to_uppercase(),
        }),
        other => other,
    }
}

/// One side of a rule. Tags and selectors are conjunctions, nets alternatives.
fn side(left: &mut Extra, which: &str) -> Result<RuleSide, DecodeError> {
    let mut take = |negation: &str, name: &str| left.shift_remove(&format!("{negation}{which}_{name}"));
    // A condition that is not text must not get lost.
    let mut text = |negation: &str, name: &str| match take(negation, name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text).filter(|text| !text.is_empty())),
        Some(_) => Err(wrong(&format!("{negation}{which}_{name}"), "a string is wanted")),
    };
    let mut selectors = Vec::new();
    if let Some(tag) = text("", "tag")? {
        selectors.push(format!("has({tag})"));
    }
    selectors.extend(text("", "selector")?);
    if let Some(tag) = text("!", "tag")? {
        selectors.push(format!("!has({tag})"));
    }
    let not_selector = text("!", "selector")?;
    let service = (text("", "service")?, text("", "service_ns")?);
    let selector = match selectors.as_slice() {
        [only] => only.clone(),
        all => all.iter().map(|one| format!("({one})")).collect::<Vec<_>>().join(" && "),
    };
    let mut extra = Extra::new();
    for (negation, nets_name, ports_name) in [("", "nets", "ports"), ("!", "notNets", "notPorts")] {
        let mut nets = match take(negation, "nets") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(nets)) => nets,
            Some(_) => return Err(wrong(&format!("{negation}{which}_nets"), "a list is wanted")),
        };
        nets.extend(take(negation, "net").filter(|net| !net.is_null()));
        if !nets.is_empty() {
            extra.insert(nets_name.to_owned(), nets.into());
        }
        if let Some(ports) = take(negation, "ports").filter(|ports| !ports.is_null()) {
            extra.insert(ports_name.to_owned(), ports);
        }
    }
    extra.extend(not_selector.map(|selector| ("notSelector".to_owned(), selector.into())));
    if let (Some(name), namespace) = service {
        let service = Object::default().put("name", name).put_some("namespace", namespace);
        extra.insert("services".to_owned(), service.finish(&Extra::new()));
    }
    Ok(RuleSide { selector, extra })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(profile: &Profile) -> [String; 3] {
        ProfilePart::ALL.map(|part| String::from_utf8(profile.encode(part)).unwrap())
    }

    #[test]
    fn the_profile_of_a_network_is_calicos_byte_for_byte() {
        // calico-cni.md section 2.3
        let profile = Profile::of_network("net1", true);
        assert_eq!(
            encoded(&profile),
            [
                r#"["net1"]"#,
                "{}",
                r#"{"inbound_rules":[{"action":"allow","src_tag":"net1"}],"outbound_rules":[{"action":"allow"}]}"#,
            ]
        );
        let mut read = Profile::default();
        for part in ProfilePart::ALL {
            read.read(part, &profile.encode(part)).unwrap();
        }
        assert_eq!(read, profile);
        assert!(!encoded(&Profile::of_network("net1", false))[2].contains("src_tag"));
    }

    #[test]
    fn in_v3_it_is_the_profile_that_the_v3_plugin_would_have_made() {
        assert_eq!(Profile::of_network("net1", true).to_v3().unwrap(), ProfileSpec::of_network("net1", true));
        assert_eq!(
            Profile::of_network("net1", false).to_v3().unwrap(),
            ProfileSpec::of_network("net1", false)
        );
        assert_eq!(profile_name_in_v3("k8s_ns.shop"), "kns.shop");
        assert_eq!(profile_name_in_v3("net1"), "net1");
    }

    #[test]
    fn conditions_are_carried_over_and_none_gets_lost() {
        // calico-cni.md section 4P.1: the keys of v1 rules
        let convert = |text: &str| {
            let mut profile = Profile::default();
            let rules = format!(r#"{{"inbound_rules":[{text}]}}"#);
            profile.read(ProfilePart::Rules, rules.as_bytes()).unwrap();
            profile.to_v3().map(|spec| spec.ingress[0].clone())
        };
        let rule = convert(
            r#"{"action":"deny","protocol":"tcp","src_tag":"a","src_selector":"b == 'c'","!src_tag":"d","src_net":"10.0.0.0/8","src_nets":["11.0.0.0/8"],"dst_ports":[80,"100:200"],"!dst_selector":"x","!icmp_type":8}"#,
        )
        .unwrap();
        assert_eq!((rule.action.as_str(), rule.extra["protocol"].as_str()), ("Deny", Some("TCP")));
        assert_eq!(rule.source.selector, "(has(a)) && (b == 'c') && (!has(d))");
        assert_eq!(rule.source.extra["nets"], serde_json::json!(["11.0.0.0/8", "10.0.0.0/8"]));
        assert_eq!(rule.destination.extra["ports"], serde_json::json!([80, "100:200"]));
        assert_eq!(rule.destination.extra["notSelector"], "x");
        assert_eq!(rule.extra["notICMP"], serde_json::json!({"type": 8}));
        let service =
            convert(r#"{"action":"allow","dst_service":"s","dst_service_ns":"n","orig_src_selector":"x"}"#);
        assert_eq!(
            service.unwrap().destination.extra["services"],
            serde_json::json!({"name": "s", "namespace": "n"})
        );
        for unknown in [
            r#"{"action":"allow","src_sa_selector":"x"}"#,
            r#"{"action":"perhaps"}"#,
            r#"{"action":"allow","src_selector":1}"#,
            r#"{"action":"allow","!dst_tag":["a"]}"#,
        ] {
            assert!(convert(unknown).is_err(), "{unknown}");
        }
    }
}
