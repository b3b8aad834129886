//! Which connections pass, and what changes do to established ones.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use russet_addr::IpNet;
use russet_policy::{Entry, Policies, PolicySettings, Verdicts};
use russet_testkit::forged::dropped;
use russet_testkit::{eventually, run, sh};
use russet_verdict::ir::Direction::{Egress, Ingress};
use russet_verdict::ir::Protocol;
use russet_verdict::table::{Delta, Identity, Part, Word};
use rustix::net::{RecvFlags, SendFlags, ipproto};

use crate::truth::packets::{Mark, behind_header};
use crate::world::*;

const TABLE: &str = "inet russet-decisions";

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn only_what_is_allowed_reaches_an_isolated_pod() {
    on_a_node(|| {
        let mut policies = open();
        assert_eq!(policies.epoch(), None);
        let delta = merged(
            isolated(Ingress, "10.9.1.2"),
            allowing([
                key(Ingress, "10.9.1.2", B, tcp(80)),
                key(Ingress, "10.9.1.2", B, Part::Range(Protocol::TCP, 90, 99)),
            ]),
        );
        apply(&mut policies, &delta);
        let servers: Vec<_> = [80, 81, 90, 99].map(|port| listen(Some("a"), "10.9.1.2", port)).into();
        for (port, expected) in [(80, true), (81, false), (90, true), (99, true)] {
            connect(Some("b"), "10.9.1.2", port, expected);
        }
        connect(Some("c"), "10.9.1.2", 80, false);
        assert!(dropped(None, TABLE, "no policy allows it, in") > 0);
        // The node reaches its own pods, and pods without policies each other; the other family has no policy.
        connect(None, "10.9.1.2", 81, true);
        let other = listen(Some("c"), "10.9.3.2", 80);
        connected(Some("b"), "10.9.3.2", &other);
        assert!(pings("c", "fd09:1::2") && !pings("c", "10.9.1.2"));
        // What the isolated pod begins is answered.
        let (client, server) = connected(Some("a"), "10.9.3.2", &other);
        assert!(carries(&client, &server, true) && carries(&server, &client, true));
        assert!(pings("a", "10.9.3.2"));
        // A damaged table opens nothing.
        run("nft", &["flush map inet russet-decisions words-in"]);
        connect(Some("c"), "10.9.1.2", 80, false);
        drop(servers);
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn the_narrowest_decision_counts_and_the_rest_falls_to_wider_ones() {
    on_a_node(|| {
        let mut policies = open();
        let local = "10.9.1.2";
        let mut delta = merged(
            isolated(Ingress, local),
            allowing([
                key(Ingress, local, B, Part::All),
                key(Ingress, local, C, Part::Protocol(Protocol::ICMP)),
                key(Ingress, local, 20, Part::All),
            ]),
        );
        let deny = [tcp(81), Part::Range(Protocol::TCP, 90, 99)].map(|part| key(Ingress, local, B, part));
        delta.decisions.extend(deny.map(|key| (key, Some(Word::DENY))));
        delta.decisions.insert(key(Ingress, local, C, Part::All), Some(Word::DENY));
        // An echo request is type 8 with code 0.
        delta.decisions.insert(key(Ingress, local, B, Part::Port(Protocol::ICMP, 8 << 8)), Some(Word::DENY));
        // A prefix beside the pods, and the next one.
        for (net, number) in [("198.51.100.0/25", 20), ("198.51.100.128/25", 21)] {
            delta.identities.insert(net.parse().unwrap(), Identity::new(number));
        }
        apply(&mut policies, &delta);
        let servers: Vec<_> = [80, 81, 95].map(|port| listen(Some("a"), local, port)).into();
        for (from, port, expected) in [("b", 80, true), ("b", 81, false), ("b", 95, false), ("c", 80, false)]
        {
            connect(Some(from), local, port, expected);
        }
        assert!(!pings("b", local) && pings("c", local));
        for (address, expected) in [("198.51.100.7", true), ("198.51.100.200", false), ("203.0.113.7", false)]
        {
            sh(&format!("ip -n c addr add {address}/32 dev eth0"));
            sh(&format!("ip route add {address}/32 dev russc"));
            sh(&format!("ip -n c route replace 10.9.1.2/32 via 169.254.1.1 src {address}"));
            connect(Some("c"), local, 80, expected);
        }
        // The identity of one address is more than that of the prefix around it.
        let mut moved = Delta::default();
        moved.identities.insert(IpNet::from(ip("198.51.100.200")), Identity::new(20));
        assert_eq!(apply(&mut policies, &moved).elements, 1);
        sh("ip -n c route replace 10.9.1.2/32 via 169.254.1.1 src 198.51.100.200");
        connect(Some("c"), local, 80, true);
        drop(servers);
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn a_pods_own_packets_are_judged_also_those_to_its_node() {
    on_a_node(|| {
        let mut policies = open();
        let mut delta = merged(
            isolated(Egress, "10.9.1.2"),
            allowing([key(Egress, "10.9.1.2", B, tcp(80)), key(Egress, "10.9.1.2", 30, tcp(80))]),
        );
        delta.identities.insert("192.0.2.1/32".parse().unwrap(), Identity::new(30));
        apply(&mut policies, &delta);
        let servers = [listen(Some("b"), "10.9.2.2", 80), listen(Some("c"), "10.9.3.2", 80)];
        let node = [listen(None, "192.0.2.1", 80), listen(None, "192.0.2.1", 81)];
        for (address, port, expected) in [
            ("10.9.2.2", 80, true),
            ("10.9.3.2", 80, false),
            ("192.0.2.1", 80, true),
            ("192.0.2.1", 81, false),
        ] {
            connect(Some("a"), address, port, expected);
        }
        let own = listen(Some("a"), "10.9.1.2", 80);
        let (client, server) = connected(Some("c"), "10.9.1.2", &own);
        assert!(carries(&client, &server, true) && carries(&server, &client, true));
        let (client, server) = connected(None, "10.9.1.2", &own);
        assert!(carries(&client, &server, true) && carries(&server, &client, true));
        drop((servers, node));
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn a_pod_is_judged_behind_the_translation_of_addresses() {
    on_a_node(|| {
        service();
        let mut policies = open();
        apply(&mut policies, &isolated(Ingress, "10.9.1.2"));
        let server = listen(Some("a"), "10.9.1.2", 8080);
        connect(Some("b"), "10.96.0.1", 80, false);
        apply(&mut policies, &allowing([key(Ingress, "10.9.1.2", B, tcp(8080))]));
        let (client, accepted) = connected_to_service("b", &server);
        assert!(carries(&client, &accepted, true) && carries(&accepted, &client, true));
        connect(Some("c"), "10.96.0.1", 80, false);
    });
}

/// Port 80 of 10.96.0.1 is port 8080 of the first pod, which sees the node as its client.
pub fn service() {
    run(
        "nft",
        &["add table ip kube; add chain ip kube pre { type nat hook prerouting priority -100; };
          add chain ip kube post { type nat hook postrouting priority 100; };
          add rule ip kube pre ip daddr 10.96.0.1 tcp dport 80 dnat to 10.9.1.2:8080;
          add rule ip kube post ct status dnat masquerade"],
    );
}

fn connected_to_service(
    netns: &str,
    server: &std::net::TcpListener,
) -> (std::net::TcpStream, std::net::TcpStream) {
    let client = connect(Some(netns), "10.96.0.1", 80, true).unwrap();
    (client, server.accept().unwrap().0)
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn a_change_that_forbids_cuts_connections_both_ways_and_its_twin_loses_nothing() {
    // policy.md P109 and P111
    on_a_node(|| {
        service();
        let mut policies = open();
        let rules = [B, C].map(|peer| key(Ingress, "10.9.1.2", peer, tcp(8080)));
        apply(&mut policies, &merged(isolated(Ingress, "10.9.1.2"), allowing(rules)));
        let server = listen(Some("a"), "10.9.1.2", 8080);
        let (client, accepted) = connected_to_service("b", &server);
        let (twin, twin_accepted) = connected_to_service("c", &server);
        assert!(carries(&client, &accepted, true) && carries(&twin, &twin_accepted, true));
        // Loosening touches no connection.
        let epoch = policies.epoch();
        apply(&mut policies, &allowing([key(Ingress, "10.9.1.2", B, tcp(81))]));
        assert_eq!(policies.epoch(), epoch);
        let report = apply(&mut policies, &forbidding([rules[0]]));
        assert!(report.advanced);
        assert!(!carries(&client, &accepted, false), "the client's packet arrived");
        assert!(!carries(&accepted, &client, false), "the server's packet arrived");
        let sent_again =
            || counter(&run("ip", &["netns", "exec", "c", "cat", "/proc/net/snmp"]), "RetransSegs");
        let before = sent_again();
        for _ in 0..20 {
            assert!(carries(&twin, &twin_accepted, true) && carries(&twin_accepted, &twin, true));
        }
        assert_eq!(sent_again(), before, "a packet of the twin was lost");
        connect(Some("b"), "10.96.0.1", 80, false);
        // The policy is restored: the same connection goes on with its next retransmission.
        apply(&mut policies, &allowing([rules[0]]));
        assert!(carries(&client, &accepted, true) && carries(&accepted, &client, true));
    });
}

/// A counter of `/proc/net/snmp`: a line of names above a line of numbers.
fn counter(snmp: &str, name: &str) -> u64 {
    let mut lines = snmp.lines();
    while let (Some(names), Some(numbers)) = (lines.next(), lines.next()) {
        if let Some(at) = names.split(' ').position(|it| it == name) {
            return numbers.split(' ').nth(at).unwrap().parse().unwrap();
        }
    }
    panic!("no counter {name}");
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn a_reply_is_judged_by_the_decision_for_its_request_at_both_ends() {
    on_a_node(|| {
        let mut policies = open();
        let (client_rule, server_rule) =
            (key(Egress, "10.9.2.2", A, tcp(8080)), key(Ingress, "10.9.1.2", B, tcp(8080)));
        let both = merged(isolated(Egress, "10.9.2.2"), isolated(Ingress, "10.9.1.2"));
        apply(&mut policies, &merged(both, allowing([client_rule, server_rule])));
        let server = listen(Some("a"), "10.9.1.2", 8080);
        for rule in [client_rule, server_rule] {
            let (client, accepted) = connected(Some("b"), "10.9.1.2", &server);
            assert!(carries(&client, &accepted, true));
            apply(&mut policies, &forbidding([rule]));
            // The first packet after the change is a reply.
            assert!(!carries(&accepted, &client, false), "{rule:?}");
            apply(&mut policies, &allowing([rule]));
            assert!(carries(&accepted, &client, true), "{rule:?}");
        }
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, raw sockets, root; tools: ip, nft, ping"]
fn flows_of_udp_sctp_and_icmp_are_cut_at_their_next_request() {
    // policy.md P112
    on_a_node(|| {
        let mut policies = open();
        let rules = [Protocol::UDP, Protocol::SCTP, Protocol::ICMP]
            .map(|protocol| key(Ingress, "10.9.1.2", B, Part::Protocol(protocol)));
        apply(&mut policies, &merged(isolated(Ingress, "10.9.1.2"), allowing(rules)));
        let (server, client) = (udp(Some("a"), "10.9.1.2", 53), udp(Some("b"), "10.9.2.2", 5353));
        let other = udp(Some("c"), "10.9.3.2", 5353);
        assert!(sends(&client, &server) && sends(&server, &client) && !sends(&other, &server));
        assert!(pings("b", "10.9.1.2"));
        let sctp = [(Some("b"), "10.9.2.2"), (None, "192.0.2.1"), (Some("a"), "10.9.1.2")];
        let sctp = sctp.map(|(netns, address)| inside(netns, || raw(ip(address), ipproto::SCTP)));
        assert!(begins(&sctp, 1) && begins(&sctp, 2));
        apply(&mut policies, &forbidding(rules));
        assert!(!sends(&client, &server) && !sends(&server, &client) && !pings("b", "10.9.1.2"));
        assert!(!begins(&sctp, 3));
        apply(&mut policies, &allowing(rules));
        assert!(begins(&sctp, 4));
    });
}

/// Sends an INIT of SCTP of the pod `b` to the pod `a`, always with the same ports; whether it arrives. The node's own
/// one behind it passes always, and overtakes none.
fn begins([pod, node, server]: &[OwnedFd; 3], round: u32) -> bool {
    let to = SocketAddr::new(ip("10.9.1.2"), 0);
    let marks = [0, 1].map(|index| Mark { round, index });
    for (socket, mark) in [pod, node].into_iter().zip(marks) {
        rustix::net::sendto(socket, &mark.sctp(80), SendFlags::empty(), &to).unwrap();
    }
    let mut arrived = false;
    eventually(ARRIVES, || {
        let mut packet = [0; 256];
        let Ok((_, bytes)) = rustix::net::recv(server, &mut packet[..], RecvFlags::empty()) else {
            return false;
        };
        let found = behind_header(&packet[..bytes]).and_then(|it| Mark::of_raw(Protocol::SCTP, it));
        arrived |= found == Some(marks[0]);
        found == Some(marks[1])
    });
    arrived
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn where_connections_are_kept_a_change_ends_none_and_denies_new_ones() {
    // policy.md P110
    on_a_node(|| {
        service();
        let settings = PolicySettings { rechecks: false, ..PolicySettings::default() };
        let mut policies = Policies::open(settings).unwrap();
        let rule = key(Ingress, "10.9.1.2", B, tcp(8080));
        apply(&mut policies, &merged(isolated(Ingress, "10.9.1.2"), allowing([rule])));
        let server = listen(Some("a"), "10.9.1.2", 8080);
        let (client, accepted) = connected_to_service("b", &server);
        assert!(!apply(&mut policies, &forbidding([rule])).advanced);
        for _ in 0..3 {
            assert!(carries(&client, &accepted, true) && carries(&accepted, &client, true));
        }
        connect(Some("b"), "10.96.0.1", 80, false);
        connect(Some("b"), "10.9.1.2", 8080, false);
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft, conntrack"]
fn a_denied_packet_leaves_no_connection() {
    // policy.md P130
    on_a_node(|| {
        let mut policies = open();
        apply(&mut policies, &isolated(Ingress, "10.9.1.2"));
        let (server, other) = (udp(Some("a"), "10.9.1.2", 53), udp(Some("c"), "10.9.3.2", 5353));
        assert!(!sends(&other, &server));
        assert_eq!(run("conntrack", &["-L", "-s", "10.9.3.2"]), "");
        // Nor is a packet the other way round an answer to a denied one.
        apply(&mut policies, &isolated(Egress, "10.9.1.2"));
        assert!(!sends(&server, &other) && !sends(&other, &server));
        assert_eq!(run("conntrack", &["-L"]), "");
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft, conntrack"]
fn other_bits_of_a_connections_mark_stay() {
    // policy.md P114
    on_a_node(|| {
        let mark = "add table ip other; add chain ip other c { type filter hook prerouting priority -150; };
            add rule ip other c ct state new ct mark set 0x1000539";
        run("nft", &[mark]);
        let mut policies = open();
        let rule = key(Ingress, "10.9.1.2", B, Part::All);
        apply(&mut policies, &merged(isolated(Ingress, "10.9.1.2"), allowing([rule])));
        assert!(pings("b", "10.9.1.2"));
        let listed = run("conntrack", &["-L", "-s", "10.9.2.2"]);
        let marked = (1 << 24) | (u32::from(policies.epoch().unwrap().number()) << 16) | 0x539;
        assert!(listed.contains(&format!("mark={marked} ")), "{listed}");
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft, ping"]
fn neighbour_discovery_passes_and_echo_of_ipv6_is_judged() {
    // policy.md P117
    on_a_node(|| {
        let mut policies = open();
        let rule = key(Ingress, "fd09:1::2", B, tcp(80));
        let mut delta = merged(isolated(Ingress, "fd09:1::2"), isolated(Egress, "fd09:1::2"));
        delta = merged(delta, allowing([rule]));
        apply(&mut policies, &delta);
        let server = listen(Some("a"), "fd09:1::2", 80);
        let (client, accepted) = connected(Some("b"), "fd09:1::2", &server);
        for _ in 0..2 {
            sh("ip -6 neigh flush dev russa");
            sh("ip -n a -6 neigh flush dev eth0");
            assert!(carries(&client, &accepted, true) && carries(&accepted, &client, true));
        }
        assert!(!pings("b", "fd09:1::2") && !pings("a", "fd09:2::2"));
        connect(Some("c"), "fd09:1::2", 80, false);
        // The node's link-local address reaches its pods, too.
        connect(None, "fd09:1::2", 80, true);
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft, ping"]
fn the_first_packet_of_a_connection_has_the_priority_of_later_ones() {
    // policy.md P115
    on_a_node(|| {
        run(
            "nft",
            &["add table ip seen; add set ip seen pairs { type dscp . classid; flags dynamic; };
              add chain ip seen c { type filter hook postrouting priority 200; };
              add rule ip seen c ip daddr 10.9.1.2 add @pairs { ip dscp . meta priority }"],
        );
        let mut policies = open();
        let rule = key(Ingress, "10.9.1.2", B, Part::All);
        apply(&mut policies, &merged(isolated(Ingress, "10.9.1.2"), allowing([rule])));
        for tos in ["0", "8", "16", "24", "184"] {
            let ping = ["netns", "exec", "b", "ping", "-n", "-c", "2", "-i", "0.01", "-Q", tos, "10.9.1.2"];
            run("ip", &ping);
        }
        let listing = russet_testkit::nft_json(&["list", "set", "ip", "seen", "pairs"]);
        let elements =
            listing["nftables"].as_array().unwrap().iter().find_map(|it| it["set"]["elem"].as_array());
        // One for each type of service: 184 is expedited forwarding.
        assert_eq!(elements.unwrap().len(), 5, "{listing}");
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn a_new_pod_is_denied_until_it_is_decided_and_both_tables_have_to_agree() {
    on_a_node(|| {
        let mut policies = open();
        let server = listen(Some("a"), "10.9.1.2", 80);
        let held = [ip("10.9.1.2"), ip("fd09:1::2")].into();
        let now = std::time::Instant::now();
        policies.hold(&held, now).unwrap();
        connect(Some("b"), "10.9.1.2", 80, false);
        connect(None, "10.9.1.2", 80, true);
        assert!(!pings("a", "10.9.2.2") && !pings("a", "fd09:2::2"));
        // Nothing selects it: it is open.
        policies.apply(&Delta::default(), &held, now).unwrap();
        assert!(policies.current().held.is_empty());
        connect(Some("b"), "10.9.1.2", 80, true);
        // An interface without a verdict stays closed whatever is decided.
        let mut verdicts = Verdicts::open().unwrap();
        verdicts.reconcile(&[Entry::allow("russb".parse().unwrap())]).unwrap();
        connect(Some("b"), "10.9.1.2", 80, false);
        verdicts.put(&Entry::allow("russa".parse().unwrap())).unwrap();
        connect(Some("b"), "10.9.1.2", 80, true);
        drop(server);
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn an_open_pod_is_judged_only_while_something_is_decided_for_it() {
    on_a_node(|| {
        let mut policies = open();
        let open = [Ingress, Egress].map(|direction| ((direction, ip("10.9.1.2")), Some(Word::ALLOW)));
        let mut delta = isolated(Ingress, "10.9.2.2");
        delta.defaults.extend(open);
        apply(&mut policies, &delta);
        let judged = || {
            let listing = russet_testkit::nft_json(&["list", "set", "inet", "russet-decisions", "pods4"]);
            listing["nftables"][1]["set"]["elem"].to_string()
        };
        assert_eq!(judged(), r#"["10.9.2.2"]"#);
        let server = listen(Some("a"), "10.9.1.2", 80);
        let denied = key(Ingress, "10.9.1.2", C, Part::All);
        let decisions = [(denied, Some(Word::DENY))].into();
        apply(&mut policies, &Delta { decisions, tightens: true, ..Delta::default() });
        connect(Some("c"), "10.9.1.2", 80, false);
        connect(Some("b"), "10.9.1.2", 80, true);
        let mut undone = forbidding([denied]);
        undone.decisions.insert(key(Ingress, "10.9.1.2", C, tcp(80)), None);
        apply(&mut policies, &undone);
        assert_eq!(judged(), r#"["10.9.2.2"]"#);
        connect(Some("c"), "10.9.1.2", 80, true);
        // It is deleted, and so is the isolated one.
        let mut gone = Delta { tightens: true, ..Delta::default() };
        gone.defaults = policies.current().defaults.keys().map(|key| (*key, None)).collect();
        apply(&mut policies, &gone);
        assert_eq!(judged(), "null");
        drop(server);
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn nothing_denied_passes_while_the_table_is_repaired_or_created_again() {
    on_a_node(|| {
        let mut policies = open();
        let delta = merged(isolated(Ingress, "10.9.1.2"), allowing([key(Ingress, "10.9.1.2", B, Part::All)]));
        apply(&mut policies, &delta);
        let wanted = policies.current().clone();
        let damages = [
            "add chain inet russet-decisions x; add rule inet russet-decisions x accept",
            "add rule inet russet-decisions in4 counter",
        ];
        let failed = in_a_flood_of_denied_packets(60, |round| {
            run("nft", &[damages[round % 2]]);
            let report = policies.restore(wanted.clone(), std::time::Instant::now());
            report.as_ref().is_ok_and(|it| it.structure.is_some()).then_some(()).ok_or(report)
        });
        assert!(failed.is_none(), "{failed:?}");
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn nothing_denied_passes_while_the_table_of_verdicts_is_created_again() {
    on_a_node(|| {
        let mut policies = open();
        apply(&mut policies, &isolated(Ingress, "10.9.1.2"));
        let mut verdicts = Verdicts::open().unwrap();
        let entries = PODS.map(|(_, host_end, _)| Entry::allow(host_end.parse().unwrap()));
        verdicts.reconcile(&entries).unwrap();
        let failed = in_a_flood_of_denied_packets(60, |_| {
            run("nft", &["add chain inet russet-policy x; add rule inet russet-policy x accept"]);
            let report = verdicts.reconcile(&entries);
            report.as_ref().is_ok_and(|it| it.structure.is_some()).then_some(()).ok_or(report)
        });
        assert!(failed.is_none(), "{failed:?}");
    });
}

/// Repeats something while the pod `c` sends packets to port 53 of the pod `a`, none of which may arrive;
/// the first error ends it.
pub fn in_a_flood_of_denied_packets<E>(
    rounds: usize,
    mut each: impl FnMut(usize) -> Result<(), E>,
) -> Option<E> {
    /// More than processors, so that packets wait in the middle of their way.
    const SENDERS: usize = 8;
    let (server, denied) = (udp(Some("a"), "10.9.1.2", 53), udp(Some("c"), "10.9.3.2", 1));
    let (to, done) = (server.local_addr().unwrap(), std::sync::atomic::AtomicBool::new(false));
    let failed = std::thread::scope(|scope| {
        for _ in 0..SENDERS {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    denied.send_to(b"x", to).unwrap();
                }
            });
        }
        let failed = (0..rounds).find_map(|round| each(round).err());
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        failed
    });
    server.set_nonblocking(true).unwrap();
    let passed = std::iter::from_fn(|| server.recv_from(&mut [0; 8]).ok()).count();
    assert_eq!(passed, 0, "packets that passed");
    failed
}
