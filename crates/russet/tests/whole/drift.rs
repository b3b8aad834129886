//! Another program flushes Russet's objects while traffic runs: they are restored within
//! milliseconds, counted, and reported with the program's name.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use russet_linux::{NetNs, process};
use russet_testkit::{eventually, require_tool};
use serde_json::{Value, json};

use crate::fabric::Fabric;
use crate::node::{TIMEOUT, TestNode, TestPod};
use crate::pinging::Pinging;
use crate::reference_plugins::{call, installed};

/// Arguments of `ip`.
const FLUSH_ROUTES: [&str; 6] = ["route", "flush", "table", "main", "proto", "114"];

/// A thousand pings a second.
const INTERVAL_S: &str = "0.001";
/// The loss after which the test counts as not repaired: the machine of a test is busy. The goal of
/// 50 ms is printed beside the measured time.
const LOST_MAX: usize = 2000;
/// Changes without an event are found once a minute.
const RESYNC_TIMEOUT: Duration = Duration::from_secs(100);
/// Limit for pods that come and go during flushes.
const ROUNDS_MAX: u32 = 5_000;
/// Elements of a foreign firewall: far more than the agent's buffer holds.
const OTHERS_ELEMENTS: u32 = 100_000;

pub fn drift(node: &TestNode) -> Value {
    let answer = node.russet(&["drift", "-o", "json", "--last", "200"]);
    assert!([0, 3].contains(&answer.status), "{answer:?}");
    serde_json::from_str(&answer.stdout).unwrap()
}

/// The number of repairs of one kind.
pub fn repaired(node: &TestNode, kind: &str) -> u64 {
    let report = drift(node);
    let repairs = report["repairs"].as_array().unwrap();
    repairs.iter().filter_map(|repair| repair["kinds"][kind].as_u64()).sum()
}

pub fn quiet(node: &TestNode) -> bool {
    node.russet(&["drift"]).status == 0
}

/// Three nodes and a pod on each of the first two.
fn cluster(fabric: &mut Fabric) -> (Vec<TestNode>, [TestPod; 2], String) {
    let mut nodes: Vec<TestNode> = ["node-a", "node-b", "node-c"].map(|name| fabric.node(name, &[])).into();
    nodes.iter_mut().for_each(TestNode::start_agent);
    let pods = [nodes[0].pod(), nodes[1].pod()];
    nodes[0].add(&pods[0]).result();
    let there = nodes[1].add(&pods[1]).addresses().remove(0);
    eventually(TIMEOUT, || quiet(&nodes[0]) && quiet(&nodes[1]));
    (nodes, pods, there)
}

fn routes(node: &TestNode) -> usize {
    node.inside("ip", &["route", "show", "table", "main", "proto", "114"]).lines().count()
}

#[test]
#[ignore = "kernel: three nodes on an etcd whose routes, forwarding entries and nf_tables are flushed"]
fn a_flush_of_everything_while_traffic_runs_is_repaired_counted_and_explained() {
    let mut fabric = Fabric::new();
    let (nodes, [from, _to], there) = cluster(&mut fabric);
    let node = &nodes[0];
    let (before, device) = (routes(node), "vxlan.calico");
    assert!(before > 0);
    let flushes: [(&str, &str, &[&str]); 3] = [
        ("nft", "nat", &["flush", "ruleset"]),
        ("ip", "route", &FLUSH_ROUTES),
        ("bridge", "fdb", &["fdb", "flush", "dev", device]),
    ];
    for (program, kind, args) in flushes {
        let traffic = Pinging::start_every(&from, &there, INTERVAL_S);
        let was = repaired(node, kind);
        // `bridge flush` removes the forwarding entries that it finds; some versions cannot.
        node.inside(program, args);
        eventually(TIMEOUT, || repaired(node, kind) > was);
        eventually(TIMEOUT, || quiet(node));
        println!("{program} {}", args.join(" "));
        assert!(traffic.stop().lost.len() < LOST_MAX);
    }
    assert_eq!(routes(node), before);
    assert!(node.inside("nft", &["list", "ruleset"]).contains("overlay-postrouting"));
    let report = drift(node);
    let by = |name: &str| {
        let repairs = report["repairs"].as_array().unwrap();
        let who = repairs.iter().flat_map(|repair| repair["who"].as_array().unwrap());
        who.filter(|who| who["process"] == name).count()
    };
    // The kernel's nf_tables events name the process; see `a_process_with_an_open_netlink_socket_is_identified` for
    // the rest.
    assert!(by("nft") >= 1, "{report:#}");
    let metrics = node.inside("curl", &["-sf", "http://127.0.0.1:9471/metrics"]);
    for kind in ["nat", "route", "fdb"] {
        let line = format!("russet_drift_repairs_total{{kind=\"{kind}\"}}");
        assert!(metrics.contains(&line), "{metrics}");
    }
    println!("{}", node.russet(&["drift"]).stdout);
}

