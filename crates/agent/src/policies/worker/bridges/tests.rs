use std::sync::Arc;

use russet_attach::{Bridge, Port, Wired};
use russet_journal::EndpointTable;
use russet_linux::NetNs;
use russet_model::ResourceKind;
use russet_testkit::{in_netns_with_loopback, pings_with, sh, succeeds};
use serde_json::json;

use super::*;
use crate::config::Paths;
use crate::fast_path::Signal;
use crate::health::Readiness;
use crate::metrics::PolicyMetrics;
use crate::policies::alone::Marker;
use crate::policies::{Change, Kind, Shared, Source};

const GLOBAL: Kind = Kind::Records(ResourceKind::GlobalNetworkPolicy);

/// A pod behind `cni0`, as the plugin `bridge` wires it, in a namespace of its name.
fn pod(name: &str, address: &str) -> Wired {
    NetNs::create_named(name).unwrap();
    let host_name = format!("port-{name}");
    sh(&format!("ip link add {host_name} type veth peer name eth0 netns {name}"));
    sh(&format!("ip link set {host_name} master cni0 up"));
    sh(&format!("ip -n {name} addr add {address}/24 dev eth0"));
    sh(&format!("ip -n {name} link set eth0 up"));
    let bridge = Bridge {
        name: "cni0".parse().unwrap(),
        mtu: None,
        promiscuous: false,
        gateways: Vec::new(),
        force_address: false,
        mac: None,
    };
    let id = format!("net/{name}/eth0").parse().unwrap();
    Wired::Port(Port {
        host_name: host_name.parse().unwrap(),
        id,
        bridge,
        mode: Default::default(),
        addresses: vec![format!("{address}/24").parse().unwrap()],
        routes: Vec::new(),
        mtu: None,
        mac: None,
        sync_delete: false,
        source_check: Default::default(),
    })
}

/// What the thread does after a change, or once bridges are looked at again.
fn step(worker: &mut Worker) {
    worker.look_at_bridges();
    worker.decide();
    worker.publish();
}

#[test]
#[ignore = "kernel: nf_tables, bridge, br_netfilter, veth, root; tools: ip, nft, ping"]
fn an_agent_is_not_ready_while_a_bridge_passes_policies_by_and_says_which_pods_it_concerns() {
    // policy.md P126
    in_netns_with_loopback(|| {
        let judges =
            |value: &str| std::fs::write("/proc/sys/net/bridge/bridge-nf-call-iptables", value).unwrap();
        sh("ip link add cni0 type bridge");
        sh("ip addr add 10.8.0.1/24 dev cni0");
        sh("ip link set cni0 up");
        let (endpoints, readiness) = (EndpointTable::default(), Readiness::pending());
        [("a", "10.8.0.2"), ("b", "10.8.0.3")]
            .iter()
            .for_each(|(name, address)| endpoints.put(pod(name, address)));
        let dir = tempfile::tempdir().unwrap();
        let marker = Marker::new(&Paths::new(dir.path()));
        let shared = Arc::new(Shared::new(Source::Records));
        let reports = (PolicyMetrics::default(), readiness.clone());
        let mut worker = Worker::new("n1", (endpoints, &Signal::default()), marker, shared, reports);
        worker.begin();
        for kind in Source::Records.kinds().iter().copied() {
            worker.take(Change::Begin(kind));
            worker.take(Change::Complete(kind));
        }
        let reaches = || pings_with("b", &["-W", "1", "10.8.0.2"]);
        judges("0");
        step(&mut worker);
        assert!(readiness.failure(Condition::Policies).is_none() && reaches(), "without a policy");

        let deny =
            json!({ "metadata": { "name": "deny" }, "spec": { "selector": "all()", "types": ["Ingress"] } });
        worker.take(Change::Put(GLOBAL, deny.clone()));
        step(&mut worker);
        let reason = readiness.failure(Condition::Policies).unwrap();
        assert!(reason.contains("default/a on cni0, default/b on cni0"), "{reason}");
        assert!(reason.contains("net.bridge.bridge-nf-call-iptables is 0"), "{reason}");
        assert!(reaches(), "the kernel shows these packets to no rule");

        judges("1");
        step(&mut worker);
        assert_eq!(readiness.failure(Condition::Policies), None);
        assert!(!reaches() && succeeds("ping -n -c 1 -W 5 10.8.0.2"), "the policy, and the node itself");
        assert!(worker.bridges_at.is_some(), "another program may change the setting");

        judges("0");
        step(&mut worker);
        assert!(readiness.is_unmet(Condition::Policies));
        worker.take(Change::Deleted(GLOBAL, deny));
        step(&mut worker);
        assert!(!readiness.is_unmet(Condition::Policies) && reaches());
    });
}
