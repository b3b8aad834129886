//! Nodes with a flannel daemon each, one etcd, and pods on a bridge as flannel's users have them.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

use russet_linux::process;
use russet_testkit::{Process, eventually, eventually_some, run};
use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::fabric::Fabric;
use crate::node::{TIMEOUT, TestNode, TestPod};

/// flannel's default prefix.
pub const PREFIX: &str = "/coreos.com/network";

/// The nodes' network and its etcd.
pub struct Lab {
    pub fabric: Fabric,
}

/// A node of it.
pub struct Host {
    pub node: TestNode,
    daemon: Option<Process>,
    flags: Vec<String>,
    variables: Vec<(String, String)>,
    pods: u8,
}

// === impl Lab ===

impl Lab {
    /// A network with this configuration; with none if it is empty.
    pub fn new(config: &str) -> Self {
        let fabric = Fabric::new();
        if !config.is_empty() {
            fabric.put(&format!("{PREFIX}/config"), config);
        }
        Self { fabric }
    }

    pub fn vxlan() -> Self {
        Self::new(r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#)
    }

    /// A node on which no daemon runs; its address ends in 11, 12 and so on.
    pub fn host(&mut self, flags: &[&str]) -> Host {
        let node = self.fabric.node_with_own_store("n");
        let flags = flags.iter().map(ToString::to_string).collect();
        Host { node, daemon: None, flags, variables: Vec::new(), pods: 0 }
    }

    /// A node whose daemon has written its subnet file.
    pub fn running(&mut self, flags: &[&str]) -> Host {
        let mut host = self.host(flags);
        host.start();
        host
    }

    pub fn lease_keys(&self) -> Vec<String> {
        self.fabric.keys(&format!("{PREFIX}/subnets"))
    }

    /// The record of the host's lease, with etcd's metadata.
    #[track_caller]
    pub fn record(&self, host: &Host) -> Value {
        let text = self.fabric.etcdctl(&["get", &host.lease_key(), "-w", "json"]);
        let answer: Value = serde_json::from_str(&text).unwrap();
        answer["kvs"][0].clone()
    }

    /// The value of the host's lease.
    pub fn value(&self, host: &Host) -> String {
        self.fabric.etcdctl(&["get", &host.lease_key(), "--print-value-only"]).trim().to_owned()
    }

    /// The remaining seconds of the host's lease.
    pub fn ttl(&self, host: &Host) -> u64 {
        let lease = self.record(host)["lease"].as_u64().unwrap();
        let text = self.fabric.etcdctl(&["lease", "timetolive", &format!("{lease:x}"), "-w", "json"]);
        serde_json::from_str::<Value>(&text).unwrap()["ttl"].as_u64().unwrap()
    }

    /// Writes the lease of a node that does not exist. A daemon draws its own subnet from the first 100
    /// that are free: a subnet behind them, 10.5.101.0 or later, is not drawn by one of this network.
    pub fn put_peer(&self, subnet: &str, public_ip: &str, mac: &str) {
        let value = format!(
            r#"{{"PublicIP":"{public_ip}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"{mac}"}}}}"#
        );
        self.fabric.put(&format!("{PREFIX}/subnets/{subnet}"), &value);
    }
}

// === impl Host ===

impl Host {
    /// Sets a variable of the daemon's environment.
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn env_path(&self) -> PathBuf {
        self.node.path("flannel/subnet.env")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.node.path("flanneld.log")).unwrap_or_default()
    }

    /// The daemon's command, which a test may still change.
    pub fn command(&self) -> Command {
        self.command_by(Command::new(env!("CARGO_BIN_EXE_russet")))
    }

    /// The same by a command that wants the daemon's arguments yet.
    pub fn command_by(&self, mut command: Command) -> Command {
        let log = File::options().create(true).append(true).open(self.node.path("flanneld.log")).unwrap();
        command.args(["flanneld", "-etcd-endpoints=http://10.77.0.1:2379"]).args(&self.flags);
        command.arg("-subnet-file").arg(self.env_path());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        process::in_netns(&mut command, self.node.netns()).unwrap();
        command
    }

    /// Starts the daemon and waits until it has written its subnet file.
    #[track_caller]
    pub fn start(&mut self) {
        let before = std::fs::metadata(self.env_path()).and_then(|file| file.modified()).ok();
        self.spawn();
        eventually(TIMEOUT, || {
            let ended = self.daemon.as_mut().unwrap().has_ended();
            assert!(ended.is_none(), "the daemon ended with {ended:?}:\n{}", self.log());
            let written = std::fs::metadata(self.env_path()).and_then(|file| file.modified()).ok();
            written.is_some() && written != before
        });
    }

