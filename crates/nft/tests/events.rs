//! Events of changes by other programs, with their author; and removal of connections of deleted
//! addresses.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;

use russet_addr::Family;
use russet_nft::conntrack::Tuple;
use russet_nft::monitor::{Change, Commit, Event, Object};
use russet_nft::{
    Chain, ChainKind, Conntrack, Element, Hook, KeyType, Monitor, Nft, Rule, Set, Table, Transaction,
    ct_state,
};
use russet_testkit::{in_netns_with_loopback, in_new_netns, run};

const SOON: Duration = Duration::from_secs(10);

fn next_commit(monitor: &mut Monitor) -> Commit {
    match monitor.next(SOON).unwrap() {
        Some(Event::Committed(commit)) => commit,
        other => panic!("expected a commit, got {other:?}"),
    }
}

#[test]
#[ignore = "tool: nft, root"]
fn a_commit_is_one_event_with_its_changes_and_author() {
    in_new_netns(|| {
        let mut monitor = Monitor::open().unwrap();
        assert_eq!(monitor.next(Duration::ZERO).unwrap(), None);
        let table = Table::inet("t");
        let chain = Chain::new(&table, "c");
        let set = Set::new(&table, "s", [KeyType::Ipv4Addr]);
        let elements: Vec<_> =
            (0..1000_u32).map(|index| Element::new(IpAddr::from(index.to_be_bytes()))).collect();
        let mut change = Transaction::new();
        change.add_table(&table).add_chain(&chain).add_set(&set).add_elements(&set, &elements);
        change.add_rule(&Rule::new(&chain).accept());
        let mut nft = Nft::open().unwrap();
        nft.commit(&change).unwrap();

        let commit = next_commit(&mut monitor);
        let objects: Vec<_> =
            commit.changes.iter().map(|change| (change.object, change.name.as_str())).collect();
        let expected = [
            (Object::Table, "t"),
            (Object::Chain, "c"),
            (Object::Set, "s"),
            (Object::Elements, "s"),
            (Object::Rule, "c"),
        ];
        assert_eq!(objects, expected);
        assert_eq!(commit.port, nft.port().unwrap());
        assert_eq!(commit.generation, nft.generation().unwrap());
        assert!(commit.complete && commit.touches(&table) && !commit.touches(&Table::inet("u")));

        run("nft", &["flush", "chain", "inet", "t", "c"]);
        let commit = next_commit(&mut monitor);
        let gone =
            Change { object: Object::Rule, table: table.clone(), name: "c".into(), gone: true, base: false };
        assert_eq!((commit.changes, commit.process.as_str()), (vec![gone], "nft"));
        assert_ne!(commit.port, nft.port().unwrap());
        assert_eq!(monitor.next(Duration::ZERO).unwrap(), None);
    });
}

#[test]
#[ignore = "tool: nft, root"]
fn a_monitor_of_other_processes_is_not_woken_by_commits_of_this_one() {
    in_new_netns(|| {
        let mut monitor = Monitor::of_other_processes().unwrap();
        let mut change = Transaction::new();
        // A commit without a change would not be reported.
        change.destroy_table(&Table::inet("t")).add_table(&Table::inet("t"));
        // The last connections still have their place in the filter.
        let mut connections: Vec<Nft> = (0..20).map(|_| Nft::open().unwrap()).collect();
        for nft in &mut connections {
            nft.commit(&change).unwrap();
            assert_eq!(monitor.next(Duration::ZERO).unwrap(), None);
        }
        let fd = monitor.as_fd().as_raw_fd();
        let arrives = || {
            let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // SAFETY: one valid pollfd.
            unsafe { libc::poll(&mut poll, 1, 0) > 0 }
        };
        connections.last_mut().unwrap().commit(&change).unwrap();
        assert!(!arrives());
        connections.first_mut().unwrap().commit(&change).unwrap();
        assert!(arrives());

        run("nft", &["add", "table", "inet", "u"]);
        let commit = next_commit(&mut monitor);
        assert!(commit.touches(&Table::inet("u")) && commit.process == "nft", "{commit:?}");
        assert_eq!(monitor.next(Duration::ZERO).unwrap(), None);
    });
}

#[test]
#[ignore = "kernel: nf_tables, root"]
fn events_that_did_not_fit_are_an_overrun() {
    in_new_netns(|| {
        let mut monitor = Monitor::open().unwrap();
        let mut nft = Nft::open().unwrap();
        // About 60 MB as the kernel counts, several times the receive buffer.
        let mut change = Transaction::new();
        change.destroy_table(&Table::inet("t"));
        (0..40_000).for_each(|_| nft.commit(&change).unwrap());
        assert_eq!(monitor.next(Duration::ZERO).unwrap(), Some(Event::Overrun));
        // Events that fitted are delivered after the overrun, and so is the next commit.
        while monitor.next(Duration::ZERO).unwrap().is_some() {}
        nft.commit(&change).unwrap();
        assert_eq!(next_commit(&mut monitor).port, nft.port().unwrap());
    });
}

