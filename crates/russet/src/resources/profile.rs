//! Profile (calico-cni.md section 2.3): labels that endpoints inherit, and rules from releases without
//! policies.

use std::net::IpAddr;

use russet_addr::{Family, IpNet};
use russet_model::{Profile, ProfileRule, ProfileSpec, RuleSide};
use serde_json::Value;

use super::fields::Field;
use super::fields::Shape::{self, Labels, List, Number, Object, Text, TextOrNumber};
use super::{Definition, Problems, TableContext};

const ACTIONS: [&str; 4] = ["Allow", "Deny", "Log", "Pass"];
const PROTOCOLS: [&str; 6] = ["TCP", "UDP", "ICMP", "ICMPv6", "SCTP", "UDPLite"];
/// The protocols with ports, and their numbers.
const WITH_PORTS: [(&str, u64); 3] = [("TCP", 6), ("UDP", 17), ("SCTP", 132)];

const SIDE: Shape = Object(&[
    Field("nets", List(&Text)),
    Field("notNets", List(&Text)),
    Field("selector", Text),
    Field("notSelector", Text),
    Field("namespaceSelector", Text),
    Field("ports", List(&TextOrNumber)),
    Field("notPorts", List(&TextOrNumber)),
    Field("serviceAccounts", Object(&[Field("names", List(&Text)), Field("selector", Text)])),
    Field("services", Object(&[Field("name", Text), Field("namespace", Text)])),
]);
const ICMP: Shape = Object(&[Field("type", Number), Field("code", Number)]);
pub(super) const RULE: Shape = Object(&[
    Field("action", Text),
    Field("ipVersion", Number),
    Field("protocol", TextOrNumber),
    Field("notProtocol", TextOrNumber),
    Field("icmp", ICMP),
    Field("notICMP", ICMP),
    Field("source", SIDE),
    Field("destination", SIDE),
    Field(
        "http",
        Object(&[
            Field("methods", List(&Text)),
            Field("paths", List(&Object(&[Field("exact", Text), Field("prefix", Text)]))),
        ]),
    ),
    Field("metadata", Object(&[Field("annotations", Labels)])),
]);

impl Definition for ProfileSpec {
    const WORDS: &'static [&'static str] = &["pro", "pros"];
    const FIELDS: &'static [Field] =
        &[Field("ingress", List(&RULE)), Field("egress", List(&RULE)), Field("labelsToApply", Labels)];
    const STATUS: &'static [Field] = &[];

    fn heading(wide: bool) -> &'static [&'static str] {
        if wide { &["NAME", "LABELS"] } else { &["NAME"] }
    }

    fn row(profile: &Profile, wide: bool, _seen: &TableContext) -> Vec<String> {
        let mut row = vec![profile.metadata.name.clone()];
        if wide {
            let labels = profile.spec.labels_to_apply.iter().map(|(name, value)| format!("{name}={value}"));
            row.push(labels.collect::<Vec<_>>().join(","));
        }
        row
    }

    fn check(profile: &mut Profile, problems: &mut Problems) {
        problems.labels(&profile.spec.labels_to_apply, "spec.labelsToApply");
        check_rules(&profile.spec.ingress, &profile.spec.egress, problems);
    }
}

/// Checks the rules of a profile or policy.
pub(super) fn check_rules(ingress: &[ProfileRule], egress: &[ProfileRule], problems: &mut Problems) {
    for (direction, rules) in [("ingress", ingress), ("egress", egress)] {
        for (index, rule) in rules.iter().enumerate() {
            check_rule(rule, &format!("spec.{direction}[{index}]"), problems);
        }
    }
}

fn check_rule(rule: &ProfileRule, at: &str, problems: &mut Problems) {
    let known = ACTIONS.contains(&rule.action.as_str());
    problems.unless(known, &format!("{at}.action"), &format!("one of {} is wanted", ACTIONS.join(", ")));
    let version = rule.extra.get("ipVersion").and_then(Value::as_u64);
    problems.unless(matches!(version, None | Some(4 | 6)), &format!("{at}.ipVersion"), "4 or 6 is wanted");
    for name in ["protocol", "notProtocol"] {
        if let Some(protocol) = rule.extra.get(name) {
            let known = format!("1 to 255 or one of {} is wanted", PROTOCOLS.join(", "));
            problems.unless(is_protocol(protocol), &format!("{at}.{name}"), &known);
        }
    }
    let protocol = rule.extra.get("protocol").filter(|protocol| !protocol.is_null());
    let mut families = Vec::new();
    for (name, side) in [("source", &rule.source), ("destination", &rule.destination)] {
        check_side(side, protocol, &format!("{at}.{name}"), problems);
        families.extend(nets(side, "nets").chain(nets(side, "notNets")).filter_map(family));
    }
    let mixed = families.contains(&Family::V4) && families.contains(&Family::V6);
    problems.unless(!mixed, at, "a rule has nets of one family only");
    let fits = |family: &Family| version.is_none_or(|version| (version == 4) == (*family == Family::V4));
    problems.unless(families.iter().all(fits), &format!("{at}.ipVersion"), "it is not that of the nets");
}

