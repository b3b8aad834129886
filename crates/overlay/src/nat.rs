//! Address translation in nf_tables: compares the overlay's chains, sets and rules with what they should be, and makes
//! one transaction of the difference. Called by `reconcile`.
//!
//! The table is shared with other parts of Russet; what is ours begins with `overlay-`. Any difference replaces all of it,
//! atomically: it is a handful of rules and one element per pool.

use std::collections::BTreeMap;

use russet_nft::{Chain, ChainInfo, Element, NetlinkError, Nft, Set, SetInfo, Transaction};

use crate::masquerade::{Masquerade, PREFIX, Ruleset, table};

/// What of ours nf_tables holds.
#[derive(Debug, Default)]
struct Found {
    chains: Vec<Chain>,
    sets: Vec<(Set, Vec<Element>)>,
    /// The rules of each chain, in order.
    digests: BTreeMap<String, Vec<u64>>,
}

/// The transaction that brings nf_tables to `wanted`; empty when it is there.
pub(crate) fn difference(nft: &mut Nft, wanted: &Masquerade) -> Result<Transaction, NetlinkError> {
    let wanted = wanted.ruleset();
    let found = observe(nft)?;
    let mut transaction = Transaction::new();
    if !in_force(&wanted, &found) {
        withdraw(&wanted, &found, &mut transaction);
        install(&wanted, &mut transaction);
    }
    Ok(transaction)
}

fn observe(nft: &mut Nft) -> Result<Found, NetlinkError> {
    let table = table();
    let mut found = Found::default();
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

fn in_force(wanted: &Ruleset, found: &Found) -> bool {
    let same_chain = |chain: &Chain| found.chains.iter().any(|f| f == chain);
    let same_set = |(set, elements): &(Set, Vec<Element>)| {
        found.sets.iter().any(|(f, found)| same_type(f, set) && elements == found)
    };
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

/// Empties what will be filled again, and removes the rest: rules before the sets that they look into.
fn withdraw(wanted: &Ruleset, found: &Found, transaction: &mut Transaction) {
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
