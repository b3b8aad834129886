//! Policies on the pods of Calico's plugins, Russet's and Go's, where no Felix filters: in Calico's place, and on a node
//! whose agent has a plugin of its own.

use std::net::UdpSocket;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use russet_linux::NetNs;
use russet_testkit::kubernetes::require_program;
use russet_testkit::{bound, eventually, let_pass, run, succeeds};
use serde_json::{Value, json};

use crate::calico::{CalicoSetup, Request, address};
use crate::fabric::RESOURCES;
use crate::node::{TIMEOUT, TestNode, TestPod};

/// A node with a Calico cluster's data, and what its pods send to the outside.
struct Setup {
    calico: CalicoSetup,
}

/// A pod and its address.
struct Pod {
    pod: TestPod,
    address: String,
}

/// Datagrams that a pod sends to the outside whenever it can, from before it has an interface.
struct Datagrams {
    over: Arc<AtomicBool>,
    arrived: Arc<AtomicUsize>,
    sent: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

/// The address of the outside, and the port of datagrams.
const OUTSIDE: &str = "10.77.0.1";
const PORT: u16 = 9;
/// The agent waits for half a minute before it removes what Felix left.
const REMOVAL: Duration = Duration::from_secs(90);
/// The end of the pod `shop/web-0`, and its address, where a test wires it.
const END: &str = "calia4fc3c48bd8";
const ADDRESS: &str = "10.65.9.3";

// === impl Setup ===

impl Setup {
    /// No agent runs yet.
    fn new() -> Self {
        let calico = CalicoSetup::new();
        run("ip", &["-n", calico.fabric.hub(), "route", "add", "10.65.0.0/16", "via", "10.77.0.11"]);
        Self { calico }
    }

    fn node(&self) -> &TestNode {
        &self.calico.node
    }

    fn put_policy(&self, name: &str, spec: Value) {
        let name = format!("default.{name}");
        self.calico.fabric.put_resource("globalnetworkpolicies", "GlobalNetworkPolicy", &name, spec);
    }

    fn delete_policy(&self, name: &str) {
        let key = format!("{RESOURCES}/globalnetworkpolicies/default.{name}");
        self.calico.fabric.etcdctl(&["del", &key]);
    }

    /// Everything that pods send and get is denied, unless a policy allows it.
    fn deny_all(&self) {
        self.put_policy("deny", json!({ "order": 100, "selector": "all()", "types": ["Ingress", "Egress"] }));
    }

    /// What pods of these addresses send passes.
    fn allow_from(&self, addresses: &[&str]) {
        let nets: Vec<String> = addresses.iter().map(|address| format!("{address}/32")).collect();
        let from = json!([{ "action": "Allow", "source": { "nets": nets } }]);
        let spec = json!({ "order": 1, "selector": "all()", "types": ["Ingress", "Egress"], "ingress": from, "egress": from });
        self.put_policy("allow", spec);
    }

    fn has_table(&self) -> bool {
        self.node().netns().with(|| succeeds("nft list table inet russet-decisions")).unwrap()
    }

    /// The host ends that carry packets; none without the table.
    fn open_ends(&self) -> Option<String> {
        let mut command = Command::new("nft");
        command.args(["list", "set", "inet", "russet-decisions", "ends"]);
        let answer = self.node().output(&mut command, "");
        (answer.status == 0).then_some(answer.stdout)
    }

    fn is_open(&self, end: &str) -> bool {
        self.open_ends().is_some_and(|ends| ends.contains(&format!("\"{end}\"")))
    }

