//! Decides whether a foreign chain lets pods' packets pass, and where an accept must be inserted if
//! not. Pure; `foreign` feeds it from nf_tables, `xtables` from the output of iptables.
//!
//! The accept goes as far to the end as possible: foreign rules decide first, and ours precedes
//! only the rule that would drop everything.

/// The effect of a rule on an arbitrary packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One of our own accepts.
    Ours,
    /// Depends on the packet, or changes it.
    Other,
    /// Writes every packet into a log.
    Logs,
    /// Accepts every packet.
    Accepts,
    /// Drops or rejects every packet.
    Drops,
    /// Sends every packet back to where it came from.
    Returns,
    /// Sends every packet through a chain.
    Jumps(String),
    /// Sends every packet into a chain, from which those that it does not decide do not come back here.
    Goes(String),
    /// Like `Goes`, into a chain known to decide for some packets only.
    Leaves,
    /// Sends every packet through a chain that has no rules.
    Empty,
}

/// The fate of packets that no rule decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    /// They go on.
    Open,
    /// They are dropped by the rule with this index and those behind it, or by the policy.
    Closed { before: Option<usize> },
}

/// Depth to which jumps are followed, and their total number. ufw and firewalld nest three deep. A
/// jump beyond the limit counts as dependent on the packet.
const DEPTH_MAX: u32 = 8;
const CHAINS_MAX: u32 = 64;

/// The chain of flannel's iptables mode that accepts its packets.
pub(crate) const FLANNEL_FORWARD: &str = "FLANNEL-FWD";
/// The chain before Docker's own that Docker leaves to the administrator.
pub(crate) const DOCKER_USER: &str = "DOCKER-USER";

// === impl Kind ===

impl Kind {
    /// Whether rules behind it are never reached.
    fn is_last(&self) -> bool {
        matches!(self, Self::Accepts | Self::Drops | Self::Returns | Self::Goes(_) | Self::Leaves)
    }

    /// The chain that has to be examined. Chains with well-known names are handled by name.
    fn leads_to(&self) -> Option<&str> {
        match self {
            Self::Jumps(chain) | Self::Goes(chain) => Some(chain.as_str()),
            _ => None,
        }
        .filter(|chain| ![DOCKER_USER, FLANNEL_FORWARD].contains(chain))
    }

    /// The effect of a chain with these rules on every packet; none where that depends on the
    /// packet.
    fn of_chain(kinds: &[Kind]) -> Option<Kind> {
        if let Some(last @ (Self::Accepts | Self::Drops)) = kinds.iter().find(|kind| kind.is_last()) {
            return Some(last.clone());
        }
        let idle = kinds.iter().take_while(|kind| **kind != Self::Returns);
        let idle: Vec<&Kind> = idle.collect();
        match idle.iter().all(|kind| matches!(kind, Self::Logs | Self::Empty)) {
            true if idle.contains(&&Self::Logs) => Some(Self::Logs),
            true => Some(Self::Empty),
            false => None,
        }
    }
}

// === impl Gate ===

impl Gate {
    /// The result of a base chain with these rules and this policy.
    pub(crate) fn from_rules(kinds: &[Kind], policy_drops: bool) -> Self {
        let last = kinds.iter().position(Kind::is_last);
        let drops = match last.and_then(|last| kinds.get(last)) {
            Some(Kind::Accepts) => false,
            Some(Kind::Drops) => true,
            _ => policy_drops,
        };
        if !drops {
            return Self::Open;
        }
        // A log right before the final drop logs what that rule drops.
        let reached = kinds.get(..last.unwrap_or(kinds.len())).unwrap_or_default();
        let idle = reached.iter().rev().take_while(|kind| matches!(kind, Kind::Logs | Kind::Empty)).count();
        let logs = (reached.len() - idle..reached.len()).find(|index| kinds.get(*index) == Some(&Kind::Logs));
        let before = logs.unwrap_or(reached.len());
        Self::Closed { before: (before < kinds.len()).then_some(before) }
    }

    /// Whether an unconditional jump to `chain` is reached.
    pub(crate) fn passes(self, kinds: &[Kind], chain: &str) -> bool {
        let Self::Closed { before } = self else { return false };
        let reached = kinds.get(..before.unwrap_or(kinds.len())).unwrap_or_default();
        reached.iter().any(|kind| matches!(kind, Kind::Jumps(to) if to == chain))
    }
}

/// Replaces an unconditional jump by the effect of its chain, where that chain decides for all
/// packets or for none: firewalld rejects at the end of such a chain, ufw logs in one.
pub(crate) fn follow<E>(
    kinds: Vec<Kind>,
    rules_of: &mut impl FnMut(&str) -> Result<Vec<Kind>, E>,
) -> Result<Vec<Kind>, E> {
    let mut left = CHAINS_MAX;
    follow_to(kinds, rules_of, DEPTH_MAX, &mut left)
}

