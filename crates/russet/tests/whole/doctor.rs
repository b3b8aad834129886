//! `russet doctor` on a node with one prepared fault after the other. What it prints of each is in
//! docs/troubleshooting.md; `RUSSET_WRITE_DOCS=1` writes it there.

use std::time::{Duration, SystemTime};

use russet_linux::probe::{Feature, supports};
use russet_model::time;
use russet_testkit::eventually;
use serde_json::{Value, json};

use crate::fabric::Fabric;
use crate::node::{TIMEOUT, TestNode};
use crate::printed::{Printed, without_hashes};

const PAGE: &str = "docs/troubleshooting.md";
const BEGIN: &str = "<!-- what russet doctor prints of each fault: written by the test in crates/russet/tests/whole/doctor.rs -->";
/// Of pods on a network of 1,500 bytes with a tunnel over IPv6.
const POD_MTU: &str = "1430";
const OWN_VERSION: &str = env!("CARGO_PKG_VERSION");
const END: &str = "<!-- end of what russet doctor prints -->";

/// The exit code, and the kinds of the findings.
fn doctor(node: &TestNode, args: &[&str]) -> (i32, Vec<String>, Value) {
    let answer = node.russet_inside(&[&["doctor", "-o", "json"], args].concat());
    let report: Value = serde_json::from_str(&answer.stdout).unwrap_or_else(|e| panic!("{e}: {answer:?}"));
    let kinds = report["findings"].as_array().unwrap().iter();
    let mut kinds: Vec<String> = kinds.map(|it| it["kind"].as_str().unwrap().to_owned()).collect();
    kinds.dedup();
    (answer.status, kinds, report)
}

fn is_healthy(node: &TestNode) -> bool {
    let (status, kinds, _) = doctor(node, &[]);
    status == 0 && kinds.is_empty()
}

/// Waits until all of `kinds` are found, and nothing else but perhaps `others`.
#[track_caller]
fn await_findings(node: &TestNode, fault: &str, kinds: &[&str], others: &[&str]) {
    eventually(TIMEOUT, || {
        let (status, found, report) = doctor(node, &[]);
        let has_all = kinds.iter().all(|kind| found.iter().any(|it| it == kind));
        let is_wanted = |it: &String| kinds.contains(&it.as_str()) || others.contains(&it.as_str());
        let is_done = status == 3 && has_all && found.iter().all(is_wanted);
        println!("{fault}: {}", if is_done { format!("{report:#}") } else { format!("{found:?}") });
        is_done
    });
}

/// Waits until exactly these kinds are found, and keeps the text.
#[track_caller]
fn found(printed: &mut Printed, node: &TestNode, fault: &str, kinds: &[&str]) {
    await_findings(node, fault, kinds, &[]);
    let text = node.russet_inside(&["doctor"]).stdout;
    let text = text.replace(node.root().to_str().unwrap(), "");
    let text = without_seconds(&text.replace(&format!("not {OWN_VERSION}, as"), "not VERSION, as"));
    printed.push(&format!("\n{fault}:\n\n```\n{}```\n", without_hashes(&text)));
}

/// The distance of two clocks is known the better the sooner the command comes.
fn without_seconds(text: &str) -> String {
    let Some((before, after)) = text.split_once("at least ") else { return text.to_owned() };
    format!("{before}at least N{}", after.trim_start_matches(|c: char| c.is_ascii_digit()))
}

