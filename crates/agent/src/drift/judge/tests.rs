//! Events of one node: two nodes, a VXLAN pool, one pod.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use russet_addr::IpNet;
use russet_attach::{Attachment, Dialect as Wiring, Wired};
use russet_model::openshift::Namespace;
use russet_netlink::{Monitor, Socket, is_own_route_port};
use russet_nft::monitor::{Change as TableChange, Object};
use russet_overlay::{Addresses, Affinity, AffinityState, Dialect, Encapsulation, Node, Pool, Tunnel};
use russet_testkit as testkit;

use super::*;
use crate::drift::ears::TOPICS;

const UNDERLAY: u32 = 2;
const DEVICE: u32 = 7;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn node(underlay: &str, tunnel: &str) -> Node {
    let v4 = Addresses { underlay: Some(net(underlay)), tunnel: Some(ip(tunnel)), mac: None };
    Node { v4, ..Node::default() }
}

fn inputs() -> Inputs {
    let name = |text: &str| text.parse().unwrap();
    let affinity = |node: &str, block: &str| Affinity {
        node: name(node),
        block: block.parse().unwrap(),
        state: AffinityState::Confirmed,
    };
    Inputs {
        node: name("a"),
        dialect: Dialect::Native,
        tunnel: Tunnel::default(),
        underlay: Underlay { ifindex: UNDERLAY, mtu: 1500, addresses: vec![net("10.0.0.1/24")] },
        nodes: BTreeMap::from([
            (name("a"), node("10.0.0.1/24", "10.244.0.0")),
            (name("b"), node("10.0.0.2/24", "10.244.1.0")),
        ]),
        pools: vec![Pool {
            cidr: net("10.244.0.0/16"),
            encapsulation: Encapsulation::Vxlan,
            nat_outgoing: true,
        }],
        affinities: vec![affinity("a", "10.244.0.0/26"), affinity("b", "10.244.1.0/26")],
        borrowed: Vec::new(),
        own_pods: BTreeSet::new(),
        protected: BTreeSet::new(),
    }
}

fn judge() -> Judge {
    let mirror = Mirror::default();
    let (network, container) = ("net".parse().unwrap(), "abc".parse().unwrap());
    let pod = Attachment::new(Wiring::Native, network, container, "eth0".parse().unwrap(), None);
    mirror.put(&Wired::Routed(Attachment { addresses: vec![ip("10.244.0.5")], ..pod }));
    let mut judge = Judge::new(mirror);
    judge.expect(&inputs());
    judge.devices(BTreeSet::from([DEVICE]));
    judge
}

fn to_b() -> Route {
    let via = Route::via(net("10.244.1.0/26"), ip("10.244.1.0"));
    Route { oif: Some(DEVICE), onlink: true, protocol: 114, ..via }
}

fn to_pod() -> Route {
    Route { protocol: 114, ..Route::dev(net("10.244.0.5/32"), 9) }
}

/// The host end of a pod, as an ADD leaves it.
fn host_end(container: &str) -> Link {
    Link {
        index: 9,
        name: "russ1".to_owned(),
        flags: 1,
        mtu_bytes: 1450,
        mac: None,
        kind: Some("veth".to_owned()),
        alias: Some(format!("russet:net/{container}/eth0")),
        group: 0,
        master: None,
        link: None,
        link_netnsid: Some(0),
        operstate: Default::default(),
        tx_queue_len: 0,
        addr_gen_mode: None,
        vxlan: None,
        bridge_port: None,
        ipip: None,
    }
}

/// What the event makes suspect, when somebody else asked for it.
fn suspects(event: &Event) -> Vec<Part> {
    judge().hear(event, false).parts().collect()
}

#[test]
fn what_others_do_to_ours_is_suspect_and_what_we_do_is_not() {
    let gone = |route: Route| Event::Gone(Change::Route(route));
    assert_eq!(suspects(&gone(to_b())), [Part::Overlay]);
    assert_eq!(suspects(&gone(to_pod())), [Part::Pods]);
    assert!(!judge().hear(&gone(to_b()), true).is_any());
    // Somebody's route in the place of ours.
    let rival =
        |dst: &str| Event::Set(Change::Route(Route { protocol: 3, ..Route::dev(net(dst), UNDERLAY) }));
    assert_eq!(suspects(&rival("10.244.1.0/26")), [Part::Overlay]);
    assert_eq!(suspects(&rival("10.244.0.5/32")), [Part::Pods]);
}

