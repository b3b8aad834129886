//! The state of a wired pod, and whether it works.

use russet_attach::{
    Attachment, Dialect, Executor, Hooks, Pending, PodRoutes, Refusal, Removal, check, detach, loopback, plan,
};
use russet_linux::{NetNs, sysctl};
use russet_testkit::{links, pings, pings_with, run};

use crate::bench::{
    array, attachment, detachment, interface, ip, namespace, on_a_node, ping, pod_sysctl, routes, text,
};

#[test]
#[ignore = "kernel: root and ping"]
fn two_pods_of_a_node_without_default_route_reach_each_other_at_once() {
    on_a_node(|node| {
        let (a, b) = (namespace("a"), namespace("b"));
        node.attach(&attachment("c1", "a", &["10.1.0.1", "fd00::1"]), &a);
        node.attach(&attachment("c2", "b", &["10.1.0.2", "fd00::2"]), &b);
        ping("a", "10.1.0.2");
        ping("a", "fd00::2");
        ping("b", "10.1.0.1");
        ping("b", "fd00::1");
    });
}

#[test]
#[ignore = "kernel: root"]
fn the_host_end_looks_like_that_of_calicos_plugin() {
    // calico-cni.md section 5.1, oracle 3; section 3.4
    for (dialect, name) in [(Dialect::Native, "russa4fc3c48bd8"), (Dialect::Calico, "calia4fc3c48bd8")] {
        on_a_node(|node| {
            let pod = namespace("p");
            let wanted = interface(dialect, "c1", "eth0", "web-0", &["10.1.0.1", "fd00::1"]);
            let attached = node.attach(&wanted, &pod);
            let link = &ip(None, &["link", "show", name])[0];
            assert_eq!((&link["ifindex"], &link["mtu"]), (&attached.host_ifindex.into(), &1500.into()));
            assert_eq!((&link["operstate"], &link["address"]), (&"UP".into(), &"ee:ee:ee:ee:ee:ee".into()));
            assert_eq!(
                (&link["group"], &link["ifalias"]),
                (&"default".into(), &"russet:net1/c1/eth0".into())
            );
            for (path, value) in [
                (format!("net/ipv4/neigh/{name}/proxy_delay"), "0"),
                (format!("net/ipv4/conf/{name}/proxy_arp"), "1"),
                (format!("net/ipv4/conf/{name}/forwarding"), "1"),
                (format!("net/ipv6/conf/{name}/disable_ipv6"), "0"),
                (format!("net/ipv6/conf/{name}/accept_dad"), "0"),
                (format!("net/ipv6/conf/{name}/accept_ra"), "0"),
                (format!("net/ipv6/conf/{name}/proxy_ndp"), "1"),
                (format!("net/ipv6/conf/{name}/forwarding"), "1"),
            ] {
                assert_eq!(sysctl::read(&path).unwrap(), value, "{path}");
            }
            assert_eq!(pod_sysctl(&pod, "net/ipv4/ip_forward"), "0");
        });
    }
}

#[test]
#[ignore = "kernel: root"]
fn routes_are_calicos_and_no_others() {
    // calico-cni.md section 5.1, oracle 4; section 3.5
    for (dialect, name, protocol) in
        [(Dialect::Native, "russa4fc3c48bd8", "114"), (Dialect::Calico, "calia4fc3c48bd8", "boot")]
    {
        on_a_node(|node| {
            let pod = namespace("p");
            node.attach(&interface(dialect, "c1", "eth0", "web-0", &["10.1.0.1"]), &pod);
            let host = array(&ip(None, &["route", "show", "10.1.0.1"])).to_vec();
            assert_eq!(host.len(), 1);
            assert_eq!(
                (text(&host[0]["dev"]), text(&host[0]["scope"])),
                (name.to_owned(), "link".to_owned())
            );
            assert_eq!((text(&host[0]["protocol"]), &host[0]["metric"]), (protocol.into(), &().into()));
            let inside = routes(Some("p"), "-4");
            let bare =
                |route: &String| route.replace(" proto 114", "").replace(" scope link", "").trim().to_owned();
            let short: Vec<_> = inside.iter().map(bare).collect();
            assert_eq!(short, ["169.254.1.1 dev eth0", "default via 169.254.1.1 dev eth0"]);
            assert_eq!(ip(Some("p"), &["route", "show", "169.254.1.1"])[0]["scope"], "link");
        });
    }
}

