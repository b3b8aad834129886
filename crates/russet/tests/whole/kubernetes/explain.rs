//! `russet explain` and `russet policy` on two nodes of a real API server: each prepared fault is
//! found, and named as what it is.

use russet_testkit::eventually;
use serde_json::{Value, json};

use super::Cluster;
use super::policies::{create_policy, delete_policy, pod, policy};
use crate::node::{TIMEOUT, TestNode};

/// A port that the questions are about; nothing listens on it.
const PORT: &str = "80";
/// An answer has to fit this many lines.
const SCREEN_LINES: usize = 24;

/// What is asked from `default/client` or another source, with the exit code.
fn explain(node: &TestNode, from: &str, to: &str) -> (i32, Value) {
    let answer = node.russet_inside(&["explain", from, to, PORT, "--family", "4", "-o", "json"]);
    let found = serde_json::from_str(&answer.stdout).unwrap_or_else(|error| panic!("{error}: {answer:?}"));
    (answer.status, found)
}

fn kinds<'a>(found: &'a Value, member: &str) -> Vec<&'a str> {
    found[member].as_array().unwrap().iter().map(|it| it["kind"].as_str().unwrap()).collect()
}

/// The findings are exactly one of this kind, and it has this text.
#[track_caller]
fn assert_found((status, found): (i32, Value), kind: &str, text: &str) {
    assert_eq!((status, kinds(&found, "findings")), (3, vec![kind]), "{found:#}");
    let said = found["findings"][0]["text"].as_str().unwrap();
    println!("{kind}: {said}");
    assert!(said.contains(text), "{said}");
}

#[track_caller]
fn assert_nothing_found((status, found): (i32, Value)) -> Value {
    assert_eq!((status, kinds(&found, "findings")), (0, vec![]), "{found:#}");
    found
}

/// The note of a kind.
#[track_caller]
fn note<'a>(found: &'a Value, kind: &str) -> &'a str {
    let notes = found["notes"].as_array().unwrap();
    let note = notes.iter().find(|it| it["kind"] == kind);
    note.unwrap_or_else(|| panic!("{found:#}"))["text"].as_str().unwrap()
}

/// What the resources alone say: nothing is wrong with the nodes.
fn assert_names_what_resources_decide(cluster: &Cluster, one: &TestNode, two: &TestNode, server: &str) {
    create_policy(cluster, &policy("deny", "server", &[]));
    eventually(TIMEOUT, || {
        let (status, found) = explain(two, "default/client", "default/server");
        let kernel = &found["kernel"][0];
        status == 3 && kernel["allowed"] == false && kernel["agrees"] == true
    });
    for node in [one, two] {
        let (status, found) = explain(node, "default/client", "default/server");
        assert_eq!((status, &found["verdict"]), (3, &"denied".into()), "{found:#}");
        assert_eq!(found["flows"][0]["decidedAt"]["direction"], "ingress");
        assert_eq!(kinds(&found, "findings"), Vec::<&str>::new(), "{found:#}");
    }
    create_policy(cluster, &policy("allow", "server", &["client"]));
    eventually(TIMEOUT, || explain(two, "default/client", "default/server").0 == 0);

    // The same last octet with another bit: an address of the same block.
    let (net, last) = server.rsplit_once('.').unwrap();
    let free = format!("{net}.{}", last.parse::<u8>().unwrap() ^ 32);
    assert_found(explain(one, "default/client", &free), "address", "is the address of no pod: it is free");

    let found = assert_nothing_found(explain(one, "default/client", "10.77.0.1"));
    assert!(note(&found, "masquerade").contains("10.77.0.1 sees 10.77.0.11 and not "), "{found:#}");

    let object = json!({ "kind": "Pod", "metadata": { "name": "proxy", "namespace": "default" },
        "spec": { "nodeName": "n2", "hostNetwork": true, "containers": [{ "name": "web", "image": "web" }] } });
    cluster.with(|server| server.create(&[object]));
    cluster.report_running("proxy", &["10.77.0.12".to_owned()]);
    let found = assert_nothing_found(explain(one, "default/client", "default/proxy"));
    assert!(note(&found, "host-network").contains("default/proxy uses the network of node n2"), "{found:#}");
}

