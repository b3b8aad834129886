//! The documents of a case.

use serde_json::{Map, Value, json};

use super::Case;

/// The values of the feature `tiers`: what is beside NetworkPolicies.
pub(super) const TIERS: &[&str] = &[
    "none",
    "admin-accept",
    "admin-deny",
    "admin-pass",
    "baseline-accept",
    "baseline-deny",
    "calico-tier",
    "order-tie",
    "staged",
];

// === impl Case ===

impl Case {
    /// The policy `p1` of the namespace `x`, with these ports.
    pub(super) fn policy(&self, ports: &str) -> Value {
        let mut spec = Map::from_iter([("podSelector".to_owned(), self.subject())]);
        let directions = self.value("directions");
        let types: &[&str] = match directions {
            "ingress" => &["Ingress"],
            "egress" => &["Egress"],
            "both" => &["Ingress", "Egress"],
            _ => &[],
        };
        if !types.is_empty() {
            spec.insert("policyTypes".to_owned(), json!(types));
        }
        if directions != "egress" {
            spec.insert("ingress".to_owned(), json!([self.rule("from", ports)]));
        }
        if directions != "ingress" {
            spec.insert("egress".to_owned(), json!([self.rule("to", ports)]));
        }
        network_policy("p1", Value::Object(spec))
    }

    /// The policy `p2` of the namespace `x`.
    pub(super) fn second(&self) -> Option<Value> {
        let from_z =
            json!([{"from": [{"namespaceSelector": {"matchLabels": {"ns": "z"}}}], "ports": [{"port": 81}]}]);
        match self.value("second") {
            "overlap" => Some(network_policy("p2", json!({"podSelector": {}, "ingress": from_z}))),
            "conflict" => {
                let types = ["Ingress", "Egress"];
                Some(network_policy("p2", json!({"podSelector": self.subject(), "policyTypes": types})))
            }
            _ => None,
        }
    }

    fn subject(&self) -> Value {
        match self.value("subject") {
            "labels" => json!({"matchLabels": {"pod": "a"}}),
            "expressions" => json!({"matchExpressions": [
                {"key": "pod", "operator": "In", "values": ["a", "b"]},
                {"key": "absent", "operator": "DoesNotExist"},
            ]}),
            "none" => json!({"matchLabels": {"pod": "no-such-pod"}}),
            _ => json!({}),
        }
    }

    fn rule(&self, member: &str, ports: &str) -> Value {
        let mut rule = Map::new();
        rule.extend(peers(self.value("peers")).map(|peers| (member.to_owned(), peers)));
        rule.extend(self::ports(ports).map(|ports| ("ports".to_owned(), ports)));
        Value::Object(rule)
    }
}

fn peers(value: &str) -> Option<Value> {
    let pod = json!({"matchLabels": {"pod": "b"}});
    let namespace = json!({"matchExpressions": [{"key": "ns", "operator": "NotIn", "values": ["x", "z"]}]});
    Some(match value {
        "empty" => json!([]),
        "pod" => json!([{"podSelector": pod}]),
        "namespace" => json!([{"namespaceSelector": namespace}]),
        "both" => json!([{"podSelector": pod, "namespaceSelector": namespace}]),
        "ip-block" => json!([{"ipBlock": {"cidr": "10.244.2.0/24"}}]),
        "except" => {
            json!([{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.244.2.0/30", "203.0.113.0/24"]}}])
        }
        "two" => json!([{"podSelector": {}}, {"ipBlock": {"cidr": "203.0.113.7/32"}}]),
        _ => return None,
    })
}

fn ports(value: &str) -> Option<Value> {
    Some(match value {
        "number" => json!([{"port": 80}]),
        "range" => json!([{"port": 79, "endPort": 80, "protocol": "UDP"}]),
        "name" => json!([{"port": "serve-81-tcp", "protocol": "TCP"}]),
        "protocol" => json!([{"protocol": "SCTP"}]),
        "two" => json!([{"port": 80}, {"port": "serve-81-udp", "protocol": "UDP"}]),
        "changed" => json!([{"port": 81}]),
        _ => return None,
    })
}

fn network_policy(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": "x"},
        "spec": spec,
    })
}

/// The documents of a value of the feature `tiers`.
pub(super) fn of_tiers(value: &str) -> Vec<Value> {
    let from_y = json!({"namespaces": {"matchLabels": {"ns": "y"}}});
    let all = json!({"namespaces": {}});
    match value {
        "admin-accept" => vec![cluster_policy("c1", "Admin", 5, "Accept", &from_y)],
        "admin-deny" => vec![cluster_policy("c1", "Admin", 5, "Deny", &from_y)],
        "admin-pass" => vec![
            cluster_policy("c2", "Admin", 6, "Deny", &all),
            cluster_policy("c1", "Admin", 5, "Pass", &from_y),
        ],
        "baseline-accept" => vec![
            cluster_policy("c1", "Baseline", 5, "Accept", &from_y),
            cluster_policy("c2", "Baseline", 6, "Deny", &all),
        ],
        "baseline-deny" => vec![cluster_policy("c1", "Baseline", 5, "Deny", &from_y)],
        "calico-tier" => vec![
            calico("Tier", "first", json!({"order": 10})),
            calico("GlobalNetworkPolicy", "g1", json!({
                "tier": "first", "order": 1, "namespaceSelector": "ns == 'x'", "types": ["Ingress", "Egress"],
                "ingress": [
                    {"action": "Deny", "protocol": "UDP", "source": {"namespaceSelector": "ns == 'z'"}},
                    {"action": "Pass", "source": {"notSelector": "pod == 'c'"}},
                    {"action": "Allow", "protocol": "TCP", "destination": {"ports": [80, "serve-81-tcp"]}},
                ],
                "egress": [
                    {"action": "Deny", "destination": {"nets": ["203.0.113.0/24"], "notNets": ["203.0.113.64/26"]}},
                    {"action": "Pass", "notProtocol": "SCTP"},
                    {"action": "Pass", "protocol": "SCTP", "destination": {"notPorts": ["81:90"]}},
                ],
            })),
        ],
        "order-tie" => ["g2", "g1"]
            .into_iter()
            .map(|name| {
                let action = if name == "g1" { "Deny" } else { "Allow" };
                let rule = json!([{"action": action, "protocol": "TCP", "source": {"selector": "pod in {'a', 'b'}"}}]);
                calico("GlobalNetworkPolicy", name, json!({"order": 900, "selector": "pod == 'b'", "ingress": rule}))
            })
            .collect(),
        "staged" => vec![calico("StagedGlobalNetworkPolicy", "s1", json!({"selector": "all()", "types": ["Ingress"]}))],
        _ => Vec::new(),
    }
}

fn cluster_policy(name: &str, tier: &str, priority: u32, action: &str, peer: &Value) -> Value {
    json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy",
        "metadata": {"name": name},
        "spec": {
            "tier": tier,
            "priority": priority,
            "subject": {"namespaces": {"matchLabels": {"ns": "x"}}},
            "ingress": [{
                "action": action,
                "from": [peer],
                "protocols": [{"tcp": {"destinationPort": {"number": 80}}}],
            }],
            "egress": [{"action": action, "to": [{"networks": ["203.0.113.0/24"]}, peer]}],
        },
    })
}

fn calico(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": {"name": name}, "spec": spec})
}
