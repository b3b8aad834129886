//! Links: created in place, deleted in groups, and every option that is set is read back.

use russet_addr::Mac;
use russet_netlink::{
    AddrGenMode, Batch, Bridge, Df, LinkAdd, LinkDel, LinkKind, LinkSet, OperState, PacketSizes, Peer,
    Socket, Vxlan,
};

use super::{in_new_netns, ip_link, name, new_netns, raw, run, tool, wire, within};

#[test]
#[ignore = "kernel: veth in network namespaces"]
fn a_veth_is_created_with_its_peer_in_place() {
    // dataplane.md section 3.1: nothing is ever moved.
    let pod = new_netns();
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let mac: Mac = "0a:58:0a:80:00:0b".parse().unwrap();
        let peer = Peer {
            netns: raw(&pod),
            mtu_bytes: Some(1450),
            mac: Some(mac),
            tx_queue_len: Some(77),
            ..Peer::new(name("eth0"))
        };
        let link = LinkAdd {
            up: true,
            mtu_bytes: Some(1450),
            mac: Some(Mac::GATEWAY),
            group: Some(7),
            tx_queue_len: Some(55),
            ..LinkAdd::veth(name("cali0123456789a"), peer)
        };
        run(&mut socket, |batch| batch.add_link(&link)).unwrap();

        let host = socket.link_by_name(&name("cali0123456789a")).unwrap();
        assert!(host.is_up() && !host.has_carrier() && !host.is_loopback());
        assert_eq!((host.mtu_bytes, host.mac, host.group), (1450, Some(Mac::GATEWAY), 7));
        assert_eq!((host.kind.as_deref(), host.tx_queue_len), (Some("veth"), 55));
        assert!(host.link_netnsid.is_some(), "the peer is elsewhere");

        let shown = ip_link("cali0123456789a");
        assert_eq!(shown["ifindex"], host.index);
        assert_eq!(shown["mtu"], 1450);
        assert_eq!(shown["address"], "ee:ee:ee:ee:ee:ee");
        assert_eq!((&shown["num_tx_queues"], &shown["num_rx_queues"]), (&1.into(), &1.into()));
        assert_eq!(shown["group"], "7");
        assert_eq!(shown["link_netnsid"], host.link_netnsid.unwrap());

        within(&pod, || {
            let peer = Socket::route().unwrap().link_by_name(&name("eth0")).unwrap();
            assert_eq!(host.link, Some(peer.index));
            assert_eq!((peer.mtu_bytes, peer.mac, peer.is_up()), (1450, Some(mac), false));
            assert_eq!(peer.tx_queue_len, 77);
            assert_eq!(ip_link("eth0")["num_tx_queues"], 1);
        });
    });
}

#[test]
#[ignore = "kernel: veth in network namespaces"]
fn a_veth_is_created_from_within_the_pod_or_with_both_ends_elsewhere() {
    let (host, pod) = (new_netns(), new_netns());
    within(&pod, || {
        let peer = Peer { netns: raw(&host), ..Peer::new(name("out")) };
        run(&mut Socket::route().unwrap(), |batch| {
            batch.add_link(&LinkAdd { up: true, ..LinkAdd::veth(name("eth0"), peer) })
        })
        .unwrap();
        assert_eq!(ip_link("eth0")["linkinfo"]["info_kind"], "veth");
    });
    in_new_netns(|| {
        let peer = Peer { netns: raw(&host), ..Peer::new(name("out1")) };
        let link = LinkAdd { netns: raw(&pod), up: true, ..LinkAdd::veth(name("eth1"), peer) };
        run(&mut Socket::route().unwrap(), |batch| batch.add_link(&link)).unwrap();
        assert_eq!(tool("ip -j link show type veth").len(), 0);
    });
    within(&pod, || assert_eq!(ip_link("eth1")["flags"][0], "NO-CARRIER"));
    within(&host, || {
        assert_eq!(ip_link("out")["linkinfo"]["info_kind"], "veth");
        assert_eq!(ip_link("out1")["linkinfo"]["info_kind"], "veth");
    });
}

