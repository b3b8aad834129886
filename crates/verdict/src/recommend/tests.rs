use std::time::{Duration, Instant, UNIX_EPOCH};

use russet_testkit::Random;
use serde_json::{Value, json};

use super::*;
use crate::evaluator;
use crate::explain::Probe;
use crate::ir::Direction;
use crate::translate::{Translator, built_in_tiers};

/// Documents make it; a pod is written as `NAMESPACE/NAME`, its node, its address and its labels.
#[derive(Default)]
struct World {
    snapshot: Snapshot,
    translator: Translator,
}

impl World {
    fn new(pods: &[(&str, &str, &str, Value)]) -> Self {
        let mut world = Self::default();
        built_in_tiers().into_iter().for_each(|update| world.snapshot.apply(update));
        for (number, address) in [("n1", "172.16.0.1"), ("n2", "172.16.0.2")] {
            world.put(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": number},
                "status": {"addresses": [{"type": "InternalIP", "address": address}]}}));
        }
        for namespace in ["shop", "shop2", "bank", "kube-system"] {
            world.put(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}));
        }
        for (name, node, address, labels) in pods {
            world.pod(name, node, address, labels);
        }
        world
    }

    fn pod(&mut self, name: &str, node: &str, address: &str, labels: &Value) {
        let (namespace, name) = name.split_once('/').unwrap();
        self.put(&json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {"nodeName": node, "serviceAccountName": "default", "containers": []},
            "status": {"phase": "Running", "podIPs": [{"ip": address}]}}));
    }

    fn put(&mut self, document: &Value) {
        let translated = self.translator.put(document);
        assert!(translated.problems.is_empty(), "{document}: {:?}", translated.problems);
        translated.updates.into_iter().for_each(|update| self.snapshot.apply(update));
    }

    /// The snapshot with the policies in force.
    fn with(&mut self, found: &Recommendation) -> Snapshot {
        let before = self.snapshot.clone();
        found.policies.iter().for_each(|policy| self.put(&policy.document()));
        std::mem::replace(&mut self.snapshot, before)
    }

    fn allows(snapshot: &Snapshot, flow: &Seen) -> bool {
        let probe = Probe { protocol: flow.protocol, port: flow.port };
        let asked = probe.flow(flow.source.address, flow.destination.address).unwrap();
        evaluator::ask(snapshot, &asked).allowed()
    }
}

fn end(text: &str) -> End {
    let (name, address) = text.split_once('@').unwrap_or((text, text));
    End { name: name.to_owned(), address: address.parse().unwrap() }
}

/// `tcp/80`.
fn seen(source: &str, destination: &str, service: &str) -> Seen {
    let probe: Probe = service.parse().unwrap();
    let time = UNIX_EPOCH + Duration::from_secs(1_790_000_000);
    let (protocol, port) = (probe.protocol, probe.port);
    let last = time + Duration::from_secs(3600);
    Seen { source: end(source), destination: end(destination), protocol, port, count: 2, first: time, last }
}

fn wanted(namespace: Option<&str>) -> Wanted {
    Wanted { namespace: namespace.map(str::to_owned), ingress: true, egress: true }
}

const WEB: &str = "shop/web-6f7d9c5b4-x2x7k@10.0.0.1";
const DB: &str = "shop/db-0@10.0.0.2";

fn shop() -> World {
    World::new(&[
        (
            "shop/web-6f7d9c5b4-x2x7k",
            "n1",
            "10.0.0.1",
            json!({"app": "web", "pod-template-hash": "6f7d9c5b4", "version": "7"}),
        ),
        (
            "shop/db-0",
            "n2",
            "10.0.0.2",
            json!({"app.kubernetes.io/name": "pg", "app.kubernetes.io/instance": "main",
            "app": "db", "statefulset.kubernetes.io/pod-name": "db-0"}),
        ),
        ("bank/teller-x2x7k", "n2", "10.0.1.1", json!({"k8s-app": "teller", "role": "x"})),
        ("bank/bare", "n2", "10.0.1.2", json!({"job-name": "bare", "batch.kubernetes.io/job-name": "bare"})),
        ("kube-system/coredns-a", "n1", "10.0.2.1", json!({"k8s-app": "kube-dns"})),
    ])
}

