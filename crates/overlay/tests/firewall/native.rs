//! Our own tables (flannel.md sections 7.1 and 7.2).

use std::time::Duration;

use russet_nft::Monitor;
use russet_nft::monitor::Event;
use russet_overlay::firewall::{Mode, Wanted};
use russet_testkit::{in_netns_with_loopback, sh};

use crate::lab::{apply, open, wanted};

const LISTED: &str = "table ip flannel-ipv4 {
	chain postrtg {
		type nat hook postrouting priority srcnat; policy accept;
		meta mark & 0x00004000 == 0x00004000 return
		ip saddr 10.5.1.0/24 ip daddr 10.5.0.0/16 return
		ip saddr 10.5.0.0/16 ip daddr 10.5.1.0/24 return
		ip saddr != 10.5.0.0/16 ip daddr 10.5.1.0/24 return
		ip saddr 10.5.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
		ip saddr != 10.5.0.0/16 ip daddr 10.5.0.0/16 masquerade fully-random
	}

	chain forward {
		type filter hook forward priority filter; policy accept;
		ip saddr 10.5.0.0/16 accept
		ip daddr 10.5.0.0/16 accept
	}
}
table ip6 flannel-ipv6 {
	chain postrtg {
		type nat hook postrouting priority srcnat; policy accept;
		meta mark & 0x00004000 == 0x00004000 return
		ip6 saddr fd00:10:5:1::/64 ip6 daddr fd00:10:5::/48 return
		ip6 saddr fd00:10:5::/48 ip6 daddr fd00:10:5:1::/64 return
		ip6 saddr != fd00:10:5::/48 ip6 daddr fd00:10:5:1::/64 return
		ip6 saddr fd00:10:5::/48 ip6 daddr != ff00::/8 masquerade fully-random
		ip6 saddr != fd00:10:5::/48 ip6 daddr fd00:10:5::/48 masquerade fully-random
	}

	chain forward {
		type filter hook forward priority filter; policy accept;
		ip6 saddr fd00:10:5::/48 accept
		ip6 daddr fd00:10:5::/48 accept
	}
}
";