#[test]
#[ignore = "kernel: a node that is flushed while pods come and go; tool: nft"]
fn a_flush_while_pods_come_and_go_is_repaired_without_restoring_deleted_pods() {
    let mut node = TestNode::start(&[]);
    let [stays, goes] = [node.pod(), node.pod()];
    node.add(&stays).result();
    let (before, over) = (routes(&node), AtomicBool::new(false));
    let total = || drift(&node)["repairs_total"].as_u64().unwrap();
    let flush_routes = || {
        // A route that is deleted with its pod during the flush makes `ip` fail half-way.
        let flush = || node.netns().with(|| Command::new("ip").args(FLUSH_ROUTES).output().unwrap()).unwrap();
        eventually(TIMEOUT, || {
            let output = flush();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() || said.contains("No such process"), "{said}");
            output.status.success()
        });
    };
    std::thread::scope(|scope| {
        let coming_and_going = scope.spawn(|| {
            let once = |_: &u32| {
                node.add(&goes).result();
                assert_eq!(node.del(&goes).status, 0);
            };
            // Limited, in case the other side fails.
            (0..ROUNDS_MAX).take_while(|_| !over.load(Ordering::Relaxed)).inspect(once).count()
        });
        for _ in 0..10 {
            let flush_tables = || drop(node.inside("nft", &["flush", "ruleset"]));
            for flush in [&flush_routes as &dyn Fn(), &flush_tables] {
                let was = total();
                flush();
                eventually(TIMEOUT, || total() > was || coming_and_going.is_finished());
            }
        }
        over.store(true, Ordering::Relaxed);
        let rounds = coming_and_going.join().unwrap();
        let report = drift(&node);
        let took = report["repairs"].as_array().unwrap().iter().map(|repair| repair["ms"].as_f64().unwrap());
        let mut took: Vec<f64> = took.collect();
        took.sort_by(f64::total_cmp);
        let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
        println!("{rounds} ADDs and DELs, {} repairs, median {median} ms, at most {longest} ms", took.len());
    });
    eventually(TIMEOUT, || quiet(&node));
    assert_eq!(routes(&node), before);
}

#[test]
#[ignore = "kernel: a node whose routes `ip` flushes, and stays"]
fn a_process_with_an_open_netlink_socket_is_identified() {
    let mut fabric = Fabric::new();
    let (nodes, _pods, _there) = cluster(&mut fabric);
    let node = &nodes[0];
    let mut ip = Command::new(require_tool("ip"));
    ip.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut ip = process::in_netns(&mut ip, node.netns()).unwrap().spawn().unwrap();
    let mut words = ip.stdin.take().unwrap();
    writeln!(words, "route flush table main proto 114").unwrap();
    eventually(TIMEOUT, || repaired(node, "route") > 0);
    let report = drift(node);
    drop(words);
    ip.wait().unwrap();
    let who = &report["repairs"][0]["who"][0];
    assert_eq!(who["pid"], ip.id(), "{report:#}");
    assert_eq!(who["process"], "ip");
    assert!(who["command"].as_str().unwrap().ends_with("ip -batch -"), "{who}");
    assert_eq!(who["certain"], true);
}

