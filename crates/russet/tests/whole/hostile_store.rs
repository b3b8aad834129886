//! A store in which another program changes many bad records again and again: what daemons log of it has a limit, and good records are used meanwhile.

use russet_testkit::eventually;

use crate::fabric::Fabric;
use crate::flannel::{Lab, PREFIX};
use crate::node::TIMEOUT;

/// How often the records are changed, and how many there are: 4,000 changes, each with another reason to refuse the record.
const ROUNDS: usize = 40;
const RECORDS: usize = 100;
/// Lines of the log that this may take: ten for each kind of refusal and minute, of which several are possible at once, and the minute may change meanwhile.
const LINES_MAX: usize = 100;

/// Changes the records that `key` names, all of them in each round.
fn change_bad_records(fabric: &Fabric, key: impl Fn(usize) -> String) {
    for round in 0..ROUNDS {
        // The place of the fault, which the reason names, moves with the blanks.
        let bad = |number: usize| (key(number), format!("{}{{bad {number}", " ".repeat(round)));
        fabric.put_all(&(0..RECORDS).map(bad).collect::<Vec<_>>());
    }
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn an_agents_log_stays_short_while_bad_records_change() {
    let mut fabric = Fabric::new();
    let mut node = fabric.node("a", &[]);
    node.start_agent();
    let before = node.log().lines().count();
    let resources = "/calico/resources/v3/projectcalico.org";
    change_bad_records(&fabric, |number| format!("{resources}/nodes/bad-{number}"));
    change_bad_records(&fabric, |number| format!("{resources}/ippools/bad-{number}"));
    change_bad_records(&fabric, |number| {
        format!("/calico/ipam/v2/host/bad-{number}/ipv4/block/10.244.{number}.0-26")
    });
    // The last of the changes is behind the agent when it has seen a good record that came after them.
    let mut other = fabric.node("b", &[]);
    other.start_agent();
    let pod = other.pod();
    assert_eq!(other.add(&pod).status, 0);
    let address = "10.77.0.12";
    eventually(TIMEOUT, || {
        let shown = russet_testkit::run("ip", &["-n", node.netns_name(), "route", "show", "proto", "114"]);
        let neighbours = russet_testkit::run("bridge", &["-n", node.netns_name(), "fdb", "show"]);
        shown.contains(address) || neighbours.contains(address)
    });
    let log = node.log();
    let lines = log.lines().count() - before;
    assert!(lines <= LINES_MAX, "{lines} lines:\n{log}");
    assert!(log.contains("bad-"), "what is refused is named:\n{log}");
    assert!(log.contains("others are left out for a while"), "{log}");
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd"]
fn flannelds_log_stays_short_while_bad_leases_change() {
    let mut lab = Lab::vxlan();
    let host = lab.running(&["-iface=eth0"]);
    let before = host.log().lines().count();
    change_bad_records(&lab.fabric, |number| format!("{PREFIX}/subnets/10.5.{}.0-24", number + 100));
    lab.put_peer("10.5.254.0-24", "10.77.0.99", "02:00:00:00:00:63");
    eventually(TIMEOUT, || host.fdb().contains("10.77.0.99"));
    let log = host.log();
    let lines = log.lines().count() - before;
    assert!(lines <= LINES_MAX, "{lines} lines:\n{log}");
    assert!(log.contains("10.5."), "what is refused is named:\n{log}");
    assert!(log.contains("others are left out for a while"), "{log}");
}
