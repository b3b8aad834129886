//! Host endpoints: what the node's own interfaces carry. `out` is a machine outside, behind the node's
//! `eth0`; objects are as `calicoctl` writes them.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use russet_addr::IfName;
use russet_nft::{Nft, PacketLog};
use russet_policy::{DeniedPackets, HostReport, Hosts, LOG_GROUP, LOGGED_BURST, LOGGED_PER_S, LoggedFlow};
use russet_testkit::forged::{dropped, routed_pod};
use russet_testkit::{eventually, in_netns_with_loopback, nft_json, run};
use russet_verdict::engine::{Engine, Interfaces};
use russet_verdict::flow::Flow;
use russet_verdict::hosts::{Entrance, HostTable};
use russet_verdict::ir::Protocol;
use russet_verdict::table::Verdict;
use russet_verdict::translate::{Translator, built_in_tiers};
use russet_verdict::world::{Config, Update};
use serde_json::{Value, json};

use crate::log::{flow, logged, next};
use crate::traffic::in_a_flood_of_denied_packets;
use crate::world::*;

mod failsafe;
mod untracked;

const TABLE: &str = "inet russet-hosts";
/// The node, and the machine outside, in both families.
const NODE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
const OUT: [&str; 2] = ["203.0.113.9", "2001:db8:9::9"];

/// Runs a test on a node with pods and a machine outside.
fn at_an_uplink(body: impl FnOnce() + Send) {
    on_a_node(|| {
        routed_pod(None, "eth0", "out", OUT);
        body();
    });
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({ "apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": { "name": name }, "spec": spec })
}

fn host(interface: &str) -> Value {
    object("HostEndpoint", "h", json!({ "node": "n1", "interfaceName": interface }))
}

fn policy(spec: Value) -> Value {
    object("GlobalNetworkPolicy", "p", spec)
}

fn allow_tcp(port: u16) -> Value {
    json!({ "action": "Allow", "protocol": "TCP", "destination": { "ports": [port] } })
}

/// What the node `n1` decides by these objects.
fn table(objects: &[Value]) -> HostTable {
    let mut engine = Engine::default();
    engine.apply(Update::Config(Config {
        node: "n1".into(),
        allow_without_profile: true,
        ..Config::default()
    }));
    built_in_tiers().into_iter().for_each(|tier| engine.apply(tier));
    let mut translator = Translator::default();
    for object in objects {
        let translated = translator.put(object);
        assert_eq!(translated.problems, [], "{object}");
        translated.updates.into_iter().for_each(|update| engine.apply(update));
    }
    engine.flush();
    let [eth0, eth3] = ["eth0", "eth3"].map(|name| IfName::new(name).unwrap());
    engine.host_table(&Interfaces::from([(eth0, NODE.map(ip).into()), (eth3, BTreeSet::new())])).unwrap()
}

#[track_caller]
fn guard(hosts: &mut Hosts, objects: &[Value]) -> HostReport {
    hosts.apply(&table(objects), &BTreeSet::new()).unwrap()
}

