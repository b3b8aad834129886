//! The tables of `overlay`: pools in interval sets, no tracking between pods, masquerading towards
//! external networks.

#![allow(clippy::unwrap_used, reason = "tests")]

use russet_addr::{Family, IpNet};
use russet_nft::{
    Chain, ChainKind, Element, Hook, L4, Masquerade, Nft, Rule, Set, Table, Transaction, priority,
};
use russet_testkit::{in_new_netns, run};

fn nets(texts: &[&str]) -> Vec<IpNet> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// The rules of the masquerading table, by chain.
fn rules(table: &Table) -> (Vec<Chain>, Vec<Rule>) {
    let postrouting = Chain::base(table, "postrouting", ChainKind::Nat, Hook::Postrouting, priority::SRCNAT);
    let prerouting = Chain::base(table, "raw-prerouting", ChainKind::Filter, Hook::Prerouting, priority::RAW);
    let output = Chain::base(table, "raw-output", ChainKind::Filter, Hook::Output, priority::RAW);
    let mut rules = Vec::new();
    for (family, set) in [(Family::V4, "pools4"), (Family::V6, "pools6")] {
        for chain in [&prerouting, &output] {
            rules.push(Rule::new(chain).saddr_in(family, set).daddr_in(family, set).notrack());
        }
        let outside = || Rule::new(&postrouting).saddr_in(family, set).daddr_not_in(family, set);
        let how = Masquerade::fully_random().ports(4790..=65535);
        rules.push(outside().protocol(L4::Udp).masquerade(how));
        rules.push(outside().masquerade(Masquerade::fully_random()).comment("natOutgoing"));
    }
    (vec![postrouting, prerouting, output], rules)
}

fn transaction(table: &Table) -> Transaction {
    let mut change = Transaction::new();
    change.destroy_table(table).add_table(table);
    let (chains, rules) = rules(table);
    for (name, family, pools) in [
        ("pools4", Family::V4, nets(&["10.244.0.0/16", "10.245.0.0/16", "192.168.7.0/24"])),
        ("pools6", Family::V6, nets(&["fd72:7573:7365::/48"])),
    ] {
        let set = Set::prefixes(table, name, family);
        change.add_set(&set).add_elements(&set, &Element::cover(pools));
    }
    chains.iter().for_each(|chain| {
        change.add_chain(chain);
    });
    rules.iter().for_each(|rule| {
        change.add_rule(rule);
    });
    change
}

const LISTED: &str = r#"table inet russet {
	set pools4 {
		type ipv4_addr
		flags interval
		elements = { 10.244.0.0/15, 192.168.7.0/24 }
	}

	set pools6 {
		type ipv6_addr
		flags interval
		elements = { fd72:7573:7365::/48 }
	}

	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr @pools4 ip daddr != @pools4 meta l4proto udp masquerade to :4790-65535 fully-random
		ip saddr @pools4 ip daddr != @pools4 masquerade fully-random comment "natOutgoing"
		ip6 saddr @pools6 ip6 daddr != @pools6 meta l4proto udp masquerade to :4790-65535 fully-random
		ip6 saddr @pools6 ip6 daddr != @pools6 masquerade fully-random comment "natOutgoing"
	}

	chain raw-prerouting {
		type filter hook prerouting priority raw; policy accept;
		ip saddr @pools4 ip daddr @pools4 notrack
		ip6 saddr @pools6 ip6 daddr @pools6 notrack
	}

	chain raw-output {
		type filter hook output priority raw; policy accept;
		ip saddr @pools4 ip daddr @pools4 notrack
		ip6 saddr @pools6 ip6 daddr @pools6 notrack
	}
}
"#;

#[test]
#[ignore = "tool: nft, root"]
fn nft_lists_the_intended_masquerading_table() {
    // calico-cni.md section 4.8: masquerade what leaves the pools, and never from the VXLAN port.
    in_new_netns(|| {
        let table = Table::inet("russet");
        let mut nft = Nft::open().unwrap();
        nft.commit(&transaction(&table)).unwrap();
        assert_eq!(run("nft", &["list", "ruleset"]), LISTED);
        // Again over the existing table: one transaction, the same result.
        nft.commit(&transaction(&table)).unwrap();
        assert_eq!(run("nft", &["list", "ruleset"]), LISTED);
    });
}

#[test]
#[ignore = "kernel: nf_tables, root"]
fn listed_rules_equal_those_sent() {
    in_new_netns(|| {
        let table = Table::inet("russet");
        let mut nft = Nft::open().unwrap();
        nft.commit(&transaction(&table)).unwrap();
        let (mut chains, sent) = rules(&table);
        let mut listed: Vec<Chain> = nft.chains(&table).unwrap().into_iter().map(|info| info.chain).collect();
        chains.sort_by(|a, b| a.name.cmp(&b.name));
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(listed, chains);
        for chain in &chains {
            let listed = nft.rules_of(&table, &chain.name).unwrap();
            let listed: Vec<_> = listed.iter().map(|rule| (rule.digest, rule.expressions.len())).collect();
            let sent = sent.iter().filter(|rule| rule.chain() == chain.name);
            let sent: Vec<_> = sent.map(|rule| (rule.digest(), rule.expressions().len())).collect();
            assert_eq!(listed, sent, "{}", chain.name);
        }
        let sets = nft.sets(&table).unwrap();
        let pools = &sets.iter().find(|info| info.set.name == "pools4").unwrap().set;
        assert_eq!(*pools, Set::prefixes(&table, "pools4", Family::V4));
        let covered = Element::cover(nets(&["10.244.0.0/15", "192.168.7.0/24"]));
        assert_eq!(nft.elements(pools).unwrap(), covered);
    });
}
