//! `russet netnamespace` over a store of its own: no agent, no namespace, only a directory.

use std::process::Command;

use russet_kube::testing::Server;
use russet_model::openshift::CHANGE_ANNOTATION;
use russet_testkit::eventually;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::node::{Answer, TIMEOUT};

fn run(root: &TempDir, args: &[&str]) -> Answer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
    command.arg("netnamespace").args(args).arg("--root").arg(root.path()).env_remove("RUSSET_STORE");
    command.output().unwrap().into()
}

#[track_caller]
fn good(root: &TempDir, args: &[&str]) -> String {
    let answer = run(root, args);
    assert_eq!(answer.status, 0, "{args:?}: {answer:?}");
    answer.stdout
}

#[track_caller]
fn netid(root: &TempDir, args: &[&str]) -> u64 {
    let shown: Value = serde_json::from_str(&good(root, &[args, &["-o", "json"]].concat())).unwrap();
    assert_eq!(shown["schema"], 1);
    shown["netid"].as_u64().unwrap()
}

#[test]
fn tenants_are_created_joined_made_global_isolated_and_deleted() {
    // cni-runtime.md section 4.4
    let root = tempfile::tempdir().unwrap();
    let [blue, red] = ["blue", "red"].map(|name| netid(&root, &["create", name]));
    assert!(blue >= 10 && red >= 10 && blue != red);
    assert_eq!(netid(&root, &["create", "default"]), 0);
    assert_eq!(netid(&root, &["join", "red", "blue"]), blue);
    let table = good(&root, &["list"]);
    assert_eq!(
        table.lines().next().unwrap().split_whitespace().collect::<Vec<_>>(),
        ["NAME", "NETID", "REACHES"]
    );
    let rows: Vec<Vec<&str>> = table.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    let id = blue.to_string();
    assert_eq!(rows, [vec!["blue", &id, "red"], vec!["default", "0", "everybody"], vec!["red", &id, "blue"]]);
    assert_eq!(netid(&root, &["global", "red"]), 0);
    assert!(good(&root, &["show", "red", "-o", "yaml"]).contains("global: true"));
    assert!(netid(&root, &["isolate", "red"]) >= 10);
    assert_eq!(netid(&root, &["isolate", "blue"]), blue, "it is alone with its ID");
    good(&root, &["delete", "red"]);
    let list: Value = serde_json::from_str(&good(&root, &["list", "-o", "json"])).unwrap();
    assert_eq!(list["netnamespaces"].as_array().unwrap().len(), 2);
}

#[test]
fn impossible_requests_fail_with_a_message_and_exit_code() {
    let root = tempfile::tempdir().unwrap();
    assert_eq!(run(&root, &["list"]).status, 1, "there is no store, and looking makes none");
    good(&root, &["create", "default"]);
    good(&root, &["create", "blue"]);
    for (args, status, text) in [
        (&["isolate", "default"][..], 1, "stays global"),
        (&["delete", "default"], 1, "stays global"),
        (&["create", "blue"], 1, "exists already"),
        (&["join", "blue", "green"], 1, "there is no NetNamespace green"),
        (&["show", "green"], 1, "there is no NetNamespace green"),
        (&["create", "Blue/.."], 2, "invalid namespace"),
        (&["join", "blue"], 2, "OTHER"),
    ] {
        let answer = run(&root, args);
        assert_eq!(answer.status, status, "{args:?}: {answer:?}");
        assert!(answer.stderr.contains(text), "{args:?}: {answer:?}");
    }
}

/// A cluster of OpenShift whose nodes are isolated in this way, with two tenants.
fn cluster(root: &TempDir, mode: &str) -> Server {
    let server = Server::start();
    server.install("network.openshift.io");
    server.write_kubeconfig(&root.path().join("kubeconfig"));
    server.put(json!({ "kind": "ClusterNetwork", "apiVersion": "network.openshift.io/v1", "metadata": { "name": "default" },
        "clusterNetworks": [{ "CIDR": "10.128.0.0/14", "hostSubnetLength": 9 }], "pluginName": format!("redhat/openshift-ovs-{mode}") }));
    for (name, netid) in [("blue", 20), ("red", 30)] {
        put_tenant(&server, name, netid);
    }
    server
}

fn put_tenant(server: &Server, name: &str, netid: u32) {
    server.put(
        json!({ "kind": "NetNamespace", "apiVersion": "network.openshift.io/v1", "metadata": { "name": name },
        "netname": name, "netid": netid }),
    );
}

fn requested(server: &Server, name: &str) -> Option<String> {
    server.annotation("NetNamespace.network.openshift.io", "", name, CHANGE_ANNOTATION)
}

#[test]
fn in_the_kubernetes_api_a_change_is_requested_and_its_end_awaited() {
    // kubernetes.md section 6.5, K122
    let root = tempfile::tempdir().unwrap();
    let server = cluster(&root, "multitenant");
    let store = format!("kubernetes:{}", root.path().join("kubeconfig").display());
    let joined = std::thread::scope(|scope| {
        let command = scope.spawn(|| run(&root, &["join", "red", "blue", "--store", &store, "-o", "json"]));
        eventually(TIMEOUT, || requested(&server, "red").as_deref() == Some("join:blue"));
        assert!(!command.is_finished());
        // What the only writer does.
        put_tenant(&server, "red", 20);
        command.join().unwrap()
    });
    assert_eq!(joined.status, 0, "{joined:?}");
    assert_eq!(joined.result()["netid"], 20);
    assert_eq!(joined.result()["shared_with"], json!(["blue"]));

    for (args, reason) in [
        (&["create", "green"][..], "comes and goes with its namespace"),
        (&["delete", "red"], "comes and goes with its namespace"),
        (&["join", "red", "green"], "there is no NetNamespace green"),
        (&["isolate", "default"], "stays global"),
        (&["global", "green"], "green"),
    ] {
        let answer = run(&root, &[args, &["--store", &store]].concat());
        assert_eq!(answer.status, 1, "{args:?}: {answer:?}");
        assert!(answer.stderr.contains(reason), "{args:?}: {answer:?}");
    }
    assert_eq!(requested(&server, "red"), None);
    let server = cluster(&root, "networkpolicy");
    let answer = run(&root, &["global", "red", "--store", &store]);
    assert!(answer.status == 1 && answer.stderr.contains("network policies"), "{answer:?}");
    assert_eq!(requested(&server, "red"), None);
}
