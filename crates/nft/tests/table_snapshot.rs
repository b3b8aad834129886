//! A flushed table is restored from its snapshot, compared with `nft`. Run as root: `cargo test -p
//! russet-nft -- --include-ignored`.

#![allow(clippy::unwrap_used, reason = "clippy.toml allows it in tests, but knows only #[test] functions")]

use std::io::Write as _;
use std::process::{Command, Stdio};

use russet_nft::{Nft, Table, Transaction};
use russet_testkit::{in_new_netns, require_tool, run};

/// A table like the agent's for pods: verdict maps, concatenations with prefixes, translation,
/// comments.
const RULESET: &str = r#"
table inet russet-cni {
    set masq-pods4 { type ipv4_addr; elements = { 10.1.0.5 comment "russet:net/c1/eth0", 10.1.0.6 comment "russet:net/c2/eth0" } }
    set masq-local4 { type ipv4_addr . ipv4_addr; flags interval; elements = { 10.1.0.5 . 10.1.0.0/24 comment "russet:net/c1/eth0" } }
    map ports-ip4 { type ipv4_addr . inet_proto . inet_service : verdict; elements = { 192.0.2.1 . tcp . 8080 comment "russet:net/c1/eth0 10.1.0.5" : jump ports-of-abc } }
    chain ports-of-abc {
        ip saddr 10.1.0.0/24 ct mark set ct mark | 0x2000
        meta l4proto tcp dnat ip to 10.1.0.5:80
        meta l4proto udp dnat ip to 10.1.0.5:53 comment "the second"
    }
    chain masq-postrouting {
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr . ip daddr @masq-local4 accept
        ip saddr @masq-pods4 ip daddr != 224.0.0.0/4 masquerade fully-random
    }
    chain ports-prerouting {
        type nat hook prerouting priority dstnat; policy accept;
        fib daddr type local ip daddr . meta l4proto . th dport vmap @ports-ip4
    }
}
"#;

fn load(ruleset: &str) {
    let mut nft = Command::new(require_tool("nft")).args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    nft.stdin.take().unwrap().write_all(ruleset.as_bytes()).unwrap();
    assert!(nft.wait().unwrap().success());
}

/// The output of `nft`, with elements sorted.
fn shown() -> Vec<String> {
    let text = run("nft", &["-s", "list", "table", "inet", "russet-cni"]);
    let mut words: Vec<String> = text.replace(',', "\n").lines().map(|line| line.trim().to_owned()).collect();
    words.sort();
    words
}

#[test]
#[ignore = "kernel: root and nft"]
fn a_flushed_table_is_restored_from_its_snapshot() {
    in_new_netns(|| {
        let table = Table::inet("russet-cni");
        let mut nft = Nft::open().unwrap();
        assert!(nft.snapshot(&table).unwrap().is_none());
        load(RULESET);
        let snapshot = nft.snapshot(&table).unwrap().unwrap();
        let before = shown();
        for vandal in [
            "flush ruleset",
            "flush table inet russet-cni",
            "delete element inet russet-cni masq-pods4 { 10.1.0.5 }",
            "flush chain inet russet-cni ports-of-abc",
            "add rule inet russet-cni masq-postrouting drop",
            "insert rule inet russet-cni ports-of-abc drop",
        ] {
            load(vandal);
            let now = nft.snapshot(&table).unwrap();
            assert!(snapshot.differs_from(now.as_ref()) > 0, "{vandal}");
            let mut transaction = Transaction::new();
            nft.commit(transaction.restore(&snapshot)).unwrap_or_else(|error| panic!("{vandal}: {error}"));
            assert_eq!(shown(), before, "{vandal}");
            let now = nft.snapshot(&table).unwrap();
            assert_eq!(snapshot.differs_from(now.as_ref()), 0, "{vandal}");
        }
    });
}
