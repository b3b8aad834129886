//! Tests of `flannel` on a real bridge, with our own plugins and the Go plugins as delegates.

use russet_testkit as testkit;
use serde_json::{Value, json};

use crate::lab::{GO, Lab, Pod, after, links, on_a_node, pings, pod};

/// flannel.md section 7.3
const ENV: &str =
    "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.29.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";

/// The shipped conflist's plugin, with files in a temporary directory.
fn config(lab: &Lab, version: &str) -> Value {
    std::fs::write(lab.path("subnet.env"), ENV).unwrap();
    json!({"name": "cbr0", "cniVersion": version, "type": "flannel", "subnetFile": lab.path("subnet.env"),
        "dataDir": lab.path("flannel"), "ipam": {"dataDir": lab.data_dir()},
        "delegate": {"hairpinMode": true, "isDefaultGateway": true}})
}

/// Runs ADD and DEL, and CHECK if `checks`: the Go plugin's CHECK fails for every route without a
/// gateway, which flannel's routes are.
fn works(lab: &Lab, checks: bool) {
    let config = config(lab, "0.4.0");
    let (one, two) = (pod("one"), pod("two"));
    let result = lab.add("flannel", one, &config);
    assert_eq!(result["ips"][0]["address"], "10.5.29.2/24");
    lab.add("flannel", two, &config);
    assert!(pings("one", "10.5.29.3") && pings("two", "10.5.29.1"));
    let bridge = &testkit::ip_json(&["link", "show", "cni0"])[0];
    assert_eq!(bridge["mtu"], 1450);
    let saved: Value = serde_json::from_slice(&std::fs::read(lab.path("flannel/one")).unwrap()).unwrap();
    assert_eq!((&saved["ipMasq"], &saved["mtu"]), (&json!(false), &json!(1450)));
    if checks {
        lab.call("flannel", "CHECK", one, &after(&config, &result));
    }
    testkit::run("ip", &["netns", "exec", "one", "ip", "route", "del", "default"]);
    lab.error("flannel", "CHECK", one, &after(&config, &result));
    for pod in [one, two, two] {
        lab.call("flannel", "DEL", pod, &config);
    }
    assert_eq!((links(), lab.addresses("cbr0")), (vec!["cni0".to_owned(), "lo".to_owned()], Vec::new()));
    assert_eq!(std::fs::read_dir(lab.path("flannel")).unwrap().count(), 0);
}

#[test]
#[ignore = "kernel: bridge, veth; root"]
fn t54_pods_are_wired_by_our_own_plugins_in_one_process() {
    on_a_node(|lab| works(lab, true));
}

#[test]
#[ignore = "kernel: bridge, veth; tool: the Go plugins bridge and host-local; root"]
fn t54_pods_are_wired_by_the_go_plugins_where_these_are_installed() {
    on_a_node(|_| works(&Lab::with_path(GO), false));
}

#[test]
#[ignore = "kernel: bridge, veth; root"]
fn t55_del_succeeds_twice_without_a_file_and_with_an_empty_one() {
    // flannel.md section 8; cni-plugin #33
    on_a_node(|lab| {
        let config = config(lab, "1.0.0");
        let one = pod("one");
        lab.call("flannel", "DEL", one, &config);
        lab.add("flannel", one, &config);
        std::fs::write(lab.path("flannel/one"), "").unwrap();
        lab.call("flannel", "DEL", one, &config);
        assert_eq!(lab.addresses("cbr0"), Vec::<String>::new(), "today's configuration found the address");
        lab.call("flannel", "DEL", one, &config);
        for text in ["", "{", "[]"] {
            std::fs::write(lab.path("flannel/one"), text).unwrap();
            std::fs::remove_file(lab.path("subnet.env")).ok();
            lab.call("flannel", "DEL", one, &config);
            assert_eq!(std::fs::read_to_string(lab.path("flannel/one")).unwrap(), text, "kept");
        }
    });
}