fn write(node: &TestNode, path: &str, text: &str) {
    let path = node.path(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

/// Faults of files and of the kernel's settings, while the agent runs.
fn assert_finds_faults_beside_the_agent(one: &TestNode, printed: &mut Printed) {
    let conflist = |plugin: &str| format!(r#"{{"name":"{plugin}","plugins":[{{"type":"{plugin}"}}]}}"#);
    write(one, "etc/cni/net.d/10-russet.conflist", &conflist("russet"));
    assert!(is_healthy(one));
    let other = "etc/cni/net.d/05-other.conflist";
    write(one, other, &conflist("ptp"));
    found(printed, one, "Another network's configuration comes first", &["conflist-order"]);
    std::fs::remove_file(one.path(other)).unwrap();

    write(one, "etc/cni/net.d/90-lan.conflist", &conflist("ipvlan"));
    if supports(Feature::Ipvlan).unwrap() {
        assert!(is_healthy(one), "the kernel has what the plugin needs");
    } else {
        // Not in the page, which has to be the same for every kernel.
        await_findings(one, "A plugin needs what the kernel lacks", &["kernel-feature"], &[]);
    }
    std::fs::remove_file(one.path("etc/cni/net.d/90-lan.conflist")).unwrap();

    one.inside("nft", &["add table inet fw; add chain inet fw out { type filter hook output priority 0; }"]);
    one.inside("nft", &["add rule inet fw out udp dport 4789 drop"]);
    found(printed, one, "A firewall drops the tunnel's packets", &["firewall"]);
    one.inside("nft", &["delete table inet fw"]);
    eventually(TIMEOUT, || is_healthy(one));
}

/// Routes of other programs, while the agent runs.
fn assert_finds_other_networks(one: &TestNode, printed: &mut Printed) {
    let lan = r#"{"name":"lan","plugins":[{"type":"bridge","bridge":"docker0"}]}"#;
    one.ip(&["link", "add", "docker0", "type", "bridge"]);
    one.ip(&["link", "set", "docker0", "up"]);
    one.ip(&["route", "add", "10.244.128.0/20", "dev", "docker0"]);
    found(printed, one, "Another network has addresses of a pool", &["overlap"]);
    write(one, "etc/cni/net.d/90-lan.conflist", lan);
    assert!(is_healthy(one), "plugin `bridge` makes that bridge for pods");
    std::fs::remove_file(one.path("etc/cni/net.d/90-lan.conflist")).unwrap();
    one.ip(&["link", "del", "docker0"]);

    one.ip(&["link", "add", "vpn0", "type", "veth", "peer", "name", "other0"]);
    one.ip(&["link", "set", "vpn0", "up"]);
    one.ip(&["route", "add", "10.244.128.0/20", "dev", "vpn0", "table", "52"]);
    assert!(is_healthy(one), "no rule leads to that table");
    one.ip(&["rule", "add", "to", "10.0.0.0/8", "priority", "5270", "table", "52"]);
    found(printed, one, "A VPN takes packets to addresses of a pool", &["overlap"]);
    one.ip(&["rule", "del", "priority", "5270"]);

    one.ip(&["link", "set", "other0", "up"]);
    one.ip(&["route", "add", "10.77.0.12/32", "dev", "vpn0"]);
    one.inside("sysctl", &["-qw", "net.ipv4.conf.eth0.rp_filter=1"]);
    found(
        printed,
        one,
        "Packets to a node leave by another interface",
        &["asymmetric-route", "reverse-path"],
    );
    one.ip(&["link", "del", "vpn0"]);
    one.inside("sysctl", &["-qw", "net.ipv4.conf.eth0.rp_filter=0"]);
    assert!(is_healthy(one));
}

/// What another node's agent has written.
fn assert_finds_other_agents(fabric: &Fabric, one: &TestNode, two: &mut TestNode, printed: &mut Printed) {
    let write = |version: &str, at: SystemTime| {
        let record = json!({ "schema": 1, "node": "node-b", "version": version, "at": time::rfc3339(at), "every_s": 3600,
            "ready": true, "endpoints": 0, "reachable": 0 });
        fabric.put("/russet/health/v1/node-b", &record.to_string());
    };
    // It would replace the record.
    two.stop_agent();
    write("0.0.1", SystemTime::now());
    found(printed, one, "Another node's agent has another version", &["mixed-versions"]);
    write(OWN_VERSION, SystemTime::now() + Duration::from_secs(600));
    found(printed, one, "Another node's clock is not this node's", &["clock"]);
    fabric.etcdctl(&["del", "/russet/health/v1/node-b"]);
    assert!(is_healthy(one), "without a record there is nothing to compare with");
    two.start_agent();
    eventually(TIMEOUT, || is_healthy(one));
}

/// Faults that an agent would repair at once, after its end.
fn assert_finds_faults_without_the_agent(one: &mut TestNode, host_end: &str, printed: &mut Printed) {
    one.stop_agent();
    found(printed, one, "No agent runs", &["agent"]);
    one.ip(&["link", "set", host_end, "mtu", "9000"]);
    found(printed, one, "Pods send larger packets than fit", &["agent", "mtu"]);
    one.ip(&["link", "set", host_end, "mtu", POD_MTU]);

    one.inside("sysctl", &["-qw", "net.ipv4.ip_forward=0"]);
    found(printed, one, "The kernel does not forward", &["agent", "forwarding"]);
    let (status, kinds, report) = doctor(one, &["--fix"]);
    assert_eq!((status, kinds), (3, vec!["forwarding".to_owned(), "agent".to_owned()]), "{report:#}");
    assert_eq!(report["findings"][0]["repair"], "done", "{report:#}");
    assert!(one.inside("sysctl", &["-n", "net.ipv4.ip_forward"]).starts_with('1'));
    assert_eq!(doctor(one, &[]).1, ["agent"]);

    let record = one.path("run/russet/settings.toml");
    let kept = std::fs::read_to_string(&record).unwrap();
    std::fs::write(&record, "store = ").unwrap();
    found(printed, one, "The record of the agent's settings is damaged", &["settings", "agent"]);
    std::fs::write(&record, kept).unwrap();

    write(one, "etc/russet/russet.toml", "stor = \"embedded\"\n");
    found(printed, one, "The settings file has an unknown key", &["settings", "agent"]);
    std::fs::remove_file(one.path("etc/russet/russet.toml")).unwrap();

    one.ip(&["link", "set", "eth0", "down"]);
    await_findings(one, "The interface to the other nodes is down", &["agent"], &["underlay", "store"]);
    one.ip(&["link", "set", "eth0", "up"]);
    one.ip(&["route", "add", "default", "via", "10.77.0.1"]);
    one.start_agent();
    eventually(TIMEOUT, || is_healthy(one));
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip, nft, sysctl"]
fn doctor_names_each_of_ten_faults_and_what_to_do() {
    let mut fabric = Fabric::new();
    // Whether probes find a fault, too, depends on how long it lasts: that is in `status.rs`.
    let [mut one, mut two] = ["node-a", "node-b"].map(|name| fabric.node(name, &["--peer-probes", "off"]));
    let answer = one.russet_inside(&["doctor", "-o", "json"]);
    let report: Value = serde_json::from_str(&answer.stdout).unwrap();
    assert_eq!(report["looked_at"], serde_json::json!(["kernel", "node"]), "before the first agent");
    one.start_agent();
    two.start_agent();
    let pod = one.pod();
    let added = one.add(&pod).result();
    let host_end = added["interfaces"].as_array().unwrap().iter().find(|it| it.get("sandbox").is_none());
    let host_end = host_end.unwrap()["name"].as_str().unwrap().to_owned();
    eventually(TIMEOUT, || is_healthy(&one));
    let text = one.russet_inside(&["doctor"]).stdout;
    assert_eq!(text, "nothing found (looked at: kernel, node, datastore and agent)\n");

    let mut printed = Printed::new(PAGE, BEGIN, END);
    assert_finds_faults_beside_the_agent(&one, &mut printed);
    assert_finds_other_networks(&one, &mut printed);
    assert_finds_other_agents(&fabric, &one, &mut two, &mut printed);
    assert_finds_faults_without_the_agent(&mut one, &host_end, &mut printed);
    fabric.kill_etcd();
    await_findings(&one, "The datastore does not answer", &["store", "agent"], &["drift"]);
    printed.assert_in_page();
}
