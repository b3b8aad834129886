//! Which pods reach which, by ping: slow, but easy to read.

use russet_openshift::data_path::Tenancy;
use russet_testkit::bound;

use crate::lab::{Pod, gateway, id, with_nodes};

/// Every pod of `a` reaches every one of `b` and back.
#[track_caller]
fn assert_joined(a: &[&Pod], b: &[&Pod]) {
    for from in a {
        b.iter().filter(|to| to.name != from.name).for_each(|to| from.assert_reaches(to));
    }
}

#[track_caller]
fn assert_apart(a: &[&Pod], b: &[&Pod]) {
    for from in a {
        b.iter().for_each(|to| from.assert_apart(to));
    }
}

#[test]
#[ignore = "kernel: network namespaces need root"]
fn tenants_reach_only_their_own_pods_on_every_node() {
    // cni-runtime.md section 6.2, row 51
    with_nodes(2, |nodes| {
        let [blue1, red1] = [nodes[0].pod(10, 10), nodes[0].pod(11, 11)];
        let [blue2, red2] = [nodes[1].pod(10, 10), nodes[1].pod(11, 11)];
        assert_joined(&[&blue1], &[&blue2]);
        assert_joined(&[&red1], &[&red2]);
        assert_apart(&[&blue1], &[&red1, &red2]);
        assert_apart(&[&red2], &[&blue1, &blue2]);
        for (pod, node) in [(&blue1, 1), (&blue1, 2), (&red2, 1)] {
            assert!(pod.reaches(gateway(node)), "{} reaches node {node}", pod.name);
        }
    });
}

#[test]
#[ignore = "kernel: network namespaces need root"]
fn a_tenant_is_joined_made_global_and_isolated_without_a_restart() {
    // cni-runtime.md section 6.2, row 51
    with_nodes(2, |nodes| {
        let [blue1, red1] = [nodes[0].pod(10, 10), nodes[0].pod(11, 11)];
        let [blue2, red2] = [nodes[1].pod(10, 10), nodes[1].pod(11, 11)];
        for (netid, joined) in [(10, true), (11, false), (0, true), (12, false)] {
            nodes[0].renumber(&[&red1], netid).unwrap();
            nodes[1].renumber(&[&red2], netid).unwrap();
            assert_joined(&[&red1], &[&red2]);
            match joined {
                true => assert_joined(&[&blue1, &blue2], &[&red1, &red2]),
                false => assert_apart(&[&blue1, &blue2], &[&red1, &red2]),
            }
            assert_joined(&[&blue1], &[&blue2]);
        }
    });
}

#[test]
#[ignore = "kernel: network namespaces need root"]
fn an_open_tenant_is_reached_by_all_keeps_its_network_id_and_outlasts_a_restart() {
    // policy.md section 1.10
    with_nodes(2, |nodes| {
        let [blue1, red1] = [nodes[0].pod(10, 10), nodes[0].pod(11, 11)];
        let [blue2, red2] = [nodes[1].pod(10, 10), nodes[1].pod(11, 11)];
        let tenancy = |netid, is_open| Tenancy { netid: Some(id(netid)), is_open };
        for (blue, red, node) in [(&blue1, &red1, 0), (&blue2, &red2, 1)] {
            nodes[node].change(&[blue], tenancy(10, Some(true))).unwrap();
            nodes[node].change(&[red], tenancy(11, Some(true))).unwrap();
        }
        assert_joined(&[&blue1, &blue2], &[&red1, &red2]);
        nodes[0].start();
        let held: Vec<_> = nodes[0].run(|sdn| sdn.attached().cloned().collect());
        assert!(
            held.iter().all(|port| port.is_open && port.netid.is_some_and(|id| !id.is_global())),
            "{held:?}"
        );
        // What the earlier agent had opened stays so until it is known whether it should.
        let kept: Vec<_> = held.iter().map(|port| tenancy(10, None).of(port)).collect();
        assert!(kept.iter().all(|port| port.is_open));
        assert_joined(&[&blue1], &[&red1, &red2]);
        nodes[0].change(&[&blue1], tenancy(10, Some(false))).unwrap();
        nodes[0].change(&[&red1], tenancy(11, Some(false))).unwrap();
        assert_apart(&[&red1, &red2], &[&blue1]);
    });
}

#[test]
#[ignore = "kernel: network namespaces need root"]
fn a_node_with_strict_arp_is_its_pods_gateway() {
    with_nodes(2, |nodes| {
        for node in ["n1", "n2"] {
            russet_testkit::sh(&format!("ip netns exec {node} sysctl -qw net.ipv4.conf.all.arp_ignore=1"));
        }
        let [blue, other] = [nodes[0].pod(10, 10), nodes[0].pod(12, 10)];
        let far = nodes[1].pod(10, 10);
        assert!(blue.reaches(gateway(1)));
        blue.assert_reaches(&far);
        // Deleting one pod's host end removes its address; the others keep theirs.
        nodes[0].run(|sdn| sdn.detach(&other.port.sandbox)).unwrap();
        assert!(blue.reaches(gateway(1)) && far.reaches(gateway(1)));
    });
}

#[test]
#[ignore = "kernel: network namespaces need root"]
fn streams_and_fragments_arrive_whole_on_the_node_and_between_nodes() {
    use std::io::{Read, Write};
    const STREAM_BYTES: usize = 16 << 20;
    with_nodes(2, |nodes| {
        let [from, near] = [nodes[0].pod(10, 10), nodes[0].pod(12, 10)];
        let far = nodes[1].pod(10, 10);
        let inside = |pod: &Pod| russet_linux::NetNs::open_named(&pod.name).unwrap();
        for to in [&near, &far] {
            let address = (to.port.address, 7100);
            let listener = inside(to).with(|| bound(|| std::net::TcpListener::bind(address))).unwrap();
            let datagrams = inside(to).with(|| bound(|| std::net::UdpSocket::bind(address))).unwrap();
            datagrams.set_read_timeout(Some(std::time::Duration::from_millis(20))).unwrap();
            let sent: Vec<u8> = (0..STREAM_BYTES).map(|at| (at % 251) as u8).collect();
            let mut got = Vec::new();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let connect = || std::net::TcpStream::connect(address).unwrap();
                    inside(&from).with(connect).unwrap().write_all(&sent).unwrap();
                });
                listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
            });
            assert!(got == sent, "{} of {} bytes, or others", got.len(), sent.len());
            let any = (std::net::Ipv4Addr::UNSPECIFIED, 0);
            let sender = inside(&from).with(|| std::net::UdpSocket::bind(any).unwrap()).unwrap();
            let mut packet = vec![0; 9000];
            russet_testkit::eventually(std::time::Duration::from_secs(20), || {
                sender.send_to(&sent[..4000], address).unwrap();
                datagrams.recv(&mut packet).is_ok_and(|len| packet[..len] == sent[..4000])
            });
        }
    });
}
