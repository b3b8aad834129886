//! Faults on the way from one node to the other.

use russet_testkit::{eventually, run};

use super::asked::{CLUSTER, DOCTOR, DRIFT, EXPLAIN, Expected, MAP, PAGE, STATUS, TOP, TRACE};
use super::cluster::Cluster;
use super::part;
use crate::node::{TIMEOUT, TestNode};
use crate::printed::Printed;

/// The end of another network's interface that takes packets of pods.
const OTHER: &str = "vpn0";
/// The hub's end of the second node's wire.
const WIRE: &str = "w2";

fn set_network_mtu(cluster: &Cluster, mtu_bytes: &str) {
    run("ip", &["-n", cluster.fabric.hub(), "link", "set", WIRE, "mtu", mtu_bytes]);
}

/// Another network's rule sends packets for the other node's pods into its own interface.
fn another_route(cluster: &Cluster, page: &mut Printed) {
    let a = &cluster.a;
    a.ip(&["link", "add", OTHER, "type", "veth", "peer", "name", "vpn1"]);
    a.ip(&["link", "set", OTHER, "up"]);
    a.ip(&["link", "set", "vpn1", "up"]);
    a.ip(&["route", "add", &cluster.db_block, "dev", OTHER, "table", "100"]);
    a.ip(&["rule", "add", "pref", "100", "to", &cluster.db_block, "lookup", "100"]);
    let mut fault = cluster.between(
        "The route to the other node leads elsewhere",
        "A VPN on node-a has a rule (`ip rule`) and a table of its own for the addresses of node-b's pods. The agent's routes are all there, and are not used.",
        vec![
            Expected::says(STATUS, 3, &["! node node-b is not reached (IPv4, tunnel): the route to"]).whole(),
            Expected::says(
                CLUSTER,
                3,
                &[
                    "! node-a is not reached by node-b: node-a receives node-b's encapsulated packets and has sent none back",
                    "! node-b is not reached by node-a: node-a has sent no encapsulated packet to node-b",
                ],
            ),
            Expected::says(EXPLAIN, 3, &["FOUND: route: the route to", "FOUND: peer: node node-b is not reached (IPv4, tunnel): the route to"]).whole(),
            Expected::says(TRACE, 0, &["passed: leaves by vpn0"]),
            Expected::says(MAP, 0, &["unreachable  node-a, node-b"]),
            Expected::says(TOP, 3, &["! node node-b is not reached (IPv4, tunnel): the route to"]),
            Expected::says(PAGE, 0, &["node node-b (IPv4): unreachable: the route to"]),
            Expected::says(DOCTOR, 3, &["pool 10.244.0.0/16: it overlaps the route", "other nodes: node node-b is not reached (IPv4, tunnel): the route to"]).whole(),
        ],
    );
    fault.seen = [true, false, false];
    fault.reported = &[("status.txt", "leads through vpn0"), ("doctor.txt", "leads through vpn0")];
    fault.ask(&cluster.stable, page);
    // Before the node is back, because large packets are tried then.
    set_network_mtu(cluster, "1300");
    a.ip(&["rule", "del", "pref", "100"]);
    a.ip(&["link", "del", OTHER]);
}

fn small_mtu(cluster: &Cluster, page: &mut Printed) {
    let mut fault = cluster.between(
        "The network carries less than the MTU of its interfaces",
        "Between the nodes packets of more than 1,300 bytes are lost, while the nodes' interfaces have an MTU of 1,500. Small packets pass: connections are made, and hang as soon as they carry data.",
        vec![
            Expected::says(STATUS, 3, &["! node node-b is reached by small packets only"]).whole(),
            Expected::says(CLUSTER, 3, &["! large packets of node-a do not arrive at node-b", "! large packets of node-b do not arrive at node-a"]),
            Expected::says(EXPLAIN, 3, &["FOUND: mtu: node node-b is reached by small packets only"]).whole(),
            Expected::says(MAP, 0, &["small packets only  node-a, node-b"]).whole(),
            Expected::says(TOP, 3, &["! node node-b is reached by small packets only"]),
            Expected::says(PAGE, 0, &["node node-b (IPv4): small-packets-only: "]),
            Expected::says(DOCTOR, 3, &["other nodes: node node-b is reached by small packets only"]),
        ],
    );
    fault.reported = &[("status.txt", "small packets only"), ("doctor.txt", "small packets only")];
    fault.ask(&cluster.stable, page);
}

