//! Russet in flannel's place: packaging/kubernetes/russet-flannel.yaml.

use crate::lab::{Lab, in_lab, manifest};
use crate::life::{self, DaemonSet};

const DAEMONS: DaemonSet = DaemonSet {
    namespace: "kube-flannel",
    name: "daemonset/kube-flannel-ds",
    label: "app=flannel",
    process: "[r]usset flanneld",
};

fn install(lab: &mut Lab) {
    lab.begin();
    lab.cluster.apply(&manifest("russet-flannel.yaml"));
    lab.wait_for_nodes();
    lab.report("manifest applied -> all nodes Ready");
    lab.rolled_out(DAEMONS.name, DAEMONS.namespace);
    lab.report("all nodes Ready -> all daemons ready");
}

#[test]
#[ignore = "root: makes namespaces and control groups; tool: kubelet, containerd, runc, ctr, rustc, nft, curl, openssl"]
fn smallest_flannels_manifest_connects_the_pods_of_three_nodes() {
    in_lab(|mut lab| {
        install(&mut lab);
        life::smallest(&mut lab, &DAEMONS);
    });
}

#[test]
#[ignore = "root: makes namespaces and control groups; tool: kubelet, containerd, runc, ctr, rustc, nft, curl, openssl, pgrep"]
fn flannels_cluster_lives_through_kills_a_nodes_end_an_upgrade_and_a_rollback() {
    in_lab(|mut lab| {
        install(&mut lab);
        life::all(&mut lab, &DAEMONS);
        life::delete_pods(&mut lab);
        for node in &lab.cluster.nodes {
            let ports = node.machine.run("ip", &["-o", "link", "show", "master", "cni0"]);
            assert_eq!(ports, "", "{}", node.name);
            let held = node.machine.run("find", &["/var/lib/cni/networks/cbr0", "-name", "10.*"]);
            assert_eq!(held, "", "{}", node.name);
        }
        lab.cluster.kubectl(&["delete", "namespace", DAEMONS.namespace, "--wait"]);
        lab.report("the network's namespace deleted");
    });
}
