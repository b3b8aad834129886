//! Compares our own tables with the wanted ones and makes a transaction of the difference.
//!
//! They have the names, chains and hooks of flannel's nftables mode (flannel.md section 7.2):
//! flannel refills or deletes them when it returns, and we replace the rules that it left. The
//! rules are those of its iptables mode, because in its nftables mode the rule for the node's own
//! traffic is never reached.

use russet_addr::{Family, IpNet};
use russet_nft::{
    Chain, ChainInfo, ChainKind, Hook, Masquerade, Nft, Rule, RuleInfo, Table, TableFamily, TableInfo,
    Transaction, priority,
};

use super::rules::{self, Action, KUBE_PROXY_MARK, Line, Side};
use super::{FirewallError, Repair, RulesetSnapshot, Wanted};

/// A transaction and the repairs that it makes.
#[derive(Debug, Default)]
pub(crate) struct Change {
    pub(crate) transaction: Transaction,
    pub(crate) repairs: Vec<Repair>,
}

/// A chain with its rules.
struct Filled {
    chain: Chain,
    rules: Vec<Rule>,
}

const POSTROUTING: &str = "postrtg";
const FORWARD: &str = "forward";

pub(crate) fn tables() -> [Table; 2] {
    Family::BOTH.map(table)
}

fn table(family: Family) -> Table {
    match family {
        Family::V4 => Table::new(TableFamily::Ip, "flannel-ipv4"),
        Family::V6 => Table::new(TableFamily::Ip6, "flannel-ipv6"),
    }
}

/// The change that brings our tables to `wanted`; empty if they are.
pub(crate) fn difference(
    nft: &mut Nft,
    snapshot: &RulesetSnapshot,
    wanted: &Wanted,
) -> Result<Change, FirewallError> {
    let mut change = Change::default();
    for family in Family::BOTH {
        let table = table(family);
        let found = snapshot.tables.iter().find(|info| info.table == table);
        let wanted = ruleset(wanted, family);
        match (found, wanted.is_empty()) {
            (None, true) => {}
            (Some(_), true) => {
                change.transaction.delete_table(&table);
                change.repairs.push(Repair::Removed(table));
            }
            (None, false) => {
                install(&table, &wanted, &mut change.transaction);
                change.repairs.push(Repair::Table(table));
            }
            (Some(info), false) => repair(nft, snapshot, info, &wanted, &mut change)?,
        }
    }
    Ok(change)
}

/// Refills the chains that differ. A table with unexpected chains is created anew.
fn repair(
    nft: &mut Nft,
    snapshot: &RulesetSnapshot,
    info: &TableInfo,
    wanted: &[Filled],
    change: &mut Change,
) -> Result<(), FirewallError> {
    let table = &info.table;
    let mut chains = snapshot.chains.iter().filter(|found| found.chain.table == *table);
    let same = |filled: &Filled, found: &ChainInfo| {
        found.chain.name == filled.chain.name && found.chain.base == filled.chain.base
    };
    let known = |found: &ChainInfo| wanted.iter().any(|filled| same(filled, found));
    if info.dormant || chains.clone().count() != wanted.len() || !chains.all(known) {
        change.transaction.delete_table(table);
        install(table, wanted, &mut change.transaction);
        change.repairs.push(Repair::Table(table.clone()));
        return Ok(());
    }
    let found = nft.rules(table)?;
    let before = change.transaction.len();
    for filled in wanted.iter().filter(|filled| !filled.is_in_force(&found)) {
        change.transaction.flush_chain(table, &filled.chain.name);
        filled.rules.iter().for_each(|rule| {
            change.transaction.add_rule(rule);
        });
    }
    if change.transaction.len() > before {
        change.repairs.push(Repair::Table(table.clone()));
    }
    Ok(())
}

fn install(table: &Table, wanted: &[Filled], transaction: &mut Transaction) {
    transaction.add_table(table);
    for filled in wanted {
        transaction.add_chain(&filled.chain);
        filled.rules.iter().for_each(|rule| {
            transaction.add_rule(rule);
        });
    }
}

/// The chains of one family; empty where no table is needed.
fn ruleset(wanted: &Wanted, family: Family) -> Vec<Filled> {
    let table = table(family);
    let chains = [
        (POSTROUTING, ChainKind::Nat, Hook::Postrouting, priority::SRCNAT, rules::masquerade(wanted, family)),
        (FORWARD, ChainKind::Filter, Hook::Forward, priority::FILTER, rules::forward(wanted, family)),
    ];
    let chains = chains.into_iter().filter(|(.., lines)| !lines.is_empty());
    let filled = chains.map(|(name, kind, hook, priority, lines)| {
        let chain = Chain::base(&table, name, kind, hook, priority);
        let rules = lines.iter().map(|line| rule(&chain, line, wanted.random_fully)).collect();
        Filled { chain, rules }
    });
    filled.collect()
}

fn rule(chain: &Chain, line: &Line, random_fully: bool) -> Rule {
    let mut rule = Rule::new(chain);
    if line.marked {
        rule = rule.mark(KUBE_PROXY_MARK, KUBE_PROXY_MARK);
    }
    let rule = addresses(rule, line);
    match line.action {
        Action::Accept => rule.accept(),
        Action::Return => rule.return_(),
        Action::Masquerade => rule.masquerade(Masquerade { fully_random: random_fully, ports: None }),
    }
}

pub(crate) fn addresses(rule: Rule, line: &Line) -> Rule {
    type Match = fn(Rule, IpNet) -> Rule;
    let sides: [(Side, Match, Match); 2] =
        [(line.source, Rule::saddr, Rule::saddr_not), (line.destination, Rule::daddr, Rule::daddr_not)];
    sides.into_iter().fold(rule, |rule, (side, inside, outside)| match side {
        Side::Any => rule,
        Side::In(net) => inside(rule, net),
        Side::NotIn(net) => outside(rule, net),
    })
}

// === impl Filled ===

impl Filled {
    fn is_in_force(&self, found: &[RuleInfo]) -> bool {
        let found = found.iter().filter(|rule| rule.chain == self.chain.name).map(|rule| rule.digest);
        found.eq(self.rules.iter().map(Rule::digest))
    }
}