#[test]
fn what_is_others_is_nobodys_concern() {
    let other = Route { protocol: 3, ..Route::via(net("192.0.2.0/24"), ip("10.0.0.9")) };
    let elsewhere = Route { table: 100, ..to_b() };
    let neighbour = Neighbour::permanent(UNDERLAY, ip("10.0.0.9"), Mac::GATEWAY);
    for change in [Change::Route(other), Change::Route(elsewhere), Change::Neighbour(neighbour)] {
        for event in [Event::Set(change.clone()), Event::Gone(change)] {
            assert_eq!(suspects(&event), [], "{event:?}");
        }
    }
}

#[test]
fn forwarding_entries_of_which_nobody_knows_the_author_are_judged_by_what_they_bring_about() {
    let mac = *desired(&inputs()).fdb.keys().map(|(_, mac)| mac).next().unwrap();
    let ours = FdbEntry::remote(DEVICE, mac, ip("10.0.0.2"));
    let wrong = FdbEntry::remote(DEVICE, mac, ip("10.0.0.66"));
    let elsewhere = FdbEntry { ifindex: 33, ..ours.clone() };
    assert_eq!(suspects(&Event::Set(Change::Fdb(ours.clone()))), []);
    assert_eq!(suspects(&Event::Gone(Change::Fdb(ours))), [Part::Overlay]);
    assert_eq!(suspects(&Event::Set(Change::Fdb(wrong))), [Part::Overlay]);
    assert_eq!(suspects(&Event::Gone(Change::Fdb(elsewhere))), []);
}

#[test]
fn sysctls_that_are_switched_off_are_suspect_and_a_new_links_are_not() {
    let conf = |of, forwarding, rp_filter| {
        Event::Set(Change::Conf(Conf { family: Family::V4, of, forwarding, rp_filter, proxy: None }))
    };
    assert_eq!(suspects(&conf(ConfOf::All, Some(false), None)), [Part::Overlay]);
    assert_eq!(suspects(&conf(ConfOf::All, Some(true), None)), []);
    // Not one of ours; and all values at once, which is how a new link is told of.
    assert_eq!(suspects(&conf(ConfOf::Link(33), Some(false), None)), []);
    assert!(is_switched_off(&Conf {
        family: Family::V4,
        of: ConfOf::Link(9),
        forwarding: Some(false),
        rp_filter: None,
        proxy: None
    }));
    assert!(!is_switched_off(&Conf {
        family: Family::V4,
        of: ConfOf::Link(9),
        forwarding: Some(false),
        rp_filter: Some(0),
        proxy: Some(false)
    }));
}

#[test]
fn an_address_that_the_underlay_gets_makes_the_loop_look_and_one_that_it_has_does_not() {
    let set = |text: &str| Event::Set(Change::Address(Address::new(UNDERLAY, net(text))));
    assert!(judge().hear(&set("10.0.0.99/24"), false).underlay);
    assert!(!judge().hear(&set("10.0.0.1/24"), false).is_any());
}

#[test]
fn lost_events_make_everything_suspect() {
    assert_eq!(suspects(&Event::Overrun), Part::ALL);
}

#[test]
fn transactions_concern_us_by_the_tables_that_they_touch() {
    let commit = |table: Table, complete| {
        let change =
            TableChange { object: Object::Rule, table, name: "x".to_owned(), gone: true, base: false };
        let (pid, process) = (1, "nft".to_owned());
        Commit { generation: 1, port: 1, pid, process, changes: vec![change], complete }
    };
    let parts = |commit: &Commit| judge().hear_commit(commit).parts().collect::<Vec<_>>();
    assert_eq!(parts(&commit(Table::inet("russet"), true)), [Part::Overlay]);
    assert_eq!(parts(&commit(Table::inet("russet-policy"), true)), [Part::Verdicts]);
    assert_eq!(parts(&commit(Table::inet("russet-cni"), true)), [Part::Nat]);
    assert_eq!(parts(&commit(Table::inet("filter"), true)), []);
    // One that was too large to be listed may have touched anything.
    assert_eq!(parts(&commit(Table::inet("filter"), false)), [Part::Verdicts, Part::Overlay, Part::Nat]);
}

#[test]
fn a_link_that_was_there_before_the_first_event_is_known() {
    let host_end = host_end("abc");
    let gone = Event::Gone(Change::Link(Box::new(Link { alias: None, ..host_end.clone() })));
    let conf = Conf {
        family: Family::V4,
        of: ConfOf::Link(9),
        forwarding: Some(false),
        rp_filter: None,
        proxy: None,
    };
    let switched = Event::Set(Change::Conf(conf));
    for (known, verdicts, pods) in [(false, false, false), (true, true, true)] {
        let mut judge = judge();
        judge.learn(known.then(|| host_end.clone()));
        assert_eq!(judge.hear(&switched, false).pods, pods);
        assert_eq!(judge.hear(&gone, false).verdicts, verdicts);
    }
}

