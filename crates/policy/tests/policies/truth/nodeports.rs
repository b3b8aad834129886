//! Node ports: a node that translates the client's address hides it from the policies of the pod's node.

use std::net::TcpListener;

use russet_linux::NetNs;
use russet_testkit::{bound, inside, run};
use russet_verdict::explain::{Explanation, Probe};
use russet_verdict::generate;
use russet_verdict::ir::Protocol;
use russet_verdict::snapshot::Snapshot;
use russet_verdict::translate::Translator;
use serde_json::json;

use super::nodes::{self, Lab, OUTSIDE};
use crate::world::{connect, ip};

/// The pod `x/b`, which is on the node n2, and its namespace.
const POD: (&str, &str) = ("10.244.1.2", "x-b");
const PORT: u16 = 80;
const NODE_PORT: u16 = 30_080;
/// Both nodes with their addresses; the first translates clients' addresses, as kube-proxy does with the
/// `externalTrafficPolicy` Cluster, the other, which the pod is on, does not (Local).
const NODES: [(&str, &str, bool); 2] = [("n1", "192.168.0.1", true), ("n2", "192.168.0.2", false)];

/// Opens the node port as kube-proxy does.
fn open_node_port(node: &str, translates_source: bool) {
    let (address, port) = (POD.0, PORT);
    let masquerade = if translates_source { "masquerade" } else { "accept" };
    let rules = format!(
        "add table ip kube; add chain ip kube pre {{ type nat hook prerouting priority -100; }};
         add chain ip kube post {{ type nat hook postrouting priority 100; }};
         add rule ip kube pre tcp dport {NODE_PORT} dnat to {address}:{port};
         add rule ip kube post ct status dnat {masquerade}"
    );
    inside(node, &["nft", &rules]);
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn a_rule_for_the_clients_address_counts_only_where_no_node_translates_it_and_explain_notes_that() {
    // policy.md P32 and P33
    russet_testkit::in_netns_with_loopback(|| {
        let client = OUTSIDE[0];
        let (mut lab, mut snapshot, mut translator) =
            (Lab::new(), Snapshot::default(), Translator::default());
        for (node, address, translates_source) in NODES {
            open_node_port(node, translates_source);
            // Connections of this namespace are the client's.
            run("ip", &["route", "replace", address, "dev", &format!("to-{node}"), "src", client]);
        }
        let cluster: Vec<_> = generate::cluster().into_iter().map(nodes::dual_stack).collect();
        for update in &cluster {
            lab.apply(update);
            snapshot.apply(update.clone());
        }
        let pod = NetNs::open_named(POD.1).unwrap();
        let server = pod.with(|| bound(|| TcpListener::bind((POD.0, PORT)))).unwrap();
        // The policy allows this address alone: through which nodes the client reaches the pod.
        for (allowed, through) in
            [(client, [false, true]), (NODES[0].1, [true, false]), ("0.0.0.0/0", [true; 2])]
        {
            let cidr = if allowed.contains('/') { allowed.to_owned() } else { format!("{allowed}/32") };
            let policy = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": { "name": "node-port", "namespace": "x" },
                "spec": { "podSelector": { "matchLabels": { "pod": "b" } },
                    "ingress": [{ "from": [{ "ipBlock": { "cidr": cidr } }] }] } });
            for update in translator.put(&policy).updates {
                lab.apply(&update);
                snapshot.apply(update);
            }
            lab.flush();
            for ((_, address, _), expected) in NODES.into_iter().zip(through) {
                let reached = connect(None, address, NODE_PORT, expected);
                drop(reached.map(|client| (client, server.accept().unwrap())));
            }
        }
        let flow = Probe { protocol: Protocol::TCP, port: PORT }.flow(ip(client), ip(POD.0)).unwrap();
        let notes = Explanation::new(&snapshot, &flow).notes;
        let is_noted =
            |note: &String| note.contains("has the address of that node here and not the client's");
        assert!(notes.iter().any(is_noted), "{notes:?}");
    });
}
