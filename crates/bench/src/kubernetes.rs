//! The worker of `cargo xtask bench kubernetes`: a test API server with a large cluster on 127.0.0.1 of
//! the calling process's network namespace. It answers a line of standard input with a line of JSON:
//!
//! * `fill NODES PODS`: a cluster of that size; its pods are on all nodes alike
//! * `claim NUMBER`: the node of that number claims one more block
//! * `churn PER_SECOND SECONDS`: that many pods of all nodes change each second, and the nodes' kubelets
//!   report as often as real ones do
//! * `requests`: how many requests of each kind were seen
//! * `kubeconfig PATH`: writes a kubeconfig

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use russet_kube::testing::Server;
use serde_json::{Value, json};

use crate::{Result, answer_lines};

/// The group of Calico's resource definitions.
const GROUP: &str = "crd.projectcalico.org";
/// The node that is measured.
const OWN: usize = 0;
/// A kubelet reports every 5 minutes if nothing changes (kubernetes.md section 4.4).
const HEARTBEAT: Duration = Duration::from_secs(300);

struct Cluster {
    server: Server,
    nodes: usize,
    pods: usize,
}

/// Serves until the input ends.
pub fn run() -> Result<()> {
    let mut cluster = Cluster { server: Server::start(), nodes: 0, pods: 0 };
    cluster.server.install(GROUP);
    answer_lines(|line| cluster.answer(line))
}

// === impl Cluster ===

impl Cluster {
    fn answer(&mut self, line: &str) -> Result<Value> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["fill", nodes, pods] => self.fill(nodes.parse()?, pods.parse()?),
            ["claim", number] => self.server.put(affinity(number.parse()?, 1)),
            ["churn", per_second, seconds] => self.churn(per_second.parse()?, seconds.parse()?),
            ["requests"] => return Ok(self.requests()),
            ["kubeconfig", path] => self.server.write_kubeconfig(Path::new(path)),
            _ => return Err(format!("unknown request {line:?}").into()),
        }
        Ok(json!({}))
    }

    fn fill(&mut self, nodes: usize, pods: usize) {
        (self.nodes, self.pods) = (nodes, pods);
        let pool = json!({ "cidr": "10.0.0.0/8", "ipipMode": "Never", "vxlanMode": "Always", "natOutgoing": true, "blockSize": 26 });
        self.server.put(custom("IPPool", "pool", &json!({}), &pool));
        let ready = json!({ "clusterGUID": "bench", "datastoreReady": true });
        self.server.put(custom("ClusterInformation", "default", &json!({}), &ready));
        (0..nodes).for_each(|number| self.server.put(node(number, 0)));
        (OWN + 1..nodes).for_each(|number| self.server.put(affinity(number, 0)));
        (0..pods).for_each(|number| self.server.put(pod(number, nodes, 0)));
    }

    /// Pods and nodes change at even distances.
    fn churn(&self, per_second: u32, seconds: u64) {
        let (begun, length) = (Instant::now(), Duration::from_secs(seconds));
        let nodes_per_second = self.nodes as f64 / HEARTBEAT.as_secs_f64();
        let (mut pods, mut nodes) = (0, 0);
        while begun.elapsed() < length {
            let passed = begun.elapsed().as_secs_f64();
            while f64::from(pods) < passed * f64::from(per_second) {
                // A prime far from the number of nodes, so that each change is on another one.
                let number = pods as usize * 7919 % self.pods.max(1);
                self.server.put(pod(number, self.nodes, pods + 1));
                pods += 1;
            }
            while f64::from(nodes) < passed * nodes_per_second {
                let number = nodes as usize % self.nodes;
                self.server.put(node(number, nodes + 1));
                nodes += 1;
            }
            pause();
        }
    }

    fn requests(&self) -> Value {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for seen in self.server.seen() {
            let path = seen.path.split('?').next().unwrap_or_default().to_owned();
            let verb = if seen.path.contains("watch=true") { "WATCH" } else { &seen.method };
            *counts.entry(format!("{verb} {path}")).or_default() += 1;
        }
        json!(counts)
    }
}

