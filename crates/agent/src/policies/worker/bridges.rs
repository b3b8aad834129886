//! Pods behind bridges. What goes from one port of a bridge to another passes the hooks that judge it only where br_netfilter
//! hands it to them; what the node routes always does.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use russet_addr::Family;
use russet_linux::sysctl;
use russet_verdict::table::Verdict;

use super::{Phase, Worker};
use crate::health::Condition;

#[cfg(test)]
mod tests;

/// How soon a setting that another program changes, or a policy for a pod behind a bridge, is noticed.
const LOOK: Duration = Duration::from_secs(5);
/// How many pods a reason names.
const NAMED_MAX: usize = 3;

const fn setting(family: Family) -> &'static str {
    match family {
        Family::V4 => "net/bridge/bridge-nf-call-iptables",
        Family::V6 => "net/bridge/bridge-nf-call-ip6tables",
    }
}

/// Why what bridges carry between their ports is not judged in this network namespace; none where it is.
pub fn unjudged(family: Family) -> Option<String> {
    let dotted = setting(family).replace('/', ".");
    match sysctl::read(setting(family)) {
        Ok(value) if value == "1" => None,
        Ok(value) => Some(format!("{dotted} is {value} and has to be 1")),
        Err(error) if error.is_missing() => Some(format!("{dotted} is missing: load br_netfilter")),
        Err(error) => Some(error.to_string()),
    }
}

// === impl Worker ===

impl Worker {
    /// Has bridges looked at next, if a pod is behind one.
    pub(super) fn look_at_bridges(&mut self) {
        self.bridges_at = Some(Instant::now());
    }

    /// Not ready while policies deny something to pods behind bridges that the kernel does not judge on their bridge.
    pub(super) fn check_bridges(&mut self) {
        let now = Instant::now();
        if self.bridges_at.is_none_or(|at| at > now) {
            return;
        }
        let is_any = self.wired.values().chain(&self.unnamed).any(|local| local.bridge.is_some());
        self.bridges_at = is_any.then(|| now + LOOK);
        match self.unjudged_pods() {
            Some(reason) if self.readiness.unmet(Condition::Policies, &reason) => {
                tracing::warn!("policies: {reason}");
            }
            None if self.readiness.is_unmet(Condition::Policies) => {
                self.readiness.met(Condition::Policies);
                tracing::info!("policies: what bridges carry for pods is judged");
            }
            _ => {}
        }
    }

    /// Why policies for pods behind bridges are not enforced, and for which.
    fn unjudged_pods(&self) -> Option<String> {
        if self.phase != Phase::Enforcing {
            return None;
        }
        let named = self.wired.iter().map(|(name, local)| (name.clone(), local));
        let unnamed = self.unnamed.iter().map(|local| (local.host_name.to_string(), local));
        let behind: Vec<_> = named.chain(unnamed).filter(|(_, local)| local.bridge.is_some()).collect();
        if behind.is_empty() {
            return None;
        }
        let judged = self.judged();
        Family::BOTH.into_iter().find_map(|family| {
            let why = unjudged(family)?;
            let is_judged = |address: &IpAddr| Family::of(*address) == family && judged.contains(address);
            let mut pods: Vec<String> = behind
                .iter()
                .filter(|(_, local)| local.addresses.iter().any(is_judged))
                .filter_map(|(name, local)| Some(format!("{name} on {}", local.bridge.as_ref()?)))
                .collect();
            let others = pods.len().saturating_sub(NAMED_MAX);
            pods.truncate(NAMED_MAX);
            let others = if others > 0 { format!(" and {others} more") } else { String::new() };
            let named = pods.join(", ");
            let text = || format!("NOT ENFORCED between pods on the same bridge, {named}{others}: {why}");
            (!pods.is_empty()).then(text)
        })
    }

    /// The addresses for which anything is denied.
    fn judged(&self) -> BTreeSet<IpAddr> {
        let defaults = self.wanted.defaults.iter().map(|((_, address), word)| (*address, word));
        let decisions = self.wanted.decisions.iter().map(|(key, word)| (key.local, word));
        let denied = defaults.chain(decisions).filter(|(_, word)| word.verdict != Verdict::Allow);
        denied.map(|(address, _)| address).collect()
    }
}
