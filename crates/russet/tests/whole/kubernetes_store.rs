//! Commands on Calico's data in the Kubernetes API, over the test server: no agent, no namespace.

use std::process::Command;

use russet_kube::testing::Server;
use russet_testkit::spawn_with_input;
use serde_json::json;
use tempfile::TempDir;

use crate::node::Answer;

/// calico-ipam.md TV2: one address is allocated.
const BLOCK: &str = r#"{"cidr":"10.1.0.16/29","affinity":"host:node-a","allocations":[0,null,null,null,null,null,null,null],"unallocated":[1,2,3,4,5,6,7],"attributes":[{"handle_id":"net.aaaa","secondary":{"namespace":"default","node":"node-a","pod":"web-0"}}],"sequenceNumber":1767322800000000001,"sequenceNumberForAllocation":{"0":1767322800000000000},"deleted":false}"#;
const POOL: &str = "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: blue}\nspec: {cidr: 10.1.0.0/24, blockSize: 29}\n";
const GROUP: &str = "crd.projectcalico.org";

/// A cluster, and a kubeconfig for it.
struct Cluster {
    server: Server,
    directory: TempDir,
}

impl Cluster {
    /// A cluster with a node, a pool and a block.
    fn with_a_block() -> Self {
        let server = Server::start();
        server.install(GROUP);
        server.put(json!({ "kind": "Node", "metadata": { "name": "node-a" } }));
        server.put(json!({ "kind": "Pod", "metadata": { "name": "web-0", "namespace": "default",
                "annotations": { "cni.projectcalico.org/containerID": "aaaa", "cni.projectcalico.org/podIPs": "10.1.0.16/32" } },
            "spec": { "nodeName": "node-a" } }));
        let directory = tempfile::tempdir().unwrap();
        server.write_kubeconfig(&directory.path().join("kubeconfig"));
        let cluster = Self { server, directory };
        cluster.good(&["apply", "-f", "-"], POOL);
        let records = [
            ("/calico/ipam/v2/assignment/ipv4/block/10.1.0.16-29", BLOCK),
            (
                "/calico/ipam/v2/host/node-a/ipv4/block/10.1.0.16-29",
                r#"{"state":"confirmed","deleted":false}"#,
            ),
            ("/calico/ipam/v2/handle/net.aaaa", r#"{"block":{"10.1.0.16/29":1},"deleted":false}"#),
        ];
        for (key, value) in records {
            cluster.good(&["store", "put", key, value], "");
        }
        cluster
    }

    fn run(&self, args: &[&str], stdin: &str) -> Answer {
        let store = format!("kubernetes:{}", self.directory.path().join("kubeconfig").display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args(args).args(["--store", &store]).arg("--root").arg(self.directory.path());
        command.env_remove("RUSSET_STORE").env_remove("CALICO_API_GROUP");
        spawn_with_input(&mut command, stdin).wait_with_output().unwrap().into()
    }

    fn good(&self, args: &[&str], stdin: &str) -> String {
        let answer = self.run(args, stdin);
        assert_eq!(answer.status, 0, "{args:?}: {answer:?}");
        answer.stdout
    }
}

#[test]
fn commands_read_and_change_calicos_data_in_the_kubernetes_api() {
    // kubernetes.md section 1.2
    let cluster = Cluster::with_a_block();
    let stored = cluster.server.object("IPAMBlock.crd.projectcalico.org", "", "10-1-0-16-29").unwrap();
    assert_eq!(stored["spec"]["strictAffinity"], json!(false));
    assert!(cluster.good(&["get", "ippool"], "").contains("blue"));
    assert!(cluster.good(&["get", "workloadendpoint", "-A"], "").contains("10.1.0.16/32"));
    let shown = cluster.good(&["ipam", "show"], "");
    assert!(shown.contains("10.1.0.0/24"), "{shown}");
    let owner = cluster.good(&["ipam", "show", "--ip", "10.1.0.16"], "");
    assert!(owner.contains("net.aaaa"), "{owner}");
    let checked = cluster.run(&["ipam", "check"], "");
    assert_eq!(checked.status, 0, "{checked:?}");
    cluster.good(&["ipam", "release", "--ip", "10.1.0.16", "--force"], "");
    let stored = cluster.server.object("IPAMBlock.crd.projectcalico.org", "", "10-1-0-16-29").unwrap();
    assert_eq!(stored["spec"]["allocations"][0], json!(null));
    assert_eq!(stored["spec"]["sequenceNumber"], json!(1_767_322_800_000_000_002_u64));
    cluster.good(&["delete", "ippool", "blue"], "");
    assert!(cluster.server.object("IPPool.crd.projectcalico.org", "", "blue").is_none());
}

#[test]
fn the_network_configuration_of_another_network_that_comes_first_is_a_finding() {
    // kubernetes.md K98
    let root = tempfile::tempdir().unwrap();
    let net = root.path().join("etc/cni/net.d");
    std::fs::create_dir_all(&net).unwrap();
    let conflist = |name: &str, plugin: &str| {
        let text =
            format!(r#"{{"cniVersion":"1.1.0","name":"{plugin}-net","plugins":[{{"type":"{plugin}"}}]}}"#);
        std::fs::write(net.join(name), text).unwrap();
    };
    let check = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args(["kube", "check", "--root"]).arg(root.path()).args(more).env_remove("RUSSET_STORE");
        Answer::from(spawn_with_input(&mut command, b"").wait_with_output().unwrap())
    };
    conflist("10-russet.conflist", "russet");
    assert_eq!(check(&[]).status, 0);
    conflist("10-calico.conflist", "calico");
    let found = check(&[]);
    assert_eq!(found.status, 3, "{found:?}");
    assert!(found.stdout.contains("10-calico.conflist: it comes before 10-russet.conflist"), "{found:?}");
    let report: serde_json::Value = serde_json::from_str(&check(&["-o", "json"]).stdout).unwrap();
    assert_eq!(report["findings"][0]["kind"], "conflist-order");
    assert_eq!(check(&["--store", "etcd:http://127.0.0.1:1"]).status, 1);
    std::fs::remove_file(net.join("10-calico.conflist")).unwrap();
    let cluster = Cluster::with_a_block();
    let kubeconfig = format!("kubernetes:{}", cluster.directory.path().join("kubeconfig").display());
    let looked = check(&["--store", &kubeconfig]);
    assert_eq!(looked.status, 0, "{looked:?}");
    assert!(looked.stdout.contains("looked at: node and cluster"), "{looked:?}");
}
