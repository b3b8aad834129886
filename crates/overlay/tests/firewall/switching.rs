//! Switching between modes and flavours in place: no rule exists twice, and none is left over.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use russet_overlay::firewall::{Mode, Wanted};
use russet_testkit::{in_netns_with_loopback, sh};

use crate::iptables::{SHOWN, shown};
use crate::lab::{NODE, OUTSIDE, POD, apply, open, seen, wanted, with_lab};

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: iptables, nft"]
fn switching_between_iptables_and_nft_leaves_no_duplicates() {
    with_lab(|lab| {
        sh("iptables -P FORWARD DROP");
        sh("iptables -A FORWARD -i lo -j ACCEPT");
        for _ in 0..2 {
            apply(&mut open(Mode::Iptables), &wanted());
            assert_eq!(shown("iptables-save"), SHOWN);
            let text = sh("nft list ruleset");
            assert!(!text.contains("flannel-ipv") && !text.contains("russet"), "{text}");
            assert_eq!(seen(Some(&lab.pod), POD, &lab.neighbour, OUTSIDE), Some(NODE.parse().unwrap()));

            apply(&mut open(Mode::Nft), &wanted());
            let text = sh("nft list ruleset");
            assert!(!text.contains("FLANNEL") && text.contains("table ip flannel-ipv4"), "{text}");
            assert_eq!(seen(Some(&lab.pod), POD, &lab.neighbour, OUTSIDE), Some(NODE.parse().unwrap()));
        }
        assert!(sh("iptables-save -t filter").contains("-A FORWARD -i lo -j ACCEPT"));
    });
}

#[test]
#[ignore = "kernel: network namespaces, legacy iptables, root; tool: iptables-legacy, nft"]
fn chains_of_flannel_in_legacy_iptables_are_removed_in_nft_mode() {
    in_netns_with_loopback(|| {
        for command in [
            "-t nat -N FLANNEL-POSTRTG",
            "-t nat -A POSTROUTING -j FLANNEL-POSTRTG",
            "-t nat -A FLANNEL-POSTRTG -s 10.5.0.0/16 -j MASQUERADE",
            "-N FLANNEL-FWD",
            "-A FORWARD -j FLANNEL-FWD",
            "-A FLANNEL-FWD -s 10.5.0.0/16 -j ACCEPT",
            "-A FORWARD -s 10.9.0.0/16 -j ACCEPT",
            "-A FORWARD -s 10.4.0.0/16 -j ACCEPT",
        ] {
            sh(&format!("iptables-legacy {command}"));
        }
        for mode in [Mode::Nft, Mode::Iptables] {
            let mut firewall = open(mode);
            apply(&mut firewall, &wanted());
            let all = sh("iptables-legacy-save");
            assert!(!all.contains("FLANNEL"), "{all}");
            let mut previous = wanted();
            previous.networks = vec!["10.9.0.0/16".parse().unwrap()];
            firewall.recycle(&previous);
            let all = sh("iptables-legacy-save");
            assert!(!all.contains("10.9.0.0") && all.contains("10.4.0.0"), "{all}");
        }
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: iptables, nft"]
fn rules_of_old_versions_are_removed_in_nft_mode() {
    in_netns_with_loopback(|| {
        for rule in [
            "-t nat -A POSTROUTING -s 10.5.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE",
            "-t nat -A POSTROUTING -s 10.8.0.0/16 ! -d 224.0.0.0/4 -m comment --comment X -j MASQUERADE",
            "-A FORWARD -s 10.5.0.0/16 -j ACCEPT",
            "-A FORWARD -s 10.8.0.0/16 -j ACCEPT",
        ] {
            sh(&format!("iptables {}", rule.replace('X', "flanneld")));
        }
        sh("nft add rule ip nat POSTROUTING ip saddr 10.7.0.0/16 masquerade comment \"flanneld masq\"");
        let mut firewall = open(Mode::Nft);
        apply(&mut firewall, &wanted());
        assert!(!sh("iptables-save -t nat").contains("10.7.0.0"), "known by its comment");
        firewall.recycle(&wanted());
        let all = sh("iptables-save");
        assert!(!all.contains("10.5.0.0") && all.matches("10.8.0.0").count() == 2, "{all}");
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: iptables, nft"]
fn no_packet_is_lost_or_keeps_its_source_while_rules_modes_and_subnets_change() {
    // flannel.md section 9, #2237: a gap at each restart
    with_lab(|lab| {
        sh("iptables -P FORWARD DROP");
        apply(&mut open(Mode::Nft), &wanted());
        let receiver = lab.neighbour.with(|| UdpSocket::bind((OUTSIDE, 0)).unwrap()).unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let to = receiver.local_addr().unwrap();
        assert!(seen(Some(&lab.pod), POD, &lab.neighbour, OUTSIDE).is_some(), "neighbours are resolved");
        let done = AtomicBool::new(false);
        let (mut sent, mut received) = (0_u32, 0_u32);
        std::thread::scope(|scope| {
            let changes = scope.spawn(|| {
                // A thread of the node: scoped threads inherit their parent's namespace.
                let two = Wanted {
                    networks: ["10.5.0.0/16", "10.6.0.0/16"].map(|net| net.parse().unwrap()).into(),
                    ..wanted()
                };
                for round in 0..6 {
                    let mode = [Mode::Iptables, Mode::Nft][round % 2];
                    let mut firewall = open(mode);
                    for wanted in [&wanted(), &two, &Wanted { random_fully: false, ..wanted() }] {
                        apply(&mut firewall, wanted);
                    }
                }
                done.store(true, Ordering::Relaxed);
            });
            // Each packet is a flow of its own, and is sent after the one before arrived.
            while !done.load(Ordering::Relaxed) {
                let sender = lab.pod.with(|| UdpSocket::bind((POD, 0)).unwrap()).unwrap();
                sender.send_to(b"x", to).unwrap();
                sent += 1;
                let Ok((_, from)) = receiver.recv_from(&mut [0; 8]) else { break };
                assert_eq!(from.ip().to_string(), NODE, "after {received} packets");
                received += 1;
            }
            changes.join().unwrap();
        });
        assert_eq!(sent, received);
        assert!(received > 100, "{received}");
    });
}
