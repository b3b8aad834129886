//! `russet migrate flannel-v2` over a real etcd that serves both APIs (flannel.md sections 3.1, 3.1a).

use serde_json::Value;

use crate::node::Answer;
use crate::v1_data::OldEtcd;

const PREFIX: &str = "/coreos.com/network";
const CONFIG: &str = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#;
/// The format of v0.10.
const LEASE: &str =
    r#"{"PublicIP":"10.37.7.195","BackendType":"vxlan","BackendData":{"VtepMAC":"82:4b:b6:2f:54:4e"}}"#;
const RESERVED: &str = r#"{"PublicIP":"10.37.7.196","BackendType":"vxlan"}"#;

/// The data of a small network.
fn planted() -> OldEtcd {
    let old = OldEtcd::new("flannel-v2");
    old.v2.put(&format!("{PREFIX}/config"), CONFIG);
    old.v2.put_for(&format!("{PREFIX}/subnets/10.5.34.0-24"), LEASE, Some(40_000));
    old.v2.put(&format!("{PREFIX}/subnets/10.5.35.0-24"), RESERVED);
    old.v2.put(&format!("{PREFIX}/subnets/nonsense"), "x");
    old
}

fn put(old: &OldEtcd, below: &str, value: &str) {
    old.cluster.members[0].etcdctl(&["put", &format!("{PREFIX}/{below}"), value]);
}

/// What a lease was granted for in v3, and what it has left; None for a key that never expires.
fn time(old: &OldEtcd, subnet: &str) -> Option<(i64, i64)> {
    let json = |arguments: &[&str]| -> Value {
        serde_json::from_str(&old.cluster.members[0].etcdctl(arguments)).unwrap()
    };
    let found = json(&["get", &format!("{PREFIX}/subnets/{subnet}"), "--write-out=json"]);
    let id = format!("{:x}", found["kvs"][0]["lease"].as_i64()?);
    let output = json(&["lease", "timetolive", &id, "--write-out=json"]);
    Some((output["granted-ttl"].as_i64().unwrap(), output["ttl"].as_i64().unwrap()))
}

fn done(report: &Answer, key: &str) -> String {
    let report: Value = serde_json::from_str(&report.stdout).unwrap();
    let records = report["records"].as_array().unwrap();
    let row = records.iter().find(|row| row["key"] == format!("{PREFIX}/{key}")).unwrap();
    row["what"].as_str().unwrap().to_owned()
}

#[test]
#[ignore = "tool: etcd"]
fn a_v2_network_is_migrated_repeatedly_and_stays_unchanged() {
    let old = planted();
    let dry = old.migrate(&["--dry-run"]);
    assert_eq!(dry.status, 0, "{dry:?}");
    assert!(dry.stdout.contains("10.5.34.0-24") && dry.stdout.contains("nothing was written"), "{dry:?}");
    assert_eq!(old.v3(), "");

    let first = old.migrate(&["-o", "json"]);
    assert_eq!(first.status, 0, "{first:?}");
    for key in ["config", "subnets/10.5.34.0-24", "subnets/10.5.35.0-24"] {
        assert_eq!(done(&first, key), "created", "{key}");
    }
    assert!(first.stdout.contains("nonsense"), "{first:?}");
    let written = old.v3();
    let wanted = format!(
        "{PREFIX}/config\n{CONFIG}\n{PREFIX}/subnets/10.5.34.0-24\n{LEASE}\n{PREFIX}/subnets/10.5.35.0-24\n{RESERVED}\n"
    );
    assert_eq!(written, wanted);
    let (granted, left) = time(&old, "10.5.34.0-24").unwrap();
    assert!((39_000..=40_000).contains(&granted) && (39_000..=40_000).contains(&left), "{granted} {left}");
    assert_eq!(time(&old, "10.5.35.0-24"), None, "a reservation stays one");

    let again = old.migrate(&["-o", "json"]);
    assert_eq!((again.status, done(&again, "subnets/10.5.34.0-24")), (0, "already there".to_owned()));
    assert_eq!(old.v3(), written, "a second run changes nothing");
    assert_eq!(time(&old, "10.5.34.0-24").unwrap().0, granted);

    // One that was lost, and one that is new in the v2 data.
    old.cluster.members[0].etcdctl(&["del", &format!("{PREFIX}/subnets/10.5.34.0-24")]);
    old.v2.put_for(&format!("{PREFIX}/subnets/10.5.36.0-24"), r#"{"PublicIP":"10.37.7.197"}"#, Some(90));
    let more = old.migrate(&["-o", "json"]);
    assert_eq!(more.status, 0, "{more:?}");
    assert_eq!(done(&more, "subnets/10.5.34.0-24"), "created");
    assert_eq!(done(&more, "subnets/10.5.36.0-24"), "created");
    assert_eq!(old.v3().lines().count(), 8);
}

#[test]
#[ignore = "tool: etcd"]
fn another_config_is_refused_unless_forced_and_leases_of_others_are_never_overwritten() {
    let old = planted();
    put(&old, "config", r#"{"Network":"10.6.0.0/16"}"#);
    put(&old, "subnets/10.5.34.0-25", r#"{"PublicIP":"10.37.7.9"}"#);
    put(&old, "subnets/10.5.77.0-24", RESERVED);
    let before = old.v3();
    let refused = old.migrate(&[]);
    assert_eq!(refused.status, 3, "{refused:?}");
    assert!(
        refused.stdout.contains("another network config") && refused.stdout.contains("overlaps"),
        "{refused:?}"
    );
    assert_eq!(old.v3(), before, "nothing was written");
    let forced = old.migrate(&["--force", "-o", "json"]);
    assert_eq!(forced.status, 0, "{forced:?}");
    assert_eq!(done(&forced, "config"), "overwritten");
    assert_eq!(done(&forced, "subnets/10.5.34.0-24"), "left out");
    assert_eq!(done(&forced, "subnets/10.5.35.0-24"), "moved", "its node has another lease by now");
    let after = old.v3();
    assert!(
        after.contains(CONFIG) && after.contains("10.5.34.0-25") && !after.contains("10.5.34.0-24"),
        "{after}"
    );
}

#[test]
#[ignore = "tool: etcd"]
fn a_prefix_without_data_is_an_error_and_not_an_empty_network() {
    let old = planted();
    let nothing = old.migrate(&["--prefix", "/elsewhere"]);
    assert_eq!(nothing.status, 1, "{nothing:?}");
    assert!(nothing.stderr.contains("--prefix"), "{nothing:?}");
    assert_eq!(old.v3(), "");
}
