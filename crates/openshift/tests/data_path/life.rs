//! Restarts of an agent, repair of state that another program removed, attaching and detaching of
//! ports, and many peers.

use std::net::Ipv4Addr;

use russet_addr::{ContainerId, Ipv4Net};
use russet_openshift::data_path::{Peer, Port, Sdn, SdnError, delete_links, kind};
use russet_testkit::{sh, succeeds};

use crate::lab::{introduce, sound, with_nodes};

#[test]
#[ignore = "kernel: network namespaces need root"]
fn a_restarted_agent_finds_every_port_and_changes_nothing() {
    // cni-runtime.md section 6.2, row 52
    with_nodes(2, |nodes| {
        let pods = [nodes[0].pod(10, 10), nodes[0].pod(11, 11), nodes[0].pod(12, 0)];
        nodes[0].renumber(&[&pods[1]], 12).unwrap();
        let far = nodes[1].pod(10, 10);
        nodes[0].start();
        let mut wanted: Vec<Port> = pods.iter().map(|pod| pod.port.clone()).collect();
        wanted[1].netid = Some(crate::lab::id(12));
        let mut found = nodes[0].run(Sdn::ports).unwrap();
        found.sort_by_key(|port| port.address);
        assert_eq!(found, wanted, "the table's network ID, and the alias's rest");
        let outcome = nodes[0].run(Sdn::restore);
        assert!(outcome.is_quiet() && outcome.what.is_empty(), "{outcome:?}");
        introduce(nodes);
        pods[0].assert_reaches(&far);
        pods[1].assert_apart(&far);
    });
}

#[test]
#[ignore = "kernel: network namespaces need root"]
fn every_removed_object_is_restored() {
    with_nodes(2, |nodes| {
        let [blue, red] = [nodes[0].pod(10, 10), nodes[0].pod(11, 11)];
        let far = nodes[1].pod(10, 10);
        for harm in [
            "ip netns exec n1 nft flush ruleset",
            "ip netns exec n1 nft flush set ip russet-sdn sources",
            "ip netns exec n1 nft flush chain ip russet-sdn leaving",
            "ip netns exec n1 nft add chain ip russet-sdn more",
            "ip netns exec n1 nft add element ip russet-sdn globals { 10.128.2.11 }",
            "ip netns exec n1 nft insert rule ip russet-sdn pod-to-pod accept",
            "ip -n n1 route flush proto 116",
            "ip -n n1 neigh flush nud permanent",
            "ip -n n1 link del vxlan-sdn",
            "ip netns exec n1 tc qdisc del dev vxlan-sdn clsact",
            "ip netns exec n1 tc filter del dev vxlan-sdn egress",
            "ip -n n1 link set vxlan-sdn down",
            "ip -n n1 addr flush dev vxlan-sdn",
            "ip -n n1 addr flush dev veth1000000a",
            "ip netns exec n1 sysctl -qw net.ipv4.conf.vxlan-sdn.proxy_arp=0",
            "ip netns exec n1 sysctl -qw net.ipv4.conf.veth1000000a.proxy_arp=0",
            "ip netns exec n1 tc qdisc del dev veth1000000a clsact",
            "ip -n n1 link set veth1000000a down",
            // The group that a failed DEL leaves.
            "ip -n n1 link set veth1000000a group 7275",
            "ip -n n1 link set veth1000000a alias russet-sdn:nonsense",
            "ip -n n1 route replace 10.128.2.10/32 dev lo",
        ] {
            sh(harm);
            let found = nodes[0].run(Sdn::differences);
            assert!(!found.what.is_empty() && found.is_quiet(), "{harm}: {found:?}");
            let report = nodes[0].run(Sdn::restore);
            assert_eq!(report.failed, 0, "{harm}: {:?}", report.errors);
            assert!(!report.is_quiet(), "{harm} was not seen");
            // Without the device, what it lacks is not known.
            assert!(found.what == report.what || harm.contains("link del"), "{harm}: {found:?}, {report:?}");
            if let Some(link) = harm.strip_suffix(" clsact").and_then(|text| text.rsplit(' ').next()) {
                let named = format!(" to link {link}");
                assert!(found.what.iter().any(|what| what.ends_with(&named)), "{harm}: {found:?}");
            }
            let again = nodes[0].run(Sdn::restore);
            assert!(again.is_quiet(), "{harm}: {again:?}");
            blue.assert_reaches(&far);
        }
        red.assert_apart(&far);
        red.assert_apart(&blue);
    });
}

