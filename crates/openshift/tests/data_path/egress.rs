//! What EgressNetworkPolicies deny to pods, with real packets to a machine outside of the cluster (kubernetes.md section 6.4).

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use russet_openshift::data_path::{Sdn, Tenancy};
use russet_testkit::bridge::on_bridge;
use russet_testkit::forged::{first_is_honest, only_honest_arrived, socket, while_sending};
use russet_testkit::{eventually, sh};

use crate::lab::{Node, Pod, Rules, egress, gateway, id, node_ip, sound, with_nodes};

/// A namespace and an address there.
type Place = (&'static str, Ipv4Addr);

const TIMEOUT: Duration = Duration::from_secs(20);
/// Addresses of the machine outside.
const ONE: Place = ("outside", Ipv4Addr::new(198, 51, 100, 7));
const OTHER: Place = ("outside", Ipv4Addr::new(198, 51, 100, 8));
const EVERYTHING: (bool, &str) = (false, "0.0.0.0/0");
const OTHER_DENIED: (bool, &str) = (false, "198.51.100.8/32");

/// Makes the machine outside, to which the first node has a route.
fn outside() {
    on_bridge(ONE.0, &[format!("{}/24", node_ip(9))]);
    for (_, address) in [ONE, OTHER] {
        sh(&format!("ip -n outside addr add {address}/32 dev lo"));
    }
    sh(&format!("ip -n n1 route add 198.51.100.0/24 via {}", node_ip(9)));
}

/// A receiver at a port of its own: no packet of an earlier one comes late.
fn receiver((netns, address): Place) -> UdpSocket {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    socket(netns, address, NEXT.fetch_add(1, Ordering::Relaxed))
}

/// No packet of the one arrives, while packets of the other do.
#[track_caller]
fn assert_denied(denied: &UdpSocket, honest: &UdpSocket, place: Place) {
    let receiver = receiver(place);
    let to = receiver.local_addr().unwrap();
    let attack = || {
        for _ in 0..3 {
            let _ = denied.send_to(&[1], to);
        }
    };
    for _ in 0..5 {
        assert!(first_is_honest(&attack, honest, &receiver), "a denied packet arrived");
    }
}

#[track_caller]
fn assert_arrives(sender: &UdpSocket, place: Place) {
    arrives_at(sender, &receiver(place));
}

#[track_caller]
fn arrives_at(sender: &UdpSocket, receiver: &UdpSocket) {
    let to = receiver.local_addr().unwrap();
    eventually(TIMEOUT, || {
        let _ = sender.send_to(&[3], to);
        receiver.recv_from(&mut [0]).is_ok()
    });
}

/// The name of the chain or set of the first node that begins so.
#[track_caller]
fn named(prefix: &str) -> String {
    let table = sh("ip netns exec n1 nft list table ip russet-sdn");
    let mut words = table.split_whitespace();
    words.find(|word| word.starts_with(prefix)).expect(prefix).trim_end_matches(',').to_owned()
}

fn sender(pod: &Pod) -> UdpSocket {
    socket(&pod.name, pod.port.address, 7001)
}

#[test]
#[ignore = "kernel: network namespaces need root"]
fn k123_what_a_policy_denies_outside_is_dropped_and_the_cluster_stays_reachable() {
    // kubernetes.md K123; policy.md P96 and P99
    with_nodes(2, |nodes| {
        outside();
        let [blue, red, near] = [nodes[0].pod(10, 10), nodes[0].pod(11, 11), nodes[0].pod(12, 10)];
        let global = nodes[0].pod(13, 0);
        let far = nodes[1].pod(10, 10);
        let [from_blue, from_red, from_global] = [&blue, &red, &global].map(sender);
        // The first rule that matches counts.
        nodes[0].deny(&[
            (10, &[(true, "198.51.100.7/32"), EVERYTHING]),
            (11, &[(true, "0.0.0.0/0"), EVERYTHING]),
        ]);
        assert_denied(&from_blue, &from_red, OTHER);
        assert_arrives(&from_blue, ONE);
        nodes[0].deny(&[(10, &[EVERYTHING]), (0, &[EVERYTHING])]);
        assert_denied(&from_blue, &from_red, OTHER);
        assert_denied(&from_blue, &from_red, ONE);
        assert_arrives(&from_global, OTHER);
        // Pods and their gateways are no outside.
        blue.assert_reaches(&near);
        blue.assert_reaches(&far);
        far.assert_reaches(&blue);
        assert!((0..3).any(|_| blue.reaches(gateway(1))) && (0..3).any(|_| blue.reaches(gateway(2))));
        // The node's own address is, except for DNS (policy.md section 1.10).
        let own = ("n1", node_ip(1));
        arrives_at(&from_blue, &socket(own.0, own.1, 53));
        assert_denied(&from_blue, &from_red, own);
        nodes[0].deny(&[]);
        assert_arrives(&from_blue, OTHER);
        assert_arrives(&from_blue, own);
        let table = sh("ip netns exec n1 nft list table ip russet-sdn");
        assert!(!table.contains("egress-10-") && !table.contains("denied-10-"), "{table}");
    });
}

#[test]
#[ignore = "kernel: network namespaces need root; tool: nft"]
fn egress_is_judged_behind_services_and_answers_pass() {
    // policy.md P96, section 1.10
    with_nodes(1, |nodes| {
        outside();
        let [blue, red, near] = [nodes[0].pod(10, 10), nodes[0].pod(11, 11), nodes[0].pod(12, 10)];
        for rule in [
            "add table ip services",
            "add chain ip services pre { type nat hook prerouting priority -100 ; }",
            &format!("add rule ip services pre ip daddr 172.30.0.1 dnat to {}", near.port.address),
            &format!("add rule ip services pre ip daddr 172.30.0.2 dnat to {}", OTHER.1),
            &format!(
                "add rule ip services pre ip daddr {} udp dport 7008 dnat to {}",
                node_ip(1),
                blue.port.address
            ),
        ] {
            sh(&format!("ip netns exec n1 nft {rule}"));
        }
        nodes[0].deny(&[(10, &[EVERYTHING])]);
        let [from_blue, from_red] = [&blue, &red].map(sender);
        let inner = socket(&near.name, near.port.address, 7002);
        let outer = socket(OTHER.0, OTHER.1, 7002);
        let mut byte = [0; 1];
        eventually(TIMEOUT, || {
            let _ = from_blue.send_to(&[1], ("172.30.0.1", 7002));
            inner.recv_from(&mut byte).is_ok()
        });
        // A Service whose endpoint is outside hides nothing.
        for _ in 0..5 {
            eventually(TIMEOUT, || {
                let _ = from_blue.send_to(&[1], ("172.30.0.2", 7002));
                let _ = from_red.send_to(&[2], ("172.30.0.2", 7002));
                outer.recv_from(&mut byte).is_ok()
            });
            assert_eq!(byte, [2], "it was denied");
        }
        // Who is called from outside may answer.
        let served = socket(&blue.name, blue.port.address, 7008);
        let caller = (ONE.0, node_ip(9));
        let client = receiver(caller);
        eventually(TIMEOUT, || {
            let _ = client.send_to(&[4], (node_ip(1), 7008));
            if let Ok((_, from)) = served.recv_from(&mut byte) {
                served.send_to(&[5], from).unwrap();
            }
            client.recv_from(&mut byte).is_ok()
        });
        assert_eq!(byte, [5]);
        assert_denied(&from_blue, &from_red, caller);
    });
}

#[test]
#[ignore = "kernel: network namespaces need root; tool: nft"]
fn a_restarted_agent_keeps_what_was_denied_and_closes_what_it_does_not_know() {
    with_nodes(1, |nodes| {
        outside();
        let node = &mut nodes[0];
        let [blue, red, global] = [node.pod(10, 10), node.pod(11, 11), node.pod(12, 0)];
        let [from_blue, from_red, from_global] = [&blue, &red, &global].map(sender);
        let rules: [(u32, Rules<'_>); 1] = [(10, &[OTHER_DENIED, (false, "203.0.113.0/24")])];
        node.deny(&rules);
        node.start();
        let outcome = node.run(Sdn::restore);
        assert!(outcome.is_quiet() && outcome.what.is_empty(), "{outcome:?}");
        assert_denied(&from_blue, &from_red, OTHER);
        // The next pod of the namespace, and one of a namespace of which nothing is known yet.
        let [next, unknown] = [node.pod(13, 10), node.pod(14, 13)];
        let [from_next, from_unknown] = [&next, &unknown].map(sender);
        assert_denied(&from_next, &from_red, OTHER);
        assert_denied(&from_unknown, &from_red, OTHER);
        node.deny(&rules);
        assert_arrives(&from_unknown, OTHER);
        assert_denied(&from_blue, &from_red, OTHER);
        // What another program removed is restored.
        for harm in [
            "flush chain ip russet-sdn egress",
            &format!("flush chain ip russet-sdn {}", named("egress-10-")),
            &format!("flush set ip russet-sdn {}", named("denied-10-")),
            "flush map ip russet-sdn egress",
            "flush chain ip russet-sdn leaving",
            "add chain ip russet-sdn egress-77",
            "add set ip russet-sdn denied-77 { type ipv4_addr ; }",
            "flush ruleset",
        ] {
            sh(&format!("ip netns exec n1 nft {harm}"));
            let report = node.run(Sdn::restore);
            sound(&report);
            assert!(!report.is_quiet(), "{harm} was not seen");
            let again = node.run(Sdn::restore);
            assert!(again.is_quiet(), "{harm}: {again:?}");
            assert_denied(&from_blue, &from_red, OTHER);
        }
        // Without a table nothing is known, and nothing is open.
        sh("ip netns exec n1 nft flush ruleset");
        node.start();
        sound(&node.run(Sdn::restore));
        for (pod, netid) in [(&blue, 10), (&red, 11), (&global, 0)] {
            node.renumber(&[pod], netid).unwrap();
        }
        assert_denied(&from_blue, &from_global, OTHER);
        assert_denied(&from_red, &from_global, OTHER);
    });
}

#[test]
#[ignore = "kernel: network namespaces need root; tool: nft"]
fn the_table_of_a_version_before_stays_open_until_policies_are_known() {
    with_nodes(1, |nodes| {
        outside();
        let node = &mut nodes[0];
        let [blue, red] = [node.pod(10, 10), node.pod(11, 11)];
        for part in ["flush chain ip russet-sdn forward", "flush chain ip russet-sdn input"] {
            sh(&format!("ip netns exec n1 nft {part}"));
        }
        for part in [
            "flush chain ip russet-sdn egress",
            "delete chain ip russet-sdn egress",
            "delete map ip russet-sdn egress",
        ] {
            sh(&format!("ip netns exec n1 nft {part}"));
        }
        node.start();
        sound(&node.run(Sdn::restore));
        let [from_blue, from_red] = [&blue, &red].map(sender);
        assert_arrives(&from_blue, OTHER);
        node.deny(&[(10, &[OTHER_DENIED])]);
        assert_denied(&from_blue, &from_red, OTHER);
    });
}

/// Gives the pod's port another network ID, and denies this, in one transaction.
fn renumber_and_deny(node: &mut Node, pod: &Pod, netid: u32, rules: &[(u32, Rules<'_>)]) {
    let port = Tenancy { netid: Some(id(netid)), is_open: None }.of(&pod.port);
    node.run(|sdn| sdn.set_tenants(&[port], egress(rules))).unwrap();
}

#[test]
#[ignore = "kernel: network namespaces need root"]
fn nothing_that_is_denied_before_and_after_passes_while_policies_change() {
    with_nodes(1, |nodes| {
        outside();
        let receiver = receiver(OTHER);
        let to = receiver.local_addr().unwrap();
        let node = &mut nodes[0];
        node.deny(&[(10, &[OTHER_DENIED])]);
        let [blue, red] = [node.pod(10, 10), node.pod(11, 11)];
        let [from_blue, from_red] = [&blue, &red].map(sender);
        while_sending(&from_blue, to, |more| {
            for round in 0..30 {
                let wide: Rules<'_> = &[(true, "198.51.100.7/32"), EVERYTHING];
                let narrow: Rules<'_> = &[OTHER_DENIED];
                more();
                node.deny(&[(10, wide)]);
                more();
                node.deny(&[(10, narrow), (11, &[(false, "203.0.113.0/24")])]);
                more();
                renumber_and_deny(node, &blue, 12, &[(12, narrow)]);
                more();
                if round % 3 == 0 {
                    node.start();
                }
                sound(&node.run(Sdn::restore));
                // The table is written again.
                sh("ip netns exec n1 nft flush chain ip russet-sdn leaving");
                more();
                sound(&node.run(Sdn::restore));
                more();
                renumber_and_deny(node, &blue, 10, &[(10, wide)]);
            }
        });
        assert!(only_honest_arrived(&from_red, &receiver), "a denied packet passed");
        assert!(named("egress-10-").len() > 10, "it was denied to the end");
    });
}
