//! What other programs remove from pods' host ends, and how it is restored.

use russet_attach::restore::{Depth, Fix, Tables, differences, restore};
use russet_attach::{
    Attachment, Bridge, Dialect, Executor, Plan, Port, Removal, Wired, adopt, detach, plan, plan_port,
};
use russet_linux::sysctl;
use russet_netlink::{BridgePort, Socket};
use russet_testkit::run;

use crate::bench::{attachment, detachment, interface, namespace, on_a_node, ping};

fn compare(host: &mut Socket, plans: &[Plan], depth: Depth) -> Vec<Fix> {
    differences(plans, &Tables::read(host).unwrap(), depth)
}

/// Compares, restores, and checks that no difference is left; returns the differences found.
#[track_caller]
fn repaired(host: &mut Socket, plans: &[Plan], depth: Depth) -> Vec<String> {
    let fixes = compare(host, plans, depth);
    for (fix, result) in fixes.iter().zip(restore(host, &fixes)) {
        result.unwrap_or_else(|error| panic!("{fix}: {error}"));
    }
    assert_eq!(compare(host, plans, Depth::Everything), Vec::new());
    fixes.iter().map(Fix::to_string).collect()
}

fn two_pods(dialect: Dialect) -> [Attachment; 2] {
    [
        interface(dialect, "c1", "eth0", "web-0", &["10.1.0.1", "fd00::1"]),
        interface(dialect, "c2", "eth0", "web-1", &["10.1.0.2", "fd00::2"]),
    ]
}

#[test]
#[ignore = "kernel: root, ip and ping"]
fn everything_removed_from_a_host_end_is_restored() {
    for dialect in [Dialect::Native, Dialect::Calico] {
        on_a_node(|node| {
            let pods = two_pods(dialect);
            for (pod, netns) in pods.iter().zip(["a", "b"]) {
                node.attach(pod, &namespace(netns));
            }
            let plans = pods.clone().map(|pod| plan(&pod).unwrap());
            let name = pods[0].host_name.as_str();
            let mut host = Socket::route().unwrap();
            assert_eq!(compare(&mut host, &plans, Depth::Everything), Vec::new());
            for (vandal, depth, least) in [
                (&["route", "del", "10.1.0.1/32"][..], Depth::Tables, 1),
                (&["-6", "route", "del", "fd00::1/128"], Depth::Tables, 1),
                (&["route", "replace", "10.1.0.1/32", "dev", "lo"], Depth::Tables, 1),
                (&["neighbour", "del", "10.1.0.1", "dev", name], Depth::Tables, 1),
                (&["neighbour", "flush", "dev", name, "nud", "permanent"], Depth::Tables, 2),
                (&["link", "set", name, "mtu", "1400"], Depth::Tables, 1),
                (&["link", "set", name, "address", "02:00:00:00:00:07"], Depth::Tables, 1),
                (&["link", "set", name, "alias", ""], Depth::Tables, 1),
                // Its routes and neighbours vanish with that.
                (&["link", "set", name, "down"], Depth::Tables, 3),
                (&["link", "set", name, "name", "vandal0"], Depth::Tables, 1),
            ] {
                run("ip", vandal);
                let found = repaired(&mut host, &plans, depth);
                assert!(found.len() >= least, "{vandal:?}: {found:?}");
                if vandal.ends_with(&["vandal0"]) {
                    assert!(found.contains(&format!("rename link vandal0 to {name}")), "{found:?}");
                }
                ping("b", "10.1.0.1");
                ping("b", "fd00::1");
            }
        });
    }
}

#[test]
#[ignore = "kernel: root"]
fn an_adopted_interface_has_no_differences_even_with_a_configured_mac() {
    for dialect in [Dialect::Native, Dialect::Calico] {
        on_a_node(|node| {
            let [pod, other] = two_pods(dialect);
            let pod = Attachment { mac: Some("02:11:22:33:44:55".parse().unwrap()), mtu: 1400, ..pod };
            node.attach(&pod, &namespace("a"));
            node.attach(&other, &namespace("b"));
            let mut host = Socket::route().unwrap();
            let adopted = adopt(&mut host).unwrap().into_iter().map(|it| it.attachment.unwrap());
            let plans: Vec<Plan> = adopted.map(|it| plan(&it).unwrap()).collect();
            assert_eq!(plans.len(), 2);
            assert_eq!(compare(&mut host, &plans, Depth::Everything), Vec::new());
            run("ip", &["neighbour", "del", "10.1.0.1", "dev", pod.host_name.as_str()]);
            let found = repaired(&mut host, &plans, Depth::Tables);
            assert!(found[0].contains("02:11:22:33:44:55"), "{found:?}");
        });
    }
}

#[test]
#[ignore = "kernel: root"]
fn sysctls_of_host_ends_come_back() {
    on_a_node(|node| {
        let pods = two_pods(Dialect::Native);
        for (pod, netns) in pods.iter().zip(["a", "b"]) {
            node.attach(pod, &namespace(netns));
        }
        let plans = pods.clone().map(|pod| plan(&pod).unwrap());
        let name = pods[0].host_name.as_str();
        let mut host = Socket::route().unwrap();
        for (path, bad, depth) in [
            // The kernel reports these by netlink.
            (format!("net/ipv4/conf/{name}/forwarding"), "0", Depth::Tables),
            (format!("net/ipv4/conf/{name}/proxy_arp"), "0", Depth::Tables),
            (format!("net/ipv4/conf/{name}/rp_filter"), "2", Depth::Tables),
            (format!("net/ipv6/conf/{name}/forwarding"), "0", Depth::Tables),
            (format!("net/ipv6/conf/{name}/accept_ra"), "1", Depth::Everything),
            (format!("net/ipv4/neigh/{name}/proxy_delay"), "80", Depth::Everything),
            // Its IPv6 addresses and routes vanish with that, which is noticed.
            (format!("net/ipv6/conf/{name}/disable_ipv6"), "1", Depth::Tables),
        ] {
            let good = sysctl::read(&path).unwrap();
            sysctl::write_if_different(&path, bad).unwrap();
            let found = repaired(&mut host, &plans, depth);
            assert!(found.iter().any(|line| line.contains(&path)), "{path}: {found:?}");
            assert_eq!(sysctl::read(&path).unwrap(), good, "{path}");
        }
        ping("b", "fd00::1");
    });
}

