//! Addresses, routes, neighbours, forwarding entries and rules, compared with the output of the
//! tools.

use std::net::IpAddr;

use russet_addr::{Family, IpNet, Mac};
use russet_netlink::{
    Address, AddressFlags, FdbEntry, LinkAdd, LinkKind, Neighbour, NeighbourState, Route, RouteFilter,
    RouteKind, Rule, Scope, Socket, Vxlan,
};

use super::{in_new_netns, name, run, tool, wire};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

const MAC: Mac = Mac([0x66, 0x93, 0x7f, 0x54, 0xd5, 0x53]);

#[test]
#[ignore = "kernel: addresses in a network namespace"]
fn addresses_of_pods_are_usable_at_once() {
    // Duplicate address detection adds 1 to 1.5 s.
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let w0 = wire(&mut socket, "w0");
        let v4 = Address {
            broadcast: Some("10.1.0.255".parse().unwrap()),
            flags: AddressFlags::NOPREFIXROUTE,
            ..Address::new(w0, net("10.1.0.7/24"))
        };
        let v6 = Address::new(w0, net("fd00::7/128"));
        let near = Address { scope: Scope::Link, ..Address::new(w0, net("169.254.3.1/32")) };
        let point = Address { peer: Some(ip("10.9.0.2")), ..Address::new(w0, net("10.9.0.1/32")) };
        let all = [&v4, &v6, &near, &point];
        run(&mut socket, |batch| all.iter().fold(batch, |batch, address| batch.add_address(address)))
            .unwrap();

        let read = socket.addresses_of(w0).unwrap();
        for address in all {
            let flags = address.flags | AddressFlags::PERMANENT;
            assert!(read.contains(&Address { flags, ..address.clone() }), "{address:?} in {read:?}");
        }
        assert!(!read.iter().any(|a| a.net == v6.net && a.flags.contains(AddressFlags::TENTATIVE)));
        let all: usize =
            tool("ip -j addr show").iter().map(|l| l["addr_info"].as_array().unwrap().len()).sum();
        assert_eq!(socket.addresses().unwrap().len(), all);

        let shown = tool("ip -j addr show dev w0").remove(0)["addr_info"].clone();
        let find =
            |local: &str| shown.as_array().unwrap().iter().find(|a| a["local"] == local).unwrap().clone();
        assert_eq!(find("10.1.0.7")["noprefixroute"], true);
        assert_eq!(find("10.1.0.7")["broadcast"], "10.1.0.255");
        assert_eq!(find("fd00::7")["nodad"], true);
        assert_eq!(find("fd00::7")["scope"], "global");
        assert_eq!(find("169.254.3.1")["scope"], "link");
        assert_eq!(find("10.9.0.1")["address"], "10.9.0.2");
        assert_eq!(tool("ip -j route show 10.1.0.0/24").len(), 0);

        let error = run(&mut socket, |batch| batch.add_address(&v4)).unwrap_err();
        assert!(error.is_exists() && error.operation() == "add address 10.1.0.7/24 dev w0", "{error}");
        run(&mut socket, |batch| batch.replace_address(&v4)).unwrap();
        run(&mut socket, |batch| batch.delete_address(&v4)).unwrap();
        assert!(run(&mut socket, |batch| batch.delete_address(&v4)).unwrap_err().is_not_found());
    });
}

#[test]
#[ignore = "kernel: addresses of the loopback interface"]
fn an_address_of_the_loopback_interface_names_its_owner_and_is_no_source_by_itself() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let lo = socket.link_by_name(&name("lo")).unwrap().index;
        let owned = |text: &str| Address { protocol: 114, ..Address::new(lo, net(text)) };
        let v4 = Address { scope: Scope::Host, ..owned("10.1.0.9/32") };
        let v6 = owned("fd00::9/128");
        let flags = AddressFlags::NOPREFIXROUTE | AddressFlags::DEPRECATED;
        let v6 = Address { flags: v6.flags | flags, ..v6 };
        let foreign = Address::new(lo, net("10.1.0.10/32"));
        for _ in 0..2 {
            let all = [&v4, &v6, &foreign];
            run(&mut socket, |batch| all.iter().fold(batch, |batch, address| batch.replace_address(address)))
                .unwrap();
            let read = socket.addresses_of(lo).unwrap();
            for address in all {
                let found = read.iter().find(|found| found.net == address.net).unwrap();
                assert_eq!((found.protocol, found.scope), (address.protocol, address.scope), "{found:?}");
                assert!(found.flags.contains(address.flags), "{found:?}");
            }
        }
        assert_eq!(tool("ip -j -6 route show fd00::9").len(), 0);
        run(&mut socket, |batch| batch.delete_address(&v4).delete_address(&v6)).unwrap();
        assert!(!socket.addresses_of(lo).unwrap().iter().any(|found| found.protocol == 114));
    });
}