/// Takes a route away, and gives it back.
fn assert_names_a_missing_route(one: &TestNode, server: &str) {
    let route = one.ip(&["route", "get", server]);
    assert!(route.contains("vxlan.calico"), "{route}");
    let all = one.ip(&["route", "show", "dev", "vxlan.calico"]);
    let block = all.lines().find(|line| line.contains(" via ")).unwrap();
    let words: Vec<&str> = block.split_whitespace().collect();
    one.ip(&["route", "del", words[0]]);
    let found = explain(one, "default/client", "default/server");
    assert_found(found, "route", &format!("the route to {} of node n2 is missing or another", words[0]));
    one.ip(&[&["route", "add"], &words[..], &["dev", "vxlan.calico"]].concat());
    assert_nothing_found(explain(one, "default/client", "default/server"));
}

fn assert_names_faults_of_this_node(one: &TestNode) {
    let ask = || explain(one, "default/client", "default/server");
    one.ip(&["link", "set", "vxlan.calico", "mtu", "1300"]);
    assert_found(ask(), "mtu", "vxlan.calico has MTU 1300 and should have 1450");
    one.ip(&["link", "set", "vxlan.calico", "mtu", "1450"]);

    one.inside("nft", &["add table inet fw; add chain inet fw out { type filter hook output priority 0; }"]);
    one.inside("nft", &["add rule inet fw out udp dport 4789 drop"]);
    assert_found(ask(), "firewall", "drops packets to other nodes at UDP port 4789");
    one.inside("nft", &["delete table inet fw"]);
    assert_nothing_found(ask());
}

