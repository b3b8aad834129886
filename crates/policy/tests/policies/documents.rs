//! Documents, as an API server has them, in force on a node: which packets pass (policy.md section 6.1).

mod addresses;
mod client;
mod namespace;
mod unreadable;

use russet_policy::Policies;
use russet_testkit::forged::routed_pod;
use russet_verdict::engine::Engine;
use russet_verdict::explain::{Explanation, Probe};
use russet_verdict::ir::Protocol;
use russet_verdict::snapshot::Snapshot;
use russet_verdict::table::Delta;
use russet_verdict::translate::{Translated, Translator, built_in_tiers};
use russet_verdict::world::{Config, Update};
use serde_json::{Value, json};

use crate::traffic::service;
use crate::world::*;

/// The node, whose pods are those of [`PODS`] in the namespace `x`, with their names as their labels `pod`.
struct Node {
    translator: Translator,
    engine: Engine,
    policies: Policies,
    /// What `russet explain` knows.
    snapshot: Snapshot,
}

/// The service of [`service`], and the only address of its endpoint.
const SERVICE: &str = "10.96.0.1";
/// A host outside the cluster, or another node.
const FAR: &str = "198.51.100.9";
const LISTENING: [u16; 6] = [79, 80, 81, 90, 91, 8080];

// === impl Node ===

impl Node {
    /// Without policies.
    fn new() -> Self {
        let mut node = Self {
            translator: Translator::default(),
            engine: Engine::default(),
            policies: open(),
            snapshot: Snapshot::default(),
        };
        let own_addresses = ["192.0.2.1", "2001:db8::1"].map(ip).into();
        let config =
            Config { node: "n1".into(), own_addresses, allow_without_profile: true, ..Config::default() };
        node.update(Update::Config(config));
        built_in_tiers().into_iter().for_each(|tier| node.update(tier));
        node.put(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "x" } }));
        PODS.iter().for_each(|(name, _, addresses)| node.put(&pod(name, addresses)));
        node
    }

    fn update(&mut self, update: Update) {
        let update = wired(update);
        self.engine.apply(update.clone());
        self.snapshot.apply(update);
    }

    fn take(&mut self, translated: Translated) {
        translated.updates.into_iter().for_each(|update| self.update(update));
    }

    fn put(&mut self, document: &Value) {
        let translated = self.translator.put(document);
        self.take(translated);
    }

    fn remove(&mut self, document: &Value) {
        let translated = self.translator.remove(document);
        self.take(translated);
    }

    /// A record of etcd.
    fn record(&mut self, name: &str, value: Option<&Value>) {
        let key = format!("/calico/resources/v3/projectcalico.org/{name}");
        let translated = self.translator.record(&key, value).unwrap();
        self.take(translated);
    }

    /// Has the kernel hold what is decided.
    fn flush(&mut self) -> Delta {
        let delta = self.engine.flush();
        apply(&mut self.policies, &delta);
        delta
    }

    /// What `russet explain` says of a connection: whether it is allowed, and its notes.
    fn explained(&self, from: &str, to: &str, port: u16) -> (bool, String) {
        let flow = Probe { protocol: Protocol::TCP, port }.flow(ip(from), ip(to)).unwrap();
        let found = Explanation::new(&self.snapshot, &flow);
        (found.trace.allowed(), found.notes.join("\n"))
    }
}

/// A pod. Its port `web` is 80 in the pod `a`, and 8080 in others.
fn pod(name: &str, addresses: &[&str]) -> Value {
    let web = if name == "a" { 80 } else { 8080 };
    let addresses: Vec<Value> = addresses.iter().map(|address| json!({ "ip": address })).collect();
    json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "x", "labels": { "pod": name } },
        "spec": { "nodeName": "n1", "containers": [{ "ports": [{ "name": "web", "containerPort": web }] }] },
        "status": { "phase": "Running", "podIPs": addresses } })
}

/// A NetworkPolicy of the namespace `x`.
fn policy(name: &str, spec: Value) -> Value {
    json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": name, "namespace": "x" }, "spec": spec })
}

