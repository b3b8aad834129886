//! Agents and plugins on a real API server: the test makes nodes and pods as kubelet and the scheduler would.

mod calico;
mod explain;
mod gaps;
mod go_calico;
mod native;
mod node_ranges;
mod policies;
mod rights;

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use russet_linux::NetNs;
use russet_testkit::kubernetes::{ApiServer, Options, Release};
use russet_testkit::{eventually, let_pass};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::fabric::Fabric;
use crate::node::{Answer, TIMEOUT, TestNode, TestPod};

/// An API server on the hub of a network, and the network's nodes.
pub struct Cluster {
    pub fabric: Fabric,
    pub server: ApiServer,
    hub: NetNs,
    files: TempDir,
    nodes: u8,
}

/// The group of Calico's resources in these tests.
pub const GROUP: &str = "/apis/crd.projectcalico.org/v1";
/// Where ClusterNetworkPolicies are.
pub const CLUSTER_POLICIES: &str = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies";
/// What the allocator reads and writes.
const ALLOCATORS: [&str; 3] = [" ipamblocks", " ipamhandles", " blockaffinities"];
/// How long operations that wait for the API server may take after it is back: their pauses double up to 30 s.
const RECOVERY: Duration = Duration::from_secs(90);
/// How long the API server takes to serve a resource whose definition it has got.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);

/// The definitions of Calico's resources.
pub fn definitions() -> Vec<Value> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/kubernetes/crds");
    let files = std::fs::read_dir(directory).unwrap();
    files
        .map(|file| russet_kube::yaml::from_slice(&std::fs::read(file.unwrap().path()).unwrap()).unwrap())
        .collect()
}

/// The definition of ClusterNetworkPolicies, with any spec and the conditions of the API (meta/v1 `Condition`).
pub fn cluster_policy_definition() -> Value {
    let text = |pattern: &str, max: u32| json!({ "type": "string", "pattern": pattern, "maxLength": max });
    let name = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
    let kind = format!(r"^({name}(\.{name})*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$");
    let condition = json!({ "type": "object",
        "required": ["type", "status", "lastTransitionTime", "reason", "message"],
        "properties": { "type": text(&kind, 316), "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
            "observedGeneration": { "type": "integer", "format": "int64", "minimum": 0 },
            "lastTransitionTime": { "type": "string", "format": "date-time" },
            "reason": text("^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$", 1024),
            "message": { "type": "string", "maxLength": 32768 } } });
    let conditions = json!({ "type": "array", "items": condition,
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"] });
    let schema = json!({ "type": "object", "required": ["spec"], "properties": {
        "spec": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
        "status": { "type": "object", "required": ["conditions"], "properties": { "conditions": conditions } } } });
    json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "clusternetworkpolicies.policy.networking.k8s.io",
            "annotations": { "api-approved.kubernetes.io": "unapproved, a part of it for tests" } },
        "spec": { "group": "policy.networking.k8s.io", "scope": "Cluster",
            "names": { "kind": "ClusterNetworkPolicy", "listKind": "ClusterNetworkPolicyList",
                "plural": "clusternetworkpolicies", "singular": "clusternetworkpolicy" },
            "versions": [{ "name": "v1alpha2", "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": schema } }] } })
}

/// A ClusterNetworkPolicy that lets all pods reach a peer.
pub fn cluster_policy(name: &str, peer: &Value) -> Value {
    json!({ "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": { "name": name },
        "spec": { "tier": "Admin", "priority": 1, "subject": { "namespaces": {} },
            "egress": [{ "action": "Accept", "to": [peer] }] } })
}

/// Makes the definition, and the policy as soon as it is served.
pub fn create_cluster_policy(server: &ApiServer, policy: &Value) {
    server.create(&[cluster_policy_definition()]);
    eventually(TIMEOUT, || {
        let_pass(BETWEEN_LOOKS);
        server.request("POST", CLUSTER_POLICIES, policy).0 == 201
    });
}

// === impl Cluster ===

impl Cluster {
    /// A cluster with Calico's resources, and without nodes.
    pub fn new() -> Self {
        let cluster = Self::without_definitions();
        cluster.with(|server| server.create(&definitions()));
        eventually(TIMEOUT, || {
            let_pass(BETWEEN_LOOKS);
            let served = ["ippools", "ipamblocks", "ipamhandles", "blockaffinities", "clusterinformations"];
            served.iter().all(|plural| {
                cluster.with(|server| server.request("GET", &format!("{GROUP}/{plural}"), &Value::Null)).0
                    == 200
            })
        });
        cluster
    }

