//! Address translation in nf_tables: compares the overlay's chains, sets and rules with the wanted
//! ones, and makes one transaction of the difference. Called by `reconcile`, in two steps.
//!
//! Other parts of Russet share the table; the overlay's names begin with `overlay-`. A difference
//! in chains, rules or sets replaces all of them atomically, since they are few. If only elements
//! differ, as when a node is added or removed, only these change.

use std::collections::BTreeSet;

use russet_nft::{Element, KeyPart, NetlinkError, Nft, Transaction};

use crate::masquerade::{Masquerade, PREFIX, guard_parts, table};
use crate::ruleset::{ObservedTable, Ruleset, same_type};

/// The transaction that brings nf_tables to `wanted`; empty if there is no difference.
pub(crate) fn difference(wanted: &Masquerade, found: &ObservedTable) -> Transaction {
    let wanted = wanted.ruleset();
    let mut transaction = Transaction::new();
    if !(wanted.is_framed(found) && wanted.has_rules(found)) {
        withdraw(&wanted, found, &mut transaction);
        install(&wanted, &mut transaction);
    } else {
        change_elements(&wanted, found, &mut transaction);
    }
    transaction
}

/// The transaction that removes only the guard of the tunnels; empty if there is none.
pub(crate) fn without_guard(nft: &mut Nft) -> Result<Transaction, NetlinkError> {
    let (table, (chains, sets)) = (table(), guard_parts());
    let mut transaction = Transaction::new();
    let found = nft.chains(&table)?;
    let there = |name: &&&str| found.iter().any(|info| info.chain.name == **name);
    chains.iter().filter(there).for_each(|name| _ = transaction.flush_chain(&table, name));
    chains.iter().filter(there).for_each(|name| _ = transaction.delete_chain(&table, name));
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
        let there = found.elements(set).unwrap_or_default();
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

pub(crate) fn observe(nft: &mut Nft) -> Result<ObservedTable, NetlinkError> {
    ObservedTable::read(nft, &table(), PREFIX)
}

/// Empties what will be filled again, and removes the rest: rules before the chains and sets that
/// they refer to.
fn withdraw(wanted: &Ruleset, found: &ObservedTable, transaction: &mut Transaction) {
    let table = table();
    found.chains.iter().for_each(|chain| _ = transaction.flush_chain(&table, &chain.name));
    for chain in found.chains.iter().filter(|chain| !wanted.chains.contains(chain)) {
        transaction.delete_chain(&table, &chain.name);
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
    wanted.add_to(transaction);
}
