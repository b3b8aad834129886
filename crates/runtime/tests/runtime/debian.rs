//! Chains of Debian's Go plugins, as users have them, run by our runtime: they attach, pass CHECK,
//! and detach without a trace (cni-runtime.md sections 5 and 5.2).

use std::fs;

use russet_cni_spec::Version;
use russet_runtime::{Attachment, Runtime};
use russet_testkit::{eventually, run};
use serde_json::{Value, json};

use crate::node::{files, held, ip_inside, links, nat_rules, on_a_node, parse, pod};

/// Every plugin of the chains here.
const KINDS: [&str; 8] =
    ["bridge", "host-local", "portmap", "tuning", "bandwidth", "firewall", "loopback", "macvlan"];

/// A network of these plugins.
fn network(version: &str, plugins: &[Value]) -> Value {
    json!({"cniVersion": version, "name": "net", "plugins": plugins})
}

fn ipam(subnets: &[&str]) -> Value {
    let ranges: Vec<Value> = subnets.iter().map(|subnet| json!([{"subnet": subnet}])).collect();
    json!({"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}]})
}

fn bridge(subnets: &[&str]) -> Value {
    json!({"type": "bridge", "bridge": "br0", "isGateway": true, "hairpinMode": true, "ipam": ipam(subnets)})
}

fn portmap() -> Value {
    json!({"type": "portmap", "capabilities": {"portMappings": true}, "snat": true})
}

fn bandwidth() -> Value {
    json!({"type": "bandwidth", "capabilities": {"bandwidth": true}})
}

/// A pod that uses every feature of a chain.
fn demanding(container_id: &str, netns: &str) -> Attachment {
    let mut attachment = pod(container_id, netns);
    let wanted = json!({
        "portMappings": [{"hostPort": 18081, "containerPort": 80, "protocol": "tcp"}],
        "bandwidth": {"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000},
        "mac": "02:11:22:33:44:55", "dns": {"Servers": ["10.96.0.10"]},
    });
    attachment.capability_args = wanted.as_object().unwrap().clone();
    attachment.args = vec![("IgnoreUnknown".into(), "1".into()), ("K8S_POD_NAME".into(), "web".into())];
    attachment
}

/// Objects that are named after a container, or belong to one only.
fn left() -> Vec<String> {
    let mut left = links();
    left.retain(|name| !["br0", "up0", "up1"].contains(&name.as_str()));
    left.extend(held("net"));
    let rules = run("iptables-save", &[]);
    left.extend(
        rules.lines().filter(|line| line.contains("10.205.0.2") || line.contains("c1")).map(str::to_owned),
    );
    left.extend(nat_rules("CNI-DN-"));
    left.extend(files("/var/lib/cni/results"));
    left.extend(files("/run/cni/tuning"));
    left
}

/// The chains of cni-runtime.md section 5.2, and their other plugins; each with whether all of its plugins support
/// CHECK. Without masquerading where the namespace is deleted first: Debian's bridge then forgets
/// its rules.
fn chains(netns_goes: bool) -> Vec<(&'static str, Value, bool)> {
    let bridge = |subnets: &[&str]| {
        let mut plugin = bridge(subnets);
        plugin["ipMasq"] = (!netns_goes).into();
        plugin
    };
    let v4 = ["10.205.0.0/24"];
    let both = ["10.205.0.0/24", "fd00:205::/64"];
    let tuning = json!({"type": "tuning", "capabilities": {"mac": true}, "sysctl": {"net.ipv4.conf.eth0.accept_redirects": "0"}});
    let macvlan = json!({"type": "macvlan", "master": "up0", "mode": "bridge", "ipam": ipam(&v4)});
    vec![
        (
            "podman's",
            network("0.4.0", &[bridge(&both), portmap(), json!({"type": "firewall"}), tuning.clone()]),
            false,
        ),
        ("calico's and flannel's end", network("0.3.1", &[bridge(&v4), portmap(), bandwidth()]), false),
        // CHECK of portmap 1.1.1 looks for rules of the other family: cni-runtime.md section 6.2 item 58.
        ("one family", network("1.0.0", &[bridge(&v4), tuning.clone(), bandwidth()]), true),
        ("both families", network("1.0.0", &[bridge(&both), portmap(), bandwidth()]), false),
        ("macvlan", network("1.0.0", &[macvlan, tuning]), true),
        ("loopback", network("0.3.1", &[json!({"type": "loopback"})]), false),
    ]
}

fn come_and_go(runtime: &Runtime, what: &str, conflist: &Value, checked: bool, netns_goes: bool) {
    let (list, ifname) = (parse(&conflist.to_string()), if what == "loopback" { "lo" } else { "eth0" });
    let mut attachment = demanding("c1", "n1");
    attachment.ifname = ifname.parse().unwrap();
    runtime.validate(&list).unwrap_or_else(|error| panic!("{what}: {error}"));
    let result = runtime.add(&list, &attachment).unwrap_or_else(|error| panic!("{what}: {error}"));
    let inside = result.ips.iter().find_map(|ip| result.interface_of(ip)).unwrap();
    assert_eq!((inside.name.as_str(), inside.sandbox.as_str()), (ifname, "/run/netns/n1"), "{what}");
    assert!(result.ips.iter().all(|ip| result.interface_of(ip) == Some(inside)), "{what}: {result:?}");
    let shown = ip_inside("n1", &["addr", "show", ifname]);
    let kernel: Vec<&str> =
        shown[0]["addr_info"].as_array().unwrap().iter().filter_map(|it| it["local"].as_str()).collect();
    for ip in &result.ips {
        assert!(kernel.contains(&ip.address.addr().to_string().as_str()), "{what}: {ip:?} of {kernel:?}");
    }
    assert_eq!(shown[0]["address"], inside.mac.as_str(), "{what}");
    if checked {
        runtime.check(&list, &attachment).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
    if netns_goes {
        run("ip", &["netns", "del", "n1"]);
    }
    for time in ["once", "twice"] {
        runtime.del(&list, &attachment).unwrap_or_else(|error| panic!("{what}, {time}: {error}"));
    }
    if !netns_goes {
        run("ip", &["netns", "del", "n1"]);
    }
    // The kernel deletes a namespace's interfaces after the namespace.
    eventually(std::time::Duration::from_secs(30), || links().iter().all(|name| !name.starts_with("veth")));
    let mut left = left();
    if netns_goes {
        // Debian's tuning removes its backup only inside of the namespace.
        left.retain(|it| it != "c1_eth0.json");
        let _ = fs::remove_file("/run/cni/tuning/c1_eth0.json");
    }
    assert_eq!(left, [""; 0], "{what}");
}

#[test]
#[ignore = "kernel: bridge, veth, macvlan, ifb, tbf, iptables; root; tool: the Go plugins, ip, iptables-save"]
fn chains_of_debians_plugins_attach_pass_check_and_detach_without_a_trace() {
    // cni-runtime.md section 6.2 items 21, 22 and 60
    on_a_node(&KINDS, |lab| {
        run("ip", &["link", "add", "up0", "type", "veth", "peer", "name", "up1"]);
        run("ip", &["link", "set", "up0", "up"]);
        let runtime = lab.usual();
        for netns_goes in [false, true] {
            for (what, conflist, checked) in chains(netns_goes) {
                come_and_go(&runtime, what, &conflist, checked, netns_goes);
            }
        }
        let called = lab.calls();
        for kind in KINDS {
            for verb in ["ADD", "DEL"] {
                assert!(called.contains(&format!("{verb} {kind}")), "{verb} {kind} was never called");
            }
        }
    });
}

#[test]
#[ignore = "kernel: bridge, veth; root; tool: the Go plugins, ip"]
fn check_reports_a_changed_mac_and_sysctl_with_both_values() {
    // cni-runtime.md section 6.2 item 33
    on_a_node(&KINDS, |lab| {
        let (runtime, attachment) = (lab.usual(), demanding("c1", "n1"));
        let tuning = json!({"type": "tuning", "sysctl": {"net.core.somaxconn": "500"}});
        let list = parse(&network("1.0.0", &[bridge(&["10.205.0.0/24"]), tuning]).to_string());
        let result = runtime.add(&list, &attachment).unwrap();
        runtime.check(&list, &attachment).unwrap();
        run("ip", &["netns", "exec", "n1", "sh", "-c", "echo 501 > /proc/sys/net/core/somaxconn"]);
        let error = runtime.check(&list, &attachment).unwrap_err().to_string();
        assert!(error.contains("500") && error.contains("501"), "{error}");
        run("ip", &["-n", "n1", "link", "set", "eth0", "address", "02:00:00:00:00:09"]);
        let error = runtime.check(&list, &attachment).unwrap_err().to_string();
        assert!(error.contains("02:00:00:00:00:09") && error.contains(&result.interfaces[2].mac), "{error}");
        runtime.del(&list, &attachment).unwrap();
    });
}

#[test]
#[ignore = "kernel: bridge, veth; root; tool: the Go plugins, ip"]
fn the_next_del_removes_what_debians_bridge_leaves_of_a_failed_add() {
    // cni-runtime.md section 6.2 item 59
    on_a_node(&KINDS, |lab| {
        let (runtime, attachment) = (lab.usual(), demanding("c1", "n1"));
        let mut plugin = bridge(&["10.205.0.0/24"]);
        plugin["isDefaultGateway"] = true.into();
        let list = parse(&network("1.0.0", &[plugin]).to_string());
        let error = runtime.add(&list, &attachment).unwrap_err().to_string();
        assert!(error.contains("file exists"), "{error}");
        assert_eq!(held("net"), [""; 0]);
        assert_eq!(links().len(), 2, "the bridge, and the host end of what was not attached");
        runtime.del(&list, &attachment).unwrap();
        assert_eq!(left(), [""; 0]);
    });
}

#[test]
#[ignore = "kernel: veth; root; tool: the Go plugins loopback and portmap"]
fn debians_loopback_and_portmap_answer_in_their_ways() {
    // cni-runtime.md section 0 item 3; section 6.2 item 39
    on_a_node(&KINDS, |lab| {
        let (runtime, mut attachment) = (lab.usual(), demanding("c1", "n1"));
        let alone = parse(&network("1.0.0", &[portmap()]).to_string());
        let error = runtime.add(&alone, &attachment).unwrap_err();
        assert_eq!(error.to_cni().code, 999);
        assert!(error.to_string().contains("must be called as chained plugin"), "{error}");
        attachment.ifname = "lo".parse().unwrap();
        let loopback = parse(&network("0.3.1", &[json!({"type": "loopback"})]).to_string());
        let result = runtime.add(&loopback, &attachment).unwrap();
        let addresses: Vec<String> = result.ips.iter().map(|ip| ip.address.to_string()).collect();
        assert_eq!(
            (addresses, result.cni_version),
            (vec!["127.0.0.1/8".into(), "::1/128".into()], Version::V0_3_1)
        );
        runtime.del(&loopback, &attachment).unwrap();
    });
}
