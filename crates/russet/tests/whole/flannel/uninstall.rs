//! `russet uninstall` on a node of flannel's: what Russet's daemon has left goes, and what another flannel uses stays.

use std::path::PathBuf;

use super::lab::{Host, Lab};
use crate::node::Answer;

/// The node's network as other programs see it.
fn kernel(host: &Host) -> String {
    let shown =
        [&["-o", "link"][..], &["route", "show", "table", "all"], &["-6", "route", "show", "table", "all"]];
    let mut all: Vec<String> = shown.iter().map(|args| host.ip(args)).collect();
    all.push(host.nft(&["list", "tables"]));
    all.join("\n")
}

/// The daemon's file at its default place.
fn put_subnet_file(host: &Host, text: &str) -> PathBuf {
    let path = host.node.path("run/flannel/subnet.env");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    path
}

#[track_caller]
fn uninstall(host: &Host) -> Answer {
    let answer = host.node.russet_inside(&["uninstall"]);
    assert_eq!(answer.status, 0, "{answer:?}");
    answer
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, etcdctl, ip, nft"]
fn what_the_daemon_left_is_removed_once_it_has_ended() {
    let mut lab = Lab::vxlan();
    let mut host = lab.host(&["-ip-masq"]);
    let before = kernel(&host);
    host.start();
    lab.put_peer("10.5.207.0-24", "10.77.0.99", "02:00:00:00:00:07");
    host.routes_to("10.5.207.0-24");
    let file = put_subnet_file(&host, &std::fs::read_to_string(host.env_path()).unwrap());
    let running = kernel(&host);
    assert!(running.contains("flannel.1") && running.contains("table ip flannel-ipv4"), "{running}");
    let kept = uninstall(&host);
    let pid = host.pid().as_raw_nonzero();
    assert!(kept.stderr.contains(&format!("runs (process {pid})")), "{kept:?}");
    assert_eq!(kernel(&host), running);
    assert!(file.exists());
    host.stop();
    let removed = uninstall(&host);
    assert!(removed.stdout.contains("delete link flannel.1 (of russet flanneld)"), "{removed:?}");
    assert_eq!(kernel(&host), before);
    assert!(!file.parent().unwrap().exists());
    let again = host.node.russet_inside(&["owned", "-o", "json"]);
    assert!(!again.stdout.contains("flannel"), "{again:?}");
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip, nft"]
fn the_network_of_a_flannel_that_works_there_again_stays() {
    let mut lab = Lab::vxlan();
    let host = lab.host(&[]);
    host.ip(&[
        "link",
        "add",
        "flannel.1",
        "type",
        "vxlan",
        "id",
        "1",
        "dstport",
        "8472",
        "local",
        "10.77.0.11",
        "nolearning",
    ]);
    host.ip(&["link", "set", "flannel.1", "up"]);
    host.ip(&["address", "add", "10.5.1.0/32", "dev", "flannel.1"]);
    host.ip(&["route", "add", "10.5.2.0/24", "via", "10.5.2.0", "dev", "flannel.1", "onlink"]);
    host.nft(&["add", "table", "ip", "flannel-ipv4"]);
    let file = put_subnet_file(&host, "FLANNEL_NETWORK=10.5.0.0/16\n");
    let foreign = kernel(&host);
    // Russet's daemon worked there before.
    host.ip(&[
        "route",
        "add",
        "10.5.3.0/24",
        "via",
        "10.5.3.0",
        "dev",
        "flannel.1",
        "onlink",
        "proto",
        "115",
    ]);
    host.nft(&["add", "table", "inet", "russet-flannel-1"]);
    let removed = uninstall(&host);
    assert!(removed.stdout.contains("russet-flannel-1"), "{removed:?}");
    assert_eq!(kernel(&host), foreign);
    assert!(file.exists());
}
