//! Several nodes on one network, with an etcd that all of them reach: a bridge in a namespace of
//! its own, a veth to each node.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use russet_linux::{NetNs, process};
use russet_testkit::{Process, eventually, require_tool, run, spawn_with_input};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::node::{TIMEOUT, TestNode, unique};

/// The network; dropping it removes everything but the nodes.
pub struct Fabric {
    hub: String,
    /// None while it is down.
    etcd: Option<Process>,
    /// The number of veths so far, and the namespaces of the nodes.
    wires: u32,
    nodes: Vec<String>,
    data: TempDir,
}

/// Where Calico keeps its resources.
pub const RESOURCES: &str = "/calico/resources/v3/projectcalico.org";
/// The address of the hub's etcd, for every node and for the hub.
const ETCD: &str = "10.77.0.1:2379";

// === impl Fabric ===

impl Fabric {
    /// The network with an empty etcd, and no node yet.
    pub fn new() -> Self {
        let hub = unique("hub");
        NetNs::create_named(&hub).unwrap();
        run("ip", &["-n", &hub, "link", "set", "lo", "up"]);
        // A MAC of its own: without one the bridge takes a port's, which changes when a node goes,
        // and the other nodes would use the old one for a while.
        run("ip", &["-n", &hub, "link", "add", "br0", "address", "02:00:0a:4d:00:01", "type", "bridge"]);
        run("ip", &["-n", &hub, "address", "add", "10.77.0.1/24", "dev", "br0"]);
        run("ip", &["-n", &hub, "link", "set", "br0", "up"]);
        let mut fabric =
            Self { hub, etcd: None, wires: 0, nodes: Vec::new(), data: tempfile::tempdir().unwrap() };
        fabric.start_etcd();
        eventually(TIMEOUT, || fabric.etcd_serves());
        fabric
    }

    /// Starts etcd on its existing data; does not wait until it serves.
    pub fn start_etcd(&mut self) {
        assert!(self.etcd.is_none(), "etcd runs");
        let mut etcd = Command::new(require_tool("etcd"));
        let url = format!("http://{ETCD}");
        etcd.arg("--data-dir").arg(self.data.path()).args(["--log-level", "error", "--logger", "zap"]);
        etcd.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
        etcd.args(["--listen-peer-urls", "http://127.0.0.1:2380", "--enable-v2"]);
        etcd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        process::in_netns(&mut etcd, &NetNs::open_named(&self.hub).unwrap()).unwrap();
        self.etcd = Some(Process::start(&mut etcd));
    }

    /// Ends etcd as a crash would.
    pub fn kill_etcd(&mut self) {
        self.etcd = None;
    }

    /// Has etcd answer nothing, with its connections open, or answer again.
    pub fn hold_etcd(&self, is_held: bool) {
        let signal = if is_held { Signal::STOP } else { Signal::CONT };
        self.etcd.as_ref().expect("etcd runs").signal(signal);
    }

    pub fn etcd_serves(&self) -> bool {
        self.try_etcdctl(&["endpoint", "health"]).is_some()
    }

    /// Another node, 10.77.0.11 and so on, without an agent. Its settings name the etcd and, with `args`, the rest.
    pub fn node(&mut self, name: &str, args: &[&str]) -> TestNode {
        let location = format!("etcd:http://{ETCD}");
        let mut all = vec!["--store", &location, "--node-name", name];
        all.extend(args);
        self.wired(TestNode::without_agent(&all))
    }

    /// The same; its agent gets its settings in another way than by arguments, its name among them.
    pub fn node_without_arguments(&mut self) -> TestNode {
        self.wired(TestNode::without_agent(&[]))
    }

    /// The same, but its agent would use a store of its own.
    pub fn node_with_own_store(&mut self, name: &str) -> TestNode {
        self.wired(TestNode::without_agent(&["--node-name", name]))
    }

    /// The namespace of the hub and its etcd.
    pub fn hub(&self) -> &str {
        &self.hub
    }

    fn place(&self, node: &TestNode) -> usize {
        self.nodes.iter().position(|name| name == node.netns_name()).expect("a node of this network")
    }

    fn wired(&mut self, node: TestNode) -> TestNode {
        self.nodes.push(node.netns_name().to_owned());
        self.wire(&node);
        node
    }

