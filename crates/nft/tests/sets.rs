//! Sets and maps: elements and ranges as `nft` reads them, ten thousand at once, and atomic
//! transactions.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use russet_addr::{Family, IpNet};
use russet_nft::{
    Chain, ChainKind, Element, Hook, KeyPart, KeyType, Nft, Rule, Set, Table, Transaction, Verdict, priority,
};
use russet_testkit::{in_netns_with_loopback, in_new_netns, nft_json, run};
use serde_json::Value;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// The set `name` of a table as nft lists it, without its handle.
fn listed(table: &str, name: &str, kind: &str) -> Value {
    let listing = nft_json(&["list", kind, "inet", table, name]);
    let objects = listing["nftables"].as_array().unwrap();
    let set = objects.iter().find_map(|object| object.get("set").or(object.get("map"))).unwrap();
    let mut set = set.as_object().unwrap().clone();
    set.remove("handle");
    set.remove("table");
    if let Some(elements) = set.get_mut("elem").and_then(Value::as_array_mut) {
        elements.sort_by_key(Value::to_string);
        elements.iter_mut().filter_map(|element| element.get_mut("elem")).for_each(|element| {
            element.as_object_mut().unwrap().remove("expires");
        });
    }
    set.into()
}

fn cases(table: &Table) -> Vec<(Set, Vec<Element>, &'static str)> {
    use KeyType::{IfIndex, IfName, InetProto, InetService, Ipv4Addr, Ipv6Addr, Mark};
    let set = |name: &str, key: &[KeyType]| Set::new(table, name, key);
    vec![
        (
            set("v4", &[Ipv4Addr]),
            vec![Element::new(ip("10.0.0.1")).comment("one"), Element::new(ip("10.0.0.2"))],
            "set v4 { type ipv4_addr; elements = { 10.0.0.1 comment \"one\", 10.0.0.2 }; }",
        ),
        (
            set("v6", &[Ipv6Addr]).comment("six"),
            vec![Element::new(ip("fd00::1"))],
            "set v6 { type ipv6_addr; comment \"six\"; elements = { fd00::1 }; }",
        ),
        (
            set("if", &[IfName]),
            vec![Element::new(KeyPart::if_name(&"eth0".parse().unwrap()))],
            "set if { type ifname; elements = { \"eth0\" }; }",
        ),
        (
            set("links", &[IfIndex]),
            vec![Element::new(KeyPart::if_index(1)), Element::new(KeyPart::if_index(7007))],
            "set links { type iface_index; elements = { \"lo\", 7007 }; }",
        ),
        (
            set("proto", &[InetProto]),
            vec![Element::new(KeyPart::protocol(17))],
            "set proto { type inet_proto; elements = { udp }; }",
        ),
        (
            set("fwmark", &[Mark]),
            vec![Element::new(KeyPart::mark(0x2000))],
            "set fwmark { type mark; elements = { 0x2000 }; }",
        ),
        (
            set("ports", &[InetService]).interval(),
            vec![Element::new(KeyPart::ports(30000..=32767)), Element::new(KeyPart::port(65535))],
            "set ports { type inet_service; flags interval; elements = { 30000-32767, 65535 }; }",
        ),
        (
            Set::prefixes(table, "pools4", Family::V4),
            ["0.0.0.0/8", "10.1.0.0/17", "10.1.128.0/17", "10.9.0.7/32", "240.0.0.0/4"]
                .map(|t| Element::new(net(t)))
                .to_vec(),
            "set pools4 { type ipv4_addr; flags interval; elements = { 0.0.0.0/8, 10.1.0.0/17, 10.1.128.0/17, 10.9.0.7, 240.0.0.0/4 }; }",
        ),
        (
            Set::prefixes(table, "pools6", Family::V6),
            ["fd72:7573:7365::/48", "ff00::/8"].map(|t| Element::new(net(t))).to_vec(),
            "set pools6 { type ipv6_addr; flags interval; elements = { fd72:7573:7365::/48, ff00::/8 }; }",
        ),
        (
            Set::prefixes(table, "ranges", Family::V4),
            vec![Element::new(KeyPart::addresses(ip("10.0.0.3")..=ip("10.0.0.9")))],
            "set ranges { type ipv4_addr; flags interval; elements = { 10.0.0.3-10.0.0.9 }; }",
        ),
        (
            set("short", &[Ipv4Addr]).timeout(Some(Duration::from_secs(600))).size(64),
            vec![Element::new(ip("10.0.0.1")).timeout(Duration::from_secs(7200))],
            "set short { type ipv4_addr; flags timeout; timeout 10m; size 64; elements = { 10.0.0.1 timeout 2h }; }",
        ),
        (
            set("fixed", &[Ipv4Addr]).constant().size(1),
            vec![Element::new(ip("10.0.0.1"))],
            "set fixed { type ipv4_addr; flags constant; elements = { 10.0.0.1 }; }",
        ),
    ]
}