/// One route of each kind that Russet creates.
fn some_routes(oif: u32) -> Vec<Route> {
    let base = |route: Route| Route { protocol: 114, ..route };
    let v6 = |route: Route| Route { metric: route.metric.or(Some(Route::METRIC_V6)), ..base(route) };
    let onlink = Route { oif: Some(oif), onlink: true, ..Route::via(net("10.5.0.0/24"), ip("10.5.0.0")) };
    vec![
        base(Route::dev(net("10.1.0.5/32"), oif)),
        base(Route { oif: Some(oif), ..Route::via(net("10.2.0.0/26"), ip("192.168.77.2")) }),
        base(Route { oif: Some(oif), ..Route::via(net("0.0.0.0/0"), ip("192.168.77.1")) }),
        base(Route::blackhole(net("10.3.0.0/26"))),
        base(Route {
            kind: RouteKind::Unreachable,
            metric: Some(4_000_000_000),
            ..Route::new(net("10.0.0.0/8"))
        }),
        base(onlink),
        base(Route {
            mtu_bytes: Some(1400),
            prefsrc: Some(ip("192.168.77.7")),
            metric: Some(5),
            ..Route::dev(net("10.6.0.0/24"), oif)
        }),
        base(Route { table: 1000, ..Route::dev(net("10.7.0.0/24"), oif) }),
        base(Route { oif: Some(oif), ..Route::via(net("10.8.0.0/24"), ip("fe80::1")) }),
        v6(Route::dev(net("fd00:1::5/128"), oif)),
        v6(Route { oif: Some(oif), ..Route::via(net("fd00:2::/122"), ip("fd77::2")) }),
        v6(Route { oif: Some(oif), ..Route::via(net("::/0"), ip("fe80::1")) }),
        v6(Route::blackhole(net("fd00:3::/122"))),
        v6(Route { oif: Some(oif), onlink: true, ..Route::via(net("fd00:5::/122"), ip("fd99::9")) }),
        v6(Route {
            mtu_bytes: Some(1400),
            metric: Some(7),
            table: 1000,
            ..Route::dev(net("fd00:6::/64"), oif)
        }),
    ]
}

#[test]
#[ignore = "kernel: routes in a network namespace"]
fn every_kind_of_route_reads_back_as_written() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let w0 = wire(&mut socket, "w0");
        run(&mut socket, |batch| {
            batch.add_address(&Address::new(w0, net("192.168.77.7/24")));
            batch.add_address(&Address::new(w0, net("fd77::7/64")))
        })
        .unwrap();
        let routes = some_routes(w0);
        run(&mut socket, |batch| routes.iter().fold(batch, |batch, route| batch.add_route(route))).unwrap();
        for family in Family::BOTH {
            let filter = RouteFilter { protocol: Some(114), ..RouteFilter::default() };
            let read = socket.routes_where(family, filter).unwrap();
            let written: Vec<_> = routes.iter().filter(|route| route.family() == family).collect();
            for route in &written {
                assert!(read.contains(route), "{route:?} in {read:?}");
            }
            assert_eq!(read.len(), written.len());
            let flag = if family == Family::V4 { "-4" } else { "-6" };
            assert_eq!(read.len(), tool(&format!("ip -j {flag} route show table all proto 114")).len());
            let all = socket.routes(family).unwrap();
            assert!(written.iter().all(|route| all.contains(route)), "{all:?}");
            if family == Family::V4 {
                // The kernel adds and deletes its own IPv6 routes as carriers come up.
                assert_eq!(all.len(), tool("ip -j -4 route show table all").len());
            }
            let table = RouteFilter { table: Some(1000), ..RouteFilter::default() };
            assert_eq!(socket.routes_where(family, table).unwrap().len(), 1);
            let nowhere = RouteFilter { table: Some(1001), ..RouteFilter::default() };
            assert_eq!(socket.routes_where(family, nowhere).unwrap(), []);
            let through = RouteFilter { oif: Some(w0), ..filter };
            let forwarding = written.iter().filter(|route| route.kind.forwards()).count();
            assert_eq!(socket.routes_where(family, through).unwrap().len(), forwarding);
        }
        let results = {
            let mut batch = russet_netlink::Batch::new();
            for route in &routes {
                batch.delete_route(route);
            }
            socket.execute_all(&batch)
        };
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        assert_eq!(tool("ip -j route show proto 114").len() + tool("ip -j -6 route show proto 114").len(), 0);
    });
}