#[test]
#[ignore = "kernel: network namespaces need root"]
fn a_node_without_its_rules_delivers_nothing_to_pods() {
    with_nodes(2, |nodes| {
        let [red, near] = [nodes[0].pod(11, 11), nodes[0].pod(10, 10)];
        let blue = nodes[1].pod(10, 10);
        let own = nodes[1].pod(11, 11);
        let pods = [&red, &near, &blue, &own];
        for harm in ["flush ruleset", "flush table ip russet-sdn", "flush chain ip russet-sdn prerouting"] {
            sh(&format!("ip netns exec n1 nft {harm}"));
            for (from, to) in pods.iter().flat_map(|from| pods.map(|to| (from, to))) {
                let crosses = from.port.netid != to.port.netid;
                // A tenant's packet may pass by the remaining rules.
                if crosses || (harm == "flush ruleset" && from.name[..2] != to.name[..2]) {
                    from.assert_apart(to);
                }
            }
            sound(&nodes[0].run(Sdn::restore));
            red.assert_reaches(&own);
            near.assert_reaches(&blue);
        }
    });
}

#[test]
#[ignore = "kernel: network namespaces need root; tool: tc"]
fn a_pods_bandwidth_limit_coexists_with_its_guard() {
    with_nodes(2, |nodes| {
        let [blue, red] = [nodes[0].pod(10, 10), nodes[0].pod(11, 11)];
        let far = nodes[1].pod(10, 10);
        let limit = |qdisc: &str| {
            if !qdisc.is_empty() {
                sh("ip netns exec n1 tc qdisc del dev veth1000000a clsact");
                sh(&format!("ip netns exec n1 tc qdisc add dev veth1000000a {qdisc}"));
            }
            let select = "protocol all prio 1 u32 match u32 0 0 action mirred egress redirect dev ifb9";
            sh(&format!("ip netns exec n1 tc filter add dev veth1000000a parent ffff:fff2 {select}"));
        };
        sh("ip -n n1 link add ifb9 up type ifb");
        limit("");
        let outcome = nodes[0].run(Sdn::restore);
        assert!(outcome.is_quiet(), "{outcome:?}");
        blue.assert_reaches(&far);
        red.assert_apart(&blue);
        // A port that an agent without guards left.
        limit("ingress");
        for look in [Sdn::restore, Sdn::differences, Sdn::restore] {
            let report = nodes[0].run(look);
            assert!(report.is_quiet() && report.what.is_empty(), "it concerns one pod only: {report:?}");
            let found: Vec<String> = report.refusals.iter().map(ToString::to_string).collect();
            let why = "is not programmed: the link has qdisc ingress in place of clsact; recreate the pod";
            assert_eq!(found, [format!("guard of link veth1000000a {why}")]);
            blue.assert_reaches(&far);
            red.assert_apart(&blue);
        }
        sh("ip -n n1 route del 10.128.2.10/32");
        let report = nodes[0].run(Sdn::restore);
        assert_eq!((report.failed, report.changed[kind::ROUTE]), (0, 1), "its route is kept: {report:?}");
        blue.assert_reaches(&far);
        let error = nodes[0].run(|sdn| sdn.attach(&blue.port)).unwrap_err();
        assert!(matches!(error, SdnError::NoPlace { .. }), "{error}");
        assert!(error.to_string().contains(" to link veth1000000a: "), "{error}");
        let filters = sh("ip netns exec n1 tc filter show dev veth1000000a ingress");
        assert!(!filters.contains("bpf"), "{filters}");
    });
}

#[test]
#[ignore = "kernel: network namespaces need root"]
fn a_change_repairs_a_table_that_another_program_changed() {
    with_nodes(1, |nodes| {
        let [blue, red] = [nodes[0].pod(10, 10), nodes[0].pod(11, 11)];
        for harm in ["nft flush ruleset", "nft delete element ip russet-sdn netids { veth1000000b }"] {
            sh(&format!("ip netns exec n1 {harm}"));
            nodes[0].renumber(&[&red], 10).unwrap();
            red.assert_reaches(&blue);
            nodes[0].renumber(&[&red], 11).unwrap();
            red.assert_apart(&blue);
        }
    });
}