/// Sets with concatenated keys, and maps.
fn compound_cases(table: &Table) -> Vec<(Set, Vec<Element>, &'static str)> {
    use KeyType::{ClassId, IfName, InetProto, InetService, Ipv4Addr, Mark};
    let set = |name: &str, key: &[KeyType]| Set::new(table, name, key);
    let decision = |ports| {
        let key = [KeyPart::class_id(0x12), ip("10.0.0.1").into(), KeyPart::protocol(6), ports];
        Element::concatenation(key).data(KeyPart::class_id(0xffff_0001))
    };
    let endpoint = |address: &str, protocol, ports| {
        Element::concatenation([net(address).into(), KeyPart::protocol(protocol), ports])
    };
    vec![
        (
            set("eps", &[Ipv4Addr, InetProto, InetService]),
            vec![
                endpoint("10.0.0.1/32", 6, KeyPart::port(80)),
                endpoint("10.0.0.1/32", 17, KeyPart::port(53)),
            ],
            "set eps { type ipv4_addr . inet_proto . inet_service; elements = { 10.0.0.1 . tcp . 80, 10.0.0.1 . udp . 53 }; }",
        ),
        (
            set("nets", &[Ipv4Addr, InetProto, InetService]).interval(),
            vec![
                endpoint("10.2.0.0/16", 6, KeyPart::ports(80..=90)),
                endpoint("10.3.0.1/32", 17, KeyPart::port(53)),
            ],
            "set nets { type ipv4_addr . inet_proto . inet_service; flags interval; elements = { 10.2.0.0/16 . tcp . 80-90, 10.3.0.1 . udp . 53 }; }",
        ),
        (
            set("counted", &[Ipv4Addr, Ipv4Addr]).counter(),
            vec![Element::concatenation([ip("10.0.0.1").into(), ip("10.1.0.1").into()])],
            "set counted { type ipv4_addr . ipv4_addr; counter; elements = { 10.0.0.1 . 10.1.0.1 }; }",
        ),
        (
            Set::map(table, "words", [ClassId, Ipv4Addr, InetProto, InetService], ClassId),
            vec![decision(KeyPart::port(80))],
            "map words { type classid . ipv4_addr . inet_proto . inet_service : classid; elements = { 0:12 . 10.0.0.1 . tcp . 80 : ffff:1 }; }",
        ),
        (
            Set::map(table, "word-ranges", [ClassId, Ipv4Addr, InetProto, InetService], ClassId).interval(),
            vec![decision(KeyPart::ports(80..=90))],
            "map word-ranges { type classid . ipv4_addr . inet_proto . inet_service : classid; flags interval; elements = { 0:12 . 10.0.0.1 . tcp . 80-90 : ffff:1 }; }",
        ),
        (
            Set::verdict_map(table, "verdicts", [IfName]),
            vec![
                Element::new(KeyPart::if_name(&"cali1".parse().unwrap())).verdict(Verdict::goto("c")),
                Element::new(KeyPart::if_name(&"cali2".parse().unwrap())).verdict(Verdict::Drop),
            ],
            "map verdicts { type ifname : verdict; elements = { \"cali1\" : goto c, \"cali2\" : drop }; }",
        ),
        (
            Set::map(table, "marks", [Ipv4Addr], Mark).interval(),
            vec![Element::new(net("10.1.0.0/16")).data(KeyPart::mark(7))],
            "map marks { type ipv4_addr : mark; flags interval; elements = { 10.1.0.0/16 : 0x7 }; }",
        ),
        (
            Set::map(table, "back", [InetService], Ipv4Addr),
            vec![Element::new(KeyPart::port(8080)).data(ip("10.1.0.9"))],
            "map back { type inet_service : ipv4_addr; elements = { 8080 : 10.1.0.9 }; }",
        ),
    ]
}

