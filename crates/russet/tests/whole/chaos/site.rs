//! A node under load: its plugin, run as a runtime runs it, and killed on request.

use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use russet_linux::NetNs;
use russet_testkit::let_pass;
use serde_json::{Value, json};

use crate::configured::Configured;
use crate::fabric::Fabric;
use crate::kubernetes::{Cluster, args_of};
use crate::node::{Answer, TestNode, TestPod, unique};
use russet_testkit::Random;

/// The pods' plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plugin {
    Russet,
    Calico,
}

/// A node without its agent, which the test's main thread kills and starts.
pub struct Site {
    pub node: TestNode,
    plugin: Plugin,
    name: &'static str,
    how: Configured,
    /// The store of a Kubernetes cluster, whose pods have names, as kubelet's have: its controller
    /// frees nothing without.
    cluster: Option<String>,
    /// The namespaces that were made here.
    pods: Mutex<Vec<String>>,
}

/// The name of the pods' network.
pub const NETWORK: &str = "testnet";

// === impl Site ===

impl Site {
    /// One of several nodes of an etcd.
    pub fn new(fabric: &mut Fabric, name: &'static str, plugin: Plugin, how: Configured) -> Self {
        let mut settings = vec![("store", "etcd:http://10.77.0.1:2379")];
        settings.extend((plugin == Plugin::Calico).then_some(("calico", "true")));
        Self::with(fabric.node_without_arguments(), name, plugin, how, &settings)
    }

    /// One of several nodes of a Kubernetes cluster, with its Node.
    pub fn in_cluster(cluster: &mut Cluster, name: &'static str, how: Configured) -> Self {
        let node = cluster.machine_without_arguments();
        cluster.create_node(name);
        // Pods have names only, and no objects that could be annotated.
        let settings = [("store", &*cluster.store()), ("annotate", "never")];
        let mut site = Self::with(node, name, Plugin::Russet, how, &settings);
        site.cluster = Some(cluster.store());
        site
    }

    /// A node with a store of its own.
    pub fn alone(name: &'static str, how: Configured) -> Self {
        Self::with(TestNode::without_agent(&[]), name, Plugin::Russet, how, &[])
    }

    /// Only the agent is configured. Plugins without an agent, and commands, must find its settings
    /// by themselves.
    fn with(
        node: TestNode,
        name: &'static str,
        plugin: Plugin,
        how: Configured,
        settings: &[(&str, &str)],
    ) -> Self {
        println!("the agent of {name} is set up by {how:?}");
        let mut site = Self { node, plugin, name, how, cluster: None, pods: Mutex::default() };
        site.set(&[("node_name", name)]);
        site.set(settings);
        std::fs::create_dir(site.node.path("bin")).unwrap();
        for plugin in ["russet", "calico", "calico-ipam"] {
            symlink(env!("CARGO_BIN_EXE_russet"), site.node.path("bin").join(plugin)).unwrap();
        }
        site
    }

    /// The name of the node.
    pub fn name(&self) -> &str {
        self.name
    }

    /// The location of the Kubernetes API server, if the node is one of a cluster's.
    pub fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref()
    }

    /// Adds settings, for agents that are started from now on.
    pub fn set(&mut self, settings: &[(&str, &str)]) {
        self.how.give(&mut self.node, settings);
    }

    /// A pod's empty namespace, and a container ID such as runtimes make: Calico derives interface
    /// names from its first characters.
    pub fn new_pod(&self) -> TestPod {
        let netns_name = unique("p");
        self.pods.lock().unwrap().push(netns_name.clone());
        NetNs::create_named(&netns_name).unwrap();
        let mix = |number: u64, byte: u8| number.wrapping_mul(257).wrapping_add(byte.into());
        TestPod { container: Random::of_thread(netns_name.bytes().fold(0, mix), 0).hex(), netns_name }
    }

    /// Deletes the namespaces of all pods that were ever here.
    pub fn remove_pods(&self) {
        for name in self.pods.lock().into_iter().flat_map(|mut pods| std::mem::take(&mut *pods)) {
            // Most no longer exist.
            let _ = NetNs::delete_named(&name);
        }
    }

    fn config(&self, extra: Value) -> Value {
        let calicos = json!({
            "type": "calico", "datastore_type": "etcdv3", "etcd_endpoints": "http://10.77.0.1:2379",
            "nodename": self.name, "nodename_file_optional": true, "ipam": {"type": "calico-ipam"},
        });
        let mut config = self.node.config(extra);
        if self.plugin == Plugin::Calico {
            config.as_object_mut().unwrap().extend(calicos.as_object().unwrap().clone());
        }
        assert_eq!(config["name"], NETWORK);
        config
    }

    /// Runs the plugin; returns None if it was killed before its answer.
    pub fn call(&self, verb: &str, pod: &TestPod, killed_after: Option<Duration>) -> Option<Answer> {
        self.call_with(verb, pod, json!({}), killed_after)
    }

    /// The same with more members of its configuration.
    pub fn call_with(
        &self,
        verb: &str,
        pod: &TestPod,
        extra: Value,
        killed_after: Option<Duration>,
    ) -> Option<Answer> {
        let netns = pod.path().display().to_string();
        let args = self.cluster.as_ref().map(|_| args_of(pod, &pod.netns_name));
        let mut env =
            vec![("CNI_CONTAINERID", pod.container.as_str()), ("CNI_NETNS", &netns), ("CNI_IFNAME", "eth0")];
        env.extend(args.as_deref().map(|args| ("CNI_ARGS", args)));
        self.run(verb, &env, &self.config(extra), killed_after)
    }

    /// Whether the agent accepts requests.
    pub fn is_ready(&self) -> bool {
        self.run("STATUS", &[], &self.node.config(json!({})), None).unwrap().status == 0
    }

    /// GC with the runtime's list of valid pods; returns None if it was killed before its answer.
    pub fn gc(&self, valid: &[&TestPod], killed_after: Option<Duration>) -> Option<Answer> {
        let valid = valid.iter().map(|pod| json!({"containerID": pod.container, "ifname": "eth0"}));
        let config = self.config(json!({"cni.dev/valid-attachments": valid.collect::<Vec<_>>()}));
        self.run("GC", &[], &config, killed_after)
    }

    fn run(
        &self,
        verb: &str,
        env: &[(&str, &str)],
        config: &Value,
        killed_after: Option<Duration>,
    ) -> Option<Answer> {
        let plugin = config["type"].as_str().unwrap();
        let mut command = Command::new(self.node.path("bin").join(plugin));
        command.env_clear().env("CNI_COMMAND", verb).env("CNI_PATH", self.node.path("bin"));
        command.envs(env.iter().copied());
        let mut child = self.node.spawn(&mut command, config.to_string());
        if let Some(delay) = killed_after {
            let_pass(delay);
            child.kill().unwrap();
        }
        let output = child.wait_with_output().unwrap();
        output.status.code().map(|_| output.into())
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.remove_pods();
    }
}
