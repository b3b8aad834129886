//! `russet ipam repair`, and the agent's periodic repair: leaks of every kind are released, and no
//! live pod loses its address (calico#5044, calico#12257).

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use russet_linux::{NetNs, process};
use russet_model::Key;
use russet_store::{Remote, Store};
use russet_testkit::eventually;
use serde_json::{Value, json};

use crate::node::{Answer, StoreProcess, TIMEOUT, TestNode, TestPod};

const OLD: &str = "2026-01-02 03:04:05.678901234 +0000 UTC";
const IPAM: &str = "/calico/ipam/v2";
const ENDPOINTS: &str = "/calico/resources/v3/projectcalico.org/workloadendpoints";

/// Arguments of an agent whose pool no other test has, since namespaces of other tests are on this
/// machine, too, and is one block, so that the given records are beside it.
pub fn args<'a>(pool: &'a str, leak_repair: &'a str) -> [&'a str; 10] {
    [
        "--ipv4-pool",
        pool,
        "--ipv6-pool",
        "none",
        "--encapsulation",
        "none",
        "--leak-repair",
        leak_repair,
        "--log-level",
        "debug",
    ]
}

/// Runs the verb on the node, as an operator does.
fn repair(node: &TestNode, more: &[&str]) -> Answer {
    let mut command = command(node, more);
    command.output().unwrap().into()
}

fn command(node: &TestNode, more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
    command.args(["ipam", "repair", "--root"]).arg(node.root()).args(more).env_remove("RUSSET_STORE");
    process::in_netns(&mut command, node.netns()).unwrap();
    command
}

fn report(answer: &Answer) -> Value {
    serde_json::from_str(&answer.stdout).unwrap_or_else(|error| panic!("{error}: {answer:?}"))
}

/// Findings with this outcome, by address or handle, sorted.
fn with_outcome(report: &Value, outcome: &str) -> Vec<String> {
    let findings = report["findings"].as_array().unwrap().iter();
    let subject = |finding: &Value| {
        let subject = finding["address"].as_str().or(finding["handle"].as_str()).unwrap();
        subject.to_owned()
    };
    let mut found: Vec<String> = findings.filter(|it| it["outcome"] == outcome).map(subject).collect();
    found.sort();
    found
}

/// A block of node-a whose first ordinals have these owners, with its claim and a handle for each.
fn plant_block(node: &TestNode, cidr: &str, owners: &[Value]) {
    let cells: Vec<Value> = (0..64).map(|i| if i < owners.len() { json!(i) } else { Value::Null }).collect();
    let numbers: serde_json::Map<String, Value> =
        (0..owners.len()).map(|i| (i.to_string(), json!(1_767_322_800_000_000_000_u64 + i as u64))).collect();
    let block = json!({
        "cidr": cidr, "affinity": "host:node-a", "allocations": cells,
        "unallocated": (owners.len()..64).collect::<Vec<_>>(), "attributes": owners,
        "sequenceNumber": 1_767_322_800_000_000_100_u64, "sequenceNumberForAllocation": numbers, "deleted": false,
    });
    let path = cidr.replace('/', "-");
    node.store_put(&format!("{IPAM}/assignment/ipv4/block/{path}"), &block.to_string());
    node.store_put(
        &format!("{IPAM}/host/node-a/ipv4/block/{path}"),
        r#"{"state":"confirmed","deleted":false}"#,
    );
    for owner in owners {
        plant_handle(node, owner["handle_id"].as_str().unwrap(), &json!({ cidr: 1 }));
    }
}

fn plant_handle(node: &TestNode, name: &str, blocks: &Value) {
    node.store_put(
        &format!("{IPAM}/handle/{name}"),
        &json!({ "block": blocks, "deleted": false }).to_string(),
    );
}

/// The attributes that a Go peer stores for an address: no interface.
fn gos(handle: &str, more: Value) -> Value {
    let mut secondary = json!({"namespace": "default", "node": "node-a", "pod": "web-0", "timestamp": OLD});
    secondary.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"handle_id": handle, "secondary": secondary})
}

