//! Nodes that hold addresses or blocks and have no Node object: for how long, whether their agents
//! are silent, and whether so many vanished that something else is wrong. Pure: what was read and
//! the time in, phases out (kubernetes.md section 3.2, G2 to G4).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The sign of life of a node's agent: its lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sign {
    /// Changes with each renewal.
    pub revision: String,
    /// For how long the agent lives after a renewal, by its own word.
    pub duration: Duration,
}

/// What one look found.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// Nodes that records of the allocator name.
    pub named: BTreeSet<String>,
    /// Nodes with an object.
    pub existing: BTreeSet<String>,
    /// Nodes that had an object at any time since the last look.
    pub met: BTreeSet<String>,
    pub signs: BTreeMap<String, Sign>,
    /// Addresses that nodes' objects name, such as those of their tunnels.
    pub addresses: BTreeSet<IpAddr>,
}

/// When nodes count as gone, and when too many do.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// For how long a node must be gone and its agent silent before addresses of its pods are freed.
    pub grace: Duration,
    /// The same for its tunnels' addresses and its blocks, which a re-created node takes again.
    pub tunnel_grace: Duration,
    /// So many percent of all nodes, and at least so many nodes, may not vanish within the window.
    pub nodes_percent: usize,
    pub nodes_min: usize,
    pub window: Duration,
}

/// What may be done about a gone node now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Nothing.
    Waiting,
    /// Addresses of its pods may be freed.
    Addresses,
    /// Its tunnels' addresses and its blocks, too.
    Everything,
}

/// Why nothing is freed until an operator resumes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    pub reason: String,
    /// The nodes that an operator has to confirm as gone.
    pub nodes: BTreeSet<String>,
}

/// The gone nodes as this replica has seen them, since it leads.
#[derive(Debug, Default)]
pub struct GoneNodes {
    nodes: BTreeMap<String, Gone>,
    /// Those that vanished too many at once.
    stopped: BTreeSet<String>,
}

#[derive(Debug)]
struct Gone {
    /// When it was first seen without an object.
    first: Duration,
    /// Since when it has had no object and its agent was silent.
    silent_since: Duration,
    sign: Option<Sign>,
}

// === impl Default for Limits ===

impl Default for Limits {
    fn default() -> Self {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let (grace, tunnel_grace, window) = (minutes(15), minutes(15), minutes(10));
        Self { grace, tunnel_grace, nodes_percent: 5, nodes_min: 3, window }
    }
}

// === impl GoneNodes ===