#[test]
#[ignore = "kernel: conntrack, root"]
fn only_connections_of_the_address_are_deleted() {
    in_netns_with_loopback(|| {
        let table = Table::inet("t");
        let chain = Chain::base(&table, "c", ChainKind::Filter, Hook::Output, 0);
        // Matching on the state enables tracking.
        let mut change = Transaction::new();
        change.add_table(&table).add_chain(&chain);
        change.add_rule(&Rule::new(&chain).ct_state(ct_state::NEW).accept());
        Nft::open().unwrap().commit(&change).unwrap();

        for (source, destination) in [
            ("127.0.0.2", "127.0.0.3"),
            ("127.0.0.4", "127.0.0.2"),
            ("127.0.0.4", "127.0.0.5"),
            ("::1", "::1"),
        ] {
            let receiver = UdpSocket::bind((destination, 0)).unwrap();
            let sender = UdpSocket::bind((source, 0)).unwrap();
            sender.send_to(b"x", receiver.local_addr().unwrap()).unwrap();
        }
        let mut conntrack = Conntrack::open().unwrap();
        assert_eq!(conntrack.connections(Family::V4).unwrap().len(), 3);
        assert_eq!(conntrack.connections(Family::V6).unwrap().len(), 1);
        // A connection is found by either direction, and says which was the first.
        for is_v6 in [false, true] {
            let receiver = UdpSocket::bind((if is_v6 { "::1" } else { "127.0.0.6" }, 0)).unwrap();
            let sender = UdpSocket::bind((if is_v6 { "::1" } else { "127.0.0.7" }, 0)).unwrap();
            sender.send_to(b"x", receiver.local_addr().unwrap()).unwrap();
            let [from, to] = [&sender, &receiver].map(|socket| socket.local_addr().unwrap());
            let tuple = |from: SocketAddr, to: SocketAddr| Tuple {
                source: from.ip(),
                destination: to.ip(),
                protocol: 17,
                source_port: from.port(),
                destination_port: to.port(),
            };
            let first = tuple(from, to);
            assert_eq!(conntrack.origin(&first).unwrap(), Some(first));
            assert_eq!(conntrack.origin(&tuple(to, from)).unwrap(), Some(first));
            assert_eq!(conntrack.origin(&Tuple { protocol: 6, ..first }).unwrap(), None);
            let ends = BTreeSet::from([from.ip()]);
            assert_eq!(conntrack.forget(&ends).unwrap(), if is_v6 { 2 } else { 1 });
        }
        let receiver = UdpSocket::bind(("::1", 0)).unwrap();
        let sender = UdpSocket::bind(("::1", 0)).unwrap();
        sender.send_to(b"x", receiver.local_addr().unwrap()).unwrap();
        let gone = BTreeSet::from(["127.0.0.2".parse().unwrap()]);
        assert_eq!(conntrack.forget(&gone).unwrap(), 2);
        assert_eq!(conntrack.forget(&gone).unwrap(), 0);
        let left = conntrack.connections(Family::V4).unwrap();
        assert_eq!(left.len(), 1);
        let addresses = ("127.0.0.4".parse().unwrap(), "127.0.0.5".parse().unwrap());
        assert_eq!((left[0].original, left[0].protocol), (addresses, 17));
        assert_eq!(conntrack.forget(&BTreeSet::from(["::1".parse().unwrap()])).unwrap(), 1);
        assert_eq!(conntrack.connections(Family::V4).unwrap().len(), 1);
    });
}

#[test]
#[ignore = "kernel: nf_conntrack, root; tool: conntrack"]
fn bits_of_marks_are_cleared_in_the_selected_connections_and_others_stay() {
    in_netns_with_loopback(|| {
        // The upper half of the bits 0xff0000, the lower half, none of them; and IPv6.
        let flows =
            [("10.0.0.1", 0x80_0539), ("10.0.0.2", 0x7f_0539), ("10.0.0.3", 0x539), ("fd00::1", 0xff_0000)];
        for (source, mark) in flows {
            let destination = if source.contains(':') { "fd00::9" } else { "10.0.0.9" };
            let flow = format!("-I -s {source} -d {destination} -p udp --sport 1 --dport 2 -t 600 -m {mark}");
            run("conntrack", &flow.split(' ').collect::<Vec<&str>>());
        }
        let marks = || -> BTreeSet<u32> {
            let listed =
                [run("conntrack", &["-L", "-f", "ipv4"]), run("conntrack", &["-L", "-f", "ipv6"])].concat();
            listed
                .split("mark=")
                .skip(1)
                .map(|rest| rest.split(' ').next().unwrap().parse().unwrap())
                .collect()
        };
        let mut conntrack = Conntrack::open().unwrap();
        assert_eq!(conntrack.clear_mark(0xff_0000, 0x80_0000, 0x80_0000).unwrap(), 2);
        assert_eq!(marks(), BTreeSet::from([0, 0x539, 0x7f_0539]));
        assert_eq!(conntrack.clear_mark(0xff_0000, 0, 0x80_0000).unwrap(), 1);
        assert_eq!(marks(), BTreeSet::from([0, 0x539]));
        assert_eq!(conntrack.clear_mark(0xff_0000, 0, 0x80_0000).unwrap(), 0);
    });
}
