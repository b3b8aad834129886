//! What a Felix has in the kernel, or has left there: chains `cali-*` in the tables of iptables, of
//! either flavour, and in its nftables mode the tables `ip calico` and `ip6 calico` (policy.md section
//! 3.4). The agent asks whether they are in force, and removes them when it has replaced Felix.

use russet_addr::Family;
use russet_nft::{Hook, Nft, RuleInfo, Table, Transaction, Verdict};

use super::FirewallError;
use super::command::{Programs, legacy_has};
use super::compat::table_family;
use super::xtables::{Saved, restore};

/// The prefix of Felix's chains in tables of iptables.
pub(crate) const CHAINS: &str = "cali-";
/// The beginning of the comment of each of its rules, which is followed by the rule's hash.
pub(crate) const COMMENTS: &str = "cali:";
/// The chain to which `FORWARD` leads while Felix filters.
const FORWARD_CHAIN: &str = "cali-FORWARD";
const FORWARD: &str = "FORWARD";
/// The table of Felix's nftables mode, of each family.
const OWN_TABLE: &str = "calico";
/// The tables of iptables, the one that filters last: what is allowed stays so while they go.
const TABLES: [&str; 4] = ["raw", "mangle", "nat", "filter"];
const FILTER: &str = "filter";
/// Attempts at a removal that other programs' commits overtake.
const TRIES_MAX: usize = 8;