#[test]
#[ignore = "kernel: bridge, veth; root"]
fn a_delegate_that_fails_to_delete_is_asked_again() {
    // flannel.md section 8, DEL: from 1.2.0 on, the Go plugin removes the file first, and the
    // address leaks.
    on_a_node(|lab| {
        let config = config(lab, "1.0.0");
        let (one, saved) = (pod("one"), lab.path("flannel/one"));
        for broken in [false, true] {
            lab.add("flannel", one, &config);
            if broken {
                std::fs::write(&saved, "{").unwrap();
            }
            let held = lab.addresses("cbr0");
            let file = lab.data_dir().join("cbr0").join(&held[0]);
            let aside = lab.path("aside");
            std::fs::rename(&file, &aside).unwrap();
            std::fs::create_dir_all(file.join("full")).unwrap();
            let error = lab.error("flannel", "DEL", one, &config);
            assert!(error.to_string().contains(&held[0]), "broken {broken}: {error}");
            assert!(saved.exists(), "broken {broken}");
            std::fs::remove_dir_all(&file).unwrap();
            std::fs::rename(&aside, &file).unwrap();
            lab.call("flannel", "DEL", one, &config);
            assert_eq!(lab.addresses("cbr0"), Vec::<String>::new());
            assert!(!saved.exists(), "broken {broken}");
        }
    });
}

#[test]
fn a_delegate_that_would_wait_for_this_request_is_refused_and_nothing_is_saved() {
    let dir = tempfile::tempdir().unwrap();
    let lab = Lab::with_path(dir.path().to_str().unwrap());
    let mut config = config(&lab, "1.0.0");
    let one = Pod { container: "one", ifname: "eth0", netns: "one" };
    for kind in ["russet", "calico"] {
        std::os::unix::fs::symlink("/proc/self/exe", dir.path().join(kind)).unwrap();
        config["delegate"] = json!({"type": kind});
        let error = lab.error("flannel", "ADD", one, &config);
        assert!(error.code == 7 && error.msg.contains(kind), "{error}");
        assert!(!lab.path("flannel/one").exists());
        lab.call("flannel", "DEL", one, &config);
    }
}

#[test]
#[ignore = "kernel: bridge, veth; root"]
fn deleting_one_interface_keeps_the_file_of_the_other() {
    on_a_node(|lab| {
        let config = config(lab, "1.0.0");
        let one = pod("one");
        let mut second = config.clone();
        second["name"] = "second".into();
        second["delegate"] = json!({"bridge": "br1", "mtu": 1400});
        second["subnetFile"] = json!(lab.path("second.env"));
        std::fs::write(lab.path("second.env"), ENV.replace("10.5.", "10.6.")).unwrap();
        let net1 = Pod { ifname: "net1", ..one };
        lab.add("flannel", one, &config);
        lab.add("flannel", net1, &second);
        for _ in 0..2 {
            lab.call("flannel", "DEL", net1, &second);
        }
        assert_eq!((lab.addresses("cbr0").len(), lab.addresses("second").len()), (1, 0));
        lab.call("flannel", "DEL", one, &config);
        assert_eq!(lab.addresses("cbr0").len(), 0);
    });
}

#[test]
#[ignore = "kernel: bridge, veth; root"]
fn status_and_gc_reach_the_delegate() {
    on_a_node(|lab| {
        let mut config = config(lab, "1.1.0");
        let no_pod = Pod { container: "", ifname: "", netns: "" };
        lab.call("flannel", "STATUS", no_pod, &config);
        for container in ["one", "two"] {
            lab.add("flannel", pod(container), &config);
        }
        config["cni.dev/valid-attachments"] = json!([{"containerID": "two", "ifname": "eth0"}]);
        lab.call("flannel", "GC", no_pod, &config);
        assert_eq!((links().len(), lab.addresses("cbr0")), (3, vec!["10.5.29.3".to_owned()]));
        assert!(!lab.path("flannel/one").exists() && lab.path("flannel/two").exists());
        std::fs::write(lab.path("subnet.env"), "FLANNEL_MTU=1450\n").unwrap();
        let error = lab.error("flannel", "STATUS", no_pod, &config);
        assert_eq!(error.code, 50);
        assert!(error.details.contains("missing FLANNEL_NETWORK"), "{error}");
        let error = lab.error("flannel", "ADD", pod("three"), &config);
        assert!(error.code == 11 && error.details.contains("FLANNEL_SUBNET"), "{error}");
        assert!(!lab.path("flannel/three").exists());
    });
}

