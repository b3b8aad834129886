//! The table `nat` of legacy iptables, which is not in nf_tables. `plugins::portmap` removes rules
//! there that another host port plugin left.

use russet_addr::Family;

use super::FirewallError;
use super::command::{Programs, legacy_has};

const NAT: &str = "nat";

/// The table as `iptables-save` prints it; none where this network namespace has no such table.
pub fn legacy_nat(family: Family) -> Result<Option<String>, FirewallError> {
    if !legacy_has(family, NAT) {
        return Ok(None);
    }
    Programs::legacy(family)?.save(std::iter::once(NAT)).map(Some)
}

/// Applies what `iptables-restore --noflush` reads, all of it or nothing.
pub fn change_legacy_nat(family: Family, changes: &str) -> Result<(), FirewallError> {
    Programs::legacy(family)?.restore(changes)
}
