//! Two tenants on three nodes. Every pod sends to every other while one tenant is joined, made
//! global and isolated again; each arrival is checked by the time at which it was sent.

use russet_testkit::cross_traffic::{Arrival, CrossTraffic, pairs};

use crate::lab::{Node, Pod, with_nodes};

/// A time without changes: from the last node's commit to the first node's next.
#[derive(Debug)]
struct Window {
    open: bool,
    from_ns: u64,
    until_ns: u64,
}

const NODES: u8 = 3;

/// Whether the packet crosses between tenants: even pods are blue, odd ones red.
fn across(from: u8, to: u8) -> bool {
    from % 2 != to % 2
}

/// Changes the red pods' network ID on every node, one after the other, and waits until the traffic
/// matches.
fn change(nodes: &mut [Node], red: &[Pod], traffic: &CrossTraffic, netid: u32, open: bool) -> Window {
    for (node, pod) in nodes.iter_mut().zip(red) {
        node.renumber(&[pod], netid).unwrap();
    }
    let from_ns = traffic.now();
    traffic.flows(&pairs(2 * NODES, |from, to| open || !across(from, to)), from_ns);
    Window { open, from_ns, until_ns: traffic.now() }
}

#[test]
#[ignore = "kernel: network namespaces need root"]
fn no_packet_crosses_between_isolated_tenants_while_they_change_under_traffic() {
    // cni-runtime.md section 6.2, row 51
    with_nodes(NODES, |nodes| {
        let blue: Vec<Pod> = nodes.iter_mut().map(|node| node.pod(10, 10)).collect();
        let red: Vec<Pod> = nodes.iter_mut().map(|node| node.pod(11, 11)).collect();
        let all_pods = blue.iter().zip(&red).flat_map(|(blue, red)| [blue, red]);
        let traffic = CrossTraffic::start(all_pods.map(|pod| (pod.name.as_str(), pod.port.address)));
        let mut windows = vec![change(nodes, &red, &traffic, 11, false)];
        for round in 0..5 {
            windows.push(change(nodes, &red, &traffic, 10, true));
            windows.push(change(nodes, &red, &traffic, 12 + round, false));
            windows.push(change(nodes, &red, &traffic, 0, true));
            windows.push(change(nodes, &red, &traffic, 100 + round, false));
        }
        let arrivals = traffic.end();
        let crossed = arrivals.iter().filter(|arrival| across(arrival.from, arrival.to));
        let while_isolated = |arrival: &&Arrival| {
            let within = |window: &Window| {
                !window.open && (window.from_ns..=window.until_ns).contains(&arrival.sent_ns)
            };
            windows.iter().any(within)
        };
        let wrong: Vec<&Arrival> = crossed.clone().filter(while_isolated).take(10).collect();
        assert!(wrong.is_empty(), "crossed while isolated: {wrong:?}");
        println!("{} packets arrived, {} of them across", arrivals.len(), crossed.count());
    });
}
