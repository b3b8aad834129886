//! The numbered behaviours of policy.md section 6.1 as data: documents of each API, and what the
//! evaluator says with them in force, in the cluster of `generate`.

use serde_json::{Value, json};

use crate::expect::{Expectation, differences};
use crate::explain::{Decider, Explanation, Peer, Probe};
use crate::generate::cluster;
use crate::snapshot::Snapshot;
use crate::translate::Translator;

fn snapshot(documents: &[Value]) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let mut translator = Translator::default();
    cluster().into_iter().for_each(|update| snapshot.apply(update));
    for document in documents {
        translator.put(document).updates.into_iter().for_each(|update| snapshot.apply(update));
    }
    snapshot
}

/// Lines such as `x/b -> x/a 80 denied`.
#[track_caller]
fn check(row: &str, documents: &[Value], lines: &str) {
    let expectation = |line: &str| {
        let [from, "->", to, probe, verdict @ ("allowed" | "denied")] =
            line.split_whitespace().collect::<Vec<_>>()[..]
        else {
            panic!("{row}: {line}")
        };
        let allowed = verdict == "allowed";
        Expectation {
            from: from.parse().unwrap(),
            to: to.parse().unwrap(),
            probe: probe.parse().unwrap(),
            allowed,
        }
    };
    let lines = lines.lines().map(str::trim).filter(|line| !line.is_empty());
    let expected: Vec<Expectation> = lines.map(expectation).collect();
    assert!(!expected.is_empty());
    let found = differences(&snapshot(documents), &expected);
    assert!(found.is_empty(), "{row}: {found:#?}");
}

/// What `russet explain` says decides ingress of the destination, and its notes.
fn explained(documents: &[Value], from: &str, to: &str, probe: &str) -> [String; 2] {
    let snapshot = snapshot(documents);
    let address = |text: &str| text.parse::<Peer>().unwrap().addresses(&snapshot).unwrap()[0];
    let flow = probe.parse::<Probe>().unwrap().flow(address(from), address(to)).unwrap();
    let found = Explanation::new(&snapshot, &flow);
    [Decider::of(&found.trace.ingress).text, found.notes.join("\n")]
}

fn object(api: &str, kind: &str, namespace: Option<&str>, name: &str, spec: Value) -> Value {
    let mut metadata = json!({"name": name});
    if let Some(namespace) = namespace {
        metadata["namespace"] = namespace.into();
    }
    json!({"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec})
}

/// A NetworkPolicy of the namespace x.
fn named(name: &str, spec: Value) -> Value {
    object("networking.k8s.io/v1", "NetworkPolicy", Some("x"), name, spec)
}

fn policy(spec: Value) -> Value {
    named("p", spec)
}

/// A NetworkPolicy for ingress of x/a with these rules.
fn ingress(rules: Value) -> Value {
    policy(
        json!({"podSelector": {"matchLabels": {"pod": "a"}}, "policyTypes": ["Ingress"], "ingress": rules}),
    )
}

/// A NetworkPolicy for egress of x/a with these rules.
fn egress(rules: Value) -> Value {
    policy(json!({"podSelector": {"matchLabels": {"pod": "a"}}, "policyTypes": ["Egress"], "egress": rules}))
}

/// A ClusterNetworkPolicy on the namespace x.
fn cluster_policy(name: &str, tier: &str, priority: u32, ingress: Value, egress: Value) -> Value {
    let subject = json!({"namespaces": {"matchLabels": {"ns": "x"}}});
    let spec =
        json!({"tier": tier, "priority": priority, "subject": subject, "ingress": ingress, "egress": egress});
    object("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy", None, name, spec)
}

/// One that does this with everything from pods.
fn from_pods(name: &str, tier: &str, priority: u32, action: &str) -> Value {
    cluster_policy(name, tier, priority, json!([{"action": action, "from": [{"namespaces": {}}]}]), json!([]))
}

fn calico(kind: &str, namespace: Option<&str>, name: &str, spec: Value) -> Value {
    object("projectcalico.org/v3", kind, namespace, name, spec)
}

/// A GlobalNetworkPolicy for ingress of x/a that allows from this source.
fn global(source: Value) -> Value {
    let selector = "pod == 'a' && projectcalico.org/namespace == 'x'";
    let rules = json!([{"action": "Allow", "source": source}]);
    calico(
        "GlobalNetworkPolicy",
        None,
        "g",
        json!({"selector": selector, "types": ["Ingress"], "ingress": rules}),
    )
}

/// A pod of the namespace x with an address of its own and one named port.
fn pod(name: &str, last: u8, labels: Value, port: (&str, u16, &str)) -> Value {
    let (port_name, number, protocol) = port;
    let ports = json!([{"name": port_name, "containerPort": number, "protocol": protocol}]);
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "x", "labels": labels},
        "spec": {"nodeName": "n1", "serviceAccountName": "default", "containers": [{"name": "c", "ports": ports}]},
        "status": {"phase": "Running", "podIPs": [{"ip": format!("10.244.9.{last}")}]},
    })
}

