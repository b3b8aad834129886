//! A cluster with Russet's image on three nodes, and what tests ask of it.

use std::path::Path;
use std::time::{Duration, Instant};

use russet_testkit::kubernetes::{Cluster, Node, Release};
use russet_testkit::{eventually, http_get, image, in_new_netns, let_pass};
use serde_json::{Value, json};

/// A cluster with the times that its steps took.
pub struct Lab {
    pub cluster: Cluster,
    began: Instant,
}

/// A running pod of the test's own image, which serves on [`PORT`].
#[derive(Debug, Clone)]
pub struct Pod {
    pub name: String,
    pub node: String,
    pub address: String,
}

/// A raised limit of the kernel's, which gets its old value when this is dropped.
struct NeighbourLimit(String);

/// All namespaces share the kernel's table of neighbours, and only the first one shows its limit. With flannel each pod has an entry for each other one of its node: 100 pods
/// on three nodes have more than the kernel's 1,024.
const NEIGHBOURS: &str = "/proc/sys/net/ipv4/neigh/default/gc_thresh3";
/// Longest wait for a step of a cluster on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(240);
/// Pause between looks that are requests to the API server.
pub const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
/// Where pods serve.
pub const PORT: u16 = 8080;

/// Runs `test` in a cluster of three nodes that have Russet's image and no network.
pub fn in_lab(test: impl FnOnce(Lab) + Send) {
    let _limit = NeighbourLimit::raise();
    in_new_netns(|| {
        let directory = tempfile::tempdir().unwrap();
        let image = image::russet(directory.path());
        let mut lab = Lab { cluster: Cluster::start(Release::Older, &[&image]), began: Instant::now() };
        (0..3).for_each(|_| _ = lab.cluster.add_node(|_| {}));
        lab.report("API server ready -> three kubelets started");
        test(lab);
    });
}

/// A manifest of packaging/kubernetes.
pub fn manifest(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/kubernetes").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()))
}

/// A Deployment of the test's pods, which are ready when they serve.
fn deployment(name: &str, replicas: usize) -> Value {
    let probe = |path: &str| json!({ "httpGet": { "path": path, "port": PORT }, "periodSeconds": 1 });
    let container = json!({
        "name": "pod", "image": image::POD, "imagePullPolicy": "Never", "args": ["serve", PORT.to_string()],
        "readinessProbe": probe("/ready"), "livenessProbe": probe("/name"),
    });
    let spread = json!({ "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule", "nodeTaintsPolicy": "Honor",
        "labelSelector": { "matchLabels": { "app": name } } });
    let spec = json!({ "terminationGracePeriodSeconds": 1, "containers": [container], "topologySpreadConstraints": [spread] });
    json!({ "kind": "Deployment", "apiVersion": "apps/v1", "metadata": { "name": name },
        "spec": { "replicas": replicas, "selector": { "matchLabels": { "app": name } },
            "template": { "metadata": { "labels": { "app": name } }, "spec": spec } } })
}

/// The body of the answer to a request.
pub fn answer((address, port): (&str, u16), question: &str) -> std::io::Result<String> {
    let answer = http_get((address, port), question)?;
    Ok(answer.split_once("\r\n\r\n").unwrap_or_default().1.to_owned())
}

// === impl NeighbourLimit ===

impl NeighbourLimit {
    fn raise() -> Self {
        let before = std::fs::read_to_string(NEIGHBOURS).unwrap();
        std::fs::write(NEIGHBOURS, "16384").unwrap();
        Self(before)
    }
}

impl Drop for NeighbourLimit {
    fn drop(&mut self) {
        let _ = std::fs::write(NEIGHBOURS, &self.0);
    }
}

// === impl Lab ===

impl Lab {
    /// Begins to measure a step.
    pub fn begin(&mut self) {
        self.began = Instant::now();
    }

    /// Prints how long a step took, and begins the next.
    pub fn report(&mut self, step: &str) {
        println!("{:7.1} s  {step}", self.began.elapsed().as_secs_f64());
        self.begin();
    }

    pub fn node(&self, name: &str) -> &Node {
        self.cluster.nodes.iter().find(|node| node.name == name).unwrap()
    }

    pub fn wait_for_nodes(&self) {
        let names: Vec<String> =
            self.cluster.nodes.iter().map(|node| format!("node/{}", node.name)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.cluster.wait(TIMEOUT, "create", &names);
        self.cluster.wait(TIMEOUT, "condition=Ready", &names);
    }

    /// Makes a Deployment of pods, or changes their number, and waits until all are ready. They are sorted by node.
    pub fn pods(&self, name: &str, replicas: usize) -> Vec<Pod> {
        self.cluster.apply(&deployment(name, replicas).to_string());
        self.rolled_out(&format!("deployment/{name}"), "default");
        let path = format!("/api/v1/namespaces/default/pods?labelSelector=app%3D{name}");
        let mut found = Vec::new();
        eventually(TIMEOUT, || {
            found = self.objects(&path).iter().filter_map(Pod::read).collect();
            found.len() == replicas
        });
        found.sort_by(|one: &Pod, other| (&one.node, &one.name).cmp(&(&other.node, &other.name)));
        found
    }

    pub fn rolled_out(&self, what: &str, namespace: &str) {
        let timeout = format!("--timeout={}s", TIMEOUT.as_secs());
        self.cluster.kubectl(&["rollout", "status", what, "-n", namespace, &timeout]);
    }

    /// The objects of a list.
    pub fn objects(&self, path: &str) -> Vec<Value> {
        let_pass(BETWEEN_LOOKS);
        let list = self.cluster.server.object(path).unwrap();
        list["items"].as_array().unwrap().clone()
    }

    /// What a pod answers to a request from its own node.
    pub fn ask(&self, pod: &Pod, question: &str) -> String {
        self.ask_from(self.node(&pod.node), pod, question)
    }

    /// The same from another node.
    pub fn ask_from(&self, node: &Node, pod: &Pod, question: &str) -> String {
        let answer = node.machine.inside(|| answer((&pod.address, PORT), question));
        answer.unwrap_or_else(|error| panic!("{question} of {pod:?} from {}: {error}", node.name))
    }

    /// Each pod reaches each other one, and itself, and knows it by its name; each node reaches each pod.
    #[track_caller]
    pub fn assert_all_reach_all(&self, pods: &[Pod]) {
        let targets: Vec<String> = pods.iter().map(|pod| format!("{}:{PORT}", pod.address)).collect();
        let expected: String =
            targets.iter().zip(pods).map(|(at, pod)| format!("{at} {}\n", pod.name)).collect();
        for pod in pods {
            assert_eq!(self.ask(pod, &format!("/reach?{}", targets.join(","))), expected, "from {pod:?}");
            for node in &self.cluster.nodes {
                assert_eq!(self.ask_from(node, pod, "/name"), pod.name, "{pod:?} from {}", node.name);
            }
        }
    }
}

// === impl Pod ===

impl Pod {
    /// None of a pod that ends, or has no address yet.
    fn read(object: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let lives =
            object["metadata"]["deletionTimestamp"].is_null() && object["status"]["phase"] == "Running";
        lives.then_some(())?;
        Some(Self {
            name: text(&object["metadata"]["name"])?,
            node: text(&object["spec"]["nodeName"])?,
            address: text(&object["status"]["podIP"])?,
        })
    }

    /// Its address and port.
    pub fn target(&self) -> String {
        format!("{}:{PORT}", self.address)
    }
}