/// A pod as Go Calico wires it: a plain veth and a route to its address.
fn wire_as_go_calico_does(node: &TestNode, pod: &TestPod, host: &str, address: &str) {
    node.ip(&["link", "add", host, "type", "veth", "peer", "name", "eth0", "netns", &pod.netns_name]);
    node.ip(&["link", "set", host, "up"]);
    node.ip(&["route", "add", &format!("{address}/32"), "dev", host, "scope", "link"]);
    let proxy = format!("net/ipv4/conf/{host}/proxy_arp");
    node.netns().with(|| russet_linux::sysctl::write_if_different(&proxy, "1").unwrap()).unwrap();
    let inside = NetNs::open(pod.path()).unwrap();
    let run = |args: &[&str]| assert!(Command::new("ip").args(args).status().unwrap().success(), "{args:?}");
    inside
        .with(|| {
            run(&["address", "add", &format!("{address}/32"), "dev", "eth0"]);
            run(&["link", "set", "eth0", "up"]);
            run(&["route", "add", "169.254.1.1", "dev", "eth0", "scope", "link"]);
            run(&["route", "add", "default", "via", "169.254.1.1", "dev", "eth0"]);
            // The node does not answer ARP without a route towards that address.
            let gateway = ["neigh", "add", "169.254.1.1", "dev", "eth0", "lladdr"];
            run(&[&gateway[..], &[&mac(node, host)]].concat());
        })
        .unwrap();
}

/// A repair that has found `address` leaked once and waits for its second check.
fn until_second_check(node: &TestNode, address: &str) -> Child {
    const GRACE: &str = "6s";
    // Once it is old enough, it counts as leaked.
    eventually(TIMEOUT, || {
        let dry = repair(node, &["--grace", GRACE, "-o", "json", "--dry-run"]);
        with_outcome(&report(&dry), "leaked").contains(&address.to_owned())
    });
    let looks = || node.log().matches("checked again").count();
    let before = looks();
    let mut running = command(node, &["--grace", GRACE, "-o", "json"]);
    let running = running.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    eventually(TIMEOUT, || looks() > before);
    running
}

fn mac(node: &TestNode, link: &str) -> String {
    let shown: Value = serde_json::from_str(&node.ip(&["-j", "link", "show", link])).unwrap();
    shown[0]["address"].as_str().unwrap().to_owned()
}

/// The records without the store's revision: the agent writes its health record meanwhile.
fn dump(node: &TestNode) -> String {
    let stored: Value = serde_json::from_str(&node.store_get(IPAM)).unwrap();
    format!("{:#}", stored["records"])
}