// policy.md P02 to P04
#[test]
fn p02_to_p04_isolation_is_of_each_direction() {
    check(
        "P02",
        &[ingress(json!([]))],
        "
        x/b -> x/a 80 denied
        world -> x/a icmp denied
        x/a -> y/a 80 allowed
        x/a -> world 53/udp allowed",
    );
    check(
        "P03",
        &[egress(json!([]))],
        "
        x/a -> y/a 80 denied
        x/a -> world icmp denied
        y/a -> x/a 80 allowed",
    );
    let both = policy(json!({"podSelector": {}, "egress": [{"ports": [{"port": 80}]}]}));
    check(
        "P04",
        &[both],
        "
        y/a -> x/a 80 denied
        x/a -> y/a 80 allowed
        x/a -> y/a 81 denied",
    );
}

// policy.md P05, P06 and P08 to P10
#[test]
fn p05_to_p10_peers() {
    let deny = named("deny", json!({"podSelector": {}}));
    check(
        "P05",
        &[deny, ingress(json!([{}]))],
        "
        y/a -> x/a 80 allowed
        world -> x/a icmp allowed
        y/a -> x/b 80 denied",
    );
    let none = json!([{"from": [{"podSelector": {"matchLabels": {"pod": "none"}}}]}]);
    check(
        "P06",
        &[ingress(none)],
        "
        x/b -> x/a 80 denied
        world -> x/a 80 denied",
    );
    let pod_b = json!({"matchLabels": {"pod": "b"}});
    let of_y = json!({"matchLabels": {"ns": "y"}});
    check(
        "P08",
        &[ingress(json!([{"from": [{"podSelector": pod_b}]}]))],
        "
        x/b -> x/a 80 allowed
        y/b -> x/a 80 denied",
    );
    let both = json!([{"from": [{"podSelector": pod_b, "namespaceSelector": of_y}]}]);
    check(
        "P09 in one",
        &[ingress(both)],
        "
        y/b -> x/a 80 allowed
        x/b -> x/a 80 denied
        y/a -> x/a 80 denied",
    );
    let either = json!([{"from": [{"podSelector": pod_b}, {"namespaceSelector": of_y}]}]);
    check(
        "P09 in two",
        &[ingress(either)],
        "
        y/b -> x/a 80 allowed
        x/b -> x/a 80 allowed
        y/a -> x/a 80 allowed
        z/b -> x/a 80 denied",
    );
    check(
        "P10",
        &[ingress(json!([{"from": [{"namespaceSelector": {}}]}]))],
        "
        z/c -> x/a 80 allowed
        world -> x/a 80 denied
        node:n2 -> x/a 80 denied",
    );
}

// policy.md P11 and P12
#[test]
fn p11_p12_blocks_of_addresses() {
    let block = json!({"cidr": "10.244.0.0/16", "except": ["10.244.2.0/24"]});
    let lines = "
        z/a -> x/a 80 allowed
        world -> x/a 80 denied";
    check(
        "P11",
        &[ingress(json!([{"from": [{"ipBlock": block}]}]))],
        &format!("{lines}\ny/a -> x/a 80 denied"),
    );
    let two = json!([{"from": [{"ipBlock": block}]}, {"from": [{"ipBlock": {"cidr": "10.244.2.1/32"}}]}]);
    check("P12", &[ingress(two)], &format!("{lines}\ny/a -> x/a 80 allowed\ny/b -> x/a 80 denied"));
}