/// One for ingress of this pod, or of all.
fn ingress(pod: &str, rules: Value) -> Value {
    policy(
        &format!("in-{pod}"),
        json!({ "podSelector": selector(pod), "policyTypes": ["Ingress"], "ingress": rules }),
    )
}

/// The same for egress.
fn egress(pod: &str, rules: Value) -> Value {
    policy(
        &format!("out-{pod}"),
        json!({ "podSelector": selector(pod), "policyTypes": ["Egress"], "egress": rules }),
    )
}

/// A selector of the pods with this label; of all, if it is empty.
fn selector(pod: &str) -> Value {
    if pod.is_empty() { json!({}) } else { json!({ "matchLabels": { "pod": pod } }) }
}

/// One rule that allows from these pods, or to them.
fn peer(member: &str, pod: &str) -> Value {
    json!([{ member: [{ "podSelector": selector(pod) }] }])
}

fn block(member: &str, cidr: &str) -> Value {
    json!([{ member: [{ "ipBlock": { "cidr": cidr } }] }])
}

/// Tries connections: lines such as `b -> a 80 allowed`. The ends are pods (`a6` by its address of IPv6),
/// `node`, `far`, and addresses; `icmp` is a ping.
#[track_caller]
fn check(row: &str, lines: &str) {
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        println!("{row}: {line}");
        let [from, "->", to, probe, verdict @ ("allowed" | "denied")] =
            line.split_whitespace().collect::<Vec<_>>()[..]
        else {
            panic!("{row}: {line}")
        };
        let (to, expected) = (address(to), verdict == "allowed");
        match probe {
            "icmp" => assert_eq!(pings(from, to), expected, "{row}: {line}"),
            port => {
                let from = Some(from).filter(|from| *from != "node");
                drop(connect(from, to, port.parse().unwrap(), expected));
            }
        }
    }
}

fn address(end: &str) -> &str {
    let (name, family) = end.strip_suffix('6').map_or((end, 0), |name| (name, 1));
    let pod = PODS.into_iter().find(|(pod, ..)| *pod == name);
    match (pod, end) {
        (Some((.., addresses)), _) => addresses[family],
        (None, "node") => "192.0.2.1",
        (None, "far") => FAR,
        (None, address) => address,
    }
}

/// The documents of a row, and the connections.
type Row = (&'static str, Vec<Value>, &'static str);

/// Rows about selectors, addresses and ports.
fn rows_of_peers_and_ports() -> Vec<Row> {
    let web = json!([{ "ports": [{ "port": "web" }] }]);
    let web_of_each = "
        b -> a 80 allowed
        b -> a 8080 denied
        b -> c 8080 allowed
        b -> c 80 denied
        b -> a6 80 allowed
        b -> a6 8080 denied";
    let from = |name: &str, pod: &str, port: u16| {
        let rule = json!([{ "from": [{ "podSelector": selector(pod) }], "ports": [{ "port": port }] }]);
        policy(name, json!({ "podSelector": selector("a"), "ingress": rule }))
    };
    let range = json!([{ "ports": [{ "port": 80, "endPort": 90 }] }]);
    let rule = json!({ "action": "Allow", "protocol": "TCP", "http": { "methods": ["GET"] },
        "source": { "selector": "pod == 'b'" }, "destination": { "ports": [80] } });
    let http = json!({ "apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy",
        "metadata": { "name": "http" }, "spec": { "selector": "pod == 'a'", "ingress": [rule] } });
    vec![
        ("P13", vec![egress("b", block("to", "10.96.0.0/16"))], "b -> 10.96.0.1 80 denied"),
        (
            "P13: the address of the endpoint",
            vec![egress("b", block("to", "10.9.1.2/32"))],
            "b -> 10.96.0.1 80 allowed
            b -> c 80 denied",
        ),
        ("P14: ingress", vec![ingress("", web.clone())], web_of_each),
        ("P14: egress", vec![egress("b", web)], web_of_each),
        (
            "P17",
            vec![ingress("a", range)],
            "b -> a 79 denied
            b -> a 80 allowed
            b -> a 90 allowed
            b -> a 91 denied
            b -> a6 91 denied
            b -> a6 90 allowed",
        ),
        (
            "P36",
            vec![from("one", "b", 80), from("two", "c", 81), ingress("a", json!([]))],
            "b -> a 80 allowed
            c -> a 81 allowed
            b -> a 81 denied
            c -> a6 80 denied
            b -> a 90 denied",
        ),
        (
            "P79: whatever the method is",
            vec![http],
            "b -> a 80 allowed
            b -> a 81 denied
            c -> a 80 denied",
        ),
    ]
}

