//! An upgrade from an earlier release and back, node by node, under traffic.
//!
//! `cargo xtask upgrade` gives the executables of the earlier release; without them both versions are this build.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use russet_testkit::eventually;
use serde_json::json;

use crate::fabric::Fabric;
use crate::install::version;
use crate::node::{Answer, TIMEOUT, TestNode, TestPod};
use crate::pinging::Pinging;

/// The command of the earlier release and that of this build, with their small executables beside them.
fn releases(machine: &Path) -> [PathBuf; 2] {
    let earlier = std::env::var_os("RUSSET_PREVIOUS_RELEASE");
    let earlier = earlier.map(|dir| PathBuf::from(dir).join("russet"));
    [earlier.unwrap_or_else(|| version(machine, "earlier")), version(machine, "present")]
}

/// Runs the command of a release.
fn russet(command: &Path, node: &TestNode, args: &[&str]) -> Answer {
    let answer: Answer =
        Command::new(command).args(args).arg("--root").arg(node.root()).output().unwrap().into();
    assert_eq!(answer.status, 0, "{args:?}: {answer:?}");
    answer
}

fn install(release: &Path, node: &TestNode) {
    russet(release, node, &["install", "--in-place", "--plugins", "russet"]);
    assert!(is_installed(release, node));
}

/// Whether both executables are those of a release.
fn is_installed(release: &Path, node: &TestNode) -> bool {
    let is = |installed: PathBuf, file: PathBuf| fs::read(installed).unwrap() == fs::read(file).unwrap();
    is(command(node), release.to_owned())
        && is(node.path("opt/cni/bin/russet"), release.with_file_name("russet-cni"))
}

/// The command as it is installed.
fn command(node: &TestNode) -> PathBuf {
    node.path("usr/local/bin/russet")
}

fn restart_agent(node: &mut TestNode) {
    node.stop_agent();
    node.start_agent_by(Command::new(command(node)));
}

/// Calls the plugin as it is installed.
fn plugin(node: &TestNode, verb: &str, pod: &TestPod, prev_result: Option<&Answer>) -> Answer {
    let path = node.path("opt/cni/bin/russet");
    let mut config = node.config(json!({"russet_path": command(node)}));
    if let Some(result) = prev_result {
        config["prevResult"] = result.result();
    }
    let mut call = pod.call(&path, verb, path.parent().unwrap());
    let answer = node.output(&mut call, config.to_string());
    assert_eq!(answer.status, 0, "{verb}: {answer:?}\n{}", node.log());
    answer
}

/// Has a policy deny what is for an address, and starts pings to it once it is in force.
fn deny_pings(node: &TestNode, from: &TestPod, to: &str) -> Pinging {
    assert!(from.pings(&["-W", "5", to]), "{}", node.log());
    let deny = json!({ "action": "Deny", "destination": { "nets": [format!("{to}/32")] } });
    let policy = json!({ "apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy",
        "metadata": { "name": "guards" },
        "spec": { "selector": "all()", "types": ["Ingress"], "ingress": [deny, { "action": "Allow" }] } });
    let mut apply = Command::new(command(node));
    apply.args(["apply", "-f", "-", "--root"]).arg(node.root());
    let answer = node.output(&mut apply, policy.to_string());
    assert_eq!(answer.status, 0, "{answer:?}");
    eventually(TIMEOUT, || !from.pings(&["-W", "1", to]));
    Pinging::begin(from, to, "0.02")
}

#[test]
#[ignore = "root: two nodes whose executables are replaced and restored; kernel: vxlan; tool: etcd, ip, ping"]
fn an_upgrade_and_a_rollback_lose_no_packet_let_none_pass_and_each_release_serves_the_pods_of_the_other() {
    let machine = tempfile::tempdir().unwrap();
    let [earlier, present] = releases(machine.path());
    let mut fabric = Fabric::new();
    let [mut a, mut b] = ["node-a", "node-b"].map(|name| fabric.node(name, &["--ipv6-pool", "none"]));
    for node in [&mut a, &mut b] {
        install(&earlier, node);
        node.start_agent_by(Command::new(command(node)));
    }
    let [old_a, old_b, made_between, new_a, made_back] = [a.pod(), b.pod(), a.pod(), a.pod(), a.pod()];
    let of_earlier = plugin(&a, "ADD", &old_a, None);
    let address_b = plugin(&b, "ADD", &old_b, None).addresses().remove(0);
    let pinging = Pinging::start(&old_a, &address_b);
    let guarded = b.pod();
    let guarded_address = plugin(&b, "ADD", &guarded, None).addresses().remove(0);
    let denied = deny_pings(&b, &old_a, &guarded_address);
    // A new pod is held until the policies about it are in force.
    let reaches = |pod: &TestPod| eventually(TIMEOUT, || pod.pings(&["-W", "1", &address_b]));

    install(&present, &a);
    // The plugin of this release, the agent of the earlier one.
    plugin(&a, "ADD", &made_between, None);
    restart_agent(&mut a);
    plugin(&a, "CHECK", &old_a, Some(&of_earlier));
    let of_present = plugin(&a, "ADD", &new_a, None);
    // A node of each release.
    reaches(&new_a);
    install(&present, &b);
    restart_agent(&mut b);
    reaches(&new_a);

    for node in [&mut a, &mut b] {
        russet(&command(node), node, &["install", "--rollback"]);
        assert!(is_installed(&earlier, node), "{}", node.log());
    }
    // The plugin of the earlier release, the agent of this one.
    plugin(&a, "ADD", &made_back, None);
    restart_agent(&mut a);
    restart_agent(&mut b);
    plugin(&a, "CHECK", &new_a, Some(&of_present));
    reaches(&new_a);
    pinging.finish();
    denied.finish_unanswered();
    for pod in [&old_a, &made_between, &new_a, &made_back] {
        plugin(&a, "DEL", pod, None);
    }
    plugin(&b, "DEL", &old_b, None);
    plugin(&b, "DEL", &guarded, None);
    let left: Vec<String> = fabric.keys("/calico/ipam/v2/handle/");
    let left: Vec<&String> = left.iter().filter(|key| !key.contains("vxlan-tunnel-addr")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
#[ignore = "root: runs the command as an operator would"]
fn a_rollback_says_what_it_will_do_and_fails_where_there_is_nothing_to_restore() {
    let machine = tempfile::tempdir().unwrap();
    let root = machine.path().join("node");
    let [v1, v2] = ["v1", "v2"].map(|name| version(machine.path(), name));
    let run = |command: &Path, more: &[&str]| -> Answer {
        Command::new(command).args(["install", "--root"]).arg(&root).args(more).output().unwrap().into()
    };
    assert_eq!(run(&v1, &[]).status, 0);
    let refused = run(&v1, &["--rollback"]);
    assert_eq!(refused.status, 1, "{refused:?}");
    assert!(refused.stderr.contains("there is no earlier version to go back to"), "{refused:?}");
    let installed = run(&v2, &["-o", "json"]).result();
    assert_eq!(installed["keep"][0]["step"], "keep", "{installed}");
    let command = root.join("usr/local/bin/russet");
    let would = run(&command, &["--rollback", "--dry-run", "-o", "json"]).result();
    assert_eq!(would["steps"][0]["step"], "restore", "{would}");
    assert!(fs::read(&command).unwrap() == fs::read(&v2).unwrap());
    let done = run(&command, &["--rollback"]);
    assert_eq!(done.status, 0, "{done:?}");
    assert!(fs::read(&command).unwrap() == fs::read(&v1).unwrap());
}