// policy.md P14 to P16
#[test]
fn p14_to_p16_named_ports_are_those_of_the_destination() {
    let named = |protocol: &str| json!([{"ports": [{"port": "web", "protocol": protocol}]}]);
    let pods = [
        pod("one", 1, json!({"web": "1"}), ("web", 80, "TCP")),
        pod("two", 2, json!({"web": "2"}), ("web", 8080, "TCP")),
    ];
    let with = |document: Value| [&pods[..], &[document]].concat();
    let all = |types: &str, rules: Value| {
        let mut spec = json!({"podSelector": {}, "policyTypes": [types]});
        spec[types.to_lowercase()] = rules;
        policy(spec)
    };
    check(
        "P14",
        &with(all("Ingress", named("TCP"))),
        "
        y/a -> x/one 80 allowed
        y/a -> x/one 8080 denied
        y/a -> x/two 8080 allowed
        y/a -> x/two 80 denied",
    );
    check(
        "P15",
        &with(all("Ingress", named("UDP"))),
        "
        y/a -> x/one 80 denied
        y/a -> x/one 80/udp denied",
    );
    check(
        "P16",
        &with(all("Egress", named("TCP"))),
        "
        x/a -> x/one 80 allowed
        x/a -> x/two 80 denied
        x/a -> x/two 8080 allowed
        x/a -> world 80 denied",
    );
}

// policy.md P17 to P20
#[test]
fn p17_to_p20_ports() {
    check(
        "P17",
        &[ingress(json!([{"ports": [{"port": 80, "endPort": 90}]}]))],
        "
        y/a -> x/a 79 denied
        y/a -> x/a 80 allowed
        y/a -> x/a 90 allowed
        y/a -> x/a 91 denied",
    );
    check(
        "P18",
        &[ingress(json!([{"ports": [{"protocol": "UDP"}]}]))],
        "
        y/a -> x/a 7/udp allowed
        y/a -> x/a 7 denied",
    );
    check(
        "P19",
        &[ingress(json!([{"ports": [{"protocol": "SCTP", "port": 7777}]}]))],
        "
        y/a -> x/a 7777/sctp allowed
        y/a -> x/a 7777 denied",
    );
    check(
        "P20",
        &[ingress(json!([{"from": [{"podSelector": {}}]}]))],
        "
        x/b -> x/a icmp allowed
        y/a -> x/a icmp denied",
    );
}

// policy.md P21, P28, P34, P36 and P37
#[test]
fn p21_p28_p34_p36_p37_policies_together() {
    let to = egress(json!([{"to": [{"podSelector": {"matchLabels": {"pod": "c"}}}]}]));
    let from = named(
        "q",
        json!({"podSelector": {"matchLabels": {"pod": "b"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"pod": "a"}}}]}]}),
    );
    check(
        "P21",
        &[to, from],
        "
        x/a -> x/b 80 denied
        x/a -> x/c 80 allowed",
    );
    let absent = json!({"matchExpressions": [{"key": "absent", "operator": "NotIn", "values": ["v"]},
        {"key": "absent", "operator": "DoesNotExist"}]});
    check(
        "P28",
        &[ingress(json!([{"from": [{"podSelector": absent}]}]))],
        "
        x/b -> x/a 80 allowed
        y/b -> x/a 80 denied",
    );
    let mixed = json!([{"from": [{"ipBlock": {"cidr": "rubbish"}}, {"podSelector": {}}]}]);
    check(
        "P34",
        &[ingress(mixed)],
        "
        x/b -> x/a 80 allowed
        y/b -> x/a 80 denied",
    );
    let allow = |name: &str, namespace: &str| {
        let from = json!([{"namespaceSelector": {"matchLabels": {"ns": namespace}}}]);
        named(name, json!({"podSelector": {}, "ingress": [{"from": from, "ports": [{"port": 80}]}]}))
    };
    check(
        "P36",
        &[allow("one", "y"), allow("two", "z"), named("three", json!({"podSelector": {}}))],
        "
        y/a -> x/a 80 allowed
        z/a -> x/b 80 allowed
        x/b -> x/a 80 denied
        y/a -> x/a 81 denied",
    );
    check(
        "P37",
        &[policy(json!({"ingress": []}))],
        "
        y/a -> x/c 80 denied
        y/a -> y/b 80 allowed",
    );
}