#[test]
fn what_an_add_and_a_del_do_to_a_host_end_is_not_suspect_and_what_others_do_is_whenever_it_is_heard() {
    let set = |link: Link| Event::Set(Change::Link(Box::new(link)));
    let doomed = |link: Link| Link { flags: 0, name: "russdel9".to_owned(), group: DOOMED_GROUP, ..link };
    let parts = |judge: &mut Judge, event: &Event| judge.hear(event, false).parts().collect::<Vec<_>>();
    // Of the pod `abc` the judge's mirror knows already: an ADD's events that are heard when it is over.
    let (mut judge, whole) = (judge(), host_end("abc"));
    for state in [
        Link { flags: 0, alias: None, ..whole.clone() },
        Link { flags: 0, mtu_bytes: 1500, ..whole.clone() },
        Link { flags: 0, ..whole.clone() },
        whole.clone(),
    ] {
        assert_eq!(parts(&mut judge, &set(state.clone())), [], "{state:?}");
    }
    // Others', in one go with what puts it back.
    for state in [
        Link { flags: 0, ..whole.clone() },
        Link { mtu_bytes: 576, ..whole.clone() },
        Link { alias: None, ..whole.clone() },
        Link { name: "eth7".to_owned(), ..whole.clone() },
    ] {
        assert_eq!(parts(&mut judge, &set(state.clone())), [Part::Pods], "{state:?}");
        judge.hear(&set(whole.clone()), true);
    }
    // A pod that has left the mirror: a DEL.
    let left = host_end("left");
    judge.hear(&set(left.clone()), true);
    for state in [Link { flags: 0, ..left.clone() }, doomed(left.clone())] {
        assert_eq!(parts(&mut judge, &set(state)), []);
    }
    let gone = |link: Link| Event::Gone(Change::Link(Box::new(link)));
    assert_eq!(
        parts(&mut judge, &gone(doomed(left.clone()))),
        [],
        "with its namespace: the DEL took its verdict"
    );
    judge.hear(&set(left.clone()), true);
    assert_eq!(parts(&mut judge, &gone(left)), [Part::Verdicts], "its namespace went without a DEL");
}

#[test]
fn what_is_openshifts_is_suspect_where_its_server_keeps_a_data_path_and_its_own_adds_and_dels_are_not() {
    let route =
        |protocol, dst: &str| Event::Gone(Change::Route(Route { protocol, ..Route::dev(net(dst), 9) }));
    let set = |link: Link| Event::Set(Change::Link(Box::new(link)));
    let end = Link { alias: Some("russet-sdn:ns1:10.128.0.5:abc".to_owned()), ..host_end("abc") };
    let pod = Neighbour::permanent(9, ip("10.128.0.5"), Mac([0x0a, 0x58, 10, 128, 0, 5]));
    let neighbour = |state| Event::Set(Change::Neighbour(Neighbour { state, ..pod.clone() }));
    let forwarding = |family, on| {
        let conf = Conf { family, of: ConfOf::All, forwarding: Some(on), rp_filter: None, proxy: None };
        Event::Set(Change::Conf(conf))
    };
    let judge_of = |kept: bool| {
        let mut judge = judge();
        judge.learn([end.clone()]);
        if kept {
            judge.expect_sdn(vec!["10.128.0.0/14".parse().unwrap()]);
        }
        judge
    };
    let heard = |kept: bool, event: &Event, own: bool| judge_of(kept).hear(event, own).sdn;
    for event in [
        route(116, "192.0.2.0/24"),
        route(4, "10.128.0.5/32"),
        set(Link { flags: 0, ..end.clone() }),
        set(Link { alias: None, ..end.clone() }),
        Event::Gone(Change::Link(Box::new(end.clone()))),
        Event::Gone(Change::Address(Address::new(9, net("10.128.0.1/32")))),
        neighbour(NeighbourState::Failed),
        neighbour(NeighbourState::Permanent),
        forwarding(Family::V4, false),
        Event::Overrun,
    ] {
        assert!(heard(true, &event, false), "{event:?}");
        assert_eq!(heard(true, &event, true), event == Event::Overrun, "{event:?}");
        assert_eq!(heard(false, &event, false), event == Event::Overrun, "{event:?}");
    }
    let leaving = Link { flags: 0, group: openshift::LEAVING_GROUP, ..end.clone() };
    // What the kernel says of a DEL, in its order.
    let mut judge = judge_of(true);
    for event in [
        set(leaving.clone()),
        Event::Gone(Change::Neighbour(pod.clone())),
        Event::Gone(Change::Address(Address::new(9, net("10.128.0.1/32")))),
        Event::Gone(Change::Link(Box::new(leaving.clone()))),
    ] {
        assert!(!judge.hear(&event, false).sdn, "{event:?}");
    }
    let neighbour_gone = Event::Gone(Change::Neighbour(pod.clone()));
    assert!(heard(true, &neighbour_gone, false), "another program removed it");
    // And of an ADD, which switches IPv6 off: it has taken nothing that is to be there.
    let six = Address::new(9, net("fe80::1/64"));
    assert!(heard(true, &Event::Set(Change::Address(six.clone())), false), "it was switched on");
    for event in [
        Event::Gone(Change::Address(six)),
        Event::Gone(Change::Neighbour(Neighbour { address: ip("ff02::16"), ..pod })),
        route(4, "10.9.0.0/24"),
        set(end.clone()),
        set(Link { index: 10, ..end.clone() }),
        set(leaving.clone()),
        Event::Gone(Change::Link(Box::new(leaving))),
        neighbour(NeighbourState::Reachable),
        forwarding(Family::V4, true),
        forwarding(Family::V6, false),
    ] {
        assert!(!heard(true, &event, false), "{event:?}");
    }
}

