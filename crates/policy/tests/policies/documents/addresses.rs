//! Whose an address is while pods end, and others get their addresses.

use std::net::{TcpListener, TcpStream};

use serde_json::{Value, json};

use super::{Node, egress, pod, policy, selector};
use crate::world::*;

const ADDRESS: &str = "10.9.2.2";

/// A pod at the address, with the label `pod` that has its name.
fn at_the_address(name: &str, created: &str, phase: &str) -> Value {
    let mut pod = pod(name, &[ADDRESS]);
    pod["metadata"]["creationTimestamp"] = format!("2026-01-02T00:00:{created}Z").into();
    pod["status"]["phase"] = phase.into();
    pod
}

/// The pod `a`, which `old` may reach on port 80 and `new` on port 81, its listeners, and a policy
/// for `new` alone.
struct Setup {
    node: Node,
    servers: [TcpListener; 2],
    /// Of the pod at the address.
    own: TcpListener,
}

impl Setup {
    fn new() -> Self {
        let mut node = Node::new();
        node.remove(&pod("b", &[]));
        let rules = [("old", 80), ("new", 81)]
            .map(|(name, port)| json!({ "from": [{ "podSelector": selector(name) }], "ports": [{ "port": port }] }));
        node.put(&policy("ports", json!({ "podSelector": selector("a"), "ingress": rules })));
        let closed = json!({ "podSelector": selector("new"), "policyTypes": ["Ingress"] });
        node.put(&policy("closed", closed));
        let servers = [80, 81].map(|port| listen(Some("a"), "10.9.1.2", port));
        Self { node, servers, own: listen(Some("b"), ADDRESS, 80) }
    }

    /// That the address is that of the pod with this name: what it reaches, and what reaches it.
    #[track_caller]
    fn expect(&self, name: &str) {
        let taken = |client: Option<TcpStream>, server: &TcpListener| {
            client.map(|client| (client, server.accept().unwrap().0))
        };
        for ((port, allowed), server) in [(80, "old"), (81, "new")].into_iter().zip(&self.servers) {
            drop(taken(connect(Some("b"), "10.9.1.2", port, allowed == name), server));
        }
        drop(taken(connect(Some("a"), ADDRESS, 80, name == "old"), &self.own));
    }

    /// A connection of the pod `old`.
    fn connection(&self) -> (TcpStream, TcpStream) {
        connected(Some("b"), "10.9.1.2", &self.servers[0])
    }
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn an_address_is_at_once_of_the_pod_that_has_it_now() {
    // policy.md P30
    use std::slice::from_ref;
    let at = at_the_address;
    let ended = |phase| at("old", "10", phase);
    let new = at("new", "20", "Running");
    let older = at("new", "05", "Running");
    let steps: [(&[Value], &str); 5] = [
        // It ends, and the other one comes; both orders.
        (&[ended("Succeeded"), new.clone()], "new"),
        (&[new.clone(), ended("Failed")], "new"),
        // Nothing says that it ended: the younger one has the address, in both orders.
        (from_ref(&new), "new"),
        (from_ref(&older), "old"),
        // The one that has not ended has it, also if it is the older one.
        (&[older.clone(), ended("Succeeded")], "new"),
    ];
    on_a_node(|| {
        let mut setup = Setup::new();
        for (documents, owner) in steps {
            setup.node.put(&ended("Running"));
            setup.node.flush();
            setup.expect("old");
            let (client, accepted) = setup.connection();
            assert!(carries(&client, &accepted, true));
            documents.iter().for_each(|document| setup.node.put(document));
            setup.node.flush();
            setup.expect(owner);
            // What the pod before it had begun is judged by what the address is now.
            assert_eq!(carries(&client, &accepted, owner == "old"), owner == "old");
            setup.node.remove(&new);
        }
    });
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn a_pod_that_is_being_deleted_keeps_its_policies_and_its_identity_until_it_ends() {
    // policy.md P31
    on_a_node(|| {
        let mut setup = Setup::new();
        let old = at_the_address("old", "10", "Running");
        let closed = egress("old", json!([{ "to": [{ "podSelector": selector("a") }] }]));
        setup.node.put(&old);
        setup.node.put(&closed);
        setup.node.flush();
        let (client, accepted) = setup.connection();
        let mut deleted = old.clone();
        deleted["metadata"]["deletionTimestamp"] = "2026-01-02T00:01:00Z".into();
        deleted["metadata"]["deletionGracePeriodSeconds"] = 30.into();
        setup.node.put(&deleted);
        assert_eq!(setup.node.flush(), russet_verdict::table::Delta::default());
        assert!(carries(&client, &accepted, true) && carries(&accepted, &client, true));
        setup.expect("old");
        let other = listen(Some("c"), "10.9.3.2", 80);
        connect(Some("b"), "10.9.3.2", 80, false);
        // Its containers have ended.
        deleted["status"]["phase"] = "Succeeded".into();
        setup.node.put(&deleted);
        assert!(setup.node.flush().tightens);
        connect(Some("b"), "10.9.1.2", 80, false);
        drop(other);
    });
}