fn text(found: &Recommendation) -> String {
    found.policies.iter().map(|it| it.document().to_string() + "\n").collect()
}

fn only(found: &Recommendation, front: &str) -> Value {
    let all: Vec<Value> =
        found.policies.iter().filter(|it| it.name.starts_with(front)).map(Recommended::document).collect();
    assert_eq!(all.len(), 1, "{front}: {all:#?}");
    all[0].clone()
}

#[test]
fn a_workload_is_selected_by_its_lasting_labels_and_its_peers_by_theirs() {
    let mut world = shop();
    let flows = [seen(WEB, DB, "tcp/5432"), seen("bank/teller-x2x7k@10.0.1.1", WEB, "tcp/80")];
    let found = recommend(&world.snapshot, &flows, &wanted(Some("shop")));
    let db = only(&found, "recommended-main-");
    let pg = json!({"matchLabels": {"app.kubernetes.io/name": "pg", "app.kubernetes.io/instance": "main"}});
    assert_eq!(db["spec"]["podSelector"], pg);
    let web = json!({"matchLabels": {"app": "web"}});
    assert_eq!(
        db["spec"]["ingress"],
        json!([{"from": [{"podSelector": web}], "ports": [{"protocol": "TCP", "port": 5432}]}])
    );
    let shown = only(&found, "recommended-web-");
    let dns = json!({"to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}],
        "ports": [{"protocol": "TCP", "port": 53}, {"protocol": "UDP", "port": 53}]});
    assert_eq!(shown["spec"]["podSelector"], web);
    assert_eq!(
        shown["spec"]["egress"],
        json!([{"to": [{"podSelector": pg}], "ports": [{"protocol": "TCP", "port": 5432}]}, dns])
    );
    assert_eq!(
        shown["spec"]["ingress"][0]["from"],
        json!([{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "bank"}},
            "podSelector": {"matchLabels": {"k8s-app": "teller"}}}])
    );
    assert_eq!(found.policies.len(), 2, "the other namespace gets none");
    let comment = &found.policies[0].ingress.as_ref().unwrap()[0].comments[0];
    assert_eq!(
        comment,
        "flows: 1, connections: 2, first seen 2026-09-21T14:13:20Z, last seen 2026-09-21T15:13:20Z"
    );
    assert!(
        found.notes.iter().any(|it| it.starts_with("no egress of app.kubernetes.io/instance=main")),
        "{:?}",
        found.notes
    );
    let after = world.with(&found);
    assert_eq!(judge(&world.snapshot, &after, &flows), Judged::default());
    assert!(World::allows(&after, &seen(WEB, "kube-system/coredns-a@10.0.2.1", "udp/53")));
}

#[test]
fn a_direction_that_is_not_wanted_is_not_isolated() {
    let world = shop();
    let flows = [seen(WEB, DB, "tcp/5432")];
    for (ingress, egress, types) in [(true, false, json!(["Ingress"])), (false, true, json!(["Egress"]))] {
        let found = recommend(&world.snapshot, &flows, &Wanted { namespace: None, ingress, egress });
        assert_eq!(found.policies.len(), 1);
        assert_eq!(found.policies[0].document()["spec"]["policyTypes"], types);
    }
}

#[test]
fn pods_without_labels_get_no_policy_and_are_addresses_for_others() {
    let mut world = shop();
    let flows = [seen("bank/bare@10.0.1.2", WEB, "tcp/80")];
    let found = recommend(&world.snapshot, &flows, &wanted(None));
    assert_eq!(found.policies.len(), 1);
    let web = only(&found, "recommended-web-");
    assert_eq!(web["spec"]["ingress"][0]["from"], json!([{"ipBlock": {"cidr": "10.0.1.2/32"}}]));
    assert!(found.notes[0].starts_with("no policy is written for pods without a label"), "{:?}", found.notes);
    assert!(found.notes[0].ends_with("bank/bare"), "{:?}", found.notes);
    let after = world.with(&found);
    assert_eq!(judge(&world.snapshot, &after, &flows), Judged::default());
}

