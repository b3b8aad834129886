//! Calico's conflist under a real containerd, on two nodes whose plugins and agents are Russet's
//! (calico-cni.md section 1.8).

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use russet_kube::testing::Server;
use russet_linux::{NetNs, process};
use russet_testkit::cri::{Pod, Sandbox};
use russet_testkit::{bound, eventually, require_tool};
use serde_json::{Value, json};

use crate::containerd::Containerd;
use crate::fabric::{Fabric, RESOURCES};
use crate::node::{TIMEOUT, TestNode};
use crate::sandboxes::pings;

/// Concurrent pods, half of them on each node.
const PODS: usize = 50;
/// A port of a node, and the pod's port to which it is forwarded.
const HOST_PORT: (u16, u16) = (18_080, 8_080);
const ANSWER: &[u8] = b"from the pod";

/// A node of a Kubernetes cluster.
struct Worker {
    containerd: Containerd,
    api: Server,
    node: TestNode,
    name: &'static str,
}

/// A server in a pod that sends a greeting to every connection.
struct Greeter {
    address: SocketAddr,
    netns: NetNs,
    thread: Option<std::thread::JoinHandle<()>>,
}

// === impl Worker ===

impl Worker {
    fn start(fabric: &mut Fabric, name: &'static str) -> Self {
        let mut node = fabric.node(name, &["--calico"]);
        node.start_agent();
        let api = node.netns().with(Server::start).unwrap();
        api.put(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}));
        api.put(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}}));
        api.write_kubeconfig(&node.path("calico-kubeconfig"));
        let containerd = Containerd::start(&node, &conflist(&node, name));
        Self { containerd, api, node, name }
    }

    /// The pods that the scheduler assigned to this node.
    fn schedule(&self, pod: &Pod) {
        let metadata = json!({"name": pod.name, "namespace": pod.namespace, "labels": {"app": "web"}});
        let container = json!({"name": "c", "image": "i"});
        let spec = json!({"nodeName": self.name, "serviceAccountName": "default", "containers": [container]});
        self.api.put(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}));
    }

    /// Starts many pods concurrently.
    fn run(&self, pods: &[Pod]) -> Vec<(String, Sandbox)> {
        pods.iter().for_each(|pod| self.schedule(pod));
        self.containerd.run_all(pods)
    }

    /// The rules that `portmap` has written here.
    fn port_maps(&self) -> String {
        let mut save = std::process::Command::new(require_tool("iptables-save"));
        process::in_netns(save.args(["-t", "nat"]), self.node.netns()).unwrap();
        let text = String::from_utf8(save.output().unwrap().stdout).unwrap();
        text.lines().filter(|line| line.contains("CNI-DN-")).collect::<Vec<_>>().join("\n")
    }

    fn pods_links(&self) -> Vec<String> {
        self.node.links().into_iter().filter(|name| name.starts_with("cali")).collect()
    }
}

/// The conflist of Calico's manifest for etcd; the operator sets etcd's address, the node's name
/// and two paths.
fn conflist(node: &TestNode, name: &str) -> Value {
    json!({
        "name": "k8s-pod-network",
        "cniVersion": "0.3.1",
        "plugins": [
            {
                "type": "calico",
                "log_level": "info",
                "log_file_path": node.path("var/log/calico/cni/cni.log"),
                "datastore_type": "etcdv3",
                "etcd_endpoints": "http://10.77.0.1:2379",
                "etcd_key_file": "",
                "etcd_cert_file": "",
                "etcd_ca_cert_file": "",
                "nodename": name,
                "mtu": 0,
                "ipam": {"type": "calico-ipam"},
                "policy": {"type": "k8s"},
                "kubernetes": {"kubeconfig": node.path("calico-kubeconfig")},
            },
            {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}},
            {"type": "bandwidth", "capabilities": {"bandwidth": true}},
        ],
    })
}

/// The records that `calicoctl` and kube-controllers write to an empty etcd.
pub fn found_cluster(fabric: &Fabric) {
    let ready = json!({"datastoreReady": true});
    fabric.put_resource("clusterinformations", "ClusterInformation", "default", ready);
    let pool = json!({"cidr": "10.65.0.0/16", "blockSize": 26, "vxlanMode": "Always", "ipipMode": "Never",
        "natOutgoing": true, "nodeSelector": "all()", "allowedUses": ["Workload", "Tunnel"]});
    fabric.put_resource("ippools", "IPPool", "default-ipv4-ippool", pool);
}

/// Everything in etcd without event counters: the owner of each address, and every other record
/// unchanged. Not what an agent says of itself, which has the time.
fn contents(fabric: &Fabric) -> Vec<(String, Value)> {
    let record = |key: String| {
        let value = fabric.get(&key);
        let value = match key.contains("/assignment/") {
            true => json!([value["cidr"], value["affinity"], value["allocations"], value["attributes"]]),
            false => value,
        };
        (key, value)
    };
    let keys = fabric.keys("/").into_iter().filter(|key| !key.starts_with("/russet/health/"));
    keys.map(record).collect()
}

