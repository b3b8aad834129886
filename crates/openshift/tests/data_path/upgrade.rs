//! An upgrade of a node whose programs are those of a release that wrote them in an assembler of its
//! own: their names have other digests, and the agent replaces them.

use std::net::UdpSocket;
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use russet_linux::bpf::{Object, Packet, Program, programs};
use russet_netlink::{Batch, Direction, Socket};
use russet_openshift::data_path::Sdn;
use russet_overlay::ReconcileReport;
use russet_testkit::forged::socket;
use russet_testkit::{eventually, sh};

use crate::lab::with_nodes;

/// A packet that has not come by then is lost.
const TIMEOUT: Duration = Duration::from_secs(5);

/// So many times the programs are replaced under traffic.
const UPGRADES: usize = 20;

/// A program of that release.
struct Old {
    name: &'static str,
    link: &'static str,
    direction: Direction,
    instructions: &'static [u64],
}

const OLD: [Old; 3] = [
    Old {
        name: "russet-sdn_ingress-db39c914",
        link: "vxlan-sdn",
        direction: Direction::Ingress,
        instructions: &INGRESS,
    },
    Old {
        name: "russet-sdn_egress-9c2c346e",
        link: "vxlan-sdn",
        direction: Direction::Egress,
        instructions: &EGRESS,
    },
    Old {
        name: "russet-sdn_delivery-185a2a18",
        link: "veth1000000a",
        direction: Direction::Egress,
        instructions: &DELIVERY,
    },
];

#[rustfmt::skip]
const INGRESS: [u64; 31] = [
    0x0000_0000_0000_16bf, 0x0000_0000_0010_1261, 0x0000_0008_0018_0255, 0x0000_0000_ffb8_0a62,
    0x0000_0000_ffbc_0a62, 0x0000_0000_ffc0_0a62, 0x0000_0000_ffc4_0a62, 0x0000_0000_ffc8_0a62,
    0x0000_0000_ffcc_0a62, 0x0000_0000_ffd0_0a62, 0x0000_0000_0000_61bf, 0x0000_0000_0000_a2bf,
    0xffff_ffb8_0000_0207, 0x0000_001c_0000_03b7, 0x0000_0000_0000_04b7, 0x0000_0000_0000_05b7,
    0x0000_0014_0000_0085, 0x0000_0000_000b_0055, 0x0000_0000_ffb8_a161, 0x00ff_ffff_0000_0157,
    0x0100_0000_0000_0147, 0x0000_0000_0008_1663, 0x0000_0000_0000_61bf, 0x0000_0000_0000_02b7,
    0x0000_0000_0000_03b7, 0x0000_0000_0000_05b7, 0x0000_0020_0000_0085, 0x0000_0000_0000_00b7,
    0x0000_0000_0000_0095, 0x0000_0002_0000_00b7, 0x0000_0000_0000_0095,
];
#[rustfmt::skip]
const EGRESS: [u64; 50] = [
    0x0000_0000_0000_16bf, 0x0000_0000_0010_1261, 0x0000_0008_002b_0255, 0x0000_0000_0008_6161,
    0x0100_0000_0001_0145, 0x0000_0000_002a_0005, 0x0000_0000_0000_61bf, 0x0000_0000_0000_a3bf,
    0xffff_ffd6_0000_0307, 0x0000_0000_0000_02b7, 0x0000_0022_0000_04b7, 0x0000_0000_0000_05b7,
    0x0000_001a_0000_0085, 0x0000_0000_0022_0055, 0x0000_0000_ffd6_a169, 0x0000_580a_0020_0155,
    0x0000_0000_ffd8_a161, 0x0000_0020_0000_01dc, 0x0000_0000_ffbc_1a63, 0x0000_0000_0008_6161,
    0x00ff_ffff_0000_0157, 0x0000_0000_ffb8_1a63, 0x0000_0000_ffc0_0a62, 0x0000_0000_ffc4_0a62,
    0x0000_0000_ffc8_0a62, 0x0000_0000_ffcc_0a62, 0x0000_0000_ffd0_0a62, 0x0000_0040_ffcd_0a72,
    0x0000_0000_0000_61bf, 0x0000_0000_0000_a2bf, 0xffff_ffb8_0000_0207, 0x0000_001c_0000_03b7,
    0x0000_0000_0000_04b7, 0x0000_0000_0000_05b7, 0x0000_0015_0000_0085, 0x0000_0000_000c_0055,
    0x0000_0000_0000_61bf, 0x0000_0000_0000_a3bf, 0xffff_fff4_0000_0307, 0x0000_0002_0000_02b7,
    0x0000_0004_0000_04b7, 0x0000_0000_0000_05b7, 0x0000_0009_0000_0085, 0x0000_0000_0004_0055,
    0x0000_0000_0000_01b7, 0x0000_0000_0008_1663, 0x0000_0000_0000_00b7, 0x0000_0000_0000_0095,
    0x0000_0002_0000_00b7, 0x0000_0000_0000_0095,
];
#[rustfmt::skip]
const DELIVERY: [u64; 12] = [
    0x0000_0000_0010_1261, 0x0000_0008_0005_0255, 0x0000_0000_0008_1261, 0x0200_0000_0001_0245,
    0x0000_0000_0005_0005, 0x0000_0000_0000_00b7, 0x0000_0000_0000_0095, 0x0000_0608_0002_0255,
    0x0000_0000_0000_00b7, 0x0000_0000_0000_0095, 0x0000_0002_0000_00b7, 0x0000_0000_0000_0095,
];