#[test]
#[ignore = "kernel: a node whose tunnel device is changed, and deleted"]
fn the_tunnel_device_is_restored_after_every_kind_of_change() {
    let mut fabric = Fabric::new();
    let (nodes, [from, _to], there) = cluster(&mut fabric);
    let node = &nodes[0];
    let traffic = Pinging::start_every(&from, &there, INTERVAL_S);
    for args in [
        &["link", "set", "vxlan.calico", "down"][..],
        &["link", "set", "vxlan.calico", "mtu", "1300"],
        &["address", "flush", "dev", "vxlan.calico"],
        &["neighbour", "flush", "dev", "vxlan.calico", "nud", "permanent"],
        &["link", "delete", "vxlan.calico"],
        &["link", "set", "eth0", "down"],
    ] {
        let total = drift(node)["repairs_total"].as_u64().unwrap();
        node.inside("ip", args);
        if args.contains(&"eth0") {
            // This change is the operator's; the routes that were deleted with it are Russet's.
            node.inside("ip", &["link", "set", "eth0", "up"]);
            node.inside("ip", &["route", "replace", "default", "via", "10.77.0.1"]);
        }
        // No route of Russet leads directly through that one here.
        let untouched = args.contains(&"eth0");
        eventually(TIMEOUT, || untouched || drift(node)["repairs_total"].as_u64().unwrap() > total);
        eventually(TIMEOUT, || quiet(node));
    }
    traffic.stop();
    println!("{}", node.russet(&["drift", "--last", "50"]).stdout);
}

#[test]
#[ignore = "kernel: a node whose pods' host ends are changed"]
fn a_host_ends_objects_are_restored_and_a_deleted_pods_are_not() {
    let mut fabric = Fabric::new();
    let (mut nodes, [from, _to], there) = cluster(&mut fabric);
    let second = nodes[0].pod();
    let address = nodes[0].add(&second).addresses().remove(0);
    let node = &nodes[0];
    let name = node.links().into_iter().find(|link| link.starts_with("russ")).unwrap();
    let traffic = Pinging::start_every(&from, &there, INTERVAL_S);
    for args in [
        &["link", "set", &name, "down"][..],
        &["link", "set", &name, "mtu", "1300"],
        &["route", "flush", "root", "10.244.0.0/16", "scope", "link"],
        &["neighbour", "flush", "dev", &name, "nud", "permanent"],
    ] {
        let total = drift(node)["repairs_total"].as_u64().unwrap();
        node.inside("ip", args);
        eventually(TIMEOUT, || drift(node)["repairs_total"].as_u64().unwrap() > total);
        eventually(TIMEOUT, || quiet(node));
    }
    node.inside("sysctl", &["-w", &format!("net.ipv4.conf.{name}.forwarding=0")]);
    eventually(TIMEOUT, || repaired(node, "pod_sysctl") > 0);
    traffic.stop();
    println!("{}", node.russet(&["drift", "--last", "50"]).stdout);
    // A deleted pod's objects are not restored, whatever happens to the others.
    assert_eq!(node.del(&second).status, 0);
    node.inside("ip", &FLUSH_ROUTES);
    eventually(TIMEOUT, || quiet(node) && repaired(node, "route") > 0);
    let routes = node.inside("ip", &["route", "show", "table", "main", "proto", "114"]);
    assert!(!routes.lines().any(|line| line.starts_with(&format!("{address} "))), "{routes}");
}

/// Found by `cargo xtask chaos --field embedded --seed 6`.
#[test]
#[ignore = "kernel: a node with a pod whose namespace is deleted; tool: nft"]
fn the_verdict_of_a_pod_whose_namespace_goes_without_a_del_goes_with_it() {
    let mut node = TestNode::start(&[]);
    let pod = node.pod();
    let result = node.add(&pod).result();
    let host_end = result["interfaces"][0]["name"].as_str().unwrap();
    let verdicts = || node.inside("nft", &["list", "table", "inet", "russet-policy"]);
    assert!(verdicts().contains(host_end));
    NetNs::delete_named(&pod.netns_name).unwrap();
    eventually(TIMEOUT, || !verdicts().contains(host_end));
}

