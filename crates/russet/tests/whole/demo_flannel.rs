//! The demo with Russet's implementation of flannel's daemon and plugin.

use std::path::PathBuf;

use crate::demo::assert_all_reached;
use crate::host::{HostState, Russet, demo_turn};
use russet_testkit::etcd::Cluster;

fn assert_backend_reaches_all(args: &[&str], families: usize) {
    let _turn = demo_turn();
    let before = (HostState::now(), own_files());
    let report = Russet::demo(&[&["--fabric", "flannel"], args].concat()).json();
    let pings = report["pings"].as_array().unwrap();
    assert_eq!(pings.len(), families * (6 * 5 + 6), "a pair or a family is missing");
    assert!(pings.iter().all(|ping| ping["ok"] == true), "{report}");
    let subnets = report["blocks"].as_array().unwrap();
    assert_eq!(subnets.len(), families * 3, "{report}");
    assert!(subnets.iter().all(|subnet| subnet["used"] == 2 && subnet["node"].is_string()), "{report}");
    assert_eq!((HostState::now(), own_files()), before);
}

/// Stores and locks of a node that is the host itself.
fn own_files() -> Vec<PathBuf> {
    let list = |dir| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = ["/run/russet", "/var/lib/russet"].into_iter().flat_map(list).collect();
    files.sort();
    files
}

#[test]
#[ignore = "root: makes network namespaces"]
fn pods_of_flannel_reach_each_other_over_vxlan_on_both_families() {
    assert_backend_reaches_all(&["--backend", "vxlan"], 2);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn pods_of_flannel_reach_each_other_over_routes_on_both_families() {
    assert_backend_reaches_all(&["--backend", "host-gw"], 2);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn pods_of_flannel_reach_each_other_over_udp() {
    assert_backend_reaches_all(&["--backend", "udp"], 1);
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn an_etcd_of_the_host_serves_flannels_demo_and_is_empty_afterwards() {
    let _turn = demo_turn();
    let etcd = Cluster::single();
    let report = Russet::demo(&["--fabric", "flannel", "--etcd", &etcd.members[0].url()]).json();
    assert_all_reached(&report, 3, 2);
    let left = etcd.members[0].etcdctl(&["get", "/", "--prefix", "--keys-only"]);
    assert_eq!(left.trim(), "");
}

#[test]
fn a_backend_without_flannel_is_refused() {
    let output = Russet::demo(&["--backend", "udp"]).output();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("--fabric flannel"), "{output:?}");
}
