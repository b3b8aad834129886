//! Foreign chains that drop forwarded packets: Docker and ufw set the policy of FORWARD to drop,
//! firewalld ends its chain with a reject. An accept in our own table does not help, because every
//! chain at the hook must let a packet pass. So marked accepts go into those chains, and are
//! maintained there.
//!
//! In the tables of iptables-nft they are written as `iptables` would read them: addresses, counter, verdict, comment.

use std::collections::BTreeSet;

use russet_addr::Family;
use russet_nft::{
    ChainInfo, ChainKind, Hook, NetlinkError, Nft, Policy, Rule, RuleInfo, Table, TableFamily, TableInfo,
    Verdict,
};

use super::gate::{self, DOCKER_USER, FLANNEL_FORWARD, Gate, Kind};
use super::native::{self, Change};
use super::rules::{self, Line, Side};
use super::{FirewallError, Repair, Role, RulesetSnapshot, Wanted};

/// The table of Russet's own agent, whose drops are intended.
const RUSSET: &str = "russet";
/// The kernel's names of expressions that log, and of those that reject.
const LOGS: [&str; 3] = ["log", "target LOG", "target NFLOG"];
const REJECTS: [&str; 2] = ["reject", "target REJECT"];

/// The chains that forwarded packets pass through, except our own: any change in them matters.
pub(crate) fn watched(snapshot: &RulesetSnapshot) -> BTreeSet<(Table, String)> {
    let names = snapshot.chains.iter().filter(|info| is_gate(info) || is_docker_user(info));
    names.map(|info| (info.chain.table.clone(), info.chain.name.clone())).collect()
}

/// The change that brings one foreign table to `wanted`.
pub(crate) fn difference(
    nft: &mut Nft,
    snapshot: &RulesetSnapshot,
    table: &TableInfo,
    wanted: &Wanted,
    role: Role,
) -> Result<Change, FirewallError> {
    let mut change = Change::default();
    let mark = role.mark();
    let kind = |rule: &RuleInfo| kind(rule, mark);
    let lines = forward(wanted, table.table.family);
    let mut closed = false;
    for info in snapshot.chains.iter().filter(|info| info.chain.table == table.table && is_gate(info)) {
        let rules = nft.rules_of(&table.table, &info.chain.name)?;
        let mut rules_of = |chain: &str| -> Result<Vec<Kind>, NetlinkError> {
            Ok(nft.rules_of(&table.table, chain)?.iter().map(kind).collect())
        };
        let kinds = gate::follow(rules.iter().map(kind).collect(), &mut rules_of)?;
        let drops = info.chain.base.as_ref().is_some_and(|base| base.policy == Policy::Drop);
        let gate = if table.dormant { Gate::Open } else { Gate::from_rules(&kinds, drops) };
        // Independent of Docker's own jump, which may not exist yet while Docker starts.
        closed |= gate != Gate::Open;
        let accepted = role.is_iptables() && gate.passes(&kinds, FLANNEL_FORWARD);
        let (lines, before) = match gate {
            Gate::Closed { before } if !accepted => (lines.as_slice(), before),
            _ => (&[][..], None),
        };
        settle(info, &rules, lines, before, mark, &mut change);
    }
    for info in snapshot.chains.iter().filter(|info| info.chain.table == table.table && is_docker_user(info))
    {
        // Docker's rules drop packets that reach one of its bridges from elsewhere, even if that
        // bridge is the pods'.
        let rules = nft.rules_of(&table.table, &info.chain.name)?;
        let kinds: Vec<Kind> = rules.iter().map(kind).collect();
        let towards_pods: Vec<Line> =
            lines.iter().filter(|line| closed && line.source == Side::Any).cloned().collect();
        settle(info, &rules, &towards_pods, gate::before_return(&kinds), mark, &mut change);
    }
    match table.owner {
        Some(_) if !change.transaction.is_empty() => Err(FirewallError::Owned(table.table.clone())),
        _ => Ok(change),
    }
}