/// What is said of a chain that drops what the tunnel sends.
fn of_a_firewall() -> Vec<Expected> {
    vec![
        Expected::says(
            STATUS,
            3,
            &[
                "! not ready: underlay: chain inet fw out drops",
                "! node node-b is not reached (IPv4, tunnel): chain inet fw out drops",
            ],
        )
        .whole(),
        Expected::says(
            CLUSTER,
            3,
            &[
                "! node-a is not reached by node-b: node-a receives node-b's encapsulated packets and has sent none back",
                "! node-b is not reached by node-a: node-a has sent no encapsulated packet to node-b",
                "! node-a is not ready: underlay: chain inet fw out drops",
            ],
        )
        .whole(),
        Expected::says(EXPLAIN, 3, &["FOUND: firewall: chain inet fw out drops packets"]).whole(),
        Expected::says(DRIFT, 3, &["chain inet fw out drops packets"]),
        Expected::says(MAP, 0, &["unreachable  node-a, node-b"]),
        Expected::says(
            TOP,
            3,
            &[
                "! not ready: underlay: chain inet fw out drops",
                "! node node-b is not reached (IPv4, tunnel): chain inet fw out drops",
            ],
        ),
        Expected::says(
            PAGE,
            0,
            &[
                "not ready: underlay: chain inet fw out drops",
                "node node-b (IPv4): unreachable: chain inet fw out drops",
            ],
        ),
        Expected::says(
            DOCTOR,
            3,
            &[
                "firewall: chain inet fw out drops packets",
                "other nodes: node node-b is not reached (IPv4, tunnel): chain inet fw out drops",
            ],
        ),
    ]
}

fn firewall(cluster: &Cluster, page: &mut Printed) {
    let a = &cluster.a;
    let rules = "table inet fw { chain out { type filter hook output priority 0; udp dport 4789 drop; }; }";
    a.inside("nft", &[rules]);
    set_network_mtu(cluster, "1500");
    let prepared = format!("On node-a, as a firewall would: `nft '{rules}'`.");
    let mut fault =
        cluster.between("The host's firewall drops the tunnel's packets", &prepared, of_a_firewall());
    fault.seen = [true, true, false];
    fault.reported = &[
        ("status.txt", "chain inet fw out drops"),
        ("doctor.txt", "chain inet fw out drops"),
        ("drift.json", "chain inet fw out drops"),
        ("kernel/nft.txt", "udp dport 4789 drop"),
    ];
    fault.ask(&cluster.stable, page);
    records_are_shown_side_by_side(a);
    a.inside("nft", &["delete table inet fw"]);
    eventually(TIMEOUT, || cluster.is_healthy());
}

/// The network drops what one node sends to the other.
fn one_direction(cluster: &Cluster, page: &mut Printed) {
    let hub = |rules: &str| run("ip", &["netns", "exec", cluster.fabric.hub(), "nft", rules]);
    hub(
        "table bridge cut { chain c { type filter hook forward priority 0; ip saddr 10.77.0.11 udp dport 4789 drop; }; }",
    );
    let mut fault = cluster.between(
        "The network drops the tunnel's packets in one direction",
        "A firewall between the nodes drops what node-a sends to UDP port 4789 of node-b, and nothing else. No rule of a node does.",
        of_one_direction(),
    );
    fault.reported = &[
        ("status.txt", "its tunnel does not"),
        ("doctor.txt", "its tunnel does not"),
        ("kernel/nft.txt", "russet-peers"),
    ];
    fault.ask(&cluster.stable, page);
    hub("delete table bridge cut");
}

