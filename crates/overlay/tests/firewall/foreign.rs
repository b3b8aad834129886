//! Foreign chains that drop forwarded packets (flannel.md section 9, PR #872 and #938).

use std::time::{Duration, Instant};

use russet_overlay::firewall::{Firewall, FirewallError, Mode, Repair, Wanted};
use russet_testkit::{in_netns_with_loopback, sh};

use crate::lab::{Lab, OUTSIDE, POD, POD6, REMOTE, REMOTE6, apply, is_silent, open, seen, wanted, with_lab};

const MARK: &str = "-m comment --comment \"russet-flannel forward\" -j ACCEPT";

/// The lines of `iptables-save` that have our mark.
fn marked(program: &str) -> Vec<String> {
    let text = sh(&format!("{program} -t filter"));
    text.lines().filter(|line| line.contains("russet-flannel")).map(str::to_owned).collect()
}

fn accepts(chain: &str) -> [String; 2] {
    ["-s", "-d"].map(|side| format!("-A {chain} {side} 10.5.0.0/16 {MARK}"))
}

#[track_caller]
fn assert_through(lab: &Lab) {
    let (pod, nb) = (Some(&lab.pod), &lab.neighbour);
    assert!(seen(pod, POD, nb, REMOTE).is_some(), "pod to another node's pod");
    assert!(seen(Some(nb), REMOTE, &lab.pod, POD).is_some(), "another node's pod to ours");
    assert!(seen(pod, POD, nb, OUTSIDE).is_some(), "pod to the world");
}

