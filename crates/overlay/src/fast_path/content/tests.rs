use russet_addr::IfName;
use russet_linux::bpf::Way;
use russet_netlink::OperState;

use super::*;

const HOST_END: u32 = 20;
const TUNNEL: u32 = 9;
const UPLINK: u32 = 2;
const POD: &str = "10.244.1.2";

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn mac(byte: u8) -> Mac {
    Mac([byte; 6])
}

fn link(index: u32, name: &str, kind: Option<&str>) -> Link {
    Link {
        index,
        name: IfName::new(name).unwrap().to_string(),
        flags: 1,
        mtu_bytes: 1500,
        mac: Some(mac(u8::try_from(index).unwrap())),
        kind: kind.map(str::to_owned),
        alias: None,
        group: 0,
        master: None,
        link: None,
        link_netnsid: None,
        operstate: OperState::Up,
        tx_queue_len: 0,
        sizes: Default::default(),
        tso_max_bytes: 0,
        addr_gen_mode: None,
        vxlan: None,
        bridge_port: None,
        ipip: None,
    }
}

fn vxlan() -> Vxlan {
    Vxlan { local: Some(address("192.0.2.1")), parent: Some(UPLINK), ..Vxlan::new(4096, 4789) }
}

fn qdisc(ifindex: u32, kind: &str, is_root: bool) -> Qdisc {
    Qdisc { ifindex, kind: kind.to_owned(), is_root, rate_bytes: None }
}

/// A pod, and two nodes: one behind the tunnel, one on the same network.
fn kernel() -> KernelPath {
    let tunnel = Link {
        mtu_bytes: 1450,
        alias: Some(DEVICE_ALIAS.to_owned()),
        vxlan: Some(vxlan()),
        ..link(TUNNEL, "russet.vxlan", Some("vxlan"))
    };
    let ours = |dst: &str, gateway: &str, oif| Route {
        protocol: crate::ROUTE_PROTOCOL,
        oif: Some(oif),
        ..Route::via(net(dst), address(gateway))
    };
    let route = RouteLookup {
        kind: RouteKind::Unicast,
        oif: Some(UPLINK),
        gateway: Some(address("192.0.2.254")),
        source: None,
    };
    KernelPath {
        links: vec![
            link(1, "lo", None),
            link(UPLINK, "eth0", None),
            tunnel,
            link(HOST_END, "russ0a1b2c3d4e5", Some("veth")),
        ],
        neighbours: vec![
            Neighbour::permanent(HOST_END, address(POD), mac(0xaa)),
            Neighbour::permanent(TUNNEL, address("10.244.2.0"), mac(0xbb)),
        ],
        fdb: vec![FdbEntry::remote(TUNNEL, mac(0xbb), address("198.51.100.2"))],
        routes: vec![
            Route::dev(net("10.244.1.2/32"), HOST_END),
            ours("10.244.2.0/26", "10.244.2.0", TUNNEL),
            Route { mtu_bytes: Some(1400), ..ours("10.244.3.0/26", "192.0.2.3", UPLINK) },
        ],
        qdiscs: vec![qdisc(HOST_END, "noqueue", true), qdisc(UPLINK, "fq_codel", true)],
        rules: [0, 32766, 32767].map(|priority| Rule::new(Family::V4, priority, Route::MAIN)).to_vec(),
        underlay: BTreeMap::from([(address("198.51.100.2"), route)]),
    }
}

fn found(kernel: &KernelPath) -> Content {
    content(kernel, "russ", crate::ROUTE_PROTOCOL)
}

#[test]
fn what_is_paused_is_named_and_its_programs_are_away() {
    let mut content = found(&kernel());
    let whole = content.clone();
    content.pause(&Paused::default());
    assert_eq!(content, whole);
    content.pause(&Paused { interfaces: [HOST_END].into(), ..Paused::default() });
    assert_eq!(content.excluded.get(&address(POD)), Some(&PAUSED));
    assert!(content.endpoints.is_empty() && !content.hooks.iter().any(|hook| hook.ifindex == HOST_END));
    assert_eq!((content.paused.len(), content.prefixes), (0, whole.prefixes.clone()));
    let mut content = whole.clone();
    content.pause(&Paused { interfaces: [TUNNEL, UPLINK].into(), ..Paused::default() });
    assert_eq!((content.endpoints, content.hooks), (whole.endpoints, whole.hooks));
    assert!(content.paused.iter().all(|node| node.vxlan.is_some()) && content.paused.len() == 1);
}

