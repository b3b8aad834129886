//! Beside tables of other programs that translate or drop packets: kube-proxy in each of its modes, Docker, ufw and
//! firewalld.

use std::net::{SocketAddr, TcpStream};

use russet_overlay::firewall::{Firewall, Wanted};
use russet_policy::Policies;
use russet_testkit::forged::dropped;
use russet_testkit::{frame, run, sh};
use russet_verdict::ir::Direction::{Egress, Ingress};
use russet_verdict::ir::Protocol;
use russet_verdict::table::{Delta, Identity, Part};
use rustix::net::{SendFlags, SocketFlags, SocketType, ipproto};

use crate::world::*;

const TABLE: &str = "inet russet-decisions";
const DENIED_IN: &str = "no policy allows it, in";
/// The endpoint of the Service: the pod `a`.
const ENDPOINT: &str = "10.9.1.2";
const SERVICE: &str = "10.96.0.1";
const SERVICE6: &str = "fd96::1";
/// The node on the network of the client outside, and the Service's port there.
const NODE: &str = "198.51.100.1";
const NODE_PORT: u16 = 30_080;
const CLIENT: &str = "198.51.100.9";
/// The identity of the client's network.
const OUTSIDE: u32 = 30;

/// How kube-proxy writes its rules.
#[derive(Debug, Clone, Copy)]
enum Mode {
    NfTables,
    /// With this family of iptables programs.
    Iptables(&'static str),
}

/// Of one Service with a node port, in one family: `ip`, the Service's address, the endpoint, and the pods' networks.
fn kube_proxy_nft(family: &str, service: &str, endpoint: &str, pods: &str) -> String {
    let (of, to) = match family {
        "ip" => ("ipv4_addr", format!("{endpoint}:8080")),
        _ => ("ipv6_addr", format!("[{endpoint}]:8080")),
    };
    let node = if family == "ip" { NODE } else { "2001:db8::1" };
    format!(
        "table {family} kube-proxy {{
            set cluster-ips {{ type {of}; elements = {{ {service} }}; }}
            set nodeport-ips {{ type {of}; elements = {{ {node} }}; }}
            map service-ips {{ type {of} . inet_proto . inet_service : verdict;
                elements = {{ {service} . tcp . 80 : goto service-WEB }}; }}
            map service-nodeports {{ type inet_proto . inet_service : verdict;
                elements = {{ tcp . {NODE_PORT} : goto external-WEB }}; }}
            map no-endpoint-services {{ type {of} . inet_proto . inet_service : verdict; }}
            map no-endpoint-nodeports {{ type inet_proto . inet_service : verdict; }}
            map firewall-ips {{ type {of} . inet_proto . inet_service : verdict; }}
            chain mark-for-masquerade {{ meta mark set meta mark | 0x4000; }}
            chain masquerading {{ meta mark & 0x4000 == 0 return; meta mark set meta mark ^ 0x4000
                masquerade fully-random; }}
            chain cluster-ips-check {{ {family} daddr @cluster-ips reject; }}
            chain firewall-check {{ {family} daddr . meta l4proto . th dport vmap @firewall-ips; }}
            chain service-endpoints-check {{ {family} daddr . meta l4proto . th dport vmap @no-endpoint-services; }}
            chain nodeport-endpoints-check {{
                {family} daddr @nodeport-ips meta l4proto . th dport vmap @no-endpoint-nodeports; }}
            chain endpoint-WEB {{ {family} saddr {endpoint} jump mark-for-masquerade
                meta l4proto tcp dnat to {to}; }}
            chain service-WEB {{
                {family} daddr {service} tcp dport 80 {family} saddr != {pods} jump mark-for-masquerade
                numgen random mod 1 vmap {{ 0 : goto endpoint-WEB }}; }}
            chain external-WEB {{ jump mark-for-masquerade; goto service-WEB; }}
            chain services {{ {family} daddr . meta l4proto . th dport vmap @service-ips
                {family} daddr @nodeport-ips meta l4proto . th dport vmap @service-nodeports; }}
            chain filter-prerouting {{ type filter hook prerouting priority -110;
                ct state new jump firewall-check; }}
            chain filter-input {{ type filter hook input priority -110;
                ct state new jump nodeport-endpoints-check; ct state new jump service-endpoints-check; }}
            chain filter-forward {{ type filter hook forward priority -110;
                ct state new jump service-endpoints-check; ct state new jump cluster-ips-check; }}
            chain filter-output {{ type filter hook output priority -110;
                ct state new jump service-endpoints-check; ct state new jump firewall-check; }}
            chain filter-output-post-dnat {{ type filter hook output priority -90;
                ct state new jump cluster-ips-check; }}
            chain nat-prerouting {{ type nat hook prerouting priority -100; jump services; }}
            chain nat-output {{ type nat hook output priority -100; jump services; }}
            chain nat-postrouting {{ type nat hook postrouting priority 100; jump masquerading; }}
        }}\n"
    )
}