/// The ruleset, sorted by table name: nft lists tables in the order of their creation.
fn listed() -> String {
    let text = sh("nft list ruleset");
    let mut tables: Vec<&str> = text.split_inclusive("\n}\n").collect();
    tables.sort_unstable();
    tables.concat()
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: nft"]
fn t37_masquerade_rules_exist_only_when_requested() {
    // flannel.md sections 7.1 and 7.2: the order of the rules, and the rule that flannel's nft mode
    // has wrong
    in_netns_with_loopback(|| {
        let mut firewall = open(Mode::Nft);
        assert_eq!(apply(&mut firewall, &wanted()).repaired.len(), 2);
        assert_eq!(listed(), LISTED);
        apply(&mut firewall, &Wanted { masquerade: false, ..wanted() });
        assert!(!listed().contains("postrtg") && listed().contains("ip saddr 10.5.0.0/16 accept"));
        apply(&mut firewall, &Wanted { random_fully: false, forward: false, ..wanted() });
        let text = listed();
        assert!(!text.contains("fully-random") && !text.contains("chain forward"), "{text}");
        let v4_only = Wanted { networks: vec!["10.5.0.0/16".parse().unwrap()], ..wanted() };
        apply(&mut firewall, &v4_only);
        assert!(!listed().contains("flannel-ipv6"));
        assert!(firewall.withdraw().failed.is_empty());
        assert_eq!(listed(), "");
        assert!(firewall.withdraw().is_quiet());
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: nft"]
fn t38_deleted_and_added_objects_are_detected_and_repaired() {
    // flannel.md section 7.1: checked every `iptables-resync` seconds there, at once here
    in_netns_with_loopback(|| {
        let mut firewall = open(Mode::Nft);
        apply(&mut firewall, &wanted());
        for damage in [
            "flush chain ip flannel-ipv4 postrtg",
            "flush chain ip6 flannel-ipv6 forward",
            "delete table ip flannel-ipv4",
            "flush ruleset",
            "insert rule ip flannel-ipv4 forward drop",
            "add chain ip flannel-ipv4 foreign",
            "add chain ip flannel-ipv4 foreign { type filter hook forward priority 0; policy drop; }",
            "add chain ip flannel-ipv4 forward { policy drop; }",
            "add table ip flannel-ipv4 { flags dormant; }",
        ] {
            sh(&format!("nft {damage}"));
            assert!(firewall.changed(Duration::from_secs(10)).unwrap(), "{damage}");
            let report = apply(&mut firewall, &wanted());
            assert!(!report.is_quiet(), "{damage}");
            assert_eq!(report.culprit.unwrap().process, "nft", "{damage}");
            assert_eq!(listed(), LISTED, "{damage}");
            assert!(apply(&mut firewall, &wanted()).is_quiet(), "{damage}");
        }
        let rule = sh("nft -a list chain ip flannel-ipv4 postrtg");
        let handle =
            rule.lines().find(|line| line.contains("ip saddr != ")).unwrap().rsplit(' ').next().unwrap();
        sh(&format!("nft delete rule ip flannel-ipv4 postrtg handle {handle}"));
        assert!(firewall.changed(Duration::from_secs(10)).unwrap());
        apply(&mut firewall, &wanted());
        assert_eq!(listed(), LISTED);
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: nft"]
fn a_restart_changes_nothing_and_unrelated_commits_are_ignored() {
    // flannel.md section 9, #2237: flannel flushes its rules at each start
    in_netns_with_loopback(|| {
        apply(&mut open(Mode::Nft), &wanted());
        let before = sh("nft -a list ruleset");
        let mut monitor = Monitor::open().unwrap();
        let mut firewall = open(Mode::Nft);
        assert!(apply(&mut firewall, &wanted()).is_quiet());
        assert_eq!(monitor.next(Duration::ZERO).unwrap(), None, "nothing was committed");
        assert_eq!(sh("nft -a list ruleset"), before);
        sh("nft add table ip unrelated");
        sh("nft add chain ip unrelated first");
        assert!(firewall.changed(Duration::from_secs(10)).unwrap(), "a new table may have anything in it");
        sh("nft add chain ip unrelated more");
        sh("nft add rule ip unrelated first jump more");
        assert!(!firewall.changed(Duration::ZERO).unwrap());
        assert!(apply(&mut firewall, &wanted()).is_quiet());
        // Our own commits do not count as foreign.
        apply(&mut firewall, &Wanted { random_fully: false, ..wanted() });
        assert!(!firewall.changed(Duration::ZERO).unwrap());
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: nft"]
fn another_subnet_is_one_transaction() {
    in_netns_with_loopback(|| {
        let mut firewall = open(Mode::Nft);
        apply(&mut firewall, &wanted());
        let mut monitor = Monitor::open().unwrap();
        let moved = Wanted { own: vec!["10.5.9.0/24".parse().unwrap()], ..wanted() };
        apply(&mut firewall, &moved);
        assert!(matches!(monitor.next(Duration::ZERO).unwrap(), Some(Event::Committed(_))));
        assert_eq!(monitor.next(Duration::ZERO).unwrap(), None, "one commit");
        let text = listed();
        assert!(!text.contains("10.5.1.0/24") && text.contains("ip saddr 10.5.9.0/24"), "{text}");
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: nft"]
fn tables_of_flannels_nft_mode_are_adopted() {
    // flannel.md section 7.2: its chains, comments and dead rule
    in_netns_with_loopback(|| {
        for command in [
            "add table ip flannel-ipv4 { comment \"rules for flannel-ipv4\" ; }",
            "add chain ip flannel-ipv4 postrtg { type nat hook postrouting priority srcnat ; }",
            "add rule ip flannel-ipv4 postrtg meta mark 0x4000 return",
            "add rule ip flannel-ipv4 postrtg ip saddr != 10.5.1.0/24 ip daddr 10.5.0.0/16 return",
            "add chain ip flannel-ipv4 forward { type filter hook forward priority filter ; }",
            "add table ip6 flannel-ipv6",
        ] {
            sh(&format!("nft {command}"));
        }
        apply(&mut open(Mode::Nft), &wanted());
        let text = listed().replace("\tcomment \"rules for flannel-ipv4\"\n", "");
        assert_eq!(text, LISTED);
        // flannel can take over from us: it can declare the same chains again.
        sh("nft add chain ip flannel-ipv4 postrtg { type nat hook postrouting priority srcnat ; }");
        sh("nft add chain ip flannel-ipv4 forward { type filter hook forward priority filter ; }");
    });
}