#[test]
fn probes_of_the_own_node_are_left_out_and_addresses_of_other_nodes_are_marked() {
    let world = shop();
    let flows = [seen("node:n1@172.16.0.1", WEB, "tcp/80"), seen("node:n2@172.16.0.2", WEB, "tcp/81")];
    let found = recommend(&world.snapshot, &flows, &wanted(None));
    let rules = found.policies[0].ingress.as_ref().unwrap();
    assert_eq!(rules.len(), 1, "{rules:?}");
    assert_eq!(rules[0].body["from"], json!([{"ipBlock": {"cidr": "172.16.0.2/32"}}]));
    assert!(rules[0].comments[1].starts_with("check: addresses of nodes, behind which"), "{rules:?}");
    // Nothing but probes is nothing seen.
    assert!(recommend(&world.snapshot, &flows[..1], &wanted(None)).policies.is_empty());
}

#[test]
fn the_selector_leaves_out_pods_of_other_workloads_that_have_its_labels() {
    let mut world = World::new(&[
        ("shop/a", "n1", "10.0.0.1", json!({"role": "x"})),
        ("shop/b", "n1", "10.0.0.2", json!({"role": "x", "zone": "z"})),
        ("shop/c", "n1", "10.0.0.3", json!({"app": "c", "role": "x"})),
        ("shop/d", "n1", "10.0.0.4", json!({"app": "c", "app.kubernetes.io/name": "d"})),
        (
            "shop/e",
            "n1",
            "10.0.0.5",
            json!({"app.kubernetes.io/name": "d", "app.kubernetes.io/instance": "e"}),
        ),
        ("shop/f", "n1", "10.0.0.6", json!({"app": "c", "size": "9"})),
    ]);
    let pods =
        ["shop/a@10.0.0.1", "shop/b@10.0.0.2", "shop/c@10.0.0.3", "shop/d@10.0.0.4", "shop/e@10.0.0.5"];
    let flows: Vec<Seen> = pods.iter().skip(1).map(|it| seen(pods[0], it, "tcp/80")).collect();
    let found = recommend(&world.snapshot, &flows, &wanted(None));
    let absent = |front: &str| only(&found, front)["spec"]["podSelector"]["matchExpressions"].clone();
    let without = |keys: &[&str]| -> Value {
        keys.iter().map(|key| json!({"key": key, "operator": "DoesNotExist"})).collect()
    };
    assert_eq!(absent("recommended-c-"), without(&["app.kubernetes.io/name"]));
    assert_eq!(absent("recommended-d-"), without(&["app.kubernetes.io/instance"]));
    assert_eq!(absent("recommended-e-"), Value::Null);
    let c = found.policies.iter().find(|it| it.name.starts_with("recommended-c-")).unwrap();
    assert!(c.comments[0].starts_with("check: pods with 2 sets of labels"), "{c:?}");
    let xs = found.policies.iter().filter(|it| it.name.starts_with("recommended-x-"));
    assert_eq!(xs.count(), 2, "{}", text(&found));
    let after = world.with(&found);
    assert_eq!(judge(&world.snapshot, &after, &flows), Judged::default());
    for (from, to) in [(1, 2), (1, 3), (2, 4), (3, 0), (4, 1)] {
        assert!(!World::allows(&after, &seen(pods[from], pods[to], "tcp/80")), "{from} {to}");
    }
}

#[test]
fn a_pod_that_is_gone_counts_as_its_successor_and_not_as_what_has_its_address() {
    let mut world = shop();
    let flows = [
        seen("shop/web-5555555555-bbbbb@10.0.1.1", DB, "tcp/5432"),
        seen("shop/never@10.0.1.1", DB, "tcp/1"),
    ];
    let found = recommend(&world.snapshot, &flows, &wanted(Some("shop")));
    let db = only(&found, "recommended-main-");
    assert_eq!(db["spec"]["ingress"].as_array().unwrap().len(), 1, "{db:#}");
    assert_eq!(db["spec"]["ingress"][0]["from"], json!([{"podSelector": {"matchLabels": {"app": "web"}}}]));
    assert!(
        found.notes.iter().any(|it| it.starts_with("1 flows have an end whose pod is gone")),
        "{:?}",
        found.notes
    );
    assert_eq!(found.unjudged, ["shop/never -> shop/db-0 tcp/1"]);
    let after = world.with(&found);
    assert_eq!(judge(&world.snapshot, &after, &flows), Judged { unknown: 1, ..Judged::default() });
}

