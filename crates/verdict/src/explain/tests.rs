use serde_json::{Value, json};

use super::*;
use crate::generate::cluster;
use crate::translate;

fn world(documents: &[Value]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    cluster().into_iter().for_each(|update| snapshot.apply(update));
    for document in documents {
        translate::document(document).unwrap().updates.into_iter().for_each(|update| snapshot.apply(update));
    }
    snapshot
}

fn policy(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": "x"}, "spec": spec,
    })
}

fn flow(snapshot: &Snapshot, from: &str, to: &str, probe: &str) -> Flow {
    let address = |text: &str| text.parse::<Peer>().unwrap().addresses(snapshot).unwrap()[0];
    probe.parse::<Probe>().unwrap().flow(address(from), address(to)).unwrap()
}

fn explained<'a>(snapshot: &'a Snapshot, from: &str, to: &str, probe: &str) -> Explanation<'a> {
    Explanation::new(snapshot, &flow(snapshot, from, to, probe))
}

fn from_b() -> Value {
    policy(
        "db-in",
        json!({"podSelector": {"matchLabels": {"pod": "a"}}, "ingress": [
            {"from": [{"podSelector": {"matchLabels": {"pod": "b"}}}], "ports": [{"port": 80}]},
            {"from": [{"ipBlock": {"cidr": "203.0.113.0/24", "except": ["203.0.113.7/32"]}}]},
        ]}),
    )
}

#[test]
fn a_denied_flow_is_explained_with_the_rules_that_did_not_match() {
    let snapshot = world(&[from_b()]);
    let explanation = explained(&snapshot, "x/c", "x/a", "80");
    let wanted = [
        "x/c (10.244.1.3, node n1) -> x/a (10.244.1.1, node n1) tcp/80: DENIED at node n1, ingress of x/a",
        "  egress of x/c                     ALLOWED  no policy selects it; rule 1 of profile kns.x",
        "  ingress of x/a                    DENIED   no rule matches, and tier default denies at its end",
        "    tier default (denies at its end)",
        "      KubernetesNetworkPolicy x/db-in",
        "        spec.ingress[0].from[0] Allow: source must match (projectcalico.org/namespace == \"x\" && \
         (pod == \"b\")); x/c has pod=c, projectcalico.org/namespace=x",
        "        spec.ingress[1].from[0] Allow: source 10.244.1.3 is not in 203.0.113.0/24",
        "  nearest allow: spec.ingress[0].from[0] of KubernetesNetworkPolicy x/db-in, if the labels of the \
         source matched",
        "  nearest allow: spec.ingress[1].from[0] of KubernetesNetworkPolicy x/db-in, if the address of the \
         source matched",
    ];
    assert_eq!(explanation.to_string().lines().collect::<Vec<_>>(), wanted);
}

// policy.md P86
#[test]
fn p86_what_a_pod_sends_to_its_own_node_is_explained_with_the_configuration_that_decides() {
    let felix = |action: &str| {
        json!({"apiVersion": "projectcalico.org/v3", "kind": "FelixConfiguration",
            "metadata": {"name": "node.n1"}, "spec": {"defaultEndpointToHostAction": action}})
    };
    let explained = |documents: &[Value], to: &str| {
        let snapshot = world(documents);
        explained(&snapshot, "x/a", to, "10250").to_string()
    };
    let text = explained(&[felix("Drop")], "node:n1");
    let why = "DENIED   defaultEndpointToHostAction of FelixConfiguration node.n1 is Drop";
    assert!(text.contains(" tcp/10250: DENIED ingress of ") && text.contains(why), "{text}");
    let text = explained(&[felix("Return")], "node:n1");
    assert!(text.contains("node.n1 is Return: other rules of the node decide"), "{text}");
    assert!(explained(&[felix("Drop")], "node:n2").contains(": ALLOWED"));
    assert!(explained(&[], "node:n1").contains("it is no pod, so no policy counts"));
}

// policy.md P79
#[test]
fn p79_a_rule_for_http_that_decides_is_named_as_not_enforced() {
    let calico = |kind: &str, spec: Value| {
        let metadata = json!({"name": "p"});
        json!({"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": metadata, "spec": spec})
    };
    let get = json!({"action": "Allow", "protocol": "TCP", "http": {"methods": ["GET"]}});
    let notes = |documents: &[Value], probe: &str| explained(&world(documents), "x/b", "x/a", probe).notes;
    let rules = json!([{"action": "Deny", "protocol": "UDP"}, get]);
    let policy = calico("GlobalNetworkPolicy", json!({"selector": "pod == 'a'", "ingress": rules}));
    let note = |at: &str| {
        format!(
            "http not enforced: {at} allows this by its other members, whatever the method and the path are"
        )
    };
    assert_eq!(
        notes(std::slice::from_ref(&policy), "80"),
        [note("spec.ingress[1] of GlobalNetworkPolicy p")],
        "and nothing else of the same rule"
    );
    // Another rule decides: what is not enforced of the policy is said as of any other member.
    let [other] = &notes(&[policy], "80/udp")[..] else { panic!() };
    assert!(other.starts_with("GlobalNetworkPolicy p spec.ingress[1].http: "), "{other}");
    let profile = calico("Profile", json!({"ingress": [get]}));
    let mut snapshot = world(&[profile]);
    let (key, pod) = snapshot.workload_at("10.244.1.1".parse().unwrap()).unwrap();
    let pod = crate::world::Endpoint { profiles: vec!["p".into()], ..(**pod).clone() };
    snapshot.apply(crate::world::Update::Endpoint(key.clone(), Some(Arc::new(pod))));
    let found = explained(&snapshot, "x/b", "x/a", "80");
    assert_eq!(found.notes, [note("spec.ingress[0] of Profile p")]);
    assert!(found.to_json()["notes"][0].as_str().unwrap().starts_with("http not enforced"));
}