/// The same as text for `iptables-restore`.
fn kube_proxy_iptables() -> String {
    format!(
        "*filter
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-SERVICES - [0:0]
-A INPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A INPUT -j KUBE-NODEPORTS
-A INPUT -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-A INPUT -j KUBE-FIREWALL
-A FORWARD -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A FORWARD -j KUBE-FORWARD
-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-A OUTPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL
-A OUTPUT -m conntrack --ctstate NEW -j KUBE-SERVICES
-A OUTPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
*nat
:KUBE-EXT-WEB - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SEP-WEB - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-WEB - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-SERVICES -d {SERVICE}/32 -p tcp -m tcp --dport 80 -j KUBE-SVC-WEB
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -p tcp -m tcp --dport {NODE_PORT} -j KUBE-EXT-WEB
-A KUBE-EXT-WEB -j KUBE-MARK-MASQ
-A KUBE-EXT-WEB -j KUBE-SVC-WEB
-A KUBE-SVC-WEB ! -s 10.9.0.0/16 -d {SERVICE}/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-WEB -j KUBE-SEP-WEB
-A KUBE-SEP-WEB -s {ENDPOINT}/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-WEB -p tcp -m tcp -j DNAT --to-destination {ENDPOINT}:8080
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
"
    )
}

/// Makes the tables that kube-proxy makes in this mode.
fn kube_proxy(mode: Mode) {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (program, text) = match mode {
        Mode::NfTables => {
            let v4 = kube_proxy_nft("ip", SERVICE, ENDPOINT, "10.9.0.0/16");
            ("nft".to_owned(), v4 + &kube_proxy_nft("ip6", SERVICE6, "fd09:1::2", "fd09::/16"))
        }
        Mode::Iptables(family) => (format!("{family}-restore"), kube_proxy_iptables()),
    };
    std::fs::write(file.path(), text).unwrap();
    let path = file.path().to_str().unwrap();
    match mode {
        Mode::NfTables => run(&program, &["-f", path]),
        Mode::Iptables(_) => run(&program, &[path]),
    };
}

/// The network of a client outside, behind the node's address [`NODE`].
fn client_outside() {
    sh("ip netns add far");
    sh("ip link add uplink type veth peer name eth0 netns far");
    sh(&format!("ip addr add {NODE}/24 dev uplink"));
    sh("ip link set uplink up");
    sh(&format!("ip -n far addr add {CLIENT}/24 dev eth0"));
    sh("ip -n far link set eth0 up");
    sh(&format!("ip route add default via {CLIENT}"));
    sh("ip -6 route add default dev uplink");
}

/// What policies let through that allow `b` to port 8080 of the pod `a`, and the client outside or not. The Service is
/// there or not; the pod by itself is reached by the same ones.
#[track_caller]
fn assert_verdicts(has_service: bool, allows_client: bool) {
    let direct = [
        (Some("b"), ENDPOINT, 8080, true),
        (Some("c"), ENDPOINT, 8080, false),
        (Some("b"), ENDPOINT, 81, false),
    ];
    let by_service = [
        (Some("b"), SERVICE, 80, true),
        (Some("c"), SERVICE, 80, false),
        // A pod is not allowed to itself unless a policy says so.
        (Some("a"), SERVICE, 80, false),
        // The node reaches its own pods.
        (None, SERVICE, 80, true),
        // The source is judged that the client has, and not that of the node, which the pod sees.
        (Some("b"), NODE, NODE_PORT, true),
        (Some("c"), NODE, NODE_PORT, false),
        (Some("far"), NODE, NODE_PORT, allows_client),
    ];
    let by_service = by_service.into_iter().filter(|_| has_service);
    for (from, address, port, expected) in direct.into_iter().chain(by_service) {
        drop(connect(from, address, port, expected));
    }
}