#[test]
#[ignore = "tool: nft, root"]
fn nft_reads_every_set_and_element_and_we_read_nfts() {
    in_new_netns(|| {
        let (table, theirs) = (Table::inet("ours"), Table::inet("theirs"));
        run("nft", &["table inet theirs { chain c { }\n}"]);
        let mut nft = Nft::open().unwrap();
        nft.commit(Transaction::new().add_table(&table).add_chain(&Chain::new(&table, "c"))).unwrap();
        for (set, elements, words) in cases(&table).into_iter().chain(compound_cases(&table)) {
            let mut change = Transaction::new();
            change.add_set(&set).add_elements(&set, &elements);
            nft.commit(&change).unwrap_or_else(|error| panic!("{words}: {error}"));
            run("nft", &[&format!("table inet theirs {{ {words}\n}}")]);
            let name = set.name.as_str();
            let kind = if set.value.is_some() { "map" } else { "set" };
            assert_eq!(listed("ours", name, kind), listed("theirs", name, kind), "{words}");
            for table in [&table, &theirs] {
                let infos = nft.sets(table).unwrap();
                let found = &infos.iter().find(|info| info.set.name == name).unwrap().set;
                assert_eq!(*found, Set { table: table.clone(), ..set.clone() }, "{words}");
                let mut listed = nft.elements(found).unwrap();
                let default =
                    |element: &mut Element| element.timeout = element.timeout.filter(|_| set.timeout);
                listed.iter_mut().for_each(default);
                listed.sort_by(|a, b| a.key.cmp(&b.key));
                let mut sent = elements.clone();
                sent.sort_by(|a, b| a.key.cmp(&b.key));
                assert_eq!(listed, sent, "{words}");
            }
            // The same elements can be deleted again.
            nft.commit(Transaction::new().delete_elements(&set, &elements))
                .map(|()| {
                    assert_eq!(nft.elements(&set).unwrap(), [], "{words}");
                })
                .unwrap_or_else(|error| panic!("{words}: {error}"));
        }
    });
}

#[test]
#[ignore = "kernel: nf_tables, root"]
fn each_element_counts_the_packets_for_which_a_rule_finds_it() {
    in_netns_with_loopback(|| {
        let table = Table::inet("t");
        let output = Chain::base(&table, "output", ChainKind::Filter, Hook::Output, priority::FILTER);
        let [set, plain] = ["counted", "plain"].map(|name| Set::new(&table, name, [KeyType::Ipv4Addr]));
        let set = set.counter();
        let elements = ["127.0.0.2", "127.0.0.3"].map(|text| Element::new(ip(text)));
        let mut nft = Nft::open().unwrap();
        let mut change = Transaction::new();
        change.add_table(&table).add_chain(&output).add_set(&set).add_set(&plain);
        change.add_elements(&set, &elements).add_elements(&plain, &elements);
        change.add_rule(&Rule::new(&output).daddr_in(Family::V4, "counted"));
        nft.commit(&change).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for (to, count) in [("127.0.0.2:9", 3), ("127.0.0.4:9", 2)] {
            (0..count).for_each(|_| _ = socket.send_to(b"x", to));
        }
        let counted = |nft: &mut Nft| {
            let mut counted = nft.counted(&set).unwrap();
            counted.sort_by(|(a, _), (b, _)| a.key.cmp(&b.key));
            counted
        };
        assert_eq!(counted(&mut nft), [(elements[0].clone(), 3), (elements[1].clone(), 0)]);
        assert_eq!(nft.counted(&plain).unwrap(), []);
        // Another element is no reason to begin again, and one that comes back begins with nothing.
        let other = [Element::new(ip("127.0.0.4"))];
        nft.commit(Transaction::new().delete_elements(&set, &elements[1..]).add_elements(&set, &other))
            .unwrap();
        assert_eq!(counted(&mut nft), [(elements[0].clone(), 3), (other[0].clone(), 0)]);
        nft.commit(Transaction::new().delete_elements(&set, &elements[..1])).unwrap();
        nft.commit(Transaction::new().add_elements(&set, &elements[..1])).unwrap();
        assert_eq!(counted(&mut nft)[0], (elements[0].clone(), 0));
    });
}

