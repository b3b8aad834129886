//! Several nodes of a Kubernetes cluster (flannel.md section 5): their daemons against one API
//! server on the hub.

use std::path::PathBuf;

use russet_kube::testing::Server;
use russet_linux::NetNs;
use russet_testkit::eventually;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::lab::{Host, Lab};
use super::takeover::sh;
use crate::node::TIMEOUT;
use crate::pinging::Pinging;

const PREFIX: &str = "flannel.alpha.coreos.com/";

/// Nodes of a Kubernetes cluster.
struct Cluster {
    lab: Lab,
    server: Server,
    files: TempDir,
}

impl Cluster {
    fn new(config: &str) -> Self {
        let lab = Lab::new("");
        let hub = NetNs::open_named(lab.fabric.hub()).unwrap();
        let server = hub.with(|| Server::start_at("10.77.0.1:0")).unwrap();
        let cluster = Self { lab, server, files: tempfile::tempdir().unwrap() };
        std::fs::write(cluster.file("net-conf.json"), config).unwrap();
        cluster.server.write_kubeconfig(&cluster.file("kubeconfig"));
        cluster
    }

    fn vxlan() -> Self {
        Self::new(r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    fn register(&self, name: &str, range: &str) {
        let ranges: Vec<&str> = Some(range).filter(|range| !range.is_empty()).into_iter().collect();
        self.server.put(json!({ "kind": "Node", "metadata": { "name": name },
            "spec": { "podCIDR": ranges.first(), "podCIDRs": ranges } }));
    }

    /// The machine of this node, without a daemon.
    fn host(&mut self, name: &str) -> Host {
        let kubeconfig = format!("-kubeconfig-file={}", self.file("kubeconfig").display());
        let net_conf = format!("-net-config-path={}", self.file("net-conf.json").display());
        let flags = ["-kube-subnet-mgr", "-allow-plaintext-credentials", &kubeconfig, &net_conf];
        self.lab.host(&flags).with_variable("NODE_NAME", name)
    }

    fn running(&mut self, name: &str, range: &str) -> Host {
        self.register(name, range);
        let mut host = self.host(name);
        host.start();
        host
    }

    fn annotation(&self, node: &str, last: &str) -> Option<String> {
        self.server.annotation("Node", "", node, &format!("{PREFIX}{last}"))
    }

    /// What flannel programs for a peer at its start and later, from the annotations of its node.
    fn program_as_flannel(&self, host: &Host, peer: &str, (range, public_ip): (&str, &str)) {
        let data = self.annotation(peer, "backend-data").unwrap();
        let data: Value = serde_json::from_str(&data).unwrap();
        let (mac, base) = (data["VtepMAC"].as_str().unwrap(), range.split('/').next().unwrap());
        sh(host, &format!("ip neigh replace {base} lladdr {mac} dev flannel.1 nud permanent"));
        sh(host, &format!("bridge fdb replace {mac} dev flannel.1 dst {public_ip} self permanent"));
        sh(host, &format!("ip route replace {range} via {base} dev flannel.1 onlink"));
    }

    fn patches(&self) -> usize {
        self.server
            .seen()
            .iter()
            .filter(|seen| seen.method == "PATCH" && seen.body.contains("annotations"))
            .count()
    }
}

/// flannel.md sections 5.2 and 10.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ping"]
fn t47_and_t48_kube_pods_reach_each_other_by_pod_cidrs_until_a_node_is_deleted() {
    let mut cluster = Cluster::vxlan();
    let mut one = cluster.running("n1", "10.244.1.0/24");
    let mut two = cluster.running("n2", "10.244.2.0/24");
    assert_eq!(one.env("FLANNEL_SUBNET"), "10.244.1.1/24");
    assert_eq!(one.env("FLANNEL_NETWORK"), "10.244.0.0/16");
    assert_eq!(cluster.annotation("n1", "public-ip").as_deref(), Some("10.77.0.11"));
    eventually(TIMEOUT, || {
        let node = cluster.server.object("Node", "", "n1").unwrap();
        node["status"]["conditions"][0]["reason"] == "FlannelIsUp"
    });
    let ((from, _), (_to, address)) = (one.pod(), two.pod());
    eventually(TIMEOUT, || from.pings(&["-W", "1", &address]));
    one.routes_to("10.244.2.0-24");
    cluster.server.delete("Node", "", "n2");
    eventually(TIMEOUT, || {
        !one.ip(&["route"]).contains("10.244.2.0/24") && !one.fdb().contains("10.77.0.12")
    });
}

/// flannel.md sections 5.1 and 10: the annotation outlives the device, and the daemon that wrote
/// it.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn t52_kube_a_device_that_is_made_anew_has_the_mac_that_peers_know() {
    let mut cluster = Cluster::vxlan();
    let mut host = cluster.running("n1", "10.244.1.0/24");
    let annotation = cluster.annotation("n1", "backend-data").unwrap();
    let mac = annotation
        .strip_prefix(r#"{"VNI":1,"VtepMAC":""#)
        .and_then(|rest| rest.strip_suffix(r#""}"#))
        .unwrap();
    assert!(host.ip(&["link", "show", "flannel.1"]).contains(mac), "{annotation}");
    let patches = cluster.patches();
    host.stop();
    host.ip(&["link", "del", "flannel.1"]);
    host.start();
    assert!(host.ip(&["link", "show", "flannel.1"]).contains(mac), "{annotation}");
    assert_eq!(cluster.patches(), patches, "the annotation was already written");
}

/// flannel.md section 5.1: what flannel's pod leaves when it ends is what Russet's finds, and the other
/// way round.
#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip, bridge, ping"]
fn kube_a_node_changes_its_daemon_and_changes_back_without_a_lost_packet() {
    const MAC: &str = "0a:70:0b:90:fc:11";
    let mut cluster = Cluster::vxlan();
    let mut here = cluster.host("n1");
    let mut annotations = json!({});
    for (name, value) in [
        ("backend-data", format!(r#"{{"VNI":1,"VtepMAC":"{MAC}"}}"#)),
        ("backend-type", "vxlan".to_owned()),
        ("kube-subnet-manager", "true".to_owned()),
        ("public-ip", "10.77.0.11".to_owned()),
    ] {
        annotations[format!("{PREFIX}{name}")] = json!(value);
    }
    cluster.server.put(json!({ "kind": "Node", "metadata": { "name": "n1", "annotations": annotations },
        "spec": { "podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"] } }));
    let mut there = cluster.running("n2", "10.244.2.0/24");
    let env = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
    std::fs::create_dir_all(here.env_path().parent().unwrap()).unwrap();
    std::fs::write(here.env_path(), env).unwrap();
    let device = format!("ip link add flannel.1 address {MAC} mtu 1450 type vxlan");
    sh(&here, &format!("{device} id 1 dev eth0 local 10.77.0.11 dstport 8472 nolearning"));
    sh(&here, "ip address add 10.244.1.0/32 dev flannel.1");
    sh(&here, "ip link set flannel.1 up");
    let peer = ("10.244.2.0/24", "10.77.0.12");
    cluster.program_as_flannel(&here, "n2", peer);
    let ((near, near_address), (far, far_address)) = (here.pod(), there.pod());
    let links = here.ip(&["-d", "link", "show", "type", "vxlan"]);
    let pings = [Pinging::start(&near, &far_address), Pinging::start(&far, &near_address)];

    here.start();
    let route = |host: &Host| host.ip(&["route", "show", peer.0]);
    eventually(TIMEOUT, || route(&here).contains("proto 115"));
    let is_same = |host: &Host| {
        assert_eq!(host.ip(&["-d", "link", "show", "type", "vxlan"]), links);
        let node = cluster.server.object("Node", "", "n1").unwrap();
        assert_eq!(node["metadata"]["annotations"], annotations);
    };
    is_same(&here);
    assert_eq!(here.env("FLANNEL_SUBNET"), "10.244.1.1/24");

    here.stop();
    cluster.program_as_flannel(&here, "n2", peer);
    pings.into_iter().for_each(Pinging::finish);
    is_same(&here);
    assert!(!route(&here).contains("proto 115"), "{}", route(&here));
}

/// flannel.md sections 5.1 and 10.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn t51_kube_peers_tunnel_to_an_overwritten_public_ip() {
    let mut cluster = Cluster::vxlan();
    cluster.register("n2", "10.244.2.0/24");
    let mut node = cluster.server.object("Node", "", "n2").unwrap();
    node["metadata"]["annotations"][format!("{PREFIX}public-ip-overwrite")] = json!("198.51.100.7");
    cluster.server.put(node);
    let one = cluster.running("n1", "10.244.1.0/24");
    let mut two = cluster.host("n2");
    two.start();
    assert_eq!(cluster.annotation("n2", "public-ip").as_deref(), Some("198.51.100.7"));
    eventually(TIMEOUT, || one.fdb().contains("dst 198.51.100.7"));
}

/// flannel.md section 1.5.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn a_daemon_that_waits_for_the_api_server_ends_when_it_is_told_to() {
    let mut cluster = Cluster::vxlan();
    let mut host = cluster.host("n1");
    cluster.server.fail_next(usize::MAX, 503);
    host.spawn();
    eventually(TIMEOUT, || host.log().contains("waiting for this node"));
    host.stop();
    assert!(!host.env_path().exists());
}