fn check_side(side: &RuleSide, protocol: Option<&Value>, at: &str, problems: &mut Problems) {
    let text = |name: &str| side.extra.get(name).and_then(Value::as_str).unwrap_or_default();
    problems.selector(&side.selector, &format!("{at}.selector"));
    problems.selector(text("notSelector"), &format!("{at}.notSelector"));
    if text("namespaceSelector") != "global()" {
        problems.selector(text("namespaceSelector"), &format!("{at}.namespaceSelector"));
    }
    for name in ["nets", "notNets"] {
        for net in nets(side, name).filter(|net| family(net).is_none()) {
            problems.add(&format!("{at}.{name}"), &format!("{net:.60?} is no prefix"));
        }
    }
    let everything = nets(side, "notNets").any(|net| matches!(net, "0.0.0.0/0" | "::/0"));
    problems.unless(!everything, &format!("{at}.notNets"), "all but everything matches nothing");
    for name in ["ports", "notPorts"] {
        let ports = side.extra.get(name).and_then(Value::as_array).into_iter().flatten();
        for port in ports {
            check_port(port, protocol, &format!("{at}.{name}"), problems);
        }
    }
}

/// A number, a range such as `8000:9000`, or a name. Only a name is valid without a protocol.
fn check_port(port: &Value, protocol: Option<&Value>, at: &str, problems: &mut Problems) {
    let shown = port.as_str().map_or(port.to_string(), str::to_owned);
    let number = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
    let numeric = shown.starts_with(|c: char| c.is_ascii_digit()) || shown.contains(':');
    let range = shown.split_once(':').and_then(|(low, high)| Some(number(low)? <= number(high)?));
    let good = if numeric { range.unwrap_or_else(|| number(&shown).is_some()) } else { !shown.is_empty() };
    problems.unless(good, at, &format!("{shown:.60?} is neither a port nor a range of ports as 8000:9000"));
    let carried = match protocol {
        None => !numeric,
        Some(protocol) => WITH_PORTS
            .iter()
            .any(|(name, number)| protocol.as_str() == Some(name) || protocol.as_u64() == Some(*number)),
    };
    problems.unless(carried, at, "ports need the protocol TCP, UDP or SCTP");
}

fn is_protocol(protocol: &Value) -> bool {
    match protocol {
        Value::Null => true,
        Value::String(name) => {
            PROTOCOLS.contains(&name.as_str()) || name.parse::<u8>().is_ok_and(|number| number > 0)
        }
        other => other.as_u64().is_some_and(|number| (1..=255).contains(&number)),
    }
}

fn nets<'a>(side: &'a RuleSide, name: &str) -> impl Iterator<Item = &'a str> {
    side.extra.get(name).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

fn family(net: &str) -> Option<Family> {
    let net = net.parse::<IpNet>().ok().or_else(|| net.parse::<IpAddr>().ok().map(IpNet::from))?;
    Some(Family::of_net(&net))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn problems(rule: Value) -> String {
        let profile =
            json!({ "kind": "Profile", "metadata": { "name": "p" }, "spec": { "ingress": [rule] } });
        let mut problems = Problems::default();
        ProfileSpec::check(&mut Profile::decode(profile.to_string().as_bytes()).unwrap(), &mut problems);
        problems.to_string()
    }

    #[test]
    fn the_profile_of_a_network_is_good() {
        let mut profile = Profile::new("net1", ProfileSpec::of_network("net1", true));
        let mut problems = Problems::default();
        ProfileSpec::check(&mut profile, &mut problems);
        assert!(problems.is_empty(), "{problems}");
        assert_eq!(ProfileSpec::row(&profile, true, &TableContext::elsewhere()), ["net1", "net1="]);
    }

    #[test]
    fn rules_that_peers_refuse_are_refused() {
        for (rule, problem) in [
            (json!({ "action": "allow" }), "action: one of Allow"),
            (json!({ "action": "Allow", "protocol": "tcp" }), "1 to 255"),
            (json!({ "action": "Allow", "protocol": 0 }), "1 to 255"),
            (
                json!({ "action": "Allow", "source": { "selector": "a =" } }),
                "source.selector: invalid selector",
            ),
            (json!({ "action": "Allow", "source": { "nets": ["10.0.0"] } }), "no prefix"),
            (
                json!({ "action": "Allow", "source": { "nets": ["10.0.0.0/8"] }, "destination": { "nets": ["fd00::/8"] } }),
                "one family",
            ),
            (
                json!({ "action": "Allow", "ipVersion": 6, "source": { "nets": ["10.0.0.0/8"] } }),
                "not that of the nets",
            ),
            (json!({ "action": "Allow", "source": { "notNets": ["0.0.0.0/0"] } }), "matches nothing"),
            (json!({ "action": "Allow", "destination": { "ports": [80] } }), "need the protocol"),
            (
                json!({ "action": "Allow", "protocol": "ICMP", "destination": { "ports": ["http"] } }),
                "need the protocol",
            ),
            (json!({ "action": "Allow", "protocol": "TCP", "destination": { "ports": ["90:80"] } }), "range"),
            (
                json!({ "action": "Allow", "protocol": "TCP", "destination": { "ports": [70000] } }),
                "neither a port",
            ),
        ] {
            let found = problems(rule.clone());
            assert!(found.starts_with("spec.ingress[0]") && found.contains(problem), "{rule}: {found}");
        }
        let good = json!({ "action": "Pass", "protocol": 6, "ipVersion": 4, "source": { "nets": ["10.0.0.0/8"], "namespaceSelector": "global()" },
            "destination": { "ports": [80, "8000:9000", "http"] } });
        assert_eq!(problems(good), "");
    }
}