// policy.md P81
#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn p81_without_a_policy_only_failsafe_ports_and_forwarded_packets_pass() {
    at_an_uplink(|| {
        let mut hosts = Hosts::open().unwrap();
        let servers = NODE.map(|at| [22, 80].map(|port| listen(None, at, port)));
        let outside = OUT.map(|at| [80, 6443].map(|port| listen(Some("out"), at, port)));
        let [in_pod, to_node] = [listen(Some("a"), "10.9.1.2", 80), listen(None, "127.0.0.1", 80)];
        let [ssh, http] = [0, 1].map(|place| connected(Some("out"), NODE[0], &servers[0][place]));
        let leaving = connected(None, OUT[0], &outside[0][0]);
        for (mine, theirs) in [&ssh, &http, &leaving] {
            assert!(carries(mine, theirs, true) && carries(theirs, mine, true));
        }
        let report = guard(&mut hosts, &[host("*")]);
        assert_eq!(report.structure.as_deref(), Some("the table was missing"));
        for at in NODE {
            connect(Some("out"), at, 22, true);
            connect(Some("out"), at, 80, false);
        }
        for at in OUT {
            connect(None, at, 6443, true);
            connect(None, at, 80, false);
        }
        assert!(dropped(None, TABLE, "no policy of a host endpoint allows it") >= 4);
        assert!(!pings("out", NODE[0]));
        // Connections from before go on, or end.
        assert!(carries(&ssh.0, &ssh.1, true) && carries(&ssh.1, &ssh.0, true));
        assert!(!carries(&http.0, &http.1, false) && !carries(&leaving.0, &leaving.1, false));
        // What is forwarded passes, and so does what the node and its pods send each other, or itself.
        connected(Some("out"), "10.9.1.2", &in_pod);
        connected(None, "10.9.1.2", &in_pod);
        connected(Some("a"), NODE[0], &servers[0][1]);
        connected(Some("a"), OUT[0], &outside[0][0]);
        connected(None, "127.0.0.1", &to_node);
        assert!(pings("a", OUT[1]) && pings("out", "fd09:1::2"));
        assert!(hosts.withdraw().unwrap() && !hosts.withdraw().unwrap());
        connect(Some("out"), NODE[0], 80, true);
    });
}

// policy.md P82
#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn p82_a_policy_opens_a_port_and_its_change_ends_connections() {
    at_an_uplink(|| {
        let mut hosts = Hosts::open().unwrap();
        let [in_80, in_81] = [80, 81].map(|port| listen(None, NODE[0], port));
        let in_pod = listen(Some("a"), "10.9.1.2", 81);
        let http = |port| policy(json!({ "selector": "all()", "ingress": [allow_tcp(port)] }));
        guard(&mut hosts, &[host("*"), http(80)]);
        let open = connected(Some("out"), NODE[0], &in_80);
        assert!(carries(&open.0, &open.1, true) && carries(&open.1, &open.0, true));
        connect(Some("out"), NODE[0], 81, false);
        // Own pods are unaffected.
        connected(Some("out"), "10.9.1.2", &in_pod);
        connected(Some("a"), NODE[0], &in_81);
        let report = guard(&mut hosts, &[host("*"), http(81)]);
        assert!(report.structure.is_none() && report.elements > 0, "{report:?}");
        assert!(!carries(&open.0, &open.1, false));
        connect(Some("out"), NODE[0], 80, false);
        connected(Some("out"), NODE[0], &in_81);
        guard(&mut hosts, &[host("eth1"), http(81)]);
        connected(Some("out"), NODE[0], &in_80);
    });
}

// policy.md P83
#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn p83_a_policy_for_forwarded_packets_guards_pods_from_outside_only() {
    at_an_uplink(|| {
        let mut hosts = Hosts::open().unwrap();
        let [in_a, in_out, in_node] = [("a", "10.9.1.2"), ("out", OUT[0]), ("", NODE[0])]
            .map(|(netns, at)| listen(Some(netns).filter(|it| !it.is_empty()), at, 80));
        let nets = json!({ "nets": ["10.9.0.0/16"] });
        let rules = json!([{ "action": "Deny", "destination": nets }, { "action": "Allow" }]);
        let spec =
            json!({ "selector": "all()", "types": ["Ingress"], "applyOnForward": true, "ingress": rules });
        let open = connected(Some("out"), "10.9.1.2", &in_a);
        guard(&mut hosts, &[host("eth0"), policy(spec)]);
        connect(Some("out"), "10.9.1.2", 80, false);
        assert!(!carries(&open.0, &open.1, false));
        // The other family is not named; pods reach each other, the node and what is outside.
        assert!(pings("out", "fd09:1::2") && !pings("out", "10.9.2.2"));
        connected(Some("b"), "10.9.1.2", &in_a);
        connected(Some("a"), OUT[0], &in_out);
        connected(Some("a"), NODE[0], &in_node);
        connected(Some("out"), NODE[0], &in_node);
        // The same for what pods send.
        let spec = json!({ "selector": "all()", "types": ["Egress"], "applyOnForward": true,
            "egress": [{ "action": "Deny", "source": nets }, { "action": "Allow" }] });
        guard(&mut hosts, &[host("eth0"), policy(spec)]);
        connect(Some("a"), OUT[0], 80, false);
        connected(Some("out"), "10.9.1.2", &in_a);
        connected(None, OUT[0], &in_out);
        connected(Some("a"), NODE[0], &in_node);
    });
}

