//! Rules of other programs, written by `nft` and `iptables-nft`, and whether they drop a tunnel's
//! packets.

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
    found.into_iter().map(|(table, chain)| format!("{table} {chain}")).collect()
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

#[test]
#[ignore = "root: makes network namespaces; tool: iptables-nft"]
fn rules_of_iptables_are_read() {
    in_new_netns(|| {
        let iptables = |args: &str| run("iptables-nft", &args.split(' ').collect::<Vec<_>>());
        for rule in [
            "INPUT -p udp --dport 4789 -j DROP",
            "INPUT -p udp -m udp --dport 4700:4800 -m comment --comment x -j REJECT",
            "INPUT -i eth0 -p udp -j DROP",
        ] {
            iptables(&format!("-A {rule}"));
            assert_eq!(dropping(Family::V4, true), ["ip filter INPUT"], "{rule}");
            iptables(&format!("-D {rule}"));
        }
        iptables("-A INPUT -p udp --dport 53 -j DROP");
        iptables("-A INPUT -s 10.0.0.9 -p udp --dport 4789 -j DROP");
        iptables("-A INPUT -p tcp --dport 4789 -j DROP");
        assert_eq!(dropping(Family::V4, true), [""; 0]);
        iptables("-P INPUT DROP");
        // The tunnel's packets are not tracked.
        iptables("-I INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT");
        assert_eq!(dropping(Family::V4, true), ["ip filter INPUT"]);
        // What an unknown extension may accept does not count as dropped.
        iptables("-I INPUT -m length --length 0:100 -j ACCEPT");
        assert_eq!(dropping(Family::V4, true), [""; 0]);
        iptables("-D INPUT -m length --length 0:100 -j ACCEPT");
        iptables("-A INPUT -p udp --dport 4789 -j ACCEPT");
        assert_eq!(dropping(Family::V4, true), [""; 0]);
    });
}
