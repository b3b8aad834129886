//! The reference plugin's chains in legacy iptables, read and removed by the legacy programs, and
//! only in a network namespace that has such a table.

use std::collections::BTreeSet;

use russet_addr::Family;
use russet_attach::nat::REFERENCE_DNAT;
use russet_cni_spec::CniError;
use russet_overlay::firewall::{FirewallError, change_legacy_nat, legacy_nat};
use russet_wiring::failure;

/// Attempts at a change that fails if the table has changed since it was read.
const MAX_TRIES: usize = 3;

/// Removes the chains and the rules that jump to them; that there are none is success.
pub fn remove(chains: &BTreeSet<String>) -> Result<(), CniError> {
    Family::BOTH.into_iter().try_for_each(|family| remove_of(family, chains))
}

fn remove_of(family: Family, chains: &BTreeSet<String>) -> Result<(), CniError> {
    let mut tries = 0;
    loop {
        let Some(changes) = removal(&saved(family)?, chains) else { return Ok(()) };
        tries += 1;
        match change_legacy_nat(family, &changes) {
            Ok(()) => return Ok(()),
            Err(FirewallError::Program { .. }) if tries < MAX_TRIES => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

/// The comments of the rules that jump to containers' chains.
pub fn comments() -> Result<BTreeSet<String>, CniError> {
    let mut comments = BTreeSet::new();
    for family in Family::BOTH {
        comments.extend(rules(&saved(family)?, REFERENCE_DNAT).filter_map(comment));
    }
    Ok(comments)
}

/// The number of port translations of a family in the chain, if packets reach it.
pub fn count(chain: &str, family: Family) -> Result<usize, CniError> {
    let saved = saved(family)?;
    let reached = rules(&saved, REFERENCE_DNAT).any(|rule| leads_to(rule) == Some(chain));
    Ok(if reached { rules(&saved, chain).filter(|rule| rule.contains(" -j DNAT ")).count() } else { 0 })
}

/// The table; empty if there is none. Without the programs the table can be neither read nor
/// changed, and a DEL must succeed all the same.
fn saved(family: Family) -> Result<String, CniError> {
    match legacy_nat(family) {
        Ok(table) => Ok(table.unwrap_or_default()),
        Err(FirewallError::Missing { program }) => {
            tracing::warn!(
                program,
                "host ports of another portmap in legacy iptables cannot be looked for: the program is not installed"
            );
            Ok(String::new())
        }
        Err(error) => Err(failed(error)),
    }
}

fn failed(error: FirewallError) -> CniError {
    CniError::new(
        failure::WIRING,
        "portmap: host ports of another portmap are in legacy iptables and could not be removed",
        error,
    )
}

/// Input for `iptables-restore` that removes the chains; `None` if the table has none of them.
fn removal(saved: &str, chains: &BTreeSet<String>) -> Option<String> {
    let declared = saved.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
    let there: Vec<&str> = declared.filter(|name| chains.contains(*name)).collect();
    if there.is_empty() {
        return None;
    }
    let mut changes = "*nat\n".to_owned();
    let jumps = saved.lines().filter_map(|line| line.strip_prefix("-A "));
    for rule in jumps.filter(|rule| leads_to(rule).is_some_and(|to| there.contains(&to))) {
        changes.push_str(&format!("-D {rule}\n"));
    }
    for name in there {
        changes.push_str(&format!("-F {name}\n-X {name}\n"));
    }
    changes.push_str("COMMIT\n");
    Some(changes)
}

/// The rules of a chain, without the leading chain name.
fn rules<'a>(saved: &'a str, chain: &str) -> impl Iterator<Item = &'a str> {
    let begin = format!("-A {chain} ");
    saved.lines().filter_map(move |line| line.strip_prefix(&begin))
}

/// The chain that a rule jumps to.
fn leads_to(rule: &str) -> Option<&str> {
    rule.rsplit_once(" -j ").map(|(_, to)| to)
}

/// A rule's comment without the quoting of `iptables-save`.
fn comment(rule: &str) -> Option<String> {
    let (_, rest) = rule.split_once("--comment \"")?;
    let mut text = String::new();
    let mut chars = rest.chars();
    loop {
        match chars.next()? {
            '"' => return Some(text),
            '\\' => text.push(chars.next()?),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &str = include_str!("recorded/iptables.v4");

    #[test]
    fn a_removal_contains_the_chain_and_its_jumps_and_no_other_rule() {
        let chain = "CNI-DN-437252eec243bd2aa31b9";
        assert_eq!(removal(SAVED, &BTreeSet::from(["CNI-DN-0".to_owned()])), None);
        let changes = removal(SAVED, &BTreeSet::from([chain.to_owned()])).unwrap();
        let lines: Vec<&str> = changes.lines().collect();
        assert_eq!(lines.len(), 6, "{changes}");
        assert!(
            lines[1].starts_with("-D CNI-HOSTPORT-DNAT -p tcp") && lines[2].contains("--dports 8053"),
            "{changes}"
        );
        assert_eq!(lines[3..], [format!("-F {chain}"), format!("-X {chain}"), "COMMIT".to_owned()]);
    }

    #[test]
    fn a_comment_is_read_as_it_was_written() {
        let rule = rules(SAVED, REFERENCE_DNAT).next().unwrap();
        assert_eq!(comment(rule).as_deref(), Some(r#"dnat name: "net" id: "web""#));
        assert_eq!(comment("-j ACCEPT"), None);
    }
}