    /// A cluster without Calico's resources and without nodes.
    pub fn without_definitions() -> Self {
        let fabric = Fabric::new();
        let hub = NetNs::open_named(fabric.hub()).unwrap();
        let options = Options { address: "10.77.0.1".to_owned(), ..Options::new(Release::Newest) };
        let server = hub.with(|| options.start()).unwrap();
        let cluster = Self { fabric, server, hub, files: tempfile::tempdir().unwrap(), nodes: 0 };
        let kubeconfig = cluster.with(ApiServer::admin_kubeconfig);
        std::fs::copy(kubeconfig, cluster.kubeconfig()).unwrap();
        cluster
    }

    /// The kubeconfig of its administrator.
    pub fn kubeconfig(&self) -> std::path::PathBuf {
        self.files.path().join("kubeconfig")
    }

    /// Its location as a store.
    pub fn store(&self) -> String {
        format!("kubernetes:{}", self.kubeconfig().display())
    }

    /// Calls the API server, which only the network's namespaces reach.
    pub fn with<T>(&self, call: impl FnOnce(&ApiServer) -> T) -> T {
        self.hub.with(|| call(&self.server)).unwrap()
    }

    /// Whether the API server is ready.
    pub fn serves(&self) -> bool {
        self.with(|server| server.request("GET", "/readyz", &Value::Null)).0 == 200
    }

    /// Ends the API server as a crash would.
    pub fn kill_server(&mut self) {
        self.server.kill();
    }

    /// Starts the API server again, and waits until it is ready.
    pub fn start_server(&mut self) {
        let (hub, server) = (&self.hub, &mut self.server);
        hub.with(|| server.start()).unwrap();
    }

    /// A machine of the network without an agent; its Node is yet to be made.
    pub fn machine(&mut self, name: &str, args: &[&str]) -> TestNode {
        let mut node = self.fabric.node_with_own_store(name);
        node.agent_args.extend(["--store".to_owned(), self.store()]);
        node.agent_args.extend(args.iter().map(ToString::to_string));
        self.nodes += 1;
        node
    }

    /// The same; its agent gets its settings in another way than by arguments, its store among them.
    pub fn machine_without_arguments(&mut self) -> TestNode {
        self.nodes += 1;
        self.fabric.node_without_arguments()
    }

    /// The Node of the machine that was made last, as its kubelet registers it.
    pub fn create_node(&self, name: &str) {
        self.create_node_with(name, json!({}));
    }

    /// The same with a `spec`, as kube-controller-manager fills it.
    pub fn create_node_with(&self, name: &str, spec: Value) {
        let addresses = json!([{ "type": "InternalIP", "address": format!("10.77.0.{}", 10 + self.nodes) }]);
        let status = json!({ "addresses": addresses });
        let node = json!({ "kind": "Node", "metadata": { "name": name }, "spec": spec, "status": status });
        self.with(|server| server.create(&[node]));
    }

    /// A machine with its Node and a running agent.
    pub fn node(&mut self, name: &str, args: &[&str]) -> TestNode {
        let mut node = self.machine(name, args);
        self.create_node(name);
        node.start_agent();
        node
    }

    /// A pod that the scheduler has bound to a node.
    pub fn create_pod(&self, name: &str, node: &str, annotations: Value) {
        let pod = json!({ "kind": "Pod",
            "metadata": { "name": name, "namespace": "default", "annotations": annotations, "labels": { "app": "web" } },
            "spec": { "nodeName": node, "containers": [{ "name": "web", "image": "web" }] } });
        self.with(|server| server.create(&[pod]));
    }

    /// What kubelet reports of a pod that runs.
    pub fn report_running(&self, name: &str, addresses: &[String]) {
        let all: Vec<Value> = addresses.iter().map(|address| json!({ "ip": address })).collect();
        let status = json!({ "status": { "phase": "Running", "podIP": addresses[0], "podIPs": all } });
        let path = format!("/api/v1/namespaces/default/pods/{name}/status");
        self.with(|server| assert_eq!(server.request("PATCH", &path, &status).0, 200));
    }

    pub fn delete_pod(&self, name: &str) {
        self.with(|server| server.delete(&format!("/api/v1/namespaces/default/pods/{name}")));
    }