#[test]
#[ignore = "kernel: root"]
fn no_address_is_tentative_when_add_returns() {
    // calico-cni.md section 5.1, oracles 31 and 34
    on_a_node(|node| {
        let pod = namespace("p");
        node.attach(&attachment("c1", "web-0", &["10.1.0.1", "fd00::1"]), &pod);
        let addresses = ip(Some("p"), &["addr", "show", "eth0"]);
        let infos = array(&addresses[0]["addr_info"]).to_vec();
        assert!(infos.iter().all(|info| info["tentative"] != true), "{infos:?}");
        let locals: Vec<String> =
            infos.iter().map(|i| format!("{}/{}", text(&i["local"]), i["prefixlen"])).collect();
        assert!(locals.contains(&"10.1.0.1/32".to_owned()) && locals.contains(&"fd00::1/128".to_owned()));
        assert_eq!(addresses[0]["operstate"], "UP");
        assert_eq!(pod_sysctl(&pod, "net/ipv6/conf/eth0/accept_dad"), "0");
        let default = &ip(Some("p"), &["-6", "route", "show", "default"])[0];
        assert_eq!(default["gateway"], "fe80::ecee:eeff:feee:eeee");
        assert_eq!(default["metric"], 1024);
        let neighbours = ip(Some("p"), &["neigh", "show", "nud", "permanent"]);
        let states: Vec<String> = array(&neighbours).iter().map(|n| text(&n["state"][0])).collect();
        assert_eq!(
            states,
            ["PERMANENT", "PERMANENT"],
            "one gateway a family; learned neighbours do not count"
        );
    });
}

#[test]
#[ignore = "kernel: root and ping"]
fn a_node_and_a_pod_with_ipv6_disabled_by_default_carry_ipv6() {
    on_a_node(|node| {
        let (a, b) = (namespace("a"), namespace("b"));
        let off = "net/ipv6/conf/default/disable_ipv6";
        sysctl::write_if_different(off, "1").unwrap();
        a.with(|| sysctl::write_if_different("net/ipv6/conf/all/disable_ipv6", "1")).unwrap().unwrap();
        node.attach(&attachment("c1", "a", &["fd00::1"]), &a);
        node.attach(&attachment("c2", "b", &["fd00::2"]), &b);
        ping("a", "fd00::2");
        // An IPv4 pod does not need it: it stays disabled.
        let c = namespace("c");
        c.with(|| sysctl::write_if_different("net/ipv6/conf/all/disable_ipv6", "1")).unwrap().unwrap();
        node.attach(&attachment("c3", "c", &["10.1.0.3"]), &c);
        assert_eq!(pod_sysctl(&c, "net/ipv6/conf/all/disable_ipv6"), "1");
    });
}

#[test]
#[ignore = "kernel: root and ping"]
fn both_ends_have_the_requested_mtu_and_mac() {
    // calico-cni.md section 5.1, oracles 28 and 46
    on_a_node(|node| {
        let (a, b) = (namespace("a"), namespace("b"));
        let mac = "ca:fe:ca:fe:ca:fe".parse().unwrap();
        let wanted = Attachment { mtu: 9000, mac: Some(mac), ..attachment("c1", "a", &["10.1.0.1"]) };
        let attached = node.attach(&wanted, &a);
        assert_eq!((attached.mtu, attached.pod_mac), (9000, mac));
        assert_eq!(ip(None, &["link", "show", wanted.host_name.as_str()])[0]["mtu"], 9000);
        let inside = &ip(Some("a"), &["link", "show", "eth0"])[0];
        assert_eq!((&inside["mtu"], &inside["address"]), (&9000.into(), &"ca:fe:ca:fe:ca:fe".into()));
        node.attach(&Attachment { mtu: 9000, ..attachment("c2", "b", &["10.1.0.2"]) }, &b);
        assert!(pings_with("a", &["-M", "do", "-s", "8972", "10.1.0.2"]));
        assert!(!pings_with("a", &["-M", "do", "-s", "8973", "10.1.0.2"]));
    });
}

#[test]
#[ignore = "kernel: root and ping"]
fn a_second_interface_is_wired_beside_the_first() {
    on_a_node(|node| {
        let (a, b) = (namespace("a"), namespace("b"));
        node.attach(&attachment("c1", "a", &["10.1.0.1", "fd00::1"]), &a);
        let second = interface(Dialect::Native, "c1", "net1", "a", &["10.1.0.11", "fd00::11"]);
        node.attach(&second, &a);
        node.attach(&attachment("c2", "b", &["10.1.0.2", "fd00::2"]), &b);
        ping("a", "10.1.0.2");
        ping("a", "fd00::2");
        assert!(pings_with("a", &["-I", "net1", "10.1.0.2"]), "out of the second interface");
        assert!(pings("b", "10.1.0.11"), "to the second interface");
        assert!(pings("b", "fd00::11"), "to the second interface");
        assert_eq!(check(&second, &mut node.socket, &a).unwrap(), []);
        assert!(node.attach(&second, &a).reused);
        let what = detachment(&second, Removal::Deferred);
        detach(&mut node.socket, &what, Some(&a)).unwrap();
        assert_eq!(array(&ip(Some("a"), &["rule"])).len(), 3, "the kernel's own rules");
        ping("a", "10.1.0.2");
        node.attach(&second, &a);
        assert!(pings("b", "10.1.0.11"), "to the second interface, again");
    });
}