/// Changes of the table of decisions while no agent restores it.
fn assert_names_drift(two: &mut TestNode, client: &str, server: &str) {
    let delete = |node: &TestNode, set: &str, address: &str| {
        let command = format!("delete element inet russet-decisions {set} {{ {address} }}");
        node.inside("nft", &[&command]);
    };
    delete(two, "ids4", client);
    let (status, found) = explain(two, "default/client", "default/server");
    assert_eq!(found["kernel"][0]["agrees"], false, "{found:#}");
    assert_found((status, found), "drift", "the kernel denies this flow");
    two.start_agent();
    eventually(TIMEOUT, || explain(two, "default/client", "default/server").0 == 0);
    two.stop_agent();
    delete(two, "pods4", server);
    assert_found(
        explain(two, "default/client", "default/server"),
        "drift",
        "1 elements of table inet russet-decisions are missing",
    );
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: kube-apiserver, etcd, etcdctl, curl, openssl, ping, nft"]
fn explain_names_each_of_ten_faults() {
    let mut cluster = Cluster::new();
    let (mut one, mut two) = (cluster.node("n1", &[]), cluster.node("n2", &[]));
    let (_client, client) = pod(&cluster, (&mut one, "n1"), "client", "client");
    let (down, _) = pod(&cluster, (&mut one, "n1"), "down", "client");
    let (gone, _) = pod(&cluster, (&mut one, "n1"), "gone", "client");
    let (_server, server) = pod(&cluster, (&mut two, "n2"), "server", "server");
    let ask = |node: &TestNode| explain(node, "default/client", "default/server");
    for node in [&one, &two] {
        // The other node's block and tunnel arrive a moment after its start.
        eventually(TIMEOUT, || ask(node).0 == 0);
    }
    assert_names_what_resources_decide(&cluster, &one, &two, &server[0]);

    // From here on nothing repairs what is broken.
    one.stop_agent();
    two.stop_agent();
    assert_nothing_found(ask(&one));
    let text =
        one.russet_inside(&["explain", "default/client", "default/server", PORT, "--family", "4"]).stdout;
    println!("{text}");
    assert!(text.lines().count() <= SCREEN_LINES, "{text}");
    assert_names_a_missing_route(&one, &server[0]);
    assert_names_faults_of_this_node(&one);

    russet_testkit::run("ip", &["-n", &down.netns_name, "link", "set", "eth0", "down"]);
    let (status, found) = explain(&one, "default/down", "default/server");
    let texts = found["findings"].to_string();
    assert!(status == 3 && texts.contains("eth0 of default/down is down"), "{found:#}");
    russet_testkit::run("ip", &["netns", "del", &gone.netns_name]);
    eventually(TIMEOUT, || {
        let texts = explain(&one, "default/gone", "default/server").1["findings"].to_string();
        texts.contains("of default/gone is gone") && texts.contains("of default/gone does not exist")
    });

    assert_names_drift(&mut two, &client[0], &server[0]);

    two.ip(&["link", "set", "eth0", "down"]);
    one.ip(&["neigh", "flush", "dev", "eth0"]);
    assert_found(ask(&one), "node", "node n2 (10.77.0.12) does not answer");
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: kube-apiserver, etcd, etcdctl, curl, openssl, ping, nft"]
fn policies_are_listed_with_their_pods_and_judged_before_they_are_applied() {
    let mut cluster = Cluster::new();
    let mut node = cluster.node("n1", &[]);
    for (name, role) in [("client", "client"), ("other", "other"), ("server", "server")] {
        pod(&cluster, (&mut node, "n1"), name, role);
    }
    create_policy(&cluster, &policy("allow", "server", &["client"]));
    let json = |node: &TestNode, args: &[&str]| {
        let answer = node.russet_inside(&[args, &["-o", "json"]].concat());
        let found: Value = serde_json::from_str(&answer.stdout).unwrap_or_else(|_| panic!("{answer:?}"));
        (answer.status, found)
    };
    // It is enforced a moment after it was created.
    eventually(TIMEOUT, || json(&node, &["policy", "ls"]).0 == 0);
    let (status, listed) = json(&node, &["policy", "ls"]);
    let row = &listed["policies"][0];
    assert_eq!((status, listed["policies"].as_array().unwrap().len()), (0, 1), "{listed:#}");
    assert_eq!(
        (&row["name"], &row["enforced"], &row["pods"], &row["pods_here"]),
        (&"allow".into(), &"yes".into(), &1.into(), &1.into()),
        "{listed:#}"
    );
    let (_, shown) = json(&node, &["policy", "show", "default/allow"]);
    assert_eq!(shown["policies"][0]["selected"], json!(["default/server"]), "{shown:#}");
    assert_eq!(node.russet_inside(&["policy", "show", "nothing"]).status, 1);

    let file = node.path("new.json");
    std::fs::write(&file, policy("others", "server", &["other"]).to_string()).unwrap();
    let port = format!("--port={PORT}");
    let (status, changed) = json(&node, &["policy", "what-if", file.to_str().unwrap(), &port]);
    let pairs = |found: &Value| -> Vec<(String, String, bool)> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let all = found["changes"].as_array().unwrap().iter();
        all.map(|it| (text(&it["from"]), text(&it["to"]), it["allowed"].as_bool().unwrap())).collect()
    };
    let pair = |from: &str, allowed| (format!("default/{from}"), "default/server".to_owned(), allowed);
    assert_eq!((status, pairs(&changed)), (3, vec![pair("other", true)]), "{changed:#}");
    let (_, changed) = json(&node, &["policy", "what-if", "--delete", "NetworkPolicy/default/allow", &port]);
    assert_eq!(pairs(&changed), vec![pair("other", true)], "{changed:#}");
    std::fs::write(&file, policy("allow", "server", &["other"]).to_string()).unwrap();
    let (_, changed) = json(&node, &["policy", "what-if", file.to_str().unwrap(), &port]);
    assert_eq!(pairs(&changed), vec![pair("client", false), pair("other", true)], "{changed:#}");
    node.stop_agent();
    node.inside("nft", &["delete table inet russet-decisions"]);
    let (status, listed) = json(&node, &["policy", "ls"]);
    assert_eq!((status, &listed["policies"][0]["enforced"]), (3, &"no".into()), "{listed:#}");
    delete_policy(&cluster, "allow");
    let (status, listed) = json(&node, &["policy", "ls"]);
    assert_eq!((status, &listed["policies"]), (0, &json!([])));
}
