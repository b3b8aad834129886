//! Failsafe ports of a FelixConfiguration (policy.md section 1.8).

use std::collections::BTreeSet;

use russet_policy::{HostReport, Hosts};
use russet_testkit::run;
use serde_json::{Value, json};

use super::{NODE, OUT, TABLE, at_an_uplink, guard, host, object, policy, table};
use crate::world::*;

fn felix(name: &str, inbound: Value, outbound: Value) -> Value {
    let spec = json!({ "failsafeInboundHostPorts": inbound, "failsafeOutboundHostPorts": outbound });
    object("FelixConfiguration", name, spec)
}

fn port(port: u16, net: &str) -> Value {
    json!({ "protocol": "tcp", "port": port, "net": net })
}

#[test]
#[ignore = "kernel: nf_tables, veth, root; tools: ip, nft"]
fn failsafe_ports_of_a_felix_configuration_replace_calicos_and_may_be_for_some_peers() {
    at_an_uplink(|| {
        let mut hosts = Hosts::open().unwrap();
        let servers = NODE.map(|at| [22, 80, 10250].map(|port| listen(None, at, port)));
        let _outside = OUT.map(|at| [6443, 8443, 9443].map(|port| listen(Some("out"), at, port)));
        let ssh = connected(Some("out"), NODE[0], &servers[0][0]);
        // The nets of a port may contain each other, as elements of the kernel may not.
        let inbound = json!([
            port(10250, "203.0.0.0/8"),
            port(10250, "203.0.113.0/24"),
            port(10250, OUT[1]),
            port(10250, "203.0.113.9"),
            port(80, "198.51.100.0/24"),
            port(80, "2001:db8:a::/48")
        ]);
        let outbound = json!([{ "port": 8443 }, port(9443, "203.0.113.0/24"), port(9443, "2001:db8:9::/64")]);
        let objects = [host("*"), felix("default", inbound, outbound)];
        guard(&mut hosts, &objects);
        for (node, out) in NODE.into_iter().zip(OUT) {
            connect(Some("out"), node, 10250, true);
            connect(Some("out"), node, 80, false);
            connect(Some("out"), node, 22, false);
            connect(None, out, 8443, true);
            connect(None, out, 9443, true);
            connect(None, out, 6443, false);
        }
        assert!(!carries(&ssh.0, &ssh.1, false), "what is no failsafe port any more ends");
        assert_eq!(guard(&mut hosts, &objects), HostReport::default(), "nothing has changed");
        let [listed, none] = ["failsafe-in-for4", "failsafe-out-for6"]
            .map(|set| run("nft", &[format!("list set {TABLE} {set}").as_str()]));
        assert!(listed.contains("203.0.0.0/8") && !listed.contains("203.0.113"), "{listed}");
        assert!(none.contains("2001:db8:9::/64"), "{none}");

        // Before connection tracking each direction passes by itself.
        let deny = json!([{ "action": "Deny" }]);
        let untracked = policy(json!({ "selector": "all()", "doNotTrack": true, "applyOnForward": true,
            "types": ["Ingress", "Egress"], "ingress": deny, "egress": deny }));
        let [host, settings] = objects;
        guard(&mut hosts, &[host.clone(), settings, untracked]);
        for ((node, out), servers) in NODE.into_iter().zip(OUT).zip(&servers) {
            connected(Some("out"), node, &servers[2]);
            connect(Some("out"), node, 22, false);
            connect(None, out, 9443, true);
        }

        // The node's own list goes before, and an empty one is none.
        let of_node = felix("node.n1", json!([]), json!(null));
        let of_cluster = felix("default", json!([{ "port": 22 }]), json!([]));
        guard(&mut hosts, &[host.clone(), of_cluster.clone(), of_node]);
        connect(Some("out"), NODE[0], 22, false);
        connect(None, OUT[0], 6443, false);
        guard(&mut hosts, &[host.clone(), of_cluster]);
        connect(Some("out"), NODE[0], 22, true);
        guard(&mut hosts, &[host]);
        connect(None, OUT[0], 6443, true);
    });
}

#[test]
#[ignore = "kernel: nf_tables, root; tools: nft"]
fn what_nft_lists_of_failsafe_ports_for_some_peers_loads_again() {
    on_a_node(|| {
        let net = |net: &str| json!([port(1, net), { "protocol": "udp", "port": 2, "net": net }]);
        let all = felix("default", net("0.0.0.0/0"), net("::/0"));
        Hosts::open().unwrap().apply(&table(&[host("*"), all]), &BTreeSet::new()).unwrap();
        let listed = ruleset();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("flush ruleset\n{listed}")).unwrap();
        run("nft", &["-f", file.path().to_str().unwrap()]);
        assert_eq!(ruleset(), listed);
        assert!(listed.contains("0.0.0.0/0") && listed.contains("::/0"), "{listed}");
    });
}