#[test]
#[ignore = "root: makes network namespaces"]
fn leaks_of_every_kind_are_released_and_live_addresses_stay() {
    let mut node = TestNode::start(&args("10.231.0.64/26", "off"));
    let (one, two, go) = (node.pod(), node.pod(), node.pod());
    wire_as_go_calico_does(&node, &go, "cali0123456789a", "10.231.0.64");
    let bridged = node.pod();
    let inside = NetNs::open(bridged.path()).unwrap();
    let add = ["address", "add", "10.231.0.66/24", "dev", "lo"];
    inside.with(|| assert!(Command::new("ip").args(add).status().unwrap().success())).unwrap();
    plant_block(
        &node,
        "10.231.0.64/26",
        &[
            gos("k8s-pod-network.golive", json!({})),
            gos("k8s-pod-network.goleak", json!({})),
            gos("k8s-pod-network.bridged", json!({})),
            gos("k8s-pod-network.cached", json!({})),
            gos("k8s-pod-network.endpoint", json!({})),
            json!({"handle_id": "vxlan-tunnel-addr-node-a", "secondary": {"node": "node-a", "type": "vxlanTunnelAddress"}}),
            gos("k8s-pod-network.young", json!({"timestamp": "2126-01-02 03:04:05 +0000 UTC"})),
            gos("k8s-pod-network.elsewhere", json!({"node": "node-b"})),
            gos("k8s-pod-network.vmi.default.vm", json!({"vmi-name": "vm"})),
            json!({"handle_id": "testnet.ourleak", "secondary": {"node": "node-a", "interface": "eth0", "timestamp": OLD}}),
        ],
    );
    // Our pods use the same block.
    let addresses = [&one, &two].map(|pod| node.add(pod).addresses()[0].clone());
    plant_handle(&node, "k8s-pod-network.orphan", &json!({"10.231.0.64/26": 1}));
    plant_handle(&node, "k8s-pod-network.golive", &json!({"10.231.0.64/26": 1, "10.231.0.192/26": 4}));
    let results = node.path("var/lib/cni/results");
    std::fs::create_dir_all(&results).unwrap();
    let cached = json!({"kind": "cniCacheV1", "containerId": "cached", "ifName": "eth0", "networkName": "k8s-pod-network", "result": {}});
    std::fs::write(results.join("k8s-pod-network-cached-eth0"), cached.to_string()).unwrap();
    let endpoint = json!({"kind": "WorkloadEndpoint", "metadata": {"name": "e", "namespace": "default"}, "spec": {"node": "node-a", "ipNetworks": ["10.231.0.68/32"]}});
    node.store_put(&format!("{ENDPOINTS}/default/e"), &endpoint.to_string());
    assert!(one.pings(&[&addresses[1]]) && go.pings(&[&addresses[0]]) && two.pings(&["10.231.0.64"]));

    let leaked = ["10.231.0.65", "10.231.0.73", "k8s-pod-network.golive", "k8s-pod-network.orphan"];
    let before = dump(&node);
    let dry = repair(&node, &["--dry-run", "--grace", "1s", "-o", "json"]);
    assert_eq!(dry.status, 3, "{dry:?}");
    assert_eq!(with_outcome(&report(&dry), "leaked"), leaked);
    assert_eq!(dump(&node), before, "a dry run writes nothing");

    let answer = repair(&node, &["--grace", "1s", "-o", "json"]);
    assert_eq!(answer.status, 0, "{answer:?}");
    let report = report(&answer);
    assert_eq!(with_outcome(&report, "released"), leaked, "{report}");
    assert_eq!(report["findings"].as_array().unwrap().len(), leaked.len(), "{report}");
    let shown = report["findings"][0]["evidence"].to_string();
    assert!(shown.contains("none of 2 links") && shown.contains("none of 1 endpoints"), "{shown}");
    let after = dump(&node);
    for gone in ["goleak", "ourleak", "orphan", "10.231.0.192/26"] {
        assert!(!after.contains(gone), "{gone} is still there");
    }
    for kept in ["golive", "bridged", "cached", "endpoint", "vxlan-tunnel", "young", "elsewhere", "vmi"] {
        assert!(after.contains(kept), "{kept} is gone");
    }
    assert_eq!(node.allocated(), 2);
    assert!(one.pings(&[&addresses[1]]) && go.pings(&[&addresses[0]]) && two.pings(&["10.231.0.64"]));
    let again = repair(&node, &["--grace", "1s"]);
    assert_eq!(again.status, 0, "{again:?}");
    assert!(again.stdout.ends_with("0 leaks repaired, 0 left\n"), "{again:?}");
}

#[test]
#[ignore = "root: makes network namespaces"]
fn changes_between_the_two_checks_prevent_the_release() {
    let mut node = TestNode::start(&args("10.232.0.0/26", "off"));
    let pod = node.pod();
    let address = node.add(&pod).addresses()[0].clone();
    plant_block(&node, "10.232.0.64/26", &[gos("k8s-pod-network.retaken", json!({}))]);
    // The pod's wiring is gone, its address is not: a leak, until its runtime repeats the ADD.
    for link in node.links() {
        node.ip(&["link", "del", &link]);
    }
    let running = until_second_check(&node, &address);
    assert_eq!(node.add(&pod).addresses(), std::slice::from_ref(&address), "it has its old address again");
    let block = format!("{IPAM}/assignment/ipv4/block/10.232.0.64-26");
    let records: Value = serde_json::from_str(&node.store_get(&block)).unwrap();
    let mut value = records["records"][0]["value"].clone();
    value["sequenceNumberForAllocation"]["0"] = json!(1_767_322_800_000_000_100_u64);
    value["sequenceNumber"] = json!(1_767_322_800_000_000_101_u64);
    node.store_put(&block, &value.to_string());
    let answer: Answer = running.wait_with_output().unwrap().into();
    let report = report(&answer);
    assert_eq!(with_outcome(&report, "alive"), [address.as_str(), "10.232.0.64"], "{report}");
    assert_eq!(report["findings"].as_array().unwrap().len(), 2, "{report}");
    assert_eq!((answer.status, node.allocated()), (0, 1), "{report}");
    assert!(node.store_get(&block).contains("retaken"));
}