#[test]
#[ignore = "kernel: bpf(2) needs root"]
fn the_programs_do_to_packets_what_those_of_the_assembler_did() {
    let objects = [programs::SDN_INGRESS, programs::SDN_EGRESS, programs::SDN_DELIVERY];
    let marks = (0..32).map(|bit| 1 << bit).chain([0, !0, 1 << 24 | 4711, 3 << 24 | 0x00ff_ffff]);
    let marks: Vec<u32> = marks.collect();
    for (old, object) in OLD.iter().zip(objects) {
        let before = Program::from_instructions("old", old.instructions).unwrap();
        let after = Program::load(&Object::read(object).unwrap(), &[]).unwrap();
        for kind in [0x0800_u16, 0x0806, 0x86dd, 0x8100, 0x88cc] {
            for mac in [[0x0a, 0x58], [0x0a, 0x59], [0xff, 0xff], [0x58, 0x0a]] {
                let mut frame: Vec<u8> = (0..80).collect();
                frame[..2].copy_from_slice(&mac);
                frame[12..14].copy_from_slice(&kind.to_be_bytes());
                for &mark in &marks {
                    let packet = Packet { frame: &frame, mark, ..Packet::default() };
                    let [was, is] = [&before, &after].map(|program| program.run(&packet).unwrap());
                    assert_eq!(was, is, "{}: type {kind:#x}, MAC {mac:?}, mark {mark:#x}", old.name);
                }
            }
        }
    }
}

/// Puts the old release's programs into the places of this one's; call it in the node's namespace.
fn downgrade() {
    let mut socket = Socket::route().unwrap();
    for old in &OLD {
        let program = Program::from_instructions("old", old.instructions).unwrap();
        let link = socket.link_by_name(&russet_addr::IfName::new(old.link).unwrap()).unwrap();
        let mut batch = Batch::new();
        batch.replace_bpf(link.index, old.direction, program.as_fd(), old.name);
        socket.execute(&batch).unwrap();
    }
}

fn filters() -> String {
    OLD.iter()
        .map(|old| {
            let direction = if old.direction == Direction::Ingress { "ingress" } else { "egress" };
            sh(&format!("ip netns exec n1 tc filter show dev {} {direction}", old.link))
        })
        .collect()
}

/// Sends numbers to the other end, which returns each, until `done`, or until one does not come back;
/// counts those that did.
fn traffic(client: &UdpSocket, server: &UdpSocket, returned: &AtomicUsize, done: &AtomicBool) {
    let to = server.local_addr().unwrap();
    let mut number = [0; 8];
    while !done.load(Ordering::Relaxed) {
        client.send_to(&number, to).unwrap();
        let echoed = server.recv_from(&mut number).and_then(|(_, from)| server.send_to(&number, from));
        if echoed.and_then(|_| client.recv_from(&mut number)).is_err() {
            return;
        }
        returned.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
#[ignore = "kernel: network namespaces need root; tool: tc"]
fn an_upgrade_from_the_assemblers_programs_replaces_them_and_loses_no_packet() {
    with_nodes(2, |nodes| {
        let (near, far) = (nodes[0].pod(10, 10), nodes[1].pod(10, 10));
        let foreign = nodes[1].pod(11, 11);
        nodes[0].ns.with(downgrade).unwrap();
        let before = filters();
        assert!(OLD.iter().all(|old| before.contains(old.name)), "{before}");
        // The old programs on one node and this release's on the other understand each other.
        near.assert_reaches(&far);
        near.assert_apart(&foreign);
        nodes[0].start();
        let client = socket(&near.name, near.port.address, 7000);
        let server = socket(&far.name, far.port.address, 7001);
        for end in [&client, &server] {
            end.set_read_timeout(Some(TIMEOUT)).unwrap();
        }
        let (returned, done) = (AtomicUsize::new(0), AtomicBool::new(false));
        let reports: Vec<ReconcileReport> = std::thread::scope(|scope| {
            scope.spawn(|| traffic(&client, &server, &returned, &done));
            let more = || {
                let before = returned.load(Ordering::Relaxed);
                eventually(TIMEOUT, || returned.load(Ordering::Relaxed) > before + 1);
            };
            let upgrade = |_| {
                nodes[0].ns.with(downgrade).unwrap();
                more();
                let report = nodes[0].run(Sdn::restore);
                more();
                report
            };
            let reports = (0..UPGRADES).map(upgrade).collect();
            done.store(true, Ordering::Relaxed);
            reports
        });
        for report in reports {
            assert_eq!(report.failed, 0, "{:?}", report.errors);
            let is_program = |what: &String| what.starts_with("attach program russet-sdn_");
            assert!(report.what.len() == 3 && report.what.iter().all(is_program), "{:?}", report.what);
        }
        let after = filters();
        assert!(OLD.iter().all(|old| !after.contains(old.name)), "{after}");
        assert_eq!(after.matches("russet-sdn_").count(), 3, "{after}");
        near.assert_reaches(&far);
        near.assert_apart(&foreign);
        let again = nodes[0].run(Sdn::restore);
        assert!(again.is_quiet(), "{again:?}");
    });
}