#[test]
fn a_workload_that_only_pods_have_used_that_are_gone_gets_no_policy() {
    let mut world = shop();
    let job = seen("shop/report-28391040-x2x7k@10.0.9.9", DB, "tcp/5432");
    let found = recommend(&world.snapshot, std::slice::from_ref(&job), &wanted(None));
    assert_eq!((found.policies.len(), found.unjudged.len()), (0, 0), "{found:?}");
    let note = "only flows with pods that are gone were seen, and so no policy is written, of app.kubernetes.io/instance=main";
    assert!(found.notes.iter().any(|it| it.starts_with(note)), "{:?}", found.notes);
    assert!(!found.notes.iter().any(|it| it.starts_with("no flow was seen") && it.contains("=pg")));
    // With another client it gets one, which denies the job.
    let flows = [job, seen(WEB, DB, "tcp/5432")];
    let found = recommend(&world.snapshot, &flows, &wanted(Some("shop")));
    assert_eq!(found.unjudged, ["shop/report-28391040-x2x7k -> shop/db-0 tcp/5432"]);
    let after = world.with(&found);
    assert_eq!(judge(&world.snapshot, &after, &flows), Judged { unknown: 1, ..Judged::default() });
    // Of egress it says nothing.
    let egress = Wanted { ingress: false, ..wanted(Some("shop")) };
    assert_eq!(recommend(&world.snapshot, &flows, &egress).unjudged, [""; 0]);
}

#[test]
fn a_peer_without_an_address_of_the_flows_family_opens_nothing() {
    let mut world = shop();
    let flows = [
        seen("bank/bare@2001:db8::2", "shop/web-6f7d9c5b4-x2x7k@2001:db8::1", "tcp/81"),
        seen("shop/web-6f7d9c5b4-x2x7k@2001:db8::1", "bank/bare@2001:db8::2", "tcp/82"),
        seen(DB, WEB, "tcp/80"),
    ];
    let found = recommend(&world.snapshot, &flows, &wanted(Some("shop")));
    let rules: Vec<_> = found.policies.iter().flat_map(Recommended::rules).collect();
    assert!(rules.iter().all(|(.., rule)| rule.prefixes() > 0), "{rules:#?}");
    assert_eq!(found.unjudged.len(), 2, "{found:?}");
    let after = world.with(&found);
    assert!(!World::allows(&after, &seen("bank/bare@10.0.1.2", WEB, "tcp/81")));
    assert!(!World::allows(&after, &seen(WEB, "bank/bare@10.0.1.2", "tcp/82")));
}

#[test]
fn the_clusters_dns_is_asked_by_all_and_known_by_its_label_whatever_names_its_workload() {
    let mut world = shop();
    let dns = "kube-system/dns-b@10.0.2.2";
    world.pod("kube-system/dns-b", "n1", "10.0.2.2", &json!({"app": "coredns", "k8s-app": "kube-dns"}));
    let flows = [
        seen(WEB, dns, "udp/53"),
        seen("bank/bare@10.0.1.2", dns, "tcp/53"),
        seen("bank/bare@10.0.1.2", dns, "tcp/9153"),
    ];
    let found = recommend(&world.snapshot, &flows, &wanted(None));
    let server = only(&found, "recommended-coredns-");
    assert_eq!(
        server["spec"]["ingress"],
        json!([{"from": [{"ipBlock": {"cidr": "10.0.1.2/32"}}], "ports": [{"protocol": "TCP", "port": 9153}]},
            {"ports": [{"protocol": "TCP", "port": 53}, {"protocol": "UDP", "port": 53}]}])
    );
    let egress = only(&found, "recommended-web-")["spec"]["egress"].clone();
    assert_eq!(egress.as_array().unwrap().len(), 1, "only the rule for DNS: {egress:#}");
    assert!(egress[0]["to"].is_array(), "{egress:#}");
    let after = world.with(&found);
    assert!(World::allows(&after, &seen("bank/teller-x2x7k@10.0.1.1", dns, "udp/53")));
    assert!(World::allows(&after, &seen("203.0.113.1", dns, "tcp/53")));
    assert!(!World::allows(&after, &seen("bank/teller-x2x7k@10.0.1.1", dns, "tcp/9153")));
    assert!(!World::allows(&after, &seen("bank/teller-x2x7k@10.0.1.1", dns, "sctp/53")));
    assert_eq!(judge(&world.snapshot, &after, &flows), Judged::default());
}

