//! What the guards keep pods from sending, with real packets, and what they let through (policy.md sections 3.3 and 3.6).

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use russet_addr::IfName;
use russet_linux::NetNs;
use russet_policy::{Entry, Guard, Guards, Verdicts};
use russet_testkit::forged::{self, first_is_honest, hex, routed_pod, send_frame, socket};
use russet_testkit::{bound, eventually, frame, in_netns_with_loopback, run, sh};

const DEADLINE: Duration = Duration::from_secs(20);
const PORT: u16 = 7000;

fn name(text: &str) -> IfName {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn sysctl(knob: &str, value: &str) {
    std::fs::write(format!("/proc/sys/net/{knob}"), value).unwrap();
}

/// A pod with 10.9.`number`.2 and fd09:`number`::2.
fn pod(host_end: &str, number: u8) -> String {
    let netns = format!("ns-{host_end}");
    routed_pod(None, host_end, &netns, [&format!("10.9.{number}.2"), &format!("fd09:{number}::2")]);
    netns
}

/// A node that forwards, and whose distribution wants loose reverse path checks: then those of interfaces are loose, too.
fn node(body: impl FnOnce() + Send) {
    in_netns_with_loopback(|| {
        sysctl("ipv4/ip_forward", "1");
        sysctl("ipv6/conf/all/forwarding", "1");
        sysctl("ipv4/conf/all/rp_filter", "2");
        sh("ip link add uplink type veth peer name far");
        sh("ip addr add 192.0.2.1/24 dev uplink");
        sh("ip addr add fd77::1/64 dev uplink nodad");
        sh("ip link set far up");
        sh("ip link set uplink up");
        sh("ip route add default dev uplink");
        sh("ip -6 route add default dev uplink");
        body();
    });
}

fn listener(address: &str, port: u16) -> UdpSocket {
    let socket = bound(|| UdpSocket::bind((ip(address), port)));
    socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    socket
}

fn send_packet(netns: &str, mac: &str, ether_type: &str, packet: &[u8]) {
    send_frame(netns, &format!("{mac}020000000066{ether_type}{}", hex(packet)));
}

/// How many packets a guard has dropped.
fn dropped(guard: Guard) -> u64 {
    forged::dropped(None, "inet russet-policy", guard.comment())
}

fn in_force(wanted: &[&str]) -> Verdicts {
    let mut verdicts = Verdicts::open().unwrap();
    let wanted: Vec<Entry> = wanted.iter().map(|text| Entry::allow(name(text))).collect();
    verdicts.reconcile(&wanted).unwrap();
    verdicts
}

#[test]
#[ignore = "kernel: nf_tables, bridge, veth, root; tool: ip"]
fn a_pod_sends_from_no_address_but_its_own() {
    // policy.md P116
    node(|| {
        let (thief, honest, victim) = (pod("russ1", 1), pod("russ2", 2), pod("russ3", 3));
        let _verdicts = in_force(&["russ1", "russ2", "russ3"]);
        // As the plugin does: else its questions for the gateway are dropped, and none of its packets leaves.
        for gateway in ["169.254.1.1", "fe80::1"] {
            sh(&format!(
                "ip -n {thief} neigh replace {gateway} lladdr ee:ee:ee:ee:ee:ee dev eth0 nud permanent"
            ));
        }
        // kube-proxy's mode ipvs gives the node all addresses of Services.
        sh("ip link add kube-ipvs0 type bridge");
        sh("ip addr add 10.96.0.2/32 dev kube-ipvs0");
        sh("ip addr add fd96::2/128 dev kube-ipvs0 nodad");
        // A neighbour's, the node's, those of Services without and with that mode, and one of the outside.
        let families = [
            ("10.9.3.2", "10.9.2.2", ["10.9.2.2", "192.0.2.1", "10.96.0.1", "10.96.0.2", "198.51.100.7"]),
            ("fd09:3::2", "fd09:2::2", ["fd09:2::2", "fd77::1", "fd96::1", "fd96::2", "2001:db8::7"]),
        ];
        for (to, own, all_stolen) in families {
            for stolen in all_stolen {
                sh(&format!(
                    "ip -n {thief} addr add {stolen} dev eth0 {}",
                    if to.contains(':') { "nodad" } else { "" }
                ));
                let thief = socket(&thief, ip(stolen), PORT);
                let honest = socket(&honest, ip(own), PORT + 1);
                let before = dropped(Guard::Source);
                // Another pod, and the node itself.
                let node = if to.contains(':') { "fd77::1" } else { "192.0.2.1" };
                for receiver in [socket(&victim, ip(to), PORT + 2), listener(node, PORT + 2)] {
                    let target = receiver.local_addr().unwrap();
                    for _ in 0..5 {
                        let attack = || _ = thief.send_to(&[1], target);
                        assert!(first_is_honest(&attack, &honest, &receiver), "{stolen} to {target}");
                    }
                }
                // At least those to the other pod: a pod that has the node's address sends to itself.
                assert!(dropped(Guard::Source) >= before + 5, "{stolen}");
            }
        }
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, ping, python3"]
fn what_pods_must_send_passes_the_guards() {
    node(|| {
        let (first, second) = (pod("russ1", 1), pod("russ2", 2));
        let _verdicts = in_force(&["russ1", "russ2"]);
        for (netns, to) in [(&first, ["10.9.2.2", "fd09:2::2"]), (&second, ["10.9.1.2", "fd77::1"])] {
            for to in to {
                sh(&format!("ip netns exec {netns} ping -n -c 1 -W 5 {to}"));
            }
        }
        // A client of DHCP has no address yet.
        let server = listener("0.0.0.0", 67);
        let discover = frame::udp_packet(ip("0.0.0.0"), ip("255.255.255.255"), 67, &[7]);
        let mut packet = [0; 1];
        eventually(DEADLINE, || {
            send_packet(&first, "ffffffffffff", "0800", &discover);
            server.recv_from(&mut packet).is_ok()
        });
        assert_eq!(packet, [7]);
        // A further address: its node asks for neighbours, for duplicates (from `::`) and reports its groups.
        let inside = |command: &str| sh(&format!("ip -n {first} {command}"));
        inside("neigh flush dev eth0");
        inside("addr add fd09:1::3/64 dev eth0");
        eventually(DEADLINE, || !inside("-6 addr show dev eth0").contains("tentative"));
        sh(&format!("ip netns exec {first} ping -n -c 1 -W 5 fe80::1%eth0"));
        // A second interface of the same pod, whose answers leave where the questions came (a rule by source).
        sh(&format!("ip link add russ7 type veth peer name eth1 netns {first}"));
        sysctl("ipv6/conf/russ7/accept_dad", "0");
        sh("ip addr add fe80::1/64 dev russ7 nodad");
        sh("ip link set russ7 up");
        inside("addr add fd09:7::2/128 dev eth1 nodad");
        inside("link set eth1 up");
        inside("-6 route add default via fe80::1 dev eth1 table 77");
        inside("-6 rule add from fd09:7::2 table 77");
        sh("ip -6 route add fd09:7::2/128 dev russ7");
        let _verdicts = in_force(&["russ1", "russ2", "russ7"]);
        sh("ping -n -c 1 -W 5 fd09:7::2");
        for guard in Guard::ALL {
            assert_eq!(dropped(guard), 0, "{guard:?}");
        }
    });
}

/// A message of neighbour discovery: its type, code and checksum, and what follows.
fn neighbour_discovery(from: &str, to: &str, kind: u8, rest: &[u8]) -> Vec<u8> {
    let octets = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
    let mut message = [&[kind, 0, 0, 0], rest].concat();
    let length = u16::try_from(message.len()).unwrap().to_be_bytes();
    let ends = [octets(from), octets(to)].concat();
    let sum = frame::checksum(&[&ends[..], &[0, 0], &length, &[0, 0, 0, 58], &message].concat());
    message[2..4].copy_from_slice(&sum);
    // The limit of hops says that no router has forwarded it.
    [&[0x60, 0, 0, 0][..], &length, &[58, 255], &ends, &message].concat()
}

/// A router advertisement that offers a default route for half an hour.
fn router_advertisement(from: &str) -> Vec<u8> {
    let lifetime_s = 1800_u16.to_be_bytes();
    neighbour_discovery(from, "ff02::1", 134, &[&[64, 0][..], &lifetime_s, &[0; 8]].concat())
}

/// A redirect that claims to be of the router `from`: `target` is a better next hop for `destination`.
fn redirect(from: &str, to: &str, target: &str, destination: &str) -> Vec<u8> {
    let octets = |text: &str| text.parse::<Ipv6Addr>().unwrap().octets();
    neighbour_discovery(from, to, 137, &[&[0; 4][..], &octets(target), &octets(destination)].concat())
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft, python3"]
fn a_pod_is_no_router_and_no_dhcp_server() {
    // policy.md P116
    node(|| {
        let attacker = pod("russ1", 1);
        // An operator who switched this on for all interfaces.
        sysctl("ipv6/conf/russ1/accept_ra", "2");
        let offered = || sh("ip -6 route show default dev russ1").contains("ra");
        let advertise = || send_packet(&attacker, "333300000001", "86dd", &router_advertisement("fe80::66"));
        eventually(DEADLINE, || {
            advertise();
            offered()
        });
        sh("ip -6 route flush dev russ1 proto ra");
        let _verdicts = in_force(&["russ1"]);
        eventually(DEADLINE, || {
            advertise();
            dropped(Guard::Router) > 0
        });
        assert!(!offered());
        // What the node would make of a redirect depends on its routes; here nothing of it arrives.
        let seen = "add table ip6 seen; add chain ip6 seen input { type filter hook input priority 0; };
            add rule ip6 seen input icmpv6 type nd-redirect counter comment seen";
        run("nft", &[seen]);
        let redirected = || forged::dropped(None, "ip6 seen", "seen");
        let misdirect = || {
            let packet = redirect("fe80::66", "fe80::1", "fe80::66", "2001:db8::7");
            send_packet(&attacker, "eeeeeeeeeeee", "86dd", &packet);
        };
        let before = dropped(Guard::Router);
        eventually(DEADLINE, || {
            misdirect();
            dropped(Guard::Router) > before
        });
        assert_eq!(redirected(), 0);
        run("nft", &["delete table inet russet-policy"]);
        eventually(DEADLINE, || {
            misdirect();
            redirected() > 0
        });
        let _verdicts = in_force(&["russ1"]);
        for (own, node, server, client) in
            [("10.9.1.2", "192.0.2.1", 67, 68), ("fd09:1::2", "fd77::1", 547, 546)]
        {
            let receiver = listener(node, client);
            let (server, honest) = (socket(&attacker, ip(own), server), socket(&attacker, ip(own), PORT));
            let attack = || _ = server.send_to(&[1], (ip(node), client));
            for _ in 0..5 {
                assert!(first_is_honest(&attack, &honest, &receiver), "{own}");
            }
        }
        assert!(dropped(Guard::Dhcp) > 0);
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, python3"]
fn what_listens_on_the_nodes_loopback_hears_no_pod() {
    node(|| {
        let attacker = pod("russ1", 1);
        sysctl("ipv4/conf/russ1/route_localnet", "1");
        let receiver = listener("127.0.0.1", PORT);
        let forged = frame::udp_packet(ip("10.9.1.2"), ip("127.0.0.1"), PORT, &[1]);
        let attack = || send_packet(&attacker, "eeeeeeeeeeee", "0800", &forged);
        eventually(DEADLINE, || {
            attack();
            receiver.recv_from(&mut [0]).is_ok()
        });
        let _verdicts = in_force(&["russ1"]);
        while receiver.recv_from(&mut [0]).is_ok() {}
        let local = listener("127.0.0.1", 0);
        for _ in 0..3 {
            assert!(first_is_honest(&attack, &local, &receiver));
        }
        assert!(dropped(Guard::Loopback) > 0);
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tool: ip"]
fn oracle_65_ends_of_calicos_plugin_send_from_their_own_addresses_and_what_their_annotation_allows() {
    node(|| {
        let (thief, victim) = (pod("cali1", 1), pod("cali2", 2));
        let mut verdicts = in_force(&[]);
        for (stolen, own, to) in
            [("192.0.2.99", "10.9.1.2", "10.9.2.2"), ("fd77::99", "fd09:1::2", "fd09:2::2")]
        {
            sh(&format!(
                "ip -n {thief} addr add {stolen} dev eth0 {}",
                if to.contains(':') { "nodad" } else { "" }
            ));
            let (thief, honest) = (socket(&thief, ip(stolen), PORT), socket(&thief, ip(own), PORT + 1));
            let receiver = socket(&victim, ip(to), PORT + 2);
            let target: SocketAddr = receiver.local_addr().unwrap();
            let steal = || _ = thief.send_to(&[1], target);
            let mut guarded_by = |guards: Guards, expected: bool| {
                verdicts.guard(&Arc::new(guards.clone()));
                verdicts.reconcile(&[]).unwrap();
                assert!(verdicts.reconcile(&[]).unwrap().is_clean());
                while receiver.recv_from(&mut [0]).is_ok() {}
                for _ in 0..3 {
                    assert_eq!(first_is_honest(&steal, &honest, &receiver), expected, "{guards:?}");
                    while receiver.recv_from(&mut [0]).is_ok() {}
                }
            };
            let allowed = |end: &str, net: &str| {
                Some(BTreeMap::from([(
                    name(end),
                    vec![net.parse().unwrap(), format!("{stolen}/31").parse().unwrap()],
                )]))
            };
            let wide = if to.contains(':') { "fd77::/64" } else { "192.0.2.96/28" };
            let other = if to.contains(':') { "fd99::/64" } else { "198.51.100.0/24" };
            guarded_by(Guards { calico: Some(false), ..Guards::default() }, false);
            guarded_by(Guards { calico: Some(true), ..Guards::default() }, true);
            guarded_by(
                Guards { calico: Some(true), sources: allowed("cali1", wide), ..Guards::default() },
                false,
            );
            // Not said: as it is.
            guarded_by(Guards::default(), false);
            guarded_by(
                Guards { calico: Some(true), sources: allowed("cali2", other), ..Guards::default() },
                true,
            );
            verdicts.put_sources(&name("cali1"), &[wide.parse().unwrap()]).unwrap();
            assert!(!first_is_honest(&steal, &honest, &receiver), "put singly");
            verdicts.put_sources(&name("cali1"), &[]).unwrap();
            while receiver.recv_from(&mut [0]).is_ok() {}
            assert!(first_is_honest(&steal, &honest, &receiver), "taken back");
        }
        assert!(verdicts.withdraw().unwrap());
        // Nothing is guarded, so nothing has to be let through.
        verdicts.put_sources(&name("cali1"), &["fd77::/64".parse().unwrap()]).unwrap();
    });
}

#[test]
#[ignore = "kernel: nf_tables, bridge, veth, root; tools: ip, python3, nft"]
fn a_pod_behind_a_bridge_advertises_no_router_and_answers_no_dhcp_to_the_others() {
    node(|| {
        sh("ip link add cni0 type bridge mcast_snooping 0");
        sh("ip link set cni0 up");
        for (number, end) in ["russ1", "russ2"].into_iter().enumerate() {
            let netns = format!("ns-{end}");
            NetNs::create_named(&netns).unwrap();
            sh(&format!("ip link add {end} type veth peer name eth0 netns {netns}"));
            sh(&format!("ip link set {end} master cni0 up"));
            sh(&format!("ip -n {netns} addr add 10.8.0.{}/24 dev eth0", number + 1));
            sh(&format!("ip -n {netns} link set eth0 up"));
        }
        let offered = || sh("ip -n ns-russ2 -6 route show default").contains("ra");
        let advertise = || send_packet("ns-russ1", "333300000001", "86dd", &router_advertisement("fe80::66"));
        eventually(DEADLINE, || {
            advertise();
            offered()
        });
        sh("ip -n ns-russ2 -6 route flush proto ra");
        let mut verdicts = in_force(&[]);
        assert!(verdicts.guard_ports().unwrap());
        assert!(!verdicts.guard_ports().unwrap(), "once");
        for _ in 0..3 {
            advertise();
        }
        let receiver = socket("ns-russ2", ip("10.8.0.2"), 68);
        let (server, honest) =
            (socket("ns-russ1", ip("10.8.0.1"), 67), socket("ns-russ1", ip("10.8.0.1"), PORT));
        let attack = || _ = server.send_to(&[1], (ip("10.8.0.2"), 68));
        for _ in 0..5 {
            assert!(first_is_honest(&attack, &honest, &receiver));
        }
        assert!(!offered(), "what was sent before has arrived, or never will");
        // Others' doing is repaired with the rest.
        for damage in
            ["flush ruleset", "delete table bridge russet-policy", "flush table bridge russet-policy"]
        {
            run("nft", &[damage]);
            assert!(verdicts.reconcile(&[]).unwrap().structure.is_some(), "{damage}");
            assert!(verdicts.reconcile(&[]).unwrap().is_clean(), "{damage}");
            assert!(run("nft", &["list table bridge russet-policy"]).contains("a pod is no router"));
        }
        assert!(verdicts.withdraw().unwrap());
        assert!(!run("nft", &["list ruleset"]).contains("russet"));
    });
}
