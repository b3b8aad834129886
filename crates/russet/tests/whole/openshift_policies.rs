//! A cluster of OpenShift that isolates by NetworkPolicies (policy.md section 1.10): two agents in place of
//! openshift-sdn on one etcd, with policies that `russet apply` writes while every pod sends to every other.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use russet_testkit::cross_traffic::{self, Arrival};
use russet_testkit::eventually;
use serde_json::{Value, json};

use crate::fabric::Fabric;
use crate::node::TestNode;
use crate::openshift_tenants::{Attached, across, agent_args, attach, cross_traffic, netnamespace, pairs};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Two nodes, each with a pod of namespace `blue` and one of `red`.
struct Setup {
    nodes: Vec<TestNode>,
    pods: Vec<Attached>,
    _fabric: Fabric,
}

// === impl Setup ===

impl Setup {
    fn new(mode: &str) -> Self {
        let mut fabric = Fabric::new();
        let network = json!({ "kind": "ClusterNetwork", "apiVersion": "network.openshift.io/v1", "metadata": { "name": "default" },
            "clusterNetworks": [{ "CIDR": "10.128.0.0/14", "hostSubnetLength": 9 }], "serviceNetwork": "172.30.0.0/16",
            "pluginName": format!("redhat/openshift-ovs-{mode}"), "vxlanPort": 4789 });
        fabric.put("/russet/openshift/v1/clusternetworks/default", &network.to_string());
        let args = agent_args();
        let mut nodes: Vec<TestNode> = ["node-1", "node-2"].map(|name| fabric.node(name, &args)).into();
        netnamespace(&nodes[0], &["create", "blue"]);
        netnamespace(&nodes[0], &["create", "red"]);
        nodes.iter_mut().for_each(TestNode::start_agent);
        let pods = nodes.iter_mut().flat_map(|node| [attach(node, "blue"), attach(node, "red")]).collect();
        Self { nodes, pods, _fabric: fabric }
    }

    #[track_caller]
    fn apply(&self, document: &Value) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_russet"));
        command.args(["apply", "-f", "-", "--root"]).arg(self.nodes[0].root());
        let answer = self.nodes[0].output(&mut command, document.to_string());
        assert_eq!(answer.status, 0, "{answer:?}");
    }

    fn reaches(&self, from: usize, to: usize) -> bool {
        reaches(&self.pods[from], &self.pods[to])
    }
}

fn reaches(from: &Attached, to: &Attached) -> bool {
    from.pod.pings(&["-W", "1", &to.address.to_string()])
}

/// Pairs of the four pods that may talk, by the receiver's namespace and that of both.
fn allowed(may: impl Fn(u8, u8) -> bool) -> BTreeSet<(u8, u8)> {
    cross_traffic::pairs(4, may)
}

fn is_blue(pod: u8) -> bool {
    pod.is_multiple_of(2)
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, etcdctl, ip, nft, ping"]
fn network_policies_decide_in_the_place_of_network_ids_and_outlast_the_agent() {
    // policy.md section 1.10, mode networkpolicy
    let mut setup = Setup::new("networkpolicy");
    let traffic = cross_traffic(&setup.pods);
    traffic.flows(&pairs(4, true), traffic.now());

    setup.apply(&json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "closed", "namespace": "blue" },
        "spec": { "podSelector": {}, "policyTypes": ["Ingress", "Egress"] } }));
    let denied = [(0, 2), (1, 0), (1, 2), (2, 0), (3, 0), (3, 2)];
    denied.iter().for_each(|(from, to)| eventually(TIMEOUT, || !setup.reaches(*from, *to)));
    let closed = traffic.now();
    let among_red = allowed(|from, to| !is_blue(from) && !is_blue(to));
    traffic.flows(&among_red, closed);
    // A pod that starts now is closed from its first packet.
    let late = attach(&mut setup.nodes[0], "blue");
    assert!(!reaches(&setup.pods[0], &late) && !reaches(&setup.pods[3], &late));
    let closed = closed..=traffic.now();

    // This store has no records of pods, so that pods of another node have no labels.
    let red = [1, 3].map(|pod| format!("{}/32", setup.pods[pod].address));
    setup.apply(&json!({ "apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy",
        "metadata": { "name": "from-red" },
        "spec": { "order": 10, "selector": "projectcalico.org/namespace == 'blue'", 
            "ingress": [{ "action": "Allow", "source": { "nets": &red } }],
            "egress": [{ "action": "Allow", "destination": { "nets": red } }] } }));
    let opened = traffic.now();
    let may = allowed(|from, to| !is_blue(from) || across(from, to));
    traffic.flows(&may, opened);
    eventually(TIMEOUT, || reaches(&setup.pods[3], &late));
    for agent_runs in [false, true] {
        match agent_runs {
            false => setup.nodes[1].stop_agent(),
            true => setup.nodes[1].start_agent(),
        }
        traffic.flows(&may, traffic.now());
    }
    let explained = |from: &Attached, to: &Attached| {
        let name = |attached: &Attached, namespace: &str| format!("{namespace}/{}", attached.pod.container);
        let args = ["explain", &name(from, "blue"), &name(to, "blue"), "-o", "json"];
        setup.nodes[0].russet_inside(&args)
    };
    let answer = explained(&setup.pods[0], &late);
    let shown: Value = serde_json::from_str(&answer.stdout).unwrap();
    let agrees: Vec<&Value> = shown["kernel"].as_array().unwrap().iter().map(|end| &end["agrees"]).collect();
    assert_eq!(
        (answer.status, &shown["verdict"], agrees),
        (3, &json!("denied"), vec![&json!(true); 2]),
        "{answer:?}"
    );
    assert_eq!(shown["findings"], json!([]), "{answer:?}");
    let late_too = attach(&mut setup.nodes[1], "blue");
    assert!(!reaches(&setup.pods[0], &late_too));
    eventually(TIMEOUT, || reaches(&setup.pods[1], &late_too));
    let ended = traffic.now();
    let arrivals = traffic.end();
    let is_wrong = |arrival: &&Arrival| {
        let (from, to) = (arrival.from, arrival.to);
        let while_closed = closed.contains(&arrival.sent_ns) && !among_red.contains(&(from, to));
        while_closed || (opened..=ended).contains(&arrival.sent_ns) && !may.contains(&(from, to))
    };
    let wrong: Vec<&Arrival> = arrivals.iter().filter(is_wrong).take(10).collect();
    assert!(wrong.is_empty(), "denied: {wrong:?}");
}

#[test]
#[ignore = "root: makes network namespaces; kernel: vxlan; tool: etcd, ip, nft, ping"]
fn tenants_decide_alone_in_their_mode_and_the_agent_says_so() {
    let setup = Setup::new("multitenant");
    let verbose = || setup.nodes[0].get("/readyz?verbose");
    eventually(TIMEOUT, || verbose().contains("policies on OpenShift's pods: NOT ENFORCED"));
    assert!(setup.reaches(0, 2) && !setup.reaches(0, 1) && !setup.reaches(0, 3));
}
