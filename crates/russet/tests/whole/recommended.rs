//! `russet policy recommend` from what an agent has seen, in force on its pods afterwards.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use russet_linux::NetNs;
use russet_testkit::pages::Page;
use russet_testkit::{Process, bound, eventually, eventually_some};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::node::{Answer, TIMEOUT, TestNode};

/// A node with three pods of namespace `shop`, each of which listens.
struct Shop {
    node: TestNode,
    pods: Vec<Pod>,
}

struct Pod {
    name: &'static str,
    netns: NetNs,
    address: SocketAddr,
    listener: TcpListener,
}

const PORT: u16 = 8080;
/// A connection that is denied has no answer in this time.
const SILENT: Duration = Duration::from_secs(1);
const WEB: usize = 0;
const DB: usize = 1;
const IDLE: usize = 2;

// === impl Shop ===

impl Shop {
    fn new() -> Self {
        let mut node = TestNode::start(&[]);
        let pods = ["web", "db", "idle"].map(|name| Pod::on(&mut node, name)).into();
        let shop = Self { node, pods };
        for pod in &shop.pods {
            shop.run("apply", &pod.record().to_string());
        }
        shop
    }

    #[track_caller]
    fn run(&self, verb: &str, document: &str) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args([verb, "-f", "-", "--root"]).arg(self.node.root());
        let answer = self.node.output(&mut command, document);
        assert_eq!(answer.status, 0, "{answer:?}");
    }

    fn reaches(&self, from: usize, to: usize) -> bool {
        let (from, to) = (&self.pods[from], &self.pods[to]);
        let found = from.netns.with(|| TcpStream::connect_timeout(&to.address, SILENT)).unwrap();
        while to.listener.accept().is_ok() {}
        found.is_ok()
    }

    fn recommend(&self, arguments: &[&str]) -> Answer {
        self.node.russet_inside(&[&["policy", "recommend", "-n", "shop"], arguments].concat())
    }

    /// The lines of `russet flows -f`, once both ends of a connection from web to db are among them.
    fn followed(&self) -> String {
        let file = NamedTempFile::new().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args(["flows", "-f", "--last", "0", "-o", "json", "--root"]).arg(self.node.root());
        command.stdout(file.reopen().unwrap());
        let _follower = Process::start(&mut command);
        eventually_some(TIMEOUT, || {
            self.reaches(WEB, DB);
            let text = std::fs::read_to_string(file.path()).unwrap();
            // The last line may not be complete.
            let lines = text.get(..=text.rfind('\n')?)?;
            let is_seen = |direction: &str| {
                lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).any(|flow| {
                    let names = (&flow["source"]["name"], &flow["destination"]["name"]);
                    names == (&"shop/web".into(), &"shop/db".into()) && flow["direction"] == direction
                })
            };
            (is_seen("ingress") && is_seen("egress")).then(|| lines.to_owned())
        })
    }
}

// === impl Pod ===

impl Pod {
    fn on(node: &mut TestNode, name: &'static str) -> Self {
        let pod = node.pod();
        let answer = node.add_named(&pod, "shop", name);
        assert_eq!(answer.status, 0, "{answer:?}");
        let address = answer.addresses().into_iter().find(|address| address.contains('.')).unwrap();
        let address = SocketAddr::new(address.parse().unwrap(), PORT);
        let netns = NetNs::open(pod.path()).unwrap();
        let listener = netns.with(|| bound(|| TcpListener::bind(address))).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { name, netns, address, listener }
    }

    /// Its workload endpoint, with the label `app`.
    fn record(&self) -> Value {
        let name = self.name;
        json!({ "apiVersion": "projectcalico.org/v3", "kind": "WorkloadEndpoint",
            "metadata": { "name": format!("node--a-k8s-{name}-eth0"), "namespace": "shop", "labels": { "app": name } },
            "spec": { "orchestrator": "k8s", "node": "node-a", "pod": name, "endpoint": "eth0",
                "ipNetworks": [format!("{}/32", self.address.ip())], "profiles": ["projectcalico-default-allow"] } })
    }
}

fn policies(answer: &Answer) -> Value {
    let found: Value = serde_json::from_str(&answer.stdout).unwrap_or_else(|_| panic!("{answer:?}"));
    found["policies"].clone()
}

#[test]
#[ignore = "root: makes network namespaces; kernel: nfnetlink_log"]
fn what_an_agent_saw_passes_with_the_recommended_policies_and_nothing_else_does() {
    // policy.md P134
    let shop = Shop::new();
    let mut blocks = Page::read("docs/policy.md").blocks.into_iter();
    let observed = blocks.find(|it| it.info == "yaml" && it.text.contains("observed")).unwrap().text;
    shop.run("apply", &observed);
    let lines = shop.followed();

    // What the agent has in memory.
    let without_observed = ["--window", "1h", "--delete", "NetworkPolicy/shop/observed"];
    let found = shop.recommend(&without_observed);
    assert_eq!(found.status, 0, "{found:?}");
    assert_eq!(found.stdout.matches("kind: \"NetworkPolicy\"").count(), 2, "{found:?}");
    for note in ["the flows are those that this node's agent has in memory", "policy is written, of app=idle"]
    {
        assert!(found.stderr.contains(note), "{found:?}");
    }
    let wanted = policies(&shop.recommend(&[&without_observed[..], &["-o", "json"]].concat()));
    assert!(shop.reaches(IDLE, DB) && shop.reaches(DB, WEB));
    shop.run("apply", &found.stdout);
    shop.run("delete", &observed);
    eventually(TIMEOUT, || !shop.reaches(IDLE, DB));
    eventually(TIMEOUT, || !shop.reaches(DB, WEB));
    assert!(shop.reaches(WEB, DB), "{}", shop.node.log());

    // The same from the collected lines, of which one is older than the window.
    let mut old: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    old["source"] = json!({ "name": "shop/idle", "address": shop.pods[IDLE].address.ip() });
    (old["first"], old["last"]) = ("2020-01-01T00:00:00Z".into(), "2020-01-01T00:00:00Z".into());
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{old}\n{lines}")).unwrap();
    let path = file.path().to_str().unwrap();
    let again = shop.recommend(&["--flows", path, "--window", "7d", "-o", "json"]);
    assert_eq!((again.status, policies(&again)), (0, wanted.clone()), "{again:?}");
    // Without a window the old flow counts: not as what would be denied, because it is by now.
    let all = shop.recommend(&["--flows", path, "-o", "json"]);
    assert!(all.status == 0 && policies(&all) != wanted && all.stdout.contains("idle"), "{all:?}");
}