#[test]
#[ignore = "kernel: root"]
fn forwarding_and_routes_follow_the_attachment() {
    // calico-cni.md section 5.1, oracles 9 and 32
    on_a_node(|node| {
        let pod = namespace("p");
        let routes = PodRoutes::Only(vec!["10.96.0.0/12".parse().unwrap(), "fd01::/64".parse().unwrap()]);
        let wanted = Attachment {
            allow_ip_forwarding: true,
            routes,
            ..attachment("c1", "web-0", &["10.1.0.1", "fd00::1"])
        };
        node.attach(&wanted, &pod);
        assert_eq!(pod_sysctl(&pod, "net/ipv4/ip_forward"), "1");
        assert_eq!(pod_sysctl(&pod, "net/ipv6/conf/all/forwarding"), "1");
        assert_eq!(crate::bench::routes(Some("p"), "-4").len(), 2);
        assert_eq!(ip(Some("p"), &["route", "show", "default"]), serde_json::json!([]));
        assert_eq!(ip(Some("p"), &["-6", "route", "show", "fd01::/64"])[0]["dev"], "eth0");
    });
}

#[test]
#[ignore = "kernel: root and ping"]
fn a_pod_cannot_send_with_an_address_that_is_not_its_own() {
    // calico-cni.md section 5.2, oracle 65
    on_a_node(|node| {
        let (a, b) = (namespace("a"), namespace("b"));
        node.attach(&attachment("c1", "a", &["10.1.0.1"]), &a);
        node.attach(&attachment("c2", "b", &["10.1.0.2"]), &b);
        run("ip", &["-n", "a", "addr", "add", "10.1.0.9/32", "dev", "eth0"]);
        let listen = b.with(|| std::net::UdpSocket::bind("10.1.0.2:4000").unwrap()).unwrap();
        listen.set_nonblocking(true).unwrap();
        for (from, arrives) in [("10.1.0.9:0", false), ("10.1.0.1:0", true)] {
            let socket = a.with(|| std::net::UdpSocket::bind(from).unwrap()).unwrap();
            socket.send_to(b"x", "10.1.0.2:4000").unwrap();
            assert_eq!(listen.recv_from(&mut [0; 8]).is_ok(), arrives, "{from}");
        }
    });
}

/// Reads the state in front of the gate, and decides.
struct Gatekeeper {
    opens: bool,
    host_state: String,
    host_routes: usize,
}

impl Hooks for Gatekeeper {
    fn gate(&mut self, pending: &Pending<'_>) -> Result<(), Refusal> {
        let name = pending.plan.host_name.as_str();
        self.host_state = text(&ip(None, &["link", "show", name])[0]["operstate"]);
        self.host_routes = routes(None, "-4").len();
        if self.opens { Ok(()) } else { Err("verdicts are not in place".into()) }
    }
}

#[test]
#[ignore = "kernel: root"]
fn the_host_end_is_down_and_unrouted_until_the_gate_opens() {
    // ARCHITECTURE.md, invariants 4 and 6
    on_a_node(|node| {
        let pod = namespace("p");
        let plan = plan(&attachment("c1", "web-0", &["10.1.0.1"])).unwrap();
        let mut hooks = Gatekeeper { opens: false, host_state: String::new(), host_routes: 9 };
        let error = Executor::new(&mut node.socket).attach_with(&plan, &pod, &mut hooks).unwrap_err();
        assert_eq!(error.to_string(), "attach russet:net1/c1/eth0: gate: verdicts are not in place");
        assert_eq!((hooks.host_state.as_str(), hooks.host_routes), ("DOWN", 0));
        assert_eq!((links(None), links(Some("p"))), (vec!["lo".to_owned()], vec!["lo".to_owned()]));
        hooks.opens = true;
        Executor::new(&mut node.socket).attach_with(&plan, &pod, &mut hooks).unwrap();
        assert_eq!(routes(None, "-4").len(), 1);
    });
}