#[test]
fn pods_and_nodes_are_where_the_kernels_tables_lead() {
    let content = found(&kernel());
    let endpoint = Endpoint { ifindex: HOST_END, mtu_bytes: 1500, pod_mac: mac(0xaa), host_mac: mac(20) };
    assert_eq!(content.endpoints, BTreeMap::from([(address(POD), endpoint)]));
    let headers = VxlanHeaders {
        remote: "198.51.100.2".parse().unwrap(),
        local: "192.0.2.1".parse().unwrap(),
        vni: 4096,
        port: 4789,
        inner_to: mac(0xbb),
        inner_from: mac(9),
    };
    let tunnelled = Node {
        via_ifindex: TUNNEL,
        mtu_bytes: 1450,
        out_ifindex: UPLINK,
        next_hop: address("192.0.2.254"),
        vxlan: Some(headers),
    };
    let direct = Node {
        via_ifindex: UPLINK,
        mtu_bytes: 1400,
        out_ifindex: UPLINK,
        next_hop: address("192.0.2.3"),
        vxlan: None,
    };
    let prefixes = [(net("10.244.2.0/26"), Some(tunnelled)), (net("10.244.3.0/26"), Some(direct))];
    assert_eq!(content.prefixes, BTreeMap::from(prefixes));
    let tunnel = Tunnel { ifindex: TUNNEL, vni: 4096, port: 4789 };
    assert_eq!(content.tunnels, BTreeMap::from([(Family::V4, tunnel)]));
    let hook = |ifindex, role| Hook { ifindex, role };
    let hooks = [
        hook(UPLINK, Role::Uplink),
        hook(UPLINK, Role::Learn),
        hook(TUNNEL, Role::Learn),
        hook(HOST_END, Role::Pod),
        hook(HOST_END, Role::Learn),
    ];
    assert_eq!(content.hooks, BTreeSet::from(hooks));
    assert_eq!(content.left_out, BTreeMap::new());
}

#[test]
fn each_family_of_outer_headers_has_a_tunnel_of_its_own() {
    // calico-cni.md section 4.4
    const TUNNEL_SIX: u32 = 10;
    let mut kernel = kernel();
    let local = Some(address("fd00:c000::1"));
    kernel.links.push(Link {
        mtu_bytes: 1450,
        alias: Some(DEVICE_ALIAS.to_owned()),
        vxlan: Some(Vxlan { local, ..vxlan() }),
        ..link(TUNNEL_SIX, "vxlan-v6.calico", Some("vxlan"))
    });
    let (gateway, remote) = (address("fd00:10:244:2::"), address("fd00:c000::2"));
    kernel.neighbours.push(Neighbour::permanent(TUNNEL_SIX, gateway, mac(0xcc)));
    kernel.fdb.push(FdbEntry::remote(TUNNEL_SIX, mac(0xcc), remote));
    let to = |dst: &str, oif: Option<u32>| Route { oif, ..Route::via(net(dst), gateway) };
    let ours = |route: Route| Route { protocol: crate::ROUTE_PROTOCOL, ..route };
    kernel.routes.push(ours(to("fd00:10:244:2::/122", Some(TUNNEL_SIX))));
    let route = RouteLookup { kind: RouteKind::Unicast, oif: Some(UPLINK), gateway: None, source: local };
    kernel.underlay.insert(remote, route);
    let content = found(&kernel);
    let node = content.prefixes[&net("fd00:10:244:2::/122")].unwrap();
    // 70 bytes of outer headers have room in the uplink's MTU.
    assert_eq!((node.via_ifindex, node.mtu_bytes, node.out_ifindex), (TUNNEL_SIX, 1430, UPLINK));
    assert_eq!(
        node.vxlan.map(|it| (it.remote, Some(it.local), it.inner_to)),
        Some((remote, local, mac(0xcc)))
    );
    let ifindex = |family: Family| content.tunnels[&family].ifindex;
    assert_eq!((ifindex(Family::V4), ifindex(Family::V6)), (TUNNEL, TUNNEL_SIX));
    assert!(content.prefixes[&net("10.244.2.0/26")].is_some());
    let all = ["192.0.2.9", "fd00:c000::2", "fe80::1", "ff02::1", "::"];
    let fdb = all.map(|text| FdbEntry::remote(TUNNEL_SIX, mac(0xcc), address(text)));
    assert_eq!(remotes(&fdb), BTreeSet::from(["192.0.2.9", "fd00:c000::2"].map(address)));
    // Outer addresses of two families are no tunnel's.
    kernel.fdb.pop();
    kernel.fdb.push(FdbEntry::remote(TUNNEL_SIX, mac(0xcc), address("198.51.100.2")));
    assert_eq!(found(&kernel).prefixes.get(&net("fd00:10:244:2::/122")), None);
}

