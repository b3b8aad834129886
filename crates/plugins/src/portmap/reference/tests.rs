//! Rule sets of the reference plugin (recorded from 0.9.1, 1.1.1, 1.6.2 and 1.9.1, which write the
//! same chains in iptables), and Debian's 1.1.1 itself.

use russet_testkit as testkit;
use serde_json::{Value, json};

use super::super::tests::{V4, answer, ask, neighbour, portmap, serving};
use super::*;
use crate::lab::{Lab, Pod, on_a_node};

/// The container of the recorded rules: `eth0` in network `net`, with TCP ports 8080 and 8081 and
/// UDP port 8053, in both families.
const WEB: Pod = Pod { container: "web", ifname: "eth0", netns: "x" };
const NONE: Pod = Pod { container: "", ifname: "", netns: "" };
/// How recorded rule sets are loaded into the kernel: the program and its input.
const RECORDED: [(&str, &str); 6] = [
    ("nft", "nftables-1.9.nft"),
    ("nft", "nftables-1.6.nft"),
    ("iptables-nft-restore", "iptables.v4"),
    ("ip6tables-nft-restore", "iptables.v6"),
    ("iptables-legacy-restore", "iptables.v4"),
    ("ip6tables-legacy-restore", "iptables.v6"),
];

fn restore(program: &str, file: &str) {
    let path = format!("{}/src/portmap/recorded/{file}", env!("CARGO_MANIFEST_DIR"));
    let args: &[&str] = if program == "nft" { &["-f", &path] } else { &[&path] };
    testkit::run(program, args);
}

/// All rules in both variants of iptables and in nf_tables.
fn rules() -> String {
    let legacy = ["iptables-legacy-save", "ip6tables-legacy-save"].map(|it| testkit::run(it, &["-t", "nat"]));
    let all = testkit::run("nft", &["list", "ruleset"]) + &legacy.concat();
    // Without the lines that contain the time of the listing.
    all.lines().filter(|line| !line.starts_with("# ")).map(|line| format!("{line}\n")).collect()
}

/// The configuration after a plugin that gave the container the recorded addresses.
fn config() -> Value {
    let result = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": "/run/netns/x", "mac": "02:00:00:00:00:01"}],
        "ips": [{"address": "10.202.1.2/24", "interface": 0}, {"address": "fd00:202:1::2/64", "interface": 0}]});
    portmap(
        &result,
        json!([{"hostPort": 8080, "containerPort": 80}, {"hostPort": 8053, "containerPort": 53, "protocol": "udp"},
            {"hostPort": 8081, "containerPort": 81, "hostIP": "192.0.2.1"}]),
    )
}

#[test]
fn chains_are_called_as_the_reference_plugin_calls_them() {
    let ports = ports_of("net", "web");
    assert_eq!(ports.dnat_chain, "CNI-DN-437252eec243bd2aa31b9");
    assert_eq!(ports.snat_chain, "CNI-SN-437252eec243bd2aa31b9");
    assert!(include_str!("../recorded/iptables.v4").contains(&ports.dnat_chain));
}

#[test]
#[ignore = "kernel: nf_tables, legacy iptables; tools: nft, iptables; root"]
fn del_removes_what_the_reference_plugin_wrote_for_the_container_in_every_mode() {
    for (program, file) in RECORDED {
        on_a_node(|lab| {
            restore(program, file);
            let before = rules();
            lab.call("portmap", "DEL", Pod { container: "other", ..WEB }, &config());
            assert_eq!(rules(), before, "{program} {file}: another container's DEL");
            for _ in 0..2 {
                lab.call("portmap", "DEL", WEB, &config());
                let after = rules();
                let ours = ["CNI-DN-", "10.202.1.2", "fd00:202:1::2", "\"web\""];
                assert!(!ours.iter().any(|it| after.contains(it)), "{program} {file}: {after}");
            }
        });
    }
}