#[test]
#[ignore = "kernel: routes in a network namespace"]
fn ip_shows_the_intended_routes() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let w0 = wire(&mut socket, "w0");
        run(&mut socket, |batch| batch.add_address(&Address::new(w0, net("192.168.77.7/24")))).unwrap();
        let routes = some_routes(w0);
        let v4: Vec<_> = routes.iter().filter(|route| route.family() == Family::V4).collect();
        run(&mut socket, |batch| v4.iter().fold(batch, |batch, route| batch.add_route(route))).unwrap();
        let shown = |dst: &str| tool(&format!("ip -j -d route show {dst} table all proto 114")).remove(0);
        let near = shown("10.1.0.5");
        assert_eq!(
            (&near["scope"], &near["dev"], &near["type"]),
            (&"link".into(), &"w0".into(), &"unicast".into())
        );
        assert_eq!(shown("default")["gateway"], "192.168.77.1");
        assert_eq!(shown("10.3.0.0/26")["type"], "blackhole");
        assert_eq!(shown("10.0.0.0/8")["type"], "unreachable");
        assert_eq!(shown("10.0.0.0/8")["metric"], 4_000_000_000u32);
        assert_eq!(shown("10.5.0.0/24")["flags"][0], "onlink");
        assert_eq!(shown("10.6.0.0/24")["metrics"][0]["mtu"], 1400);
        assert_eq!(shown("10.6.0.0/24")["prefsrc"], "192.168.77.7");
        assert_eq!(shown("10.7.0.0/24")["table"], "1000");
        assert_eq!(shown("10.8.0.0/24")["via"]["host"], "fe80::1");
        assert_eq!(tool("ip -j route show 10.8.0.0/24")[0]["protocol"], "114");
    });
}

#[test]
#[ignore = "kernel: routes in a network namespace"]
fn a_route_is_replaced_in_place_and_appended_after() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let (w0, w1) = (wire(&mut socket, "w0"), wire(&mut socket, "w1"));
        let dst = net("10.1.0.5/32");
        run(&mut socket, |batch| {
            batch.replace_route(&Route::dev(dst, w0)).replace_route(&Route::dev(dst, w1))
        })
        .unwrap();
        assert_eq!(tool("ip -j route show 10.1.0.5")[0]["dev"], "w1");
        let error = run(&mut socket, |batch| batch.add_route(&Route::dev(dst, w0))).unwrap_err();
        assert_eq!(error.to_string(), "add route 10.1.0.5/32 dev w0: EEXIST: File exists");
        run(&mut socket, |batch| batch.append_route(&Route::dev(dst, w0))).unwrap();
        let devs: Vec<_> = tool("ip -j route show 10.1.0.5").iter().map(|r| r["dev"].clone()).collect();
        assert_eq!(devs, ["w1", "w0"]);
        run(&mut socket, |batch| batch.delete_route(&Route::dev(dst, w0))).unwrap();
        assert_eq!(tool("ip -j route show 10.1.0.5")[0]["dev"], "w1", "the link was honoured");
        assert!(
            run(&mut socket, |batch| batch.delete_route(&Route::dev(dst, w0))).unwrap_err().is_not_found()
        );
    });
}

#[test]
#[ignore = "kernel: routes in a network namespace"]
fn all_next_hops_of_a_foreign_route_are_read() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let (w0, w1) = (wire(&mut socket, "w0"), wire(&mut socket, "w1"));
        run(&mut socket, |batch| {
            batch.add_address(&Address::new(w0, net("10.1.0.1/24")));
            batch.add_address(&Address::new(w1, net("10.2.0.1/24")))
        })
        .unwrap();
        tool("ip route add default nexthop via 10.1.0.9 dev w0 nexthop via inet6 fe80::9 dev w1");
        let routes = socket.routes(Family::V4).unwrap();
        let route = routes.iter().find(|route| route.dst.prefix_len() == 0).unwrap();
        let hops: Vec<_> = route.multipath.iter().map(|hop| (hop.oif, hop.gateway)).collect();
        assert_eq!(hops, [(w0, Some(ip("10.1.0.9"))), (w1, Some(ip("fe80::9")))]);
        assert_eq!((route.gateway, route.oif), (None, None));
        let through = RouteFilter { oif: Some(w1), table: Some(Route::MAIN), ..RouteFilter::default() };
        assert!(socket.routes_where(Family::V4, through).unwrap().contains(route));
    });
}