// policy.md P38 to P44
#[test]
fn p38_to_p44_tiers_of_cluster_policies() {
    let (deny, allow) = (ingress(json!([])), ingress(json!([{}])));
    let is = |verdict: &str| format!("y/a -> x/a 80 {verdict}");
    check("P38", &[from_pods("c", "Admin", 5, "Accept"), deny.clone()], &is("allowed"));
    check("P39", &[from_pods("c", "Admin", 5, "Deny"), allow.clone()], &is("denied"));
    let pass = [from_pods("c", "Admin", 5, "Pass"), from_pods("b", "Admin", 6, "Deny")];
    check("P40", &[&pass[..], std::slice::from_ref(&allow)].concat(), &is("allowed"));
    check("P40", &[&pass[..], std::slice::from_ref(&deny)].concat(), &is("denied"));
    let baseline = from_pods("c", "Baseline", 5, "Deny");
    check("P41", &[baseline.clone(), allow], &is("allowed"));
    check("P41", &[from_pods("c", "Baseline", 5, "Accept"), deny], &is("denied"));
    check("P42", &[baseline, egress(json!([]))], &is("denied"));
    let equal = [from_pods("b", "Admin", 5, "Deny"), from_pods("a", "Admin", 5, "Accept")];
    check("P43", &equal, &is("allowed"));
    let [_, note] = explained(&equal, "y/a", "x/a", "80");
    assert!(note.contains("ClusterNetworkPolicy a spec.priority: ClusterNetworkPolicy b has"), "P43: {note}");
    check("P43", &[from_pods("a", "Admin", 5, "Deny"), from_pods("b", "Admin", 5, "Accept")], &is("denied"));
    let peer = json!([{"namespaces": {}}]);
    let order = json!([{"action": "Deny", "from": peer}, {"action": "Accept", "from": peer}]);
    check("P44", &[cluster_policy("c", "Admin", 5, order, json!([]))], &is("denied"));
}

// policy.md P45 to P48
#[test]
fn p45_to_p48_rules_of_cluster_policies() {
    let deny = json!([{"action": "Deny", "to": [{"networks": ["0.0.0.0/0"]}]}]);
    check(
        "P45",
        &[cluster_policy("c", "Admin", 5, json!([]), deny)],
        "
        x/a -> y/a 80 denied
        x/a -> node:n2 80 denied
        x/a -> 8.8.8.8 80 denied
        x/a -> 8.8.8.8 icmp denied
        y/a -> x/a 80 allowed",
    );
    check(
        "P46",
        &[from_pods("c", "Admin", 5, "Deny")],
        "
        y/a -> x/a icmp denied
        y/a -> x/a 81/sctp denied
        8.8.8.8 -> x/a icmp allowed",
    );
    let unknown = |action: &str| {
        let rules = json!([{"action": action, "from": [{"future": {}}]}]);
        cluster_policy("c", "Admin", 5, rules, json!([]))
    };
    check("P47", &[unknown("Accept"), ingress(json!([]))], "y/a -> x/a 80 denied");
    check(
        "P47",
        &[unknown("Deny")],
        "
        y/a -> x/a 80 denied
        8.8.8.8 -> x/a icmp denied",
    );
    let range = |action: &str| {
        let protocols = json!([{"tcp": {"destinationPort": {"range": {"start": 80, "end": 80}}}}]);
        let rules = json!([{"action": action, "from": [{"namespaces": {}}], "protocols": protocols}]);
        cluster_policy("c", "Admin", 5, rules, json!([]))
    };
    check("P48", &[range("Accept"), ingress(json!([]))], "y/a -> x/a 80 denied");
    check("P48", &[range("Deny")], "y/a -> x/a 81 denied");
}

// policy.md P49 and P50
#[test]
fn p49_p50_named_ports_and_subjects_of_cluster_policies() {
    let rules = json!([
        {"action": "Accept", "from": [{"namespaces": {}}], "protocols": [{"destinationNamedPort": "web"}]},
        {"action": "Deny", "from": [{"namespaces": {}}]},
    ]);
    let documents = [
        pod("one", 1, json!({}), ("web", 80, "TCP")),
        pod("two", 2, json!({}), ("web", 8080, "TCP")),
        cluster_policy("c", "Admin", 5, rules, json!([])),
    ];
    check(
        "P49",
        &documents,
        "
        y/a -> x/one 80 allowed
        y/a -> x/one 8080 denied
        y/a -> x/two 8080 allowed
        y/a -> x/two 80 denied",
    );
    let mut all = from_pods("c", "Admin", 5, "Deny");
    all["spec"]["subject"] = json!({"pods": {"namespaceSelector": {}, "podSelector": {}}});
    check(
        "P50",
        &[all],
        "
        y/a -> x/a 80 denied
        x/a -> node:n2 80 allowed
        node:n2 -> x/a 80 allowed",
    );
}