#[test]
#[ignore = "kernel: root"]
fn missing_doomed_and_foreign_links_are_not_restored() {
    on_a_node(|node| {
        let (a, b) = (namespace("a"), namespace("b"));
        let gone = attachment("c1", "web-0", &["10.1.0.1"]);
        let leaving = attachment("c2", "web-1", &["10.1.0.2"]);
        node.attach(&gone, &a);
        node.attach(&leaving, &b);
        let plans = [&gone, &leaving].map(|pod| plan(pod).unwrap());
        let mut host = Socket::route().unwrap();
        run("ip", &["link", "delete", gone.host_name.as_str()]);
        let what = detachment(&leaving, Removal::Deferred);
        detach(&mut host, &what, Some(&b)).unwrap();
        assert_eq!(compare(&mut host, &plans, Depth::Everything), Vec::new());
        // The pod's next sandbox has the name.
        let next = attachment("c3", "web-1", &["10.1.0.3"]);
        node.attach(&next, &namespace("c"));
        assert_eq!(compare(&mut host, &plans, Depth::Everything), Vec::new());
        // A foreign link that has the name by coincidence.
        run("ip", &["link", "add", gone.host_name.as_str(), "type", "bridge"]);
        assert_eq!(compare(&mut host, &plans, Depth::Everything), Vec::new());
    });
}

#[test]
#[ignore = "kernel: root and ping"]
fn a_bridge_and_its_ports_come_back() {
    on_a_node(|node| {
        let bridge = Bridge {
            name: "cni0".parse().unwrap(),
            mtu: None,
            promiscuous: false,
            gateways: vec!["10.2.0.1/24".parse().unwrap()],
            force_address: false,
            mac: None,
        };
        let port = |container: &str, address: &str| Port {
            id: format!("net1/{container}/eth0").parse().unwrap(),
            host_name: Port::default_host_name(&format!("net1/{container}/eth0").parse().unwrap()),
            bridge: bridge.clone(),
            mode: BridgePort { hairpin: true, isolated: false },
            addresses: vec![address.parse().unwrap()],
            routes: Vec::new(),
            mtu: None,
            mac: None,
            sync_delete: true,
            source_check: Default::default(),
        };
        let ports = [port("c1", "10.2.0.5/24"), port("c2", "10.2.0.6/24")];
        let plans = ports.clone().map(|port| plan_port(&port).unwrap());
        let mac = plans.iter().zip(["a", "b"]).map(|(plan, netns)| {
            Executor::new(&mut node.socket).attach(plan, &namespace(netns)).unwrap().bridge_mac
        });
        let mac = mac.last().unwrap();
        // What its record says from then on.
        let known = |port: &Port| Wired::Port(port.clone()).as_attached(mac).plan().unwrap();
        let plans = ports.each_ref().map(known);
        let name = ports[0].host_name.as_str();
        let mut host = Socket::route().unwrap();
        for vandal in [
            &["link", "set", name, "nomaster"][..],
            &["link", "set", name, "type", "bridge_slave", "hairpin", "off"],
            &["link", "set", "cni0", "down"],
            &["address", "flush", "dev", "cni0"],
            &["link", "delete", "cni0"],
        ] {
            run("ip", vandal);
            let found = repaired(&mut host, &plans, Depth::Tables);
            assert!(!found.is_empty(), "{vandal:?}");
            ping("b", "10.2.0.5");
            let bridge = host.link_by_name(&bridge.name).unwrap();
            assert_eq!(bridge.mac, mac, "{vandal:?}: pods send to the MAC that they know");
        }
    });
}

#[test]
#[ignore = "kernel: root; prints how long a comparison takes"]
fn a_comparison_costs_a_handful_of_dumps_for_any_number_of_pods() {
    on_a_node(|node| {
        let pods: Vec<Attachment> = (1..=100)
            .map(|n| attachment(&format!("c{n}"), &format!("web-{n}"), &[&format!("10.1.0.{n}")]))
            .collect();
        for (n, pod) in pods.iter().enumerate() {
            node.attach(pod, &namespace(&format!("p{n}")));
        }
        let plans: Vec<Plan> = pods.iter().map(|pod| plan(pod).unwrap()).collect();
        let mut host = Socket::route().unwrap();
        for depth in [Depth::Tables, Depth::Everything] {
            let began = std::time::Instant::now();
            assert_eq!(compare(&mut host, &plans, depth), Vec::new());
            println!("100 pods, {depth:?}: compared in {:.2} ms", began.elapsed().as_secs_f64() * 1e3);
        }
        run("ip", &["route", "flush", "table", "main", "proto", "114"]);
        let began = std::time::Instant::now();
        assert_eq!(repaired(&mut host, &plans, Depth::Tables).len(), 100);
        println!(
            "100 routes: compared, restored and compared in {:.2} ms",
            began.elapsed().as_secs_f64() * 1e3
        );
    });
}
