//! The loader of BPF programs on the running kernel.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests, too")]

use std::net::UdpSocket;
use std::os::fd::AsFd as _;
use std::time::Duration;

use russet_netlink::{Batch, Direction, LinkSet, Socket};

use russet_linux::NetNs;
use russet_linux::bpf::{
    Attachable, Found, Map, MapDefinition, MapKind, Need, Object, Packet, Program, ProgramLink, Support, Way,
    attached, own_filters, remove_filter, remove_filters, without_own_clsact,
};

/// A program with a map of each kind.
const TEST_COUNT: &[u8] = include_bytes!("../bpf/test_count.o");
const LOOPBACK: u32 = 1;
const OK: i32 = 0;
const SHOT: i32 = 2;
/// `r0 = TC_ACT_OK; exit` and `r0 = TC_ACT_SHOT; exit`.
const PASS: [u64; 2] = [0xb7, 0x95];
const DROP: [u64; 2] = [2 << 32 | 0xb7, 0x95];
const TIMEOUT: Duration = Duration::from_secs(5);

fn definition(kind: MapKind, entries: u32) -> MapDefinition {
    let is_trie = kind == MapKind::LpmTrie;
    MapDefinition {
        name: "some".to_owned(),
        kind,
        key_bytes: if is_trie { 8 } else { 4 },
        value_bytes: 8,
        entries,
        flags: u32::from(is_trie),
    }
}

/// A key of each kind's form: an index, or a prefix of 32 bits.
fn key(kind: MapKind, number: u32) -> Vec<u8> {
    match kind {
        MapKind::LpmTrie => [32_u32.to_ne_bytes(), number.to_be_bytes()].concat(),
        _ => number.to_ne_bytes().to_vec(),
    }
}

/// An Ethernet frame with an IPv4 header.
fn frame(destination: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![0; 14 + 20];
    frame[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    frame[30..34].copy_from_slice(&destination);
    frame
}

#[test]
#[ignore = "kernel: bpf(2) needs root"]
fn a_refused_program_says_what_the_verifier_saw_last() {
    // R0 was never written; the instructions before make a log of more lines than are shown.
    let program: Vec<u64> = [[0x2b7; 50].as_slice(), &[0x95]].concat();
    let error = Program::from_instructions("bad", &program).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("load BPF program bad: ") && text.contains("R0 !read_ok"), "{text}");
    assert!(text.lines().count() <= 8, "{text}");
    assert_eq!(error.errno(), Some(libc::EACCES));
}

#[test]
#[ignore = "kernel: bpf(2) needs root"]
fn a_program_finds_its_maps_and_what_it_writes_is_read() {
    let object = Object::read(TEST_COUNT).unwrap();
    let maps: Vec<Map> = object.maps().iter().map(|map| Map::create(map).unwrap()).collect();
    let program = Program::load(&object, &maps.iter().collect::<Vec<_>>()).unwrap();
    let info = program.info().unwrap();
    assert_eq!((info.name.as_str(), info.tag != [0; 8]), ("test_count", true));
    let [denied, epoch, flows, networks, packets] = &maps[..] else { panic!("{maps:?}") };
    let word = |number: u32| number.to_ne_bytes();
    let run = |address: [u8; 4]| {
        let ran = program.run(&Packet { frame: &frame(address), mark: 99, ..Packet::default() }).unwrap();
        assert_eq!((ran.frame, ran.mark), (frame(address), 7));
        ran.verdict
    };
    epoch.put(&word(0), &word(7)).unwrap();
    let prefix = |bits: u32, address: [u8; 4]| [word(bits), address].concat();
    networks.put(&prefix(8, [10, 0, 0, 0]), &word(1)).unwrap();
    networks.put(&prefix(24, [10, 1, 2, 0]), &word(2)).unwrap();
    denied.put(&[10, 9, 9, 9], &word(0)).unwrap();
    let verdicts = [[10, 1, 2, 3], [10, 1, 2, 3], [10, 3, 3, 3], [10, 9, 9, 9], [11, 0, 0, 1]].map(run);
    assert_eq!(verdicts, [OK, OK, OK, SHOT, SHOT]);
    // The longest prefix, the epoch, the number of packets.
    let flow = |network: u32, count: u64| [&word(network)[..], &word(7), &count.to_ne_bytes()].concat();
    assert_eq!(flows.get(&[10, 1, 2, 3]).unwrap(), Some(flow(2, 2)));
    assert_eq!(flows.get(&[10, 3, 3, 3]).unwrap(), Some(flow(1, 1)));
    let count = |slot: u32| {
        let value = packets.get(&word(slot)).unwrap().unwrap();
        value.chunks(8).map(|cpu| u64::from_ne_bytes(cpu.try_into().unwrap())).sum::<u64>()
    };
    assert_eq!([0, 1].map(count), [3, 2]);
    // What was learnt in another epoch is no verdict in this one.
    flows.put(&[10, 1, 2, 3], &[&word(2)[..], &word(6), &[0; 8]].concat()).unwrap();
    assert_eq!(run([10, 1, 2, 3]), SHOT);
    assert!(Program::load(&object, &[denied]).is_err(), "four maps are missing");
}