#[test]
#[ignore = "kernel: bridge in a network namespace"]
fn a_bridge_has_its_options_and_takes_ports_in_and_out() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let options = Bridge { vlan_filtering: false, mcast_snooping: false };
        run(&mut socket, |batch| {
            batch.add_link(&LinkAdd { up: true, ..LinkAdd::new(name("cni0"), LinkKind::Bridge(options)) })
        })
        .unwrap();
        let data = &ip_link("cni0")["linkinfo"]["info_data"];
        assert_eq!((&data["forward_delay"], &data["stp_state"]), (&0.into(), &0.into()));
        assert_eq!((&data["vlan_filtering"], &data["mcast_snooping"]), (&0.into(), &0.into()));

        let port = wire(&mut socket, "w0");
        let bridge = socket.link_by_name(&name("cni0")).unwrap();
        let set = |master| LinkSet { master: Some(master), ..LinkSet::index(port) };
        run(&mut socket, |batch| batch.set_link(&set(bridge.index))).unwrap();
        assert_eq!(socket.link_by_index(port).unwrap().master, Some(bridge.index));
        assert_eq!(ip_link("w0")["master"], "cni0");
        assert_eq!(socket.links().unwrap().len(), tool("ip -j link show").len(), "a port is listed once");
        run(&mut socket, |batch| batch.set_link(&set(0))).unwrap();
        assert_eq!(socket.link_by_index(port).unwrap().master, None);

        let snooping = Bridge { mcast_snooping: true, ..Bridge::default() };
        let enslaved =
            LinkAdd { master: Some(bridge.index), ..LinkAdd::veth(name("d0"), Peer::new(name("d0p"))) };
        run(&mut socket, |batch| {
            batch.add_link(&LinkAdd::new(name("br1"), LinkKind::Bridge(snooping))).add_link(&enslaved)
        })
        .unwrap();
        assert_eq!(ip_link("br1")["linkinfo"]["info_data"]["mcast_snooping"], 1);
        assert_eq!(ip_link("d0")["master"], "cni0", "a link can be created as a port");
    });
}

#[test]
#[ignore = "kernel: vxlan in a network namespace"]
fn a_vxlan_device_reads_back_as_it_was_written() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let parent = wire(&mut socket, "w0");
        let v4 = Vxlan {
            local: Some("192.168.77.1".parse().unwrap()),
            parent: Some(parent),
            udp_csum: true,
            ttl: 9,
            df: Df::Set,
            ..Vxlan::new(4096, 4789)
        };
        let v6 = Vxlan {
            local: Some("fd00::1".parse().unwrap()),
            udp_zero_csum6_tx: true,
            udp_zero_csum6_rx: true,
            ..Vxlan::new(4096, 4789)
        };
        let learning = Vxlan { learning: true, ..Vxlan::new(1, 8472) };
        let all = [("vxlan.calico", v4), ("vxlan-v6.calico", v6), ("flannel.1", learning)];
        for (called, options) in &all {
            let link = LinkAdd::new(name(called), LinkKind::Vxlan(options.clone()));
            run(&mut socket, |batch| batch.add_link(&link)).unwrap();
            let read = socket.link_by_name(&name(called)).unwrap();
            assert_eq!(read.vxlan.as_ref(), Some(options));
            assert_eq!(read.kind.as_deref(), Some("vxlan"));
        }
        let data = ip_link("vxlan.calico")["linkinfo"]["info_data"].clone();
        assert_eq!((&data["id"], &data["port"]), (&4096.into(), &4789.into()));
        assert_eq!((&data["local"], &data["link"]), (&"192.168.77.1".into(), &"w0".into()));
        assert_eq!((&data["learning"], &data["udp_csum"]), (&false.into(), &true.into()));
        assert_eq!((&data["ttl"], &data["df"]), (&9.into(), &"set".into()));
        let data = ip_link("vxlan-v6.calico")["linkinfo"]["info_data"].clone();
        assert_eq!(data["local6"], "fd00::1");
        assert_eq!(data["udp_zero_csum6_rx"], true);
        assert_eq!(ip_link("flannel.1")["linkinfo"]["info_data"]["learning"], true);
    });
}

