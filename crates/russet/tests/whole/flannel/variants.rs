//! Variants of the daemon: the v2 API of old peers, iptables, the embedded store, the operator's
//! commands.

use std::process::{Command, Stdio};
use std::time::Duration;

use russet_testkit::{eventually, run};

use super::lab::{Host, Lab, PREFIX};
use crate::node::TIMEOUT;

/// flannel.md section 3.1a and section 12 item 1: two nodes on the keys API reach each other, and their leases
/// live a day there.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd with the v2 API, ping"]
fn two_nodes_on_the_v2_api_reach_each_other_and_hear_of_a_third() {
    let mut lab = Lab::new("");
    lab.fabric.etcdctl_v2(&[
        "set",
        &format!("{PREFIX}/config"),
        r#"{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}"#,
    ]);
    let (mut near, mut far) = (lab.running(&["-etcd-api=v2"]), lab.running(&["-etcd-api=v2"]));
    let ((from, _), (_, to)) = (near.pod(), far.pod());
    eventually(TIMEOUT, || from.pings(&["-W", "1", &to]));
    let value = lab.fabric.etcdctl_v2(&["get", &near.lease_key()]);
    assert!(value.contains(r#""PublicIP":"10.77.0.11""#), "{value}");
    assert!(lab.lease_keys().is_empty(), "the other store knows nothing of it");
    let third =
        r#"{"PublicIP":"10.77.0.99","BackendType":"vxlan","BackendData":{"VtepMAC":"02:00:00:00:00:99"}}"#;
    lab.fabric.etcdctl_v2(&["set", &format!("{PREFIX}/subnets/10.5.199.0-24"), third]);
    near.routes_to("10.5.199.0-24");
    lab.fabric.etcdctl_v2(&["rm", &format!("{PREFIX}/subnets/10.5.199.0-24")]);
    eventually(TIMEOUT, || !near.ip(&["route"]).contains("10.5.199.0"));
    lab.fabric.etcdctl_v2(&["rm", &far.lease_key()]);
    assert_eq!(far.ends().code(), Some(0), "{}", far.log());
}

fn chains(host: &Host) -> String {
    let netns = host.node.netns_name();
    let nat = run("ip", &["netns", "exec", netns, "iptables-save", "-t", "nat"]);
    let filter = run("ip", &["netns", "exec", netns, "iptables-save", "-t", "filter"]);
    (nat + &filter).lines().filter(|line| line.contains("FLANNEL")).collect::<Vec<_>>().join("\n")
}

/// flannel.md sections 7.1 and 10.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd, iptables, ping"]
fn t37_and_t38_in_iptables_flannels_chains_are_made_and_repaired() {
    let mut lab = Lab::vxlan();
    let flags = ["-ip-masq", "-firewall=iptables", "-iptables-resync=1"];
    let (mut near, mut far) = (lab.running(&flags), lab.running(&flags));
    let ((from, _), (_, to)) = (near.pod(), far.pod());
    eventually(TIMEOUT, || from.pings(&["-W", "1", &to]));
    assert!(from.pings(&["-W", "1", "10.77.0.1"]), "what leaves is masqueraded");
    let before = chains(&near);
    assert!(before.contains("-A POSTROUTING") && before.contains("-A FORWARD"), "{before}");
    let netns = near.node.netns_name().to_owned();
    let iptables = |args: &[&str]| {
        run("ip", &[&["netns", "exec", &netns, "iptables", "-w"], args].concat());
    };
    iptables(&["-t", "nat", "-F", "FLANNEL-POSTRTG"]);
    eventually(Duration::from_secs(6), || chains(&near) == before);
    iptables(&["-F", "FORWARD"]);
    eventually(Duration::from_secs(6), || chains(&near) == before);
    let mut without = lab.running(&["-iptables-forward-rules=false", "-firewall=iptables"]);
    assert_eq!(chains(&without), "", "neither part is wanted");
    without.stop();
}

/// docs/flanneld.md: daemons of one machine share its embedded store, whichever of them has it
/// open.
#[test]
#[ignore = "root: makes network namespaces; tool: ping"]
fn two_daemons_on_one_machines_store_reach_each_other() {
    let mut lab = Lab::new("");
    lab.fabric.kill_etcd();
    let shared = tempfile::tempdir().unwrap();
    let socket = shared.path().join("var/lib/russet/store.sock");
    let mut store = Command::new(env!("CARGO_BIN_EXE_russet"));
    store.args(["store", "serve", "--root"]).arg(shared.path());
    let mut store = store.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    eventually(TIMEOUT, || socket.exists());
    let put = Command::new(env!("CARGO_BIN_EXE_russet"))
        .args(["store", "put", "--root"])
        .arg(shared.path())
        .args([&format!("{PREFIX}/config"), r#"{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}"#])
        .output()
        .unwrap();
    assert!(put.status.success(), "{put:?}");
    let flag = format!("-store=unix:{}", socket.display());
    let (mut near, mut far) = (lab.running(&[&flag]), lab.running(&[&flag]));
    let ((from, _), (_, to)) = (near.pod(), far.pod());
    eventually(TIMEOUT, || from.pings(&["-W", "1", &to]));
    store.kill().unwrap();
    store.wait().unwrap();
    assert!(near.runs() && far.runs() && from.pings(&["-W", "1", &to]), "the data path needs no store");
}

/// flannel.md section 6.8.
#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ping, ip, as commands of an operator"]
fn commands_of_the_operator_carry_the_network() {
    let commands = r#"{"Network":"10.5.0.0/16","Backend":{"Type":"extension","PreStartupCommand":"echo hello",
        "SubnetAddCommand":"ip route replace $SUBNET via $PUBLIC_IP","SubnetRemoveCommand":"ip route del $SUBNET"}}"#;
    let mut lab = Lab::new(commands);
    let allowed = ["-allow-extension"];
    let (mut near, mut far) = (lab.running(&allowed), lab.running(&allowed));
    assert!(
        lab.value(&near).ends_with(r#""BackendType":"extension","BackendData":"hello"}"#),
        "{}",
        lab.value(&near)
    );
    let ((from, _), (_, to)) = (near.pod(), far.pod());
    eventually(TIMEOUT, || from.pings(&["-W", "1", &to]));
    let gone = far.subnet().replace('-', "/");
    lab.fabric.etcdctl(&["del", &far.lease_key()]);
    assert_eq!(far.ends().code(), Some(0));
    eventually(TIMEOUT, || !near.ip(&["route"]).contains(&gone));
}