/// Puts the accepts into one chain, before the rule with the index `before`, unless they are there.
fn settle(
    info: &ChainInfo,
    rules: &[RuleInfo],
    lines: &[Line],
    before: Option<usize>,
    mark: &str,
    change: &mut Change,
) {
    let chain = &info.chain;
    let wanted: Vec<Rule> = lines.iter().map(|line| accept(&chain.table, &chain.name, line, mark)).collect();
    let ours: Vec<(usize, &RuleInfo)> =
        rules.iter().enumerate().filter(|(_, rule)| kind(rule, mark) == Kind::Ours).collect();
    let same = ours.iter().map(|(_, rule)| rule.digest).eq(wanted.iter().map(Rule::digest));
    let reached = ours.iter().all(|(index, _)| before.is_none_or(|before| *index < before));
    if same && reached {
        return;
    }
    let end = before.and_then(|before| rules.get(before)).map(|rule| rule.handle);
    for rule in &wanted {
        match end {
            Some(handle) => change.transaction.insert_rule_before(handle, rule),
            None => change.transaction.add_rule(rule),
        };
    }
    for (_, rule) in ours {
        change.transaction.delete_rule(&chain.table, &chain.name, rule.handle);
    }
    let (table, chain) = (chain.table.clone(), chain.name.clone());
    change.repairs.push(if wanted.is_empty() {
        Repair::Withdrawn { table, chain }
    } else {
        Repair::Accepted { table, chain }
    });
}

fn accept(table: &Table, chain: &str, line: &Line, mark: &str) -> Rule {
    native::addresses(Rule::in_chain(table, chain), line).counter().accept().comment(mark)
}

fn forward(wanted: &Wanted, family: TableFamily) -> Vec<Line> {
    let families: &[Family] = match family {
        TableFamily::Ip => &[Family::V4],
        TableFamily::Ip6 => &[Family::V6],
        TableFamily::Inet => &Family::BOTH,
        _ => &[],
    };
    families.iter().flat_map(|family| rules::forward(wanted, *family)).collect()
}

fn is_foreign(table: &Table) -> bool {
    matches!(table.family, TableFamily::Ip | TableFamily::Ip6 | TableFamily::Inet)
        && table.name != RUSSET
        && !native::tables().contains(table)
}

fn is_gate(info: &ChainInfo) -> bool {
    let base = info.chain.base.as_ref();
    is_foreign(&info.chain.table)
        && base.is_some_and(|base| base.kind == ChainKind::Filter && base.hook == Hook::Forward)
}

fn is_docker_user(info: &ChainInfo) -> bool {
    is_foreign(&info.chain.table) && info.chain.base.is_none() && info.chain.name == DOCKER_USER
}

/// The effect of a rule on an arbitrary packet.
fn kind(rule: &RuleInfo, mark: &str) -> Kind {
    if rule.comment.as_deref() == Some(mark) {
        return Kind::Ours;
    }
    let mut kind = Kind::Other;
    for expression in &rule.expressions {
        match expression.as_str() {
            "counter" | "match comment" => {}
            name if LOGS.contains(&name) => kind = Kind::Logs,
            name if REJECTS.contains(&name) => kind = Kind::Drops,
            // `limit` before `log` still counts as a log, because the limit only skips logging. It
            // does not when a verdict or a reject follows.
            "limit" | "match limit" if rule.verdict.is_none() && has(rule, &LOGS) && !has(rule, &REJECTS) => {
            }
            "immediate" => {
                kind = match &rule.verdict {
                    Some(Verdict::Accept) => Kind::Accepts,
                    Some(Verdict::Drop) => Kind::Drops,
                    Some(Verdict::Return) => Kind::Returns,
                    Some(Verdict::Jump(chain)) => Kind::Jumps(chain.clone()),
                    Some(Verdict::Goto(chain)) => Kind::Goes(chain.clone()),
                    _ => return Kind::Other,
                }
            }
            _ => return Kind::Other,
        }
    }
    kind
}

fn has(rule: &RuleInfo, names: &[&str]) -> bool {
    rule.expressions.iter().any(|name| names.contains(&name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(expressions: &[&str], verdict: Option<Verdict>) -> Kind {
        let rule = RuleInfo {
            table: Table { family: TableFamily::Inet, name: "t".to_owned() },
            chain: "forward".to_owned(),
            handle: 1,
            comment: None,
            expressions: expressions.iter().map(|name| (*name).to_owned()).collect(),
            verdict,
            packets: None,
            digest: 0,
        };
        kind(&rule, "ours")
    }

    #[test]
    fn a_limit_leaves_packets_out_of_a_log_and_out_of_a_reject() {
        assert_eq!(kind_of(&["limit", "log"], None), Kind::Logs);
        assert_eq!(kind_of(&["match limit", "target LOG"], None), Kind::Logs);
        assert_eq!(kind_of(&["log", "reject"], None), Kind::Drops);
        assert_eq!(kind_of(&["limit", "log", "reject"], None), Kind::Other);
        assert_eq!(kind_of(&["match limit", "target LOG", "target REJECT"], None), Kind::Other);
        assert_eq!(kind_of(&["limit", "log", "immediate"], Some(Verdict::Drop)), Kind::Other);
    }
}
