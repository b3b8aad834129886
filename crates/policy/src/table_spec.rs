//! Chains, sets and rules of one table: compares them with the kernel's and repairs them. Used by
//! `verdicts` for both tables of this crate; elements are the callers' business.

use std::collections::BTreeMap;

use russet_nft::{Chain, Element, KeyPart, Nft, Rule, Set, Table, Transaction, Value};

use crate::error::PolicyError;

/// What a table should hold besides elements.
pub(crate) struct TableSpec {
    pub table: Table,
    pub sets: Vec<Set>,
    pub chains: Vec<Chain>,
    /// Grouped by chain, in order.
    pub rules: Vec<Rule>,
    /// The chain whose rules are left as they are: only another process knows them.
    pub unknown_rules: Option<&'static str>,
    /// Chains of earlier versions: they are deleted.
    pub obsolete_chains: &'static [&'static str],
    /// Whether all packets pass while a wrong table is created anew; else some may be lost.
    pub disarms: bool,
}

/// A defect of the table, not counting its elements.
pub(crate) enum Fault {
    /// Something is missing, or a rule is not ours: adding repairs it.
    Partial(String),
    /// Something conflicts, and everything must be recreated.
    Wrong(String),
}

type Result<T, E = PolicyError> = std::result::Result<T, E>;

// === impl TableSpec ===

impl TableSpec {
    /// Reads only parts whose size does not depend on the number of elements or on foreign tables.
    pub fn fault(&self, nft: &mut Nft) -> Result<Option<Fault>> {
        let Some(info) = nft.tables()?.into_iter().find(|info| info.table == self.table) else {
            return Ok(Some(Fault::Partial("the table was missing".to_owned())));
        };
        if info.dormant || info.owner.is_some() {
            let what = "the table was dormant or owned by another process".to_owned();
            return Ok(Some(Fault::Wrong(what)));
        }
        let found = [self.fault_of_chains(nft)?, self.fault_of_sets(nft)?, self.fault_of_rules(nft)?];
        // The first conflict, or else the first gap.
        Ok(found.into_iter().flatten().min_by_key(|fault| matches!(fault, Fault::Partial(_))))
    }

    fn fault_of_chains(&self, nft: &mut Nft) -> Result<Option<Fault>> {
        let mut missing = None;
        for chain in &self.chains {
            match nft.chain(&self.table, &chain.name)? {
                None => missing = missing.or(Some(format!("chain {} was missing", chain.name))),
                Some(found) if found.chain.base != chain.base => {
                    return Ok(Some(Fault::Wrong(format!("chain {} was different", chain.name))));
                }
                Some(_) => {}
            }
        }
        let obsolete = self.found_obsolete(nft)?;
        let obsolete = obsolete.first().map(|name| format!("chain {name} was an earlier version's"));
        Ok(missing.or(obsolete).map(Fault::Partial))
    }

    fn fault_of_sets(&self, nft: &mut Nft) -> Result<Option<Fault>> {
        let found = nft.sets(&self.table)?;
        let mut missing = None;
        for set in &self.sets {
            match found.iter().find(|info| info.set.name == set.name) {
                None => missing = missing.or(Some(format!("map {} was missing", set.name))),
                Some(info) if info.set != *set => {
                    return Ok(Some(Fault::Wrong(format!("map {} was different", set.name))));
                }
                Some(_) => {}
            }
        }
        let is_known = |name: &str| self.sets.iter().any(|set| set.name == name);
        // An anonymous set belongs to a rule, and goes with it when its chain is repaired.
        let unknown = found.iter().find(|info| !info.anonymous && !is_known(&info.set.name));
        let unknown = unknown.map(|info| Fault::Wrong(format!("map {} was not known", info.set.name)));
        Ok(unknown.or(missing.map(Fault::Partial)))
    }

    fn fault_of_rules(&self, nft: &mut Nft) -> Result<Option<Fault>> {
        let found = nft.rules(&self.table)?;
        let is_known = |name: &str| {
            self.obsolete_chains.contains(&name) || self.chains.iter().any(|chain| chain.name == name)
        };
        if let Some(rule) = found.iter().find(|rule| !is_known(&rule.chain)) {
            return Ok(Some(Fault::Wrong(format!("chain {} was not known", rule.chain))));
        }
        let differs = |chain: &&Chain| {
            let wanted = self.rules.iter().filter(|rule| rule.chain() == chain.name).map(Rule::digest);
            let there = found.iter().filter(|rule| rule.chain == chain.name).map(|rule| rule.digest);
            !there.eq(wanted)
        };
        let different = self.ruled_chains().find(differs);
        Ok(different.map(|chain| Fault::Partial(format!("the rules of chain {} were different", chain.name))))
    }