#[test]
#[ignore = "kernel: etcd is away during a flush"]
fn drift_is_repaired_while_the_datastore_is_away() {
    let mut fabric = Fabric::new();
    let (nodes, _pods, _there) = cluster(&mut fabric);
    let node = &nodes[0];
    let before = routes(node);
    fabric.kill_etcd();
    node.inside("ip", &FLUSH_ROUTES);
    eventually(TIMEOUT, || routes(node) == before);
    // The kernel sends no event for this one.
    let name = node.links().into_iter().find(|link| link.starts_with("russ")).unwrap();
    let delay = format!("net.ipv4.neigh.{name}.proxy_delay");
    let read = || node.inside("sysctl", &["-n", &delay]);
    let right = read();
    node.inside("sysctl", &["-w", &format!("{delay}=80")]);
    assert_ne!(read(), right);
    eventually(RESYNC_TIMEOUT, || read() == right);
}

#[test]
#[ignore = "kernel: a node whose agent starts again, and pods of before; tool: nft"]
fn a_restarted_agent_knows_existing_links_at_once() {
    let mut node = TestNode::start(&[]);
    let [stays, goes] = [node.pod(), node.pod()];
    let [stays_end, goes_end] = [&stays, &goes].map(|pod| {
        let result = node.add(pod).result();
        result["interfaces"][0]["name"].as_str().unwrap().to_owned()
    });
    let before = routes(&node);
    node.stop_agent();
    node.inside("ip", &FLUSH_ROUTES);
    node.inside("ip", &["link", "set", &stays_end, "down"]);
    node.start_agent();
    eventually(TIMEOUT, || routes(&node) == before);
    eventually(TIMEOUT, || quiet(&node));
    node.inside("sysctl", &["-w", &format!("net.ipv4.conf.{stays_end}.forwarding=0")]);
    eventually(TIMEOUT, || repaired(&node, "pod_sysctl") > 0);
    let verdicts = || node.inside("nft", &["list", "table", "inet", "russet-policy"]);
    assert!(verdicts().contains(&goes_end));
    NetNs::delete_named(&goes.netns_name).unwrap();
    eventually(TIMEOUT, || !verdicts().contains(&goes_end));
}

#[test]
#[ignore = "kernel: bridge, veth; a node whose pods' bridge is deleted"]
fn a_deleted_bridge_comes_back_with_the_mac_that_pods_know() {
    let mut node = TestNode::start(&[]);
    let bin = installed(&["bridge", "host-local"]);
    let pod = node.pod();
    let config = node.config(json!({"name": "n", "cniVersion": "1.0.0", "type": "bridge", "bridge": "cni7",
        "isGateway": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}]]}}));
    let result = call(&node, bin.path(), "bridge", "ADD", &pod, &config).result();
    let mac = || {
        let links: Value = serde_json::from_str(&node.inside("ip", &["-j", "link"])).unwrap();
        let bridge = links.as_array().unwrap().iter().find(|link| link["ifname"] == "cni7").cloned();
        bridge.map(|bridge| bridge["address"].clone())
    };
    let before = mac().unwrap();
    for _ in 0..3 {
        let was = repaired(&node, "bridge");
        node.inside("ip", &["link", "delete", "cni7"]);
        eventually(TIMEOUT, || repaired(&node, "bridge") > was);
        assert_eq!(mac(), Some(before.clone()));
    }
    let mut checked = config.clone();
    checked["prevResult"] = result;
    assert_eq!(call(&node, bin.path(), "bridge", "CHECK", &pod, &checked).status, 0);
}