#[test]
#[ignore = "kernel: network namespaces need root"]
fn detach_removes_everything_and_a_second_one_succeeds() {
    with_nodes(1, |nodes| {
        let node = &mut nodes[0];
        let pod = node.pod(10, 10);
        // The same ADD again, as after a lost answer.
        node.run(|sdn| sdn.attach(&pod.port)).unwrap();
        for _ in 0..2 {
            node.run(|sdn| delete_links(sdn.detach(&pod.port.sandbox).unwrap())).unwrap();
        }
        assert!(!succeeds("ip -n n1 link show veth1000000a"));
        assert!(!sh("ip -n n1 route").contains("10.128.2.10"));
        let table = sh("ip netns exec n1 nft list table ip russet-sdn");
        assert!(!table.contains("10.128.2.10") && !table.contains("veth"), "{table}");
        node.run(|sdn| sdn.detach(&ContainerId::new("never-was").unwrap())).unwrap();
    });
}

#[test]
#[ignore = "kernel: network namespaces need root"]
fn a_refused_attachment_is_an_error_and_leaves_nothing() {
    with_nodes(1, |nodes| {
        let node = &mut nodes[0];
        let pod = node.pod(10, 10);
        let mut other = node.wired(11, 11).port;
        let address = other.address;
        for foreign in ["10.128.4.5", "10.128.2.0", "10.128.2.1", "10.128.3.255", "192.0.2.1"] {
            other.address = foreign.parse().unwrap();
            let error = node.run(|sdn| sdn.attach(&other)).unwrap_err();
            assert!(matches!(error, SdnError::Foreign { .. }), "{foreign}: {error}");
        }
        other.address = pod.port.address;
        let error = node.run(|sdn| sdn.attach(&other)).unwrap_err();
        assert!(matches!(&error, SdnError::Taken { holder, .. } if *holder == pod.port.sandbox), "{error}");
        other.address = address;
        let mut stolen = other.clone();
        stolen.host_veth = pod.port.host_veth.clone();
        assert!(matches!(node.run(|sdn| sdn.attach(&stolen)).unwrap_err(), SdnError::Link { .. }));
        for link in ["w0", "gone0"] {
            stolen.host_veth = russet_addr::IfName::new(link).unwrap();
            assert_eq!(node.run(|sdn| sdn.attach(&stolen)).is_err(), link != "w0", "{link}");
        }
    });
}

#[test]
#[ignore = "kernel: network namespaces need root"]
fn five_thousand_peers_are_written_once_and_a_change_writes_only_itself() {
    with_nodes(1, |nodes| {
        let node = &mut nodes[0];
        let peer = |number: u32| Peer {
            host_ip: Ipv4Addr::from_bits(0xac10_0000 + number),
            subnet: Ipv4Net::new(Ipv4Addr::from_bits(0x0a81_0000 + number * 32), 27).unwrap(),
        };
        let mut peers: Vec<Peer> = (1..=5000).map(peer).collect();
        let report = node.run(|sdn| sdn.peers(&peers));
        sound(&report);
        assert_eq!((report.changed[kind::ROUTE], report.changed[kind::NEIGHBOUR]), (5000, 5000));
        assert!(node.run(|sdn| sdn.peers(&peers)).is_quiet());
        // After a restart no peers are known, and all are found in the kernel.
        node.start();
        assert!(node.run(|sdn| sdn.peers(&peers)).is_quiet());
        peers.swap_remove(2000);
        peers[0].host_ip = Ipv4Addr::new(172, 31, 0, 1);
        let report = node.run(|sdn| sdn.peers(&peers));
        sound(&report);
        assert_eq!((report.changed[kind::ROUTE], report.changed[kind::NEIGHBOUR]), (2, 3));
        assert_eq!(sh("ip -n n1 route show proto 116 type unicast").lines().count(), 4999);
        sound(&node.run(Sdn::withdraw));
        assert_eq!(sh("ip -n n1 route show proto 116"), "");
        assert!(!succeeds("ip netns exec n1 nft list table ip russet-sdn"));
    });
}

#[test]
#[ignore = "kernel: network namespaces need root; tool: nft"]
fn nft_parses_the_table_that_it_lists() {
    with_nodes(1, |nodes| {
        nodes[0].pod(10, 10);
        nodes[0].pod(11, 0);
        nodes[0].deny(&[(10, &[(true, "192.0.2.0/24"), (false, "0.0.0.0/0")])]);
        let text = sh("ip netns exec n1 nft list table ip russet-sdn");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &text).unwrap();
        sh(&format!("ip netns exec n1 nft -c -f {}", file.path().display()));
    });
}
