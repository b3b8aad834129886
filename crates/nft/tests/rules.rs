//! Every match and action as `nft` understands it: the test writes a rule, `nft` writes the same
//! rule in its own syntax, and both must be listed alike; and the kernel must list our rule with
//! the digest that we computed.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use russet_addr::Family;
use russet_nft::{
    Chain, ChainKind, CmpOp, Element, Expr, Field, Hook, KeyPart, KeyType, L4, Masquerade, MetaKey, Nft,
    Policy, Register, Reject, Rule, Set, Table, TableFamily, Transaction, Verdict, ct_state, priority,
};
use russet_testkit::{eventually, in_new_netns, nft_json, run};
use serde_json::Value;

/// The chains and sets that the rules need, in nft's syntax.
const RULES: &str = "
  set p4 { type ipv4_addr; flags interval; elements = { 10.244.0.0/16 } }
  set p6 { type ipv6_addr; flags interval; }
  set eps { type inet_proto . inet_service; }
  set links { type ifname; elements = { \"eth7\" } }
  set ends { type iface_index; elements = { \"lo\" } }
  map verdicts { type ipv4_addr . mark : verdict; }
  set fresh { type mark; }
  map words { type classid : verdict; }
  map peers { type ipv4_addr : classid; flags interval; }
  map ports { type classid . ipv4_addr . inet_proto . inet_service : classid; }
  map ranges { type classid . ipv4_addr . inet_proto . inet_service : classid; flags interval; }
  chain other { }
  chain filter { type filter hook forward priority 0; }
  chain dstnat { type nat hook prerouting priority dstnat; }
  chain srcnat { type nat hook postrouting priority srcnat; }
  chain raw { type filter hook prerouting priority raw; }";

fn create_tables(family: &str) {
    for table in ["ours", "theirs"] {
        run("nft", &[&format!("table {family} {table} {{ {RULES}\n}}")]);
    }
}

/// The expressions of the rules of a chain, as nft lists them.
fn listed(family: &str, table: &str, chain: &str) -> Vec<Value> {
    let listing = nft_json(&["list", "chain", family, table, chain]);
    let objects = listing["nftables"].as_array().unwrap();
    objects.iter().filter_map(|object| object.get("rule")).map(|rule| rule["expr"].clone()).collect()
}

type Case = (&'static str, Rule, &'static str);

fn compare(family: &str, table: &Table, cases: &[Case]) {
    create_tables(family);
    let mut nft = Nft::open().unwrap();
    for (chain, rule, words) in cases {
        nft.commit(Transaction::new().add_rule(rule)).unwrap_or_else(|error| panic!("{words}: {error}"));
        run("nft", &[&format!("add rule {family} theirs {chain} {words}")]);
        let (ours, theirs) = (listed(family, "ours", chain), listed(family, "theirs", chain));
        assert_eq!(ours.last(), theirs.last(), "{words}");
        let last = nft.rules_of(table, chain).unwrap().pop().unwrap();
        assert_eq!(last.digest, rule.digest(), "{words}: {:?}", last.expressions);
    }
}

fn matches(table: &Table) -> Vec<Case> {
    let rule = |chain: &str| Rule::in_chain(table, chain).counter();
    let f = || rule("filter");
    let name = |text: &str| text.parse().unwrap();
    let mut cases = vec![
        ("filter", f().saddr("10.1.0.0/16".parse().unwrap()), "counter ip saddr 10.1.0.0/16"),
        ("filter", f().saddr("10.1.0.0/13".parse().unwrap()), "counter ip saddr 10.0.0.0/13"),
        ("filter", f().daddr_not("10.1.2.3/32".parse().unwrap()), "counter ip daddr != 10.1.2.3"),
        ("filter", f().daddr("fd00::/61".parse().unwrap()), "counter ip6 daddr fd00::/61"),
        ("filter", f().saddr_not("fd00::/64".parse().unwrap()), "counter ip6 saddr != fd00::/64"),
        ("filter", f().saddr_in(Family::V4, "p4"), "counter ip saddr @p4"),
        ("filter", f().daddr_not_in(Family::V6, "p6"), "counter ip6 daddr != @p6"),
        ("filter", f().family(Family::V6), "counter meta nfproto ipv6"),
        ("filter", f().protocol(L4::Tcp).dport(22623), "counter tcp dport 22623"),
        ("filter", f().protocol(L4::Udp).dport_not(53), "counter udp dport != 53"),
        ("filter", f().protocol(L4::Udp).sport(53), "counter udp sport 53"),
        ("filter", f().protocol(L4::Tcp).dports(30000..=32767), "counter tcp dport 30000-32767"),
        ("filter", f().iif(&name("eth0")), "counter iifname \"eth0\""),
        ("filter", f().oif_not(&name("eth0")), "counter oifname != \"eth0\""),
        ("filter", f().iif_prefix("cali"), "counter iifname \"cali*\""),
        ("filter", f().oif_prefix("russ"), "counter oifname \"russ*\""),
        ("filter", f().mark(0x4000, 0x4000), "counter meta mark and 0x4000 == 0x4000"),
        ("filter", f().mark_not(7, u32::MAX), "counter meta mark != 7"),
        (
            "filter",
            f().ct_state(ct_state::ESTABLISHED | ct_state::RELATED),
            "counter ct state established,related",
        ),
        ("filter", f().ct_state(ct_state::INVALID), "counter ct state invalid"),
        ("filter", f().to_this_machine(), "counter fib daddr type local"),
        ("filter", f().not_to_this_machine(), "counter fib daddr type != local"),
        ("filter", f().from_this_machine(), "counter fib saddr type local"),
        ("filter", f().is_in(&[Field::L4Proto, Field::Dport], "eps"), "counter meta l4proto . th dport @eps"),
        ("filter", f().is_in(&[Field::IifName], "links"), "counter iifname @links"),
        ("filter", f().is_not_in(&[Field::OifName], "links"), "counter oifname != @links"),
        ("filter", f().is_in(&[Field::IifIndex], "ends"), "counter iif @ends"),
        ("filter", f().is_not_in(&[Field::OifIndex], "ends"), "counter oif != @ends"),
    ];
    cases.extend([
        ("filter", f().priority(0xffff_0001), "counter meta priority ffff:1"),
        ("filter", f().vmap(&[Field::Priority], "words"), "counter meta priority vmap @words"),
        ("filter", f().ct_mark_in(0xff_0000, "fresh"), "counter ct mark and 0xff0000 == @fresh"),
        ("filter", f().tos(8, 0x18), "counter @nh,8,8 & 0x18 == 8"),
        ("filter", f().ct_reply(), "counter ct direction reply"),
        (
            "filter",
            f().neighbour_discovery(),
            "counter meta nfproto ipv6 icmpv6 type 133-136 ip6 hoplimit 255",
        ),
    ]);
    let key = [Field::Saddr(Family::V4), Field::Mark];
    cases.push(("filter", f().vmap(&key, "verdicts"), "counter ip saddr . meta mark vmap @verdicts"));
    cases
}

fn actions(table: &Table) -> Vec<Case> {
    let rule = |chain: &str| Rule::in_chain(table, chain);
    let ip = |text: &str| text.parse().unwrap();
    let tcp = |chain: &str| rule(chain).protocol(L4::Tcp).dport(80);
    let saddr = Field::Saddr(Family::V4);
    let key = [Field::Priority, saddr, Field::L4Proto, Field::Dport];
    let types = key.map(Field::key_type);
    let map = |name: &str, key: &[KeyType]| Set::map(table, name, key, KeyType::ClassId);
    vec![
        ("filter", rule("filter").accept(), "accept"),
        ("filter", rule("filter").drop(), "drop"),
        ("filter", rule("filter").return_(), "return"),
        ("filter", rule("filter").verdict(Verdict::Continue), "continue"),
        ("filter", rule("filter").jump("other"), "jump other"),
        ("filter", rule("filter").goto("other"), "goto other"),
        ("filter", rule("filter").counter(), "counter"),
        ("filter", rule("filter").reject(Reject::PortUnreachable), "reject with icmpx port-unreachable"),
        ("filter", rule("filter").reject(Reject::AdminProhibited), "reject with icmpx admin-prohibited"),
        ("filter", tcp("filter").reject(Reject::TcpReset), "tcp dport 80 reject with tcp reset"),
        ("filter", rule("filter").set_mark(0x2000, u32::MAX), "meta mark set 0x2000"),
        ("filter", rule("filter").set_mark(0x2000, 0x2000), "meta mark set meta mark or 0x2000"),
        ("filter", rule("filter").set_priority(0x1_0002), "meta priority set 1:2"),
        (
            "filter",
            rule("filter").set_priority_by(&[saddr], &map("peers", &[KeyType::Ipv4Addr]).interval()),
            "meta priority set ip saddr map @peers",
        ),
        (
            "filter",
            rule("filter").set_priority_by(&key, &map("ports", &types)),
            "meta priority set meta priority . ip saddr . meta l4proto . th dport map @ports",
        ),
        (
            "filter",
            rule("filter").set_priority_by(&key, &map("ranges", &types).interval()),
            "meta priority set meta priority . ip saddr . meta l4proto . th dport map @ranges",
        ),
        (
            "filter",
            rule("filter").set_ct_mark(0x1_0000, 0xff_0000),
            "ct mark set ct mark and 0xff00ffff or 0x10000",
        ),
        ("raw", rule("raw").notrack(), "notrack"),
        ("srcnat", rule("srcnat").masquerade(Masquerade::default()), "masquerade"),
        ("srcnat", rule("srcnat").masquerade(Masquerade::fully_random()), "masquerade fully-random"),
        (
            "srcnat",
            tcp("srcnat").masquerade(Masquerade::default().ports(4790..=65535)),
            "tcp dport 80 masquerade to :4790-65535",
        ),
        ("srcnat", rule("srcnat").snat(ip("192.0.2.1")), "meta nfproto ipv4 snat ip to 192.0.2.1"),
        ("srcnat", rule("srcnat").snat(ip("2001:db8::1")), "meta nfproto ipv6 snat ip6 to 2001:db8::1"),
        (
            "dstnat",
            tcp("dstnat").dnat(ip("10.1.0.9"), Some(8080)),
            "tcp dport 80 meta nfproto ipv4 dnat ip to 10.1.0.9:8080",
        ),
        (
            "dstnat",
            tcp("dstnat").dnat(ip("fd00::9"), Some(8080)),
            "tcp dport 80 meta nfproto ipv6 dnat ip6 to [fd00::9]:8080",
        ),
        ("dstnat", rule("dstnat").dnat(ip("10.1.0.9"), None), "meta nfproto ipv4 dnat ip to 10.1.0.9"),
        ("dstnat", tcp("dstnat").redirect(8080), "tcp dport 80 redirect to :8080"),
    ]
}

/// Limits and logs.
fn logs(table: &Table) -> Vec<Case> {
    let rule = |chain: &str| Rule::in_chain(table, chain);
    vec![
        ("filter", rule("filter").limit_per_second(10), "limit rate 10/second"),
        ("filter", rule("filter").limit_with_burst(10, 40), "limit rate 10/second burst 40 packets"),
        ("filter", rule("filter").log("russet: "), "log prefix \"russet: \""),
        ("filter", rule("filter").log_to("russet: ", 7, None), "log prefix \"russet: \" group 7"),
        (
            "filter",
            rule("filter").log_to("russet|D|out", 7273, Some(96)),
            "log prefix \"russet|D|out\" group 7273 snaplen 96",
        ),
    ]
}

#[test]
#[ignore = "tool: nft, root"]
fn nft_understands_every_match() {
    in_new_netns(|| {
        let table = Table::inet("ours");
        compare("inet", &table, &matches(&table));
    });
}

#[test]
#[ignore = "tool: nft, root"]
fn nft_understands_every_action() {
    in_new_netns(|| {
        let table = Table::inet("ours");
        compare("inet", &table, &[actions(&table), logs(&table)].concat());
    });
}

#[test]
#[ignore = "tool: nft, root"]
fn a_table_of_one_family_needs_no_match_of_the_family() {
    in_new_netns(|| {
        let table = Table::new(TableFamily::Ip, "ours");
        let rule = Rule::in_chain(&table, "filter").saddr_in(Family::V4, "p4");
        assert_eq!(rule.expressions().len(), 2);
        compare("ip", &table, &[("filter", rule.accept(), "ip saddr @p4 accept")]);
    });
}

#[test]
fn a_rule_checks_its_family_only_once() {
    let rule = Rule::in_chain(&Table::inet("t"), "c").saddr_in(Family::V4, "a").daddr_not_in(Family::V4, "a");
    assert_eq!(rule.expressions().len(), 6);
    let meta = |expr: &&Expr| matches!(expr, Expr::Meta { key: MetaKey::Nfproto, .. });
    assert_eq!(rule.expressions().iter().filter(meta).count(), 1);
}

#[test]
fn digests_differ_between_rules_and_ignore_comments() {
    let rule = || Rule::in_chain(&Table::inet("t"), "c").saddr_in(Family::V4, "a");
    assert_eq!(rule().digest(), rule().comment("x").digest());
    assert_ne!(rule().accept().digest(), rule().drop().digest());
    assert_ne!(rule().jump("a").digest(), rule().jump("b").digest());
    assert_ne!(rule().digest(), rule().counter().digest());
    // The digest is stored on disk, so it must not change between releases.
    assert_eq!(Rule::in_chain(&Table::inet("t"), "c").digest(), 0xcbf2_9ce4_8422_2325);
}

#[test]
#[ignore = "tool: nft, root"]
fn rules_are_inserted_replaced_and_deleted_by_handle() {
    in_new_netns(|| {
        let table = Table::inet("t");
        let chain = Chain::new(&table, "c");
        let mut nft = Nft::open().unwrap();
        let rule = |text: &str| Rule::new(&chain).counter().comment(text);
        let mut change = Transaction::new();
        change.add_table(&table).add_chain(&chain).add_rule(&rule("b")).insert_rule(&rule("a"));
        nft.commit(&change).unwrap();
        let comments = |nft: &mut Nft| -> Vec<String> {
            nft.rules_of(&table, "c").unwrap().into_iter().map(|rule| rule.comment.unwrap()).collect()
        };
        assert_eq!(comments(&mut nft), ["a", "b"]);
        let handles: Vec<u64> = nft.rules(&table).unwrap().into_iter().map(|rule| rule.handle).collect();
        let mut change = Transaction::new();
        change.add_rule_after(handles[0], &rule("a2")).insert_rule_before(handles[1], &rule("b0"));
        change.replace_rule(handles[1], &rule("B"));
        nft.commit(&change).unwrap();
        assert_eq!(comments(&mut nft), ["a", "a2", "b0", "B"]);
        nft.commit(Transaction::new().delete_rule(&table, "c", handles[0])).unwrap();
        assert_eq!(comments(&mut nft), ["a2", "b0", "B"]);
        nft.commit(Transaction::new().flush_chain(&table, "c")).unwrap();
        assert_eq!(comments(&mut nft), Vec::<String>::new());
    });
}

#[test]
#[ignore = "tool: nft, root"]
fn chains_keep_hook_priority_policy_device_and_comment() {
    in_new_netns(|| {
        let inet = Table::inet("t");
        let netdev = Table::new(TableFamily::Netdev, "n");
        let chains = [
            Chain::base(&inet, "fwd", ChainKind::Filter, Hook::Forward, -7)
                .policy(Policy::Drop)
                .comment("x y"),
            Chain::base(&inet, "out", ChainKind::Route, Hook::Output, priority::MANGLE),
            Chain::base(&inet, "nat", ChainKind::Nat, Hook::Input, priority::SRCNAT),
            Chain::base(&netdev, "in", ChainKind::Filter, Hook::Ingress, 5).device("lo".parse().unwrap()),
            Chain::new(&inet, "plain").comment("jumped to"),
        ];
        let mut nft = Nft::open().unwrap();
        let mut change = Transaction::new();
        change.add_table_with_comment(&inet, "ours").add_table(&netdev);
        chains.iter().for_each(|chain| {
            change.add_chain(chain);
        });
        nft.commit(&change).unwrap();
        let listing = nft_json(&["list", "ruleset"]);
        let objects = listing["nftables"].as_array().unwrap();
        let find =
            |name: &str| objects.iter().filter_map(|o| o.get("chain")).find(|c| c["name"] == name).unwrap();
        assert_eq!((&find("fwd")["policy"], &find("fwd")["prio"]), (&"drop".into(), &(-7).into()));
        assert_eq!(find("in")["hook"], "ingress");
        assert_eq!(find("out")["type"], "route");
        assert!(find("plain").get("hook").is_none());
        // nft's JSON omits devices and comments of chains.
        let text = run("nft", &["list", "ruleset"]);
        assert!(
            text.contains("hook ingress device \"lo\" priority") && text.contains("comment \"x y\""),
            "{text}"
        );
        for chain in &chains {
            let listed = nft.chains(&chain.table).unwrap();
            assert!(listed.iter().any(|info| info.chain == *chain), "{chain:?} is not in {listed:?}");
        }
        let tables = nft.tables().unwrap();
        assert_eq!(tables.iter().find(|info| info.table == inet).unwrap().comment.as_deref(), Some("ours"));
    });
}

#[test]
#[ignore = "kernel: nf_tables, root"]
fn an_owned_table_goes_away_with_its_socket() {
    in_new_netns(|| {
        let table = Table::inet("mine");
        let mut owner = Nft::open().unwrap();
        owner.commit(Transaction::new().add_owned_table(&table)).unwrap();
        let mut other = Nft::open().unwrap();
        assert_eq!(other.tables().unwrap()[0].owner, Some(owner.port().unwrap()));
        let refused = other.commit(Transaction::new().delete_table(&table)).unwrap_err();
        assert!(refused.to_string().starts_with("delete table inet mine: "), "{refused}");
        drop(owner);
        // The kernel removes the table asynchronously when it closes the socket.
        eventually(Duration::from_secs(5), || other.tables().unwrap().is_empty());
    });
}

#[test]
#[ignore = "tool: nft, root"]
fn unsupported_expressions_can_be_encoded_raw() {
    in_new_netns(|| {
        let table = Table::inet("ours");
        let map = Set::map(&table, "marks", [KeyType::Ipv4Addr], KeyType::Mark);
        let chain = Chain::base(&table, "filter", ChainKind::Filter, Hook::Forward, 0);
        let key = Register::FIRST;
        // ip saddr 10.0.0.0/8 meta mark set ip daddr map @marks
        let rule = Rule::new(&chain)
            .saddr("10.0.0.0/8".parse().unwrap())
            .expr(Expr::Payload { base: russet_nft::PayloadBase::Network, offset: 16, len: 4, to: key })
            .expr(Expr::LookupMap { map: "marks".into(), key, to: key })
            .expr(Expr::SetMeta { key: MetaKey::Mark, from: key })
            .expr(Expr::Cmp { op: CmpOp::Eq, register: key, value: vec![0; 4] });
        let element = Element::new("10.1.0.1".parse::<std::net::IpAddr>().unwrap()).data(KeyPart::mark(7));
        let mut change = Transaction::new();
        change
            .add_table(&table)
            .add_set(&map)
            .add_elements(&map, &[element])
            .add_chain(&chain)
            .add_rule(&rule);
        Nft::open().unwrap().commit(&change).unwrap();
        let listing = run("nft", &["list", "ruleset"]);
        assert!(listing.contains("ip saddr 10.0.0.0/8 meta mark set ip daddr map @marks"), "{listing}");
        assert!(listing.contains("elements = { 10.1.0.1 : 0x00000007 }"), "{listing}");
    });
}

#[test]
#[ignore = "kernel: nf_tables, root; tool: iptables, nft"]
fn rules_of_iptables_are_read_with_comment_verdict_and_extensions() {
    in_new_netns(|| {
        for rule in [
            "-A FORWARD -m comment --comment one -j DROP",
            "-A FORWARD -j LOG --log-prefix two",
            "-A FORWARD -j REJECT",
            "-N other",
            "-A FORWARD -s 10.1.0.0/16 -j other",
        ] {
            run("iptables", &rule.split(' ').collect::<Vec<&str>>());
        }
        run("nft", &["add rule ip filter FORWARD ip saddr 10.2.0.1 counter accept comment \"five\""]);
        let rules = Nft::open().unwrap().rules_of(&Table::new(TableFamily::Ip, "filter"), "FORWARD").unwrap();
        let comments: Vec<_> = rules.iter().map(|rule| rule.comment.as_deref()).collect();
        assert_eq!(comments, [Some("one"), None, None, None, Some("five")]);
        let verdicts: Vec<_> = rules.iter().map(|rule| rule.verdict.clone()).collect();
        let expected = [Some(Verdict::Drop), None, None, Some(Verdict::jump("other")), Some(Verdict::Accept)];
        assert_eq!(verdicts, expected);
        assert_eq!(rules[0].expressions, ["match comment", "counter", "immediate"]);
        assert_eq!(rules[1].expressions.last().unwrap(), "target LOG");
        assert_eq!(rules[2].expressions.last().unwrap(), "target REJECT");
    });
}