    /// Connects a node by its fixed address, also after its namespace was made again.
    pub fn wire(&mut self, node: &TestNode) {
        self.wires += 1;
        let netns = node.netns_name();
        let (end, address) = (format!("w{}", self.wires), format!("{}/24", self.address(self.place(node))));
        let peer = ["peer", "name", "eth0", "netns", netns];
        run("ip", &[&["-n", &self.hub, "link", "add", &end, "type", "veth"], &peer[..]].concat());
        run("ip", &["-n", &self.hub, "link", "set", &end, "master", "br0", "up"]);
        run("ip", &["-n", netns, "address", "add", &address, "dev", "eth0"]);
        run("ip", &["-n", netns, "link", "set", "eth0", "up"]);
        run("ip", &["-n", netns, "route", "add", "default", "via", "10.77.0.1"]);
    }

    /// Gives a node an IPv6 address as well, fd00:77::11 and so on.
    pub fn add_ipv6(&self, node: &TestNode) {
        let address = format!("fd00:77::{}/64", 11 + self.place(node));
        node.ip(&["address", "add", &address, "dev", "eth0", "nodad"]);
        node.ip(&["route", "add", "default", "via", "fd00:77::1", "dev", "eth0"]);
    }

    fn address(&self, place: usize) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 77, 0, 11)) + u32::try_from(place).unwrap())
    }

    fn try_etcdctl(&self, args: &[&str]) -> Option<String> {
        self.etcdctl_of("3", args)
    }

    /// Runs etcdctl on an API; none when it fails.
    fn etcdctl_of(&self, api: &str, args: &[&str]) -> Option<String> {
        let mut command = Command::new("ip");
        let endpoints = format!("http://{ETCD}");
        command.args(["netns", "exec", &self.hub, "etcdctl", "--endpoints", &endpoints]).args(args);
        let output = command.env("ETCDCTL_API", api).output().unwrap();
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs etcdctl; it has to succeed.
    #[track_caller]
    pub fn etcdctl(&self, args: &[&str]) -> String {
        self.try_etcdctl(args).unwrap_or_else(|| panic!("etcdctl {} failed", args.join(" ")))
    }

    /// Writes many records in one transaction, of which etcd takes 128 at once. Values have no quotation marks and no line ends.
    #[track_caller]
    pub fn put_all(&self, records: &[(String, String)]) {
        let puts: String = records.iter().map(|(key, value)| format!("put {key} \"{value}\"\n")).collect();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.hub, "etcdctl", "--endpoints", ETCD, "txn"]);
        // Nothing is compared, and nothing is to be done otherwise.
        let etcdctl = spawn_with_input(command.env("ETCDCTL_API", "3"), format!("\n{puts}\n\n"));
        assert!(etcdctl.wait_with_output().unwrap().status.success());
    }

    /// Runs etcdctl on the v2 API; none when it fails.
    pub fn try_etcdctl_v2(&self, args: &[&str]) -> Option<String> {
        self.etcdctl_of("2", args)
    }

    /// Runs etcdctl on the v2 API; it has to succeed.
    #[track_caller]
    pub fn etcdctl_v2(&self, args: &[&str]) -> String {
        self.try_etcdctl_v2(args).unwrap_or_else(|| panic!("etcdctl (v2) {} failed", args.join(" ")))
    }

    /// Writes a record.
    pub fn put(&self, key: &str, value: &str) {
        self.etcdctl(&["put", key, value]);
    }

    /// Writes a resource of Calico.
    pub fn put_resource(&self, kinds: &str, kind: &str, name: &str, spec: Value) {
        let metadata = json!({"name": name, "uid": "u", "creationTimestamp": "2026-08-22T10:00:00Z"});
        let resource =
            json!({"kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec});
        self.put(&format!("{RESOURCES}/{kinds}/{name}"), &resource.to_string());
    }

    /// One record, which must be there and be JSON.
    #[track_caller]
    pub fn get(&self, key: &str) -> Value {
        let text = self.etcdctl(&["get", key, "--print-value-only"]);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{key}: {error}: {text:?}"))
    }

    /// The keys below a prefix.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let text = self.etcdctl(&["get", prefix, "--prefix", "--keys-only"]);
        text.split_whitespace().map(str::to_owned).collect()
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        self.kill_etcd();
        let _ = NetNs::delete_named(&self.hub);
    }
}