    /// A pod's annotations that the plugin writes, without their common beginning.
    pub fn announced(&self, name: &str) -> BTreeMap<String, String> {
        let pod =
            self.with(|server| server.object(&format!("/api/v1/namespaces/default/pods/{name}"))).unwrap();
        let all = pod["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
        let ours = all.iter().filter_map(|(key, value)| {
            Some((key.strip_prefix("cni.projectcalico.org/")?.to_owned(), value.as_str()?.to_owned()))
        });
        ours.collect()
    }

    /// An annotation of a node.
    pub fn node_annotation(&self, node: &str, name: &str) -> Option<String> {
        let node = self.with(|server| server.object(&format!("/api/v1/nodes/{node}"))).unwrap();
        node["metadata"]["annotations"][name].as_str().map(str::to_owned)
    }

    /// The requests for pods, addresses and other data of Calico that a call makes; leases and what else the server counts are left out. Watches that
    /// end meanwhile are no requests.
    pub fn requests_of<T>(&self, call: impl FnOnce() -> T) -> (T, BTreeMap<String, u64>) {
        let before = self.with(ApiServer::requests);
        let done = call();
        let after = self.with(ApiServer::requests);
        let made = after.into_iter().filter_map(|(request, count)| {
            let new = count - before.get(&request).copied().unwrap_or_default();
            let (verb, resource) = request.split_once(' ').unwrap_or_default();
            let kind = resource.split('/').next().unwrap_or_default();
            let counts = [
                "ipamblocks",
                "ipamhandles",
                "blockaffinities",
                "ippools",
                "ipamconfigs",
                "ipreservations",
                "clusterinformations",
                "pods",
                "nodes",
                "namespaces",
            ]
            .contains(&kind);
            (new > 0 && counts && verb != "WATCH").then_some((request, new))
        });
        (done, made.collect())
    }

    /// The condition `NetworkUnavailable` of a node, with its reason.
    pub fn condition(&self, node: &str) -> Option<(String, String)> {
        let node = self.with(|server| server.object(&format!("/api/v1/nodes/{node}"))).unwrap();
        let all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = all.into_iter().find(|condition| condition["type"] == "NetworkUnavailable")?;
        let text = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
        Some((text("status"), text("reason")))
    }

    /// The addresses that pods of a network hold.
    pub fn held(&self, network: &str) -> usize {
        let blocks = self.with(|server| server.object(&format!("{GROUP}/ipamblocks"))).unwrap();
        let all = blocks["items"].as_array().unwrap().iter();
        let attributes = all.flat_map(|block| block["spec"]["attributes"].as_array().unwrap());
        let is_pods = |attribute: &&Value| {
            attribute["handle_id"].as_str().is_some_and(|handle| handle.starts_with(&format!("{network}.")))
        };
        attributes.filter(is_pods).count()
    }

    /// `russet ipam check` of the cluster finds nothing.
    pub fn assert_is_clean(&self, node: &TestNode) {
        let answer = node.russet_inside(&["ipam", "check", "--store", &self.store()]);
        assert_eq!(answer.status, 0, "{}{}", answer.stdout, answer.stderr);
    }
}

/// Calls the plugin for a pod of the namespace `default`, as kubelet's runtime does.
pub fn call(node: &TestNode, verb: &str, pod: &TestPod, name: &str) -> Answer {
    call_with(node, verb, pod, name, &node.config(json!({})))
}

/// The same with a configuration.
pub fn call_with(node: &TestNode, verb: &str, pod: &TestPod, name: &str, config: &Value) -> Answer {
    let (netns, args) = (pod.path().display().to_string(), args_of(pod, name));
    let env = [
        ("CNI_COMMAND", verb),
        ("CNI_CONTAINERID", pod.container.as_str()),
        ("CNI_NETNS", &netns),
        ("CNI_IFNAME", "eth0"),
        ("CNI_ARGS", &args),
    ];
    // The name of the executable says which plugin it is.
    let program = node.path(config["type"].as_str().unwrap());
    match symlink(env!("CARGO_BIN_EXE_russet"), &program) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => panic!("{error}"),
        _ => {}
    }
    let mut command = Command::new(program);
    command.env_clear().env("CNI_PATH", node.root()).envs(env);
    node.output(&mut command, config.to_string())
}

/// Requests beside those of the allocator, whose number its own tests know, as text with their numbers.
pub fn beside_addresses(requests: &BTreeMap<String, u64>) -> Vec<String> {
    let mut others = requests.clone();
    others.retain(|request, _| !ALLOCATORS.iter().any(|kind| request.ends_with(kind)));
    shown(&others)
}

/// All of them as text with their numbers.
pub fn shown(requests: &BTreeMap<String, u64>) -> Vec<String> {
    requests.iter().map(|(request, count)| format!("{request} {count}")).collect()
}

/// `CNI_ARGS` of a pod's sandbox.
pub fn args_of(pod: &TestPod, name: &str) -> String {
    format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={}",
        pod.container
    )
}