#[test]
fn a_pod_that_is_limited_unrouted_or_without_a_fixed_mac_is_left_to_the_kernel() {
    let without = |change: &dyn Fn(&mut KernelPath)| {
        let mut kernel = kernel();
        change(&mut kernel);
        let content = found(&kernel);
        assert_eq!((content.endpoints.len(), content.hooks.len()), (0, 0));
        content.left_out.len()
    };
    assert_eq!(without(&|kernel| kernel.qdiscs[0].kind = "tbf".to_owned()), 1);
    assert_eq!(without(&|kernel| kernel.qdiscs.push(qdisc(HOST_END, "ingress", false))), 1);
    assert_eq!(without(&|kernel| kernel.routes[0].oif = Some(UPLINK)), 0);
    assert_eq!(without(&|kernel| kernel.neighbours[0].state = NeighbourState::Reachable), 0);
    assert_eq!(without(&|kernel| kernel.links[3].flags = 0), 0);
    assert_eq!(without(&|kernel| kernel.links[3].master = Some(5)), 0);
    assert_eq!(without(&|kernel| kernel.links[3].name = "veth0".to_owned()), 0);
}

#[test]
fn a_netkit_pod_has_its_program_where_it_sends_if_the_kernel_has_programs_at_links() {
    let mut kernel = kernel();
    kernel.links[3].kind = Some("netkit".to_owned());
    let content = found(&kernel);
    assert_eq!((content.endpoints.len(), content.interfaces.len()), (1, 1));
    let roles = |way| -> Vec<Role> {
        let hooks = content.hooks.iter().filter(|hook| hook.ifindex == HOST_END);
        hooks.map(|hook| hook.by(way).role).collect()
    };
    assert_eq!(roles(Way::Tcx), [Role::NetkitPod, Role::Learn]);
    assert_eq!(roles(Way::Clsact), [Role::Pod, Role::Learn]);
}

#[test]
fn what_other_routes_and_rules_lead_elsewhere_is_left_to_the_kernel() {
    let mut kernel = kernel();
    let foreign = |dst: &str| Route { oif: Some(UPLINK), ..Route::via(net(dst), address("192.0.2.7")) };
    kernel.routes.push(foreign("10.244.2.8/32"));
    kernel.routes.push(foreign("10.244.3.0/26"));
    kernel.routes.push(foreign("10.244.0.0/16"));
    kernel.routes.push(Route::blackhole(net("10.244.2.16/28")));
    let content = found(&kernel);
    let none = |dst: &str| content.prefixes.get(&net(dst)) == Some(&None);
    assert!(none("10.244.2.8/32") && none("10.244.2.16/28"), "a part of a node's prefix");
    assert!(none("10.244.3.0/26"), "the same destination with another metric");
    assert!(!content.prefixes.contains_key(&net("10.244.0.0/16")), "a wider one does not count");
    assert!(content.prefixes.get(&net("10.244.2.0/26")).is_some_and(Option::is_some));
    kernel.rules.push(Rule::new(Family::V4, 100, 77));
    let content = found(&kernel);
    assert_eq!((content.endpoints.len(), content.prefixes.len(), content.left_out.len()), (0, 0, 1));
}

#[test]
fn another_tunnels_device_makes_its_headers_itself() {
    let mut kernel = kernel();
    kernel.links[2].alias = None;
    let content = found(&kernel);
    let node = Node {
        via_ifindex: TUNNEL,
        mtu_bytes: 1450,
        out_ifindex: TUNNEL,
        next_hop: address("10.244.2.0"),
        vxlan: None,
    };
    assert_eq!(content.prefixes.get(&net("10.244.2.0/26")), Some(&Some(node)));
    assert_eq!(content.tunnels, BTreeMap::new());
    assert!(content.hooks.contains(&Hook { ifindex: TUNNEL, role: Role::Uplink }));
}

#[test]
fn a_node_that_the_tables_do_not_lead_to_is_left_to_the_kernel() {
    let without = |change: &dyn Fn(&mut KernelPath)| {
        let mut kernel = kernel();
        kernel.routes.pop();
        change(&mut kernel);
        let content = found(&kernel);
        assert_eq!((content.prefixes.values().flatten().count(), content.tunnels.len()), (0, 0));
        assert_eq!(content.endpoints.len(), 1, "pods of this node still reach each other");
    };
    without(&|kernel| _ = kernel.neighbours.pop());
    without(&|kernel| _ = kernel.fdb.pop());
    without(&|kernel| kernel.fdb[0].port = Some(1));
    without(&|kernel| kernel.underlay.clear());
    without(&|kernel| kernel.routes[1].protocol = Route::PROTOCOL_BOOT);
    without(&|kernel| kernel.routes[1].kind = RouteKind::Blackhole);
    // Filters at the uplink may belong to another network, which has to see every packet.
    without(&|kernel| kernel.qdiscs.push(qdisc(UPLINK, "clsact", false)));
    // A device without Ethernet headers, such as WireGuard's.
    without(&|kernel| kernel.links[1].mac = None);
    // The fast path would pass it by.
    without(&|kernel| kernel.qdiscs.push(qdisc(TUNNEL, "fq", true)));
}
