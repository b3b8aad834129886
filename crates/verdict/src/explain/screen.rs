//! An explanation as text that fits a screen.

use std::fmt::{self, Write as _};
use std::net::IpAddr;

use super::{Explanation, Nearest, Probe, names, why};
use crate::evaluator::{EndTrace, Mismatch, PolicyTrace};
use crate::ir::{Direction, TierDefault};

/// Of a policy, so many rules that do not match are shown.
const RULES_SHOWN: usize = 4;
/// Of a tier, so many policies are shown.
const POLICIES_SHOWN: usize = 5;

impl fmt::Display for Explanation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flow = &self.trace.flow;
        let probe = Probe { protocol: flow.protocol, port: flow.destination_port };
        let (source, destination) = (self.subject(flow.source), self.subject(flow.destination));
        match self.denied_at() {
            None => line(f, format_args!("{source} -> {destination} {probe}: ALLOWED"))?,
            Some(end) => {
                let found = self.snapshot.workload_at(self.address(end.direction));
                let node = found.map(|(_, it)| &*it.node).filter(|node| !node.is_empty());
                let node = node.map(|node| format!("at node {node}, ")).unwrap_or_default();
                let at = format!("{node}{} of {}", side(end.direction), self.name(end.direction));
                line(f, format_args!("{source} -> {destination} {probe}: DENIED {at}"))?;
            }
        }
        for end in [&self.trace.egress, &self.trace.ingress] {
            let verdict = if end.allowed { "ALLOWED" } else { "DENIED" };
            let side = format!("{} of {}", side(end.direction), self.name(end.direction));
            let logged = if end.logged { "; logged" } else { "" };
            line(f, format_args!("  {side:<32}  {verdict:<7}  {}{logged}", self.reason(end)))?;
            if !end.allowed {
                self.write_tiers(f, end)?;
            }
        }
        for nearest in &self.nearest {
            self.write_nearest(f, nearest)?;
        }
        self.notes.iter().try_for_each(|note| line(f, format_args!("  note: {note}")))
    }
}

impl Explanation<'_> {
    fn write_tiers(&self, f: &mut fmt::Formatter<'_>, end: &EndTrace) -> fmt::Result {
        for tier in &end.tiers {
            let action = if tier.default_action == TierDefault::Deny { "denies" } else { "passes" };
            line(f, format_args!("    tier {} ({action} at its end)", tier.name))?;
            // The last policy is the one that decided, if one did.
            let hidden = tier.policies.len().saturating_sub(POLICIES_SHOWN);
            if hidden > 0 {
                writeln!(f, "      {hidden} more policies, of which no rule matches")?;
            }
            for asked in tier.policies.iter().skip(hidden) {
                self.write_policy(f, end.direction, asked)?;
            }
        }
        Ok(())
    }

    fn write_policy(
        &self,
        f: &mut fmt::Formatter<'_>,
        direction: Direction,
        asked: &PolicyTrace,
    ) -> fmt::Result {
        line(f, format_args!("      {}", names::policy(&asked.policy)))?;
        let rules = asked.policy.rules(direction);
        if rules.is_empty() {
            let (name, side) = (self.name(direction), side(direction));
            line(f, format_args!("        it selects {name} and has no rules for {side}"))?;
        }
        let hidden = asked.rules.len().saturating_sub(RULES_SHOWN);
        if hidden > 0 {
            writeln!(f, "        {hidden} more rules, which do not match")?;
        }
        for (rule, mismatch) in rules.iter().zip(&asked.rules).skip(hidden) {
            match mismatch {
                None => line(f, format_args!("        {} {:?}: matches", rule.path, rule.action))?,
                Some(mismatch) => {
                    let clause = why::clause(self.snapshot, rule, &self.trace.flow, *mismatch);
                    line(f, format_args!("        {} {:?}: {clause}", rule.path, rule.action))?;
                }
            }
        }
        Ok(())
    }

    fn write_nearest(&self, f: &mut fmt::Formatter<'_>, nearest: &Nearest) -> fmt::Result {
        let policy = names::policy(&nearest.policy);
        let member = why::member(nearest.mismatch);
        line(f, format_args!("  nearest allow: {} of {policy}, if {member} matched", self.path(nearest)))
    }

    pub(super) fn path(&self, nearest: &Nearest) -> String {
        let rule = nearest.policy.rules(nearest.direction).get(nearest.index);
        rule.map_or_else(String::new, |rule| rule.path.to_string())
    }

    pub(super) fn clause(&self, nearest: &Nearest) -> String {
        let rule = nearest.policy.rules(nearest.direction).get(nearest.index);
        let clause = |mismatch: Mismatch| {
            rule.map(|rule| why::clause(self.snapshot, rule, &self.trace.flow, mismatch)).unwrap_or_default()
        };
        clause(nearest.mismatch)
    }

    fn name(&self, direction: Direction) -> String {
        names::at(self.snapshot, self.address(direction))
    }

    /// The name of an address, the address, and where it is.
    fn subject(&self, address: IpAddr) -> String {
        let name = names::at(self.snapshot, address);
        match self.snapshot.workload_at(address) {
            Some((_, endpoint)) if endpoint.node.is_empty() => format!("{name} ({address})"),
            Some((_, endpoint)) => format!("{name} ({address}, node {})", endpoint.node),
            None if name == address.to_string() => name,
            None => format!("{name} ({address})"),
        }
    }
}

/// Writes one line. Names and labels come from files and datastores: what would begin another line, or
/// move a terminal's cursor, is escaped.
fn line(f: &mut fmt::Formatter<'_>, text: fmt::Arguments<'_>) -> fmt::Result {
    for character in text.to_string().chars() {
        match character.is_control() {
            true => write!(f, "{}", character.escape_default())?,
            false => f.write_char(character)?,
        }
    }
    f.write_char('\n')
}

/// The word for a direction.
pub(super) fn side(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    }
}