/// Whether Felix's rules for forwarded packets are in force in the calling thread's network namespace.
pub fn felix_filters() -> Result<bool, FirewallError> {
    let mut nft = Nft::open()?;
    for family in Family::BOTH.map(table_family) {
        let jumps = |rule: &RuleInfo| target(rule) == Some(FORWARD_CHAIN);
        if nft.rules_of(&Table::new(family, FILTER), FORWARD)?.iter().any(jumps) {
            return Ok(true);
        }
        let own = Table::new(family, OWN_TABLE);
        for info in nft.chains(&own)? {
            let is_forward = info.chain.base.as_ref().is_some_and(|base| base.hook == Hook::Forward);
            if is_forward && !nft.rules_of(&own, &info.chain.name)?.is_empty() {
                return Ok(true);
            }
        }
    }
    for family in Family::BOTH {
        if legacy_has(family, FILTER) {
            let text = Programs::legacy(family)?.save(std::iter::once(FILTER))?;
            if Saved::read(&text, FILTER).leads(FORWARD, FORWARD_CHAIN) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Removes what a Felix left: all of nf_tables in one transaction, then each table of legacy iptables
/// in one. `may` is asked before each of them. Returns whether there was anything; sets of addresses
/// stay, which filter nothing by themselves.
pub fn remove_felix(may: &dyn Fn() -> bool) -> Result<bool, FirewallError> {
    let mut removed = false;
    let mut tries = 0;
    let mut nft = Nft::open()?;
    loop {
        let generation = nft.generation()?;
        let mut transaction = removal(&mut nft)?;
        if transaction.is_empty() {
            break;
        }
        if !may() {
            return Ok(removed);
        }
        tries += 1;
        match nft.commit(transaction.only_at(generation)) {
            Ok(()) => {
                removed = true;
                break;
            }
            Err(error) if error.is_stale() && tries < TRIES_MAX => {}
            Err(error) => return Err(error.into()),
        }
    }
    for (family, table) in Family::BOTH.into_iter().flat_map(|family| TABLES.map(|table| (family, table))) {
        if !legacy_has(family, table) {
            continue;
        }
        let programs = Programs::legacy(family)?;
        let edits = Saved::read(&programs.save(std::iter::once(table))?, table).without(CHAINS, COMMENTS);
        if edits.is_empty() {
            continue;
        }
        if !may() {
            return Ok(removed);
        }
        programs.restore(&restore(table, &edits))?;
        removed = true;
    }
    Ok(removed)
}

/// The transaction that removes all of it from nf_tables.
fn removal(nft: &mut Nft) -> Result<Transaction, FirewallError> {
    let mut transaction = Transaction::new();
    let there: Vec<Table> = nft.tables()?.into_iter().map(|info| info.table).collect();
    for family in Family::BOTH.map(table_family) {
        for table in TABLES.map(|name| Table::new(family, name)).iter().filter(|it| there.contains(it)) {
            let chains = nft.chains(table)?.into_iter().map(|info| info.chain.name);
            let own: Vec<String> = chains.filter(|name| name.starts_with(CHAINS)).collect();
            for rule in nft.rules(table)?.iter().filter(|rule| !rule.chain.starts_with(CHAINS)) {
                let is_marked = rule.comment.as_ref().is_some_and(|text| text.starts_with(COMMENTS));
                if is_marked || target(rule).is_some_and(|chain| chain.starts_with(CHAINS)) {
                    transaction.delete_rule(table, &rule.chain, rule.handle);
                }
            }
            // They lead to each other: all are empty before the first goes.
            own.iter().for_each(|chain| _ = transaction.flush_chain(table, chain));
            own.iter().for_each(|chain| _ = transaction.delete_chain(table, chain));
        }
        let own = Table::new(family, OWN_TABLE);
        if there.contains(&own) {
            transaction.delete_table(&own);
        }
    }
    Ok(transaction)
}

fn target(rule: &RuleInfo) -> Option<&str> {
    rule.verdict.as_ref().and_then(Verdict::chain)
}

#[cfg(test)]
mod tests {
    use russet_testkit::{in_netns_with_loopback, run, succeeds};

    use super::*;

    /// What Felix makes of one family in tables of iptables, with a rule of another program.
    const CHAINS_OF_FELIX: &str = "*filter
:cali-FORWARD - [0:0]
:cali-from-wl-dispatch - [0:0]
-A FORWARD -m comment --comment \"cali:wUHhoiAYhphO9Mso\" -j cali-FORWARD
-A FORWARD -m comment --comment \"cali:S93hcgKJrXEqnTfs\" -m comment --comment \"Policy explicitly accepted packet.\" -m mark --mark 0x10000/0x10000 -j ACCEPT
-A FORWARD -s 192.0.2.1/32 -j DROP
-A cali-FORWARD -i cali+ -m comment --comment \"cali:8ZoYfO5HKXWbB3pk\" -j cali-from-wl-dispatch
-A cali-from-wl-dispatch -m comment --comment \"cali:zTj6P0TIgYvgz-md\" -j DROP
COMMIT
*nat
:cali-nat-outgoing - [0:0]
-A POSTROUTING -m comment --comment \"cali:O3lYWMrLQYEMJtB5\" -j cali-nat-outgoing
COMMIT
";

    fn restore_with(program: &str) {
        let script = format!("{program} --noflush <<'END'\n{CHAINS_OF_FELIX}END");
        run("sh", &["-c", &script]);
    }

    #[test]
    #[ignore = "kernel: nf_tables, root; tools: iptables, nft"]
    fn what_felix_left_is_removed_from_both_flavours_and_nothing_else() {
        in_netns_with_loopback(|| {
            assert!(!felix_filters().unwrap());
            assert!(!remove_felix(&|| true).unwrap(), "there is nothing");
            for flavour in ["nft", "legacy"] {
                restore_with(&format!("iptables-{flavour}-restore"));
                assert!(felix_filters().unwrap(), "{flavour}");
                assert!(!remove_felix(&|| false).unwrap());
                assert!(felix_filters().unwrap(), "it was not allowed");
                assert!(remove_felix(&|| true).unwrap());
                let left = run(&format!("iptables-{flavour}-save"), &[]);
                assert!(
                    !left.contains("cali") && left.contains("-A FORWARD -s 192.0.2.1/32 -j DROP"),
                    "{left}"
                );
                assert!(!felix_filters().unwrap() && !remove_felix(&|| true).unwrap());
            }
            for family in ["ip", "ip6"] {
                run(
                    "nft",
                    &[&format!(
                        "add table {family} calico; add chain {family} calico filter-FORWARD {{ type filter hook forward priority 0; }}"
                    )],
                );
                assert!(!felix_filters().unwrap(), "a chain without a rule");
                run("nft", &[&format!("add rule {family} calico filter-FORWARD drop")]);
                assert!(felix_filters().unwrap());
                assert!(remove_felix(&|| true).unwrap());
                assert!(!succeeds(&format!("nft list table {family} calico")));
            }
        });
    }
}