/// Whether a pod gets an answer that it asks for from an address.
fn pings_from(netns: &str, from: &str, to: &str) -> bool {
    let ping = ["netns", "exec", netns, "ping", "-n", "-c", "1", "-W", "1", "-I", from, to];
    std::process::Command::new("ip").args(ping).output().unwrap().status.success()
}

/// Attaches two pods; whether the first can send as 10.5.29.99 and whether with another MAC.
fn forges(lab: &Lab, config: &Value) -> (bool, bool) {
    let (one, two) = (pod("one"), pod("two"));
    // Addresses go on from the last one that was given.
    let address =
        |result: Value| result["ips"][0]["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
    let own = address(lab.add("flannel", one, config));
    let other = address(lab.add("flannel", two, config));
    assert!(pings("one", &other) && pings("one", "10.5.29.1") && pings("two", &own));
    let inside = |command: &str| {
        let words: Vec<&str> = ["netns", "exec", "one", "ip"].into_iter().chain(command.split(' ')).collect();
        testkit::run("ip", &words)
    };
    inside("addr add 10.5.29.99/24 dev eth0");
    let address = pings_from("one", "10.5.29.99", &other);
    assert!(pings("one", &other));
    inside("link set eth0 address 02:00:00:00:00:66");
    let mac = pings("one", &other);
    for pod in [one, two] {
        lab.call("flannel", "DEL", pod, config);
        testkit::run("ip", &["netns", "del", pod.netns]);
    }
    (address, mac)
}

#[test]
#[ignore = "kernel: nf_tables, bridge, veth; tools: ip, ping, nft; root"]
fn a_pod_of_flannel_sends_from_its_own_mac_and_addresses_unless_the_operator_allows_more() {
    on_a_node(|lab| {
        let mut config = config(lab, "1.0.0");
        for (delegate, expected) in [
            (json!({}), (false, false)),
            (json!({"isDefaultGateway": true, "allowedSourcePrefixes": ["10.5.29.96/28"]}), (true, false)),
            (json!({"sourceGuard": false, "macspoofchk": true}), (true, false)),
            (json!({"sourceGuard": false}), (true, true)),
        ] {
            config["delegate"] = delegate.clone();
            assert_eq!(forges(lab, &config), expected, "{delegate}");
            let listing = testkit::run("nft", &["list", "table", "bridge", "russet-policy"]);
            assert!(!listing.contains("elements"), "DEL leaves nothing: {listing}");
        }
    });
}

#[test]
#[ignore = "kernel: nf_tables, bridge, veth; tool: nft; root"]
fn check_notices_that_what_a_port_sends_is_not_checked_any_more() {
    on_a_node(|lab| {
        let (mut config, one) = (config(lab, "1.0.0"), pod("one"));
        config["delegate"] = json!({"isDefaultGateway": true});
        let result = lab.add("flannel", one, &config);
        let mut after = config.clone();
        after["prevResult"] = result;
        lab.call("flannel", "CHECK", one, &after);
        testkit::run("nft", &["flush map bridge russet-policy ports"]);
        let error = lab.error("flannel", "CHECK", one, &after);
        assert!(error.details.contains("table bridge russet-policy"), "{error}");
        testkit::run("nft", &["delete table bridge russet-policy"]);
        assert!(lab.error("flannel", "CHECK", one, &after).details.contains("bridge russet-policy"));
        lab.call("flannel", "DEL", one, &config);
        // The operator asked for none.
        config["delegate"]["sourceGuard"] = json!(false);
        let mut after = config.clone();
        after["prevResult"] = lab.add("flannel", one, &config);
        lab.call("flannel", "CHECK", one, &after);
        lab.call("flannel", "DEL", one, &config);
    });
}

#[test]
#[ignore = "kernel: nf_tables, bridge, veth; tools: ip, ping; root"]
fn hairpin_and_promiscuous_mode_work_with_guarded_ports() {
    on_a_node(|lab| {
        let mut config = config(lab, "1.0.0");
        for delegate in [json!({"hairpinMode": true, "ipMasq": true}), json!({"promiscMode": true})] {
            config["delegate"] = delegate;
            assert_eq!(forges(lab, &config), (false, false));
        }
    });
}
