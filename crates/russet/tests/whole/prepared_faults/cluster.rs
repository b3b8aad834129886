//! Two nodes on an etcd, a pod on each, and what of their names and addresses differs from run to run.

use std::process::Command;
use std::time::{Duration, SystemTime};

use russet_testkit::eventually;
use serde_json::{Value, json};

use crate::fabric::Fabric;
use crate::node::{Answer, TIMEOUT, TestNode, TestPod};
use crate::peers::FAST;
use crate::printed::Stable;

/// The nodes `node-a` with pod `shop/web` and `node-b` with pod `shop/db`.
pub struct Cluster {
    pub fabric: Fabric,
    pub a: TestNode,
    pub b: TestNode,
    pub web: TestPod,
    pub web_address: String,
    pub db_address: String,
    /// The block of the second node.
    pub db_block: String,
    pub stable: Stable,
}

/// The addresses by which the page shows the pods; the first ones of the blocks are the tunnels'.
pub const WEB: &str = "10.244.1.1";
pub const DB: &str = "10.244.2.1";
/// What the page shows for the blocks.
const BLOCKS: [[u8; 3]; 2] = [[10, 244, 1], [10, 244, 2]];
/// The age of a record that says that its agent is gone: more than three of its intervals.
const OLD: Duration = Duration::from_secs(400);

/// The workload endpoint of a pod, with the label `app`.
fn endpoint(node: &str, pod: &str, address: &str) -> Value {
    let name = format!("{}-k8s-{pod}-eth0", node.replace('-', "--"));
    json!({ "apiVersion": "projectcalico.org/v3", "kind": "WorkloadEndpoint",
        "metadata": { "name": name, "namespace": "shop", "labels": { "app": pod } },
        "spec": { "orchestrator": "k8s", "node": node, "pod": pod, "endpoint": "eth0",
            "ipNetworks": [format!("{address}/32")], "profiles": ["projectcalico-default-allow"] } })
}

/// Attaches the pod `shop/NAME`.
fn attach(node: &TestNode, pod: &TestPod, name: &str) -> String {
    node.add_named(pod, "shop", name).addresses().remove(0)
}

// === impl Cluster ===

impl Cluster {
    /// Starts it, and waits until nothing is wrong.
    pub fn start() -> Self {
        let mut fabric = Fabric::new();
        let [mut a, mut b] = ["node-a", "node-b"].map(|name| fabric.node(name, &FAST));
        a.start_agent();
        b.start_agent();
        let (web, db) = (a.pod(), b.pod());
        let (web_address, db_address) = (attach(&a, &web, "web"), attach(&b, &db, "db"));
        let mut stable = Stable::default();
        // The kernel says one or the other, depending on when it is asked.
        stable.name("No route to host (os error 113)", "no answer to ARP");
        for (node, name) in [(&a, "node-a"), (&b, "node-b")] {
            stable.name(node.root().to_str().unwrap(), "");
            stable.name(format!("/run/netns/{}", node.netns_name()), format!("/run/netns/{name}"));
        }
        for (pod, name) in [(&web, "web"), (&db, "db")] {
            stable.name(pod.path().to_str().unwrap(), format!("/run/netns/{name}"));
            stable.name(pod.container.as_str(), format!("{name}-sandbox"));
        }
        let blocks = ["node-a", "node-b"].map(|name| block(&fabric, name));
        for (cidr, shown) in blocks.iter().zip(BLOCKS) {
            stable.block(cidr, shown);
        }
        let [_, db_block] = blocks;
        let cluster = Self { fabric, a, b, web, web_address, db_address, db_block, stable };
        assert_eq!(cluster.stable.of(&cluster.web_address), format!("{WEB}\n"));
        assert_eq!(cluster.stable.of(&cluster.db_address), format!("{DB}\n"));
        cluster.stored("apply", &endpoint("node-a", "web", &cluster.web_address));
        cluster.stored("apply", &endpoint("node-b", "db", &cluster.db_address));
        eventually(TIMEOUT, || cluster.is_healthy());
        cluster
    }

    /// Each node reaches the other one, and the records of both say so.
    pub fn is_healthy(&self) -> bool {
        let is_reached = |node: &TestNode| {
            let status: Value = json_of(&node.russet_inside(&["status", "-o", "json"]));
            status["peers"]["counts"]["reachable"] == 1
        };
        is_reached(&self.a)
            && is_reached(&self.b)
            && self.a.russet_inside(&["status", "--cluster"]).status == 0
    }

    /// Runs `russet apply` or `russet delete` with a document.
    pub fn stored(&self, verb: &str, document: &Value) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args([verb, "-f", "-", "--root"]).arg(self.a.root());
        let answer = self.a.output(&mut command, document.to_string());
        assert_eq!(answer.status, 0, "{answer:?}");
    }

    /// Whether `shop/web` reaches `shop/db`.
    pub fn reaches(&self) -> bool {
        self.web.pings(&["-W", "1", &self.db_address])
    }

    /// Attaches another pod `shop/NAME` to the first node.
    pub fn pod(&mut self, name: &str) -> TestPod {
        let pod = self.a.pod();
        attach(&self.a, &pod, name);
        pod
    }

    /// Replaces the last record of a node by one that an agent without problems wrote some minutes ago.
    pub fn age_record(&self, node: &str) {
        let key = format!("/russet/health/v1/{node}");
        let mut record = self.fabric.get(&key);
        let at = SystemTime::now() - OLD;
        record["at"] = russet_model::time::rfc3339(at).into();
        record["unreachable"] = json!([]);
        record["reachable"] = 1.into();
        self.fabric.put(&key, &record.to_string());
    }
}

/// The block of a node.
fn block(fabric: &Fabric, node: &str) -> String {
    let keys = fabric.keys(&format!("/calico/ipam/v2/host/{node}/ipv4/block/"));
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys[0].rsplit('/').next().unwrap().replace('-', "/")
}

/// Null if it is no JSON.
pub fn json_of(answer: &Answer) -> Value {
    serde_json::from_str(&answer.stdout).unwrap_or_default()
}