impl GoneNodes {
    /// Takes a look's result. A node with an object, or whose agent renewed its lease, starts anew.
    pub fn look(&mut self, found: &Found, now: Duration) {
        let gone = |name: &String| found.named.contains(name) && !found.existing.contains(name);
        self.nodes.retain(|name, _| gone(name));
        for name in found.named.iter().filter(|name| gone(name)) {
            let sign = found.signs.get(name).cloned();
            let met = found.met.contains(name);
            match self.nodes.get_mut(name) {
                Some(known) if !met => {
                    if known.sign != sign {
                        (known.sign, known.silent_since) = (sign, now);
                    }
                }
                _ => {
                    let new = Gone { first: now, silent_since: now, sign };
                    self.nodes.insert(name.clone(), new);
                }
            }
        }
    }

    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.nodes.keys()
    }

    /// How long a node has been gone and silent.
    pub fn silent_for(&self, name: &str, now: Duration) -> Duration {
        self.nodes.get(name).map_or(Duration::ZERO, |gone| now.saturating_sub(gone.silent_since))
    }

    /// The lease of its agent as it was seen unchanged since then.
    pub fn sign(&self, name: &str) -> Option<&Sign> {
        self.nodes.get(name)?.sign.as_ref()
    }

    pub fn phase(&self, name: &str, limits: &Limits, now: Duration) -> Phase {
        let Some(gone) = self.nodes.get(name) else { return Phase::Waiting };
        let alive = gone.sign.as_ref().map_or(Duration::ZERO, |sign| sign.duration);
        let silent = now.saturating_sub(gone.silent_since);
        let needed = limits.grace.max(alive);
        match silent {
            silent if silent < needed => Phase::Waiting,
            silent if silent < needed.max(limits.tunnel_grace) => Phase::Addresses,
            _ => Phase::Everything,
        }
    }

    /// Whether too many nodes vanished at once. It stays so until they are back, or an operator has
    /// confirmed that they are gone.
    pub fn stopped(
        &mut self,
        found: &Found,
        accepted: &BTreeSet<String>,
        limits: &Limits,
        now: Duration,
    ) -> Option<Stop> {
        let recent = |gone: &Gone| now.saturating_sub(gone.first) <= limits.window;
        let unconfirmed = self.nodes.iter().filter(|(name, _)| !accepted.contains(*name));
        let recent: BTreeSet<String> =
            unconfirmed.filter(|(_, gone)| recent(gone)).map(|(name, _)| name.clone()).collect();
        let all = found.existing.len() + self.nodes.len();
        let too_many = |count: usize| count >= limits.nodes_min && count * 100 > limits.nodes_percent * all;
        if too_many(recent.len()) {
            self.stopped.extend(recent);
        }
        self.stopped.retain(|name| self.nodes.contains_key(name) && !accepted.contains(name));
        if !too_many(self.stopped.len()) {
            self.stopped.clear();
            return None;
        }
        let reason =
            format!("{} of {all} nodes vanished within {} s", self.stopped.len(), limits.window.as_secs());
        Some(Stop { reason, nodes: self.stopped.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minutes(minutes: u64) -> Duration {
        Duration::from_secs(60 * minutes)
    }

    fn names<'a>(names: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
        names.into_iter().map(str::to_owned).collect()
    }

    /// Nodes n0 to n99 hold addresses; the given ones have no object.
    fn hundred_without(gone: &[usize]) -> Found {
        let named: BTreeSet<String> = (0..100).map(|n| format!("n{n}")).collect();
        let missing: BTreeSet<String> = gone.iter().map(|n| format!("n{n}")).collect();
        let existing = named.difference(&missing).cloned().collect();
        Found { named, existing, ..Found::default() }
    }

    fn with_sign(mut found: Found, node: &str, revision: &str, duration: Duration) -> Found {
        found.signs.insert(node.to_owned(), Sign { revision: revision.to_owned(), duration });
        found
    }

    fn phases(gone: &GoneNodes, name: &str, at: &[u64]) -> Vec<Phase> {
        at.iter().map(|at| gone.phase(name, &Limits::default(), minutes(*at))).collect()
    }

    #[test]
    fn a_silent_nodes_pods_come_before_its_tunnels_and_blocks() {
        // kubernetes.md K82
        let mut gone = GoneNodes::default();
        gone.look(&hundred_without(&[7]), minutes(0));
        let limits = Limits { tunnel_grace: minutes(30), ..Limits::default() };
        let phase = |at| gone.phase("n7", &limits, minutes(at));
        assert_eq!([14, 15, 29].map(phase), [Phase::Waiting, Phase::Addresses, Phase::Addresses]);
        assert_eq!(phase(30), Phase::Everything);
        assert_eq!(phases(&gone, "n8", &[1_000]), [Phase::Waiting]);
    }

    #[test]
    fn an_agent_that_renews_its_lease_keeps_the_addresses_of_a_deleted_node() {
        // kubernetes.md K81
        let mut gone = GoneNodes::default();
        for minute in 0..120 {
            let found = with_sign(hundred_without(&[7]), "n7", &format!("{}", minute / 2), minutes(6));
            gone.look(&found, minutes(minute));
            assert_eq!(phases(&gone, "n7", &[minute]), [Phase::Waiting], "{minute}");
        }
        // It falls silent; a lease that says more than the grace period is believed.
        let last = with_sign(hundred_without(&[7]), "n7", "59", minutes(40));
        gone.look(&last, minutes(120));
        gone.look(&last, minutes(150));
        assert_eq!(phases(&gone, "n7", &[159, 160]), [Phase::Waiting, Phase::Everything]);
        // A lease that was removed is no proof of anything.
        gone.look(&hundred_without(&[7]), minutes(170));
        assert_eq!(phases(&gone, "n7", &[171]), [Phase::Waiting]);
    }

    #[test]
    fn a_node_that_comes_back_starts_anew_even_between_two_looks() {
        // kubernetes.md K83
        let mut gone = GoneNodes::default();
        gone.look(&hundred_without(&[7]), minutes(0));
        gone.look(&hundred_without(&[]), minutes(10));
        gone.look(&hundred_without(&[7]), minutes(14));
        assert_eq!(phases(&gone, "n7", &[28, 29]), [Phase::Waiting, Phase::Everything]);
        let met = Found { met: names(["n7"]), ..hundred_without(&[7]) };
        gone.look(&met, minutes(29));
        assert_eq!(phases(&gone, "n7", &[43, 44]), [Phase::Waiting, Phase::Everything]);
    }

    #[test]
    fn thirty_of_a_hundred_nodes_at_once_stop_everything_until_they_return_or_are_confirmed() {
        // kubernetes.md K84
        let limits = Limits::default();
        let many: Vec<usize> = (0..30).collect();
        let mut gone = GoneNodes::default();
        let found = hundred_without(&many);
        let none = BTreeSet::new();
        gone.look(&found, minutes(0));
        let stop = gone.stopped(&found, &none, &limits, minutes(0)).unwrap();
        assert_eq!(stop.nodes.len(), 30);
        // It does not pass with time.
        gone.look(&found, minutes(60));
        assert!(gone.stopped(&found, &none, &limits, minutes(60)).is_some());
        let confirmed = gone.stopped(&found, &stop.nodes, &limits, minutes(61));
        assert_eq!(confirmed, None);
        let back = hundred_without(&many[..4]);
        gone.look(&back, minutes(62));
        assert_eq!(gone.stopped(&back, &none, &limits, minutes(62)), None);
    }

    #[test]
    fn few_nodes_or_nodes_one_after_the_other_stop_nothing() {
        let (limits, none) = (Limits::default(), BTreeSet::new());
        let mut gone = GoneNodes::default();
        for n in 0..40 {
            let found = hundred_without(&(0..=n).collect::<Vec<_>>());
            let now = minutes(5 * n as u64);
            gone.look(&found, now);
            assert_eq!(gone.stopped(&found, &none, &limits, now), None, "{n}");
        }
        let mut gone = GoneNodes::default();
        // Two of three nodes.
        let found = Found { named: names(["a", "b", "c"]), existing: names(["c"]), ..Found::default() };
        gone.look(&found, minutes(0));
        assert_eq!(gone.stopped(&found, &none, &limits, minutes(0)), None);
    }
}