/// Rows about pods of the node's own network: `h` of this node, and another one of the node that is far.
fn rows_of_the_hosts_network() -> Vec<Row> {
    let on_host = |name: &str, node: &str, address: &str| {
        let mut pod = pod(name, &[address]);
        pod["metadata"]["labels"]["pod"] = "h".into();
        (pod["spec"]["nodeName"], pod["spec"]["hostNetwork"]) = (node.into(), true.into());
        pod
    };
    let pods = [on_host("h", "n1", "192.0.2.1"), on_host("other", "n2", FAR)];
    let with = |policies: &[Value]| [&pods[..], policies].concat();
    vec![
        (
            "P27: it is not selected",
            with(&[ingress("h", json!([])), egress("h", json!([]))]),
            "b -> node 80 allowed
            node -> b 80 allowed
            far -> b 80 allowed
            b -> far 80 allowed",
        ),
        (
            "P27: it is no peer, and its own node reaches its pods",
            with(&[ingress("a", peer("from", "h")), egress("b", peer("to", "h"))]),
            "node -> a 80 allowed
            far -> a 80 denied
            c -> a 80 denied
            b -> node 80 denied
            b -> far 80 denied",
        ),
        (
            "P27: it is its address",
            with(&[ingress("a", block("from", "198.51.100.0/24")), egress("b", block("to", "192.0.2.1/32"))]),
            "far -> a 80 allowed
            b -> node 80 allowed
            b -> far 80 denied",
        ),
    ]
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn connections_pass_as_the_documents_say() {
    // policy.md P13, P14, P17, P27, P36 and P79
    on_a_node(|| {
        routed_pod(None, "far0", "far", [FAR, "2001:db8:9::9"]);
        service();
        let places = PODS.iter().flat_map(|(name, _, addresses)| addresses.map(|it| (Some(*name), it)));
        let places = places.chain([(Some("far"), FAR), (None, "192.0.2.1")]);
        let servers: Vec<_> =
            places.flat_map(|(netns, address)| LISTENING.map(|port| listen(netns, address, port))).collect();
        let mut node = Node::new();
        for (row, documents, lines) in [rows_of_peers_and_ports(), rows_of_the_hosts_network()].concat() {
            documents.iter().for_each(|document| node.put(document));
            node.flush();
            check(row, lines);
            documents.iter().for_each(|document| node.remove(document));
            node.flush();
        }
        check("without policies", "b -> a 91 allowed\nb -> c6 81 allowed");
        drop(servers);
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft, ping"]
fn an_isolated_pod_reaches_itself_and_gets_answers_to_what_it_begins() {
    // policy.md P22, P23 and P25
    on_a_node(|| {
        let mut node = Node::new();
        let [closed_in, closed_out] = [ingress("a", json!([])), egress("a", json!([]))];
        node.put(&closed_in);
        node.flush();
        for (own, other) in PODS[0].2.into_iter().zip(PODS[1].2) {
            let server = listen(Some("b"), other, 80);
            let (client, accepted) = connected(Some("a"), other, &server);
            assert!(carries(&client, &accepted, true) && carries(&accepted, &client, true), "{other}");
            let (asking, answering) = (udp(Some("a"), own, 5353), udp(Some("b"), other, 53));
            asking.set_read_timeout(Some(ARRIVES)).unwrap();
            answering.set_read_timeout(Some(ARRIVES)).unwrap();
            assert!(sends(&asking, &answering) && sends(&answering, &asking), "{other}");
            assert!(pings("a", other) && !pings("b", own), "{other}");
            let unasked = listen(Some("a"), own, 80);
            connect(Some("b"), own, 80, false);
            drop(unasked);
        }
        node.put(&closed_out);
        node.flush();
        for own in PODS[0].2.into_iter().chain(["127.0.0.1", "::1"]) {
            let server = listen(Some("a"), own, 81);
            let (client, accepted) = connected(Some("a"), own, &server);
            assert!(carries(&client, &accepted, true) && carries(&accepted, &client, true), "{own}");
            assert!(pings("a", own), "{own}");
        }
        let probed = listen(Some("a"), "10.9.1.2", 82);
        let (probe, accepted) = connected(None, "10.9.1.2", &probed);
        assert!(carries(&probe, &accepted, true) && carries(&accepted, &probe, true));
        assert!(!pings("a", "10.9.2.2"), "the policy of egress is in force");
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft, ping"]
fn a_pod_whose_every_destination_is_denied_answers() {
    // policy.md P45
    let deny = json!([{ "action": "Deny", "to": [{ "networks": ["0.0.0.0/0"] }] }]);
    let of_cluster = json!({ "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": { "name": "c" },
        "spec": { "tier": "Admin", "priority": 5, "subject": { "pods": { "namespaceSelector": {}, "podSelector": selector("a") } }, "egress": deny } });
    on_a_node(|| {
        routed_pod(None, "far0", "far", [FAR, "2001:db8:9::9"]);
        let servers = [(Some("b"), "10.9.2.2"), (None, "192.0.2.1"), (Some("far"), FAR)];
        let servers = servers.map(|(netns, address)| listen(netns, address, 80));
        let own = listen(Some("a"), "10.9.1.2", 81);
        let mut node = Node::new();
        node.put(&of_cluster);
        node.flush();
        let denied = "
            a -> b 80 denied
            a -> node 80 denied
            a -> far 80 denied
            a -> b icmp denied
            a -> far icmp denied";
        check("P45", denied);
        for client in [Some("b"), Some("far"), None] {
            let (client, accepted) = connected(client, "10.9.1.2", &own);
            assert!(carries(&client, &accepted, true) && carries(&accepted, &client, true));
        }
        check("P45: replies", "b -> a icmp allowed\nfar -> a icmp allowed");
        drop(servers);
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn a_pod_reaches_itself_through_a_service_only_by_a_rule_and_explain_says_so() {
    // policy.md P26
    on_a_node(|| {
        service();
        let server = listen(Some("a"), "10.9.1.2", 8080);
        let mut node = Node::new();
        let [in_a, out_a] = [ingress("a", peer("from", "a")), egress("a", peer("to", "a"))];
        for (documents, expected) in [
            (vec![], true),
            (vec![ingress("a", json!([]))], false),
            (vec![egress("a", json!([]))], false),
            (vec![in_a.clone()], true),
            (vec![in_a.clone(), egress("a", json!([]))], false),
            (vec![in_a.clone(), out_a], true),
            (vec![ingress("a", peer("from", "b"))], false),
        ] {
            documents.iter().for_each(|document| node.put(document));
            node.flush();
            if let Some(client) = connect(Some("a"), SERVICE, 80, expected) {
                let accepted = server.accept().unwrap().0;
                assert!(carries(&client, &accepted, true) && carries(&accepted, &client, true));
            }
            let (allowed, notes) = node.explained("10.9.1.2", "10.9.1.2", 8080);
            assert_eq!(allowed, expected, "{documents:#?}");
            assert!(notes.contains("hairpin"), "{notes}");
            documents.iter().for_each(|document| node.remove(document));
        }
        let (_, notes) = node.explained("10.9.2.2", "10.9.1.2", 8080);
        assert!(!notes.contains("hairpin"), "{notes}");
    });
}