// policy.md P84
#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn p84_a_policy_before_the_translation_closes_a_port_of_the_node_that_leads_to_a_pod() {
    at_an_uplink(|| {
        let mut hosts = Hosts::open().unwrap();
        let (in_pod, ssh) = (listen(Some("a"), "10.9.1.2", 80), listen(None, NODE[0], 22));
        run(
            "nft",
            &["table ip nat { chain prerouting { type nat hook prerouting priority dstnat; \
            tcp dport { 30080, 30081 } dnat to 10.9.1.2:80; }; }"],
        );
        let before = {
            let client = connect(Some("out"), NODE[0], 30080, true).unwrap();
            (client, in_pod.accept().unwrap().0)
        };
        let rule = json!({ "action": "Deny", "protocol": "TCP", "destination": { "ports": [30080, 22] } });
        let spec = json!({ "selector": "all()", "preDNAT": true, "applyOnForward": true, "ingress": [rule] });
        guard(&mut hosts, &[host("*"), policy(spec)]);
        connect(Some("out"), NODE[0], 30080, false);
        assert!(!carries(&before.0, &before.1, false));
        // Another port, the pod itself, a failsafe port, and what comes from pods.
        connect(Some("out"), NODE[0], 30081, true);
        connected(Some("out"), "10.9.1.2", &in_pod);
        connected(Some("out"), NODE[0], &ssh);
        connect(Some("b"), NODE[0], 30080, true);
    });
}

fn felix(action: &str) -> Value {
    object("FelixConfiguration", "default", json!({ "defaultEndpointToHostAction": action }))
}

/// Whether a message of ICMPv6 from a pod arrives at the node.
fn message(netns: &str, kind: u8) -> bool {
    let there = UdpSocket::from(raw(ip(NODE[1]), rustix::net::ipproto::ICMPV6));
    there.set_nonblocking(false).unwrap();
    there.set_read_timeout(Some(DROPPED)).unwrap();
    let here = UdpSocket::from(inside(Some(netns), || raw(ip("::"), rustix::net::ipproto::ICMPV6)));
    // The kernel writes the checksum.
    let mut packet = [0x5e; 24];
    packet[..4].copy_from_slice(&[kind, 0, 0, 0]);
    here.send_to(&packet, (ip(NODE[1]), 0)).unwrap();
    let mut buffer = [0; 64];
    let is_it = |buffer: &[u8]| buffer[0] == kind && buffer[4..24] == packet[4..];
    while let Ok(length) = there.recv(&mut buffer) {
        if length == packet.len() && is_it(&buffer) {
            return true;
        }
    }
    false
}

