//! Another program flushes the kernel objects of OpenShift's tenants while every pod sends to every
//! other: they are restored within milliseconds, counted and reported, and no packet crosses
//! tenants meanwhile, as the receivers see it.

use std::collections::BTreeMap;
use std::time::Duration;

use russet_testkit::cross_traffic::Arrival;
use russet_testkit::eventually;

use crate::drift::{drift, quiet, repaired};
use crate::fabric::Fabric;
use crate::node::{TIMEOUT, TestNode};
use crate::openshift_tenants::{Attached, across, agent_args, attach, cross_traffic, netnamespace, pairs};

/// Pods: blue and red on each of two nodes.
const PODS: u8 = 4;
/// The machine of a test is busy; the goal of 50 ms is printed beside the measured time.
const GAP_MAX: Duration = Duration::from_secs(2);

/// Each change of the second node, the program first, and the expected repair; without one, traffic
/// goes on all the same.
const CHANGES: [(&[&str], Option<&str>); 11] = [
    (&["nft", "flush", "ruleset"], Some("sdn_table")),
    (&["nft", "flush", "chain", "ip", "russet-sdn", "leaving"], Some("sdn_table")),
    (&["nft", "flush", "chain", "ip", "russet-sdn", "prerouting"], Some("sdn_table")),
    (&["nft", "flush", "chain", "ip", "russet-sdn", "from-tunnel"], Some("sdn_table")),
    (&["nft", "flush", "chain", "ip", "russet-sdn", "forward"], Some("sdn_table")),
    (&["ip", "route", "flush", "table", "main", "proto", "116"], Some("sdn_route")),
    (&["ip", "neighbour", "flush", "nud", "permanent"], Some("sdn_neighbour")),
    // BPF programs decide where packets go, not the entries.
    (&["bridge", "fdb", "flush", "dev", "vxlan-sdn"], None),
    (&["ip", "link", "set", "vxlan-sdn", "down"], Some("sdn_device")),
    (&["ip", "link", "delete", "vxlan-sdn"], Some("sdn_device")),
    (&["sysctl", "-qw", "net.ipv4.ip_forward=0"], Some("sdn_sysctl")),
];

/// The longest time between two consecutive packets, of all pairs that may talk and one of whom is
/// on the second node.
fn longest_gap(arrivals: &[Arrival], from_ns: u64) -> Duration {
    let mut sent: BTreeMap<(u8, u8), Vec<u64>> = BTreeMap::new();
    for arrival in arrivals.iter().filter(|it| it.sent_ns >= from_ns && (it.from / 2 == 1 || it.to / 2 == 1))
    {
        sent.entry((arrival.from, arrival.to)).or_default().push(arrival.sent_ns);
    }
    let gap = |mut times: Vec<u64>| {
        times.sort_unstable();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
    };
    Duration::from_nanos(sent.into_values().map(gap).max().unwrap_or(0))
}

#[test]
#[ignore = "root: makes network namespaces; tool: ip, bridge, nft, etcd, curl"]
fn flushed_openshift_objects_are_restored_and_tenants_stay_isolated() {
    let mut fabric = Fabric::new();
    let args = agent_args();
    let mut nodes: Vec<TestNode> = (1..=2).map(|n| fabric.node(&format!("node-{n}"), &args)).collect();
    netnamespace(&nodes[0], &["create", "blue"]);
    netnamespace(&nodes[0], &["create", "red"]);
    nodes.iter_mut().for_each(TestNode::start_agent);
    let pods: Vec<Attached> =
        nodes.iter_mut().flat_map(|node| [attach(node, "blue"), attach(node, "red")]).collect();
    let node = &nodes[1];
    eventually(TIMEOUT, || nodes.iter().all(quiet));
    for (harm, kind) in CHANGES {
        let traffic = cross_traffic(&pods);
        traffic.flows(&pairs(PODS, false), 0);
        let was = kind.map(|kind| repaired(node, kind));
        let began = traffic.now();
        node.inside(harm[0], &harm[1..]);
        eventually(TIMEOUT, || kind.is_none_or(|kind| Some(repaired(node, kind)) > was));
        eventually(TIMEOUT, || quiet(node));
        traffic.flows(&pairs(PODS, false), traffic.now());
        let arrivals = traffic.end();
        let gap = longest_gap(&arrivals, began);
        println!(
            "{}: {} packets arrived, at most {:.1} ms without one",
            harm.join(" "),
            arrivals.len(),
            gap.as_secs_f64() * 1000.0
        );
        assert!(gap < GAP_MAX, "{harm:?}: {gap:?}");
        let crossed: Vec<&Arrival> = arrivals.iter().filter(|it| across(it.from, it.to)).take(10).collect();
        assert!(crossed.is_empty(), "{harm:?}: {crossed:?}");
    }
    let report = drift(node);
    let repairs = report["repairs"].as_array().unwrap();
    let by_nft = |repair: &&serde_json::Value| {
        repair["who"].as_array().unwrap().iter().any(|who| who["process"] == "nft")
    };
    assert!(repairs.iter().any(|repair| by_nft(&repair) && repair["kinds"]["sdn_table"] == 1), "{report:#}");
    let metrics = node.inside("curl", &["-sf", "http://127.0.0.1:9471/metrics"]);
    for kind in CHANGES.iter().filter_map(|(_, kind)| *kind) {
        let line = format!("russet_drift_repairs_total{{kind=\"{kind}\"}}");
        assert!(metrics.contains(&line), "{metrics}");
    }
    println!("{}", node.russet(&["drift", "--last", "50"]).stdout);
}
