//! Host ports that the reference plugin `portmap` published in nf_tables: chains that iptables-nft keeps there, and tables called `cni_hostport`
//! (versions 0.9 to 1.9 write the same chains, 1.6 and later the tables too).
//!
//! They are evaluated before Russet's rules, so our `portmap` also removes them when it deletes a
//! container or publishes its ports again. Rules of legacy iptables are not in nf_tables:
//! `plugins::portmap` handles those itself.

use std::collections::BTreeSet;

use russet_addr::Family;
use russet_nft::{Nft, RuleInfo, Table, TableFamily, Transaction, Verdict};

use super::{NatError, change};

/// The names under which the reference plugin keeps one container's host ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReferencePorts {
    /// The container's ID: the comment of its rules in the tables.
    pub container: String,
    /// Its chain of port translations in iptables.
    pub dnat_chain: String,
    /// Its chain of source translations, which versions before 0.7 wrote.
    pub snat_chain: String,
}

/// The chain of iptables that leads to the containers' chains of port translations.
pub const REFERENCE_DNAT: &str = "CNI-HOSTPORT-DNAT";
/// The same for source translations.
pub const REFERENCE_SNAT: &str = "CNI-HOSTPORT-SNAT";
/// The table that iptables-nft keeps them in.
const IPTABLES: &str = "nat";
/// The plugin's own table.
const HOSTPORTS: &str = "cni_hostport";
/// The chains of that table that have containers' rules, those of port translations first.
const CHAINS: [&str; 3] = ["hostports", "hostip_hostports", "masquerading"];
const DNAT_CHAINS: [&str; 2] = [CHAINS[0], CHAINS[1]];

/// Removes the rules of the reference plugin for one container, if there are any.
pub fn remove_reference_ports(nft: &mut Nft, ports: &ReferencePorts) -> Result<(), NatError> {
    change(nft, "remove host ports of the reference portmap", &mut |nft| {
        let mut transaction = Transaction::new();
        for family in Family::BOTH {
            let table = table(family, IPTABLES);
            for (parent, chain) in [(REFERENCE_DNAT, &ports.dnat_chain), (REFERENCE_SNAT, &ports.snat_chain)]
            {
                remove_chain(nft, &mut transaction, &table, parent, chain)?;
            }
            for rule in commented(nft, family, &CHAINS, &ports.container)? {
                transaction.delete_rule(&rule.table, &rule.chain, rule.handle);
            }
        }
        Ok(transaction)
    })
}

/// How many port translations of one container can reach addresses of a family.
pub fn count_reference_ports(
    nft: &mut Nft,
    ports: &ReferencePorts,
    family: Family,
) -> Result<usize, NatError> {
    let table = table(family, IPTABLES);
    let mut count = commented(nft, family, &DNAT_CHAINS, &ports.container)?.len();
    if !jumps(nft, &table, REFERENCE_DNAT, &ports.dnat_chain)?.is_empty() {
        count += nft.rules_of(&table, &ports.dnat_chain)?.iter().filter(|rule| translates(rule)).count();
    }
    Ok(count)
}

/// The comments of the rules that lead to containers' chains: [`reference_comment`] reads them.
pub fn reference_comments(nft: &mut Nft) -> Result<BTreeSet<String>, NatError> {
    let mut comments = BTreeSet::new();
    for family in Family::BOTH {
        let rules = nft.rules_of(&table(family, IPTABLES), REFERENCE_DNAT)?;
        comments.extend(rules.into_iter().filter_map(|rule| rule.comment));
    }
    Ok(comments)
}

/// The containers with rules in the plugin's own tables, which do not name the network.
pub fn reference_containers(nft: &mut Nft) -> Result<BTreeSet<String>, NatError> {
    let mut containers = BTreeSet::new();
    for (family, chain) in
        Family::BOTH.into_iter().flat_map(|family| DNAT_CHAINS.map(|chain| (family, chain)))
    {
        let rules = nft.rules_of(&table(family, HOSTPORTS), chain)?;
        containers.extend(rules.into_iter().filter_map(|rule| rule.comment));
    }
    Ok(containers)
}

/// The network and the container in a comment; none if it was cut off at the 255 bytes that
/// iptables stores.
pub fn reference_comment(text: &str) -> Option<(&str, &str)> {
    let rest = text.strip_prefix("dnat name: \"")?;
    let (network, rest) = rest.split_once("\" id: \"")?;
    Some((network, rest.strip_suffix('"')?))
}

fn table(family: Family, name: &str) -> Table {
    let family = match family {
        Family::V4 => TableFamily::Ip,
        Family::V6 => TableFamily::Ip6,
    };
    Table::new(family, name)
}

fn remove_chain(
    nft: &mut Nft,
    transaction: &mut Transaction,
    table: &Table,
    parent: &str,
    chain: &str,
) -> Result<(), NatError> {
    let jumps = jumps(nft, table, parent, chain)?;
    if jumps.is_empty() && nft.chain(table, chain)?.is_none() {
        return Ok(());
    }
    for rule in jumps {
        transaction.delete_rule(table, parent, rule.handle);
    }
    transaction.delete_chain(table, chain);
    Ok(())
}

/// The rules of `parent` that lead to `chain`.
fn jumps(nft: &mut Nft, table: &Table, parent: &str, chain: &str) -> Result<Vec<RuleInfo>, NatError> {
    let mut rules = nft.rules_of(table, parent)?;
    rules.retain(|rule| matches!(&rule.verdict, Some(Verdict::Jump(to) | Verdict::Goto(to)) if to == chain));
    Ok(rules)
}

/// A container's rules in the plugin's own table of a family.
fn commented(
    nft: &mut Nft,
    family: Family,
    chains: &[&str],
    container: &str,
) -> Result<Vec<RuleInfo>, NatError> {
    let mut found = Vec::new();
    for chain in chains {
        let rules = nft.rules_of(&table(family, HOSTPORTS), chain)?;
        found.extend(rules.into_iter().filter(|rule| rule.comment.as_deref() == Some(container)));
    }
    Ok(found)
}

/// Older versions of iptables write an extension where newer ones write nf_tables' own expression.
fn translates(rule: &RuleInfo) -> bool {
    rule.expressions.iter().any(|name| name == "nat" || name == "target DNAT")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_names_network_and_container_unless_it_was_cut_off() {
        assert_eq!(reference_comment(r#"dnat name: "net" id: "web""#), Some(("net", "web")));
        let cut = format!(r#"dnat name: "net" id: "{}..."#, "c".repeat(220));
        for other in ["", "dnat name", r#"name: "net" id: "web""#, &cut] {
            assert_eq!(reference_comment(other), None, "{other}");
        }
    }
}