#[test]
fn addresses_of_nodes_are_written_one_by_one() {
    let mut world = shop();
    let nodes: Vec<String> = (3..13).map(|last| format!("172.16.0.{last}")).collect();
    for address in &nodes {
        world.put(
            &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("node-{address}")},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]}}),
        );
    }
    let flows: Vec<Seen> = nodes.iter().map(|node| seen(node, WEB, "tcp/80")).collect();
    let found = recommend(&world.snapshot, &flows, &wanted(None));
    let from = only(&found, "recommended-web-")["spec"]["ingress"][0]["from"].clone();
    assert_eq!(from.as_array().unwrap().len(), 10, "{from:#}");
}

#[test]
fn a_bare_address_that_a_pod_has_is_that_pod() {
    let world = shop();
    let flows = [seen("10.0.1.1", WEB, "tcp/80"), seen("node:gone@10.0.0.2", WEB, "tcp/81")];
    let found = recommend(&world.snapshot, &flows, &wanted(Some("shop")));
    let ingress = only(&found, "recommended-web-")["spec"]["ingress"].clone();
    assert_eq!(ingress[0]["from"][0]["podSelector"], json!({"matchLabels": {"k8s-app": "teller"}}));
    assert_eq!(ingress[1]["from"], json!([{"ipBlock": {"cidr": "10.0.0.2/32"}}]), "a node is no pod");
}

#[test]
fn flows_that_were_denied_last_and_are_allowed_now_count() {
    let mut world = shop();
    let gone = seen("shop/gone@10.0.9.9", DB, "tcp/80");
    let flows = vec![seen(WEB, DB, "tcp/5432"), seen(DB, WEB, "tcp/80"), gone];
    assert_eq!(allowed_now(&world.snapshot, flows.clone()), flows[..2]);
    world.put(&json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "closed", "namespace": "shop"},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"]}}));
    assert_eq!(allowed_now(&world.snapshot, flows.clone()), flows[..1]);
}

#[test]
fn what_a_networkpolicy_cannot_allow_is_named_and_found_by_the_judgement() {
    let mut world = shop();
    let mut ping = seen(WEB, DB, "icmp");
    ping.port = 8 << 8;
    let flows = [ping, seen(WEB, DB, "tcp/5432")];
    let found = recommend(&world.snapshot, &flows, &wanted(Some("shop")));
    assert!(
        found.notes.iter().any(|it| it.contains("TCP, UDP and SCTP only, not shop/web")),
        "{:?}",
        found.notes
    );
    let after = world.with(&found);
    assert_eq!(judge(&world.snapshot, &after, &flows).denied, ["shop/web-6f7d9c5b4-x2x7k -> shop/db-0 icmp"]);
}

#[test]
fn hostile_labels_and_namespaces_reach_no_policy_and_names_are_unique() {
    let long = "x".repeat(63);
    let mut pods = Vec::new();
    let values =
        ["UPPER.case_value", "a", &long, "---", "x\ny: z", "\u{1b}[2J", "ü", "", "yes", "a-b", "a.b", "a_b"];
    for (index, value) in values.iter().enumerate() {
        let (name, address) = (format!("shop/p{index}"), format!("10.0.0.{}", index + 1));
        pods.push((name, address, json!({"app": value, "a b": "c", "x/y/z": "v", "role": "r"})));
    }
    let mut world = World::new(&[]);
    pods.iter().for_each(|(name, address, labels)| world.pod(name, "n1", address, labels));
    let flows: Vec<Seen> = pods
        .iter()
        .map(|(name, address, _)| seen("203.0.113.1", &format!("{name}@{address}"), "tcp/80"))
        .collect();
    let found = recommend(&world.snapshot, &flows, &wanted(None));
    let names: std::collections::BTreeSet<&str> = found.policies.iter().map(|it| &*it.name).collect();
    assert_eq!(names.len(), found.policies.len());
    assert!(names.iter().all(|name| workloads::is_dns_label(name)), "{names:?}");
    let all = text(&found);
    assert!(
        !all.contains("\\n") && !all.contains("\\u") && !all.contains("a b") && !all.contains('ü'),
        "{all}"
    );
    // Those whose label `app` no policy can name are selected by their other label.
    assert_eq!(only(&found, "recommended-r-")["spec"]["podSelector"]["matchLabels"], json!({"role": "r"}));
    let after = world.with(&found);
    assert_eq!(judge(&world.snapshot, &after, &flows), Judged::default());
}

