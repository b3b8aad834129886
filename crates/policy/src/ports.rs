//! What pods behind bridges must not send to the others on their bridge: router advertisements, redirects, and answers of a DHCP server. Table
//! `bridge russet-policy`: what a bridge passes on from port to port never meets the chains of `inet russet-policy`.
//!
//! ```text
//! chain prerouting { type filter hook prerouting priority raw; iifname "russ*" goto guard }
//! chain guard      { the rules of guard-icmpv6 and guard-udp of inet russet-policy }
//! ```

use russet_nft::{Chain, ChainKind, CommitError, Hook, Nft, Rule, Table, TableFamily, Transaction, priority};

use crate::error::PolicyError;
use crate::ruleset::{self, PREFIX};

/// The table, as people and errors call it.
pub(crate) const TABLE: &str = "bridge russet-policy";
const PREROUTING: &str = "prerouting";
const GUARD: &str = "guard";

/// Makes the table what it should be; true if it was not.
pub(crate) fn ensure(nft: &mut Nft) -> Result<bool, PolicyError> {
    if is_whole(nft)? {
        return Ok(false);
    }
    let mut transaction = Transaction::new();
    transaction.destroy_table(&table());
    transaction.add_table(&table());
    chains().iter().for_each(|chain| _ = transaction.add_chain(chain));
    rules().iter().for_each(|rule| _ = transaction.add_rule(rule));
    nft.commit(&transaction).map_err(|source| commit("make", source))?;
    Ok(true)
}

/// Takes the table away.
pub(crate) fn withdraw(nft: &mut Nft) -> Result<(), PolicyError> {
    if nft.tables()?.iter().any(|info| info.table == table()) {
        let mut transaction = Transaction::new();
        nft.commit(transaction.delete_table(&table())).map_err(|source| commit("delete", source))?;
    }
    Ok(())
}

fn is_whole(nft: &mut Nft) -> Result<bool, PolicyError> {
    let Some(info) = nft.tables()?.into_iter().find(|info| info.table == table()) else { return Ok(false) };
    let (wanted, chains) = (rules(), chains());
    let found: Vec<Chain> = nft.chains(&table())?.into_iter().map(|info| info.chain).collect();
    if info.dormant || found.len() != chains.len() || !chains.iter().all(|chain| found.contains(chain)) {
        return Ok(false);
    }
    let found = nft.rules(&table())?;
    let same = |chain: &Chain| {
        let found = found.iter().filter(|rule| rule.chain == chain.name).map(|rule| rule.digest);
        found.eq(wanted.iter().filter(|rule| rule.chain() == chain.name).map(Rule::digest))
    };
    Ok(chains.iter().all(same))
}

fn commit(verb: &str, source: CommitError) -> PolicyError {
    PolicyError::Commit { operation: format!("{verb} table {TABLE}"), source }
}

fn table() -> Table {
    Table::new(TableFamily::Bridge, "russet-policy")
}

fn chains() -> [Chain; 2] {
    let prerouting = Chain::base(&table(), PREROUTING, ChainKind::Filter, Hook::Prerouting, priority::RAW);
    [Chain::new(&table(), GUARD), prerouting]
}

fn rules() -> Vec<Rule> {
    let rule = |chain: &str| Rule::of(&table(), chain);
    let mut rules = vec![rule(PREROUTING).iif_prefix(PREFIX).goto(GUARD)];
    rules.extend(ruleset::router_rules(|| rule(GUARD)));
    rules.extend(ruleset::dhcp_rules(|| rule(GUARD)));
    rules
}