    fn request<'a>(&self, pod: &'a TestPod, name: &str, extra: Value) -> Request<'a> {
        let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}");
        Request { args, ..self.calico.request(pod, &pod.container, extra) }
    }

    /// A pod in the namespace `shop`, by Russet's plugin.
    fn add(&mut self, name: &str) -> Pod {
        let pod = self.calico.node.pod();
        self.add_to(pod, name)
    }

    fn add_to(&self, pod: TestPod, name: &str) -> Pod {
        let result = self.calico.add(&self.request(&pod, name, json!({})));
        Pod { address: address(&result).replace("/32", ""), pod }
    }

    /// A container by Calico's own plugin, which would look for a pod in Kubernetes.
    fn add_by_calicos(&self, pod: TestPod) -> Pod {
        let directory = self.node().path("go");
        if !directory.exists() {
            std::fs::create_dir(&directory).unwrap();
            let program = require_program("calico", "calico");
            for name in ["calico", "calico-ipam"] {
                std::os::unix::fs::symlink(&program, directory.join(name)).unwrap();
            }
        }
        let own = json!({ "ipam_lock_file": directory.join("ipam.lock"), "log_file_path": directory.join("cni.log") });
        let request = self.calico.request(&pod, &pod.container, own);
        let mut command = pod.call(directory.join("calico"), "ADD", &directory);
        let answer = self.node().output(&mut command, request.config.to_string());
        let result = answer.result();
        Pod { address: address(&result).replace("/32", ""), pod }
    }

    /// What Calico's plugin makes in the kernel for the pod `shop/web-0`.
    fn wire(&self, pod: &TestPod) {
        let node = self.node().netns_name();
        let ip = |line: &str| run("ip", &line.split(' ').collect::<Vec<_>>());
        let peer = format!("peer name eth0 netns {}", pod.netns_name);
        ip(&format!("-n {node} link add {END} address ee:ee:ee:ee:ee:ee type veth {peer}"));
        for name in ["proxy_arp", "forwarding"] {
            self.node().inside("sysctl", &["-w", &format!("net.ipv4.conf.{END}.{name}=1")]);
        }
        self.node().inside("sysctl", &["-w", &format!("net.ipv4.neigh.{END}.proxy_delay=0")]);
        ip(&format!("-n {node} link set {END} up"));
        // The address comes first: without any a namespace sends to broadcast.
        for line in [
            &format!("address add {ADDRESS}/32 dev eth0"),
            "link set eth0 up",
            "route add 169.254.1.1 dev eth0 scope link",
            "route add default via 169.254.1.1 dev eth0",
        ] {
            ip(&format!("-n {} {line}", pod.netns_name));
        }
        ip(&format!("-n {node} route add {ADDRESS} dev {END} scope link"));
    }

    /// What Calico's plugin writes of it.
    fn record(&self) {
        let metadata = json!({ "name": "n1-k8s-web--0-eth0", "namespace": "shop", "uid": "u",
            "creationTimestamp": "2026-08-22T10:00:00Z" });
        let spec = json!({ "orchestrator": "k8s", "node": "n1", "containerID": "4be1", "pod": "web-0", "endpoint": "eth0",
            "ipNetworks": [format!("{ADDRESS}/32")], "profiles": ["net1"], "interfaceName": END });
        let endpoint = json!({ "kind": "WorkloadEndpoint", "apiVersion": "projectcalico.org/v3",
            "metadata": metadata, "spec": spec });
        self.calico.fabric.put(&Self::record_key(), &endpoint.to_string());
    }

    fn record_key() -> String {
        format!("{RESOURCES}/workloadendpoints/shop/n1-k8s-web--0-eth0")
    }

    /// Waits until pods of addresses that no policy allows are closed.
    fn enforced(&self) {
        eventually(TIMEOUT, || self.has_table() && self.open_ends().is_some());
    }

    fn datagrams(&self, pod: &TestPod) -> Datagrams {
        // As runtimes do: a namespace without any address takes its first gateway for a broadcast address.
        run("ip", &["-n", &pod.netns_name, "link", "set", "lo", "up"]);
        Datagrams::start(&pod.netns_name, self.calico.fabric.hub())
    }
}

// === impl Pod ===

impl Pod {
    fn reaches(&self, target: &Self) -> bool {
        self.pod.pings(&["-W", "1", &target.address])
    }
}

// === impl Datagrams ===