#[test]
fn host_endpoints_of_the_way_are_noted_in_text_and_json() {
    let calico = |kind: &str, spec: Value| {
        let metadata = json!({"name": "h", "labels": {"host": "n1"}});
        json!({"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": metadata, "spec": spec})
    };
    let host = calico("HostEndpoint", json!({"node": "n1", "interfaceName": "eth0"}));
    let spec = json!({"selector": "has(host)", "applyOnForward": true, "ingress": [{"action": "Deny"}]});
    let snapshot = world(&[host, calico("GlobalNetworkPolicy", spec)]);
    let found = explained(&snapshot, "x/b", "x/a", "80");
    assert!(found.trace.allowed(), "it is not judged");
    let wanted = "HostEndpoint h of node n1 (interface eth0); `russet flows --denied` on their nodes";
    assert!(found.to_string().contains(wanted), "{found}");
    assert!(found.to_json()["notes"][0].as_str().unwrap().contains(wanted));
}

#[test]
fn a_name_with_a_newline_stays_in_its_line() {
    let mut hostile = from_b();
    hostile["metadata"]["name"] = "db\nx/c -> x/a tcp/80: ALLOWED\r\u{1b}[2J".into();
    let (good, bad) = (world(&[from_b()]), world(&[hostile]));
    let [good, text] = [&good, &bad].map(|world| explained(world, "x/c", "x/a", "80").to_string());
    assert_eq!(text.lines().count(), good.lines().count(), "{text}");
    assert!(text.contains("x/db\\nx/c -> x/a tcp/80: ALLOWED\\r\\u{1b}[2J"), "{text}");
    assert!(!text.contains(['\r', '\u{1b}']), "{text:?}");
}

#[test]
fn the_json_has_the_members_of_the_specification() {
    let snapshot = world(&[from_b()]);
    let found = explained(&snapshot, "x/c", "x/a", "80/tcp").to_json();
    assert_eq!(found["src"], json!({"name": "x/c", "address": "10.244.1.3", "node": "n1"}));
    assert_eq!((&found["proto"], &found["port"]), (&json!("tcp"), &json!(80)));
    assert_eq!(found["verdict"], "denied");
    assert_eq!(found["decidedAt"], json!({"node": "n1", "direction": "ingress"}));
    let ingress = &found["directions"][1];
    assert_eq!((&ingress["direction"], &ingress["endpoint"]), (&json!("ingress"), &json!("x/a")));
    let policy = json!({"kind": "KubernetesNetworkPolicy", "namespace": "x", "name": "db-in"});
    assert_eq!(ingress["steps"][1]["policy"], policy);
    assert_eq!(ingress["steps"][1]["path"], "spec.ingress[1].from[0]");
    assert_eq!(ingress["steps"][1]["match"], "source 10.244.1.3 is not in 203.0.113.0/24");
    assert_eq!(found["nearest"][0]["policy"], policy);
    let allowed = explained(&snapshot, "x/b", "x/a", "80/tcp").to_json();
    assert_eq!((&allowed["verdict"], &allowed["decidedAt"]), (&json!("allowed"), &Value::Null));
    assert_eq!(allowed["directions"][1]["steps"][0]["match"], "ok");
}

