//! What pods behind a bridge send that is not theirs, with real frames, and what they must be able to send.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use russet_addr::{IfName, Mac};
use russet_linux::NetNs;
use russet_policy::{Guard, Guards, PortGuard, PortSources, Verdicts};
use russet_testkit::forged::{self, hex, send_frame, socket};
use russet_testkit::{eventually, frame, in_netns_with_loopback, run, sh};

const DEADLINE: Duration = Duration::from_secs(20);
const PORT: u16 = 7000;
const BROADCAST: &str = "ffffffffffff";
const OWN_MAC: &str = "020000000001";
const OTHER_MAC: &str = "020000000066";

fn name(text: &str) -> IfName {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A bridge with two pods, `russ1` and `russ2`, with the addresses 10.8.0.N and fd08::N, and MACs that end in N.
fn bridged(body: impl FnOnce() + Send) {
    in_netns_with_loopback(|| {
        sh("ip link add cni0 type bridge mcast_snooping 0");
        std::fs::write("/proc/sys/net/ipv6/conf/cni0/accept_dad", "0").unwrap();
        sh("ip addr add 10.8.0.254/24 dev cni0");
        sh("ip addr add fd08::fe/64 dev cni0 nodad");
        sh("ip link set cni0 up");
        for number in [1, 2] {
            let (end, netns) = (format!("russ{number}"), format!("ns-russ{number}"));
            NetNs::create_named(&netns).unwrap();
            let peer = format!("peer name eth0 address 02:00:00:00:00:0{number} netns {netns}");
            sh(&format!("ip link add {end} type veth {peer}"));
            sh(&format!("ip link set {end} master cni0 up"));
            let inside = |command: &str| sh(&format!("ip -n {netns} {command}"));
            inside(&format!("addr add 10.8.0.{number}/24 dev eth0"));
            inside(&format!("addr add fd08::{number}/64 dev eth0 nodad"));
            inside("link set eth0 up");
        }
        body();
    });
}

fn guard_of(number: u8, prefixes: &[&str]) -> PortGuard {
    let addresses = [ip(&format!("10.8.0.{number}")), ip(&format!("fd08::{number}"))].into();
    let prefixes = prefixes.iter().map(|text| text.parse().unwrap()).collect();
    PortGuard { mac: Mac([2, 0, 0, 0, 0, number]), sources: Some(PortSources { addresses, prefixes }) }
}

/// How many frames a guard has dropped.
fn dropped(guard: Guard) -> u64 {
    forged::dropped(None, "bridge russet-policy", guard.comment())
}

fn all_dropped() -> u64 {
    [Guard::Source, Guard::Mac].into_iter().map(dropped).sum()
}

fn send_hex(frame: &str) {
    send_frame("ns-russ1", frame);
}

fn udp(from: &str, to: &str) -> String {
    hex(&frame::udp_packet(ip(from), ip(to), PORT, &[1]))
}

fn hex_of(address: &str) -> String {
    match ip(address) {
        IpAddr::V4(address) => hex(&address.octets()),
        IpAddr::V6(address) => hex(&address.octets()),
    }
}

/// An Ethernet frame of an ARP reply to everybody.
fn arp(ether_source: &str, sender_mac: &str, sender: &str) -> String {
    let target = hex_of("10.8.0.2");
    format!("{BROADCAST}{ether_source}08060001080006040002{sender_mac}{}{BROADCAST}{target}", hex_of(sender))
}

/// An Ethernet frame with a neighbour solicitation (135) or advertisement (136) to all nodes. Its checksum is wrong, which no guard looks at.
fn neighbour(kind: u8, from: &str, target: &str) -> String {
    let header = format!("60000000{:04x}3aff{}{}", 24, hex_of(from), hex_of("ff02::1"));
    format!("333300000001{OWN_MAC}86dd{header}{kind:02x}00000020000000{}", hex_of(target))
}

#[test]
#[ignore = "kernel: nf_tables, bridge, veth, root; tools: ip, python3, nft"]
fn a_pod_behind_a_bridge_sends_from_no_mac_and_no_address_but_its_own() {
    bridged(|| {
        // Without the guard a forged packet reaches the neighbour, and an ARP reply takes the gateway's address.
        let forged = format!("020000000002{OWN_MAC}0800{}", udp("10.8.0.77", "10.8.0.2"));
        let victim = socket("ns-russ2", ip("10.8.0.2"), PORT);
        eventually(DEADLINE, || {
            send_hex(&forged);
            victim.recv_from(&mut [0]).is_ok()
        });
        sh("ip netns exec ns-russ2 ping -n -c 1 -W 5 10.8.0.254");
        let poisoned = || sh("ip -n ns-russ2 neigh show 10.8.0.254").contains("02:00:00:00:00:01");
        let poison = arp(OWN_MAC, OWN_MAC, "10.8.0.254");
        eventually(DEADLINE, || {
            send_hex(&poison);
            poisoned()
        });
        let mut verdicts = Verdicts::open().unwrap();
        assert!(verdicts.put_port(&name("russ1"), &guard_of(1, &[])).unwrap());
        assert!(verdicts.put_port(&name("russ2"), &guard_of(2, &[])).unwrap());
        while victim.recv_from(&mut [0]).is_ok() {}
        sh("ip -n ns-russ2 neigh flush dev eth0");
        sh("ip netns exec ns-russ2 ping -n -c 1 -W 5 10.8.0.254");
        let own = |ether_type: &str, rest: &str| format!("{BROADCAST}{OWN_MAC}{ether_type}{rest}");
        let tagged = |tags: &str| own(tags, &udp("10.8.0.77", "10.8.0.2"));
        let attacks = [
            ("an IPv4 source", Guard::Source, forged),
            ("an IPv6 source", Guard::Source, own("86dd", &udp("fd08::2", "fd08::fe"))),
            ("a link-local source", Guard::Source, own("86dd", &udp("fe80::2", "fd08::fe"))),
            ("a MAC", Guard::Mac, format!("{BROADCAST}{OTHER_MAC}0800{}", udp("10.8.0.1", "10.8.0.2"))),
            ("a MAC of IPv6", Guard::Mac, format!("{BROADCAST}{OTHER_MAC}86dd{}", udp("fd08::1", "fd08::2"))),
            ("a MAC of another protocol", Guard::Mac, format!("{BROADCAST}{OTHER_MAC}88b5{:092}", 0)),
            ("an address in ARP", Guard::Source, poison),
            ("a MAC in ARP", Guard::Mac, arp(OWN_MAC, OTHER_MAC, "10.8.0.1")),
            ("a MAC of ARP", Guard::Mac, arp(OTHER_MAC, OWN_MAC, "10.8.0.1")),
            ("an advertised neighbour", Guard::Source, neighbour(136, "fd08::1", "fd08::fe")),
            ("another's duplicate", Guard::Source, neighbour(135, "::", "fd08::2")),
            ("another's solicitation", Guard::Source, neighbour(135, "fd08::2", "fd08::fe")),
            ("a source behind a tag", Guard::Source, tagged("810000000800")),
            ("a source behind two tags", Guard::Source, tagged("81000000810000000800")),
        ];
        for (what, guard, frame) in attacks {
            let before = dropped(guard);
            send_hex(&frame);
            eventually(DEADLINE, || dropped(guard) > before);
            assert_eq!(dropped(guard), before + 1, "{what}");
        }
        assert!(!poisoned());
        assert!(victim.recv_from(&mut [0]).is_err());
    });
}

#[test]
#[ignore = "kernel: nf_tables, bridge, veth, root; tools: ip, ping, python3, nft"]
fn what_pods_behind_a_bridge_must_send_passes() {
    bridged(|| {
        let mut verdicts = Verdicts::open().unwrap();
        let allowed = ["192.0.2.0/24", "2001:db8::/64"];
        verdicts.put_port(&name("russ1"), &guard_of(1, &allowed)).unwrap();
        verdicts.put_port(&name("russ2"), &guard_of(2, &[])).unwrap();
        for to in ["10.8.0.1", "fd08::1", "fe80::ff:fe00:1%eth0"] {
            sh(&format!("ip netns exec ns-russ2 ping -n -c 1 -W 5 {to}"));
        }
        for to in ["10.8.0.254", "fd08::fe"] {
            sh(&format!("ip netns exec ns-russ1 ping -n -c 1 -W 5 {to}"));
        }
        for from in ["10.8.0.1", "fd08::1"] {
            // The gateway asks for the pod.
            sh("ip neigh flush dev cni0");
            sh(&format!("ping -n -c 1 -W 5 {from}"));
        }
        // The pod's own address once more, with duplicate address detection.
        let inside = |command: &str| sh(&format!("ip -n ns-russ1 {command}"));
        inside("addr del fd08::1/64 dev eth0");
        inside("addr add fd08::1/64 dev eth0");
        eventually(DEADLINE, || !inside("-6 addr show dev eth0").contains("tentative"));
        assert!(!inside("-6 addr show dev eth0").contains("dadfailed"));
        let own = |ether_type: &str, rest: &str| format!("{BROADCAST}{OWN_MAC}{ether_type}{rest}");
        // Gratuitous ARP, a probe for duplicates, a client of DHCP, and what the pod was allowed besides.
        send_hex(&arp(OWN_MAC, OWN_MAC, "10.8.0.1"));
        send_hex(&arp(OWN_MAC, OWN_MAC, "0.0.0.0"));
        send_hex(&arp(OWN_MAC, OWN_MAC, "192.0.2.9"));
        send_hex(&neighbour(136, "2001:db8::9", "2001:db8::9"));
        send_hex(&own("0800", &udp("0.0.0.0", "255.255.255.255")));
        send_hex(&own("86dd", &udp("2001:db8::9", "fd08::2")));
        let receiver = socket("ns-russ2", ip("10.8.0.2"), PORT);
        let of_allowed = format!("020000000002{OWN_MAC}0800{}", udp("192.0.2.9", "10.8.0.2"));
        eventually(DEADLINE, || {
            send_hex(&of_allowed);
            receiver.recv_from(&mut [0]).is_ok()
        });
        assert_eq!(all_dropped(), 0);
    });
}

#[test]
#[ignore = "kernel: nf_tables, bridge, veth, root; tools: ip, python3, nft"]
fn a_port_may_be_bound_to_its_mac_alone_and_others_are_free() {
    bridged(|| {
        let mut verdicts = Verdicts::open().unwrap();
        let receiver = socket("ns-russ2", ip("10.8.0.2"), PORT);
        let arrives = |mac: &str| {
            let frame = format!("020000000002{mac}0800{}", udp("10.8.0.77", "10.8.0.2"));
            eventually(DEADLINE, || {
                send_hex(&frame);
                receiver.recv_from(&mut [0]).is_ok()
            });
        };
        verdicts.put_port(&name("russ1"), &PortGuard { sources: None, ..guard_of(1, &[]) }).unwrap();
        arrives(OWN_MAC);
        assert_eq!(all_dropped(), 0);
        send_hex(&format!("020000000002{OTHER_MAC}0800{}", udp("10.8.0.77", "10.8.0.2")));
        eventually(DEADLINE, || dropped(Guard::Mac) == 1);
        // Another guard replaces it, and without one the port is as free as it was.
        verdicts.put_port(&name("russ1"), &guard_of(1, &[])).unwrap();
        send_hex(&format!("020000000002{OWN_MAC}0800{}", udp("10.8.0.77", "10.8.0.2")));
        eventually(DEADLINE, || dropped(Guard::Source) == 1);
        assert!(verdicts.remove_port(&name("russ1")).unwrap());
        assert!(!verdicts.remove_port(&name("russ1")).unwrap());
        arrives(OTHER_MAC);
    });
}

#[test]
#[ignore = "kernel: nf_tables, root; tool: nft"]
fn ports_are_guarded_again_by_a_process_that_knows_them_and_left_alone_by_others() {
    in_netns_with_loopback(|| {
        let known = BTreeMap::from([
            (name("russ1"), guard_of(1, &["192.0.2.0/25"])),
            (name("russ2"), PortGuard { sources: None, ..guard_of(2, &[]) }),
        ]);
        let mut agent = Verdicts::open().unwrap();
        agent.guard(&Arc::new(Guards { ports: Some(known.clone()), ..Guards::default() }));
        assert!(agent.guard_ports().unwrap());
        let listing = || run("nft", &["-s", "list", "table", "bridge", "russet-policy"]);
        let whole = listing();
        let expected = [
            r#""russ1" : goto own-source"#,
            r#""russ2" : goto own-mac"#,
            r#""russ1" . 02:00:00:00:00:01 . 10.8.0.1"#,
            r#""russ1" . 02:00:00:00:00:01 . fe80::ff:fe00:1"#,
            r#""russ1" . 192.0.2.0/25"#,
        ];
        for element in expected {
            assert!(whole.contains(element), "{element}: {whole}");
        }
        let mut plugin = Verdicts::open().unwrap();
        for damage in [
            "flush ruleset",
            "delete table bridge russet-policy",
            "flush table bridge russet-policy",
            "flush map bridge russet-policy ports",
            "delete element bridge russet-policy macs { \"russ2\" . 02:00:00:00:00:02 }",
        ] {
            let mut is_guarded = || plugin.is_port_guarded(&name("russ2"), &known[&name("russ2")]).unwrap();
            assert_eq!(is_guarded(), Some(true));
            run("nft", &[damage]);
            assert_eq!(is_guarded(), Some(false), "{damage}");
            assert!(agent.reconcile(&[]).unwrap().structure.is_some(), "{damage}");
            assert!(agent.reconcile(&[]).unwrap().is_clean(), "{damage}");
            assert!(!plugin.guard_ports().unwrap(), "{damage}");
            assert_eq!(listing(), whole, "{damage}");
        }
        // What only the agent knows survives a plugin that repairs the rules.
        run("nft", &["flush table bridge russet-policy"]);
        assert!(plugin.guard_ports().unwrap());
        assert!(plugin.put_port(&name("russ3"), &guard_of(3, &[])).unwrap());
        agent.guard_ports().unwrap();
        assert!(listing().contains(r#""russ3" . 02:00:00:00:00:03 . 10.8.0.3"#), "another process knows it");
        assert!(plugin.remove_port(&name("russ3")).unwrap());
        assert_eq!(listing(), whole);
        assert!(agent.withdraw().unwrap() || !run("nft", &["list ruleset"]).contains("russet"));
    });
}