/// A policy for the pod `a` that allows `b` to its port 8080, in both families.
fn guarded_endpoint() -> Policies {
    let mut policies = open();
    let mut delta = merged(isolated(Ingress, ENDPOINT), isolated(Ingress, "fd09:1::2"));
    let allowed = [ENDPOINT, "fd09:1::2"].map(|local| key(Ingress, local, B, tcp(8080)));
    delta = merged(delta, allowing(allowed));
    delta.identities.insert("198.51.100.0/24".parse().unwrap(), Identity::new(OUTSIDE));
    apply(&mut policies, &delta);
    policies
}

#[test]
#[ignore = "kernel: nf_tables, legacy iptables, veth, root; tools: ip, nft, iptables-nft-restore, iptables-legacy-restore"]
fn the_verdicts_are_the_same_beside_kube_proxys_tables_of_each_mode() {
    // policy.md P119
    for mode in [Mode::NfTables, Mode::Iptables("iptables-nft"), Mode::Iptables("iptables-legacy")] {
        for is_first in [true, false] {
            println!("{mode:?}, kube-proxy's tables first: {is_first}");
            on_a_node(|| beside_kube_proxy(mode, is_first));
        }
    }
}

fn beside_kube_proxy(mode: Mode, is_first: bool) {
    client_outside();
    if is_first {
        kube_proxy(mode);
    }
    let mut policies = guarded_endpoint();
    let servers = [81, 8080].map(|port| listen(Some("a"), ENDPOINT, port));
    assert_verdicts(is_first, false);
    if !is_first {
        kube_proxy(mode);
        assert_verdicts(true, false);
    }
    let rules = [A, OUTSIDE].map(|peer| key(Ingress, ENDPOINT, peer, tcp(8080)));
    apply(&mut policies, &allowing([rules[1]]));
    assert_verdicts(true, true);
    apply(&mut policies, &allowing([rules[0]]));
    drop(connect(Some("a"), SERVICE, 80, true));
    drop(servers);

    // Connections through both translations: a change cuts the forbidden one, and no other.
    let server = listen(Some("a"), ENDPOINT, 8080);
    let client = connect(Some("b"), SERVICE, 80, true).unwrap();
    let (client_end, seen) = server.accept().unwrap();
    assert_eq!(seen.ip(), ip("10.9.2.2"), "a Service keeps the pod's address");
    let outside = connect(Some("far"), NODE, NODE_PORT, true).unwrap();
    let (outside_end, seen) = server.accept().unwrap();
    assert_ne!(seen.ip(), ip(CLIENT), "a node port hides the client's address");
    apply(&mut policies, &forbidding([key(Ingress, ENDPOINT, B, tcp(8080))]));
    assert!(!carries(&client, &client_end, false) && !carries(&client_end, &client, false));
    assert!(carries(&outside, &outside_end, true) && carries(&outside_end, &outside, true));
    apply(&mut policies, &forbidding([rules[1]]));
    assert!(!carries(&outside, &outside_end, false) && !carries(&outside_end, &outside, false));

    if matches!(mode, Mode::NfTables) {
        let server = listen(Some("a"), "fd09:1::2", 8080);
        drop(connect(Some("b"), SERVICE6, 80, true));
        assert_eq!(server.accept().unwrap().1.ip(), ip("fd09:2::2"));
        connect(Some("c"), SERVICE6, 80, false);
    }
}

/// The chains with which Docker drops what is forwarded and not for its containers.
fn docker(program: &str) {
    for rule in [
        "-P FORWARD DROP",
        "-N DOCKER",
        "-N DOCKER-USER",
        "-N DOCKER-ISOLATION-STAGE-1",
        "-N DOCKER-ISOLATION-STAGE-2",
        "-A FORWARD -j DOCKER-USER",
        "-A FORWARD -j DOCKER-ISOLATION-STAGE-1",
        "-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "-A FORWARD -o docker0 -j DOCKER",
        "-A FORWARD -i docker0 ! -o docker0 -j ACCEPT",
        "-A FORWARD -i docker0 -o docker0 -j ACCEPT",
        "-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2",
        "-A DOCKER-ISOLATION-STAGE-1 -j RETURN",
        "-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP",
        "-A DOCKER-ISOLATION-STAGE-2 -j RETURN",
        "-A DOCKER-USER -j RETURN",
    ] {
        sh(&format!("{program} {rule}"));
    }
}