#[expect(clippy::disallowed_methods, reason = "changes come at a rate, and no event causes them")]
fn pause() {
    std::thread::sleep(Duration::from_millis(2));
}

fn custom(kind: &str, name: &str, metadata: &Value, spec: &Value) -> Value {
    let mut object = json!({ "apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": { "name": name }, "spec": spec });
    for (member, value) in metadata.as_object().into_iter().flatten() {
        object["metadata"][member] = value.clone();
    }
    object
}

fn node_name(number: usize) -> String {
    format!("node-{number}")
}

/// Addresses of nodes are from 172.16.0.0/12, of their tunnels from their first blocks. The node that
/// is measured finds its own.
fn node(number: usize, heartbeat: u32) -> Value {
    let (high, low) = (number >> 8, number & 0xff);
    let address = format!("172.16.{high}.{low}");
    let conditions: Vec<Value> = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]
        .iter()
        .map(|kind| json!({ "type": kind, "status": if *kind == "Ready" { "True" } else { "False" },
            "lastHeartbeatTime": format!("2026-01-02T03:{:02}:{:02}Z", heartbeat / 60 % 60, heartbeat % 60),
            "lastTransitionTime": "2026-01-02T03:04:05Z", "reason": format!("Kubelet{kind}"), "message": "kubelet is posting its status" }))
        .collect();
    // Kubelets list 50 images, which is most of a Node object.
    let images: Vec<Value> = (0..50)
        .map(|image| json!({ "names": [format!("registry.example/team/image-{image}@sha256:{image:064x}")], "sizeBytes": 123_456_789 }))
        .collect();
    let mut annotations = json!({ "volumes.kubernetes.io/controller-managed-attach-detach": "true" });
    if number != OWN {
        annotations["projectcalico.org/IPv4Address"] = json!(format!("{address}/12"));
        annotations["projectcalico.org/IPv4VXLANTunnelAddr"] = json!(block_address(number, 0).0);
    }
    json!({ "apiVersion": "v1", "kind": "Node",
        "metadata": { "name": node_name(number), "annotations": annotations,
            "labels": { "kubernetes.io/hostname": node_name(number), "kubernetes.io/os": "linux", "topology.kubernetes.io/zone": "z" } },
        "spec": {}, "status": { "addresses": [{ "type": "InternalIP", "address": address }], "conditions": conditions, "images": images } })
}

/// The first address of a node's block, and the block; `more` is 0 for its first one.
fn block_address(number: usize, more: usize) -> (String, String) {
    let block = number * 2 + more;
    let address = format!("10.{}.{}.{}", 16 + (block >> 10), block >> 2 & 0xff, (block & 3) << 6);
    (address.clone(), format!("{address}/26"))
}

fn affinity(number: usize, more: usize) -> Value {
    let (node, (_, cidr)) = (node_name(number), block_address(number, more));
    let name = format!("{node}-{}", cidr.replace(['.', '/'], "-"));
    let spec =
        json!({ "cidr": cidr, "node": node, "state": "confirmed", "deleted": "false", "type": "host" });
    custom("BlockAffinity", &name, &json!({}), &spec)
}

fn pod(number: usize, nodes: usize, change: u32) -> Value {
    let name = format!("deployment-{}-{number:07x}", number / 100);
    json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": format!("team-{}", number % 200), "labels": { "app": format!("app-{}", number / 100), "change": change.to_string() } },
        "spec": { "nodeName": node_name(number % nodes.max(1)), "serviceAccountName": "default", "containers": [{ "name": "main", "image": "registry.example/team/image" }] },
        "status": { "phase": "Running", "podIPs": [{ "ip": block_address(number % nodes.max(1), 0).0 }] } })
}
