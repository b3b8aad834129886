//! Policies with `doNotTrack`, before connection tracking (policy.md P85).

use std::net::UdpSocket;

use russet_addr::Family;
use russet_nft::Conntrack;
use russet_policy::Hosts;
use russet_testkit::{run, sh};
use serde_json::{Value, json};

use super::{NODE, OUT, allow_tcp, at_an_uplink, guard, host, object, policy};
use crate::world::*;

/// A policy for untracked packets.
fn untracked(ingress: Value, egress: Value) -> Value {
    let spec = json!({ "selector": "all()", "doNotTrack": true, "applyOnForward": true, "types": ["Ingress", "Egress"],
        "ingress": ingress, "egress": egress });
    object("GlobalNetworkPolicy", "u", spec)
}

fn to(action: &str, protocol: &str, port: u16) -> Value {
    json!({ "action": action, "protocol": protocol, "destination": { "ports": [port] } })
}

fn from(action: &str, protocol: &str, port: u16) -> Value {
    json!({ "action": action, "protocol": protocol, "source": { "ports": [port] } })
}

/// Whether a connection to a port is tracked.
fn is_tracked(at: &str, port: u16) -> bool {
    let all = Conntrack::open().unwrap().connections(Family::of(ip(at))).unwrap();
    all.iter().any(|it| it.original.1 == ip(at) && it.port == Some(port))
}

// policy.md P85
#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn p85_what_a_rule_allows_is_not_tracked_and_its_reply_needs_a_rule_of_its_own() {
    at_an_uplink(|| {
        let mut hosts = Hosts::open().unwrap();
        let tcp = NODE.map(|at| [80, 81, 22].map(|port| listen(None, at, port)));
        let api = OUT.map(|at| listen(Some("out"), at, 6443));
        let ends = |port| [0, 1].map(|it| (udp(Some("out"), OUT[it], port), udp(None, NODE[it], port)));
        let requests = json!([to("Allow", "TCP", 80), to("Allow", "UDP", 5000)]);
        let replies = json!([from("Allow", "TCP", 80), from("Allow", "UDP", 5000)]);
        let open = udp_pair_is_open;
        guard(&mut hosts, &[host("*"), untracked(requests.clone(), json!([]))]);
        for (out, node) in ends(5000) {
            assert_eq!(open(&out, &node), [true, false], "the request passes, and its reply does not");
        }
        for at in NODE {
            connect(Some("out"), at, 80, false);
            assert!(!is_tracked(at, 80) && !is_tracked(at, 5000));
        }
        // What no rule names is judged behind.
        let normal = policy(json!({ "selector": "all()", "ingress": [allow_tcp(81)] }));
        guard(&mut hosts, &[host("*"), normal.clone(), untracked(requests.clone(), replies.clone())]);
        for ((at, servers), (out, node)) in NODE.into_iter().zip(&tcp).zip(ends(5000)) {
            let (client, accepted) = connected(Some("out"), at, &servers[0]);
            assert!(carries(&client, &accepted, true) && carries(&accepted, &client, true));
            connected(Some("out"), at, &servers[1]);
            assert_eq!(open(&out, &node), [true, true]);
            assert_eq!([80, 5000, 81].map(|port| is_tracked(at, port)), [false, false, true]);
            // A change ends it, by the request or by the reply.
            let half = if Family::of(ip(at)) == Family::V4 {
                untracked(json!([]), replies.clone())
            } else {
                untracked(requests.clone(), json!([]))
            };
            guard(&mut hosts, &[host("*"), normal.clone(), half]);
            assert!(!carries(&client, &accepted, false) || !carries(&accepted, &client, false));
            guard(&mut hosts, &[host("*"), normal.clone(), untracked(requests.clone(), replies.clone())]);
        }
        // What is forbidden there is not asked about behind, and failsafe ports are not asked about there.
        let deny = json!([{ "action": "Deny" }]);
        guard(&mut hosts, &[host("*"), normal, untracked(deny.clone(), deny)]);
        sh("ip -6 neigh flush dev eth0");
        for ((at, servers), (outside, api)) in NODE.into_iter().zip(&tcp).zip(OUT.into_iter().zip(&api)) {
            connect(Some("out"), at, 81, false);
            connected(Some("out"), at, &servers[2]);
            connected(None, outside, api);
            connected(Some("a"), at, &servers[1]);
        }
    });
}

/// Whether a request arrives, and its reply.
fn udp_pair_is_open(client: &UdpSocket, server: &UdpSocket) -> [bool; 2] {
    [sends(client, server), sends(server, client)]
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn p85_forwarded_packets_that_are_not_tracked_skip_the_policies_of_their_first_interface() {
    at_an_uplink(|| {
        let mut hosts = Hosts::open().unwrap();
        let ends = |netns, addresses: [&str; 2], port| {
            [0, 1].map(|it| (udp(Some("out"), OUT[it], port), udp(netns, addresses[it], port)))
        };
        let in_a = |port| ends(Some("a"), ["10.9.1.2", "fd09:1::2"], port);
        let deny = policy(json!({ "selector": "all()", "applyOnForward": true, "types": ["Ingress"],
            "ingress": [to("Deny", "UDP", 7000), to("Deny", "UDP", 7001)] }));
        guard(&mut hosts, &[host("*"), deny, untracked(json!([to("Allow", "UDP", 7000)]), json!([]))]);
        for ((out, pod), (other, same)) in in_a(7000).iter().zip(&in_a(7001)) {
            assert!(sends(out, pod) && !sends(other, same));
        }
        // What another program leaves untracked is judged as what is tracked.
        run(
            "nft",
            &[
                "table inet other { chain c { type filter hook prerouting priority raw; udp dport { 7002, 7003 } notrack; }; }",
            ],
        );
        let open = policy(json!({ "selector": "all()", "ingress": [to("Allow", "UDP", 7002)] }));
        guard(&mut hosts, &[host("*"), open, untracked(json!([to("Allow", "UDP", 7000)]), json!([]))]);
        for ((out, node), (other, same)) in ends(None, NODE, 7002).iter().zip(&ends(None, NODE, 7003)) {
            assert!(sends(out, node) && !sends(other, same));
        }
        assert!(!is_tracked(NODE[0], 7002), "the test needs it untracked");
        // What another interface's policies forbid stays so, and so does what the pod's node sends itself.
        let others = object("HostEndpoint", "h", json!({ "node": "n1", "interfaceName": "eth1" }));
        guard(&mut hosts, &[others, untracked(json!([{ "action": "Deny" }]), json!([{ "action": "Deny" }]))]);
        for (out, pod) in in_a(7000) {
            assert!(sends(&out, &pod));
        }
    });
}