// policy.md P86
#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn p86_pods_reach_their_own_node_as_the_action_says_and_icmpv6_of_neighbours_passes() {
    const WHY: &str = "defaultEndpointToHostAction is Drop";
    at_an_uplink(|| {
        let mut hosts = Hosts::open().unwrap();
        let servers = NODE.map(|at| listen(None, at, 80));
        let [in_b, outside, in_a] = [("b", "10.9.2.2"), ("out", OUT[0]), ("a", "10.9.1.2")]
            .map(|(netns, at)| listen(Some(netns), at, 80));
        let before = connected(Some("a"), NODE[0], &servers[0]);
        let from_node = connected(None, "10.9.1.2", &in_a);
        // Without a host endpoint nothing of the node's own interfaces is decided.
        let report = guard(&mut hosts, &[felix("DROP")]);
        assert_eq!(report.structure.as_deref(), Some("the table was missing"));
        assert!(!carries(&before.0, &before.1, false), "a change ends connections");
        for (at, server) in NODE.into_iter().zip(&servers) {
            connect(Some("a"), at, 80, false);
            connect(Some("c"), at, 80, false);
            connected(Some("out"), at, server);
        }
        assert!(!pings("a", NODE[0]) && !pings("a", NODE[1]));
        assert!(dropped(None, TABLE, WHY) >= 6);
        // Others, replies to the node, and what a failsafe port is for others.
        assert!(carries(&from_node.0, &from_node.1, true) && carries(&from_node.1, &from_node.0, true));
        connected(Some("a"), "10.9.2.2", &in_b);
        connected(Some("a"), OUT[0], &outside);
        connected(None, "10.9.1.2", &in_a);
        let _ssh = listen(None, NODE[0], 22);
        connect(Some("a"), NODE[0], 22, false);
        for (kind, passes) in
            [(130, true), (131, true), (132, true), (133, true), (135, true), (128, false), (143, false)]
        {
            assert_eq!(message("a", kind), passes, "type {kind}");
        }
        // Policies of host endpoints are about other interfaces, whatever the action is.
        for (action, passes) in [("Return", true), ("Drop", false), ("Accept", true)] {
            let report = guard(&mut hosts, &[felix(action), host("*")]);
            assert_eq!(report.structure, None);
            for (at, server) in NODE.into_iter().zip(&servers) {
                match passes {
                    true => _ = connected(Some("a"), at, server),
                    false => _ = connect(Some("a"), at, 80, false),
                }
                connect(Some("out"), at, 80, false);
            }
            assert!(message("a", 135));
        }
        // The node's own settings.
        let of_node =
            object("FelixConfiguration", "node.n1", json!({ "defaultEndpointToHostAction": "Drop" }));
        guard(&mut hosts, &[felix("Accept"), of_node]);
        connect(Some("a"), NODE[0], 80, false);
        assert!(hosts.withdraw().unwrap());
        connected(Some("a"), NODE[0], &servers[0]);
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn what_the_action_drops_stays_dropped_while_all_else_of_the_table_changes() {
    on_a_node(|| {
        let mut hosts = Hosts::open().unwrap();
        let receiver = udp(None, NODE[0], 9000);
        let sender = udp(Some("a"), "10.9.1.2", 9001);
        let open = policy(json!({ "selector": "all()", "ingress": [{ "action": "Allow" }] }));
        let tables = [table(&[felix("Drop"), host("*"), open]), table(&[felix("Drop")])];
        assert!(sends(&sender, &receiver));
        hosts.apply(&tables[1], &BTreeSet::new()).unwrap();
        let to = receiver.local_addr().unwrap();
        russet_testkit::forged::while_sending(&sender, to, |_| {
            for round in 0..60 {
                if round % 3 == 0 {
                    run("nft", &[format!("flush map {TABLE} endpoint-to-host").as_str()]);
                }
                hosts.apply(&tables[round % 2], &BTreeSet::from([4789])).unwrap();
            }
        });
        assert!(receiver.recv_from(&mut [0; 8]).is_err(), "a packet passed");
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn an_interface_is_found_by_its_name_or_address_before_all_others() {
    at_an_uplink(|| {
        let mut hosts = Hosts::open().unwrap();
        let server = listen(None, NODE[0], 80);
        let expected = object(
            "HostEndpoint",
            "e",
            json!({ "node": "n1", "expectedIPs": [NODE[0]], "profiles": ["open"] }),
        );
        let open = object(
            "Profile",
            "open",
            json!({ "ingress": [{ "action": "Allow" }], "egress": [{ "action": "Allow" }] }),
        );
        let of_other = object("HostEndpoint", "o", json!({ "node": "n2", "interfaceName": "eth0" }));
        guard(&mut hosts, &[of_other]);
        connected(Some("out"), NODE[0], &server);
        guard(&mut hosts, &[host("*"), expected.clone(), open.clone()]);
        connected(Some("out"), NODE[0], &server);
        guard(&mut hosts, &[host("eth0"), expected, open]);
        connect(Some("out"), NODE[0], 80, false);
    });
}

fn index(interface: &str) -> u32 {
    let shown: Value = serde_json::from_str(&run("ip", &["-j", "link", "show", interface])).unwrap();
    shown[0]["ifindex"].as_u64().unwrap().try_into().unwrap()
}

#[test]
#[ignore = "kernel: nf_tables, nfnetlink_log, veth, root; tools: ip, nft"]
fn what_host_endpoints_deny_is_logged_with_its_entrance() {
    at_an_uplink(|| {
        let mut hosts = Hosts::open().unwrap();
        let mut log = PacketLog::open(LOG_GROUP).unwrap();
        let eth0 = index("eth0");
        let rules = json!([{ "action": "Log", "protocol": "TCP" }, allow_tcp(80)]);
        let ingress = policy(json!({ "selector": "all()", "types": ["Ingress"], "ingress": rules }));
        guard(&mut hosts, &[host("eth0"), ingress.clone()]);
        let server = listen(None, NODE[0], 80);
        connect(Some("out"), NODE[0], 81, false);
        let seen = |allowed, flow, host: &[(Entrance, u32)]| LoggedFlow {
            direction: host[0].0.direction(),
            allowed,
            flow,
            host: Some(host.to_vec()),
        };
        let to_node = |port| flow(OUT[0], NODE[0], Protocol::TCP, port);
        assert_eq!(next(&mut log), seen(false, to_node(81), &[(Entrance::Input, eth0)]));
        logged(&mut log);
        // A rule that asks to log what another one allows.
        connected(Some("out"), NODE[0], &server);
        assert_eq!(next(&mut log), seen(true, to_node(80), &[(Entrance::Input, eth0)]));
        logged(&mut log);
        connect(None, OUT[0], 80, false);
        // The node's address on that link.
        let leaving = flow("169.254.1.1", OUT[0], Protocol::TCP, 80);
        assert_eq!(next(&mut log), seen(false, leaving, &[(Entrance::Output, eth0)]));
        // What is forwarded may have been judged at both interfaces, and before the translation at one.
        let deny = json!([{ "action": "Deny" }]);
        let both =
            json!({ "selector": "all()", "applyOnForward": true, "types": ["Ingress"], "ingress": deny });
        guard(&mut hosts, &[host("eth0"), policy(both.clone())]);
        logged(&mut log);
        connect(Some("out"), "10.9.1.2", 80, false);
        let to_pod = flow(OUT[0], "10.9.1.2", Protocol::TCP, 80);
        let found = next(&mut log);
        let entrances = found.host.clone().unwrap();
        assert_eq!((entrances[0], entrances.len()), ((Entrance::ForwardIn, eth0), 2));
        assert_eq!(found, seen(false, to_pod, &entrances));
        let mut early = both;
        early["preDNAT"] = true.into();
        guard(&mut hosts, &[host("eth0"), policy(early)]);
        logged(&mut log);
        connect(Some("out"), "10.9.1.2", 80, false);
        let before = [(Entrance::RawIn, eth0), (Entrance::PreDnat, eth0)];
        assert_eq!(next(&mut log), seen(false, to_pod, &before));
    });
}

#[test]
#[ignore = "kernel: nf_tables, nfnetlink_log, veth, root; tools: ip, nft"]
fn in_a_storm_at_a_host_endpoint_the_log_is_limited_and_what_it_suppressed_is_counted() {
    const STORM: u64 = 5_000;
    at_an_uplink(|| {
        let count = || DeniedPackets::read_hosts(&mut Nft::open().unwrap()).unwrap();
        assert_eq!(count(), DeniedPackets::default());
        let mut log = PacketLog::open(LOG_GROUP).unwrap();
        guard(&mut Hosts::open().unwrap(), &[host("eth0")]);
        let began = Instant::now();
        let client = udp(Some("out"), OUT[0], 5000);
        (0..STORM).for_each(|_| _ = client.send_to(b"x", (NODE[0], 9)).unwrap());
        eventually(Duration::from_secs(10), || count().dropped >= STORM);
        let (seconds, counted) = (began.elapsed().as_secs() + 1, count());
        let limit = u64::from(LOGGED_BURST) + LOGGED_PER_S * seconds;
        let seen = logged(&mut log).iter().filter(|it| it.flow.destination_port == 9).count() as u64;
        assert!(seen > 0 && counted.logged <= limit, "{counted:?}, {seen} seen");
        assert_eq!(counted.suppressed(), counted.dropped - counted.logged);
    });
}

/// A policy that asks for everything that a rule can ask for: of both ends, in both directions.
fn everything() -> [Value; 4] {
    everything_of(false)
}

fn everything_of(do_not_track: bool) -> [Value; 4] {
    let udp = |action: &str, source: Value, destination: Value| json!({ "action": action, "protocol": "UDP", "source": source, "destination": destination });
    let out = json!({ "nets": ["203.0.113.0/28"], "ports": ["2000:2999"] });
    let ingress = json!([
        udp("Deny", json!({ "selector": "role == 'bad'" }), json!({ "ports": [1001] })),
        udp("Allow", out, json!({ "nets": ["192.0.2.1/32"], "ports": ["1000:1002", 1009] })),
        udp("Allow", json!({ "nets": ["::/0"], "notNets": ["2001:db8:9::/64"] }), json!({})),
        udp("Pass", json!({ "ports": [3000] }), json!({ "notPorts": [1000] })),
        { "action": "Allow", "protocol": "ICMP", "icmp": { "type": 8 } },
    ]);
    let spec = json!({ "selector": "all()", "applyOnForward": true, "doNotTrack": do_not_track,
        "types": ["Ingress"], "ingress": ingress });
    let mut set = object("GlobalNetworkSet", "bad", json!({ "nets": ["203.0.113.9/32", "10.0.0.0/9"] }));
    set["metadata"]["labels"] = json!({ "role": "bad" });
    let profiles =
        object("HostEndpoint", "h", json!({ "node": "n1", "interfaceName": "*", "profiles": ["open"] }));
    let open = object(
        "Profile",
        "open",
        json!({ "ingress": [{ "action": "Allow" }], "egress": [{ "action": "Allow" }] }),
    );
    [profiles, open, set, policy(spec)]
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn the_kernel_decides_as_the_table_says() {
    decides_as_the_table_says(false);
}

// policy.md P85
#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn p85_the_kernel_decides_of_untracked_packets_as_the_table_says() {
    decides_as_the_table_says(true);
}

fn decides_as_the_table_says(do_not_track: bool) {
    at_an_uplink(|| {
        let table = table(&everything_of(do_not_track));
        Hosts::open().unwrap().apply(&table, &BTreeSet::new()).unwrap();
        let (eth0, mut verdicts) = (IfName::new("eth0").unwrap(), [0; 2]);
        let ends =
            [(Entrance::Input, None, NODE), (Entrance::ForwardIn, Some("a"), ["10.9.1.2", "fd09:1::2"])];
        for (entrance, netns, addresses) in ends {
            for (from, to) in OUT.into_iter().zip(addresses) {
                for destination_port in [1000, 1001, 1002] {
                    let server = udp(netns, to, destination_port);
                    for source_port in [1999, 2999, 3000] {
                        let client = udp(Some("out"), from, source_port);
                        let (source, destination) = (ip(from), ip(to));
                        let flow = Flow {
                            source,
                            destination,
                            protocol: Protocol::UDP,
                            source_port,
                            destination_port,
                        };
                        let word = |entrance, unguarded| {
                            let found = table.decide(entrance, &eth0, &flow);
                            found.map_or(unguarded, |word| word.verdict == Verdict::Allow)
                        };
                        let allowed = word(Entrance::RawIn, true)
                            && (word(Entrance::UntrackedIn, false) || word(entrance, true));
                        assert_eq!(sends(&client, &server), allowed, "{entrance:?}, {flow:?}");
                        verdicts[usize::from(allowed)] += 1;
                    }
                }
            }
        }
        assert!(verdicts.iter().all(|count| *count > 5), "{verdicts:?}");
        let others = if do_not_track { [true; 2] } else { [true, false] };
        assert_eq!(NODE.map(|at| pings("out", at)), others, "each family has its own protocol");
    });
}

#[test]
#[ignore = "kernel: nf_tables, root"]
fn a_restart_of_what_guards_writes_nothing_and_a_damage_is_repaired() {
    on_a_node(|| {
        let generation = || Nft::open().unwrap().generation().unwrap();
        let table = table(&everything());
        let first = Hosts::open().unwrap().apply(&table, &BTreeSet::from([4789])).unwrap();
        assert_eq!(first.elements, table.len());
        let (good, before) = (ruleset(), generation());
        let mut hosts = Hosts::open().unwrap();
        let mut again = || hosts.apply(&table, &BTreeSet::from([4789])).unwrap();
        assert_eq!((again(), generation()), (HostReport::default(), before));
        for damage in [
            format!("flush table {TABLE}"),
            format!("delete table {TABLE}"),
            format!("flush map {TABLE} others"),
            format!("flush map {TABLE} source-ranges4"),
            format!("flush set {TABLE} failsafe-in"),
            format!("flush map {TABLE} endpoint-to-host"),
            format!("flush chain {TABLE} from-pods"),
            format!("flush chain {TABLE} judge4"),
            format!("add chain {TABLE} x; add rule {TABLE} x accept"),
        ] {
            run("nft", &[damage.as_str()]);
            assert_ne!(ruleset(), good, "{damage}");
            again();
            assert_eq!(ruleset(), good, "{damage}");
        }
    });
}

#[test]
#[ignore = "kernel: nf_tables, root; tools: nft"]
fn what_nft_lists_of_host_endpoints_loads_again_and_is_the_same() {
    on_a_node(|| {
        Hosts::open().unwrap().apply(&table(&everything()), &BTreeSet::from([4789])).unwrap();
        let listed = ruleset();
        assert!(
            listed.contains("203.0.113.0") && listed.contains("1001-1002") && listed.contains("4789"),
            "{listed}"
        );
        assert!(nft_json(&["list", "ruleset"])["nftables"].is_array());
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("flush ruleset\n{listed}")).unwrap();
        run("nft", &["-f", file.path().to_str().unwrap()]);
        assert_eq!(ruleset(), listed);
    });
}

/// Runs a test on a node that forwards what machines outside send each other.
fn between_machines_outside(body: impl FnOnce() + Send) {
    in_netns_with_loopback(|| {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        for (host_end, (netns, _, addresses)) in ["eth1", "eth2", "eth3"].into_iter().zip(PODS) {
            routed_pod(None, host_end, netns, addresses);
        }
        body();
    });
}

/// What forwards nothing but what a network sends.
fn only_from(net: &str) -> HostTable {
    let spec = json!({ "selector": "all()", "applyOnForward": true, "types": ["Ingress"],
        "ingress": [{ "action": "Allow", "source": { "nets": [net] } }] });
    table(&[host("*"), policy(spec)])
}

/// Makes the table that of the version before, which logged nothing.
fn make_as_before() {
    let listed = nft_json(&["list", "map", "inet", "russet-hosts", "words"]);
    let elements = listed["nftables"].as_array().unwrap().iter().find_map(|it| it["map"]["elem"].as_array());
    let key = |chain: &str| {
        let leads = |pair: &&Value| pair[1]["goto"]["target"] == chain;
        let key = &elements.unwrap().iter().find(leads).unwrap()[0];
        key.as_str().map_or_else(|| key.to_string(), str::to_owned)
    };
    let (denied, allowed) = (key("log-denied"), key("log-allowed"));
    let chains = ["log-denied", "log-allowed"]
        .map(|chain| format!("flush chain {TABLE} {chain}; delete chain {TABLE} {chain};"));
    run(
        "nft",
        &[&format!(
            "delete element {TABLE} words {{ {denied}, {allowed} }}; \
             add element {TABLE} words {{ {denied} : goto denied, {allowed} : return }}; {} \
             flush chain {TABLE} denied; \
             add rule {TABLE} denied counter drop comment \"no policy of a host endpoint allows it\"",
            chains.concat()
        )],
    );
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn a_table_of_host_endpoints_without_a_log_is_taken_over_and_nothing_denied_passes_meanwhile() {
    between_machines_outside(|| {
        let table = only_from("198.51.100.0/24");
        Hosts::open().unwrap().apply(&table, &BTreeSet::new()).unwrap();
        let good = ruleset();
        let failed = in_a_flood_of_denied_packets(20, |_| {
            make_as_before();
            let report = Hosts::open().unwrap().apply(&table, &BTreeSet::new());
            let is_repaired =
                |it: &HostReport| it.structure.as_deref() == Some("chain log-denied was missing");
            report.as_ref().is_ok_and(is_repaired).then_some(()).ok_or(report)
        });
        assert!(failed.is_none(), "{failed:?}");
        let sorted = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(&ruleset()), sorted(&good));
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn nothing_that_both_forbid_passes_while_one_table_of_host_endpoints_replaces_another() {
    between_machines_outside(|| {
        let mut hosts = Hosts::open().unwrap();
        let of = |net: &str, do_not_track: bool| {
            let allowed = json!({ "action": "Allow", "source": { "nets": [net] } });
            let spec = json!({ "selector": "all()", "applyOnForward": true, "doNotTrack": do_not_track,
                "types": ["Ingress"], "ingress": [allowed, { "action": "Deny" }] });
            table(&[host("*"), policy(spec)])
        };
        // A packet under way may have left the hook to which a policy moves, so each kind is for itself.
        for do_not_track in [false, true] {
            let nets = ["198.51.100.0/24", "198.51.100.0/25", "198.18.0.0/15"];
            let tables = nets.map(|net| of(net, do_not_track));
            hosts.apply(&tables[0], &BTreeSet::new()).unwrap();
            let failed = in_a_flood_of_denied_packets(60, |round| {
                let report = hosts.apply(&tables[(round + 1) % 3], &BTreeSet::new());
                report.as_ref().is_ok_and(|it| it.elements > 0).then_some(()).ok_or(report)
            });
            assert!(failed.is_none(), "{failed:?}");
        }
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn what_two_tables_of_host_endpoints_forbid_at_different_places_does_not_pass_while_one_replaces_the_other() {
    between_machines_outside(|| {
        let forbid = |interface: &str, kind: &str| {
            let spec = json!({ "selector": "all()", "applyOnForward": true, "types": [kind] });
            table(&[host(interface), policy(spec)])
        };
        // The flood enters by eth3: it is denied there, at all interfaces, or where it leaves.
        let tables = [("*", "Ingress"), ("eth3", "Ingress"), ("*", "Egress"), ("eth1", "Egress")];
        let tables = tables.map(|(interface, kind)| forbid(interface, kind));
        let mut hosts = Hosts::open().unwrap();
        hosts.apply(&tables[0], &BTreeSet::new()).unwrap();
        let failed = in_a_flood_of_denied_packets(240, |round| {
            let report = hosts.apply(&tables[(round + 1) % tables.len()], &BTreeSet::new());
            report.as_ref().is_ok_and(|it| it.elements > 0).then_some(()).ok_or(report)
        });
        assert!(failed.is_none(), "{failed:?}");
    });
}