/// The chains with which ufw 0.36 drops what is forwarded.
fn ufw(program: &str) {
    let chains = ["before-logging", "before", "after", "after-logging", "reject", "track"];
    for chain in chains {
        sh(&format!("{program} -N ufw-{chain}-forward"));
        sh(&format!("{program} -A FORWARD -j ufw-{chain}-forward"));
    }
    for rule in [
        "-P FORWARD DROP",
        "-N ufw-user-forward",
        "-A ufw-before-forward -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "-A ufw-before-forward -p icmp --icmp-type 8 -j ACCEPT",
        "-A ufw-before-forward -j ufw-user-forward",
        "-A ufw-after-logging-forward -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix UFW",
    ] {
        sh(&format!("{program} {rule}"));
    }
}

/// The table of firewalld 1.3 with one zone, which rejects what is forwarded, after the chains of iptables.
fn firewalld() {
    for rule in [
        "add table inet firewalld",
        "add chain inet firewalld filter_FORWARD { type filter hook forward priority filter + 10; policy accept; }",
        "add chain inet firewalld filter_FORWARD_ZONES",
        "add chain inet firewalld filter_FWD_public",
        "add rule inet firewalld filter_FORWARD ct state { established, related } accept",
        "add rule inet firewalld filter_FORWARD ct status dnat accept",
        "add rule inet firewalld filter_FORWARD iifname lo accept",
        "add rule inet firewalld filter_FORWARD ct state invalid drop",
        "add rule inet firewalld filter_FORWARD jump filter_FORWARD_ZONES",
        "add rule inet firewalld filter_FORWARD_ZONES goto filter_FWD_public",
        "add rule inet firewalld filter_FWD_public reject with icmpx admin-prohibited",
        "add rule inet firewalld filter_FORWARD reject with icmpx admin-prohibited",
    ] {
        run("nft", &[rule]);
    }
}

#[test]
#[ignore = "kernel: nf_tables, legacy iptables, veth, root; tools: ip, nft, iptables-nft, iptables-legacy"]
fn an_allowed_pair_passes_where_another_firewall_drops_what_is_forwarded_and_a_denied_one_does_not() {
    // policy.md P120
    let firewalls: [(&str, &(dyn Fn() + Sync)); 5] = [
        ("Docker by iptables-nft", &|| docker("iptables-nft")),
        ("Docker by iptables-legacy", &|| docker("iptables-legacy")),
        ("ufw by iptables-nft", &|| ufw("iptables-nft")),
        ("ufw by iptables-legacy", &|| ufw("iptables-legacy")),
        ("firewalld", &firewalld),
    ];
    for (name, start) in firewalls {
        println!("{name}");
        on_a_node(|| {
            start();
            let mut policies = open();
            let rule = key(Ingress, ENDPOINT, B, tcp(80));
            apply(&mut policies, &merged(isolated(Ingress, ENDPOINT), allowing([rule])));
            let server = listen(Some("a"), ENDPOINT, 80);
            let denied = || dropped(None, TABLE, DENIED_IN);
            for from in ["b", "c"] {
                // Perhaps an error of ICMP: firewalld rejects.
                let reached =
                    inside(Some(from), || TcpStream::connect_timeout(&server.local_addr().unwrap(), DROPPED));
                reached.unwrap_err();
            }
            assert_eq!(denied(), 0, "the other firewall's chains come first");
            // What the agent does for its pools.
            let mut firewall = Firewall::exceptions().unwrap();
            let networks = vec!["10.9.0.0/16".parse().unwrap()];
            let report = firewall.apply(&Wanted { networks, forward: true, ..Wanted::default() });
            assert!(report.failed.is_empty(), "{:?}", report.failed);
            let (client, accepted) = connected(Some("b"), ENDPOINT, &server);
            assert!(carries(&client, &accepted, true) && carries(&accepted, &client, true));
            connect(Some("c"), ENDPOINT, 80, false);
            assert!(denied() > 0);
            // What the other firewall lets pass ends when ours forbid it.
            apply(&mut policies, &forbidding([rule]));
            assert!(!carries(&client, &accepted, false) && !carries(&accepted, &client, false));
        });
    }
}

