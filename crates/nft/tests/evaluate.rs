//! Rules of other programs, written by `nft` and both flavours of iptables, and whether they drop a
//! tunnel's packets.

#![allow(clippy::unwrap_used, reason = "tests")]

use russet_addr::Family;
use russet_nft::{Nft, UdpPacket};
use russet_testkit::{in_new_netns, run};

/// The chains that drop packets of a family to port 4789 that arrive through `eth0` or leave
/// through it.
fn dropping(family: Family, incoming: bool) -> Vec<String> {
    let interface = (7, "eth0".parse().unwrap());
    let packet = UdpPacket { family, port: 4789, interface, incoming };
    let found = Nft::open().unwrap().dropping(&packet, |table| table.name == "russet").unwrap();
    found.iter().map(|found| found.to_string().split_off("chain ".len())).collect()
}

fn chain(hook: &str, policy: &str, rules: &str) -> String {
    format!("chain c {{\n type filter hook {hook} priority 0; policy {policy};\n {rules}\n }}")
}

/// Whether the only table, with these chains, drops incoming IPv4 packets.
fn drops(family: &str, chains: &str) -> bool {
    run("nft", &[&format!("table {family} t {{\n {chains}\n }}")]);
    let found = dropping(Family::V4, true);
    run("nft", &["delete", "table", family, "t"]);
    assert!(found.is_empty() || found == [format!("{family} t c")], "{found:?}");
    !found.is_empty()
}

#[test]
#[ignore = "root: makes network namespaces; tool: nft"]
fn rules_that_drop_every_packet_of_the_port_are_found() {
    in_new_netns(|| {
        let input = |policy: &str, rules: &str| drops("inet", &chain("input", policy, rules));
        for rules in [
            "udp dport 4789 drop",
            "udp dport { 53, 4789 } counter drop",
            "udp dport 4000-5000 log reject",
            "iifname \"eth*\" meta l4proto udp drop",
            "iif != lo meta l4proto udp th dport 4789 drop",
            "meta l4proto vmap { tcp : accept, udp : drop }",
            "udp dport vmap { 53 : accept, 4789 : drop }",
            "ip saddr 10.0.0.0/8 drop; udp dport 4789 drop",
        ] {
            assert!(input("accept", rules), "{rules}");
        }
        for (policy, rules) in [
            ("accept", "udp dport 53 drop; tcp dport 4789 drop"),
            ("accept", "udp dport 4789 accept; udp dport 4789 drop"),
            ("accept", "ip saddr 10.0.0.9 udp dport 4789 drop"),
            ("accept", "udp dport 4789 limit rate over 1000/second drop"),
            ("accept", "iifname \"eth1\" drop"),
            ("drop", "ip saddr 10.0.0.0/8 accept"),
            ("drop", "iif != lo accept"),
            ("drop", "udp dport 4789 accept"),
        ] {
            assert!(!input(policy, rules), "{policy}: {rules}");
        }
        // The tunnel's packets are not tracked, so a rule for established connections does not
        // match them.
        assert!(input("drop", "ct state established,related accept; tcp dport 22 accept"));
        assert!(input("drop", "ct state vmap { established : accept, related : accept }"));
        assert!(!input("drop", "ct state untracked accept"));
        // Other directions, families and hooks.
        assert!(drops("inet", &chain("prerouting", "accept", "udp dport 4789 drop")));
        assert!(!drops("inet", &chain("forward", "drop", "")));
        assert!(!drops("inet", &chain("output", "accept", "udp dport 4789 drop")));
        assert!(!drops("ip6", &chain("input", "drop", "")));
        let jumps = "chain b {\n udp dport 4789 drop\n }\n chain a {\n jump b\n accept\n }\n chain c {\n type filter hook input priority 0\n jump a\n }";
        assert!(drops("ip", jumps));
        assert!(!drops("ip", &jumps.replace("jump a", "ip saddr 10.0.0.9 jump a")));
        assert!(!drops("ip", &jumps.replace("chain b {\n", "chain b {\n return\n")));

        run(
            "nft",
            &[
                "table inet t {\n chain c {\n type filter hook output priority 0\n udp dport 4789 drop\n }\n }",
            ],
        );
        assert_eq!((dropping(Family::V4, true).len(), dropping(Family::V4, false).len()), (0, 1));
        assert_eq!(dropping(Family::V6, false), ["inet t c"]);
        run("nft", &["table inet t {\n flags dormant\n }"]);
        assert_eq!(dropping(Family::V4, false), [""; 0]);
        run(
            "nft",
            &[
                "delete table inet t; table inet russet {\n chain c {\n type filter hook output priority 0; policy drop;\n }\n }",
            ],
        );
        assert_eq!(dropping(Family::V4, false), [""; 0], "our own");
    });
}

