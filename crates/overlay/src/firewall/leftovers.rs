//! Removes what flannel's iptables mode left in the tables of iptables-nft: its chains with all
//! jumps to them, and its rules without chains, which carry its comments. One transaction does it,
//! after our own rules are in force.

use russet_addr::Family;
use russet_nft::{Nft, Table, Verdict};

use super::compat::table_family;
use super::gate::FLANNEL_FORWARD;
use super::native::Change;
use super::xtables::{FLANNEL_POSTROUTING, FORWARD_COMMENT, MASQUERADE_COMMENT};
use super::{FirewallError, Repair, RulesetSnapshot};

/// A hook in which flannel's iptables mode has rules.
struct HookedChain {
    table: Table,
    hook: &'static str,
    chain: &'static str,
    comment: &'static str,
}

/// The change that removes all of it; `thorough` also searches for rules without chains.
pub(crate) fn difference(
    nft: &mut Nft,
    snapshot: &RulesetSnapshot,
    thorough: bool,
) -> Result<Change, FirewallError> {
    let mut change = Change::default();
    for hooked in Family::BOTH.into_iter().flat_map(hooked_chains) {
        let has = |name: &str| {
            snapshot.chains.iter().any(|info| info.chain.table == hooked.table && info.chain.name == name)
        };
        let chain = has(hooked.chain);
        let rules = match (chain, thorough && has(hooked.hook)) {
            // Any chain of the table may jump there.
            (true, _) => nft.rules(&hooked.table)?,
            (false, true) => nft.rules_of(&hooked.table, hooked.hook)?,
            (false, false) => continue,
        };
        let before = change.transaction.len();
        for rule in rules.iter().filter(|rule| rule.chain != hooked.chain) {
            let jumps = rule.verdict.as_ref().and_then(Verdict::chain) == Some(hooked.chain);
            let bare = rule.chain == hooked.hook && rule.comment.as_deref() == Some(hooked.comment);
            if jumps || bare {
                change.transaction.delete_rule(&hooked.table, &rule.chain, rule.handle);
            }
        }
        if chain {
            change.transaction.delete_chain(&hooked.table, hooked.chain);
        }
        if change.transaction.len() > before {
            change.repairs.push(Repair::Leftover(hooked.table));
        }
    }
    Ok(change)
}

pub(crate) fn chains(family: Family) -> [(Table, &'static str); 2] {
    hooked_chains(family).map(|hooked| (hooked.table, hooked.chain))
}

fn hooked_chains(family: Family) -> [HookedChain; 2] {
    let table = |name: &str| Table::new(table_family(family), name);
    [
        HookedChain {
            table: table("nat"),
            hook: "POSTROUTING",
            chain: FLANNEL_POSTROUTING,
            comment: MASQUERADE_COMMENT,
        },
        HookedChain {
            table: table("filter"),
            hook: "FORWARD",
            chain: FLANNEL_FORWARD,
            comment: FORWARD_COMMENT,
        },
    ]
}
