//! Russet's own network: packaging/kubernetes/russet.yaml, addresses from Calico's resources and vxlan between the nodes.

use std::time::Duration;

use russet_testkit::{eventually, let_pass};

use crate::lab::{BETWEEN_LOOKS, Lab, TIMEOUT, in_lab, manifest};
use crate::life::{self, DaemonSet};

const AGENTS: DaemonSet = DaemonSet {
    namespace: "russet-system",
    name: "daemonset/russet-agent",
    label: "app.kubernetes.io/component=agent",
    process: "[r]usset agent",
};
/// The blocks of a deleted node return once its agent's lease, which says 6 minutes, has not changed for
/// that long.
const NODE_FORGOTTEN: Duration = Duration::from_secs(9 * 60);
/// The group of Calico's resources that the manifest defines.
const RESOURCES: &str = "/apis/crd.projectcalico.org/v1";

fn install(lab: &mut Lab) {
    lab.begin();
    // A test does not wait for a quarter of an hour until a controller trusts that a node is gone.
    let text = manifest("russet.yaml");
    let quick = text
        .replace("args: [controller, ", "args: [controller, --grace=5s, --tunnel-grace=5s, --interval=5s, ");
    assert_ne!(quick, text, "the controller's arguments are elsewhere");
    lab.cluster.apply(&quick);
    lab.wait_for_nodes();
    lab.report("manifest applied -> all nodes Ready");
    lab.rolled_out(AGENTS.name, AGENTS.namespace);
    lab.rolled_out("deployment/russet-controller", AGENTS.namespace);
    lab.report("all nodes Ready -> all agents and controllers ready");
}

/// The blocks that are affine to a node.
fn blocks_of(lab: &Lab, node: &str) -> usize {
    let affinities = lab.objects(&format!("{RESOURCES}/blockaffinities"));
    affinities.iter().filter(|affinity| affinity["spec"]["node"] == node).count()
}

#[test]
#[ignore = "root: makes namespaces and control groups; tool: kubelet, containerd, runc, ctr, rustc, nft, curl, openssl"]
fn smallest_manifest_connects_the_pods_of_three_nodes() {
    in_lab(|mut lab| {
        install(&mut lab);
        life::smallest(&mut lab, &AGENTS);
    });
}

#[test]
#[ignore = "root: makes namespaces and control groups; tool: kubelet, containerd, runc, ctr, rustc, nft, curl, openssl, pgrep"]
fn cluster_lives_through_kills_a_nodes_end_an_upgrade_and_a_rollback() {
    in_lab(|mut lab| {
        install(&mut lab);
        life::all(&mut lab, &AGENTS);
        // n3 was drained and deleted.
        assert!(blocks_of(&lab, "n1") > 0);
        eventually(NODE_FORGOTTEN, || blocks_of(&lab, "n3") == 0);
        lab.report("the blocks of the deleted node have returned");
        life::delete_pods(&mut lab);
        leave(&mut lab);
    });
}

/// The commands of docs/kubernetes.md. Nodes are as before the installation.
fn leave(lab: &mut Lab) {
    let controller = "deployment/russet-controller";
    lab.cluster.kubectl(&["-n", AGENTS.namespace, "delete", AGENTS.name, controller]);
    lab.cluster.apply(&manifest("russet-uninstall.yaml"));
    lab.rolled_out("daemonset/russet-uninstall", AGENTS.namespace);
    lab.report("removed from all nodes");
    for node in &lab.cluster.nodes {
        let run = |program: &str, arguments: &[&str]| node.machine.run(program, arguments);
        assert!(!run("nft", &["list", "tables"]).contains("russet"), "{}", node.name);
        let links = run("ip", &["-o", "link"]);
        assert!(!links.contains("russ") && !links.contains("vxlan"), "{}: {links}", node.name);
        assert!(!run("ip", &["route"]).contains("10.244."), "{}", node.name);
        let files =
            run("find", &["/opt/cni/bin", "/opt/russet", "/etc/cni/net.d", "/run/russet", "-type", "f"]);
        assert_eq!(files, "", "{}", node.name);
        let object = lab.cluster.server.object(&format!("/api/v1/nodes/{}", node.name)).unwrap();
        assert!(!object.to_string().contains("russet.dev/"), "{object}");
    }
    // Without a conflist kubelet says that the node is not ready.
    let names: Vec<String> =
        lab.cluster.nodes.iter().map(|node| format!("/api/v1/nodes/{}", node.name)).collect();
    for name in names {
        eventually(TIMEOUT, || {
            let_pass(BETWEEN_LOOKS);
            let conditions = lab.cluster.server.object(&name).unwrap()["status"]["conditions"].clone();
            conditions
                .as_array()
                .unwrap()
                .iter()
                .any(|found| found["type"] == "Ready" && found["status"] != "True")
        });
    }
}