    /// Starts the daemon without waiting.
    pub fn spawn(&mut self) {
        self.daemon = Some(Process::start(&mut self.command()));
    }

    /// Manages a daemon that a test started.
    pub fn adopt(&mut self, daemon: Process) {
        self.daemon = Some(daemon);
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(self.daemon.as_ref().unwrap())
    }

    pub fn signal(&self, signal: Signal) {
        self.daemon.as_ref().unwrap().signal(signal);
    }

    pub fn runs(&mut self) -> bool {
        self.daemon.as_mut().is_some_and(|daemon| daemon.has_ended().is_none())
    }

    /// The exit status of the daemon, whether it ends by itself or by a signal.
    #[track_caller]
    pub fn ends(&mut self) -> ExitStatus {
        let mut daemon = self.daemon.take().unwrap();
        eventually_some(TIMEOUT, || daemon.has_ended())
    }

    /// Runs a daemon that should end by itself.
    #[track_caller]
    pub fn run_to_end(&mut self) -> ExitStatus {
        self.spawn();
        self.ends()
    }

    /// The exit code of a second daemon beside the running one.
    #[track_caller]
    pub fn run_second(&self) -> Option<i32> {
        let mut second = Process::start(&mut self.command());
        eventually_some(TIMEOUT, || second.has_ended()).code()
    }

    pub fn stop(&mut self) {
        self.signal(Signal::TERM);
        assert_eq!(self.ends().code(), Some(0), "{}", self.log());
    }

    /// A line of the subnet file.
    #[track_caller]
    pub fn env(&self, name: &str) -> String {
        let text = std::fs::read_to_string(self.env_path()).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("no {name} in\n{text}")).to_owned()
    }

    /// `10.5.29.0-24`.
    pub fn subnet(&self) -> String {
        self.env("FLANNEL_SUBNET").replace(".1/", ".0-")
    }

    pub fn lease_key(&self) -> String {
        format!("{PREFIX}/subnets/{}", self.subnet())
    }

    /// The output of `ip` in the node's namespace.
    pub fn ip(&self, args: &[&str]) -> String {
        self.node.ip(args)
    }

    pub fn fdb(&self) -> String {
        run("bridge", &["-n", self.node.netns_name(), "fdb", "show", "dev", "flannel.1"])
    }

    pub fn nft(&self, args: &[&str]) -> String {
        self.node.inside("nft", args)
    }

    /// Waits until the kernel has a route to `subnet`.
    #[track_caller]
    pub fn routes_to(&self, subnet: &str) {
        let shown = subnet.replace('-', "/");
        eventually(TIMEOUT, || self.ip(&["route"]).lines().any(|line| line.starts_with(&shown)));
    }

    /// A pod on the node's bridge.
    pub fn pod(&mut self) -> (TestPod, String) {
        let (subnet, mtu) = (self.env("FLANNEL_SUBNET"), self.env("FLANNEL_MTU"));
        let base = subnet.split_once(".1/").unwrap().0.to_owned();
        if self.pods == 0 {
            self.node.inside("sysctl", &["-qw", "net.ipv4.ip_forward=1"]);
            self.ip(&["link", "add", "cni0", "type", "bridge"]);
            self.ip(&["address", "add", &subnet, "dev", "cni0"]);
            self.ip(&["link", "set", "cni0", "mtu", &mtu, "up"]);
        }
        self.pods += 1;
        let pod = self.node.pod();
        let (end, address) = (format!("pod{}", self.pods), format!("{base}.{}", 1 + self.pods));
        let inside = ["peer", "name", "eth0", "mtu", &mtu, "netns", &pod.netns_name];
        self.ip(&[&["link", "add", &end, "mtu", &mtu, "type", "veth"][..], &inside].concat());
        self.ip(&["link", "set", &end, "master", "cni0", "up"]);
        run("ip", &["-n", &pod.netns_name, "address", "add", &format!("{address}/24"), "dev", "eth0"]);
        run("ip", &["-n", &pod.netns_name, "link", "set", "eth0", "up"]);
        run("ip", &["-n", &pod.netns_name, "route", "add", "default", "via", &format!("{base}.1")]);
        (pod, address)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.node.netns_name(), self.log());
        }
    }
}
