//! What one table of nf_tables should hold, and what it holds: the whole table, or the part of it
//! whose names begin with a prefix. Used by all controllers that maintain a table.

use std::collections::BTreeMap;

use russet_nft::{Chain, ChainInfo, Element, NetlinkError, Nft, Rule, Set, SetInfo, Table, Transaction};

/// Chains, sets and rules, in the order in which they must be created.
#[derive(Debug, Clone, Default)]
pub struct Ruleset {
    pub chains: Vec<Chain>,
    pub sets: Vec<(Set, Vec<Element>)>,
    pub rules: Vec<Rule>,
}

/// The same in the kernel.
#[derive(Debug, Default)]
pub struct ObservedTable {
    pub chains: Vec<Chain>,
    pub sets: Vec<(Set, Vec<Element>)>,
    /// The rules of each chain, in order.
    digests: BTreeMap<String, Vec<u64>>,
}

// === impl Ruleset ===

impl Ruleset {
    /// Whether chains and sets are there, and no others.
    pub fn is_framed(&self, found: &ObservedTable) -> bool {
        self.is_framed_by(found, |_| true)
    }

    /// Whether those chains and sets are there whose names are meant, and no others of that kind.
    pub fn is_framed_by(&self, found: &ObservedTable, is_meant: impl Fn(&str) -> bool) -> bool {
        let meant_chains = |chains: &[Chain]| {
            chains.iter().filter(|chain| is_meant(&chain.name)).cloned().collect::<Vec<_>>()
        };
        let meant_sets =
            |sets: &[(Set, Vec<Element>)]| sets.iter().filter(|(set, _)| is_meant(&set.name)).count();
        let (wanted, there) = (meant_chains(&self.chains), meant_chains(&found.chains));
        let mut sets = self.sets.iter().filter(|(set, _)| is_meant(&set.name));
        wanted.len() == there.len()
            && meant_sets(&self.sets) == meant_sets(&found.sets)
            && wanted.iter().all(|chain| there.contains(chain))
            && sets.all(|(set, _)| found.elements(set).is_some())
    }

    /// Whether the rules of every chain are there, and no others.
    pub fn has_rules(&self, found: &ObservedTable) -> bool {
        self.chains.iter().all(|chain| {
            let wanted = self.rules.iter().filter(|rule| rule.chain() == chain.name).map(Rule::digest);
            found.digests.get(&chain.name).is_some_and(|digests| wanted.eq(digests.iter().copied()))
        })
    }

    /// Whether everything is there, and nothing else.
    pub fn is_in_force(&self, found: &ObservedTable) -> bool {
        let same = |(set, wanted): &(Set, Vec<Element>)| found.holds(set, wanted);
        self.is_framed(found) && self.has_rules(found) && self.sets.iter().all(same)
    }

    /// Adds everything to a table that exists.
    pub fn add_to(&self, transaction: &mut Transaction) {
        self.sets.iter().for_each(|(set, _)| _ = transaction.add_set(set));
        // Elements may lead to chains.
        self.chains.iter().for_each(|chain| _ = transaction.add_chain(chain));
        self.sets.iter().for_each(|(set, elements)| _ = transaction.add_elements(set, elements));
        self.rules.iter().for_each(|rule| _ = transaction.add_rule(rule));
    }
}

// === impl ObservedTable ===

impl ObservedTable {
    /// Reads what begins with `prefix`. A missing table is empty.
    pub fn read(nft: &mut Nft, table: &Table, prefix: &str) -> Result<Self, NetlinkError> {
        let mut found = Self::default();
        for ChainInfo { chain, .. } in nft.chains(table)? {
            if chain.name.starts_with(prefix) {
                let rules = nft.rules_of(table, &chain.name)?;
                found.digests.insert(chain.name.clone(), rules.iter().map(|rule| rule.digest).collect());
                found.chains.push(chain);
            }
        }
        for SetInfo { set, .. } in nft.sets(table)? {
            if set.name.starts_with(prefix) {
                let elements = nft.elements(&set)?;
                found.sets.push((set, elements));
            }
        }
        Ok(found)
    }

    /// Whether a set is there with exactly these elements.
    pub fn holds(&self, set: &Set, wanted: &[Element]) -> bool {
        self.elements(set).is_some_and(|found| same_elements(found, wanted))
    }

    /// The elements of a set, if there is one of its name and type.
    pub fn elements(&self, set: &Set) -> Option<&[Element]> {
        let found = self.sets.iter().find(|(found, _)| same_type(found, set));
        found.map(|(_, elements)| elements.as_slice())
    }
}

pub fn same_type(a: &Set, b: &Set) -> bool {
    (&a.name, &a.key, &a.value, a.interval) == (&b.name, &b.key, &b.value, b.interval)
}

/// Sorts references: sets of thousands of elements are compared once a minute on small nodes.
fn same_elements(found: &[Element], wanted: &[Element]) -> bool {
    fn sorted(elements: &[Element]) -> Vec<&Element> {
        let mut sorted: Vec<&Element> = elements.iter().collect();
        sorted.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        sorted
    }
    let same = |(found, wanted): (&Element, &Element)| found.key == wanted.key && found.value == wanted.value;
    found.len() == wanted.len() && sorted(found).into_iter().zip(sorted(wanted)).all(same)
}