#[test]
fn ten_thousand_flows_are_recommended_and_judged_in_bounded_time() {
    let mut world = World::new(&[]);
    for number in 0..2000 {
        let address = format!("10.{}.{}.1", number / 200, number % 200);
        world.pod(&format!("shop/p{number}"), "n1", &address, &json!({"app": format!("a{}", number % 100)}));
    }
    let mut random = Random::new(7);
    let mut flows = Vec::new();
    for _ in 0..10_000 {
        let (from, to) = (random.below(2000), random.below(2000));
        let name = |number: usize| format!("shop/p{number}@10.{}.{}.1", number / 200, number % 200);
        flows.push(seen(&name(from), &name(to), "tcp/80"));
    }
    let began = Instant::now();
    let found = recommend(&world.snapshot, &flows, &wanted(None));
    let after = world.with(&found);
    judge(&world.snapshot, &after, &flows);
    assert_eq!(found.policies.len(), 100);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}

/// A random label of few, so that workloads share some.
fn labels(random: &mut Random) -> Value {
    let mut labels = serde_json::Map::new();
    for (key, values) in [
        ("app", ["a", "b", "c"]),
        ("app.kubernetes.io/name", ["a", "b", "n"]),
        ("app.kubernetes.io/instance", ["i", "j", "k"]),
        ("k8s-app", ["a", "k", "kube-dns"]),
        ("role", ["r", "s", "t"]),
        ("version", ["1", "2", "3"]),
        ("pod-template-hash", ["5f", "6f", "7f"]),
    ] {
        if random.once_in(3) {
            labels.insert(key.to_owned(), json!(random.pick(&values)));
        }
    }
    Value::Object(labels)
}

/// Pods as `NAMESPACE/NAME@ADDRESS`, other ends, and flows between them.
fn random_world(random: &mut Random) -> (World, Vec<String>, Vec<Seen>) {
    let mut world = World::new(&[]);
    let mut pods = Vec::new();
    for number in 0..(4 + random.below(16)) {
        let namespace = random.pick(&["shop", "shop2", "bank", "kube-system"]);
        // Addresses outside of the cluster are among those of pods, so that prefixes could contain pods.
        let (name, address) =
            (format!("{namespace}/p{number}"), format!("198.51.{}.{}", random.below(3), number));
        world.pod(&name, random.pick(&["n1", "n2"]), &address, &labels(random));
        pods.push(format!("{name}@{address}"));
    }
    let mut flows = Vec::new();
    for _ in 0..(1 + random.below(40)) {
        let one = |random: &mut Random| match random.below(8) {
            0 => format!("198.51.{}.{}", random.below(3), 100 + random.below(100)),
            1 => random.pick(&["node:n1@172.16.0.1", "node:n2@172.16.0.2"]).to_owned(),
            _ => pods[random.below(pods.len())].clone(),
        };
        let (source, destination) = (one(random), one(random));
        let service = random.pick(&["tcp/80", "tcp/443", "udp/53", "sctp/7", "udp/9"]);
        flows.push(seen(&source, &destination, service));
    }
    (world, pods, flows)
}

