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
fn what_is_judged_without_http_and_beside_host_endpoints_is_noted() {
    let policy = "---\napiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {name: gets}\n\
                  spec: {selector: app == 'api', ingress: [{action: Allow, protocol: TCP, http: {methods: [GET]}}]}\n";
    let host = "---\napiVersion: projectcalico.org/v3\nkind: HostEndpoint\nmetadata: {name: h1, labels: {host: h1}}\n\
                spec: {node: n1, interfaceName: eth0, expectedIPs: [192.0.2.1]}\n";
    let documents = [&page().0, policy, host].concat();
    let ask = |to: &str| {
        let answer = russet(&["explain", "shop/web", to, "80", "-f", "-", "-o", "json"], &documents);
        let found: Value = serde_json::from_str(&answer.stdout).unwrap_or_else(|_| panic!("{answer:?}"));
        (answer.status, found["flows"][0]["notes"].clone())
    };
    let (status, notes) = ask("shop/api");
    let http =
        "http not enforced: spec.ingress[0] of GlobalNetworkPolicy gets allows this by its other members";
    assert!(status == 0 && notes[0].as_str().unwrap().starts_with(http), "{notes}");
    assert_eq!(notes.as_array().unwrap().len(), 1, "{notes}");
    let (_, notes) = ask("192.0.2.1");
    assert!(notes[0].as_str().unwrap().contains("HostEndpoint h1 of node n1 (interface eth0)"), "{notes}");
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

/// A record of `russet flows -f -o json`.
fn record(source: (&str, &str), destination: (&str, &str), service: (&str, u16)) -> Value {
    let end = |(name, address): (&str, &str)| serde_json::json!({ "name": name, "address": address });
    let (proto, port) = service;
    let is_ping = proto == "icmp";
    serde_json::json!({"id": 1, "first": "2026-11-27T15:00:00Z", "last": "2026-11-27T16:00:00Z", "packets": 3,
        "verdict": "allowed", "direction": "ingress", "source": end(source), "destination": end(destination),
        "proto": proto, "port": (!is_ping).then_some(port), "icmp": is_ping.then_some("8/0"),
        "policies": [], "rule": null, "reason": "", "pending": null})
}

#[test]
fn the_page_shows_what_a_recommendation_prints() {
    let blocks = Page::read("docs/policy.md").blocks;
    let of = |info: &str, front: &str| -> String {
        let found = blocks.iter().find(|block| block.info == info && block.text.starts_with(front));
        found.map(|block| block.text.clone()).unwrap()
    };
    let directory = tempfile::tempdir().unwrap();
    let (cluster, flows) = (directory.path().join("shop.yaml"), directory.path().join("flows.json"));
    std::fs::write(&cluster, page().0).unwrap();
    std::fs::write(&flows, of("json", "{")).unwrap();
    let shown = of("text", "$ russet policy recommend");
    let (line, output) = shown.split_once('\n').unwrap();
    let words = line.trim_start_matches("$ russet ");
    let words = words.replace("shop.yaml", cluster.to_str().unwrap());
    let words = words.replace("flows.json", flows.to_str().unwrap());
    let answer = russet(&words.split(' ').collect::<Vec<_>>(), "");
    assert_eq!((answer.stdout.as_str(), answer.status), (output, 0), "{answer:?}");
    assert!(
        answer.stderr.contains("note: the flows are of 23h20m only, from 2026-11-27T15:00:00Z"),
        "{answer:?}"
    );
}

/// An embedded store with three pods, and a file of flows.
struct Shop {
    directory: tempfile::TempDir,
}

const WEB: (&str, &str) = ("shop/web", "10.20.0.7");
const DB: (&str, &str) = ("shop/db", "10.20.0.8");

// === impl Shop ===

impl Shop {
    fn new() -> Self {
        let shop = Self { directory: tempfile::tempdir().unwrap() };
        let endpoint = |(pod, last): (&str, u8)| {
            format!(
                "---\napiVersion: projectcalico.org/v3\nkind: WorkloadEndpoint\n\
                 metadata: {{name: n1-k8s-{pod}-eth0, namespace: shop, labels: {{app: {pod}, projectcalico.org/namespace: shop, projectcalico.org/orchestrator: k8s}}}}\n\
                 spec: {{orchestrator: k8s, node: n1, pod: {pod}, endpoint: eth0, ipNetworks: [10.20.0.{last}/32], interfaceName: cali1, profiles: [kns.shop]}}\n"
            )
        };
        let profile = "---\napiVersion: projectcalico.org/v3\nkind: Profile\nmetadata: {name: kns.shop}\n\
                       spec: {ingress: [{action: Allow}], egress: [{action: Allow}]}\n";
        let endpoints: String = [("web", 7), ("db", 8), ("idle", 9)].map(endpoint).concat();
        shop.apply(&format!("{profile}{endpoints}"));
        shop
    }

    fn run(&self, arguments: &[&str], input: &str) -> Answer {
        let root = self.directory.path().to_str().unwrap();
        russet(&[arguments, &["--root", root]].concat(), input)
    }

    fn apply(&self, text: &str) {
        let answer = self.run(&["apply", "-f", "-"], text);
        assert_eq!(answer.status, 0, "{answer:?}");
    }

    fn write(&self, flows: &str) {
        std::fs::write(self.directory.path().join("flows.json"), flows).unwrap();
    }

    fn recommend(&self, namespace: &str, more: &[&str]) -> Answer {
        let file = self.directory.path().join("flows.json");
        let verb = ["policy", "recommend", "-n", namespace, "--flows", file.to_str().unwrap()];
        self.run(&[&verb, more].concat(), "")
    }

    fn verdict(&self, from: &str, to: &str) -> Value {
        let answer = self.run(&["explain", from, to, "5432", "-o", "json"], "");
        serde_json::from_str::<Value>(&answer.stdout).unwrap()["verdict"].clone()
    }
}

#[test]
fn a_recommendation_from_a_file_of_flows_is_applied_to_the_embedded_store_and_a_second_run_is_the_same() {
    let shop = Shop::new();
    let to_web = record(("203.0.113.9", "203.0.113.9"), WEB, ("tcp", 80));
    shop.write(&format!("{}\n{to_web}\n", record(WEB, DB, ("tcp", 5432))));
    let first = shop.recommend("shop", &[]);
    assert_eq!(first.status, 0, "{first:?}");
    assert_eq!(first.stdout.matches("kind: \"NetworkPolicy\"").count(), 2, "{first:?}");
    for note in ["the flows are of 1h only", "no policy is written, of app=idle of namespace shop"] {
        assert!(first.stderr.contains(note), "{first:?}");
    }
    assert_eq!(shop.verdict("shop/idle", "shop/db"), "allowed");
    shop.apply(&first.stdout);
    let second = shop.recommend("shop", &[]);
    assert_eq!((second.status, &second.stdout), (0, &first.stdout), "{second:?}");
    assert_eq!(shop.verdict("shop/web", "shop/db"), "allowed");
    assert_eq!(shop.verdict("shop/db", "shop/web"), "denied");
    assert_eq!(shop.verdict("shop/idle", "shop/db"), "denied");
}

#[test]
fn a_recommendation_that_would_deny_what_was_seen_is_not_printed() {
    let shop = Shop::new();
    let flow = record(WEB, DB, ("tcp", 5432));
    shop.write(&format!("{flow}\n{}\n", record(WEB, DB, ("icmp", 0))));
    let answer = shop.recommend("shop", &[]);
    assert_eq!((answer.status, answer.stdout.as_str()), (3, ""), "{answer:?}");
    assert!(answer.stderr.contains("would be denied: shop/web -> shop/db icmp\n"), "{answer:?}");
    let answer = shop.recommend("shop", &["--despite-denied"]);
    assert!(answer.status == 3 && answer.stdout.contains("port: 5432"), "{answer:?}");
    let found: Value = serde_json::from_str(&shop.recommend("shop", &["-o", "json"]).stdout).unwrap();
    assert_eq!(
        (&found["denied"][0], &found["policies"]),
        (&"shop/web -> shop/db icmp".into(), &Value::Array(vec![]))
    );

    // A policy that allows everything hides that, unless it is judged as if it was deleted.
    let observed = Page::read("docs/policy.md").blocks.into_iter();
    let observed = observed.filter(|block| block.info == "yaml").find(|it| it.text.contains("observed"));
    shop.apply(&observed.unwrap().text);
    assert_eq!(shop.recommend("shop", &[]).status, 0);
    assert_eq!(shop.recommend("shop", &["--delete", "NetworkPolicy/shop/observed"]).status, 3);
    assert_eq!(shop.recommend("shop", &["--delete", "NetworkPolicy/shop/none"]).status, 1);

    shop.write(&format!("{flow}\n{{\"id\":"));
    let answer = shop.recommend("shop", &[]);
    assert!(answer.status == 1 && answer.stderr.contains("flows.json, line 2: "), "{answer:?}");
    shop.write(&flow.to_string());
    let answer = shop.recommend("bank", &[]);
    assert!(answer.status == 1 && answer.stderr.contains("no allowed flow of namespace bank"), "{answer:?}");
    assert_eq!(shop.run(&["policy", "recommend"], "").status, 2);
    let both = ["policy", "recommend", "-A", "--flows", "-", "-f", "-"];
    let answer = shop.run(&both, "");
    assert!(answer.status == 2 && answer.stderr.contains("cannot both be standard input"), "{answer:?}");
}

#[test]
fn flows_with_pods_that_are_gone_are_named_and_without_any_policy_there_is_an_error() {
    let shop = Shop::new();
    let job = record(("shop/job-x2x7k", "10.20.0.99"), DB, ("tcp", 5432));
    shop.write(&job.to_string());
    let answer = shop.recommend("shop", &[]);
    assert_eq!((answer.status, answer.stdout.as_str()), (1, ""), "{answer:?}");
    for line in
        ["note: only flows with pods that are gone were seen", "no pod of namespace shop gets a policy"]
    {
        assert!(answer.stderr.contains(line), "{answer:?}");
    }
    shop.write(&format!("{job}\n{}", record(WEB, DB, ("tcp", 5432))));
    let answer = shop.recommend("shop", &[]);
    assert_eq!((answer.status, answer.stdout.as_str()), (3, ""), "{answer:?}");
    let line = "cannot be judged, because a pod is gone: shop/job-x2x7k -> shop/db tcp/5432\n";
    assert!(answer.stderr.contains(line), "{answer:?}");
    let answer = shop.recommend("shop", &["-o", "json", "--despite-denied"]);
    let found: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!(
        (answer.status, &found["unjudged"][0], found["policies"].as_array().unwrap().len()),
        (3, &"shop/job-x2x7k -> shop/db tcp/5432".into(), 2)
    );
}

#[test]
fn a_flow_that_was_denied_last_counts_if_policies_allow_it_now() {
    let shop = Shop::new();
    let mut denied = record(WEB, DB, ("tcp", 5432));
    shop.write(&denied.to_string());
    let wanted = shop.recommend("shop", &["-o", "json"]);
    denied["verdict"] = "denied".into();
    denied["last"] = "2026-11-27T17:00:00Z".into();
    shop.write(&format!("{}\n{denied}", record(WEB, DB, ("tcp", 5432))));
    let found = shop.recommend("shop", &["-o", "json"]);
    let policies =
        |answer: &Answer| serde_json::from_str::<Value>(&answer.stdout).unwrap()["policies"].clone();
    assert_eq!((found.status, policies(&found)), (0, policies(&wanted)), "{found:?}");
    shop.apply(
        "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: closed, namespace: shop}, \
         spec: {podSelector: {}, policyTypes: [Ingress]}}",
    );
    let found = shop.recommend("shop", &[]);
    assert!(found.status == 1 && found.stderr.contains("no allowed flow of namespace shop"), "{found:?}");
}