// policy.md P62 to P64
#[test]
fn p62_to_p64_selectors_of_calico() {
    let not_b = json!({"notSelector": "pod == 'b'"});
    let rules = json!([{"action": "Allow", "source": not_b}]);
    let spec = json!({"selector": "pod == 'a'", "types": ["Ingress"], "ingress": rules});
    check(
        "P62",
        &[calico("NetworkPolicy", Some("x"), "n", spec)],
        "
        x/c -> x/a 80 allowed
        x/b -> x/a 80 denied
        y/c -> x/a 80 denied
        8.8.8.8 -> x/a 80 denied",
    );
    check(
        "P62",
        &[global(not_b)],
        "
        y/c -> x/a 80 allowed
        y/b -> x/a 80 denied
        8.8.8.8 -> x/a 80 allowed",
    );
    let host = calico(
        "HostEndpoint",
        None,
        "h",
        json!({"node": "n9", "interfaceName": "eth0", "expectedIPs": ["192.168.9.9"]}),
    );
    let set = calico("GlobalNetworkSet", None, "s", json!({"nets": ["8.8.8.0/24"]}));
    let with = |selector: &str| [host.clone(), set.clone(), global(json!({"namespaceSelector": selector}))];
    check(
        "P63",
        &with("ns != 'y'"),
        "
        192.168.9.9 -> x/a 80 allowed
        8.8.8.8 -> x/a 80 allowed
        z/a -> x/a 80 allowed
        y/a -> x/a 80 denied
        8.8.9.9 -> x/a 80 denied",
    );
    check(
        "P64",
        &with("global()"),
        "
        192.168.9.9 -> x/a 80 allowed
        8.8.8.8 -> x/a 80 allowed
        z/a -> x/a 80 denied",
    );
    check(
        "all() in a rule",
        &with("all()"),
        "
        z/a -> x/a 80 allowed
        8.8.8.8 -> x/a 80 denied",
    );
}

// policy.md P66
#[test]
fn p66_not_nets_of_everything_match_nothing() {
    check("P66", &[global(json!({"notNets": ["0.0.0.0/0"]}))], "y/a -> x/a 80 denied");
}

// policy.md P72 to P74
#[test]
fn p72_to_p74_services() {
    let slice = |port: Value, address: &str| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": format!("s-{}", address.len()), "namespace": "x",
                "labels": {"kubernetes.io/service-name": "s"}},
            "endpoints": [{"addresses": [address], "conditions": {"ready": false}}],
            "ports": [port],
        })
    };
    let rules = |services: Value| json!([{"action": "Allow", "destination": {"services": services}}]);
    let spec =
        |services: Value| json!({"selector": "pod == 'a'", "types": ["Egress"], "egress": rules(services)});
    let slices = [
        slice(json!({"port": 80, "protocol": "TCP"}), "10.244.2.1"),
        slice(json!({"name": "none"}), "10.244.2.22"),
    ];
    let lines = "
        x/a -> y/a 80 allowed
        x/a -> y/a 81 denied
        x/a -> y/a 80/udp denied
        x/a -> 10.244.2.22 80 denied
        x/a -> y/b 80 denied";
    let with = |document: Value| [&slices[..], &[document]].concat();
    let named = json!({"name": "s", "namespace": "x"});
    check(
        "P72, P74",
        &with(calico("GlobalNetworkPolicy", None, "g", spec(named))),
        &format!("{lines}\nx/b -> y/b 80 allowed"),
    );
    let own = calico("NetworkPolicy", Some("x"), "n", spec(json!({"name": "s"})));
    check("P73", &with(own), lines);
}

// policy.md P77
#[test]
fn p77_names_and_selectors_of_service_accounts_both_count() {
    let account = |name: &str, label: &str| {
        json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": "x", "labels": {"role": label}},
        })
    };
    let client = |name: &str, last: u8, account: &str| {
        let mut pod = pod(name, last, json!({}), ("web", 80, "TCP"));
        pod["spec"]["serviceAccountName"] = account.into();
        pod
    };
    let accounts = json!({"names": ["good", "other"], "selector": "role == 'client'"});
    let documents = [
        account("good", "client"),
        account("other", "server"),
        account("third", "client"),
        client("one", 1, "good"),
        client("two", 2, "other"),
        client("three", 3, "third"),
        global(json!({"serviceAccounts": accounts})),
    ];
    check(
        "P77",
        &documents,
        "
        x/one -> x/a 80 allowed
        x/two -> x/a 80 denied
        x/three -> x/a 80 denied",
    );
}