#[test]
fn p134_what_was_seen_is_allowed_a_foreign_pair_is_denied_and_a_second_run_is_the_same() {
    // policy.md P134
    let (mut policies, mut foreign) = (0, 0);
    for seed in 0..200 {
        let mut random = Random::new(0x134 + seed);
        let (mut world, pods, flows) = random_world(&mut random);
        let found = recommend(&world.snapshot, &flows, &wanted(None));
        let after = world.with(&found);
        assert_eq!(
            judge(&world.snapshot, &after, &flows),
            Judged::default(),
            "seed {seed}\n{}",
            text(&found)
        );
        // Order of flows and policies that are in force change nothing.
        let reversed: Vec<Seen> = flows.iter().rev().cloned().collect();
        let again = recommend(&after, &reversed, &wanted(None));
        assert_eq!(found, again, "seed {seed}");
        policies += found.policies.len();

        let known = workloads::Workloads::of(&world.snapshot);
        let ends = ends::Ends::new(&world.snapshot, &known);
        let place = |text: &str| match ends.find(&end(text)) {
            ends::Found::Pod(_, place) => place,
            _ => None,
        };
        let of =
            |it: &Seen| (place(&named(&it.source)), place(&named(&it.destination)), it.protocol, it.port);
        for (from, to) in pods.iter().flat_map(|from| pods.iter().map(move |to| (from, to))) {
            let flow = seen(from, to, random.pick(&["tcp/80", "tcp/443", "sctp/7", "udp/9", "tcp/8080"]));
            let (Some(source), Some(_)) = (place(from), place(to)) else { continue };
            let isolated = |place: Option<usize>| {
                flows.iter().any(|it| {
                let is_probe = matches!(ends.find(&it.source), ends::Found::Address(_, Some(node))
                    if matches!(ends.find(&it.destination), ends::Found::Pod(pod, _) if *pod.node == *node.as_str()));
                of(it).0 == place || of(it).1 == place && !is_probe
            })
            };
            let was_seen = flows.iter().any(|it| of(it) == of(&flow));
            if !was_seen && isolated(Some(source)) && isolated(place(to)) && from != to {
                assert!(!World::allows(&after, &flow), "seed {seed}: {flow}\n{}", text(&found));
                foreign += 1;
            }
        }
    }
    assert!(policies > 500 && foreign > 2000, "{policies} {foreign}");
}

fn named(end: &End) -> String {
    format!("{}@{}", end.name, end.address)
}

fn record(direction: Direction, allowed: bool, at: u64) -> Record {
    let flow = seen(WEB, DB, "tcp/5432");
    let (source, destination, protocol, port) = (flow.source, flow.destination, flow.protocol, flow.port);
    let first = UNIX_EPOCH + Duration::from_secs(at);
    Record { direction, allowed, source, destination, protocol, port, count: 3, first, last: first }
}

#[test]
fn a_flow_counts_once_for_both_ends_and_not_if_the_last_seen_of_it_is_that_it_was_denied() {
    let finish = |records: &[Record]| {
        let mut window = Window::default();
        records.iter().for_each(|it| window.add(it.clone(), true).unwrap());
        let (flows, denied) = window.finish();
        (flows.iter().map(|it| it.count).collect::<Vec<_>>(), denied.len())
    };
    let (ingress, egress) = (Direction::Ingress, Direction::Egress);
    assert_eq!(
        finish(&[record(ingress, true, 1), record(egress, true, 1), record(egress, true, 9)]),
        (vec![6], 0)
    );
    assert_eq!(finish(&[record(egress, true, 5), record(ingress, false, 4)]), (vec![], 1));
    assert_eq!(finish(&[record(ingress, false, 4), record(ingress, true, 5)]), (vec![3], 0));
    assert_eq!(finish(&[record(ingress, false, 4)]), (vec![], 0));
    // In the same second, either may have been the last one.
    assert_eq!(finish(&[record(ingress, true, 4), record(ingress, false, 4)]), (vec![3], 0));
}

#[test]
fn more_different_flows_than_are_kept_are_an_error_and_the_span_is_that_of_all_records() {
    let mut window = Window::default();
    window.add(record(Direction::Ingress, true, 9), false).unwrap();
    for number in 0..FLOWS_MAX {
        let mut one = record(Direction::Ingress, true, 10);
        one.source.address = std::net::Ipv4Addr::from(u32::try_from(number).unwrap()).into();
        window.add(one, true).unwrap();
    }
    assert_eq!(window.add(record(Direction::Ingress, true, 11), true), Err(TooManyFlows));
    let (first, last) = window.span().unwrap();
    assert_eq!(last.duration_since(first).unwrap().as_secs(), 2);
}
