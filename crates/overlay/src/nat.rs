//! Address translation in nf_tables: compares the overlay's chains, sets and rules with the wanted
//! ones, and makes one transaction of the difference. Called by `reconcile`.
//!
//! Other parts of Russet share the table; the overlay's names begin with `overlay-`. A difference
//! in chains, rules or sets replaces all of them atomically, since they are few. If only elements
//! differ, as when a node is added or removed, only these change.

use std::collections::{BTreeMap, BTreeSet};

use russet_nft::{Chain, ChainInfo, Element, KeyPart, NetlinkError, Nft, Set, SetInfo, Transaction};

use crate::masquerade::{Masquerade, PREFIX, Ruleset, guard_parts, table};

/// The overlay's part of the table in the kernel.
#[derive(Debug, Default)]
struct ObservedTable {
    chains: Vec<Chain>,
    sets: Vec<(Set, Vec<Element>)>,
    /// The rules of each chain, in order.
    digests: BTreeMap<String, Vec<u64>>,
}

/// The transaction that brings nf_tables to `wanted`; empty if there is no difference.
pub(crate) fn difference(nft: &mut Nft, wanted: &Masquerade) -> Result<Transaction, NetlinkError> {
    let wanted = wanted.ruleset();
    let found = observe(nft)?;
    let mut transaction = Transaction::new();
    if !is_framed(&wanted, &found) {
        withdraw(&wanted, &found, &mut transaction);
        install(&wanted, &mut transaction);
    } else {
        change_elements(&wanted, &found, &mut transaction);
    }
    Ok(transaction)
}

/// The transaction that removes only the guard of the tunnels; empty if there is none.
pub(crate) fn without_guard(nft: &mut Nft) -> Result<Transaction, NetlinkError> {
    let (table, (chains, sets)) = (table(), guard_parts());
    let mut transaction = Transaction::new();
    let found = nft.chains(&table)?;
    for name in chains.iter().filter(|name| found.iter().any(|info| info.chain.name == **name)) {
        transaction.flush_chain(&table, name).delete_chain(&table, name);
    }
    let found = nft.sets(&table)?;
    for set in sets.iter().filter(|set| found.iter().any(|info| info.set.name == set.name)) {
        transaction.delete_set(&table, &set.name);
    }
    Ok(transaction)
}

/// Of sets that may be large, only differing elements change; a set of prefixes is small and is
/// filled anew.
fn change_elements(wanted: &Ruleset, found: &ObservedTable, transaction: &mut Transaction) {
    for (set, elements) in &wanted.sets {
        let there = found.sets.iter().find(|(f, _)| f.name == set.name).map_or(&[][..], |(_, all)| all);
        if set.interval {
            if elements != there {
                transaction.flush_set(&set.table, &set.name).add_elements(set, elements);
            }
            continue;
        }
        let keys = |all: &[Element]| all.iter().map(|element| element.key.clone()).collect::<BTreeSet<_>>();
        let (wanted, there_keys) = (keys(elements), keys(there));
        let missing = |all: &[Element], known: &BTreeSet<Vec<KeyPart>>| -> Vec<Element> {
            all.iter().filter(|element| !known.contains(&element.key)).cloned().collect()
        };
        transaction.delete_elements(set, &missing(there, &wanted));
        transaction.add_elements(set, &missing(elements, &there_keys));
    }
}

fn observe(nft: &mut Nft) -> Result<ObservedTable, NetlinkError> {
    let table = table();
    let mut found = ObservedTable::default();
    for ChainInfo { chain, .. } in nft.chains(&table)? {
        if chain.name.starts_with(PREFIX) {
            let rules = nft.rules_of(&table, &chain.name)?;
            found.digests.insert(chain.name.clone(), rules.iter().map(|rule| rule.digest).collect());
            found.chains.push(chain);
        }
    }
    for SetInfo { set, .. } in nft.sets(&table)? {
        if set.name.starts_with(PREFIX) {
            let elements = nft.elements(&set)?;
            found.sets.push((set, elements));
        }
    }
    Ok(found)
}

/// Whether chains, rules and sets match, regardless of the sets' elements.
fn is_framed(wanted: &Ruleset, found: &ObservedTable) -> bool {
    let same_chain = |chain: &Chain| found.chains.iter().any(|f| f == chain);
    let same_set = |(set, _): &(Set, Vec<Element>)| found.sets.iter().any(|(f, _)| same_type(f, set));
    let digests = |chain: &Chain| -> Vec<u64> {
        wanted.rules.iter().filter(|rule| rule.chain() == chain.name).map(|rule| rule.digest()).collect()
    };
    wanted.chains.len() == found.chains.len()
        && wanted.sets.len() == found.sets.len()
        && wanted.chains.iter().all(same_chain)
        && wanted.sets.iter().all(same_set)
        && wanted.chains.iter().all(|chain| found.digests.get(&chain.name) == Some(&digests(chain)))
}

fn same_type(a: &Set, b: &Set) -> bool {
    (&a.name, &a.key, &a.value, a.interval) == (&b.name, &b.key, &b.value, b.interval)
}

/// Empties what will be filled again, and removes the rest: rules before the sets that they refer
/// to.
fn withdraw(wanted: &Ruleset, found: &ObservedTable, transaction: &mut Transaction) {
    let table = table();
    for chain in &found.chains {
        match wanted.chains.contains(chain) {
            true => transaction.flush_chain(&table, &chain.name),
            false => transaction.delete_chain(&table, &chain.name),
        };
    }
    for (set, _) in &found.sets {
        match wanted.sets.iter().any(|(wanted, _)| same_type(wanted, set)) {
            true => transaction.flush_set(&table, &set.name),
            false => transaction.delete_set(&table, &set.name),
        };
    }
}

fn install(wanted: &Ruleset, transaction: &mut Transaction) {
    if wanted.chains.is_empty() {
        return;
    }
    transaction.add_table(&table());
    for (set, elements) in &wanted.sets {
        transaction.add_set(set).add_elements(set, elements);
    }
    for chain in &wanted.chains {
        transaction.add_chain(chain);
    }
    for rule in &wanted.rules {
        transaction.add_rule(rule);
    }
}
