//! The mode of flannel's own chains in iptables (flannel.md section 7.1).

use std::time::Duration;

use russet_overlay::firewall::{Mode, Wanted};
use russet_testkit::{in_netns_with_loopback, sh};

use crate::lab::{NODE, OUTSIDE, POD, REMOTE, apply, is_silent, open, seen, wanted, with_lab};

/// What `iptables-save` shows of flannel, by table.
pub fn shown(program: &str) -> String {
    let lines = ["nat", "filter"].map(|table| sh(&format!("{program} -t {table}")));
    let lines = lines.iter().flat_map(|text| text.lines());
    lines
        .filter(|line| line.contains("FLANNEL") || line.contains("flannel"))
        .map(|line| format!("{line}\n"))
        .collect()
}

pub const SHOWN: &str = r#":FLANNEL-POSTRTG - [0:0]
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.5.1.0/24 -d 10.5.0.0/16 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.5.0.0/16 -d 10.5.1.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG ! -s 10.5.0.0/16 -d 10.5.1.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.5.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
-A FLANNEL-POSTRTG ! -s 10.5.0.0/16 -d 10.5.0.0/16 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
:FLANNEL-FWD - [0:0]
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-A FLANNEL-FWD -s 10.5.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
-A FLANNEL-FWD -d 10.5.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
"#;

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: iptables"]
fn t37_the_chains_of_iptables_have_flannels_names_rules_and_order() {
    // flannel.md section 7.1, row "current"
    with_lab(|lab| {
        sh("iptables -P FORWARD DROP");
        sh("iptables -t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE");
        let mut firewall = open(Mode::Iptables);
        apply(&mut firewall, &wanted());
        assert_eq!(shown("iptables-save"), SHOWN);
        let six = shown("ip6tables-save");
        assert!(six.contains("-A FLANNEL-POSTRTG -s fd00:10:5::/48 ! -d ff00::/8 -m comment"), "{six}");
        assert_eq!(six.lines().count(), SHOWN.lines().count());
        assert!(
            !sh("nft list ruleset").contains("russet"),
            "flannel's jump is enough where the policy drops"
        );
        assert_eq!(seen(Some(&lab.pod), POD, &lab.neighbour, OUTSIDE), Some(NODE.parse().unwrap()));
        assert_eq!(seen(Some(&lab.neighbour), REMOTE, &lab.pod, POD), Some(REMOTE.parse().unwrap()));
        // A restart changes nothing.
        let before = sh("nft -a list ruleset");
        assert!(apply(&mut open(Mode::Iptables), &wanted()).is_quiet());
        assert_eq!(sh("nft -a list ruleset"), before);
        apply(&mut firewall, &Wanted { masquerade: false, ..wanted() });
        assert!(!sh("iptables-save -t nat").contains("FLANNEL"));
        apply(&mut firewall, &Wanted { forward: false, ..wanted() });
        assert!(!sh("iptables-save -t filter").contains("FLANNEL"));
        assert!(is_silent(Some(&lab.pod), POD, &lab.neighbour, REMOTE));
        assert!(firewall.withdraw().failed.is_empty());
        assert!(shown("iptables-save").is_empty() && shown("ip6tables-save").is_empty());
        assert!(sh("iptables-save -t nat").contains("172.17.0.0/16"));
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: iptables"]
fn t38_a_rule_a_jump_or_a_chain_of_iptables_that_is_deleted_is_repaired() {
    // flannel.md section 7.1: v0.20.0 cannot repair a deleted chain
    in_netns_with_loopback(|| {
        let legacy = !sh("iptables --version").contains("nf_tables");
        let mut firewall = open(Mode::Iptables);
        apply(&mut firewall, &wanted());
        for damage in [
            &["iptables -t nat -D FLANNEL-POSTRTG 3"][..],
            &["iptables -t nat -D POSTROUTING 1"],
            &["iptables -F FORWARD"],
            &["iptables -F FORWARD", "iptables -F FLANNEL-FWD", "iptables -X FLANNEL-FWD"],
            &[
                "iptables -t nat -F POSTROUTING",
                "iptables -t nat -F FLANNEL-POSTRTG",
                "iptables -t nat -X FLANNEL-POSTRTG",
            ],
            &["nft flush ruleset", "iptables -F FORWARD"],
            &["iptables -I FLANNEL-FWD -j DROP"],
            &["iptables -I FORWARD -j FLANNEL-FWD"],
            &["iptables -t nat -A POSTROUTING -m comment --comment flanneld -j FLANNEL-POSTRTG"],
        ] {
            for command in damage {
                sh(command);
            }
            // Legacy iptables sends no notifications; `apply` compares it each time.
            assert!(legacy || firewall.changed(Duration::from_secs(10)).unwrap(), "{damage:?}");
            assert!(!apply(&mut firewall, &wanted()).is_quiet(), "{damage:?}");
            assert_eq!(shown("iptables-save"), SHOWN, "{damage:?}");
            assert!(apply(&mut firewall, &wanted()).is_quiet(), "{damage:?}");
        }
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: iptables"]
fn rules_of_every_version_of_flannel_are_replaced_without_duplicates() {
    // flannel.md section 7.1, all rows; section 9, #797 and #1092
    in_netns_with_loopback(|| {
        // v0.10.0 and v0.11..v0.19
        for rule in [
            "-t nat -A POSTROUTING -s 10.5.0.0/16 -d 10.5.0.0/16 -j RETURN",
            "-t nat -A POSTROUTING -s 10.5.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE",
            "-t nat -A POSTROUTING -s 10.5.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE --random-fully",
            "-t nat -A POSTROUTING ! -s 10.5.0.0/16 -d 10.5.1.0/24 -j RETURN",
            "-t nat -A POSTROUTING ! -s 10.5.0.0/16 -d 10.5.0.0/16 -j MASQUERADE",
            "-A FORWARD -s 10.5.0.0/16 -j ACCEPT",
            "-A FORWARD -d 10.5.0.0/16 -j ACCEPT",
            // v0.20.0
            "-t nat -N FLANNEL-POSTRTG",
            "-t nat -I POSTROUTING -j FLANNEL-POSTRTG",
            "-t nat -A FLANNEL-POSTRTG -s 10.5.0.0/16 -d 10.5.0.0/16 -j RETURN",
            "-N FLANNEL-FWD",
            "-I FORWARD -j FLANNEL-FWD",
        ] {
            sh(&format!("iptables {rule}"));
        }
        let mut firewall = open(Mode::Iptables);
        apply(&mut firewall, &wanted());
        firewall.recycle(&wanted());
        assert_eq!(shown("iptables-save"), SHOWN);
        let all = sh("iptables-save");
        let rules = all.lines().filter(|line| line.starts_with("-A")).count();
        assert_eq!(rules, SHOWN.lines().filter(|line| line.starts_with("-A")).count(), "{all}");
        // The current flannel, with rules of the same values, finds all of them when it starts.
        for line in SHOWN.lines().filter(|line| line.starts_with("-A")) {
            let table = if line.contains("flanneld masq") { "nat" } else { "filter" };
            std::fs::write("/run/netns/check", format!("iptables -t {table} -C {}\n", &line[3..])).unwrap();
            sh("sh /run/netns/check");
        }
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: iptables"]
fn another_subnet_replaces_the_rules_of_the_previous_one() {
    in_netns_with_loopback(|| {
        apply(&mut open(Mode::Iptables), &wanted());
        let moved = Wanted {
            networks: vec!["10.6.0.0/16".parse().unwrap()],
            own: vec!["10.6.7.0/24".parse().unwrap()],
            ..wanted()
        };
        let mut firewall = open(Mode::Iptables);
        apply(&mut firewall, &moved);
        assert!(firewall.recycle(&wanted()).is_quiet());
        assert!(!shown("iptables-save").contains("10.5."), "{}", shown("iptables-save"));
        assert_eq!(shown("iptables-save").lines().count(), SHOWN.lines().count());
        assert!(shown("ip6tables-save").is_empty());
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: iptables"]
fn accepts_are_added_before_a_reject_that_precedes_flannels_jump() {
    with_lab(|lab| {
        sh("iptables -A FORWARD -j REJECT --reject-with icmp-host-prohibited");
        let mut firewall = open(Mode::Iptables);
        apply(&mut firewall, &wanted());
        assert!(seen(Some(&lab.pod), POD, &lab.neighbour, REMOTE).is_some());
        assert!(apply(&mut firewall, &wanted()).is_quiet());
    });
}

#[test]
#[ignore = "kernel: network namespaces, legacy iptables, root; tool: iptables-legacy"]
fn the_same_tests_pass_where_the_installed_iptables_is_legacy() {
    // PATH belongs to the whole process, so these tests run once more in a process of their own.
    let directory = std::env::temp_dir().join(format!("russet-legacy-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    for program in ["iptables", "ip6tables"]
        .into_iter()
        .flat_map(|base| ["", "-save", "-restore"].map(|verb| (base, verb)))
    {
        let (base, verb) = program;
        let legacy = russet_testkit::require_tool(&format!("{base}-legacy{verb}"));
        std::os::unix::fs::symlink(legacy, directory.join(format!("{base}{verb}"))).unwrap();
    }
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
    let this = "iptables::the_same_tests_pass_where_the_installed_iptables_is_legacy";
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["iptables::", "--include-ignored", "--skip", this]).env("PATH", path);
    let output = command.output().unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("t38_"), "{said}");
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: iptables"]
fn a_network_of_all_addresses_is_written_only_once() {
    // flannel.md section 9, #1913
    in_netns_with_loopback(|| {
        let wanted = Wanted {
            networks: vec!["::/0".parse().unwrap()],
            own: vec!["fd00::/64".parse().unwrap()],
            ..wanted()
        };
        for mode in [Mode::Iptables, Mode::Nft] {
            let mut firewall = open(mode);
            apply(&mut firewall, &wanted);
            assert!(apply(&mut open(mode), &wanted).is_quiet(), "{mode:?}");
            assert!(firewall.withdraw().failed.is_empty());
        }
    });
}
