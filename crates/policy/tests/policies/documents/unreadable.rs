//! Records of etcd that `calicoctl` refuses to write, and that another program wrote (policy.md section 1.4).

use std::net::UdpSocket;
use std::time::Duration;

use russet_testkit::eventually;
use serde_json::{Value, json};

use super::Node;
use crate::world::*;

/// On a busy machine.
const SOON: Duration = Duration::from_secs(10);
const NAME: &str = "globalnetworkpolicies/bad";

/// Rules without their action, each of which `calicoctl` refuses in ingress.
fn rules() -> Vec<Value> {
    let service = json!({ "name": "s", "namespace": "x" });
    vec![
        json!({ "destination": { "services": service } }),
        json!({ "source": { "services": service, "selector": "all()" } }),
        json!({ "source": { "services": service, "nets": ["10.0.0.0/8"] } }),
        json!({ "source": { "services": service, "namespaceSelector": "all()" } }),
        json!({ "source": { "services": service, "serviceAccounts": { "names": ["default"] } } }),
        json!({ "destination": { "services": service, "ports": [53] }, "protocol": "UDP" }),
        json!({ "destination": { "ports": [53] } }),
        json!({ "destination": { "ports": [53] }, "protocol": "UDPLite" }),
        json!({ "destination": { "ports": [53] }, "protocol": "ICMP" }),
        json!({ "destination": { "ports": [0] }, "protocol": "UDP" }),
        json!({ "destination": { "notPorts": ["9:8"] }, "protocol": "UDP" }),
        json!({ "protocol": 0 }),
        json!({ "protocol": 256 }),
        json!({ "protocol": "udp" }),
        json!({ "protocol": "ICMP", "icmp": { "code": 0 } }),
        json!({ "future": true }),
        json!({ "source": { "future": true } }),
        json!({ "source": { "selector": "a = b" } }),
        json!({ "source": { "nets": ["10.0.0.0/99"] } }),
        json!({ "ipVersion": 5 }),
        json!(1),
    ]
}

/// Records that are together, none of which says that the pod `b` may reach the pod `a`.
fn records() -> Vec<Vec<(&'static str, Value)>> {
    let policy = |members: Value| {
        let mut spec = json!({ "selector": "pod == 'a'", "types": ["Ingress"] });
        spec.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        json!({ "spec": spec })
    };
    let open = json!([{ "action": "Allow" }]);
    let closed = policy(json!({}));
    let from_y =
        json!([{ "action": "Allow", "source": { "selector": "projectcalico.org/namespace == 'y'" } }]);
    let labels = json!({ "projectcalico.org/namespace": "y" });
    let out = json!([{ "action": "Deny", "source": { "services": { "name": "s", "namespace": "x" } } }, { "action": "Allow" }]);
    vec![
        vec![(NAME, policy(json!({ "order": "first", "ingress": open })))],
        vec![(NAME, policy(json!({ "doNotTrack": true, "preDNAT": true, "ingress": open })))],
        vec![(NAME, policy(json!({ "applyOnForward": "yes", "ingress": open })))],
        vec![(NAME, policy(json!({ "types": ["Ingress", "Ingress"] })))],
        vec![(NAME, policy(json!({ "types": ["ingress"] })))],
        vec![(NAME, policy(json!({ "types": "Ingress" })))],
        vec![(NAME, policy(json!({ "future": true })))],
        vec![(NAME, policy(json!({ "tier": "none" })))],
        vec![(NAME, policy(json!({ "ingress": { "action": "Allow" } })))],
        vec![(NAME, json!({ "spec": { "selector": "pod == 'b'", "types": ["Egress"], "egress": out } }))],
        vec![
            ("tiers/t", json!({ "spec": { "order": 1, "defaultAction": "Allow" } })),
            (NAME, policy(json!({ "tier": "t" }))),
        ],
        vec![("globalnetworkpolicies/a.b.c", closed.clone())],
        vec![("networkpolicies/x/a.b.c", closed)],
        vec![("networkpolicies/x/selector", json!({ "spec": { "selector": "a = b", "ingress": open } }))],
        vec![
            (
                "globalnetworksets/s",
                json!({ "metadata": { "labels": labels }, "spec": { "nets": ["10.9.0.0/16"] } }),
            ),
            (NAME, policy(json!({ "ingress": from_y }))),
        ],
    ]
}

/// Sends packets of the pod `b` to the pod `a`.
struct Sockets {
    client: UdpSocket,
    node: UdpSocket,
    server: UdpSocket,
    sent: u32,
}

impl Sockets {
    fn open() -> Self {
        let server = udp(Some("a"), "10.9.1.2", 53);
        server.set_read_timeout(Some(SOON)).unwrap();
        let (client, node) = (udp(Some("b"), "10.9.2.2", 0), udp(None, "192.0.2.1", 0));
        Self { client, node, server, sent: 0 }
    }

    /// Whether a packet arrives. The node's own packets pass always, and overtake none.
    fn arrives(&mut self) -> bool {
        self.sent += 1;
        let (packet, to) = (self.sent.to_be_bytes(), self.server.local_addr().unwrap());
        self.client.send_to(&packet, to).unwrap();
        self.node.send_to(&packet, to).unwrap();
        let mut arrived = false;
        loop {
            let mut found = [0; 4];
            let (_, from) = self.server.recv_from(&mut found).expect("the node's packet arrives");
            match (found == packet, from == self.node.local_addr().unwrap()) {
                (true, true) => return arrived,
                (is_it, _) => arrived |= is_it,
            }
        }
    }
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn records_that_calicoctl_refuses_open_nothing() {
    // policy.md P88
    let in_policy = |rules: Value| json!({ "spec": { "selector": "pod == 'a'", "types": ["Ingress"], "ingress": rules } });
    let mut sets = records();
    for rule in rules() {
        for action in ["Allow", "Log", "Deny", "Pass"] {
            let mut rule = rule.clone();
            rule.as_object_mut()
                .into_iter()
                .for_each(|members| _ = members.insert("action".to_owned(), action.into()));
            let is_denying = matches!(action, "Deny" | "Pass") || !rule.is_object();
            let behind = is_denying.then(|| json!({ "action": "Allow" }));
            sets.push(vec![(NAME, in_policy([rule].into_iter().chain(behind).collect()))]);
        }
    }
    on_a_node(|| {
        let (mut node, mut sockets) = (Node::new(), Sockets::open());
        node.flush();
        for set in sets {
            eventually(SOON, || sockets.arrives());
            set.iter().for_each(|(name, value)| node.record(name, Some(value)));
            node.flush();
            assert!(!sockets.arrives(), "{set:#?}");
            set.iter().for_each(|(name, _)| node.record(name, None));
            node.flush();
        }
        eventually(SOON, || sockets.arrives());
    });
}