#[test]
#[ignore = "kernel: bridge, veth, nf_tables; a node whose pods' masquerade and ports are flushed; tool: nft"]
fn masquerade_and_published_ports_are_restored_to_their_latest_state() {
    let mut node = TestNode::start(&[]);
    let bin = installed(&["bridge", "host-local", "portmap"]);
    // So many changes that some events are lost.
    let element = |n: u32| std::net::Ipv4Addr::from(0x0b00_0000 + n).to_string();
    let others = (0..OTHERS_ELEMENTS).map(element).collect::<Vec<_>>().join(", ");
    let loud = node.path("loud.nft");
    let ruleset = format!(
        "flush ruleset\ntable ip others {{ set s {{ type ipv4_addr; elements = {{ {others} }}; }}; }}\n"
    );
    std::fs::write(&loud, ruleset).unwrap();
    let pod = node.pod();
    let bridge = node
        .config(json!({"name": "n", "cniVersion": "1.0.0", "type": "bridge", "isDefaultGateway": true,
        "ipMasq": true, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}]]}}));
    let result = call(&node, bin.path(), "bridge", "ADD", &pod, &bridge).result();
    let portmap = node
        .config(json!({"name": "n", "cniVersion": "1.0.0", "type": "portmap", "prevResult": result,
        "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}}));
    let table = || {
        let text = node.inside("nft", &["-s", "list", "table", "inet", "russet-cni"]);
        let mut words: Vec<String> =
            text.replace(',', "\n").lines().map(|line| line.trim().to_owned()).collect();
        words.sort();
        words
    };
    for verb in ["ADD", "DEL"] {
        assert_eq!(call(&node, bin.path(), "portmap", verb, &pod, &portmap).status, 0);
        let before = table();
        assert_eq!(before.iter().any(|line| line.contains("8080")), verb == "ADD", "{before:?}");
        for vandal in [
            &["flush", "ruleset"][..],
            &["delete", "table", "inet", "russet-cni"],
            &["-f", loud.to_str().unwrap()],
        ] {
            let was = repaired(&node, "pod_nat");
            node.inside("nft", vandal);
            eventually(TIMEOUT, || repaired(&node, "pod_nat") > was);
            assert_eq!(table(), before);
        }
    }
    println!("{}", node.russet(&["drift"]).stdout);
}

/// CPU time of a process's threads in seconds.
fn busy_s(pid: u32) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let stats = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("schedstat")).ok());
    stats.filter_map(|text| text.split_whitespace().next()?.parse::<f64>().ok()).sum::<f64>() / 1e9
}

#[test]
#[ignore = "kernel: 20,000 foreign routes on a node"]
fn a_flood_of_foreign_changes_is_no_drift() {
    const ROUTES: u32 = 20_000;
    let mut fabric = Fabric::new();
    let (nodes, _pods, _there) = cluster(&mut fabric);
    let node = &nodes[0];
    let (total, before) = (drift(node)["repairs_total"].clone(), routes(node));
    let (began, busy) = (std::time::Instant::now(), busy_s(node.agent_pid()));
    for verb in ["add", "del"] {
        let line =
            |n: u32| format!("route {verb} {}/32 via 10.77.0.1\n", std::net::Ipv4Addr::from(0xc000_0000 + n));
        let file = node.path("routes");
        std::fs::write(&file, (0..ROUTES).map(line).collect::<String>()).unwrap();
        node.inside("ip", &["-batch", file.to_str().unwrap()]);
    }
    // Changes of Russet's objects are detected in the middle of it, and afterwards.
    node.inside("ip", &FLUSH_ROUTES);
    eventually(TIMEOUT, || routes(node) == before);
    let (took, busy) = (began.elapsed().as_secs_f64(), busy_s(node.agent_pid()) - busy);
    println!("{ROUTES} foreign routes added and deleted in {took:.1} s: the agent was busy for {busy:.2} s");
    eventually(TIMEOUT, || quiet(node));
    let report = drift(node);
    let repairs = report["repairs_total"].as_u64().unwrap() - total.as_u64().unwrap();
    // The repairs of pods and of the overlay; a dump in the middle of the flush may see half of it.
    assert!((2..=8).contains(&repairs), "{report:#}");
    let kinds = ["route", "pod_route"];
    for repair in report["repairs"].as_array().unwrap().iter().take(repairs as usize) {
        let found = repair["kinds"].as_object().unwrap();
        assert!(found.keys().all(|kind| kinds.contains(&kind.as_str())), "{repair:#}");
    }
}

#[test]
#[ignore = "kernel: an agent whose etcd is away from the start"]
fn an_agent_that_has_not_read_its_store_does_not_report_no_drift() {
    let mut fabric = Fabric::new();
    fabric.kill_etcd();
    let node = fabric.node("node-a", &[]);
    let _agent = node.spawn_agent();
    let listens = || std::net::TcpStream::connect("127.0.0.1:9471").is_ok();
    eventually(TIMEOUT, || node.netns().with(listens).unwrap());
    eventually(TIMEOUT, || node.get("/readyz?verbose").contains("[-] store: "));
    let answer = node.russet(&["drift"]);
    assert_eq!(answer.status, 1, "{answer:?}");
    assert!(answer.stdout.contains("the agent has not read its store yet"), "{answer:?}");
    assert!(!answer.stdout.contains("nothing differs from what should be"), "{answer:?}");
    fabric.start_etcd();
    eventually(TIMEOUT, || quiet(&node));
}

