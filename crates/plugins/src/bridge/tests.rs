//! Tests of `bridge` on real bridges, compared with `ip`, `ping`, `nft` and the Go plugin.

use std::os::unix::fs::PermissionsExt as _;

use russet_cni_spec::{CniError, Verb};
use russet_testkit as testkit;
use russet_wiring::AttachFailure;
use serde_json::{Value, json};

use crate::delegation::Delegation;
use crate::lab::{GO, Lab, Pod, after, inside, links, on_a_node, pings, pod};

fn config(lab: &Lab, version: &str, subnets: &[&str]) -> Value {
    json!({"cniVersion": version, "name": "net", "type": "bridge", "bridge": "br0", "isDefaultGateway": true,
        "hairpinMode": true, "mtu": 1450, "ipam": lab.ipam(subnets)})
}

const V4: &[&str] = &["10.201.1.0/24"];
const DUAL: &[&str] = &["10.201.1.0/24", "fd00:201:1::/64"];

fn masqueraded() -> Vec<String> {
    let list = testkit::nft_json(&["list", "ruleset"]);
    let sets = list["nftables"].as_array().unwrap().iter().filter_map(|it| it.get("set"));
    let sets = sets.filter(|set| set["name"].as_str().unwrap().starts_with("masq-pods"));
    let elements = sets.filter_map(|set| set.get("elem")).flat_map(|elem| elem.as_array().unwrap().clone());
    elements.map(|elem| elem["elem"]["val"].as_str().unwrap().to_owned()).collect()
}

#[test]
#[ignore = "kernel: bridge, veth; root"]
fn pods_reach_each_other_their_gateway_and_themselves() {
    // cni-runtime.md sections 5 and 6.2 item 57
    on_a_node(|lab| {
        let config = config(lab, "1.0.0", DUAL);
        let (one, two) = (pod("one"), pod("two"));
        let result = lab.add("bridge", one, &config);
        let names: Vec<&str> =
            result["interfaces"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
        assert_eq!((names[0], names[2]), ("br0", "eth0"));
        assert_eq!(
            result["ips"][0],
            json!({"address": "10.201.1.2/24", "gateway": "10.201.1.1", "interface": 2})
        );
        assert_eq!(result["routes"].as_array().unwrap().len(), 2);
        assert_eq!(result["interfaces"][2]["sandbox"], "/run/netns/one");
        lab.add("bridge", two, &config);
        for to in ["10.201.1.3", "10.201.1.1", "fd00:201:1::3", "fd00:201:1::1"] {
            assert!(pings("one", to), "{to}");
        }
        let bridge = &testkit::ip_json(&["link", "show", "br0"])[0];
        assert_eq!((&bridge["address"], &bridge["mtu"]), (&result["interfaces"][0]["mac"], &json!(1450)));
        let port = &testkit::ip_json(&["link", "show", names[1]])[0];
        assert_eq!(port["linkinfo"]["info_slave_data"]["hairpin"], true);
        assert_eq!(port["master"], "br0");
        lab.call("bridge", "CHECK", one, &after(&config, &result));
        for netns in ["one", ""] {
            lab.call("bridge", "DEL", Pod { netns, ..one }, &config);
        }
        lab.call("bridge", "DEL", Pod { netns: "", ..two }, &config);
        assert_eq!(links(), ["br0", "lo"]);
        assert_eq!(lab.addresses("net"), Vec::<String>::new());
    });
}

#[test]
#[ignore = "kernel: bridge, veth; root"]
fn the_bridge_keeps_its_mac_and_the_node_forwards() {
    on_a_node(|lab| {
        let config = config(lab, "1.0.0", DUAL);
        let mac = |_: Value| testkit::ip_json(&["link", "show", "br0"])[0]["address"].clone();
        let first = mac(lab.add("bridge", pod("one"), &config));
        for container in ["two", "three", "four"] {
            assert_eq!(mac(lab.add("bridge", pod(container), &config)), first);
        }
        for path in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
            assert_eq!(std::fs::read_to_string(format!("/proc/sys/{path}")).unwrap().trim(), "1", "{path}");
        }
        let ra = std::fs::read_to_string("/proc/sys/net/ipv6/conf/br0/accept_ra").unwrap();
        assert_eq!(ra.trim(), "0", "CVE-2020-10749");
    });
}