#[test]
#[ignore = "kernel: bpf(2) needs root"]
fn maps_of_every_kind_are_written_and_read_in_batches() {
    // A value of a program array is read as another one than was written.
    for kind in MapKind::ALL.into_iter().filter(|kind| *kind != MapKind::Programs) {
        // More than one batch has.
        let map = Map::create(&definition(kind, 3000)).unwrap();
        let is_array = matches!(kind, MapKind::Array | MapKind::PerCpuArray);
        let value_bytes = map.value_bytes();
        let entry = |number: u32| (key(kind, number), vec![number as u8; value_bytes]);
        let wanted: Vec<_> = (0..2500).map(entry).collect();
        map.put_all(&wanted).unwrap();
        let mut found = map.entries().unwrap();
        found.sort();
        found.retain(|(_, value)| !is_array || value.iter().any(|byte| *byte != 0));
        let mut expected = wanted.clone();
        expected.sort();
        expected.retain(|(_, value)| !is_array || value.iter().any(|byte| *byte != 0));
        // An LRU map may forget an entry before it is full: each CPU has free ones of its own.
        if kind == MapKind::LruHash {
            assert!(
                found.len() > 1500 && found.iter().all(|entry| expected.contains(entry)),
                "{}",
                found.len()
            );
        } else {
            assert!(found == expected, "{kind:?}: {} of {}", found.len(), expected.len());
            assert_eq!(map.get(&wanted[7].0).unwrap().as_ref(), Some(&wanted[7].1), "{kind:?}");
        }
        if !is_array {
            let there = found[0].0.clone();
            assert_eq!([&there, &there].map(|key| map.delete(key).unwrap()), [true, false], "{kind:?}");
            assert_eq!(map.get(&there).unwrap(), None, "{kind:?}");
        }
        let error = map.put(&[1, 2], &wanted[0].1).unwrap_err().to_string();
        assert!(error.starts_with("write an entry of BPF map some: 2 bytes instead of "), "{error}");
    }
}

#[test]
#[ignore = "kernel: bpf(2) needs root"]
fn a_full_hash_refuses_and_a_full_lru_hash_forgets() {
    let entries = |kind| (0..1000).map(|number| (key(kind, number), vec![1; 8])).collect::<Vec<_>>();
    let full = Map::create(&definition(MapKind::Hash, 8)).unwrap();
    assert_eq!(full.put_all(&entries(MapKind::Hash)).unwrap_err().errno(), Some(libc::E2BIG));
    let forgets = Map::create(&definition(MapKind::LruHash, 8)).unwrap();
    forgets.put_all(&entries(MapKind::LruHash)).unwrap();
    let kept = forgets.entries().unwrap().len();
    assert!((1..1000).contains(&kept), "{kept}");
}

#[test]
#[ignore = "kernel: bpf(2) and network namespaces need root"]
fn a_tcx_program_sees_packets_and_goes_with_its_link() {
    // A thread begins in the namespaces of the one that starts it.
    NetNs::create_unnamed().unwrap().run_in_thread(tcx).unwrap();
}

fn tcx() {
    let up = LinkSet { up: Some(true), ..LinkSet::index(LOOPBACK) };
    Socket::route().unwrap().execute(Batch::new().set_link(&up)).unwrap();
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver.set_read_timeout(Some(TIMEOUT)).unwrap();
    let send = |byte: u8| receiver.send_to(&[byte], receiver.local_addr().unwrap()).unwrap();
    let first = || {
        let mut byte = [0];
        receiver.recv(&mut byte).unwrap();
        byte[0]
    };
    let [pass, drop_all] = [PASS, DROP].map(|code| Program::from_instructions("test", &code).unwrap());
    let id = |program: &Program| program.info().unwrap().id;
    let programs = |direction| {
        let found = attached(LOOPBACK, direction).unwrap();
        found.iter().map(|attached| attached.program).collect::<Vec<_>>()
    };
    let link = ProgramLink::attach(&drop_all, LOOPBACK, Direction::Ingress).unwrap();
    assert_eq!(link.info().unwrap().1, LOOPBACK);
    assert_eq!(attached(LOOPBACK, Direction::Ingress).unwrap(), [link.info().unwrap().0]);
    send(1);
    drop(link);
    let link = ProgramLink::attach(&pass, LOOPBACK, Direction::Ingress).unwrap();
    send(2);
    assert_eq!(first(), 2, "the first packet was dropped");
    assert_eq!(programs(Direction::Ingress), [id(&pass)]);
    // Behind those that are there; the first that passes a packet decides.
    let behind = ProgramLink::attach(&drop_all, LOOPBACK, Direction::Ingress).unwrap();
    assert_eq!(programs(Direction::Ingress), [id(&pass), id(&drop_all)]);
    send(3);
    assert_eq!(first(), 3);
    drop(behind);
    // Also while another process has the link open.
    let opened = link.as_fd().try_clone_to_owned().unwrap();
    drop(link);
    assert_eq!(programs(Direction::Ingress), []);
    drop(opened);
    let error = ProgramLink::attach(&pass, 4711, Direction::Ingress).unwrap_err().to_string();
    assert!(error.starts_with("attach BPF program to link 4711: "), "{error}");
}

