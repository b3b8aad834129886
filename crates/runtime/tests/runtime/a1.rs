//! cni-runtime.md appendix A.1, the worked chain, with its plugins, names and addresses: each
//! plugin's input, and the resulting kernel state.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use russet_cni_spec::CniResult;
use russet_runtime::{Attachment, Runtime};
use russet_testkit::run;
use serde_json::{Value, json};

use crate::Lab;
use crate::node::{files, held, ip_inside, links, nat_rules, on_a_node, parse, pod};

/// cnitool's ID for `/run/netns/rt-p`, from which the names in A.1 are derived.
const ID: &str = "cnitool-d5dd601c71ce953d5e81";
const CHAIN: &str = "CNI-DN-d4c47dfc8187c5218adb2";
const IFB: &str = "bwpd4c47dfc8187";
const KINDS: [&str; 5] = ["bridge", "host-local", "portmap", "tuning", "bandwidth"];
const CONFLIST: &str = r#"{"cniVersion":"1.0.0","name":"demo","plugins":[
 {"type":"bridge","bridge":"br-demo","isDefaultGateway":true,"hairpinMode":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.203.0.0/24"}]]}},
 {"type":"portmap","capabilities":{"portMappings":true},"snat":true},
 {"type":"tuning","sysctl":{"net.core.somaxconn":"500"}},
 {"type":"bandwidth","capabilities":{"bandwidth":true}}]}"#;