impl Datagrams {
    fn start(from: &str, to: &str) -> Self {
        let [from, to] = [from, to].map(|name| NetNs::open_named(name).unwrap());
        let receiver = to.with(|| bound(|| UdpSocket::bind((OUTSIDE, PORT)))).unwrap();
        receiver.set_nonblocking(true).unwrap();
        let sender = from.with(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
        let (over, arrived, sent) = <(Arc<AtomicBool>, Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let counts = (Arc::clone(&over), Arc::clone(&arrived), Arc::clone(&sent));
        let thread = std::thread::spawn(move || {
            let (over, arrived, sent) = counts;
            let mut buffer = [0; 8];
            while !over.load(Ordering::Relaxed) {
                // There is no route before the pod has an interface.
                sent.fetch_add(usize::from(sender.send_to(b"x", (OUTSIDE, PORT)).is_ok()), Ordering::Relaxed);
                while receiver.recv(&mut buffer).is_ok() {
                    arrived.fetch_add(1, Ordering::Relaxed);
                }
                let_pass(Duration::from_millis(1));
            }
        });
        Self { over, arrived, sent, thread: Some(thread) }
    }

    fn arrived(&self) -> usize {
        self.arrived.load(Ordering::Relaxed)
    }

    /// Waits until many more were sent.
    fn let_send(&self) {
        let before = self.sent.load(Ordering::Relaxed);
        eventually(TIMEOUT, || self.sent.load(Ordering::Relaxed) > before + 200);
    }

    /// Whether some of them arrive.
    fn arrive(&self) -> bool {
        let before = self.arrived();
        self.let_send();
        self.arrived() > before
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().into_iter().for_each(|thread| _ = thread.join());
    }
}

#[test]
#[ignore = "root: makes network namespaces; kernel: nf_tables; tool: etcd, nft, ping"]
fn pods_of_the_plugin_calico_are_under_policies_from_their_first_packet() {
    let mut setup = Setup::new();
    setup.calico.node.start_agent();
    let (client, server) = (setup.add("client"), setup.add("server"));
    eventually(TIMEOUT, || client.reaches(&server));
    assert!(!setup.has_table(), "nothing is decided");

    setup.deny_all();
    eventually(TIMEOUT, || !client.reaches(&server));
    setup.enforced();
    let late = setup.calico.node.pod();
    let datagrams = setup.datagrams(&late);
    let late = setup.add_to(late, "late");
    datagrams.let_send();
    assert!(!client.reaches(&late) && datagrams.arrived() == 0, "{}", setup.node().log());
    let by_node = |pod: &Pod| setup.node().inside("ping", &["-c1", "-W5", &pod.address]);
    [&server, &late].iter().for_each(|pod| _ = by_node(pod));

    setup.allow_from(&[&client.address, &late.address]);
    eventually(TIMEOUT, || client.reaches(&server) && client.reaches(&late) && datagrams.arrive());
    assert!(!server.reaches(&client));
    let ready = setup.node().get("/readyz?verbose");
    assert!(!ready.contains("[!] polic"), "{ready}");
    let listed = setup.node().russet_inside(&["policy", "ls"]);
    assert!(listed.status == 0 && listed.stdout.contains("yes"), "{listed:?}");
    let explain = |from: &str, to: &str| -> Value {
        let words = ["explain", from, to, "80", "--family", "4", "-o", "json"];
        let answer = setup.node().russet_inside(&words);
        serde_json::from_str(&answer.stdout).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
    };
    for (from, to, verdict) in
        [("shop/client", "shop/server", "allowed"), ("shop/server", "shop/client", "denied")]
    {
        let found = explain(from, to);
        assert_eq!((&found["verdict"], &found["findings"]), (&json!(verdict), &json!([])), "{found:#}");
        let kernel = found["kernel"].as_array().unwrap();
        assert!(!kernel.is_empty() && kernel.iter().all(|end| end["agrees"] == true), "{found:#}");
    }

    setup.calico.succeed("DEL", &setup.request(&late.pod, "late", json!({})));
    ["deny", "allow"].iter().for_each(|name| setup.delete_policy(name));
    eventually(TIMEOUT, || server.reaches(&client) && !setup.has_table());
}

#[test]
#[ignore = "root: makes network namespaces; kernel: nf_tables; tool: etcd, nft, ip, sysctl"]
fn a_host_end_that_only_the_kernel_knows_carries_nothing_before_its_record_and_behind_it() {
    let mut setup = Setup::new();
    setup.deny_all();
    setup.calico.node.start_agent();
    setup.enforced();
    let pod = setup.calico.node.pod();
    let datagrams = setup.datagrams(&pod);
    setup.allow_from(&[ADDRESS]);
    setup.wire(&pod);
    let at_node = || pod.pings(&["-W", "1", "10.77.0.11"]);
    assert!(!at_node(), "no pod is known there");
    datagrams.let_send();
    assert_eq!(datagrams.arrived(), 0, "{}", setup.node().log());
    setup.node().inside("ping", &["-c1", "-W5", ADDRESS]);

    setup.record();
    eventually(TIMEOUT, || setup.is_open(END) && datagrams.arrive());
    assert!(at_node());
    setup.calico.fabric.etcdctl(&["del", &Setup::record_key()]);
    eventually(TIMEOUT, || !setup.is_open(END));
    assert!(!datagrams.arrive() && !at_node());
    setup.record();
    eventually(TIMEOUT, || datagrams.arrive());

    // An interface that takes its name is another one, also while no agent runs.
    setup.calico.node.kill_agent();
    assert!(datagrams.arrive());
    setup.node().ip(&["link", "del", END]);
    setup.wire(&pod);
    assert!(!datagrams.arrive());
    setup.calico.node.start_agent();
    eventually(TIMEOUT, || datagrams.arrive());
}

#[test]
#[ignore = "root: makes network namespaces; kernel: nf_tables; tool: calico, etcd, nft, ping"]
fn pods_of_gos_calico_are_under_policies_from_their_first_packet_and_so_are_those_beside_them() {
    let mut setup = Setup::new();
    setup.deny_all();
    setup.calico.node.start_agent();
    setup.enforced();
    let pod = setup.calico.node.pod();
    let datagrams = setup.datagrams(&pod);
    let theirs = setup.add_by_calicos(pod);
    datagrams.let_send();
    assert_eq!(datagrams.arrived(), 0, "{}", setup.node().log());
    let ours = setup.add("ours");
    assert!(!theirs.reaches(&ours) && !ours.reaches(&theirs));
    setup.allow_from(&[&theirs.address]);
    eventually(TIMEOUT, || theirs.reaches(&ours) && datagrams.arrive());
    assert!(!ours.reaches(&theirs));
}

#[test]
#[ignore = "root: makes network namespaces; kernel: nf_tables; tool: etcd, nft, ping"]
fn a_pod_that_the_plugin_calico_attaches_without_an_agent_waits_for_the_next_ones_decisions() {
    let mut setup = Setup::new();
    setup.deny_all();
    setup.calico.node.start_agent();
    setup.enforced();
    let early = setup.add("early");
    setup.calico.node.kill_agent();
    let pod = setup.calico.node.pod();
    let datagrams = setup.datagrams(&pod);
    let late = setup.add_to(pod, "late");
    datagrams.let_send();
    assert!(datagrams.arrived() == 0 && !early.reaches(&late));
    setup.allow_from(&[&early.address, &late.address]);
    setup.calico.node.start_agent();
    eventually(TIMEOUT, || datagrams.arrive() && early.reaches(&late));
}

#[test]
#[ignore = "root: makes network namespaces; kernel: nf_tables; tool: etcd, nft, ip"]
fn the_file_of_a_set_up_endpoint_comes_once_decisions_about_it_are_in_force() {
    // calico-cni.md section 4.9
    let mut setup = Setup::new();
    setup.deny_all();
    setup.calico.node.start_agent();
    setup.enforced();
    let dir = setup.node().path("var/run/calico/endpoint-status");
    let file = |name: &str| dir.join(format!("k8s shop%2F{name} eth0"));
    let waiting = json!({ "policy_setup_timeout_seconds": 600, "endpoint_status_dir": dir });
    let pod = setup.calico.node.pod();
    setup.calico.add(&setup.request(&pod, "server", waiting));
    // The plugin has waited for it.
    let held = setup.node().inside("nft", &["list", "set", "inet", "russet-decisions", "held4"]);
    let ends = setup.node().links().into_iter().filter(|name| name.starts_with("cali"));
    assert!(ends.clone().count() == 1 && ends.into_iter().all(|end| setup.is_open(&end)));
    assert!(file("server").exists() && !held.contains("elements"), "{held}");

    // That of a pod which the agent hears of by the kernel and the datastore, in either order.
    let other = setup.calico.node.pod();
    setup.record();
    setup.wire(&other);
    eventually(TIMEOUT, || file("web-0").exists());
    assert!(setup.is_open(END));
    // An agent that is started again knows what its predecessor left.
    setup.calico.node.kill_agent();
    setup.calico.node.start_agent();
    assert!(file("web-0").exists() && file("server").exists());

    // Without policies there is nothing to wait for.
    setup.delete_policy("deny");
    eventually(TIMEOUT, || !setup.has_table());
    let free = setup.calico.node.pod();
    let waiting = json!({ "policy_setup_timeout_seconds": 600, "endpoint_status_dir": dir });
    setup.calico.add(&setup.request(&free, "free", waiting));
    assert!(file("free").exists() && file("server").exists());
}

#[test]
#[ignore = "root: makes network namespaces; kernel: nf_tables; tool: etcd, iptables, nft, ip; takes a minute"]
fn what_felix_left_goes_although_there_are_pods_of_calicos_plugins_once_they_are_decided() {
    let mut setup = Setup::new();
    let pod = setup.calico.node.pod();
    setup.wire(&pod);
    setup.record();
    setup.deny_all();
    let felix = setup.node().decoy("calico-felix");
    let rules = format!(
        "*filter\n:cali-FORWARD - [0:0]\n-A FORWARD -m comment --comment \"cali:x\" -j cali-FORWARD\n-A cali-FORWARD -s {ADDRESS}/32 -j DROP\nCOMMIT\n"
    );
    let mut restore = Command::new("iptables-nft-restore");
    let answer = setup.node().output(restore.arg("--noflush"), &rules);
    assert_eq!(answer.status, 0, "{answer:?}");
    let datagrams = setup.datagrams(&pod);
    let before = datagrams.arrived();
    setup.calico.node.start_agent();
    let ready = |text: &str| setup.node().get("/readyz?verbose").contains(text);
    eventually(TIMEOUT, || ready("NOT ENFORCED: Felix runs on this node"));
    eventually(TIMEOUT, || !setup.has_table());

    drop(felix);
    eventually(TIMEOUT, || setup.is_open(END));
    let leftovers = || setup.node().inside("iptables-nft-save", &[]).contains("cali");
    assert!(leftovers(), "a Felix that is upgraded is away for a moment");
    eventually(REMOVAL, || !leftovers());
    datagrams.let_send();
    assert_eq!(datagrams.arrived(), before, "no instant was open");
    setup.allow_from(&[ADDRESS]);
    eventually(TIMEOUT, || datagrams.arrive());
}

#[test]
#[ignore = "root: makes network namespaces; kernel: nf_tables; tool: etcd, nft, ip"]
fn an_agent_that_is_not_in_calicos_place_has_policies_for_the_pods_that_calicos_plugin_left() {
    let mut setup = Setup::new();
    setup.calico.node.agent_args.retain(|argument| argument != "--calico");
    let pod = setup.calico.node.pod();
    setup.wire(&pod);
    setup.record();
    let datagrams = setup.datagrams(&pod);
    setup.calico.node.start_agent();
    assert!(datagrams.arrive());
    setup.deny_all();
    eventually(TIMEOUT, || !datagrams.arrive());
    // Nor with an address that it chooses.
    run("ip", &["-n", &pod.netns_name, "address", "add", "10.65.9.77/32", "dev", "eth0"]);
    eventually(TIMEOUT, || {
        let rules = setup.node().inside("nft", &["list", "chain", "inet", "russet-policy", "calico-ends"]);
        rules.contains("cali*")
    });
    run(
        "ip",
        &[
            "-n",
            &pod.netns_name,
            "route",
            "replace",
            "default",
            "via",
            "169.254.1.1",
            "dev",
            "eth0",
            "src",
            "10.65.9.77",
        ],
    );
    assert!(!datagrams.arrive());
    run("ip", &["-n", &pod.netns_name, "route", "replace", "default", "via", "169.254.1.1", "dev", "eth0"]);
    setup.allow_from(&[ADDRESS]);
    eventually(TIMEOUT, || datagrams.arrive());
    setup.delete_policy("deny");
    setup.delete_policy("allow");
    eventually(TIMEOUT, || !setup.has_table() && datagrams.arrive());
}
