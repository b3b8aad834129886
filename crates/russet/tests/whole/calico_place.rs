//! `russet agent --calico` on a node that Felix and Calico's plugin had before: pods that the Go
//! plugin wired, policies and pools that Russet does not implement, and the files that report
//! endpoints as set up (calico-cni.md sections 3, 4.3 and 4.9).

use std::path::PathBuf;
use std::process::Command;

use russet_linux::sysctl;
use russet_testkit::eventually;
use serde_json::{Value, json};

use crate::calico::{CalicoSetup, Request};
use crate::fabric::RESOURCES;
use crate::node::{TIMEOUT, TestNode, TestPod};

const POD: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0";

fn resource(kind: &str, metadata: Value, spec: Value) -> String {
    json!({"kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec})
        .to_string()
}

fn put_policy(setup: &CalicoSetup, place: &str, kind: &str, name: &str) {
    let policy = resource(kind, json!({"name": name}), json!({"types": ["Ingress"]}));
    setup.fabric.put(&format!("{RESOURCES}/{place}"), &policy);
}

fn ready(node: &TestNode) -> String {
    node.get("/readyz?verbose")
}

/// A request for pod `shop/web-0`, with its container.
fn pod_request<'a>(setup: &CalicoSetup, pod: &'a TestPod, container: &'a str, extra: Value) -> Request<'a> {
    Request { args: POD.to_owned(), ..setup.request(pod, container, extra) }
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn policies_that_are_not_enforced_are_named_at_the_start_and_in_readiness() {
    let mut setup = CalicoSetup::new();
    setup.node.agent_args.extend(["--policies", "off"].map(str::to_owned));
    put_policy(&setup, "globalnetworkpolicies/default.deny-all", "GlobalNetworkPolicy", "default.deny-all");
    setup.node.start_agent();
    let first = "policy: NOT ENFORCED: the datastore holds 1 globalnetworkpolicies, and";
    eventually(TIMEOUT, || setup.node.log().contains(first));
    assert!(ready(&setup.node).contains(&format!("[!] {first}")), "{}", ready(&setup.node));
    assert!(ready(&setup.node).starts_with("HTTP/1.1 200"), "pods can be attached nevertheless");
    // The list is updated.
    put_policy(&setup, "networkpolicies/shop/default.web", "NetworkPolicy", "default.web");
    let both = "holds 1 globalnetworkpolicies and 1 networkpolicies, and";
    eventually(TIMEOUT, || ready(&setup.node).contains(both));
    setup.fabric.etcdctl(&["del", &format!("{RESOURCES}/globalnetworkpolicies"), "--prefix"]);
    setup.fabric.etcdctl(&["del", &format!("{RESOURCES}/networkpolicies"), "--prefix"]);
    eventually(TIMEOUT, || !ready(&setup.node).contains("[!] policy"));
    setup.node.stop_agent();
    // Felix enforces them.
    put_policy(&setup, "globalnetworkpolicies/default.deny-all", "GlobalNetworkPolicy", "default.deny-all");
    let felix = setup.node.decoy("calico-felix");
    setup.node.start_agent();
    eventually(TIMEOUT, || ready(&setup.node).contains("[+] programmed"));
    assert!(!ready(&setup.node).contains("[!] policy"), "{}", ready(&setup.node));
    drop(felix);
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn an_agent_is_not_ready_for_an_ipip_pool_and_an_add_says_so() {
    let mut setup = CalicoSetup::new();
    let pool = |ipip: &str| {
        let spec = json!({"cidr": "10.65.0.0/16", "blockSize": 26, "vxlanMode": "Never", "ipipMode": ipip,
            "nodeSelector": "all()"});
        setup.fabric.put_resource("ippools", "IPPool", "four", spec);
    };
    setup.node.start_agent();
    pool("Always");
    let named = "IPIP pools are not carried, so that their pods reach no other node: four (10.65.0.0/16, ipipMode Always)";
    eventually(TIMEOUT, || ready(&setup.node).contains(&format!("[-] programmed: {named}")));
    assert!(ready(&setup.node).starts_with("HTTP/1.1 503"), "{}", ready(&setup.node));
    assert!(setup.node.log().contains(named), "{}", setup.node.log());
    let pod = setup.node.pod();
    let request = setup.request(&pod, "abc123", json!({}));
    let answer = setup.run("ADD", &request);
    assert_eq!(answer.status, 0, "{answer:?}");
    assert!(answer.stderr.contains("[WARNING]") && answer.stderr.contains(named), "{answer:?}");
    let status =
        setup.run("STATUS", &Request { config: with(&request.config, "cniVersion", "1.1.0"), ..request });
    assert!(status.error()["details"].as_str().unwrap().contains(named), "{status:?}");
    pool("Never");
    eventually(TIMEOUT, || ready(&setup.node).contains("[+] programmed"));
}

fn with(config: &Value, key: &str, value: &str) -> Value {
    let mut config = config.clone();
    config[key] = json!(value);
    config
}

/// What Calico's own plugin writes for pod `shop/web-0` to the kernel and to the datastore, and its
/// answer.
fn wire_as_calicos_plugin(setup: &CalicoSetup, pod: &TestPod, container: &str) -> Value {
    let (host, mac, node) = ("calia4fc3c48bd8", "8e:01:7c:aa:10:f3", setup.node.netns_name());
    let ip = |line: &str| {
        let output = Command::new("ip").args(line.split(' ')).output().unwrap();
        assert!(output.status.success(), "ip {line}: {}", String::from_utf8_lossy(&output.stderr));
    };
    ip(&format!(
        "-n {node} link add {host} address ee:ee:ee:ee:ee:ee type veth peer name eth0 netns {}",
        pod.netns_name
    ));
    for (path, value) in [
        (format!("net/ipv4/neigh/{host}/proxy_delay"), "0"),
        (format!("net/ipv4/conf/{host}/proxy_arp"), "1"),
        (format!("net/ipv4/conf/{host}/forwarding"), "1"),
        (format!("net/ipv4/conf/{host}/route_localnet"), "1"),
        (format!("net/ipv6/conf/{host}/accept_ra"), "0"),
    ] {
        setup.node.netns().with(|| sysctl::write_if_different(&path, value)).unwrap().unwrap();
    }
    ip(&format!("-n {node} link set {host} up"));
    for line in [
        &format!("link set eth0 address {mac} up"),
        "route add 169.254.1.1 dev eth0 scope link",
        "route add default via 169.254.1.1 dev eth0",
        "address add 10.65.9.3/32 dev eth0",
    ] {
        ip(&format!("-n {} {line}", pod.netns_name));
    }
    ip(&format!("-n {node} route add 10.65.9.3 dev {host} scope link"));

    let mut allocations = vec![json!(null); 64];
    allocations[3] = json!(0);
    let owner = json!({"handle_id": format!("net1.{container}"), "secondary": {
        "namespace": "shop", "node": "n1", "pod": "web-0", "timestamp": "2026-01-02 03:04:05.678901234 +0000 UTC"}});
    let block = json!({"cidr": "10.65.9.0/26", "affinity": "host:n1", "allocations": allocations,
        "unallocated": (0..64).filter(|it| *it != 3).collect::<Vec<u32>>(), "attributes": [owner],
        "sequenceNumber": 7, "sequenceNumberForAllocation": {"3": 6}, "deleted": false});
    setup.fabric.put("/calico/ipam/v2/assignment/ipv4/block/10.65.9.0-26", &block.to_string());
    let claim = "/calico/ipam/v2/host/n1/ipv4/block/10.65.9.0-26";
    setup.fabric.put(claim, r#"{"state":"confirmed","deleted":false}"#);
    let handle = format!("/calico/ipam/v2/handle/net1.{container}");
    setup.fabric.put(&handle, r#"{"block":{"10.65.9.0/26":1},"deleted":false}"#);
    let metadata = json!({"name": "n1-k8s-web--0-eth0", "namespace": "shop", "uid": "u",
        "creationTimestamp": "2026-08-22T10:00:00Z"});
    let spec = json!({"orchestrator": "k8s", "node": "n1", "containerID": container, "pod": "web-0",
        "endpoint": "eth0", "ipNetworks": ["10.65.9.3/32"], "profiles": ["net1"], "interfaceName": host, "mac": mac});
    let endpoint = resource("WorkloadEndpoint", metadata, spec);
    setup.fabric.put(&format!("{RESOURCES}/workloadendpoints/shop/n1-k8s-web--0-eth0"), &endpoint);
    json!({"cniVersion": "1.0.0", "dns": {}, "interfaces": [{"name": host},
        {"name": "eth0", "mac": mac, "mtu": 1500, "sandbox": pod.path()}],
        "ips": [{"interface": 1, "address": "10.65.9.3/32"}], "routes": [{"dst": "10.65.9.3/26"}]})
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn a_pod_that_calicos_plugin_wired_is_accepted_by_check_drift_and_repair() {
    let mut setup = CalicoSetup::new();
    let pod = setup.node.pod();
    let result = wire_as_calicos_plugin(&setup, &pod, "4be1");
    let mut request = pod_request(&setup, &pod, "4be1", json!({}));
    request.config["prevResult"] = result;
    setup.succeed("CHECK", &request);
    setup.node.start_agent();
    setup.succeed("CHECK", &request);
    eventually(TIMEOUT, || setup.node.russet(&["drift"]).status == 0);
    let repaired = setup.node.russet_inside(&["ipam", "repair", "--dry-run", "--grace", "1s"]);
    assert_eq!(repaired.status, 0, "{repaired:?}");
    let neighbours = ["-n", setup.node.netns_name(), "neigh", "show", "nud", "permanent"];
    let neighbours = Command::new("ip").args(neighbours).output().unwrap();
    assert!(!String::from_utf8_lossy(&neighbours.stdout).contains("10.65.9.3"), "nothing was added to it");
    setup.succeed("DEL", &request);
    assert_eq!(setup.endpoints(), Vec::<String>::new());
    assert!(!setup.node.links().iter().any(|name| name.starts_with("cali")), "{:?}", setup.node.links());
    eventually(TIMEOUT, || setup.fabric.keys("/calico/ipam/v2/handle/net1.").is_empty());
}

#[test]
#[ignore = "root: makes network namespaces; tool: etcd, ip"]
fn oracle_75_the_file_of_a_set_up_endpoint_comes_and_goes_and_stale_ones_are_purged() {
    let mut setup = CalicoSetup::new();
    let dir: PathBuf = setup.node.path("var/run/calico/endpoint-status");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("k8s shop%2Fgone eth0"), b"").unwrap();
    setup.node.start_agent();
    eventually(TIMEOUT, || std::fs::read_dir(&dir).unwrap().count() == 0);
    let pod = setup.node.pod();
    // The plugin returns when the file exists, or after ten minutes.
    let waiting = json!({"policy_setup_timeout_seconds": 600, "endpoint_status_dir": dir});
    let request = pod_request(&setup, &pod, "4be1", waiting);
    setup.add(&request);
    let file = dir.join("k8s shop%2Fweb-0 eth0");
    assert!(file.exists());
    assert!(!setup.node.log().contains("not known to be in place"), "{}", setup.node.log());
    setup.succeed("DEL", &request);
    eventually(TIMEOUT, || !file.exists());
    // Pods of the Go plugin have a file, too.
    let other = setup.node.pod();
    wire_as_calicos_plugin(&setup, &other, "5cf2");
    eventually(TIMEOUT, || file.exists());
    // An interface that is down carries no traffic.
    let down = ["-n", setup.node.netns_name(), "link", "set", "calia4fc3c48bd8", "down"];
    assert!(Command::new("ip").args(down).status().unwrap().success());
    eventually(TIMEOUT, || !file.exists());
    let up = ["-n", setup.node.netns_name(), "link", "set", "calia4fc3c48bd8", "up"];
    assert!(Command::new("ip").args(up).status().unwrap().success());
    let route = ["-n", setup.node.netns_name(), "route", "replace", "10.65.9.3", "dev", "calia4fc3c48bd8"];
    assert!(Command::new("ip").args(route).status().unwrap().success());
    eventually(TIMEOUT, || file.exists());
    setup.fabric.etcdctl(&["del", &format!("{RESOURCES}/workloadendpoints"), "--prefix"]);
    eventually(TIMEOUT, || !file.exists());
}