#[test]
#[ignore = "kernel: macvlan in a network namespace"]
fn a_link_of_any_other_kind_takes_raw_options() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let parent = wire(&mut socket, "w0");
        // IFLA_MACVLAN_MODE = MACVLAN_MODE_BRIDGE, as an attribute of 8 bytes
        let mut data = vec![];
        data.extend_from_slice(&8u16.to_ne_bytes());
        data.extend_from_slice(&1u16.to_ne_bytes());
        data.extend_from_slice(&4u32.to_ne_bytes());
        let kind = LinkKind::Other { kind: "macvlan", data };
        let link = LinkAdd { parent: Some(parent), ..LinkAdd::new(name("mv0"), kind) };
        run(&mut socket, |batch| batch.add_link(&link)).unwrap();
        let shown = ip_link("mv0");
        assert_eq!(shown["linkinfo"]["info_kind"], "macvlan");
        assert_eq!(shown["linkinfo"]["info_data"]["mode"], "bridge");
        assert_eq!(socket.link_by_name(&name("mv0")).unwrap().link, Some(parent));
    });
}

#[test]
#[ignore = "kernel: veth in network namespaces"]
fn both_ends_of_a_veth_have_their_sizes_from_their_creation_until_they_are_changed() {
    // dataplane.md section 2.5
    let pod = new_netns();
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let big = PacketSizes { gso: 150_000, gro: 160_000, gso_ipv4: 170_000, gro_ipv4: 180_000 };
        let half = PacketSizes { gso: PacketSizes::LEGACY.gso, gro: PacketSizes::LEGACY.gro, ..big };
        let peer = Peer { netns: raw(&pod), sizes: Some(half), ..Peer::new(name("eth0")) };
        let link = LinkAdd { sizes: Some(big), ..LinkAdd::veth(name("v0"), peer) };
        run(&mut socket, |batch| batch.add_link(&link)).unwrap();
        let host = socket.link_by_name(&name("v0")).unwrap();
        assert_eq!((host.sizes, host.tso_max_bytes), (big, 524_280));
        assert!(big.is_big() && half.is_big() && !PacketSizes::LEGACY.is_big());
        let pod_end = within(&pod, || Socket::route().unwrap().link_by_name(&name("eth0")).unwrap());
        assert_eq!(pod_end.sizes, half);

        let set = |sizes| LinkSet { sizes: Some(sizes), ..LinkSet::index(host.index) };
        run(&mut socket, |batch| batch.set_link(&set(PacketSizes::LEGACY))).unwrap();
        assert_eq!(socket.link_by_index(host.index).unwrap().sizes, PacketSizes::LEGACY);
        let error = run(&mut socket, |batch| batch.set_link(&set(PacketSizes::all(600_000)))).unwrap_err();
        assert!(error.to_string().contains("EINVAL"), "{error}");
    });
}

#[test]
#[ignore = "kernel: links in a network namespace"]
fn every_property_of_a_link_can_be_changed() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let index = wire(&mut socket, "w0");
        let mac: Mac = "66:93:7f:54:d5:53".parse().unwrap();
        let change = LinkSet {
            up: Some(false),
            name: Some(name("rsx9")),
            alias: Some("russet default/web eth0".to_owned()),
            group: Some(7273),
            mtu_bytes: Some(1400),
            mac: Some(mac),
            tx_queue_len: Some(42),
            ..LinkSet::index(index)
        };
        let mode = LinkSet { addr_gen_mode: Some(AddrGenMode::None), ..LinkSet::index(index) };
        run(&mut socket, |batch| batch.set_link(&change).set_link(&mode)).unwrap();

        let read = socket.link_by_name(&name("rsx9")).unwrap();
        assert_eq!((read.index, read.is_up(), read.operstate), (index, false, OperState::Down));
        assert_eq!(read.alias.as_deref(), Some("russet default/web eth0"));
        assert_eq!((read.group, read.mtu_bytes, read.mac), (7273, 1400, Some(mac)));
        assert_eq!((read.tx_queue_len, read.addr_gen_mode), (42, Some(AddrGenMode::None)));
        let shown = ip_link("rsx9");
        assert_eq!(shown["ifalias"], "russet default/web eth0");
        assert_eq!((&shown["group"], &shown["mtu"]), (&"7273".into(), &1400.into()));
        assert_eq!(shown["inet6_addr_gen_mode"], "none");

        let by_name = LinkSet { alias: Some(String::new()), up: Some(true), ..LinkSet::named(name("rsx9")) };
        run(&mut socket, |batch| batch.set_link(&by_name)).unwrap();
        let read = socket.link_by_index(index).unwrap();
        assert_eq!((read.is_up(), read.is_running(), &read.alias), (true, true, &None));
        assert_eq!(read.operstate, OperState::Up);
    });
}