#[test]
#[ignore = "kernel: bridge, veth, nf_tables; root"]
fn ip_masq_hides_pods_behind_the_node() {
    on_a_node(|lab| {
        // An external host without a route to the pods.
        testkit::run("ip", &["netns", "add", "world"]);
        testkit::run("ip", &["link", "add", "up0", "type", "veth", "peer", "name", "w0", "netns", "world"]);
        testkit::run("ip", &["addr", "add", "192.0.2.1/24", "dev", "up0"]);
        testkit::run("ip", &["link", "set", "up0", "up"]);
        inside("world", &["ip", "addr", "add", "192.0.2.9/24", "dev", "w0"]);
        inside("world", &["ip", "link", "set", "w0", "up"]);
        let mut config = config(lab, "1.1.0", V4);
        let one = pod("one");
        lab.add("bridge", one, &config);
        assert!(!pings("one", "192.0.2.9"), "there is no route back");
        lab.call("bridge", "DEL", one, &config);
        config["ipMasq"] = true.into();
        let result = lab.add("bridge", one, &config);
        assert!(pings("one", "192.0.2.9"));
        assert_eq!(masqueraded(), [result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap()]);
        lab.call("bridge", "CHECK", one, &after(&config, &result));
        testkit::run("nft", &["flush", "set", "inet", "russet-cni", "masq-pods4"]);
        let error = lab.error("bridge", "CHECK", one, &after(&config, &result));
        assert!(error.details.contains("not masqueraded"), "{error}");
        lab.call("bridge", "DEL", one, &config);
        assert_eq!(masqueraded(), Vec::<String>::new());
        // The rules of a container that died without a DEL are removed when another one gets its
        // address.
        let two = pod("two");
        lab.add("bridge", two, &config);
        std::fs::remove_dir_all(lab.data_dir()).unwrap();
        testkit::run("ip", &["netns", "del", "two"]);
        let three = pod("three");
        lab.add("bridge", three, &config);
        assert!(pings("three", "192.0.2.9"));
        lab.call("bridge", "DEL", two, &config);
        assert_eq!(masqueraded().len(), 1, "the newer container's");
    });
}

#[test]
#[ignore = "kernel: bridge, veth; root"]
fn a_failed_add_leaves_neither_interface_nor_address() {
    // cni-runtime.md section 6.2 items 23 and 59; flannel.md section 8, cni #306
    on_a_node(|lab| {
        let mut config = config(lab, "1.0.0", V4);
        let one = pod("one");
        testkit::run("ip", &["link", "add", "br0", "type", "bridge"]);
        testkit::run("ip", &["addr", "add", "10.9.9.1/24", "dev", "br0"]);
        let error = lab.error("bridge", "ADD", one, &config);
        assert!(error.details.contains("already has an IP address different from 10.201.1.1/24"), "{error}");
        assert_eq!((links(), lab.addresses("net")), (vec!["br0".to_owned(), "lo".to_owned()], Vec::new()));
        config["forceAddress"] = true.into();
        lab.add("bridge", one, &config);
        let error = lab.error("bridge", "ADD", one, &config);
        assert!(error.msg.contains("container veth name (eth0) already exists"), "{error}");
        assert_eq!(lab.addresses("net"), ["10.201.1.3"]);
        assert!(pings("one", "10.201.1.1"), "the first attachment is intact");
        let mut routed = config.clone();
        routed["ipam"]["routes"] = json!([{"dst": "10.77.0.0/16", "gw": "192.0.2.77"}]);
        let before = (links(), lab.addresses("net"));
        let error = lab.error("bridge", "ADD", pod("two"), &routed);
        assert!(error.details.contains("10.77.0.0/16"), "{error}");
        assert_eq!((links(), lab.addresses("net")), before);
        assert_eq!(inside("two", &["ip", "-br", "link"]).lines().count(), 1, "only lo");
        testkit::run("ip", &["link", "add", "dum0", "type", "veth"]);
        config["bridge"] = "dum0".into();
        assert!(lab.error("bridge", "ADD", pod("three"), &config).details.contains("is not a bridge"));
    });
}