/// What is said of it on the node whose packets are lost.
fn of_one_direction() -> Vec<Expected> {
    const LOST: &str = "N arrived from it and came out of this node's tunnel: what this node sends is lost";
    vec![
        Expected::says(STATUS, 3, &[LOST]).whole(),
        Expected::says(
            CLUSTER,
            3,
            &[
                "! node-a is not reached by node-b: node-a receives node-b's packets and has sent N encapsulated packets back in Ns, and none arrived",
                "! node-b is not reached by node-a: node-a has sent N encapsulated packets in Ns, and none arrived",
            ],
        )
        .whole(),
        Expected::says(EXPLAIN, 3, &[LOST]).whole(),
        Expected::says(MAP, 0, &["unreachable  node-a, node-b"]),
        Expected::says(TOP, 3, &[LOST]),
        Expected::says(PAGE, 0, &[LOST]),
        Expected::says(DOCTOR, 3, &[LOST]),
    ]
}

/// What both agents have recorded, which differs from run to run: their tunnels' counters, and that the other node is not reached.
fn records_are_shown_side_by_side(node: &TestNode) {
    let text = node.russet_inside(&["explain", "shop/web", "shop/db", "icmp"]).stdout;
    println!("{text}");
    let line = text.lines().find(|line| line.contains("path: packets in tunnels")).expect("the counters");
    assert!(["node-a", "node-b"].iter().all(|name| line.contains(&format!("node {name} vxlan.calico "))));
    for (name, other) in [("node-a", "node-b"), ("node-b", "node-a")] {
        let said = format!("its probes do not reach node {other}");
        let note = format!("note: record: node {name} said ");
        assert!(text.lines().any(|line| line.contains(&note) && line.contains(&said)), "{text}");
    }
}

fn node_away(cluster: &mut Cluster, page: &mut Printed) {
    cluster.b.kill_agent();
    cluster.b.ip(&["link", "set", "eth0", "down"]);
    cluster.a.ip(&["neigh", "flush", "dev", "eth0"]);
    cluster.age_record("node-b");
    let mut fault = cluster.between(
        "The other node is away",
        "node-b has no power for some minutes: its agent has ended, and its interface is down.",
        vec![
            Expected::says(
                STATUS,
                3,
                &["! node node-b is not reached (IPv4, tunnel): the node answers neither at"],
            )
            .whole(),
            Expected::says(CLUSTER, 3, &["! node-b: no sign since", "! node-b is not reached by node-a"])
                .whole(),
            Expected::says(
                EXPLAIN,
                3,
                &[
                    "FOUND: peer: node node-b is not reached (IPv4, tunnel): the node answers neither at",
                    "FOUND: node: node node-b (10.77.0.12) does not answer",
                ],
            )
            .whole(),
            Expected::says(MAP, 0, &["node-b  no sign", "unreachable  node-a"]),
            Expected::says(
                TOP,
                3,
                &["! node node-b is not reached (IPv4, tunnel): the node answers neither at"],
            ),
            Expected::says(PAGE, 0, &["node node-b (IPv4): unreachable: the node answers neither at"]),
            Expected::says(
                DOCTOR,
                3,
                &["other nodes: node node-b is not reached (IPv4, tunnel): the node answers neither at"],
            ),
        ],
    );
    fault.seen = [true, true, false];
    fault.reported = &[
        ("status.txt", "answers neither at"),
        ("doctor.txt", "answers neither at"),
        ("cluster/status.json", "no-sign"),
    ];
    fault.ask(&cluster.stable, page);
}

#[test]
#[ignore = "root: two nodes on an etcd, with a foreign rule, a small MTU, a firewall, a network that drops in one direction, a node that is gone; kernel: vxlan; tool: etcd, ip, nft, ping, tar"]
fn each_command_says_what_it_knows_of_faults_between_nodes() {
    let mut cluster = Cluster::start();
    let mut page = part("between nodes");
    another_route(&cluster, &mut page);
    small_mtu(&cluster, &mut page);
    firewall(&cluster, &mut page);
    one_direction(&cluster, &mut page);
    node_away(&mut cluster, &mut page);
    page.assert_in_page();
}