#[test]
#[ignore = "kernel: neighbours in a network namespace"]
fn permanent_neighbours_and_proxies_read_back() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let w0 = super::wire(&mut socket, "w0");
        let gateway =
            Neighbour { protocol: 114, ..Neighbour::permanent(w0, ip("169.254.1.1"), Mac::GATEWAY) };
        let router = Neighbour { router: true, ..Neighbour::permanent(w0, ip("fd00::1"), MAC) };
        let (proxy, proxy6) = (Neighbour::proxy(w0, ip("10.1.0.9")), Neighbour::proxy(w0, ip("fd00::9")));
        run(&mut socket, |batch| {
            batch.add_neighbour(&gateway).add_neighbour(&router);
            batch.add_neighbour(&proxy).add_neighbour(&proxy6)
        })
        .unwrap();
        assert_eq!(socket.neighbours_of(Family::V4, w0).unwrap().as_slice(), std::slice::from_ref(&gateway));
        assert!(socket.neighbours(Family::V6).unwrap().contains(&router));
        let proxies = socket.proxy_neighbours(Family::V4).unwrap();
        assert!(proxies.len() == 1 && proxies[0].address == proxy.address && proxies[0].proxy, "{proxies:?}");
        assert_eq!(socket.proxy_neighbours(Family::V6).unwrap().len(), 1);

        let shown = tool("ip -j neigh show dev w0").remove(0);
        assert_eq!((&shown["dst"], &shown["lladdr"]), (&"169.254.1.1".into(), &"ee:ee:ee:ee:ee:ee".into()));
        assert_eq!((&shown["state"][0], &shown["protocol"]), (&"PERMANENT".into(), &"114".into()));
        assert_eq!(tool("ip -j -6 neigh show dev w0 nud permanent")[0]["router"], serde_json::Value::Null);
        assert_eq!(tool("ip -j neigh show proxy").len(), 2);

        assert!(run(&mut socket, |batch| batch.add_neighbour(&gateway)).unwrap_err().is_exists());
        let moved = Neighbour { mac: Some(MAC), state: NeighbourState::Stale, ..gateway.clone() };
        run(&mut socket, |batch| batch.replace_neighbour(&moved)).unwrap();
        assert_eq!(socket.neighbours_of(Family::V4, w0).unwrap(), [moved]);
        run(&mut socket, |batch| batch.delete_neighbour(&gateway).delete_neighbour(&proxy)).unwrap();
        let error = run(&mut socket, |batch| batch.delete_neighbour(&gateway)).unwrap_err();
        assert!(
            error.is_not_found() && error.operation().starts_with("delete neighbour 169.254.1.1"),
            "{error}"
        );
    });
}

#[test]
#[ignore = "kernel: vxlan forwarding entries in a network namespace"]
fn forwarding_entries_read_back() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let link = LinkAdd { up: true, ..LinkAdd::new(name("vx"), LinkKind::Vxlan(Vxlan::new(4096, 4789))) };
        run(&mut socket, |batch| batch.add_link(&link)).unwrap();
        let vx = socket.link_by_name(&name("vx")).unwrap().index;
        let plain = FdbEntry::remote(vx, MAC, ip("10.0.0.7"));
        let special = FdbEntry {
            port: Some(8472),
            vni: Some(9),
            ..FdbEntry::remote(vx, Mac([2, 0, 0, 0, 0, 2]), ip("10.0.0.8"))
        };
        let flood = |dst| FdbEntry::remote(vx, Mac([0; 6]), ip(dst));
        run(&mut socket, |batch| {
            batch.add_fdb(&plain).add_fdb(&special);
            batch.append_fdb(&flood("10.0.0.7")).append_fdb(&flood("10.0.0.8"))
        })
        .unwrap();
        let read = socket.fdb(vx).unwrap();
        for entry in [&plain, &special, &flood("10.0.0.7"), &flood("10.0.0.8")] {
            assert!(read.contains(entry), "{entry:?} in {read:?}");
        }
        let shown = tool("bridge -j fdb show dev vx");
        assert_eq!(read.len(), shown.len());
        for (entry, shown) in read.iter().zip(&shown) {
            assert_eq!(shown["mac"], entry.mac.to_string());
            assert_eq!(shown["dst"], entry.dst.unwrap().to_string());
            assert_eq!(shown["vni"].as_u64(), entry.vni.map(u64::from));
            assert_eq!(shown["port"].as_u64(), entry.port.map(u64::from));
            assert_eq!((&shown["state"], &shown["flags"][0]), (&"permanent".into(), &"self".into()));
        }
        let moved = FdbEntry::remote(vx, MAC, ip("10.0.0.9"));
        assert!(run(&mut socket, |batch| batch.add_fdb(&plain)).unwrap_err().is_exists());
        run(&mut socket, |batch| batch.replace_fdb(&moved).delete_fdb(&special)).unwrap();
        let read = socket.fdb(vx).unwrap();
        assert!(read.contains(&moved) && !read.contains(&plain) && read.len() == 3, "{read:?}");
        let error = run(&mut socket, |batch| batch.delete_fdb(&special)).unwrap_err();
        assert!(error.is_not_found(), "{error}");
    });
}

