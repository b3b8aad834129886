//! The daemon with `-kube-subnet-mgr`, against a server with the API's objects (flannel.md section
//! 5).

use std::path::PathBuf;
use std::process::Command;

use russet_kube::testing::Server;
use russet_testkit::{Process, eventually};
use serde_json::{Value, json};

use super::lab::{Host, Lab};
use crate::node::TIMEOUT;

const PREFIX: &str = "flannel.alpha.coreos.com/";

/// One node, and an API server on its loopback.
struct KubeNode {
    server: Server,
    host: Host,
    files: tempfile::TempDir,
    _lab: Lab,
}

fn peer(range: &str, public_ip: &str, mac: &str) -> Value {
    let data = format!(r#"{{"VNI":1,"VtepMAC":"{mac}"}}"#);
    json!({ "kind": "Node", "metadata": { "name": "n2", "annotations": {
        format!("{PREFIX}kube-subnet-manager"): "true", format!("{PREFIX}backend-type"): "vxlan",
        format!("{PREFIX}backend-data"): data, format!("{PREFIX}public-ip"): public_ip,
    } }, "spec": { "podCIDR": range, "podCIDRs": [range] } })
}

// === impl KubeNode ===

impl KubeNode {
    fn new(annotations: Value) -> Self {
        let mut lab = Lab::new("");
        lab.fabric.kill_etcd();
        let host = lab.host(&[]);
        let server = host.node.netns().with(Server::start).unwrap();
        server.put(json!({ "kind": "Node", "metadata": { "name": "n1", "annotations": annotations },
            "spec": { "podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"] } }));
        let bench = Self { server, host, files: tempfile::tempdir().unwrap(), _lab: lab };
        let config = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
        std::fs::write(bench.file("net-conf.json"), config).unwrap();
        bench.server.write_kubeconfig(&bench.file("kubeconfig"));
        bench
    }

    fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    fn command(&self) -> Command {
        let mut command = self.host.command();
        command.arg("-kube-subnet-mgr").arg("-kubeconfig-file").arg(self.file("kubeconfig"));
        command.arg("-net-config-path").arg(self.file("net-conf.json"));
        command.env_remove("POD_NAME").env_remove("POD_NAMESPACE").env("NODE_NAME", "n1");
        command
    }

    fn annotation(&self, last: &str) -> Option<String> {
        self.server.annotation("Node", "", "n1", &format!("{PREFIX}{last}"))
    }
}

/// flannel.md sections 5.1, 5.2 and 10.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn t47_and_t48_and_t52_a_node_of_kubernetes_tells_of_itself_and_follows_the_others() {
    let known = "32:fc:b5:dc:f0:38";
    let data = format!(r#"{{"VNI":1,"VtepMAC":"{known}"}}"#);
    let mut bench = KubeNode::new(json!({ format!("{PREFIX}backend-data"): data.clone() }));
    let daemon = Process::start(&mut bench.command());
    bench.host.adopt(daemon);
    eventually(TIMEOUT, || bench.host.env_path().exists());
    assert_eq!(bench.host.env("FLANNEL_SUBNET"), "10.244.1.1/24");
    assert_eq!(bench.annotation("kube-subnet-manager").as_deref(), Some("true"));
    assert_eq!(bench.annotation("public-ip").as_deref(), Some("10.77.0.11"));
    assert_eq!(bench.annotation("backend-data"), Some(data), "the MAC that peers know is kept");
    assert!(bench.host.ip(&["-o", "link", "show", "flannel.1"]).contains(known));
    let condition = || bench.server.object("Node", "", "n1").unwrap()["status"]["conditions"].to_string();
    eventually(TIMEOUT, || condition().contains("FlannelIsUp"));
    bench.server.put(peer("10.244.2.0/24", "10.77.0.12", "0a:00:00:00:00:02"));
    bench.host.routes_to("10.244.2.0-24");
    bench.server.put(peer("10.244.2.0/24", "10.77.0.52", "0a:00:00:00:00:05"));
    eventually(TIMEOUT, || bench.host.fdb().contains("0a:00:00:00:00:05 dst 10.77.0.52"));
    bench.server.delete("Node", "", "n2");
    eventually(TIMEOUT, || !bench.host.ip(&["route"]).contains("10.244.2.0"));
    assert!(!bench.host.fdb().contains("10.77.0.52"));
    bench.host.stop();
    assert!(bench.annotation("public-ip").is_some(), "annotations stay");
}

/// flannel.md sections 1.4, 5.1, 5.2 and 10.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn t50_a_node_without_a_name_a_range_or_a_configuration_ends_with_1() {
    let bench = KubeNode::new(json!({}));
    let code = |command: &mut Command| command.status().unwrap().code();
    assert_eq!(code(bench.command().env_remove("NODE_NAME")), Some(1));
    assert_eq!(code(bench.command().arg("-kube-annotation-prefix=nodots")), Some(1));
    std::fs::remove_file(bench.file("net-conf.json")).unwrap();
    assert_eq!(code(&mut bench.command()), Some(1));
    let config = r#"{"Network":"10.9.0.0/16","Backend":{"Type":"vxlan"}}"#;
    std::fs::write(bench.file("net-conf.json"), config).unwrap();
    assert_eq!(code(&mut bench.command()), Some(1), "the range is outside of the network");
    assert!(!bench.host.env_path().exists());
}
