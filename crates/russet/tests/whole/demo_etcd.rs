//! The demo with its data in etcd: a spawned one, or an existing one.

use crate::demo::assert_all_reached;
use crate::host::{HostState, Russet, demo_turn};
use russet_testkit::etcd::Cluster;
use rustix::process::Signal;

fn records(etcd: &Cluster) -> usize {
    etcd.members[0].etcdctl(&["get", "/", "--prefix", "--keys-only"]).split_whitespace().count()
}

fn url(etcd: &Cluster) -> String {
    etcd.members[0].url()
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn pods_reach_each_other_with_an_etcd_of_the_demo() {
    let _turn = demo_turn();
    let before = HostState::now();
    let report = Russet::demo(&["--etcd", "spawn"]).json();
    assert_all_reached(&report, 3, 2);
    assert_eq!(HostState::now(), before);
}

#[test]
#[ignore = "root: becomes an ordinary user who makes a user namespace; tool: etcd"]
fn an_ordinary_user_can_have_an_etcd_of_the_demo_but_not_the_hosts() {
    let _turn = demo_turn();
    let before = HostState::now();
    let report = Russet::demo(&["--etcd", "spawn"]).by_ordinary_user().json();
    assert_all_reached(&report, 3, 2);
    let refused = Russet::demo(&["--etcd", "http://127.0.0.1:1"]).by_ordinary_user().output();
    let output = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && output.contains("--etcd spawn"), "{output}");
    assert_eq!(HostState::now(), before);
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn an_etcd_of_the_host_serves_a_demo_and_is_empty_afterwards() {
    let _turn = demo_turn();
    let etcd = Cluster::single();
    let before = HostState::now();
    let report = Russet::demo(&["--etcd", &url(&etcd), "--keep"]).json();
    assert_all_reached(&report, 3, 2);
    let blocks = etcd.members[0].etcdctl(&["get", "/calico/ipam/v2/assignment/", "--prefix", "--keys-only"]);
    assert_eq!(blocks.split_whitespace().count(), report["blocks"].as_array().unwrap().len(), "{blocks}");
    assert!(Russet::demo(&["--clean"]).output().status.success());
    assert_eq!((records(&etcd), HostState::now()), (0, before));
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn an_etcd_that_a_killed_demo_used_is_cleaned_by_the_next_run() {
    let _turn = demo_turn();
    let etcd = Cluster::single();
    let before = HostState::now();
    let mut demo = Russet::demo(&["--etcd", &url(&etcd)]).start();
    demo.wait_for_progress("pings between");
    demo.signal(Signal::KILL);
    demo.finish();
    assert!(records(&etcd) > 0, "the demo had written nothing");
    assert_all_reached(&Russet::demo(&[]).json(), 3, 2);
    assert_eq!(records(&etcd), 0);
    before.assert_returns("killed");
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn an_etcd_that_holds_a_cluster_is_not_touched() {
    let _turn = demo_turn();
    let etcd = Cluster::single();
    let before = HostState::now();
    etcd.members[0].etcdctl(&["put", "/calico/resources/v3/projectcalico.org/ippools/mine", "{}"]);
    let refused = Russet::demo(&["--etcd", &url(&etcd)]).output();
    let output = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && output.contains("ippools/mine"), "{output}");
    assert_eq!((records(&etcd), HostState::now()), (1, before));
}
