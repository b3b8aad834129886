//! Removes what flannel's iptables mode left in the tables of iptables-nft: its chains with all
//! jumps to them, and its rules without chains, which carry its comments. One transaction does it,
//! after our own rules are in force.

use russet_addr::Family;
use russet_nft::{Nft, Table, Verdict};

use super::compat::table_family;
use super::gate::FLANNEL_FORWARD;
use super::native::Change;
use super::xtables::{FLANNEL_POSTROUTING, FORWARD_COMMENT, MASQUERADE_COMMENT};
use super::{FirewallError, Look, Repair};

/// A hook in which flannel's iptables mode has rules.
struct Place {
    table: Table,
    hook: &'static str,
    chain: &'static str,
    comment: &'static str,
}

/// The change that removes all of it; `thorough` also searches for rules without chains.
pub(crate) fn difference(nft: &mut Nft, look: &Look, thorough: bool) -> Result<Change, FirewallError> {
    let mut change = Change::default();
    for place in Family::BOTH.into_iter().flat_map(places) {
        let has = |name: &str| {
            look.chains.iter().any(|info| info.chain.table == place.table && info.chain.name == name)
        };
        let chain = has(place.chain);
        let rules = match (chain, thorough && has(place.hook)) {
            // Any chain of the table may jump there.
            (true, _) => nft.rules(&place.table)?,
            (false, true) => nft.rules_of(&place.table, place.hook)?,
            (false, false) => continue,
        };
        let before = change.transaction.len();
        for rule in rules.iter().filter(|rule| rule.chain != place.chain) {
            let jumps = rule.verdict.as_ref().and_then(Verdict::chain) == Some(place.chain);
            let bare = rule.chain == place.hook && rule.comment.as_deref() == Some(place.comment);
            if jumps || bare {
                change.transaction.delete_rule(&place.table, &rule.chain, rule.handle);
            }
        }
        if chain {
            change.transaction.delete_chain(&place.table, place.chain);
        }
        if change.transaction.len() > before {
            change.repairs.push(Repair::Leftover(place.table));
        }
    }
    Ok(change)
}

pub(crate) fn chains(family: Family) -> [(Table, &'static str); 2] {
    places(family).map(|place| (place.table, place.chain))
}

fn places(family: Family) -> [Place; 2] {
    let table = |name: &str| Table::new(table_family(family), name);
    [
        Place {
            table: table("nat"),
            hook: "POSTROUTING",
            chain: FLANNEL_POSTROUTING,
            comment: MASQUERADE_COMMENT,
        },
        Place { table: table("filter"), hook: "FORWARD", chain: FLANNEL_FORWARD, comment: FORWARD_COMMENT },
    ]
}