#[track_caller]
fn assert_through6(lab: &Lab) {
    assert!(seen(Some(&lab.pod), POD6, &lab.neighbour, REMOTE6).is_some());
    assert!(seen(Some(&lab.neighbour), REMOTE6, &lab.pod, POD6).is_some());
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: iptables, nft"]
fn pods_reach_each_other_where_iptables_nft_drops_forwarded_packets() {
    with_lab(|lab| {
        for program in ["iptables", "ip6tables"] {
            sh(&format!("{program} -P FORWARD DROP"));
            sh(&format!("{program} -A FORWARD -i lo -j ACCEPT"));
        }
        assert!(is_silent(Some(&lab.pod), POD, &lab.neighbour, REMOTE));
        let mut firewall = open(Mode::Nft);
        apply(&mut firewall, &wanted());
        assert_through(lab);
        assert_through6(lab);
        // All iptables programs still parse the table.
        assert_eq!(marked("iptables-save"), accepts("FORWARD"));
        assert_eq!(marked("ip6tables-save").len(), 2);
        assert!(sh("iptables -S FORWARD").contains("-A FORWARD -i lo -j ACCEPT\n-A FORWARD -s 10.5.0.0/16 "));
        sh("iptables -L FORWARD -n -v --line-numbers");
        sh("iptables -I FORWARD 1 -p tcp -m tcp --dport 9 -j DROP");
        sh("iptables -D FORWARD -p tcp -m tcp --dport 9 -j DROP");
        assert!(apply(&mut firewall, &wanted()).is_quiet());
        // iptables shows what it counts.
        assert!(sh("nft list chain ip filter FORWARD").contains("ip saddr 10.5.0.0/16 counter packets "));
        // Another program inserts a reject of everything before them.
        sh("iptables -I FORWARD -j REJECT");
        apply(&mut firewall, &wanted());
        assert_through(lab);
        assert_eq!(marked("iptables-save"), accepts("FORWARD"));
        sh("iptables -D FORWARD -j REJECT");
        // Another program flushes the chain.
        while firewall.changed(Duration::ZERO).unwrap() {}
        sh("iptables -F FORWARD");
        assert!(firewall.changed(Duration::from_secs(10)).unwrap());
        let report = apply(&mut firewall, &wanted());
        assert!(matches!(report.repaired.as_slice(), [Repair::Accepted { chain, .. }] if chain == "FORWARD"));
        assert_eq!(marked("iptables-save"), accepts("FORWARD"));
        // Rules saved and restored by iptables are recognised as ours and not duplicated.
        let saved = sh("iptables-save");
        std::fs::write("/run/netns/saved", saved).unwrap();
        sh("iptables-restore /run/netns/saved");
        assert!(firewall.changed(Duration::from_secs(10)).unwrap());
        apply(&mut firewall, &wanted());
        assert_eq!(marked("iptables-save"), accepts("FORWARD"));
        // Without the policy of drop the accepts are removed.
        sh("iptables -P FORWARD ACCEPT");
        assert!(firewall.changed(Duration::from_secs(10)).unwrap());
        apply(&mut firewall, &wanted());
        assert!(marked("iptables-save").is_empty());
        assert!(firewall.withdraw().failed.is_empty());
        assert!(marked("ip6tables-save").is_empty());
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: nft"]
fn pods_reach_each_other_where_a_table_of_nft_drops_or_ends_with_a_reject() {
    with_lab(|lab| {
        sh("nft add table inet host");
        sh("nft add chain inet host forward { type filter hook forward priority 0 ; policy drop ; }");
        sh("nft add rule inet host forward ct state invalid drop");
        sh("nft add rule inet host forward limit rate 1/second log prefix dropped");
        // Like firewalld's chain: it sees all packets and ends with a reject.
        sh("nft add table inet wall");
        sh("nft add chain inet wall filter_FORWARD { type filter hook forward priority 10 ; }");
        sh("nft add rule inet wall filter_FORWARD ct state established,related accept");
        sh("nft add rule inet wall filter_FORWARD reject with icmpx admin-prohibited");
        sh("nft add chain inet wall late { type filter hook forward priority 20 ; policy accept ; }");
        sh("nft add rule inet wall late counter drop");
        assert!(is_silent(Some(&lab.pod), POD, &lab.neighbour, REMOTE));
        let mut firewall = open(Mode::Nft);
        apply(&mut firewall, &wanted());
        assert_through(lab);
        assert_through6(lab);
        let text = sh("nft list table inet host");
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part} in\n{text}"));
        assert!(at("ct state invalid drop") < at("ip saddr 10.5.0.0/16"));
        assert!(at("ip6 daddr fd00:10:5::/48") < at("log prefix"), "{text}");
        assert!(apply(&mut firewall, &wanted()).is_quiet());
        // A rule file that is loaded again.
        let rules = "flush table inet host; add rule inet host forward ct state established accept";
        sh(&format!("nft {rules}"));
        assert!(firewall.changed(Duration::from_secs(10)).unwrap());
        apply(&mut firewall, &wanted());
        assert_through(lab);
        assert!(firewall.withdraw().failed.is_empty());
        assert!(!sh("nft list ruleset").contains("russet"));
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: iptables, nft"]
fn pods_reach_each_other_behind_dockers_rules_and_the_administrators_rules_stay() {
    with_lab(|lab| {
        docker();
        assert!(is_silent(Some(&lab.pod), POD, &lab.neighbour, REMOTE));
        let before = sh("nft -s list ruleset");
        let mut firewall = open(Mode::Nft);
        apply(&mut firewall, &wanted());
        assert!(firewall.withdraw().failed.is_empty());
        assert_eq!(sh("nft -s list ruleset"), before, "our rules are gone and Docker's are unchanged");
        apply(&mut firewall, &wanted());
        assert_through(lab);
        let [_, towards_pods] = accepts("DOCKER-USER");
        let expected: Vec<String> = accepts("FORWARD").into_iter().chain([towards_pods]).collect();
        assert_eq!(marked("iptables-save"), expected);
        // A restart of Docker: it removes its jumps and inserts them at the top.
        for command in ["-D FORWARD -j DOCKER-USER", "-D FORWARD -j DOCKER-FORWARD"] {
            sh(&format!("iptables {command}"));
        }
        sh("iptables -F DOCKER-FORWARD");
        apply(&mut firewall, &wanted());
        for command in [
            "-A DOCKER-FORWARD -j DOCKER-BRIDGE",
            "-I FORWARD -j DOCKER-FORWARD",
            "-I FORWARD -j DOCKER-USER",
            "-P FORWARD DROP",
        ] {
            sh(&format!("iptables {command}"));
        }
        apply(&mut firewall, &wanted());
        assert_through(lab);
        assert_eq!(marked("iptables-save"), expected);
        // The administrator's rules still apply.
        sh("iptables -I DOCKER-USER -d 10.5.2.2 -p udp -j DROP");
        apply(&mut firewall, &wanted());
        assert!(is_silent(Some(&lab.pod), POD, &lab.neighbour, REMOTE));
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: iptables, nft"]
fn pods_on_dockers_own_bridge_are_reached_from_other_nodes() {
    // docker0 with FLANNEL_SUBNET as its --bip; Docker 28 drops packets that reach a bridge from
    // elsewhere.
    with_lab(|lab| {
        docker();
        sh("iptables -A DOCKER ! -i to-pod -o to-pod -j DROP");
        sh("iptables -A DOCKER-BRIDGE -o to-pod -j DOCKER");
        sh("iptables -A DOCKER-FORWARD -i to-pod -j ACCEPT");
        assert!(is_silent(Some(&lab.neighbour), REMOTE, &lab.pod, POD));
        apply(&mut open(Mode::Nft), &wanted());
        assert_through(lab);
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: nft"]
fn pods_reach_each_other_behind_firewalld() {
    // As firewalld 1.3.3 creates it: packets that no zone allows are rejected at the end of the
    // zones, long before the chain's own end.
    let zones = [
        "add chain inet firewalld filter_FORWARD_ZONES",
        "add chain inet firewalld filter_FWD_public",
        "add chain inet firewalld filter_FWD_public_pre",
        "add chain inet firewalld filter_FWD_public_allow",
        "add rule inet firewalld filter_FORWARD jump filter_FORWARD_ZONES",
        "add rule inet firewalld filter_FORWARD_ZONES iifname to-nb goto filter_FWD_public",
        "add rule inet firewalld filter_FORWARD_ZONES goto filter_FWD_public",
        "add rule inet firewalld filter_FWD_public jump filter_FWD_public_pre",
        "add rule inet firewalld filter_FWD_public jump filter_FWD_public_allow",
        "add rule inet firewalld filter_FWD_public reject with icmpx admin-prohibited",
        "add rule inet firewalld filter_FWD_public_allow oifname to-nb accept",
    ];
    // And as 2.x does, by interface.
    let policies = [
        "add chain inet firewalld filter_FORWARD_POLICIES",
        "add chain inet firewalld filter_FWD_public",
        "add rule inet firewalld filter_FORWARD jump filter_FORWARD_POLICIES",
        "add rule inet firewalld filter_FORWARD_POLICIES iifname to-nb jump filter_FWD_public",
        "add rule inet firewalld filter_FORWARD_POLICIES iifname to-nb reject with icmpx admin-prohibited",
        "add rule inet firewalld filter_FORWARD_POLICIES jump filter_FWD_public",
        "add rule inet firewalld filter_FORWARD_POLICIES reject with icmpx admin-prohibited",
    ];
    for rules in [&zones[..], &policies[..]] {
        with_lab(|lab| {
            let start = [
                "add table inet firewalld",
                "add chain inet firewalld filter_FORWARD { type filter hook forward priority filter + 10 ; policy accept ; }",
                "add rule inet firewalld filter_FORWARD ct state { established, related } accept",
                "add rule inet firewalld filter_FORWARD ct status dnat accept",
                "add rule inet firewalld filter_FORWARD iifname lo accept",
                "add rule inet firewalld filter_FORWARD ct state invalid drop",
            ];
            let end = ["add rule inet firewalld filter_FORWARD reject with icmpx admin-prohibited"];
            for command in start.iter().chain(rules).chain(&end) {
                sh(&format!("nft {command}"));
            }
            assert!(is_silent(Some(&lab.neighbour), REMOTE, &lab.pod, POD));
            let before = sh("nft -s list table inet firewalld");
            for mode in [Mode::Nft, Mode::Iptables] {
                let mut firewall = open(mode);
                apply(&mut firewall, &wanted());
                assert_through(lab);
                assert_through6(lab);
                assert!(apply(&mut firewall, &wanted()).is_quiet());
                assert!(firewall.withdraw().failed.is_empty());
                assert_eq!(sh("nft -s list table inet firewalld"), before);
            }
        });
    }
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: iptables"]
fn pods_reach_each_other_behind_ufw_and_are_not_in_its_log() {
    with_lab(|lab| {
        let chains = ["before", "after", "after-logging", "reject", "track"];
        sh("iptables -P FORWARD DROP");
        for chain in chains {
            sh(&format!("iptables -N ufw-{chain}-forward"));
            sh(&format!("iptables -A FORWARD -j ufw-{chain}-forward"));
        }
        sh("iptables -A ufw-before-forward -p icmp -m icmp --icmp-type 8 -j ACCEPT");
        sh(
            "iptables -A ufw-after-logging-forward -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix ufw",
        );
        let mut firewall = open(Mode::Nft);
        apply(&mut firewall, &wanted());
        assert_through(lab);
        let text = sh("iptables -S FORWARD");
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[3].contains(MARK) && lines[4].contains(MARK), "{text}");
        // ufw default reject routed
        sh("iptables -A ufw-reject-forward -j REJECT");
        apply(&mut firewall, &wanted());
        assert_through(lab);
        assert_eq!(sh("iptables -S FORWARD"), text);
    });
}

/// The filter table of Docker 28 (docs.docker.com, "Packet filtering and firewalls").
fn docker() {
    for command in [
        "-P FORWARD DROP",
        "-N DOCKER",
        "-N DOCKER-BRIDGE",
        "-N DOCKER-CT",
        "-N DOCKER-FORWARD",
        "-N DOCKER-USER",
        "-N DOCKER-ISOLATION-STAGE-1",
        "-N DOCKER-ISOLATION-STAGE-2",
        "-A FORWARD -j DOCKER-USER",
        "-A FORWARD -j DOCKER-FORWARD",
        "-A DOCKER ! -i docker0 -o docker0 -j DROP",
        "-A DOCKER-BRIDGE -o docker0 -j DOCKER",
        "-A DOCKER-CT -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "-A DOCKER-FORWARD -j DOCKER-CT",
        "-A DOCKER-FORWARD -j DOCKER-ISOLATION-STAGE-1",
        "-A DOCKER-FORWARD -j DOCKER-BRIDGE",
        "-A DOCKER-FORWARD -i docker0 -j ACCEPT",
        "-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2",
        "-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP",
    ] {
        sh(&format!("iptables {command}"));
    }
}

#[test]
#[ignore = "kernel: network namespaces, legacy iptables, root; tool: iptables-legacy"]
fn pods_reach_each_other_where_legacy_iptables_drops_forwarded_packets() {
    with_lab(|lab| {
        sh("iptables-legacy -P FORWARD DROP");
        sh("iptables-legacy -A FORWARD -i lo -j ACCEPT");
        sh("ip6tables-legacy -A FORWARD -j REJECT");
        assert!(is_silent(Some(&lab.pod), POD, &lab.neighbour, REMOTE));
        let mut firewall = open(Mode::Nft);
        apply(&mut firewall, &wanted());
        assert_through(lab);
        assert_through6(lab);
        assert_eq!(marked("iptables-legacy-save"), accepts("FORWARD"));
        assert!(apply(&mut firewall, &wanted()).is_quiet());
        sh("iptables-legacy -F FORWARD");
        assert_eq!(apply(&mut firewall, &wanted()).repaired.len(), 1);
        assert_through(lab);
        assert!(firewall.withdraw().failed.is_empty());
        assert!(marked("iptables-legacy-save").is_empty() && marked("ip6tables-legacy-save").is_empty());
    });
}

#[test]
#[ignore = "kernel: network namespaces, legacy iptables, root; tool: iptables-legacy"]
fn unreadable_rules_of_legacy_iptables_are_reported_once() {
    // The rules come from a container with its own iptables. PATH belongs to the whole process, so
    // the test runs itself again without the programs.
    const NOWHERE: &str = "/nowhere";
    if std::env::var("PATH").unwrap() != NOWHERE {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["unreadable_rules_of_legacy_iptables", "--include-ignored"]).env("PATH", NOWHERE);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    in_netns_with_loopback(|| {
        sh("iptables-legacy -P FORWARD DROP");
        let mut firewall = open(Mode::Nft);
        let report = firewall.apply(&wanted());
        assert!(matches!(report.failed.as_slice(), [FirewallError::Unseen { .. }]), "{report:?}");
        assert_eq!(report.repaired.len(), 2, "all other repairs are made");
        assert!(firewall.apply(&wanted()).is_quiet());
        let missing = Firewall::open(Mode::Iptables).unwrap_err().to_string();
        assert_eq!(missing, "execute iptables: it is not installed; without iptables use the nftables mode");
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: nft"]
fn a_table_owned_by_a_process_is_reported_and_the_others_are_repaired() {
    in_netns_with_loopback(|| {
        use russet_nft::{Chain, ChainKind, Hook, Nft, Policy, Table, Transaction};
        let mut other = Nft::open().unwrap();
        let table = Table::inet("owned");
        let chain = Chain::base(&table, "f", ChainKind::Filter, Hook::Forward, 0).policy(Policy::Drop);
        other.commit(Transaction::new().add_owned_table(&table).add_chain(&chain)).unwrap();
        sh("iptables -P FORWARD DROP");
        let mut firewall = open(Mode::Nft);
        let report = firewall.apply(&wanted());
        assert!(
            matches!(report.failed.as_slice(), [FirewallError::Owned(owned)] if *owned == table),
            "{report:?}"
        );
        assert_eq!(marked("iptables-save"), accepts("FORWARD"));
        assert!(sh("nft list ruleset").contains("table ip6 flannel-ipv6"));
        // Reported once, not at every comparison.
        sh("nft add table ip unrelated");
        assert!(firewall.apply(&wanted()).is_quiet());
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: nft"]
fn without_forward_rules_no_foreign_chain_is_changed() {
    // -iptables-forward-rules=false
    in_netns_with_loopback(|| {
        sh("iptables -P FORWARD DROP");
        let before = sh("nft list table ip filter");
        apply(&mut open(Mode::Nft), &Wanted { forward: false, ..wanted() });
        assert_eq!(sh("nft list table ip filter"), before);
    });
}

#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: nft"]
fn ten_thousand_foreign_rules_are_not_read() {
    in_netns_with_loopback(|| {
        let mut rules = String::from(
            "add table ip many\nadd chain ip many base { type filter hook input priority 0; }\n",
        );
        for n in 0..10_000 {
            rules += &format!(
                "add rule ip many base ip saddr 10.{}.{}.9 tcp dport {} counter accept\n",
                n / 250,
                n % 250,
                n
            );
        }
        std::fs::write("/run/netns/rules", rules).unwrap();
        sh("nft -f /run/netns/rules");
        sh("iptables -P FORWARD DROP");
        let mut firewall = open(Mode::Nft);
        apply(&mut firewall, &wanted());
        let begun = Instant::now();
        for n in 0..100 {
            // A foreign change each time, so that the cached state does not apply.
            sh(&format!("nft add chain ip many c{n}"));
            assert!(apply(&mut firewall, &wanted()).is_quiet());
        }
        println!("100 commits of nft, each with a check: {:?}", begun.elapsed());
        let begun = Instant::now();
        (0..100).for_each(|n| {
            drop(sh(&format!("nft add chain ip many d{n}")));
        });
        println!("without checks: {:?}", begun.elapsed());
    });
}

/// calico-cni.md section 5.2, oracle 76: the agent has its rules elsewhere and needs only the
/// exceptions.
#[test]
#[ignore = "kernel: network namespaces, nf_tables, root; tool: iptables, nft"]
fn exceptions_coexist_with_flannels_and_leave_its_tables_unchanged() {
    with_lab(|lab| {
        sh("iptables -P FORWARD DROP");
        let networks = Wanted { masquerade: false, own: Vec::new(), ..wanted() };
        let mut exceptions = Firewall::exceptions().unwrap();
        apply(&mut exceptions, &networks);
        assert_through(lab);
        let ours =
            || sh("iptables-save").lines().filter(|line| line.contains("russet-agent forward")).count();
        assert_eq!((ours(), marked("iptables-save").len()), (2, 0));
        assert!(!sh("nft list tables").contains("flannel"), "exceptions have no table");
        // flannel's daemon runs beside it: neither takes the other's rules for its own.
        let mut flannel = open(Mode::Nft);
        apply(&mut flannel, &wanted());
        for _ in 0..3 {
            assert!(apply(&mut exceptions, &networks).is_quiet());
            assert!(apply(&mut flannel, &wanted()).is_quiet());
        }
        assert_eq!((ours(), marked("iptables-save").len()), (2, 2));
        let tables = sh("nft list table ip flannel-ipv4");
        while exceptions.changed(Duration::ZERO).unwrap() {}
        sh("iptables -F FORWARD");
        assert!(exceptions.changed(Duration::from_secs(10)).unwrap());
        apply(&mut exceptions, &networks);
        assert_through(lab);
        apply(&mut exceptions, &Wanted::default());
        assert_eq!(ours(), 0);
        assert_eq!(sh("nft list table ip flannel-ipv4"), tables);
    });
}
