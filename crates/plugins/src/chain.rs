//! Tests for what cni-runtime.md section 6.2 expects of plugins together: `bridge`, `portmap` and
//! `bandwidth` as a runtime chains them, and `flannel`.

use russet_testkit as testkit;
use serde_json::{Value, json};

use crate::lab::{Lab, Pod, after, inside, links, on_a_node, pod};

const V4: &[&str] = &["10.204.1.0/24"];
const V6: &[&str] = &["fd00:204:1::/64"];

type Chain = [(&'static str, Value); 3];

/// The chain of cni-runtime.md section 6.2 item 57 without `tuning`, which Russet does not have.
fn chain(lab: &Lab, version: &str, subnets: &[&str]) -> Chain {
    let plugin = |kind: &str| json!({"cniVersion": version, "name": "net", "type": kind});
    let (mut bridge, mut portmap, mut bandwidth) = (plugin("bridge"), plugin("portmap"), plugin("bandwidth"));
    bridge["bridge"] = "br0".into();
    bridge["isDefaultGateway"] = true.into();
    bridge["ipMasq"] = true.into();
    bridge["ipam"] = lab.ipam(subnets);
    portmap["runtimeConfig"] = json!({"portMappings": [{"hostPort": 8080, "containerPort": 80}]});
    let limits = json!({"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000});
    bandwidth["runtimeConfig"] = json!({ "bandwidth": limits });
    [("bridge", bridge), ("portmap", portmap), ("bandwidth", bandwidth)]
}

/// Runs ADD of all plugins, each with the result of the previous one.
fn add(lab: &Lab, pod: Pod, chain: &Chain) -> Value {
    let [(bridge, config), rest @ ..] = chain;
    let first = lab.add(bridge, pod, config);
    rest.iter().fold(first, |result, (kind, config)| lab.add(kind, pod, &after(config, &result)))
}

/// Runs DEL of all plugins in reverse order.
fn del(lab: &Lab, pod: Pod, chain: &Chain, result: &Value) {
    for (kind, config) in chain.iter().rev() {
        lab.call(kind, "DEL", pod, &after(config, result));
    }
}

fn nothing_is_left(lab: &Lab) {
    assert_eq!((links(), lab.addresses("net")), (vec!["br0".to_owned(), "lo".to_owned()], Vec::new()));
    let rules = testkit::run("nft", &["list", "ruleset"]);
    assert!(!rules.contains("russet:net/"), "{rules}");
}

#[test]
#[ignore = "kernel: bridge, veth, ifb, tbf, nf_tables; root"]
fn a_chain_adds_up_to_one_result_and_checks_only_the_families_that_the_pod_has() {
    // cni-runtime.md section 6.2 items 57 and 58
    for (subnets, family) in [(V4, "-4"), (V6, "-6")] {
        on_a_node(|lab| {
            let (one, chain) = (pod("one"), chain(lab, "1.0.0", subnets));
            let result = add(lab, one, &chain);
            let interfaces = result["interfaces"].as_array().unwrap();
            let names: Vec<&str> = interfaces.iter().map(|it| it["name"].as_str().unwrap()).collect();
            assert_eq!((names.len(), names[0], names[2], &names[3][..3]), (4, "br0", "eth0", "bwp"));
            assert!(links().contains(&names[1].to_owned()), "{names:?}");
            assert_eq!(
                (result["ips"].as_array().unwrap().len(), &result["ips"][0]["interface"]),
                (1, &json!(2))
            );
            let routes = inside("one", &["ip", family, "route", "show", "default"]);
            assert_eq!(routes.lines().count(), 1, "{routes}");
            for (kind, config) in &chain {
                lab.call(kind, "CHECK", one, &after(config, &result));
            }
            del(lab, one, &chain, &result);
            nothing_is_left(lab);
        });
    }
}

#[test]
#[ignore = "kernel: bridge, veth, ifb, tbf, nf_tables; root"]
fn every_address_names_its_interface_and_every_interface_of_a_pod_its_mac() {
    // cni-runtime.md section 6.2 items 55 and 56
    on_a_node(|lab| {
        let one = pod("one");
        for version in ["0.3.1", "0.4.0", "1.0.0", "1.1.0"] {
            let chain = chain(lab, version, V4);
            let result = add(lab, one, &chain);
            let interfaces = result["interfaces"].as_array().unwrap();
            for ip in result["ips"].as_array().unwrap() {
                let index = usize::try_from(ip["interface"].as_u64().unwrap()).unwrap();
                assert_eq!(interfaces[index]["name"], "eth0", "{version}: {result}");
            }
            let of_pods = interfaces.iter().filter(|it| it["sandbox"] == "/run/netns/one");
            let macs: Vec<&str> = of_pods.map(|it| it["mac"].as_str().unwrap()).collect();
            let shown = &testkit::ip_json(&["-n", "one", "link", "show", "eth0"])[0]["address"];
            assert_eq!(macs, [shown.as_str().unwrap()], "{version}: {result}");
            del(lab, one, &chain, &result);
        }
    });
}

#[test]
#[ignore = "kernel: bridge, veth, ifb, tbf, nf_tables; root"]
fn del_succeeds_after_the_namespace_is_gone_and_again() {
    // cni-runtime.md section 6.2 items 21 and 22
    on_a_node(|lab| {
        let (one, chain) = (pod("one"), chain(lab, "1.0.0", V4));
        let result = add(lab, one, &chain);
        testkit::run("ip", &["netns", "del", "one"]);
        for _ in 0..2 {
            del(lab, one, &chain, &result);
            nothing_is_left(lab);
        }
    });
}

#[test]
#[ignore = "kernel: bridge, veth; root"]
fn the_nodes_own_namespace_is_refused_and_nothing_is_made_or_deleted_there() {
    // cni-runtime.md section 6.2 item 24
    on_a_node(|lab| {
        testkit::run("ip", &["link", "add", "eth0", "type", "veth", "peer", "name", "w0"]);
        let one = Pod { container: "one", ifname: "eth0", netns: "/proc/thread-self/ns/net" };
        let env = "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.29.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n";
        std::fs::write(lab.path("subnet.env"), env).unwrap();
        let flannel = json!({"cniVersion": "1.0.0", "name": "net", "type": "flannel", "dataDir": lab.path("flannel"),
            "subnetFile": lab.path("subnet.env"), "ipam": {"dataDir": lab.data_dir()}});
        let [bridge, _, bandwidth] = chain(lab, "1.0.0", V4);
        for (kind, config) in [bridge, bandwidth, ("flannel", flannel)] {
            let config =
                after(&config, &json!({"cniVersion": "1.0.0", "ips": [{"address": "10.204.1.2/24"}]}));
            let error = lab.error(kind, "ADD", one, &config);
            assert!(error.code == 8 && error.msg.contains("own network namespace"), "{kind}: {error}");
            lab.call(kind, "DEL", one, &config);
            assert_eq!(
                (links().join(" "), lab.addresses("net")),
                ("eth0 lo w0".to_owned(), Vec::new()),
                "{kind}"
            );
        }
        assert_eq!(std::fs::read_dir(lab.path("flannel")).unwrap().count(), 0);
    });
}