#[test]
#[ignore = "kernel: bridge, veth; root"]
fn check_names_what_was_changed() {
    // cni-runtime.md section 6.2 item 33
    on_a_node(|lab| {
        let config = config(lab, "1.0.0", V4);
        let one = pod("one");
        let after = after(&config, &lab.add("bridge", one, &config));
        inside("one", &["ip", "route", "del", "default"]);
        assert!(lab.error("bridge", "CHECK", one, &after).details.contains("0.0.0.0/0"));
        inside("one", &["ip", "route", "add", "default", "via", "10.201.1.1"]);
        lab.call("bridge", "CHECK", one, &after);
        inside("one", &["ip", "link", "set", "eth0", "address", "02:00:00:00:00:77"]);
        let (error, made) =
            (lab.error("bridge", "CHECK", one, &after), &after["prevResult"]["interfaces"][2]["mac"]);
        let both = ["02:00:00:00:00:77", made.as_str().unwrap()];
        assert!(both.iter().all(|mac| error.details.contains(mac)), "{made}: {error}");
        let mut gone = after.clone();
        gone.as_object_mut().unwrap().remove("prevResult");
        assert!(lab.error("bridge", "CHECK", one, &gone).msg.contains("prevResult missing"));
        let host = after["prevResult"]["interfaces"][1]["name"].as_str().unwrap();
        testkit::run("ip", &["link", "set", host, "nomaster"]);
        assert!(lab.error("bridge", "CHECK", one, &after).details.contains("port of the bridge"));
    });
}

#[test]
#[ignore = "kernel: bridge, veth, nf_tables; root"]
fn gc_removes_attachments_that_are_not_in_the_list() {
    // cni-runtime.md section 6.2 item 63
    on_a_node(|lab| {
        let mut config = config(lab, "1.1.0", V4);
        config["ipMasq"] = true.into();
        for container in ["one", "two"] {
            lab.add("bridge", pod(container), &config);
        }
        let no_pod = Pod { container: "", ifname: "", netns: "" };
        config["cni.dev/valid-attachments"] = json!([{"containerID": "two", "ifname": "eth0"}]);
        for _ in 0..2 {
            lab.call("bridge", "GC", no_pod, &config);
            assert_eq!((links().len(), lab.addresses("net")), (3, vec!["10.201.1.3".to_owned()]));
            assert_eq!(masqueraded(), ["10.201.1.3"]);
        }
        lab.call("bridge", "STATUS", no_pod, &config);
        config["ipam"]["ranges"] = json!([]);
        assert!(lab.error("bridge", "STATUS", no_pod, &config).msg.contains("no IP ranges"));
    });
}

#[test]
#[ignore = "kernel: bridge, veth; root"]
fn a_network_without_addresses_is_a_plain_port() {
    on_a_node(|lab| {
        let config = json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br0",
            "args": {"cni": {"mac": "02:00:00:00:00:42"}}});
        let one = pod("one");
        let result = lab.add("bridge", one, &config);
        assert_eq!(result["interfaces"][2]["mac"], "02:00:00:00:00:42");
        assert!(result.get("ips").is_none());
        lab.call("bridge", "CHECK", one, &after(&config, &result));
        lab.call("bridge", "DEL", one, &config);
        assert_eq!(links(), ["br0", "lo"]);
    });
}

#[test]
#[ignore = "kernel: bridge, veth; tool: the Go plugins bridge and host-local; root"]
fn either_plugin_deletes_what_the_other_added() {
    // flannel.md section 8: a node changes plugins under running pods
    on_a_node(|lab| {
        let config = config(lab, "1.0.0", V4);
        let (ours, theirs) = (pod("ours"), pod("theirs"));
        let our_result = lab.add("bridge", ours, &config);
        let their_result = lab.go("bridge", "ADD", theirs, &config);
        assert!(pings("ours", "10.201.1.3") && pings("theirs", "10.201.1.2"));
        lab.call("bridge", "CHECK", theirs, &after(&config, &their_result));
        lab.go("bridge", "CHECK", ours, &after(&config, &our_result));
        lab.call("bridge", "DEL", theirs, &after(&config, &their_result));
        lab.go("bridge", "DEL", ours, &after(&config, &our_result));
        assert_eq!((links(), lab.addresses("net")), (vec!["br0".to_owned(), "lo".to_owned()], Vec::new()));
        // The reverse: the Go plugin creates the bridge.
        testkit::run("ip", &["link", "del", "br0"]);
        let their_result = lab.go("bridge", "ADD", theirs, &config);
        let our_result = lab.add("bridge", ours, &config);
        assert_eq!(their_result["interfaces"][0]["name"], our_result["interfaces"][0]["name"]);
        assert!(pings("ours", "10.201.1.1") && pings("theirs", "10.201.1.1"));
    });
}

