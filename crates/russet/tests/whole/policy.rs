//! `russet explain` and `russet policy` on the files of docs/policy.md, and on the embedded store.

use std::io::Write as _;
use std::process::{Command, Stdio};

use russet_testkit::pages::Page;
use serde_json::Value;

use crate::node::{Answer, TestNode};

/// The documents of the page, and what it shows of each command.
fn page() -> (String, Vec<String>) {
    let blocks = Page::read("docs/policy.md").blocks;
    let of = |info: &str| -> Vec<String> {
        blocks.iter().filter(|block| block.info == info).map(|block| block.text.clone()).collect()
    };
    (of("yaml").remove(0), of(""))
}

fn russet(arguments: &[&str], input: &str) -> Answer {
    let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.env_clear().spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap().into()
}

#[test]
fn the_page_shows_what_the_verbs_print() {
    let (documents, shown) = page();
    assert_eq!(shown.len(), 2);
    for (block, status) in shown.iter().zip([3, 0]) {
        let (line, output) = block.split_once('\n').unwrap();
        let words = line.trim_start_matches("$ russet ").replace("shop.yaml", "-");
        let answer = russet(&words.split(' ').collect::<Vec<_>>(), &documents);
        assert_eq!((answer.stdout.as_str(), answer.status), (output, status), "{line}: {}", answer.stderr);
    }
}

#[test]
fn each_wrong_expectation_is_a_difference_with_its_explanation() {
    let documents = page().0.replace("shop/api   allowed   allowed", "shop/api   denied    allowed");
    let answer = russet(&["policy", "test", "-", "-o", "json"], &documents);
    assert_eq!(answer.status, 3, "{answer:?}");
    let found: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!((&found["expectations"], found["differences"].as_array().unwrap().len()), (&6.into(), 1));
    let difference = &found["differences"][0];
    assert_eq!((&difference["from"], &difference["expected"]), (&"shop/api".into(), &"denied".into()));
    assert_eq!(difference["explanation"]["verdict"], "allowed");
    let text = russet(&["policy", "test", "-"], &documents).stdout;
    assert!(text.starts_with("shop/api -> shop/web tcp/5432: expected denied, is allowed\n"), "{text}");
    assert!(text.ends_with("6 expectations, 1 differences\n"), "{text}");
}

#[test]
fn a_policy_that_cannot_be_read_as_written_is_a_problem() {
    let documents = page().0.replace("{app: api}}}]", "{app: 7}}}]");
    let answer = russet(&["policy", "test", "-"], &documents);
    assert_eq!(answer.status, 3, "{answer:?}");
    assert!(
        answer.stdout.contains("problem: KubernetesNetworkPolicy shop/db-in: spec.ingress[0].from[0]"),
        "{answer:?}"
    );
}

#[test]
fn exit_codes_tell_allowed_denied_failed_and_usage_apart() {
    let documents = page().0;
    for (arguments, status) in [
        (vec!["explain", "shop/api", "shop/db", "-f", "-"], 0),
        (vec!["explain", "shop/web", "shop/db", "-f", "-"], 3),
        (vec!["explain", "shop/none", "shop/db", "-f", "-"], 1),
        (vec!["explain", "shop/web", "shop/api", "-f", "-"], 1),
        (vec!["explain", "shop/api", "shop/db", "-f", "/no/such/file"], 1),
        (vec!["explain", "shop/api", "-f", "-"], 2),
        (vec!["explain", "shop/api", "shop/db", "--proto", "none", "-f", "-"], 2),
        (vec!["explain", "shop/api", "shop/db", "5432", "--proto", "udp", "-f", "-"], 3),
        (vec!["explain", "shop/api", "shop/db", "--root", "/no/such/root"], 1),
        (vec!["explain", "api", "shop/db", "-f", "-"], 2),
        (vec!["explain", "shop/api", "shop/db", "0", "-f", "-"], 2),
    ] {
        let answer = russet(&arguments, &documents);
        assert_eq!(answer.status, status, "{arguments:?} {answer:?}");
    }
    assert_eq!(russet(&["policy", "test", "-"], "").status, 1, "there is no table");
}

#[test]
#[ignore = "root: makes network namespaces"]
fn explain_judges_what_is_wired_by_the_policies_of_the_embedded_store() {
    let mut node = TestNode::start(&[]);
    let pods = [node.pod(), node.pod()];
    let addresses = pods.each_ref().map(|pod| node.add(pod).addresses());
    let [from, to] = pods.each_ref().map(|pod| format!("default/{}", pod.container));
    let ask = |from: &str, to: &str| {
        let answer = node.russet_inside(&["explain", from, to, "80", "-o", "json"]);
        let found: Value = serde_json::from_str(&answer.stdout).unwrap_or_else(|_| panic!("{answer:?}"));
        (answer.status, found)
    };
    for (from, to) in [(&from, &to), (&addresses[0][0], &addresses[1][0])] {
        let (status, found) = ask(from, to);
        assert_eq!((status, &found["findings"]), (0, &Value::Array(Vec::new())), "{found:#}");
        assert_eq!(found["flows"][0]["dst"]["name"], format!("default/{}", pods[1].container));
        assert_eq!(
            found["path"].as_array().unwrap().len() % 4,
            0,
            "interface and verdict of both: {found:#}"
        );
    }
    let key = "/calico/resources/v3/projectcalico.org/globalnetworkpolicies/default.closed";
    let policy = r#"{"kind":"GlobalNetworkPolicy","apiVersion":"projectcalico.org/v3","metadata":{"name":"default.closed"},"spec":{"selector":"all()","types":["Ingress"]}}"#;
    node.store_put(key, policy);
    let (status, found) = ask(&from, &to);
    assert_eq!((status, &found["verdict"]), (3, &"denied".into()), "{found:#}");
    let listed = node.russet_inside(&["policy", "ls", "-o", "json"]);
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(
        (&listed["policies"][0]["kind"], &listed["policies"][0]["pods_here"]),
        (&"GlobalNetworkPolicy".into(), &2.into()),
        "{listed:#}"
    );
    // What this machine knows of another node is what the datastore says.
    let other = r#"{"kind":"Node","apiVersion":"projectcalico.org/v3","metadata":{"name":"other"},"spec":{"bgp":{"ipv4Address":"203.0.113.9/24"}}}"#;
    node.store_put("/calico/resources/v3/projectcalico.org/nodes/other", other);
    let of_node =
        |name: &str| node.russet_inside(&["explain", &from, "203.0.113.9", "80", "--node-name", name]);
    let answer = of_node("other");
    assert_eq!(answer.status, 0, "{answer:?}");
    for line in
        ["path: 203.0.113.9 is node other, by the datastore", "the kernel of node other was not compared"]
    {
        assert!(answer.stdout.contains(line), "{answer:?}");
    }
    assert!(!answer.stdout.contains("in kernel:"), "{answer:?}");
    let unknown = of_node("nowhere");
    assert!(unknown.status == 1 && unknown.stderr.contains("there is no node nowhere"), "{unknown:?}");

    let (status, found) = ask(&from, "203.0.113.1");
    assert_eq!((status, &found["findings"][0]["kind"]), (3, &"route".into()), "{found:#}");
}