#[test]
#[ignore = "kernel: bpf(2) and network namespaces need root"]
fn a_filter_lets_packets_pass_once_its_process_has_ended_and_is_removed_by_the_next() {
    NetNs::create_unnamed().unwrap().run_in_thread(filter).unwrap();
}

fn filter() {
    let mut socket = Socket::route().unwrap();
    let up = LinkSet { up: Some(true), ..LinkSet::index(LOOPBACK) };
    socket.execute(Batch::new().set_link(&up)).unwrap();
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let arrives = |byte: u8| {
        receiver.send_to(&[byte], receiver.local_addr().unwrap()).unwrap();
        receiver.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let mut received = [0];
        receiver.recv(&mut received).is_ok_and(|_| received == [byte])
    };
    let own = |socket: &mut Socket| {
        own_filters(socket).unwrap().into_iter().map(|it| it.program).collect::<Vec<_>>()
    };
    let qdiscs = |socket: &mut Socket| {
        let mut found = socket.qdiscs().unwrap();
        let all = found.iter().filter(|qdisc| qdisc.kind == "clsact").count();
        without_own_clsact(Way::Clsact, socket, &mut found).unwrap();
        [all, found.iter().filter(|qdisc| qdisc.kind == "clsact").count()]
    };
    let attachable = || {
        let program = Program::from_instructions("drops", &DROP).unwrap();
        Attachable::new(program, Way::Clsact).unwrap()
    };
    let in_place = |is_shared| Found { is_in_place: true, is_shared };
    let first = attachable();
    let attachment = first.attach(LOOPBACK, Direction::Ingress).unwrap();
    assert_eq!((attachment.look(), qdiscs(&mut socket)), (in_place(false), [1, 0]));
    assert!(!arrives(1), "the program drops all");
    // The process is killed: the kernel closes what it had, and the filter stays.
    std::mem::forget(attachment);
    drop(first);
    assert!((0..20).any(|_| arrives(2)), "the kernel empties the table in the background");
    assert_eq!(own(&mut socket), ["drops"]);
    // The next process has its own in the place.
    let next = attachable();
    let attachment = next.attach(LOOPBACK, Direction::Ingress).unwrap();
    assert_eq!(own(&mut socket), ["drops"]);
    assert!(!arrives(3));
    // A filter of others stays, with the `clsact`.
    assert!(!Way::Clsact.is_occupied(LOOPBACK, Direction::Ingress).unwrap());
    let pass = Program::from_instructions("test", &PASS).unwrap();
    socket.execute(Batch::new().replace_bpf(LOOPBACK, Direction::Ingress, pass.as_fd(), "another")).unwrap();
    assert_eq!((attachment.look(), qdiscs(&mut socket)), (in_place(true), [1, 1]));
    assert!(Way::Clsact.is_occupied(LOOPBACK, Direction::Ingress).unwrap());
    drop(attachment);
    assert_eq!((own(&mut socket), qdiscs(&mut socket)), (Vec::new(), [1, 1]));
    let filters = socket.bpf_filters(LOOPBACK, Direction::Ingress).unwrap();
    socket.execute(Batch::new().delete_bpf(LOOPBACK, Direction::Ingress, &filters[0])).unwrap();
    // Without a filter the `clsact` stays, until it is removed with the last one.
    let leave = || std::mem::forget(next.attach(LOOPBACK, Direction::Egress).unwrap());
    leave();
    assert_eq!(remove_filters(&mut socket, &["others"]).unwrap(), 0);
    assert_eq!(remove_filters(&mut socket, &["others", "drops"]).unwrap(), 1);
    assert_eq!((own(&mut socket), qdiscs(&mut socket)), (Vec::new(), [1, 0]));
    leave();
    let [left] = &own_filters(&mut socket).unwrap()[..] else { panic!("one filter is there") };
    assert_eq!(remove_filter(&mut socket, left).unwrap(), 1);
    assert_eq!((own(&mut socket), qdiscs(&mut socket)), (Vec::new(), [0, 0]));
    assert_eq!(remove_filter(&mut socket, left).unwrap(), 0, "it may be gone");
    let error = next.attach(4711, Direction::Ingress).unwrap_err().to_string();
    assert!(error.starts_with("attach BPF program to link 4711: "), "{error}");
}

#[test]
#[ignore = "kernel: bpf(2) needs root"]
fn the_probe_finds_everything_here_and_says_what_a_process_without_rights_lacks() {
    // Capabilities are a thread's.
    let tried = std::thread::spawn(|| {
        let support = Support::probe();
        assert!(support.missing().is_empty(), "{support:?}");
        let none = rustix::thread::CapabilitySet::empty();
        let sets = rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, sets).unwrap();
        let support = Support::probe();
        for need in [Need::Programs, Need::Maps(MapKind::LruHash)] {
            let why = support.lacks(need).map(ToString::to_string).unwrap_or_default();
            assert!(why.contains("it needs root, or CAP_BPF"), "{need}: {why}");
        }
    });
    tried.join().unwrap();
}