#[test]
#[ignore = "root: makes network namespaces"]
fn a_request_for_a_container_between_the_checks_keeps_its_address() {
    let mut node = TestNode::start(&args("10.233.0.0/26", "off"));
    let pod = node.pod();
    let address = node.add(&pod).addresses()[0].clone();
    for link in node.links() {
        node.ip(&["link", "del", &link]);
    }
    let running = until_second_check(&node, &address);
    // CHECK wires nothing and fails, but it proves that a runtime uses the container.
    assert_ne!(node.verb("CHECK", &pod, "eth0", json!({})).status, 0);
    let report = report(&running.wait_with_output().unwrap().into());
    assert_eq!(with_outcome(&report, "alive"), [address], "{report}");
    assert_eq!(node.allocated(), 1, "{report}");
}

#[test]
#[ignore = "root: makes network namespaces"]
fn evidence_that_cannot_be_read_ends_the_repair() {
    let node = TestNode::start(&args("10.234.0.0/26", "off"));
    plant_block(&node, "10.234.0.64/26", &[gos("k8s-pod-network.goleak", json!({}))]);
    let results = node.path("var/lib/cni/results");
    std::fs::create_dir_all(&results).unwrap();
    std::fs::write(results.join("half"), "{\"kind\":").unwrap();
    let endpoint = format!("{ENDPOINTS}/default/e");
    let refused = |names: &str| {
        let answer = repair(&node, &["--grace", "1s"]);
        assert_eq!((answer.status, answer.stdout.as_str()), (1, ""), "{answer:?}");
        assert!(format!("{answer:?}").contains(names), "{answer:?}");
        assert!(dump(&node).contains("goleak"));
    };
    refused("results/half");
    std::fs::remove_file(results.join("half")).unwrap();
    node.store_put(&endpoint, "{");
    refused("workloadendpoints/default/e cannot be read");
    node.store_put(&endpoint, r#"{"kind":"WorkloadEndpoint","metadata":{"name":"e"},"spec":{}}"#);
    assert_eq!(repair(&node, &["--grace", "1s"]).status, 0);
    assert!(!dump(&node).contains("goleak"));
}

#[test]
#[ignore = "root: makes network namespaces"]
fn addresses_of_nodes_without_a_record_are_released_on_request() {
    let node = TestNode::start(&args("10.237.0.0/26", "off"));
    plant_block(
        &node,
        "10.237.0.64/26",
        &[
            gos("k8s-pod-network.here", json!({})),
            gos("k8s-pod-network.gone", json!({"node": "node-b"})),
            gos("k8s-pod-network.named", json!({"node": "node-b"})),
        ],
    );
    let endpoint = r#"{"kind":"WorkloadEndpoint","metadata":{"name":"e"},"spec":{"containerID":"named"}}"#;
    node.store_put(&format!("{ENDPOINTS}/default/e"), endpoint);
    let answer = repair(&node, &["--gone-nodes", "--grace", "1s", "-o", "json"]);
    assert_eq!(with_outcome(&report(&answer), "released"), ["10.237.0.65"], "{answer:?}");
    let after = dump(&node);
    assert!(after.contains(".here") && after.contains(".named") && !after.contains(".gone"), "{after}");
    // A node with a record is repaired by its own agent.
    node.store_put(
        "/calico/resources/v3/projectcalico.org/nodes/node-b",
        r#"{"kind":"Node","metadata":{"name":"node-b"},"spec":{}}"#,
    );
    let again = repair(&node, &["--gone-nodes", "--grace", "1s", "-o", "json"]);
    assert_eq!((again.status, report(&again)["seen"]["entries"].as_u64()), (0, Some(0)), "{again:?}");
}

#[test]
#[ignore = "root: makes network namespaces"]
fn the_agent_repairs_by_itself_and_counts_what_it_did() {
    let mut node = TestNode::start(&args("10.235.0.0/26", "1s"));
    let (one, two) = (node.pod(), node.pod());
    node.add(&one);
    let address = node.add(&two).addresses()[0].clone();
    plant_block(&node, "10.235.0.64/26", &[gos("k8s-pod-network.goleak", json!({}))]);
    plant_handle(&node, "k8s-pod-network.orphan", &json!({"10.235.0.64/26": 1}));
    eventually(TIMEOUT, || !dump(&node).contains("k8s-pod-network"));
    eventually(TIMEOUT, || {
        let metrics = node.netns().with(metrics).unwrap();
        ["address", "handle"]
            .iter()
            .all(|kind| metrics.contains(&format!("russet_ipam_repaired_total{{kind=\"{kind}\"}} 1")))
    });
    eventually(TIMEOUT, || node.log().contains("a leak was repaired"));
    assert!(one.pings(&[&address]));
    assert_eq!(node.allocated(), 2);
}

fn metrics() -> String {
    let mut stream = std::net::TcpStream::connect("127.0.0.1:9471").unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Forwards a plugin's connection to the store until the store has `key`: then kills the plugin,
/// which never gets the answer.
fn kill_once_stored(listen: &Path, store: PathBuf, key: String, pid: Receiver<u32>) {
    let listener = UnixListener::bind(listen).unwrap();
    std::thread::spawn(move || {
        let pid = pid.recv().unwrap();
        for client in listener.incoming() {
            let (mut client, mut server) = (client.unwrap(), UnixStream::connect(&store).unwrap());
            let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut from_client, &mut to_server));
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = server.read(&mut chunk) {
                if is_stored(&store, &key) {
                    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
                    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
                    return;
                }
                if client.write_all(&chunk[..count]).is_err() {
                    break;
                }
            }
        }
    });
}