#[test]
#[ignore = "kernel: vxlan over IPv6 in a network namespace"]
fn forwarding_entries_can_have_ipv6_endpoints() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let options = Vxlan { local: Some(ip("fd00::1")), ..Vxlan::new(4096, 4789) };
        let link = LinkAdd { up: true, ..LinkAdd::new(name("vx6"), LinkKind::Vxlan(options)) };
        run(&mut socket, |batch| batch.add_link(&link)).unwrap();
        let vx = socket.link_by_name(&name("vx6")).unwrap().index;
        let entry = FdbEntry::remote(vx, MAC, ip("fd00::2"));
        run(&mut socket, |batch| batch.add_fdb(&entry)).unwrap();
        assert_eq!(socket.fdb(vx).unwrap(), [entry]);
        assert_eq!(tool("bridge -j fdb show dev vx6")[0]["dst"], "fd00::2");
    });
}

#[test]
#[ignore = "kernel: rules in a network namespace"]
fn rules_read_back() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        for family in Family::BOTH {
            let (from, to) = match family {
                Family::V4 => (net("10.1.0.0/24"), net("10.2.0.0/16")),
                Family::V6 => (net("fd00:1::/64"), net("fd00:2::/48")),
            };
            let plain = Rule { protocol: 114, from: Some(from), ..Rule::new(family, 99, 1000) };
            let full = Rule {
                to: Some(to),
                fwmark: Some((0x10, 0xf0)),
                iif: Some(name("cali0")),
                oif: Some(name("lo")),
                invert: true,
                ..Rule::new(family, 100, 254)
            };
            run(&mut socket, |batch| batch.add_rule(&plain).add_rule(&full)).unwrap();
            let read = socket.rules(family).unwrap();
            assert!(read.contains(&plain) && read.contains(&full), "{read:?}");
            let flag = if family == Family::V4 { "-4" } else { "-6" };
            let shown = tool(&format!("ip -j {flag} rule show"));
            assert_eq!(shown.len(), read.len());
            let of = |priority| shown.iter().find(|rule| rule["priority"] == priority).unwrap();
            assert_eq!(
                (&of(99)["src"], &of(99)["table"]),
                (&from.network().to_string().into(), &"1000".into())
            );
            assert_eq!((&of(100)["fwmark"], &of(100)["fwmask"]), (&"0x10".into(), &"0xf0".into()));
            assert_eq!(of(100)["iif"], "cali0");
            let error = run(&mut socket, |batch| batch.add_rule(&plain)).unwrap_err();
            assert!(error.is_exists(), "{error}");
            run(&mut socket, |batch| batch.delete_rule(&plain).delete_rule(&full)).unwrap();
            assert!(run(&mut socket, |batch| batch.delete_rule(&plain)).unwrap_err().is_not_found());
        }
    });
}

#[test]
#[ignore = "kernel: routes in a network namespace"]
fn the_route_to_an_address_is_the_kernels_choice() {
    in_new_netns(|| {
        let mut socket = Socket::route().unwrap();
        let w0 = wire(&mut socket, "w0");
        let own = Address::new(w0, net("10.1.0.7/24"));
        let far = Route { oif: Some(w0), ..Route::via(net("198.51.100.0/24"), ip("10.1.0.1")) };
        run(&mut socket, |batch| batch.add_address(&own).add_route(&far)).unwrap();
        let route = socket.route_to(ip("198.51.100.9")).unwrap();
        assert_eq!(
            (route.kind, route.oif, route.gateway),
            (RouteKind::Unicast, Some(w0), Some(ip("10.1.0.1")))
        );
        assert_eq!(route.source, Some(ip("10.1.0.7")));
        let near = socket.route_to(ip("10.1.0.9")).unwrap();
        assert_eq!((near.oif, near.gateway), (Some(w0), None));
        assert_eq!(socket.route_to(ip("10.1.0.7")).unwrap().kind, RouteKind::Local);
        let error = socket.route_to(ip("203.0.113.1")).unwrap_err().to_string();
        assert!(error.starts_with("look up the route to 203.0.113.1: ENETUNREACH"), "{error}");
    });
}