    /// Adds what repairs the table to a transaction, and returns what was wrong with it. After
    /// [`Fault::Wrong`] the table is created anew, without elements.
    pub fn repair(&self, nft: &mut Nft, transaction: &mut Transaction) -> Result<Option<Fault>> {
        let fault = self.fault(nft)?;
        if matches!(fault, Some(Fault::Wrong(_))) {
            if self.disarms {
                disarm(nft, &self.table)?;
            }
            transaction.destroy_table(&self.table);
        }
        if fault.is_some() {
            self.add_to(transaction);
        }
        if let Some(Fault::Partial(_)) = fault {
            // No rule leads to them any more.
            for name in self.found_obsolete(nft)? {
                transaction.flush_chain(&self.table, name).delete_chain(&self.table, name);
            }
        }
        Ok(fault)
    }

    fn found_obsolete(&self, nft: &mut Nft) -> Result<Vec<&'static str>> {
        let mut found = Vec::new();
        for name in self.obsolete_chains {
            if nft.chain(&self.table, name)?.is_some() {
                found.push(*name);
            }
        }
        Ok(found)
    }

    /// Adds table, sets, chains and rules, whichever exist; existing ones must have the right type.
    fn add_to(&self, transaction: &mut Transaction) {
        transaction.add_table(&self.table);
        self.sets.iter().for_each(|set| _ = transaction.add_set(set));
        self.chains.iter().for_each(|chain| _ = transaction.add_chain(chain));
        self.ruled_chains().for_each(|chain| _ = transaction.flush_chain(&self.table, &chain.name));
        self.rules.iter().for_each(|rule| _ = transaction.add_rule(rule));
    }

    fn ruled_chains(&self) -> impl Iterator<Item = &Chain> {
        self.chains.iter().filter(|chain| self.unknown_rules != Some(chain.name.as_str()))
    }
}

/// Removes the rules before the table is deleted: a transaction that deletes maps together with the
/// rules that refer to them loses packets, because lookups of the old rules find nothing already
/// (seen with Linux 6.18: a packet each time).
pub(crate) fn disarm(nft: &mut Nft, table: &Table) -> Result<()> {
    match nft.commit(Transaction::new().flush_table(table)) {
        Err(source) if !source.is_not_found() => {
            Err(PolicyError::Commit { operation: format!("flush table {table}"), source })
        }
        _ => Ok(()),
    }
}

/// The elements of a set; none where there is no such set.
pub(crate) fn elements(nft: &mut Nft, set: &Set) -> Result<Option<Vec<Element>>> {
    match nft.elements(set) {
        Ok(elements) => Ok(Some(elements)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Changes the elements of a set from `found` to `wanted`, and returns those that differ. Removals
/// come first, because the kernel refuses elements that overlap.
pub(crate) fn replace(
    transaction: &mut Transaction,
    set: &Set,
    found: &[Element],
    wanted: &[Element],
) -> Vec<Element> {
    let (mut differ, missing) = differences(found, wanted);
    transaction.delete_elements(set, &differ).add_elements(set, &missing);
    differ.extend(missing);
    differ
}

/// The found elements that are not wanted, and the wanted ones that are missing.
pub(crate) fn differences(found: &[Element], wanted: &[Element]) -> (Vec<Element>, Vec<Element>) {
    if found.is_empty() {
        return (Vec::new(), wanted.to_vec());
    }
    let without = |all: &[Element], others: &[Element]| -> Vec<Element> {
        let others: BTreeMap<&[KeyPart], Option<&Value>> =
            others.iter().map(|element| (element.key.as_slice(), element.value.as_ref())).collect();
        let is_there = |one: &Element| others.get(one.key.as_slice()) == Some(&one.value.as_ref());
        all.iter().filter(|one| !is_there(one)).cloned().collect()
    };
    (without(found, wanted), without(wanted, found))
}
