//! Several nodes of a Kubernetes cluster (flannel.md section 5): their daemons against one API
//! server on the hub.

use std::path::PathBuf;

use russet_kube::testing::Server;
use russet_linux::NetNs;
use russet_testkit::eventually;
use serde_json::json;
use tempfile::TempDir;

use super::lab::{Host, Lab};
use crate::node::TIMEOUT;

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
