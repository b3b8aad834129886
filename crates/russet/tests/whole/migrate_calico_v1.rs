//! `russet migrate calico-v1` over a real etcd that serves both APIs.

use std::process::Command;

use russet_testkit::etcd::Cluster;
use serde_json::Value;

use crate::node::Answer;
use crate::v1_data::{OldEtcd, block};

const POOL: &str = "/calico/resources/v3/projectcalico.org/ippools/10-1-0-0-24";
const BLOCK: &str = "/calico/ipam/v2/assignment/ipv4/block/10.1.0.0-26";

/// The data of a small cluster of v1.
fn planted() -> OldEtcd {
    let old = OldEtcd::new("calico-v1");
    for (key, value) in [
        ("/calico/v1/Ready", "false"),
        (
            "/calico/v1/ipam/v4/pool/10.1.0.0-24",
            r#"{"cidr":"10.1.0.0/24","ipip":"","ipip_mode":"","masquerade":true,"ipam":true,"disabled":false}"#,
        ),
        (BLOCK, &block("10.1.0.0/26", "n1", "k8s-pod-network.f00d")),
        ("/calico/ipam/v2/host/n1/ipv4/block/10.1.0.0-26", "{}"),
        ("/calico/ipam/v2/handle/k8s-pod-network.f00d", r#"{"block":{"10.1.0.0/26":1}}"#),
        (
            "/calico/v1/host/n1/workload/k8s/shop.web-0/endpoint/eth0",
            r#"{"state":"active","name":"calia4fc3c48bd8","active_instance_id":"f00d","mac":"8e:01:7c:aa:10:f3","profile_ids":["k8s_ns.shop"],"ipv4_nets":["10.1.0.0/32"],"ipv6_nets":[],"labels":{"calico/k8s_ns":"shop"}}"#,
        ),
        ("/calico/v1/policy/profile/k8s_ns.shop/tags", r#"["k8s_ns.shop"]"#),
        (
            "/calico/v1/policy/profile/k8s_ns.shop/rules",
            r#"{"inbound_rules":[{"action":"allow"}],"outbound_rules":[{"action":"allow"}]}"#,
        ),
        ("/calico/bgp/v1/host/n1/ip_addr_v4", "10.0.0.7"),
        ("/calico/bgp/v1/host/n1/network_v4", "10.0.0.0/24"),
    ] {
        old.v2.put(key, value);
    }
    old
}

fn count(report: &Answer, kind: &str, column: &str) -> u64 {
    let report: Value = serde_json::from_str(&report.stdout).unwrap();
    let kinds = report["kinds"].as_array().unwrap();
    let row = kinds.iter().find(|row| row["kind"] == kind).unwrap();
    row[column].as_u64().unwrap()
}

#[test]
#[ignore = "tool: etcd"]
fn a_v1_cluster_is_migrated_repeatedly_and_stays_unchanged() {
    let old = planted();
    let before = old.v2.everything();
    let dry = old.migrate(&["--dry-run"]);
    assert_eq!(dry.status, 0, "{dry:?}");
    assert!(dry.stdout.contains(POOL) && dry.stdout.contains("nothing was written"), "{dry:?}");
    assert_eq!(old.v3(), "");

    let done = old.migrate(&["-o", "json"]);
    assert_eq!(done.status, 0, "{done:?}");
    for kind in ["blocks", "handles", "affinities", "nodes", "profiles", "endpoints", "pools"] {
        assert_eq!(count(&done, kind, "created"), 1, "{kind}: {done:?}");
    }
    let written = old.v3();
    assert!(
        written.contains(r#""affinity":"host:n1""#) && written.contains("n1-k8s-web--0-eth0"),
        "{written}"
    );
    assert_eq!(old.v2.everything(), before, "v2 is only read");

    let again = old.migrate(&["-o", "json"]);
    assert_eq!(again.status, 0, "{again:?}");
    assert_eq!((count(&again, "blocks", "created"), count(&again, "blocks", "already")), (0, 1));
    assert_eq!(old.v3(), written, "a second run changes nothing");

    // The new store is consistent: the allocator's own check finds nothing.
    let mut check = Command::new(env!("CARGO_BIN_EXE_russet"));
    let check: Answer =
        check.args(["ipam", "check", "--store", &old.cluster.location()]).output().unwrap().into();
    assert_eq!(check.status, 0, "{check:?}");
}

#[test]
#[ignore = "tool: etcd"]
fn an_interrupted_migration_is_resumed() {
    let old = planted();
    assert_eq!(old.migrate(&[]).status, 0);
    let whole = old.v3();
    for key in [POOL, BLOCK] {
        old.cluster.members[0].etcdctl(&["del", key]);
    }
    let resumed = old.migrate(&["-o", "json"]);
    assert_eq!(resumed.status, 0, "{resumed:?}");
    assert_eq!(count(&resumed, "blocks", "created") + count(&resumed, "handles", "already"), 2);
    assert_eq!(old.v3().lines().count(), whole.lines().count());
}

#[test]
#[ignore = "tool: etcd"]
fn differing_records_of_the_new_store_are_kept_unless_forced() {
    let old = planted();
    let theirs = block("10.1.0.0/26", "n2", "k8s-pod-network.beef");
    old.cluster.members[0].etcdctl(&["put", BLOCK, &theirs]);
    let refused = old.migrate(&[]);
    assert_eq!(refused.status, 3, "{refused:?}");
    assert!(refused.stdout.contains(BLOCK) && refused.stdout.contains("--force"), "{refused:?}");
    assert_eq!(old.v3().lines().count(), 2, "nothing was written");
    let forced = old.migrate(&["--force", "-o", "json"]);
    assert_eq!(forced.status, 0, "{forced:?}");
    assert_eq!(count(&forced, "blocks", "overwritten"), 1);
    assert!(old.v3().contains("host:n1") && !old.v3().contains("host:n2"));
}

#[test]
#[ignore = "tool: etcd"]
fn open_v1_data_are_refused_unless_an_option_allows_them() {
    let old = planted();
    old.v2.put("/calico/v1/Ready", "true");
    let refused = old.migrate(&[]);
    assert_eq!(refused.status, 1, "{refused:?}");
    assert!(refused.stderr.contains("set /calico/v1/Ready false"), "{refused:?}");
    assert_eq!(old.v3(), "", "nothing was written");
    assert_eq!(old.migrate(&["--v1-open"]).status, 0);
    assert!(old.v3().contains(POOL));
}

#[test]
#[ignore = "tool: etcd"]
fn a_store_with_pools_is_in_use_and_force_is_refused() {
    let old = planted();
    assert_eq!(old.migrate(&[]).status, 0);
    let theirs = block("10.1.0.0/26", "n1", "k8s-pod-network.beef");
    old.cluster.members[0].etcdctl(&["put", BLOCK, &theirs]);
    let before = old.v3();
    let refused = old.migrate(&["--force"]);
    assert_eq!(refused.status, 1, "{refused:?}");
    assert!(
        refused.stderr.contains("pools") && refused.stderr.contains("nothing was written"),
        "{refused:?}"
    );
    assert_eq!(old.v3(), before);
}

#[test]
#[ignore = "tool: etcd"]
fn invalid_names_are_listed_and_nothing_is_written() {
    let old = planted();
    old.v2.put("/calico/v1/policy/profile/kns.shop/tags", "[]");
    old.v2.put("/calico/v1/host/Node_1/metadata", "{}");
    let refused = old.migrate(&["--force"]);
    assert_eq!(refused.status, 3, "{refused:?}");
    for name in ["kns.shop", "k8s_ns.shop", "Node_1"] {
        assert!(refused.stdout.contains(name), "{name}: {refused:?}");
    }
    assert_eq!(old.v3(), "");
}

#[test]
#[ignore = "tool: etcd"]
fn an_empty_or_wrong_etcd_is_an_error() {
    let cluster = Cluster::start(1, "http", |_| vec!["--enable-v2".to_owned()], Vec::new());
    let without = Cluster::single();
    for (from, said) in
        [(cluster.members[0].url(), "no data of Calico v1"), (without.members[0].url(), "--enable-v2")]
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args(["migrate", "calico-v1", "--from", &from, "--to", &cluster.location()]);
        let answer: Answer = command.output().unwrap().into();
        assert_eq!(answer.status, 1, "{answer:?}");
        assert!(answer.stderr.contains(said), "{answer:?}");
    }
}
