//! Concurrent events: a kernel that refuses for a while, records deleted under a running agent,
//! networks with similar names.

use std::io::{Read as _, Write as _};
use std::process::Command;

use russet_store::{Remote, Step, Store};
use russet_testkit::{bound, eventually};
use serde_json::{Value, json};

use crate::node::{TIMEOUT, TestNode};

const NODE_KEY: &str = "/calico/resources/v3/projectcalico.org/nodes/node-a";

/// An underlay for agents that are started with `--interface up0`.
fn underlay(node: &TestNode) {
    node.ip(&["link", "add", "up0", "type", "veth", "peer", "name", "down0"]);
    node.ip(&["address", "add", "192.0.2.1/24", "dev", "up0"]);
    node.ip(&["address", "add", "2001:db8::1/64", "dev", "up0", "nodad"]);
    node.ip(&["link", "set", "down0", "up"]);
    node.ip(&["link", "set", "up0", "up"]);
}

#[test]
#[ignore = "root: makes network namespaces"]
fn a_kernel_that_refused_at_first_does_not_keep_the_node_unready() {
    let mut node = TestNode::without_agent(&["--ipv6-pool", "none", "--interface", "up0"]);
    underlay(&node);
    // It has the port and VNI that the tunnel needs.
    node.ip(&["link", "add", "vxlan-rival", "type", "vxlan", "id", "4096", "dstport", "4789"]);
    node.ip(&["link", "set", "vxlan-rival", "up"]);
    let netns = russet_linux::NetNs::open(node.netns().path()).unwrap();
    let log = node.path("agent.log");
    let rival = std::thread::spawn(move || {
        let refused =
            || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("the kernel refused a change"));
        eventually(TIMEOUT, refused);
        let delete = || Command::new("ip").args(["link", "del", "vxlan-rival"]).status().unwrap();
        assert!(netns.with(delete).unwrap().success());
    });
    node.start_agent();
    rival.join().unwrap();
}

/// The node's record in the store, if there is one.
fn record(node: &TestNode) -> Option<Value> {
    let dump: Value = serde_json::from_str(&node.store_get(NODE_KEY)).unwrap();
    dump["records"].as_array().unwrap().first().map(|record| record["value"].clone())
}

#[test]
#[ignore = "root: makes network namespaces"]
fn a_node_whose_record_is_deleted_registers_with_its_tunnel_again() {
    let mut node = TestNode::without_agent(&["--ipv6-pool", "none", "--interface", "up0"]);
    underlay(&node);
    node.start_agent();
    let before = record(&node).unwrap();
    let spec = |record: &Value| record["spec"].clone();
    assert!(before.to_string().contains("ipv4VXLANTunnelAddr"), "{before}");
    delete_record(&node, NODE_KEY);
    eventually(TIMEOUT, || record(&node).is_some_and(|now| spec(&now) == spec(&before)));
}

#[test]
#[ignore = "root: makes network namespaces"]
fn pools_made_one_right_after_another_all_get_their_tunnel() {
    let mut node = TestNode::without_agent(&["--ipv6-pool", "none", "--interface", "up0"]);
    underlay(&node);
    node.start_agent();
    let key = |name: &str| format!("/calico/resources/v3/projectcalico.org/ippools/{name}");
    let pool = |name: &str, cidr: &str, size: u8, mode: &str| {
        json!({
            "kind": "IPPool", "apiVersion": "projectcalico.org/v3", "metadata": {"name": name},
            "spec": {"cidr": cidr, "blockSize": size, "vxlanMode": mode, "ipipMode": "Never", "nodeSelector": "all()"},
        })
        .to_string()
    };
    for round in 0..20 {
        node.store_put(&key("other"), &pool("other", &format!("10.{round}.0.0/16"), 26, "Never"));
        node.store_put(&key("six"), &pool("six", "fd00:1::/48", 122, "Always"));
        eventually(TIMEOUT, || {
            record(&node).is_some_and(|now| now["spec"]["ipv6VXLANTunnelAddr"].is_string())
        });
        delete_record(&node, &key("six"));
        delete_record(&node, NODE_KEY);
    }
}

/// Deletes a record without the agent, through the store's socket.
fn delete_record(node: &TestNode, key: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let socket = node.path("var/lib/russet/store.sock");
    runtime
        .block_on(async {
            let key = russet_model::Key::from_stored(key);
            Remote::connect(socket).commit(vec![Step::delete(key, None)]).await
        })
        .unwrap();
}

#[test]
#[ignore = "root: makes network namespaces"]
fn gc_of_a_network_spares_networks_whose_names_begin_alike() {
    let mut node = TestNode::start(&[]);
    let pod = node.pod();
    let other = json!({ "name": "testnet.v2" });
    let addresses = node.verb("ADD", &pod, "eth0", other).addresses();
    let gc = node.config(json!({ "cni.dev/valid-attachments": [] }));
    assert_eq!(node.run(&[("CNI_COMMAND", "GC")], gc.to_string().as_bytes()).status, 0);
    assert_eq!(node.allocated(), addresses.len());
}

#[test]
#[ignore = "root: makes network namespaces"]
fn connections_to_the_health_address_do_not_take_the_requests_descriptors() {
    let mut node = TestNode::start(&[]);
    let connect = || std::net::TcpStream::connect("127.0.0.1:9471").unwrap();
    let idle: Vec<_> = node.netns().with(|| (0..100).map(|_| connect()).collect()).unwrap();
    let pod = node.pod();
    assert_eq!(node.add(&pod).status, 0);
    let open = std::fs::read_dir(format!("/proc/{}/fd", node.agent_pid())).unwrap().count();
    assert!(open < idle.len(), "{open} descriptors are open");
}

#[test]
#[ignore = "root: makes network namespaces"]
fn pods_are_attached_while_another_process_has_the_health_address() {
    let mut node = TestNode::start(&[]);
    node.stop_agent();
    let squat = || bound(|| std::net::TcpListener::bind("127.0.0.1:9471"));
    let squatter = node.netns().with(squat).unwrap();
    // It waits for a STATUS without an error.
    node.start_agent();
    let pod = node.pod();
    assert_eq!(node.add(&pod).status, 0);
    let socket = node.path("run/russet/health.sock");
    let ask = || {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        stream
            .write_all(b"GET /readyz?verbose HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let answer = ask();
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(
        answer.contains("[-] health: 127.0.0.1:9471: a process of user 0 listens at port 9471"),
        "{answer}"
    );
    drop(squatter);
    eventually(TIMEOUT, || ask().starts_with("HTTP/1.1 200 "));
    assert!(node.get("/healthz").starts_with("HTTP/1.1 200"));
}

#[test]
#[ignore = "root: makes network namespaces"]
fn an_edited_pool_takes_effect_at_once_despite_the_agents_cache() {
    let mut node = TestNode::start(&["--ipv6-pool", "none"]);
    let pod = node.pod();
    node.add(&pod).result();
    let key = "/calico/resources/v3/projectcalico.org/ippools/default-ipv4";
    let dump: serde_json::Value = serde_json::from_str(&node.store_get(key)).unwrap();
    let mut pool = dump["records"][0]["value"].clone();
    pool["spec"]["disabled"] = true.into();
    node.store_put(key, &pool.to_string());
    // The agent caches pools for 30 s; its watch notifies it sooner.
    let other = node.pod();
    eventually(std::time::Duration::from_secs(10), || {
        let answer = node.add(&other);
        node.del(&other);
        answer.status != 0
    });
    assert_eq!(node.add(&other).code(), 100);
}