// === impl Greeter ===

impl Greeter {
    fn start(sandbox: &Sandbox) -> Self {
        let netns = NetNs::open(&sandbox.netns).unwrap();
        let address: IpAddr = sandbox.addresses[0].parse().unwrap();
        let address = SocketAddr::new(address, HOST_PORT.1);
        let listener = netns.with(|| bound(|| TcpListener::bind(address))).unwrap();
        let serve = move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                // A connection without data ends it.
                let mut byte = [0];
                if stream.read(&mut byte).unwrap() == 0 {
                    return;
                }
                stream.write_all(ANSWER).unwrap();
            }
        };
        Self { address, netns, thread: Some(std::thread::spawn(serve)) }
    }

    /// The greeting that a client of a node's port receives.
    fn greeting_from(from: &NetNs, node: [u8; 4]) -> Vec<u8> {
        let address = SocketAddr::from((node, HOST_PORT.0));
        let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(5));
        let mut stream = from.with(connect).unwrap().unwrap_or_else(|error| panic!("{address}: {error}"));
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(b"?").unwrap();
        let mut greeting_from = Vec::new();
        stream.read_to_end(&mut greeting_from).unwrap();
        greeting_from
    }
}

impl Drop for Greeter {
    fn drop(&mut self) {
        let knocked = self.netns.with(|| TcpStream::connect_timeout(&self.address, TIMEOUT)).unwrap();
        if let (Ok(knock), Some(thread)) = (knocked, self.thread.take()) {
            drop(knock);
            let _ = thread.join();
        }
    }
}

fn assert_everybody_reaches(from: &[(String, Sandbox)], to: &[(String, Sandbox)]) {
    for ((_, from), (_, to)) in from.iter().zip(to) {
        assert!(pings(from, &to.addresses[0]), "{from:?} does not reach {to:?}");
    }
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, containerd, runc, busybox, ctr, ip, iptables, ping, portmap"]
fn calicos_conflist_under_containerd_on_two_nodes_works_and_leaves_nothing() {
    let mut fabric = Fabric::new();
    found_cluster(&fabric);
    let workers = ["n1", "n2"].map(|name| Worker::start(&mut fabric, name));
    let before = contents(&fabric);
    let [n1, n2] = &workers;

    // A pod behind a port of its node, called by the other node, by a pod on it, and by its own
    // node.
    let web = n1.run(&[Pod { host_ports: vec![HOST_PORT], ..Pod::named("web") }]);
    let caller = n2.run(&[Pod::named("caller")]);
    eventually(TIMEOUT, || pings(&caller[0].1, &web[0].1.addresses[0]));
    let greeter = Greeter::start(&web[0].1);
    let pod = NetNs::open(&caller[0].1.netns).unwrap();
    for from in [n2.node.netns(), &pod, n1.node.netns()] {
        assert_eq!(Greeter::greeting_from(from, [10, 77, 0, 11]), ANSWER);
    }
    drop(greeter);
    n1.containerd.remove_all(&web);
    n2.containerd.remove_all(&caller);
    assert_eq!(n1.port_maps(), "");

    // Fifty concurrently.
    let pods: Vec<Pod> = (0..PODS).map(|n| Pod::named(&format!("pod-{n}"))).collect();
    let (ours, theirs) = pods.split_at(PODS / 2);
    let (on_n1, on_n2) = std::thread::scope(|scope| {
        let (on_n1, on_n2) = (scope.spawn(|| n1.run(ours)), scope.spawn(|| n2.run(theirs)));
        (on_n1.join().unwrap(), on_n2.join().unwrap())
    });
    let addresses = on_n1.iter().chain(&on_n2).map(|(_, sandbox)| &sandbox.addresses[0]);
    assert_eq!(
        addresses.collect::<BTreeSet<_>>().len(),
        PODS,
        "an address was given twice: {on_n1:?} {on_n2:?}"
    );
    assert_eq!(fabric.keys(&format!("{RESOURCES}/workloadendpoints/")).len(), PODS);
    assert_everybody_reaches(&on_n1, &on_n2);
    assert_everybody_reaches(&on_n2, &on_n1);

    std::thread::scope(|scope| {
        scope.spawn(|| n1.containerd.remove_all(&on_n1));
        scope.spawn(|| n2.containerd.remove_all(&on_n2));
    });
    n1.containerd.assert_forgotten(&on_n1);
    n2.containerd.assert_forgotten(&on_n2);
    for worker in &workers {
        eventually(TIMEOUT, || worker.pods_links().is_empty());
    }
    assert_eq!(contents(&fabric), before);
}
