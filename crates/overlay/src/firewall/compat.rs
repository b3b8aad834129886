//! Reconciles the tables of iptables: flannel's own chains in mode iptables, none of them in mode
//! nftables, and accepts where legacy iptables drops forwarded packets.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use russet_addr::Family;
use russet_nft::{NetlinkError, Nft, Table, TableFamily};

use super::command::{Programs, legacy_has};
use super::gate::FLANNEL_FORWARD;
use super::xtables::{self, FLANNEL_POSTROUTING, Goal, Saved};
use super::{FirewallError, FirewallReport, Mode, Repair, Role, Wanted};

/// Cached knowledge about iptables on this host.
#[derive(Debug, Default)]
pub(crate) struct Compat {
    /// Earlier inputs, whose rules may still be there.
    old: Vec<Wanted>,
    installed: BTreeMap<Family, Programs>,
    legacy: BTreeMap<Family, Programs>,
    /// Families whose legacy rules cannot be read because the programs are missing.
    unseen: BTreeSet<Family>,
    /// Fingerprint of the chains in nf_tables when iptables last found them correct.
    proven: BTreeMap<Family, (u64, Wanted)>,
}

/// Number of earlier inputs that are remembered: a daemon reads one from subnet.env and makes few
/// itself.
const OLD_MAX: usize = 16;
/// One attempt repairs and the next confirms it.
const REPAIR_ATTEMPTS: usize = 2;

// === impl Compat ===

impl Compat {
    /// Finds the programs; fails if there are none.
    pub(crate) fn require(&mut self) -> Result<(), FirewallError> {
        let v4 = self.installed(Family::V4).map(|_| ());
        v4.or_else(|error| self.installed(Family::V6).map(|_| ()).map_err(|_| error))
    }

    pub(crate) fn remember(&mut self, old: &Wanted) {
        self.proven.clear();
        self.old.retain(|known| known != old);
        self.old.push(old.clone());
        if self.old.len() > OLD_MAX {
            self.old.remove(0);
        }
    }

    /// Whether the programs named `iptables` keep their rules in nf_tables. True if there are no
    /// programs.
    pub(crate) fn is_nft(&mut self) -> bool {
        Family::BOTH.iter().all(|family| self.installed(*family).map_or(true, |found| found.abilities.nft))
    }

    /// Reconciles flannel's chains, by the installed programs.
    pub(crate) fn chains(&mut self, nft: &mut Nft, wanted: &Wanted, report: &mut FirewallReport) {
        for family in Family::BOTH {
            let needed = wanted.networks.iter().any(|net| Family::of_net(net) == family);
            if !needed && is_untouched(nft, family) {
                continue;
            }
            match self.chains_of(nft, family, wanted, report) {
                Err(FirewallError::Missing { .. }) if !needed => {}
                Err(error) => report.failed.push(error),
                Ok(()) => {}
            }
        }
    }

    fn chains_of(
        &mut self,
        nft: &mut Nft,
        family: Family,
        wanted: &Wanted,
        report: &mut FirewallReport,
    ) -> Result<(), FirewallError> {
        let programs = self.installed(family)?.clone();
        let legacy = !programs.abilities.nft;
        let print = if legacy { None } else { Some(fingerprint(nft, family)?) };
        let proven = self.proven.get(&family);
        if proven.is_some_and(|(known, was)| Some(*known) == print && was == wanted) {
            return Ok(());
        }
        let goals = Goal::both(wanted, family, programs.abilities.modern, &self.old);
        settle(&programs, &goals, report, |goal, saved| {
            let edits = goal.edits(saved);
            if legacy && goal.table == "filter" && edits.is_empty() {
                // Evaluated after flannel's jump is in place, because that may suffice.
                return xtables::accepts(saved, wanted, family, Role::Flannel(Mode::Iptables), true);
            }
            edits
        })?;
        // A change after the fingerprint was taken must be seen by the next call.
        self.proven.extend(print.map(|print| (family, (print, wanted.clone()))));
        Ok(())
    }

    /// Removes rules of flannel's old versions from the tables of iptables-nft, where no comment
    /// identifies them.
    pub(crate) fn sweep(&mut self, tables: &[Table], report: &mut FirewallReport) {
        for family in Family::BOTH {
            let mut goals = Goal::both(&Wanted::default(), family, false, &self.old).to_vec();
            goals.retain(|goal| tables.contains(&Table::new(table_family(family), goal.table)));
            if goals.is_empty() {
                continue;
            }
            // Without the programs, rules cannot be matched by their addresses; their chains are
            // removed already.
            let Ok(programs) = self.installed(family).cloned() else { continue };
            if !programs.abilities.nft {
                continue;
            }
            if let Err(error) = settle(&programs, &goals, report, Goal::edits) {
                report.failed.push(error);
            }
        }
    }