// policy.md P79
#[test]
fn p79_rules_for_http_allow_by_their_other_members() {
    let rule = json!({"action": "Allow", "protocol": "TCP", "http": {"methods": ["GET"]}, "source": {"selector": "pod == 'b'"}});
    let selector = "pod == 'a' && projectcalico.org/namespace == 'x'";
    let spec = json!({"selector": selector, "types": ["Ingress"], "ingress": [rule]});
    let policy = calico("GlobalNetworkPolicy", None, "g", spec);
    check(
        "P79",
        std::slice::from_ref(&policy),
        "
        x/b -> x/a 80 allowed
        x/c -> x/a 80 denied",
    );
    let snapshot = snapshot(&[policy]);
    let problems = &snapshot.policies.values().next().unwrap().problems;
    assert!(problems.iter().any(|problem| problem.path.contains("http")), "{problems:?}");
}

// policy.md P89 and P90
#[test]
fn p89_p90_equal_orders_are_broken_by_the_names_of_tiers_and_the_keys_of_policies() {
    let rule = |action: &str| json!([{"action": action}]);
    let global = |name: &str, shown: Option<&str>, tier: &str, action: &str| {
        let spec = json!({"tier": tier, "order": 5, "selector": "pod == 'a'", "ingress": rule(action)});
        let mut policy = calico("GlobalNetworkPolicy", None, name, spec);
        if let Some(shown) = shown {
            let metadata = json!({"name": shown}).to_string();
            policy["metadata"]["annotations"] = json!({"projectcalico.org/metadata": metadata});
        }
        policy
    };
    let to_a = "y/a -> x/a 80";
    // What calicoctl stores for a tier without an order; and one that another program stored so.
    for (tier, order, verdict) in
        [("a", json!(1_000_000), "denied"), ("z", json!(1_000_000), "allowed"), ("a", json!(null), "allowed")]
    {
        let documents = [
            calico("Tier", None, tier, json!({"order": order, "defaultAction": "Deny"})),
            global("of-tier", None, tier, "Deny"),
            global("of-default", None, "default", "Allow"),
        ];
        check("P89", &documents, &format!("{to_a} {verdict}"));
    }
    // The keys' order is the opposite of that of the names that are shown.
    for (first, second, shown) in [
        (("a", Some("z")), ("b", Some("y")), "GlobalNetworkPolicy z"),
        (("default.c", None), ("knp.default.b", None), "GlobalNetworkPolicy c"),
        (("knp.default.a", None), ("x", Some("default.x")), "GlobalNetworkPolicy knp.default.a"),
    ] {
        let documents =
            [global(second.0, second.1, "default", "Allow"), global(first.0, first.1, "default", "Deny")];
        check("P90", &documents, &format!("{to_a} denied"));
        let [decider, _] = explained(&documents, "y/a", "x/a", "80");
        assert_eq!(decider, format!("spec.ingress[0] of {shown}, tier default"));
    }
}

// policy.md P96 and P97
#[test]
fn p96_p97_egress_network_policies() {
    let firewall = |name: &str, rules: Value| {
        object("network.openshift.io/v1", "EgressNetworkPolicy", Some("x"), name, json!({"egress": rules}))
    };
    let rule = |kind: &str, net: &str| json!({"type": kind, "to": {"cidrSelector": net}});
    let one = firewall("one", json!([rule("Allow", "1.2.3.0/24"), rule("Deny", "0.0.0.0/0")]));
    check(
        "P96",
        std::slice::from_ref(&one),
        "
        x/a -> 1.2.3.4 80 allowed
        x/a -> 8.8.8.8 80 denied
        x/a -> y/a 80 allowed
        y/a -> 8.8.8.8 80 allowed",
    );
    let lines = "
        x/a -> 1.2.3.4 80 denied
        x/a -> y/a 80 allowed";
    check("P97 two", &[one.clone(), firewall("two", json!([rule("Allow", "0.0.0.0/0")]))], lines);
    let net = |namespace: &str, id: u32| {
        json!({
            "apiVersion": "network.openshift.io/v1", "kind": "NetNamespace", "metadata": {"name": namespace},
            "netname": namespace, "netid": id,
        })
    };
    check("P97 shared", &[net("x", 7), net("y", 7), one.clone()], lines);
    check("P97 global", &[net("x", 0), one], "x/a -> 8.8.8.8 80 allowed");
    check("P97 empty", &[firewall("one", json!([]))], "x/a -> 8.8.8.8 80 allowed");
}