/// Found by a reader: each DEL made the kernel take the pod's neighbour, and that made the whole data path be compared.
#[test]
#[ignore = "kernel: veth, vxlan, nf_tables, bpf; root"]
fn no_event_of_an_add_or_a_del_of_openshifts_makes_its_data_path_suspect() {
    testkit::in_netns_with_loopback(|| {
        let ip = |command: &str| testkit::run("ip", &command.split(' ').collect::<Vec<_>>());
        ip("link add nic0 type veth peer name wire0");
        ip("address add 192.0.2.11/24 dev nic0");
        ip("link set nic0 up");
        let _pod = russet_linux::NetNs::create_named("pod").unwrap();
        // As the stock plugin makes it, with all that a link may have by then.
        ip("link add veth1 type veth peer name eth0 netns pod");
        ip("link set veth1 up");
        ip("-6 address add fd00::1/64 dev veth1 nodad");
        ip("-6 neighbour add fd00::2 lladdr 02:00:00:00:00:01 dev veth1 nud permanent");
        let mut socket = Socket::route().unwrap();
        let cluster: Vec<Ipv4Net> = vec!["10.128.0.0/14".parse().unwrap()];
        let mut sdn = openshift::Sdn::open(openshift::Settings {
            cluster: cluster.clone(),
            service: None,
            own: "10.128.0.0/23".parse().unwrap(),
            node_ip: "192.0.2.11".parse().unwrap(),
            underlay: socket.link_by_name(&"nic0".parse().unwrap()).unwrap().index,
            mtu: 1400,
            vxlan_port: 4789,
        })
        .unwrap();
        assert_eq!(sdn.restore().report.failed, 0);
        let mut monitor = Monitor::open(&TOPICS).unwrap();
        let mut judge = judge();
        judge.expect_sdn(cluster);
        judge.learn(socket.links().unwrap());
        let mut hear = || {
            let (mut events, mut suspects) = (0, Vec::new());
            while let Some(heard) = monitor.next_heard(Duration::ZERO).unwrap() {
                events += 1;
                let own = heard.port != 0 && is_own_route_port(heard.port);
                if judge.hear(&heard.event, own).sdn {
                    suspects.push(heard.event);
                }
            }
            (events, suspects)
        };
        let port = openshift::Port {
            host_veth: "veth1".parse().unwrap(),
            address: "10.128.0.5".parse().unwrap(),
            netid: None,
            sandbox: "abc".parse().unwrap(),
            namespace: Namespace::new("ns1").unwrap(),
        };
        sdn.attach(&port).unwrap();
        let (events, suspects) = hear();
        assert!(events > 3 && suspects.is_empty(), "ADD: {events}, {suspects:#?}");
        // What somebody else does is.
        ip("neighbour del 10.128.0.5 dev veth1");
        assert!(!hear().1.is_empty());
        sdn.restore();
        assert_eq!(hear().1, []);
        let links = sdn.detach(&port.sandbox).unwrap();
        openshift::delete_links(links).unwrap();
        let (events, suspects) = hear();
        assert!(events > 3 && suspects.is_empty(), "DEL: {events}, {suspects:#?}");
    });
}