fn follow_to<E>(
    kinds: Vec<Kind>,
    rules_of: &mut impl FnMut(&str) -> Result<Vec<Kind>, E>,
    depth: u32,
    left: &mut u32,
) -> Result<Vec<Kind>, E> {
    let mut followed = Vec::with_capacity(kinds.len());
    for kind in kinds {
        let Some(chain) = kind.leads_to() else {
            followed.push(kind);
            continue;
        };
        if depth == 0 || *left == 0 {
            followed.push(kind);
            continue;
        }
        *left -= 1;
        let inside = follow_to(rules_of(chain)?, rules_of, depth - 1, left)?;
        followed.push(match (Kind::of_chain(&inside), kind) {
            (Some(decided @ (Kind::Accepts | Kind::Drops)), _) => decided,
            (_, Kind::Goes(_)) => Kind::Leaves,
            (Some(idle), _) => idle,
            (None, jump) => jump,
        });
    }
    Ok(followed)
}

/// Index of the rule before which an accept in an administrator's chain is still reached; none
/// means at the end.
pub(crate) fn before_return(kinds: &[Kind]) -> Option<usize> {
    kinds.iter().position(Kind::is_last)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOWHERE: Gate = Gate::Closed { before: None };

    fn before(index: usize) -> Gate {
        Gate::Closed { before: Some(index) }
    }

    #[test]
    fn a_policy_of_drop_closes_and_the_accept_comes_last() {
        assert_eq!(Gate::from_rules(&[], false), Gate::Open);
        assert_eq!(Gate::from_rules(&[], true), NOWHERE);
        assert_eq!(Gate::from_rules(&[Kind::Other, Kind::Jumps("DOCKER-USER".into())], true), NOWHERE);
        assert_eq!(Gate::from_rules(&[Kind::Returns, Kind::Other], true), before(0));
        assert_eq!(Gate::from_rules(&[Kind::Returns, Kind::Drops], false), Gate::Open);
    }

    #[test]
    fn a_drop_of_everything_closes_under_any_policy_and_the_accept_precedes_it_and_its_log() {
        assert_eq!(Gate::from_rules(&[Kind::Other, Kind::Drops], false), before(1));
        assert_eq!(Gate::from_rules(&[Kind::Other, Kind::Logs, Kind::Logs, Kind::Drops], true), before(1));
        // Rules behind it, even flannel's own jump, are never reached.
        let jump = Kind::Jumps(FLANNEL_FORWARD.into());
        let kinds = [Kind::Other, Kind::Drops, jump.clone()];
        assert_eq!(Gate::from_rules(&kinds, false), before(1));
        assert!(!before(1).passes(&kinds, FLANNEL_FORWARD));
        assert!(NOWHERE.passes(&[Kind::Other, jump], FLANNEL_FORWARD));
        assert_eq!(Gate::from_rules(&[Kind::Other, Kind::Logs], true), before(1));
    }

    fn followed(chains: &[(&str, Vec<Kind>)]) -> Vec<Kind> {
        let mut rules_of = |name: &str| -> Result<Vec<Kind>, ()> {
            let found = chains.iter().find(|(chain, _)| *chain == name);
            Ok(found.map(|(_, kinds)| kinds.clone()).unwrap_or_default())
        };
        let first = rules_of("FORWARD").unwrap();
        follow(first, &mut rules_of).unwrap()
    }

    #[test]
    fn ufws_log_of_what_its_policy_drops_stands_behind_the_accept_and_its_rules_before_it() {
        let jumps = |name: &str| Kind::Jumps(name.into());
        let kinds = followed(&[
            ("FORWARD", ["before", "after", "after-logging", "reject", "track"].map(jumps).into()),
            ("before", vec![Kind::Other]),
            ("after-logging", vec![Kind::Logs]),
        ]);
        assert_eq!(Gate::from_rules(&kinds, true), before(2));
        assert_eq!(Gate::from_rules(&kinds, false), Gate::Open);
    }

    #[test]
    fn a_chain_that_rejects_at_its_end_is_a_reject() {
        // firewalld: interface by interface, then what the default zone says
        let jumps = |name: &str| Kind::Jumps(name.into());
        let chains = [
            ("FORWARD", vec![Kind::Other, jumps("ZONES"), Kind::Drops]),
            ("ZONES", vec![Kind::Other, Kind::Goes("public".into())]),
            ("public", vec![Kind::Other, jumps("post"), Kind::Drops]),
            ("post", vec![]),
        ];
        assert_eq!(Gate::from_rules(&followed(&chains), false), before(1));
        let mut undecided = chains.clone();
        undecided[2].1.pop();
        assert_eq!(Gate::from_rules(&followed(&undecided), false), before(2));
        let mut accepted = chains;
        accepted[3].1.push(Kind::Accepts);
        assert_eq!(Gate::from_rules(&followed(&accepted), false), Gate::Open);
    }

    #[test]
    fn chains_that_lead_to_each_other_come_to_an_end() {
        let jumps = |name: &str| Kind::Jumps(name.into());
        let round = vec![jumps("FORWARD"), jumps("FORWARD"), Kind::Other];
        assert_eq!(followed(&[("FORWARD", round.clone())]), round);
    }

    #[test]
    fn a_rule_that_accepts_everything_opens() {
        assert_eq!(Gate::from_rules(&[Kind::Accepts, Kind::Drops], true), Gate::Open);
        assert_eq!(before_return(&[Kind::Other, Kind::Ours, Kind::Returns]), Some(2));
        assert_eq!(before_return(&[Kind::Other]), None);
    }
}