fn is_stored(socket: &Path, key: &str) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let key = Key::from_stored(key);
    runtime.block_on(async { Remote::connect(socket).get(&key).await }).unwrap().is_some()
}

#[test]
#[ignore = "root: makes network namespaces"]
fn without_an_agent_a_plugin_killed_between_address_and_wiring_is_repaired_after() {
    let owner = tempfile::tempdir().unwrap();
    let store = StoreProcess::start(owner.path());
    let mut node = TestNode::without_agent(&[]);
    let proxy = node.path("proxy.sock");
    let settings = |socket: &Path| {
        let text = format!(
            "node_name = 'node-a'\nipv4_pool = '10.236.0.0/24'\nipv6_pool = 'none'\nencapsulation = 'none'\nstore = 'unix:{}'\n",
            socket.display()
        );
        std::fs::create_dir_all(node.path("etc/russet")).unwrap();
        std::fs::write(node.path("etc/russet/russet.toml"), text).unwrap();
    };
    settings(&store.socket);
    let (one, two, killed) = (node.pod(), node.pod(), node.pod());
    node.add(&one);
    let address = node.add(&two).addresses()[0].clone();
    let links = node.links();

    let (sender, receiver) = channel();
    kill_once_stored(
        &proxy,
        store.socket.clone(),
        format!("{IPAM}/handle/testnet.{}", killed.container),
        receiver,
    );
    let text = std::fs::read_to_string(node.path("etc/russet/russet.toml")).unwrap();
    let through = text.replace(&store.socket.display().to_string(), &proxy.display().to_string());
    std::fs::write(node.path("etc/russet/russet.toml"), through).unwrap();
    let mut plugin = killed.call(env!("CARGO_BIN_EXE_russet"), "ADD", "/opt/cni/bin");
    process::in_netns(&mut plugin, node.netns()).unwrap();
    let mut plugin = plugin.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    sender.send(plugin.id()).unwrap();
    plugin.stdin.take().unwrap().write_all(node.config(json!({})).to_string().as_bytes()).unwrap();
    let status = plugin.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{status}");
    std::fs::write(node.path("etc/russet/russet.toml"), text).unwrap();
    assert_eq!((node.allocated(), node.links()), (3, links));

    eventually(TIMEOUT, || {
        let answer = repair(&node, &["--grace", "1s", "-o", "json"]);
        assert_eq!(answer.status, 0, "{answer:?}");
        let released = with_outcome(&report(&answer), "released");
        assert!(released.len() <= 1, "{answer:?}");
        released.len() == 1
    });
    assert_eq!(node.allocated(), 2);
    assert!(!node.store_get(&format!("{IPAM}/handle/")).contains(&killed.container));
    assert!(one.pings(&[&address]));
}
