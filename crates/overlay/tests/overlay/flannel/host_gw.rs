//! The host-gw backend.

use std::net::IpAddr;

use russet_overlay::flannel::{Backend, Peer};
use russet_overlay::{Kind, Reason};
use russet_testkit::sh;

use super::cluster::{assert_reachable, introduce, key, peer_without_node, route, with_nodes};

#[test]
#[ignore = "kernel: network namespaces, root; tool: ip, ping"]
fn t28_deleted_and_wrong_routes_are_repaired() {
    // flannel.md section 10, T28
    with_nodes(3, &Backend::HostGw, |nodes| {
        introduce(nodes);
        assert_eq!((nodes[0].prepared.mtu, nodes[0].prepared.mac), (1500, [None, None]));
        let right = "10.5.2.0/24 via 192.168.77.2 dev w0 proto 115";
        assert_eq!(route(2), right);
        assert!(
            sh("ip -n n1 -6 route show fd10:5:0:2::/64").contains("via fd77::2 dev w0 proto 115 metric 1024")
        );
        assert_reachable(nodes);
        assert!(!nodes[0].drifted());
        for damage in [
            "ip -n n1 route del 10.5.2.0/24",
            "ip -n n1 -6 route del fd10:5:0:2::/64",
            "ip -n n1 route replace 10.5.2.0/24 via 192.168.77.3",
            "ip -n n1 route prepend 10.5.2.0/24 via 192.168.77.3",
            "ip -n n1 -6 route add fd10:5:0:2::/64 via fd77::3 metric 3",
            "ip -n n1 route replace unreachable 10.5.2.0/24",
        ] {
            sh(damage);
            assert!(nodes[0].drifted(), "{damage}: not heard of");
            assert!(!nodes[0].resync().is_quiet(), "{damage}: nothing was repaired");
            assert_eq!(route(2), right, "{damage}");
            assert!(nodes[0].resync().is_quiet(), "{damage}");
            assert!(!nodes[0].drifted(), "{damage}: still drifting");
        }
        // The kernel sends no event for these routes.
        sh("ip -n n1 link set w0 down");
        nodes[0].drifted();
        sh("ip -n n1 link set w0 up");
        sh("ip -n n1 addr replace fd77::1/64 dev w0 nodad");
        assert!(nodes[0].drifted());
        nodes[0].resync();
        assert_eq!(route(2), right);
        assert_reachable(nodes);
        sh("ip -n n1 route replace 10.5.2.0/24 via 192.168.77.3 proto static");
        nodes[0].start();
        introduce(nodes);
        assert_eq!(route(2), right, "a wrong route of an earlier run is replaced");
        nodes[0].change(&[key(2)], &[]);
        assert_eq!(route(2), "");
    });
}

#[test]
#[ignore = "kernel: network namespaces, root; tool: ip"]
fn a_peer_behind_a_router_is_refused_and_reported_once() {
    // flannel.md section 6.3; section 9, flannel #996 and #598
    with_nodes(1, &Backend::HostGw, |nodes| {
        let far = Peer { public_ip: [192, 168, 88, 2].into(), subnet_v6: None, ..peer_without_node(2) };
        sh("ip -n n1 route add default via 192.168.77.254");
        let refused = nodes[0].reset(vec![far.clone()]).refusals;
        assert_eq!(refused.len(), 1);
        assert_eq!(refused[0].reason, Reason::OffLink("192.168.88.2".parse().unwrap()));
        assert_eq!(nodes[0].resync().refusals, []);
        assert_eq!(nodes[0].change(&[], std::slice::from_ref(&far)).refusals, []);
        let near = Peer { public_ip: [192, 168, 77, 2].into(), ..far.clone() };
        let report = nodes[0].change(&[], &[near]);
        assert_eq!((report.changed(Kind::Route), report.refusals), (1, vec![]));
        assert_eq!(nodes[0].change(&[], std::slice::from_ref(&far)).refusals.len(), 1, "it had been usable");
        sh("ip -n n1 addr add 192.168.88.1/24 dev w0");
        assert!(nodes[0].drifted());
        let report = nodes[0].resync();
        assert_eq!((report.changed(Kind::Route), report.refusals), (1, vec![]));
        sh("ip -n n1 addr del 192.168.88.1/24 dev w0");
        assert_eq!(nodes[0].resync().refusals.len(), 1, "it is reported again when it happens again");
    });
}

#[test]
fn t34_the_public_address_must_be_the_interfaces() {
    // flannel.md section 10, T34
    let underlay = russet_overlay::flannel::Underlay {
        ifindex: 2,
        name: "eth0".parse().unwrap(),
        mtu: 1500,
        v4: Some([10, 0, 0, 1].into()),
        v6: None,
    };
    let check = |backend: &Backend, public: IpAddr| backend.check_public(&underlay, public);
    assert!(check(&Backend::HostGw, [10, 0, 0, 1].into()).is_ok());
    let error = check(&Backend::HostGw, [192, 0, 2, 1].into()).unwrap_err().to_string();
    assert_eq!(
        error,
        "public address 192.0.2.1 is not the address of interface eth0, which backend host-gw needs"
    );
    assert!(check(&Backend::Vxlan(super::cluster::vxlan()), [192, 0, 2, 1].into()).is_ok());
}