#[test]
#[ignore = "kernel: nf_tables, legacy iptables; tools: nft, iptables; root"]
fn gc_removes_the_reference_plugins_chains_of_containers_that_are_not_valid() {
    for (program, file) in &RECORDED[2..] {
        on_a_node(|lab| {
            restore(program, file);
            let mut gc = config();
            let mut is_there = |network: &str, valid: Value| {
                gc["name"] = network.into();
                gc["cni.dev/valid-attachments"] = valid;
                lab.call("portmap", "GC", NONE, &gc);
                rules().contains("CNI-DN-")
            };
            assert!(is_there("other", json!([])), "{program} {file}");
            assert!(is_there("net", json!([{"containerID": "web", "ifname": "eth0"}])), "{program} {file}");
            assert!(!is_there("net", json!([{"containerID": "x", "ifname": "eth0"}])), "{program} {file}");
        });
    }
}

#[test]
#[ignore = "kernel: nf_tables, legacy iptables; tools: nft, iptables; root"]
fn check_accepts_the_ports_that_the_reference_plugin_published() {
    let both = |at: usize| [RECORDED[at], RECORDED[at + 1]];
    for (recorded, flush) in [
        (vec![RECORDED[0]], vec!["nft", "flush", "chain", "ip", "cni_hostport", "hostports"]),
        (vec![RECORDED[1]], vec!["nft", "flush", "chain", "ip6", "cni_hostport", "hostports"]),
        (both(2).to_vec(), vec!["iptables-nft", "-t", "nat", "-F", "CNI-HOSTPORT-DNAT"]),
        (both(4).to_vec(), vec!["ip6tables-legacy", "-t", "nat", "-F", "CNI-HOSTPORT-DNAT"]),
    ] {
        on_a_node(|lab| {
            for (program, file) in &recorded {
                restore(program, file);
            }
            lab.call("portmap", "CHECK", WEB, &config());
            let other = lab.error("portmap", "CHECK", Pod { container: "other", ..WEB }, &config());
            assert!(other.details.contains("Tcp port 8080"), "{recorded:?}: {other}");
            testkit::run(flush[0], &flush[1..]);
            let gone = lab.error("portmap", "CHECK", WEB, &config());
            assert!(gone.details.contains("Tcp port 8080"), "{recorded:?}: {gone}");
        });
    }
}

/// Converts a result to 1.0.0, which the reference plugin accepts.
fn spoken_by_both(result: &Value, mappings: Value) -> Value {
    let mut config = portmap(result, mappings);
    config["cniVersion"] = "1.0.0".into();
    config["prevResult"]["cniVersion"] = "1.0.0".into();
    config
}

fn published_by_the_reference_plugin(lab: &Lab, again: impl FnOnce(Pod, &Value)) {
    neighbour();
    let (one, first, _one) = serving(lab, "one", V4);
    let (two, second, _two) = serving(lab, "two", V4);
    let all = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    lab.go("portmap", "ADD", one, &spoken_by_both(&first, all.clone()));
    assert!(answer("world", "STREAM", "192.0.2.1", 8080).starts_with("one"));
    lab.call("portmap", "CHECK", one, &spoken_by_both(&first, all.clone()));
    again(one, &spoken_by_both(&first, all.clone()));
    lab.call("portmap", "DEL", one, &spoken_by_both(&first, all.clone()));
    assert_eq!(ask("world", "STREAM", "192.0.2.1", 8080), "");
    lab.add("portmap", two, &spoken_by_both(&second, all));
    assert!(answer("world", "STREAM", "192.0.2.1", 8080).starts_with("two"));
}

#[test]
#[ignore = "kernel: bridge, veth, nf_tables; tools: python3, iptables, portmap of the reference plugins; root"]
fn a_port_that_the_reference_plugin_published_is_free_after_our_del() {
    on_a_node(|lab| published_by_the_reference_plugin(lab, |_, _| ()));
    // A repeated ADD takes over the port.
    on_a_node(|lab| {
        published_by_the_reference_plugin(lab, |one, config| {
            lab.add("portmap", one, config);
            assert!(!rules().contains("CNI-DN-"));
            assert!(answer("world", "STREAM", "192.0.2.1", 8080).starts_with("one"));
        });
    });
}