#[test]
#[ignore = "kernel: nf_tables, root"]
fn ten_thousand_elements_are_one_transaction() {
    // dataplane.md section 3.3
    in_new_netns(|| {
        let table = Table::inet("big");
        for family in Family::BOTH {
            let set = Set::new(&table, family.segment(), [KeyType::address(family)]);
            let address = |index: u32| match family {
                Family::V4 => IpAddr::from((0x0a00_0000 + index).to_be_bytes()),
                Family::V6 => IpAddr::from((0xfd00_u128 << 112 | u128::from(index)).to_be_bytes()),
            };
            let elements: Vec<Element> = (0..10_000).map(|index| Element::new(address(index))).collect();
            let mut change = Transaction::new();
            change.add_table(&table).add_set(&set).add_elements(&set, &elements);
            assert!(change.len() >= 2 + 25);
            let mut nft = Nft::open().unwrap();
            nft.commit(&change).unwrap();
            assert_eq!(nft.elements(&set).unwrap().len(), 10_000);
            nft.commit(Transaction::new().flush_set(&table, &set.name)).unwrap();
            assert_eq!(nft.elements(&set).unwrap(), []);
        }
    });
}

#[test]
#[ignore = "tool: nft, root"]
fn nft_lists_thousands_of_ranges_as_intended() {
    in_new_netns(|| {
        let table = Table::inet("t");
        let set = Set::prefixes(&table, "s", Family::V4);
        // Every other /24 of 10.0.0.0/12, and a block of adjacent prefixes.
        let prefixes =
            (0..2048_u32).map(|index| net(&format!("10.{}.{}.0/24", index / 128, index % 128 * 2)));
        let mut elements: Vec<Element> = prefixes.map(Element::new).collect();
        elements.extend(
            (0..512_u32)
                .map(|index| Element::new(net(&format!("192.168.{}.{}/31", index / 128, index % 128 * 2)))),
        );
        let mut nft = Nft::open().unwrap();
        nft.commit(Transaction::new().add_table(&table).add_set(&set).add_elements(&set, &elements)).unwrap();
        let listed = nft.elements(&set).unwrap();
        assert_eq!(listed, elements);
        for inside in ["10.3.6.0", "10.3.6.255", "192.168.3.255", "192.168.0.0"] {
            run("nft", &["get", "element", "inet", "t", "s", &format!("{{ {inside} }}")]);
        }
        for outside in ["10.3.7.0", "10.16.0.0", "192.168.4.0", "9.255.255.255"] {
            let words = format!("get element inet t s {{ {outside} }}");
            let output = std::process::Command::new("nft").arg(words).output().unwrap();
            assert!(!output.status.success(), "{outside} is in the set");
        }
    });
}

#[test]
#[ignore = "kernel: nf_tables, root"]
fn a_transaction_that_fails_leaves_nothing_and_names_the_change() {
    in_new_netns(|| {
        let table = Table::inet("t");
        let chain = Chain::new(&table, "c");
        let mut nft = Nft::open().unwrap();
        let mut change = Transaction::new();
        change.add_table(&table).add_chain(&chain);
        change.add_rule(&Rule::new(&chain).saddr_in(Family::V4, "missing").comment("broken"));
        change.add_rule(&Rule::new(&chain).accept());
        let error = nft.commit(&change).unwrap_err();
        assert_eq!(error.index, Some(2));
        assert!(error.to_string().starts_with("add rule inet t c \"broken\": ENOENT"), "{error}");
        assert!(error.is_not_found() && !error.outcome_unknown());
        assert!(nft.tables().unwrap().is_empty());
        // The socket still works.
        nft.commit(Transaction::new().add_table(&table)).unwrap();
        assert_eq!(nft.tables().unwrap().len(), 1);
    });
}

#[test]
#[ignore = "kernel: nf_tables, root"]
fn contradicting_elements_fail_the_transaction() {
    in_new_netns(|| {
        let table = Table::inet("t");
        let set = Set::prefixes(&table, "s", Family::V4);
        let mut nft = Nft::open().unwrap();
        nft.commit(Transaction::new().add_table(&table).add_set(&set)).unwrap();
        let overlapping = ["10.0.0.0/8", "10.1.0.0/16"].map(|text| Element::new(net(text)));
        let error = nft.commit(Transaction::new().add_elements(&set, &overlapping)).unwrap_err();
        assert!(error.to_string().starts_with("add 4 keys to set inet t s: E"), "{error}");
        assert_eq!(nft.elements(&set).unwrap(), []);
        let missing = nft.commit(Transaction::new().delete_elements(&set, &overlapping[..1])).unwrap_err();
        assert!(missing.is_not_found(), "{missing}");
    });
}

