//! Whether a chain of somebody else lets pods' packets through, and where an accept has to stand in it so that they come
//! through. Pure; `foreign` reads nf_tables into it, `xtables` the output of iptables.
//!
//! The accept stands as far behind as it can: others' rules decide first, ours only goes before what would drop everything.

/// What a rule does, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One of our own accepts.
    Ours,
    /// Something that depends on the packet, or changes it.
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
}

/// What becomes of packets that no rule decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    /// They go on.
    Open,
    /// They are dropped: by the rule with this index and those behind it, or by the policy.
    Closed { before: Option<usize> },
}

/// The chain of flannel's iptables mode that accepts its packets.
pub(crate) const FLANNEL_FORWARD: &str = "FLANNEL-FWD";
/// The chain in front of Docker's own that Docker leaves to the administrator.
pub(crate) const DOCKER_USER: &str = "DOCKER-USER";

// === impl Gate ===

impl Gate {
    /// What a base chain with these rules and this policy is.
    pub(crate) fn of(kinds: &[Kind], policy_drops: bool) -> Self {
        let last = kinds.iter().position(|kind| matches!(kind, Kind::Accepts | Kind::Drops | Kind::Returns));
        let drops = match last.and_then(|last| kinds.get(last)) {
            Some(Kind::Accepts) => false,
            Some(Kind::Drops) => true,
            _ => policy_drops,
        };
        if !drops {
            return Self::Open;
        }
        // What is logged in front of the end is what the end drops.
        let reached = kinds.get(..last.unwrap_or(kinds.len())).unwrap_or_default();
        let logs = reached.iter().rev().take_while(|kind| matches!(kind, Kind::Logs)).count();
        let before = reached.len() - logs;
        Self::Closed { before: (before < kinds.len()).then_some(before) }
    }

    /// Whether a jump for all packets to `chain` stands where it is reached.
    pub(crate) fn passes(self, kinds: &[Kind], chain: &str) -> bool {
        let Self::Closed { before } = self else { return false };
        let reached = kinds.get(..before.unwrap_or(kinds.len())).unwrap_or_default();
        reached.iter().any(|kind| matches!(kind, Kind::Jumps(to) if to == chain))
    }
}

/// Before which rule of a chain for administrators an accept is still reached; at the end where there is none.
pub(crate) fn before_return(kinds: &[Kind]) -> Option<usize> {
    kinds.iter().position(|kind| matches!(kind, Kind::Returns | Kind::Accepts | Kind::Drops))
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
        assert_eq!(Gate::of(&[], false), Gate::Open);
        assert_eq!(Gate::of(&[], true), NOWHERE);
        assert_eq!(Gate::of(&[Kind::Other, Kind::Jumps("DOCKER-USER".into())], true), NOWHERE);
        assert_eq!(Gate::of(&[Kind::Returns, Kind::Other], true), before(0));
        assert_eq!(Gate::of(&[Kind::Returns, Kind::Drops], false), Gate::Open);
    }

    #[test]
    fn a_rule_that_drops_everything_closes_whatever_the_policy_and_the_accept_comes_before_it_and_its_log() {
        assert_eq!(Gate::of(&[Kind::Other, Kind::Drops], false), before(1));
        assert_eq!(Gate::of(&[Kind::Other, Kind::Logs, Kind::Logs, Kind::Drops], true), before(1));
        // What stands behind it is never reached, not even flannel's own jump.
        let jump = Kind::Jumps(FLANNEL_FORWARD.into());
        let kinds = [Kind::Other, Kind::Drops, jump.clone()];
        assert_eq!(Gate::of(&kinds, false), before(1));
        assert!(!before(1).passes(&kinds, FLANNEL_FORWARD));
        assert!(NOWHERE.passes(&[Kind::Other, jump], FLANNEL_FORWARD));
        assert_eq!(Gate::of(&[Kind::Other, Kind::Logs], true), before(1));
    }

    #[test]
    fn a_rule_that_accepts_everything_opens() {
        assert_eq!(Gate::of(&[Kind::Accepts, Kind::Drops], true), Gate::Open);
        assert_eq!(before_return(&[Kind::Other, Kind::Ours, Kind::Returns]), Some(2));
        assert_eq!(before_return(&[Kind::Other]), None);
    }
}