/// Sends a datagram to port `port` as IPVS sends on what it has taken: from the hook output of the node, with the source
/// that the pod has given it.
fn sent_on_by_ipvs(from: &str, to: &str, port: u16) {
    let flags = SocketFlags::CLOEXEC;
    let raw = rustix::net::socket_with(family(ip(to)), SocketType::RAW, flags, Some(ipproto::RAW)).unwrap();
    let packet = frame::udp_packet(ip(from), ip(to), port, b"x");
    // The kernel refuses a packet to its sender that is dropped on its way out.
    let sent = rustix::net::sendto(&raw, &packet, SendFlags::empty(), &SocketAddr::new(ip(to), 0));
    assert!(matches!(sent, Ok(_) | Err(rustix::io::Errno::PERM)), "{sent:?}");
}

#[test]
#[ignore = "kernel: nf_tables, bridge, veth, raw sockets, root; tools: ip, nft"]
fn a_packet_to_a_service_of_ipvs_is_judged_with_its_server_and_what_ipvs_leaves_as_the_nodes() {
    // policy.md P129
    on_a_node(|| {
        // The addresses of Services are the node's own. A chain is in the place at which IPVS takes away what is for them.
        sh("ip link add kube-ipvs0 type bridge");
        sh(&format!("ip addr add {SERVICE}/32 dev kube-ipvs0"));
        sh(&format!("ip addr add {SERVICE6}/128 dev kube-ipvs0 nodad"));
        let ipvs = format!(
            "add table inet ipvs; add chain inet ipvs input {{ type filter hook input priority 99; }};
            add rule inet ipvs input ip daddr {SERVICE} udp dport 80 counter drop comment \"taken\";
            add rule inet ipvs input ip6 daddr {SERVICE6} udp dport 80 counter drop comment \"taken\""
        );
        run("nft", &[&ipvs]);
        let taken = || dropped(None, "inet ipvs", "taken");
        let mut policies = open();
        let udp_port = |port| Part::Port(Protocol::UDP, port);
        let mut delta = Delta::default();
        for local in [ENDPOINT, "fd09:1::2"] {
            let to_endpoints = [A, B].map(|peer| key(Egress, local, peer, udp_port(8080)));
            delta = merged(delta, merged(isolated(Egress, local), allowing(to_endpoints)));
        }
        apply(&mut policies, &delta);
        // To its own Service, which kube-proxy masquerades.
        let hairpin =
            "add table inet kube; add chain inet kube post { type nat hook postrouting priority 100; };
            add rule inet kube post ip saddr 10.9.1.2 ip daddr 10.9.1.2 masquerade;
            add rule inet kube post ip6 saddr fd09:1::2 ip6 daddr fd09:1::2 masquerade";
        run("nft", &[hairpin]);
        for (own, other, service) in [(ENDPOINT, "10.9.2.2", SERVICE), ("fd09:1::2", "fd09:2::2", SERVICE6)] {
            let client = udp(Some("a"), own, 0);
            let before = taken();
            client.send_to(b"x", (ip(service), 80)).unwrap();
            russet_testkit::eventually(ARRIVES, || taken() > before);
            // Port 81 is of no Service: a process of the node would get it.
            let process = udp(None, service, 81);
            assert!(!sends(&client, &process), "{own}");
            for (netns, server) in [("b", other), ("a", own)] {
                for (port, expected) in [(8080, true), (8081, false)] {
                    let server = udp(Some(netns), server, port);
                    server.set_read_timeout(Some(if expected { ARRIVES } else { DROPPED })).unwrap();
                    sent_on_by_ipvs(own, &server.local_addr().unwrap().ip().to_string(), port);
                    assert_eq!(server.recv_from(&mut [0; 8]).is_ok(), expected, "{own} to {server:?}");
                }
            }
        }
    });
}