#[test]
#[ignore = "kernel: nf_tables, root"]
fn one_element_and_one_chain_are_read_without_the_others() {
    in_new_netns(|| {
        let table = Table::inet("t");
        let map = Set::verdict_map(&table, "m", [KeyType::IfName]);
        let chain = Chain::new(&table, "c");
        let names: Vec<Element> = (0..1000)
            .map(|index| KeyPart::if_name(&format!("veth{index}").parse().unwrap()))
            .map(|key| Element::new(key).verdict(Verdict::Accept).comment("mine"))
            .collect();
        let mut nft = Nft::open().unwrap();
        assert_eq!(nft.element(&map, &names[7]).unwrap(), None);
        assert_eq!(nft.chain(&table, "c").unwrap(), None);
        nft.commit(Transaction::new().add_table(&table).add_set(&map).add_chain(&chain)).unwrap();
        assert_eq!(nft.element(&map, &names[7]).unwrap(), None);
        nft.commit(Transaction::new().add_elements(&map, &names)).unwrap();
        let like = Element { value: None, comment: None, ..names[7].clone() };
        assert_eq!(nft.element(&map, &like).unwrap().as_ref(), Some(&names[7]));
        assert_eq!(nft.chain(&table, "c").unwrap().unwrap().chain, chain);
        assert_eq!(nft.chain(&table, "d").unwrap(), None);
    });
}

#[test]
#[ignore = "kernel: nf_tables, root"]
fn a_transaction_for_an_old_generation_is_stale() {
    in_new_netns(|| {
        let mut nft = Nft::open().unwrap();
        let before = nft.generation().unwrap();
        nft.commit(Transaction::new().only_at(before).add_table(&Table::inet("a"))).unwrap();
        assert_ne!(nft.generation().unwrap(), before);
        let error = nft.commit(Transaction::new().only_at(before).add_table(&Table::inet("b"))).unwrap_err();
        assert!(error.is_stale() && error.index.is_none(), "{error}");
        assert_eq!(nft.tables().unwrap().len(), 1);
    });
}

#[test]
#[ignore = "kernel: nf_tables, root"]
fn a_missing_table_has_no_rules_and_deleting_it_is_an_error_destroying_it_none() {
    in_new_netns(|| {
        let table = Table::inet("absent");
        let mut nft = Nft::open().unwrap();
        assert_eq!(nft.rules(&table).unwrap(), []);
        assert_eq!(nft.chains(&table).unwrap(), []);
        assert_eq!(nft.sets(&table).unwrap(), []);
        let error = nft.commit(Transaction::new().delete_table(&table)).unwrap_err();
        assert!(error.is_not_found(), "{error}");
        nft.commit(Transaction::new().destroy_table(&table)).unwrap();
        assert_eq!(nft.commit(&Transaction::new()).ok(), Some(()));
    });
}

/// Invalid changes, refused before they are sent.
fn refusal(change: &Transaction) -> String {
    change.check().unwrap_err().to_string()
}

#[test]
fn changes_that_the_kernel_would_misread_are_never_sent() {
    let table = Table::inet("t");
    let prefixes = Set::prefixes(&table, "s", Family::V4);
    let single = Set::new(&table, "s", [KeyType::Ipv4Addr]);
    let v6 = [Element::new(ip("fd00::1"))];
    let range = [Element::new(net("10.0.0.0/8"))];
    let long = "x".repeat(128);
    let mut change = Transaction::new();
    assert!(refusal(change.add_elements(&prefixes, &v6)).contains("another type"));
    assert!(refusal(Transaction::new().add_elements(&single, &range)).contains("no ranges"));
    assert!(refusal(Transaction::new().add_table(&Table::inet("a\0b"))).contains("control characters"));
    assert!(refusal(Transaction::new().add_table_with_comment(&table, &long)).contains("127 bytes"));
    assert!(
        refusal(Transaction::new().add_set(&Set::new(&table, "m", [KeyType::Mark]).interval()))
            .contains("no order")
    );
    let verdict = [Element::new(ip("10.0.0.1")).verdict(Verdict::Drop)];
    assert!(refusal(Transaction::new().add_elements(&single, &verdict)).contains("maps"));
}
