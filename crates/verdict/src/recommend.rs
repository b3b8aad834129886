//! From flows that were seen to NetworkPolicies that allow these and nothing else (policy.md section 5.5).
//!
//! Ends that are pods of the snapshot become selectors of their workloads, all others addresses. The result
//! depends on the flows and on the pods, namespaces and nodes of the snapshot, and on none of its policies:
//! a second run after the policies were applied gives the same.

mod ends;
mod nets;
mod plan;
mod policy;
#[cfg(test)]
mod tests;
mod window;
mod workloads;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::SystemTime;

use crate::explain::protocol_name;
use crate::flow::Flow;
use crate::ir::Protocol;
use crate::snapshot::Snapshot;
use crate::what_if;
use ends::Ends;
use plan::Plan;
use workloads::Workloads;

pub use policy::{Recommended, Rule};
pub use window::{FLOWS_MAX, Record, TooManyFlows, Window};

/// One end of a flow, as it was named when it was seen.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct End {
    /// `NAMESPACE/POD`, `node:NAME`, or the address.
    pub name: String,
    /// Its address then, behind the translation of Services.
    pub address: IpAddr,
}

/// A flow that was allowed, with all times that it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Who began.
    pub source: End,
    /// With whom.
    pub destination: End,
    /// The protocol.
    pub protocol: Protocol,
    /// The destination port, as in [`Flow`].
    pub port: u16,
    /// Connections.
    pub count: u64,
    /// When it was seen first.
    pub first: SystemTime,
    /// When it was seen last.
    pub last: SystemTime,
}

/// For what policies are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The pods of this namespace; `None` is all.
    pub namespace: Option<String>,
    /// Whether their ingress is isolated.
    pub ingress: bool,
    /// Whether their egress is isolated.
    pub egress: bool,
}

/// The policies, in the order of their namespaces and names.
#[derive(Debug, Clone, PartialEq)]
pub struct Recommendation {
    /// At most one for each workload.
    pub policies: Vec<Recommended>,
    /// What they leave out, and why.
    pub notes: Vec<String>,
    /// Flows of pods for which there is a policy, of which [`judge`] cannot say whether they are allowed: the
    /// pod at the other end is gone.
    pub unjudged: Vec<String>,
}

/// What the policies would do with the flows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Judged {
    /// Flows that are allowed now and would be denied, as text.
    pub denied: Vec<String>,
    /// Flows that are denied now already.
    pub denied_now: usize,
    /// Flows that cannot be judged: their pods do not exist any more, and no workload of theirs is known.
    pub unknown: usize,
}

/// The policies that allow what was seen.
pub fn recommend(snapshot: &Snapshot, flows: &[Seen], wanted: &Wanted) -> Recommendation {
    let workloads = Workloads::of(snapshot);
    let ends = Ends::new(snapshot, &workloads);
    let mut plan = Plan::new(snapshot, &workloads, wanted);
    flows.iter().for_each(|flow| plan.add(flow, &ends));
    plan.finish()
}

/// Of flows that were denied when they were last seen, those that may begin now.
pub fn allowed_now(snapshot: &Snapshot, denied: Vec<Seen>) -> Vec<Seen> {
    let workloads = Workloads::of(snapshot);
    let ends = Ends::new(snapshot, &workloads);
    let asked = denied.into_iter().filter_map(|seen| Some((ends.flow(&seen)?, seen)));
    let (questions, flows): (Vec<Flow>, Vec<Seen>) = asked.unzip();
    let allowed = what_if::allowed(snapshot, &questions);
    flows.into_iter().zip(allowed).filter(|(_, allowed)| *allowed).map(|(flow, _)| flow).collect()
}

/// What becomes of the flows if `after` is in force and not `before`.
pub fn judge(before: &Snapshot, after: &Snapshot, flows: &[Seen]) -> Judged {
    let workloads = Workloads::of(before);
    let ends = Ends::new(before, &workloads);
    let mut judged = Judged::default();
    let mut asked: BTreeMap<Flow, String> = BTreeMap::new();
    for seen in flows {
        match ends.flow(seen) {
            Some(flow) => _ = asked.entry(flow).or_insert_with(|| seen.to_string()),
            None => judged.unknown += 1,
        }
    }
    let questions: Vec<Flow> = asked.keys().copied().collect();
    let [before, after] = [before, after].map(|it| what_if::allowed(it, &questions));
    for (text, (before, after)) in asked.into_values().zip(before.into_iter().zip(after)) {
        judged.denied_now += usize::from(!before);
        if before && !after {
            judged.denied.push(text);
        }
    }
    judged
}

// === impl Seen ===

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let protocol = protocol_name(self.protocol);
        write!(f, "{} -> {} {protocol}", self.source.name, self.destination.name)?;
        if self.protocol.has_ports() { write!(f, "/{}", self.port) } else { Ok(()) }
    }
}