/// Writes rules with one flavour of iptables, whose chains are named with this ending.
fn check_iptables(program: &str, ending: &str) {
    in_new_netns(|| {
        let iptables = |args: &str| run(program, &args.split(' ').collect::<Vec<_>>());
        let input = [format!("ip filter INPUT{ending}")];
        for rule in [
            "INPUT -p udp --dport 4789 -j DROP",
            "INPUT -p udp -m udp --dport 4700:4800 -m comment --comment x -j REJECT",
            "INPUT -i eth0 -p udp -j DROP",
            "INPUT ! -i eth1 -p udp -j DROP",
            "INPUT -i eth+ -p udp -j DROP",
            "INPUT ! -p tcp -j DROP",
        ] {
            iptables(&format!("-A {rule}"));
            assert_eq!(dropping(Family::V4, true), input, "{rule}");
            assert_eq!((dropping(Family::V4, false), dropping(Family::V6, true)), (vec![], vec![]), "{rule}");
            iptables(&format!("-D {rule}"));
        }
        iptables("-A INPUT -p udp --dport 53 -j DROP");
        iptables("-A INPUT -s 10.0.0.9 -p udp --dport 4789 -j DROP");
        iptables("-A INPUT -i eth1 -p udp -j DROP");
        iptables("-A INPUT -p tcp --dport 4789 -j DROP");
        iptables("-A INPUT -p udp -m limit --limit 5/min -j DROP");
        // A rule without a target only counts.
        iptables("-A INPUT -p udp");
        assert_eq!(dropping(Family::V4, true), [""; 0]);
        iptables("-P INPUT DROP");
        // The tunnel's packets are not tracked.
        iptables("-I INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT");
        assert_eq!(dropping(Family::V4, true), input);
        // What an unknown extension may accept does not count as dropped.
        iptables("-I INPUT -m length --length 0:100 -j ACCEPT");
        assert_eq!(dropping(Family::V4, true), [""; 0]);
        iptables("-D INPUT -m length --length 0:100 -j ACCEPT");
        // A chain of the user's own, entered by a jump and by a goto.
        iptables("-N allowed");
        iptables("-A allowed -p udp --dport 53 -j RETURN");
        iptables("-A allowed -p udp --dport 4789 -j ACCEPT");
        for enter in ["-j", "-g"] {
            iptables(&format!("-I INPUT {enter} allowed"));
            assert_eq!(dropping(Family::V4, true), [""; 0]);
            iptables(&format!("-D INPUT {enter} allowed"));
            assert_eq!(dropping(Family::V4, true), input);
        }
        iptables("-A INPUT -p udp --dport 4789 -j ACCEPT");
        assert_eq!(dropping(Family::V4, true), [""; 0]);
        iptables("-t raw -A PREROUTING -p udp --dport 4789 -j DROP");
        iptables("-t mangle -P POSTROUTING DROP");
        assert_eq!(dropping(Family::V4, true), [format!("ip raw PREROUTING{ending}")]);
        assert_eq!(dropping(Family::V4, false), [format!("ip mangle POSTROUTING{ending}")]);
        let six = program.replace("iptables", "ip6tables");
        run(&six, &["-A", "OUTPUT", "-o", "eth0", "-p", "udp", "--dport", "4789", "-j", "DROP"]);
        assert_eq!(dropping(Family::V6, false), [format!("ip6 filter OUTPUT{ending}")]);
        assert_eq!(dropping(Family::V6, true), [""; 0]);
    });
}

#[test]
#[ignore = "root: makes network namespaces; tool: iptables-nft, ip6tables-nft"]
fn rules_of_iptables_are_read() {
    check_iptables("iptables-nft", "");
}

#[test]
#[ignore = "kernel: network namespaces, legacy iptables, root; tool: iptables-legacy, ip6tables-legacy"]
fn rules_of_legacy_iptables_are_read() {
    check_iptables("iptables-legacy", " of legacy iptables");
}

#[test]
#[ignore = "kernel: network namespaces, legacy iptables, root"]
fn the_search_for_rules_creates_no_table_of_legacy_iptables() {
    in_new_netns(|| {
        assert_eq!((dropping(Family::V4, true), dropping(Family::V6, false)), (vec![], vec![]));
        for family in ["ip", "ip6"] {
            let names = std::fs::read_to_string(format!("/proc/thread-self/net/{family}_tables_names"));
            assert_eq!(names.unwrap_or_default(), "");
        }
    });
}