#[test]
#[ignore = "kernel: links in a network namespace"]
fn a_rename_of_a_link_named_by_name_is_refused_before_sending() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let change = LinkSet { name: Some(name("x")), ..LinkSet::named(name("lo")) };
        let error = run(&mut socket, |batch| batch.set_link(&change)).unwrap_err();
        assert!(error.to_string().contains("only a link given by index can be renamed"), "{error}");
    });
}

#[test]
#[ignore = "kernel: links in network namespaces"]
fn a_group_of_links_is_deleted_with_one_request() {
    // dataplane.md section 3.1: 30 veths in 20 ms instead of 495.
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        run(&mut socket, |batch| {
            for n in 0..30 {
                let peer = Peer::new(name(&format!("p{n}")));
                let group = Some(if n < 28 { 7273 } else { 0 });
                batch.add_link(&LinkAdd { group, ..LinkAdd::veth(name(&format!("h{n}")), peer) });
            }
            batch
        })
        .unwrap();
        let members = socket.links().unwrap().into_iter().filter(|link| link.group == 7273).count();
        let shown = tool("ip -j link show group 7273");
        assert_eq!(members, shown.iter().filter(|link| link["ifname"].is_string()).count());
        assert_eq!(members, 28);
        run(&mut socket, |batch| batch.delete_link(&LinkDel::Group(7273))).unwrap();
        assert_eq!(tool("ip -j link show type veth").len(), 4);

        let error = run(&mut socket, |batch| batch.delete_link(&LinkDel::Group(7273))).unwrap_err();
        assert!(
            error.is_not_found() && error.to_string().starts_with("delete links of group 7273: "),
            "{error}"
        );
        let rest = socket.link_by_name(&name("h28")).unwrap().index;
        run(&mut socket, |batch| {
            batch.delete_link(&LinkDel::Index(rest)).delete_link(&LinkDel::Name(name("p29")))
        })
        .unwrap();
        assert_eq!(tool("ip -j link show type veth").len(), 0);
    });
}

#[test]
#[ignore = "kernel: links in a network namespace"]
fn a_missing_link_is_not_found() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let error = socket.link_by_name(&name("absent0")).unwrap_err();
        assert!(error.is_not_found(), "{error}");
        assert_eq!(error.to_string(), "read link absent0: ENODEV: No such device");
        assert!(socket.link_by_index(999).unwrap_err().is_not_found());
        let mut batch = Batch::new();
        batch.delete_link(&LinkDel::Name(name("absent0")));
        assert!(socket.execute(&batch).unwrap_err().is_not_found());
    });
}

#[test]
#[ignore = "kernel: 600 links in a network namespace"]
fn a_long_list_of_links_is_complete() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        run(&mut socket, |batch| {
            for n in 0..600 {
                batch.add_link(&LinkAdd::new(
                    name(&format!("d{n}")),
                    LinkKind::Other { kind: "ifb", data: Vec::new() },
                ));
            }
            batch
        })
        .unwrap();
        let shown = tool("ip -j link show");
        let links = socket.links().unwrap();
        assert_eq!(links.len(), shown.len());
        for (link, shown) in links.iter().zip(&shown) {
            assert_eq!(
                (&shown["ifindex"], &shown["ifname"]),
                (&link.index.into(), &link.name.as_str().into())
            );
        }
    });
}