#[test]
fn each_kind_of_mismatch_has_a_clause() {
    let rule = |peers: Value, ports: Value| {
        let spec = json!({"podSelector": {}, "ingress": [{"from": peers, "ports": ports}]});
        world(&[policy("p", spec)])
    };
    let clause = |snapshot: &Snapshot, from: &str, probe: &str| {
        explained(snapshot, from, "x/a", probe).to_json()["directions"][1]["steps"][0]["match"].clone()
    };
    let named = rule(json!([]), json!([{"port": "web"}]));
    let wanted = "destination port 80 is not among web; x/a names serve-80-tcp=tcp/80, serve-81-tcp=tcp/81, \
                  serve-80-udp=udp/80, serve-81-udp=udp/81, serve-80-sctp=sctp/80, serve-81-sctp=sctp/81";
    assert_eq!(clause(&named, "x/b", "80"), wanted);
    let range = rule(json!([]), json!([{"port": 90, "endPort": 99}, {"port": 7}]));
    assert_eq!(clause(&range, "x/b", "80"), "destination port 80 is not among 7, 90-99");
    assert_eq!(clause(&range, "x/b", "80/udp"), "protocol tcp, not udp");
    let except = json!([{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.244.1.0/24"]}}]);
    let except = rule(except, json!([]));
    assert_eq!(clause(&except, "x/b", "80"), "source 10.244.1.2 is in the excepted 10.244.1.0/24");
    let pods = rule(json!([{"namespaceSelector": {}}]), json!([]));
    let text = clause(&pods, "8.8.8.8", "80");
    assert!(text.as_str().unwrap().ends_with("; 8.8.8.8 is of no endpoint or network set"), "{text}");
}

#[test]
fn notes_say_what_staged_policies_and_problems_change() {
    let mut snapshot = world(&[policy(
        "p",
        json!({"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "rubbish"}}]}]}),
    )]);
    let found = explained(&snapshot, "y/a", "x/a", "80");
    assert!(found.notes.iter().any(|note| note.contains("spec.ingress[0].from[0]")), "{:?}", found.notes);
    let own = explained(&snapshot, "x/a", "x/a", "80");
    assert!(own.notes.iter().any(|note| note.contains("its own address")), "{:?}", own.notes);
    let is_of_node_ports = |note: &String| note.contains("through a NodePort");
    for (from, documents, is_noted) in [
        ("203.0.113.8", vec![from_b()], true),
        ("node:n2", vec![from_b()], true),
        ("x/b", vec![from_b()], false),
        // It always reaches its own pods.
        ("node:n1", vec![from_b()], false),
        ("203.0.113.8", vec![policy("p", json!({"podSelector": {}}))], false),
        ("203.0.113.8", vec![], false),
    ] {
        let snapshot = world(&documents);
        let found = explained(&snapshot, from, "x/a", "80");
        assert_eq!(found.notes.iter().any(is_of_node_ports), is_noted, "{from}: {:?}", found.notes);
    }
    let mut staged = (**snapshot.policies.values().next().unwrap()).clone();
    staged.id.kind = crate::ir::PolicyKind::StagedKubernetesNetworkPolicy;
    staged.staged = Some(crate::ir::StagedAction::Delete);
    let update = crate::world::Update::Policy(staged.id.clone(), Some(Arc::new(staged)));
    snapshot.apply(update);
    let found = explained(&snapshot, "y/a", "x/a", "80");
    assert!(found.notes.contains(&"with the staged policies in force it would be allowed".to_owned()));
}

// policy.md P131
#[test]
fn p131_the_explanation_of_each_probe_agrees_with_its_verdict_and_names_a_rule_that_exists() {
    let mut random = russet_testkit::Random::new(7);
    let every = crate::generate::flows();
    // `cargo xtask soak` asks for every cell of so many sets.
    let sets = std::env::var("RUSSET_POLICY_SETS").ok().map(|sets| sets.parse().unwrap());
    for case in crate::generate::cases(sets.unwrap_or(80), &mut |below| random.below(below)) {
        let snapshot = world(&case.documents());
        let flows: Vec<Flow> = match sets {
            Some(_) => every.iter().map(|(_, flow)| *flow).collect(),
            None => (0..40).map(|_| every[random.below(every.len())].1).collect(),
        };
        for (flow, allowed) in flows.iter().zip(crate::what_if::allowed(&snapshot, &flows)) {
            let explanation = Explanation::new(&snapshot, flow);
            let text = explanation.to_string();
            assert_eq!(explanation.trace.allowed(), allowed, "{case}\n{text}");
            assert_eq!(text.lines().next().unwrap().ends_with("ALLOWED"), allowed, "{case}\n{text}");
            assert!(text.lines().count() < 40, "{case}\n{text}");
            assert_eq!(explanation.denied_at().is_none(), allowed);
            for end in [&explanation.trace.egress, &explanation.trace.ingress] {
                if let Reason::Rule { policy, index } = &end.reason {
                    assert!(!policy.rules(end.direction)[*index].path.is_empty());
                }
            }
            assert!(explanation.nearest.is_empty() || !allowed);
        }
    }
}

#[test]
fn ends_and_probes_are_read_as_operators_write_them() {
    let snapshot = world(&[]);
    for text in ["x/a", "10.244.1.1", "node:n1", "world"] {
        let peer: Peer = text.parse().unwrap();
        assert_eq!(peer.to_string(), text);
        assert!(!peer.addresses(&snapshot).unwrap().is_empty(), "{text}");
    }
    for text in ["", "a", "x/", "x/a/b", "service:x"] {
        assert!(text.parse::<Peer>().is_err(), "{text}");
    }
    assert!("x/none".parse::<Peer>().unwrap().addresses(&snapshot).is_err());
    for (text, shown) in [
        ("80", "tcp/80"),
        ("80/UDP", "udp/80"),
        ("sctp/7", "sctp/7"),
        ("icmp", "icmp"),
        ("50", "tcp/50"),
        ("ICMP", "icmp"),
    ] {
        assert_eq!(text.parse::<Probe>().unwrap().to_string(), shown);
    }
    for text in ["", "0", "tcp", "80/icmp", "70000", "80/none"] {
        assert!(text.parse::<Probe>().is_err(), "{text}");
    }
}