fn demo() -> Attachment {
    let mut attachment = pod(ID, "rt-p");
    let mapping = json!([{"hostPort": 18081, "containerPort": 80, "protocol": "tcp"}]);
    let bandwidth = json!({"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000});
    attachment.capability_args.insert("portMappings".into(), mapping);
    attachment.capability_args.insert("bandwidth".into(), bandwidth);
    attachment
}

/// The request for a plugin: its object in the conflist, and the runtime's members.
fn request(kind: &str, attachment: &Attachment, previous: Option<&Value>) -> Value {
    let list: Value = serde_json::from_str(CONFLIST).unwrap();
    let mut object =
        list["plugins"].as_array().unwrap().iter().find(|it| it["type"] == kind).unwrap().clone();
    let members = object.as_object_mut().unwrap();
    members.insert("name".into(), "demo".into());
    members.insert("cniVersion".into(), "1.0.0".into());
    // Go's libcni leaves them there, against the specification (cni-runtime.md section 0 item 5).
    for key in members.remove("capabilities").iter().flat_map(|declared| declared.as_object().unwrap().keys())
    {
        members.insert("runtimeConfig".into(), json!({key: attachment.capability_args[key]}));
    }
    if let Some(previous) = previous {
        members.insert("prevResult".into(), previous.clone());
    }
    object
}

/// cni-runtime.md section 6.2 item 57: the result, and what is on disk.
fn the_result_is_that_of_a1(result: &CniResult) {
    let names: Vec<&str> = result.interfaces.iter().map(|it| it.name.as_str()).collect();
    assert_eq!((names[0], names[2], names[3], names.len()), ("br-demo", "eth0", IFB, 4));
    assert_eq!(result.interfaces[2].sandbox, "/run/netns/rt-p");
    let ip = &result.ips[0];
    assert_eq!(
        (ip.address.to_string().as_str(), ip.interface, result.ips.len()),
        ("10.203.0.2/24", Some(2), 1)
    );
    let routes: Vec<String> = result.routes.iter().map(|it| it.dst.to_string()).collect();
    assert_eq!(routes, ["0.0.0.0/0"]);
    let cached = format!("/var/lib/cni/results/demo-{ID}-eth0");
    assert_eq!(fs::metadata(&cached).unwrap().permissions().mode() & 0o777, 0o600);
    let held = fs::read_to_string("/var/lib/cni/networks/demo/10.203.0.2").unwrap();
    assert_eq!((held.len(), held.as_str()), (34, format!("{ID}\r\neth0").as_str()));
}

fn the_kernel_has_what_a1_has(result: &CniResult) {
    let host = &result.interfaces[1].name;
    let mut expected = vec!["br-demo", host, IFB];
    expected.sort_unstable();
    let mut found = links();
    found.sort();
    assert_eq!(found, expected);
    let qdiscs = |link: &str| run("tc", &["qdisc", "show", "dev", link]);
    for link in [host, IFB] {
        assert!(qdiscs(link).contains("rate 8Mbit burst 100000b lat 25ms"), "{link}: {}", qdiscs(link));
    }
    assert!(qdiscs(host).contains("qdisc ingress"), "{}", qdiscs(host));
    let rules = nat_rules(&format!("-A {CHAIN} "));
    let wanted = [
        "-s 10.203.0.0/24 -p tcp -m tcp --dport 18081 -j CNI-HOSTPORT-SETMARK",
        "-s 127.0.0.1/32 -p tcp -m tcp --dport 18081 -j CNI-HOSTPORT-SETMARK",
        "-p tcp -m tcp --dport 18081 -j DNAT --to-destination 10.203.0.2:80",
    ];
    assert_eq!(rules, wanted.map(|rule| format!("-A {CHAIN} {rule}")));
    let address = ip_inside("rt-p", &["-4", "addr", "show", "eth0"]);
    assert_eq!(address[0]["addr_info"][0]["local"], "10.203.0.2");
    let routes = ip_inside("rt-p", &["route", "show", "default"]);
    assert_eq!((routes.as_array().unwrap().len(), &routes[0]["gateway"]), (1, &json!("10.203.0.1")));
    let somaxconn = run("ip", &["netns", "exec", "rt-p", "cat", "/proc/sys/net/core/somaxconn"]);
    assert_eq!(somaxconn, "500\n");
}

/// Steps 1 to 4: each plugin's input.
fn each_plugin_reads_what_a1_says(lab: &Lab, attachment: &Attachment, result: &CniResult) {
    assert_eq!(lab.calls(), ["ADD bridge", "ADD host-local", "ADD portmap", "ADD tuning", "ADD bandwidth"]);
    let log = fs::read_to_string(lab.path("log")).unwrap();
    for line in log.lines() {
        assert!(
            line.ends_with(&format!(" {ID} /run/netns/rt-p eth0 ")),
            "CNI_ARGS is there and empty: {line}"
        );
    }
    assert_eq!(lab.stdin("bridge", "ADD"), request("bridge", attachment, None));
    let bytes = |kind: &str| fs::read(lab.path(&format!("{kind}.ADD"))).unwrap();
    assert_eq!(bytes("bridge"), bytes("host-local"), "handed on byte by byte");
    let mut of_bridge = result.to_value();
    of_bridge["interfaces"].as_array_mut().unwrap().truncate(3);
    for kind in ["portmap", "tuning", "bandwidth"] {
        assert_eq!(lab.stdin(kind, "ADD"), request(kind, attachment, Some(&of_bridge)), "{kind}");
    }
}

/// cni-runtime.md appendix A.1 step 5, and section 6.2 item 58.
fn check_ends_at_the_first_complaint(lab: &Lab, runtime: &Runtime, attachment: &Attachment, result: &Value) {
    lab.forget_calls();
    let error = runtime.check(&parse(CONFLIST), attachment).unwrap_err().to_string();
    assert!(
        error.contains("could not check ipv6 dnat"),
        "what Debian's portmap 1.1.1 says of a pod of one family: {error}"
    );
    assert_eq!(lab.calls(), ["CHECK bridge", "CHECK host-local", "CHECK portmap"]);
    for kind in ["bridge", "portmap"] {
        assert_eq!(lab.stdin(kind, "CHECK"), request(kind, attachment, Some(result)), "{kind}");
    }
}

#[test]
#[ignore = "kernel: bridge, veth, ifb, tbf, iptables; root; tool: the Go plugins, ip, tc, iptables-save"]
fn the_worked_chain_reads_writes_and_leaves_what_it_should() {
    // cni-runtime.md appendix A.1; section 6.2 items 14, 19, 21, 35, 57, 58 and 60
    on_a_node(&KINDS, |lab| {
        let (runtime, list, attachment) = (lab.usual(), parse(CONFLIST), demo());
        let result = runtime.add(&list, &attachment).unwrap();
        the_result_is_that_of_a1(&result);
        each_plugin_reads_what_a1_says(lab, &attachment, &result);
        the_kernel_has_what_a1_has(&result);
        let result = result.to_value();
        check_ends_at_the_first_complaint(lab, &runtime, &attachment, &result);

        for previous in [Some(&result), None] {
            lab.forget_calls();
            runtime.del(&list, &attachment).unwrap();
            assert_eq!(
                lab.calls(),
                ["DEL bandwidth", "DEL tuning", "DEL portmap", "DEL bridge", "DEL host-local"]
            );
            for kind in ["bandwidth", "tuning", "portmap", "bridge"] {
                assert_eq!(lab.stdin(kind, "DEL"), request(kind, &attachment, previous), "{kind}");
            }
            // Row 60: objects that are named after the container are gone, shared ones stay.
            assert_eq!(links(), ["br-demo"]);
            assert_eq!(nat_rules("CNI-DN-"), [""; 0]);
            assert!(!nat_rules("CNI-HOSTPORT-DNAT").is_empty());
            assert_eq!(ip_inside("rt-p", &["link"]).as_array().unwrap().len(), 1, "loopback alone");
            assert_eq!(files("/var/lib/cni/results"), [""; 0]);
            assert_eq!(held("demo"), [""; 0]);
            assert_eq!(files("/var/lib/cni/networks/demo"), ["last_reserved_ip.0", "lock"]);
        }
    });
}