    /// Reconciles the tables of legacy iptables, where they exist and `chains` does not cover them.
    pub(crate) fn legacy(&mut self, wanted: &Wanted, role: Role, report: &mut FirewallReport) {
        for family in Family::BOTH {
            let mut goals = Goal::both(&Wanted::default(), family, false, &self.old).to_vec();
            goals.retain(|goal| legacy_has(family, goal.table));
            if role == Role::Agent {
                goals.retain(|goal| goal.table == "filter");
            }
            if goals.is_empty() {
                continue;
            }
            if role.is_iptables() && self.installed(family).is_ok_and(|found| !found.abilities.nft) {
                continue;
            }
            let done = self.legacy_programs(family).cloned().and_then(|programs| {
                settle(&programs, &goals, report, |goal, saved| {
                    let mut edits = if role == Role::Agent { Vec::new() } else { goal.edits(saved) };
                    if goal.table == "filter" {
                        edits.extend(xtables::accepts(saved, wanted, family, role, false));
                    }
                    edits
                })
            });
            match done {
                Ok(()) => drop(self.unseen.remove(&family)),
                // Reported once, not at every comparison.
                Err(FirewallError::Missing { program }) => {
                    if self.unseen.insert(family) {
                        report.failed.push(FirewallError::Unseen { program });
                    }
                }
                Err(error) => report.failed.push(error),
            }
        }
    }

    fn installed(&mut self, family: Family) -> Result<&Programs, FirewallError> {
        found(&mut self.installed, family, Programs::installed)
    }

    fn legacy_programs(&mut self, family: Family) -> Result<&Programs, FirewallError> {
        found(&mut self.legacy, family, Programs::legacy)
    }
}

/// Looks for programs at the first need, and again while they are missing.
fn found(
    known: &mut BTreeMap<Family, Programs>,
    family: Family,
    find: fn(Family) -> Result<Programs, FirewallError>,
) -> Result<&Programs, FirewallError> {
    use std::collections::btree_map::Entry;
    Ok(match known.entry(family) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => entry.insert(find(family)?),
    })
}

/// Reads the tables, repairs them, and reads them again.
fn settle(
    programs: &Programs,
    goals: &[Goal],
    report: &mut FirewallReport,
    edits: impl Fn(&Goal, &Saved) -> Vec<String>,
) -> Result<(), FirewallError> {
    for attempt in 0..=REPAIR_ATTEMPTS {
        let saved = programs.save(goals.iter().map(|goal| goal.table))?;
        let left = goals.iter().map(|goal| (goal.table, edits(goal, &Saved::read(&saved, goal.table))));
        let left: Vec<(&'static str, Vec<String>)> = left.filter(|(_, edits)| !edits.is_empty()).collect();
        let Some((table, first)) = left.first() else { return Ok(()) };
        if attempt == REPAIR_ATTEMPTS {
            let edit = first.first().cloned().unwrap_or_default();
            return Err(FirewallError::Unsettled { program: programs.name("-restore"), table, edit });
        }
        let changes: String = left.iter().map(|(table, edits)| xtables::restore(table, edits)).collect();
        programs.restore(&changes)?;
        let repair = |(table, _)| Repair::Iptables { program: programs.name(""), table };
        report.repaired.extend(left.into_iter().map(repair));
    }
    Ok(())
}

/// Hash of the rules that `chains` maintains, where they are in nf_tables. Computing it is cheaper
/// than a program that lists all rules of a node with thousands of services.
fn fingerprint(nft: &mut Nft, family: Family) -> Result<u64, NetlinkError> {
    let mut hash = DefaultHasher::new();
    for (table, chains) in
        [("nat", ["POSTROUTING", FLANNEL_POSTROUTING]), ("filter", ["FORWARD", FLANNEL_FORWARD])]
    {
        let table = Table::new(table_family(family), table);
        for chain in chains {
            for rule in nft.rules_of(&table, chain)? {
                (chain, rule.handle, rule.digest, rule.comment).hash(&mut hash);
            }
        }
    }
    Ok(hash.finish())
}

/// Whether neither flavour of iptables has tables of this family that could hold flannel's rules.
fn is_untouched(nft: &mut Nft, family: Family) -> bool {
    fingerprint(nft, family).is_ok_and(|print| print == DefaultHasher::new().finish())
        && !["nat", "filter"].iter().any(|table| legacy_has(family, table))
}

pub(crate) fn table_family(family: Family) -> TableFamily {
    match family {
        Family::V4 => TableFamily::Ip,
        Family::V6 => TableFamily::Ip6,
    }
}