#[test]
#[ignore = "kernel: two nodes on an etcd, foreign rules and an interface that goes down; tool: nft, iptables-legacy"]
fn a_closed_tunnel_and_an_underlay_that_is_down_are_seen_by_drift_and_readyz() {
    let mut fabric = Fabric::new();
    let mut nodes = ["node-a", "node-b"].map(|name| fabric.node(name, &[]));
    nodes.iter_mut().for_each(TestNode::start_agent);
    let node = &nodes[0];
    let ready = || node.get("/readyz?verbose");
    let is_ready = || ready().contains("[+] underlay") && quiet(node);
    eventually(TIMEOUT, is_ready);
    let sees = |what: &str| {
        eventually(TIMEOUT, || {
            let answer = node.russet(&["drift"]);
            answer.status == 3 && answer.stdout.contains(what)
        });
        // The loop checks every 10 s.
        eventually(TIMEOUT, || ready().contains(&format!("[-] underlay: {what}")));
    };
    node.inside(
        "nft",
        &[
            "table inet foreign {\n chain guard {\n type filter hook input priority 0\n udp dport 4789 drop\n }\n }",
        ],
    );
    sees("chain inet foreign guard drops packets from other nodes at UDP port 4789");
    node.inside("nft", &["delete", "table", "inet", "foreign"]);
    eventually(TIMEOUT, is_ready);
    let closed = ["INPUT", "-p", "udp", "--dport", "4789", "-j", "DROP"];
    node.inside("iptables-legacy", &[&["-A"], &closed[..]].concat());
    sees("chain ip filter INPUT of legacy iptables drops packets from other nodes at UDP port 4789");
    node.inside("iptables-legacy", &[&["-D"], &closed[..]].concat());
    eventually(TIMEOUT, is_ready);
    // The default route and the datastore become unreachable with it; drift is detected all the
    // same.
    node.inside("ip", &["link", "set", "eth0", "down"]);
    let answer = node.russet(&["drift"]);
    assert!(
        answer.status == 3 && answer.stdout.contains("interface eth0 to the other nodes is down"),
        "{answer:?}"
    );
    eventually(TIMEOUT, || ready().contains("[-] underlay: interface eth0 to the other nodes is down"));
}

#[test]
#[ignore = "kernel: a node whose interface goes down and loses its address; tool: ip"]
fn an_underlay_that_is_down_or_has_no_address_is_seen_by_drift_and_readyz() {
    let mut fabric = Fabric::new();
    let mut node = fabric.node_with_own_store("node-a");
    node.start_agent();
    let other = "{apiVersion: projectcalico.org/v3, kind: Node, metadata: {name: node-b}, spec: {bgp: {ipv4Address: 10.77.0.12/24}}}";
    let file = node.path("node-b.yaml");
    std::fs::write(&file, other).unwrap();
    assert_eq!(node.russet(&["apply", "-f", file.to_str().unwrap()]).status, 0);
    let ready = || node.get("/readyz?verbose");
    let is_ready = || ready().contains("[+] underlay") && quiet(&node);
    eventually(TIMEOUT, is_ready);
    let ip = |words: &str| node.inside("ip", &words.split(' ').collect::<Vec<_>>());
    let sees = |in_readyz: &str, in_drift: &str| {
        eventually(TIMEOUT, || ready().contains(&format!("[-] underlay: {in_readyz}")));
        let answer = node.russet(&["drift"]);
        assert!(answer.status == 3 && answer.stdout.contains(in_drift), "{answer:?}");
    };
    let down = "interface eth0 to the other nodes is down";
    ip("link set eth0 down");
    sees(down, down);
    ip("link set eth0 up");
    ip("route replace default via 10.77.0.1");
    eventually(TIMEOUT, is_ready);
    ip("address flush dev eth0");
    // The default route goes with the address.
    sees(
        "there is no default route, and no interface has the address 10.77.0.11",
        "interface eth0 has no address that other nodes can use",
    );
    ip("address add 10.77.0.11/24 dev eth0");
    ip("route replace default via 10.77.0.1");
    eventually(TIMEOUT, is_ready);
}
