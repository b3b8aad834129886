//! What is to be in the table: pure, and the only place that says so.
//!
//! ```text
//! chain forward     { type filter hook forward priority filter;     iifname "russ*" goto from-pod }
//! chain input       { type filter hook input priority filter;       iifname "russ*" goto from-pod }
//! chain postrouting { type filter hook postrouting priority filter; oifname "russ*" goto to-pod }
//! chain from-pod    { iifname vmap @from-pods; counter drop }
//! chain to-pod      { oifname vmap @to-pods; counter drop }
//! ```
//!
//! Packets of other interfaces leave each chain after one comparison of four bytes. What goes to pods is judged behind routing and address translation,
//! not at output: there, a packet of the node's own to a Service still names the interface that it had before its destination was translated. An
//! `accept` ends the chain of its own hook only: nobody else's rules are passed by. Connection tracking is not asked.

use russet_addr::IfName;
use russet_nft::{
    self as nft, Chain, ChainKind, Element, Field, Hook, KeyPart, KeyType, Rule, Set, Table, Transaction,
    Value, priority,
};

use crate::Verdict;

/// The table, as people and errors call it.
pub const TABLE: &str = "inet russet-policy";
/// What the names of the interfaces begin with that the table judges: all host ends of Russet's own wiring.
pub const PREFIX: &str = "russ";

/// Which way packets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    FromPod,
    ToPod,
}

// === impl Way ===

impl Way {
    pub const BOTH: [Way; 2] = [Way::FromPod, Way::ToPod];

    /// The chain that all packets of pods go through.
    const fn chain_name(self) -> &'static str {
        match self {
            Self::FromPod => "from-pod",
            Self::ToPod => "to-pod",
        }
    }

    const fn field(self) -> Field {
        match self {
            Self::FromPod => Field::IifName,
            Self::ToPod => Field::OifName,
        }
    }

    /// The map from host ends to verdicts.
    pub fn map(self) -> Set {
        let name = match self {
            Self::FromPod => "from-pods",
            Self::ToPod => "to-pods",
        };
        Set::verdict_map(&table(), name, [KeyType::IfName])
    }

    fn chain(self) -> Chain {
        Chain::new(&table(), self.chain_name())
    }

    /// The entry of a host end. A policy's verdict will be a chain of its own to go to.
    pub fn element(self, host_name: &IfName, verdict: Verdict) -> Element {
        let verdict = match verdict {
            Verdict::Allow => nft::Verdict::Accept,
        };
        Element::new(KeyPart::if_name(host_name)).verdict(verdict)
    }
}

/// The table.
pub(crate) fn table() -> Table {
    Table::inet("russet-policy")
}

/// The chains where packets enter, with the way of those that they judge.
pub(crate) fn base_chains() -> [(Chain, Way); 3] {
    let base = |name, hook| Chain::base(&table(), name, ChainKind::Filter, hook, priority::FILTER);
    [
        (base("forward", Hook::Forward), Way::FromPod),
        (base("input", Hook::Input), Way::FromPod),
        (base("postrouting", Hook::Postrouting), Way::ToPod),
    ]
}

/// All chains.
pub(crate) fn chains() -> Vec<Chain> {
    let base = base_chains().map(|(chain, _)| chain);
    Way::BOTH.map(Way::chain).into_iter().chain(base).collect()
}

/// All rules, chain after chain, each in order.
pub(crate) fn rules() -> Vec<Rule> {
    let mut rules = Vec::new();
    for way in Way::BOTH {
        let chain = way.chain();
        rules.push(Rule::new(&chain).vmap(&[way.field()], way.map().name));
        rules.push(Rule::new(&chain).counter().drop());
    }
    for (chain, way) in base_chains() {
        let rule = match way {
            Way::FromPod => Rule::new(&chain).iif_prefix(PREFIX),
            Way::ToPod => Rule::new(&chain).oif_prefix(PREFIX),
        };
        rules.push(rule.goto(way.chain_name()));
    }
    rules
}

/// Makes table, maps, chains and rules, whatever of them is there; all that is there must have the right type. Elements are left as they are.
pub(crate) fn add_structure(transaction: &mut Transaction) {
    transaction.add_table(&table());
    for way in Way::BOTH {
        transaction.add_set(&way.map());
    }
    for chain in chains() {
        transaction.add_chain(&chain).flush_chain(&table(), &chain.name);
    }
    for rule in rules() {
        transaction.add_rule(&rule);
    }
}

/// The host end that an element is for; none where it is no interface's name.
pub(crate) fn host_name(element: &Element) -> Option<IfName> {
    let (bytes, _) = element.key.first()?.bytes();
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    IfName::new(std::str::from_utf8(&bytes[..end]).ok()?).ok()
}

/// The verdict that an element gives, if it is one of ours.
pub(crate) fn verdict(element: &Element) -> Option<Verdict> {
    match &element.value {
        Some(Value::Verdict(nft::Verdict::Accept)) => Some(Verdict::Allow),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_is_read_back_as_its_entry() {
        for name in ["russ0123456789a", "russ1"] {
            let name: IfName = name.parse().unwrap();
            for way in Way::BOTH {
                let element = way.element(&name, Verdict::Allow);
                assert_eq!(host_name(&element), Some(name.clone()));
                assert_eq!(verdict(&element), Some(Verdict::Allow));
            }
        }
        let dropped = Element::new(KeyPart::port(1)).verdict(nft::Verdict::Drop);
        assert_eq!((host_name(&dropped), verdict(&dropped)), (None, None));
    }

    #[test]
    fn every_base_chain_accepts_what_is_not_a_pods() {
        // A hook takes effect before the rules of the same transaction do: a policy of drop would lose packets in between.
        for (chain, _) in base_chains() {
            assert_eq!(chain.base.unwrap().policy, nft::Policy::Accept);
        }
    }
}