#[test]
#[ignore = "kernel: root and ping"]
fn loopback_goes_up_and_down() {
    // cni-runtime.md section 5
    on_a_node(|_| {
        let pod = namespace("p");
        assert!(!loopback::is_up(&pod).unwrap());
        loopback::up(&pod).unwrap();
        assert!(loopback::is_up(&pod).unwrap());
        ping("p", "127.0.0.1");
        ping("p", "::1");
        loopback::down(&pod).unwrap();
        assert!(!loopback::is_up(&pod).unwrap());
        let own = NetNs::current().unwrap();
        let error = loopback::down(&own).unwrap_err();
        assert!(error.to_string().contains("the node's own"), "{error}");
        assert!(loopback::is_up(&own).unwrap());
    });
}

/// Wires `shop/web-0` like Calico's own plugin, release 1.11 or a current one (calico-cni.md
/// sections 3.2 to 3.5).
fn wire_as_calicos_plugin(pod: &NetNs, mac: &str, release_1_11: bool) {
    const HOST: &str = "calia4fc3c48bd8";
    let create = format!("link add {HOST} address ee:ee:ee:ee:ee:ee type veth peer name eth0 netns p");
    let on_the_node = |line: &str| run("ip", &line.split(' ').collect::<Vec<_>>());
    on_the_node(&create);
    let mut settings = vec![
        (format!("net/ipv4/neigh/{HOST}/proxy_delay"), "0"),
        (format!("net/ipv4/conf/{HOST}/proxy_arp"), "1"),
        (format!("net/ipv4/conf/{HOST}/forwarding"), "1"),
        (format!("net/ipv6/conf/{HOST}/disable_ipv6"), "0"),
        (format!("net/ipv6/conf/{HOST}/proxy_ndp"), "1"),
        (format!("net/ipv6/conf/{HOST}/forwarding"), "1"),
    ];
    if !release_1_11 {
        settings.push((format!("net/ipv4/conf/{HOST}/route_localnet"), "1"));
        settings.push((format!("net/ipv6/conf/{HOST}/accept_dad"), "0"));
        settings.push((format!("net/ipv6/conf/{HOST}/accept_ra"), "0"));
        pod.with(|| sysctl::write_if_different("net/ipv6/conf/eth0/accept_dad", "0")).unwrap().unwrap();
    }
    for (path, value) in settings {
        sysctl::write_if_different(&path, value).unwrap();
    }
    let gateway = "fe80::ecee:eeff:feee:eeee";
    for line in [
        format!("link set {HOST} up"),
        format!("-n p link set eth0 address {mac} up"),
        "-n p route add 169.254.1.1 dev eth0 scope link".to_owned(),
        "-n p route add default via 169.254.1.1 dev eth0".to_owned(),
        format!("-n p route add default via {gateway} dev eth0"),
        "-n p address add 10.1.0.1/32 dev eth0".to_owned(),
        "-n p address add fd00::1/128 dev eth0 nodad".to_owned(),
        format!("route add 10.1.0.1 dev {HOST} scope link"),
        format!("route add fd00::1 dev {HOST}"),
    ] {
        on_the_node(&line);
    }
}

#[test]
#[ignore = "kernel: root"]
fn check_accepts_what_calicos_plugin_makes_and_finds_what_it_lacks_afterwards() {
    for release_1_11 in [false, true] {
        on_a_node(|node| {
            let pod = namespace("p");
            let mac = "8e:01:7c:aa:10:f3";
            wire_as_calicos_plugin(&pod, mac, release_1_11);
            let theirs = Attachment {
                mac: Some(mac.parse().unwrap()),
                ..interface(Dialect::Calico, "c1", "eth0", "web-0", &["10.1.0.1", "fd00::1"])
            };
            assert_eq!(check(&theirs, &mut node.socket, &pod).unwrap(), [], "1.11: {release_1_11}");
            run("ip", &["route", "del", "10.1.0.1"]);
            let missing = check(&theirs, &mut node.socket, &pod).unwrap();
            assert!(missing.len() == 1 && missing[0].to_string().contains("10.1.0.1"), "{missing:?}");
        });
    }
    // What Russet wired has an alias and neighbours, and is recognised by its MAC.
    on_a_node(|node| {
        let pod = namespace("p");
        let ours = interface(Dialect::Calico, "c1", "eth0", "web-0", &["10.1.0.1"]);
        let attached = node.attach(&ours, &pod);
        run("ip", &["link", "set", "calia4fc3c48bd8", "alias", ""]);
        let recorded = Attachment { mac: Some(attached.pod_mac), ..ours };
        let missing = check(&recorded, &mut node.socket, &pod).unwrap();
        assert!(missing.len() == 1 && missing[0].to_string().contains("alias"), "{missing:?}");
    });
}
