//! Finds out which modes have flannel's rules in force, whichever program made them: a daemon that
//! takes over from flannel keeps its mode.

use russet_addr::Family;
use russet_nft::Nft;

use super::command::{Programs, legacy_has};
use super::gate::FLANNEL_FORWARD;
use super::xtables::FLANNEL_POSTROUTING;
use super::{FirewallError, Mode, RulesetSnapshot, leftovers, native};

/// Looks for flannel's tables in nf_tables, and for its chains in iptables of either flavour, in
/// the calling thread's namespace. Changes nothing. Rules of versions without chains are not
/// recognised.
pub fn survey() -> Result<Vec<Mode>, FirewallError> {
    let mut modes = Vec::new();
    let mut nft = Nft::open()?;
    let mut chains = legacy()?;
    // A kernel without nf_tables has nothing there.
    if nft.generation().is_ok() {
        let snapshot = RulesetSnapshot::read(&mut nft)?;
        if snapshot.tables.iter().any(|info| native::tables().contains(&info.table)) {
            modes.push(Mode::Nft);
        }
        let mut wanted = Family::BOTH.into_iter().flat_map(leftovers::chains);
        chains |= wanted.any(|(table, name)| {
            snapshot.chains.iter().any(|info| info.chain.table == table && info.chain.name == name)
        });
    }
    if chains {
        modes.push(Mode::Iptables);
    }
    Ok(modes)
}

fn legacy() -> Result<bool, FirewallError> {
    for family in Family::BOTH {
        for (table, chain) in [("nat", FLANNEL_POSTROUTING), ("filter", FLANNEL_FORWARD)] {
            if legacy_has(family, table) {
                let saved = Programs::legacy(family)?.save(std::iter::once(table))?;
                let declared = format!(":{chain} ");
                if saved.lines().any(|line| line.starts_with(&declared)) {
                    return Ok(true);
                }
            }
        }
    }
    Ok(false)
}