#[test]
#[ignore = "kernel: bridge, veth; tool: the Go plugin host-local; root"]
fn addresses_can_come_from_a_plugin_of_another_vendor() {
    on_a_node(|_| {
        let lab = Lab::with_path(GO);
        let config = config(&lab, "1.0.0", V4);
        let one = pod("one");
        let result = lab.add("bridge", one, &config);
        assert_eq!(result["ips"][0]["address"], "10.201.1.2/24");
        lab.call("bridge", "CHECK", one, &after(&config, &result));
        lab.call("bridge", "DEL", one, &config);
        assert_eq!(lab.addresses("net"), Vec::<String>::new());
    });
}

/// A node with an IPAM plugin that logs its calls.
fn scripted_ipam(dir: &std::path::Path) -> Lab {
    let path = dir.join("scripted");
    std::fs::write(&path, "#!/bin/sh\necho $CNI_COMMAND >>$0.verbs\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    Lab::with_path(dir.to_str().unwrap())
}

#[test]
fn addresses_stay_allocated_while_their_interface_may_exist() {
    // cni-runtime.md section 6.2 item 59
    let dir = tempfile::tempdir().unwrap();
    let lab = scripted_ipam(dir.path());
    let config =
        json!({"cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": {"type": "scripted"}});
    let one = Pod { container: "one", ifname: "eth0", netns: "one" };
    let request = lab.request("ADD", one, &config).unwrap();
    let ipam = Delegation::new(lab.node(), &request, "scripted", request.stdin.clone()).unwrap();
    let failed = |undone| AttachFailure { error: CniError::internal("wiring", "it failed"), undone };
    let error = lab.wait(failed(false).give_back(ipam.call(Verb::Del)));
    assert!(error.details.contains("held until DEL: something may still answer for them"), "{error}");
    assert!(!dir.path().join("scripted.verbs").exists(), "IPAM was asked");
    let error = lab.wait(failed(true).give_back(ipam.call(Verb::Del)));
    assert_eq!(error.details, "it failed");
    assert_eq!(std::fs::read(dir.path().join("scripted.verbs")).unwrap(), b"DEL\n");
}

#[test]
fn unsupported_options_are_refused_by_name() {
    let refused = |more: Value| {
        let mut config = json!({"cniVersion": "1.0.0", "name": "n", "type": "bridge"});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let config = russet_cni_spec::NetworkConfig::parse(config.to_string().as_bytes()).unwrap();
        let env = russet_cni_spec::Env {
            call: russet_cni_spec::Call::Status,
            args: russet_cni_spec::CniArgs::default(),
            path: Vec::new(),
            netns_override: false,
            vars: Vec::new(),
            overrides: russet_cni_spec::Overrides::default(),
        };
        super::Conf::read(&russet_cni_spec::Request { env, config, stdin: Vec::new() })
    };
    for (more, code, word) in [
        (json!({"vlan": 5}), 2, "vlan: 5"),
        (json!({"vlan": 5000}), 7, "5000"),
        (json!({"vlanTrunk": [{"id": 5}]}), 2, "vlanTrunk"),
        (json!({"allowedSourcePrefixes": ["192.0.2.0/24"]}), 7, "needs sourceGuard"),
        (json!({"sourceGuard": true, "allowedSourcePrefixes": ["192.0.2.0/33"]}), 7, "bridge"),
        (json!({"hairpinMode": true, "promiscMode": true}), 7, "at the same time"),
        (json!({"bridge": "a/b"}), 7, "a/b"),
        (json!({"mtu": "x"}), 7, "bridge"),
    ] {
        let error = refused(more.clone()).unwrap_err();
        assert!(error.code == code && error.to_string().contains(word), "{more}: {error}");
    }
    let conf =
        refused(json!({"vlan": 0, "preserveDefaultVlan": false, "bridge": "", "isDefaultGateway": true}))
            .unwrap();
    assert_eq!((conf.bridge.as_str(), conf.is_gateway), ("cni0", true));
}
