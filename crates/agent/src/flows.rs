//! Flows that policies denied or allowed on this node: in memory only, the last [`FLOWS_MAX`]. What names
//! them is `policies`; this module keeps and serves them (docs/policy.md).

mod served;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use russet_model::time::rfc3339;
use russet_verdict::flow::Flow;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, watch};

use crate::fast_path::{Ends, Packets as Carried, Path, View};

pub(crate) use served::serve;

/// Path on the agent's socket.
pub const FLOWS_PATH: &str = "/v1/flows";
/// The most flows that are kept.
pub const FLOWS_MAX: usize = 2048;
/// The most flows in one answer: they fit into what a client reads.
pub const ANSWER_MAX: usize = 500;
/// As `after`: a number greater than that of all flows asks for all, from the oldest on.
pub const FROM_OLDEST: u64 = u64::MAX;
/// How long an answer waits for a flow at most.
pub const WAIT_MAX: Duration = Duration::from_secs(20);

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct FlowsRequest {
    /// Only flows with a greater number, from the oldest on; 0 is the last ones that there are, and
    /// [`FROM_OLDEST`] all.
    pub after: u64,
    /// The most flows in the answer.
    pub limit: usize,
    /// Only denied ones.
    pub denied: bool,
    /// Only those with this end, `NAMESPACE/POD` or an address.
    pub pod: Option<String>,
    /// Only those about which this policy decided, `[NAMESPACE/]NAME`.
    pub policy: Option<String>,
    /// How long the answer waits until there is one, in milliseconds.
    pub wait_ms: u64,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowsReport {
    /// [`Self::SCHEMA`].
    pub schema: u32,
    /// Why denied flows are not seen, if so.
    pub unread: Option<String>,
    /// In the order of their numbers.
    pub flows: Vec<FlowRecord>,
    /// What `after` has to be to get what follows.
    pub next: u64,
    /// Flows between `after` and the first one that are not kept any more.
    pub missed: u64,
    /// Denied packets since the agent's start, those of them that the kernel's limit did not log, and
    /// logged ones that were lost before they were named.
    pub packets: Packets,
}

/// Denied packets since the agent's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Packets {
    pub denied: u64,
    pub suppressed: u64,
    pub lost: u64,
}

/// A flow, with what decided.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowRecord {
    /// Greater than that of all earlier flows of this agent.
    pub id: u64,
    /// When its first packet was seen, in RFC 3339.
    pub first: String,
    /// When its last packet was seen.
    pub last: String,
    /// The packets that were seen within a minute: retries, and other connections of the same ends.
    pub packets: u64,
    /// `denied` or `allowed`.
    pub verdict: String,
    /// The path that its packets take now.
    #[serde(default)]
    pub path: Path,
    /// What the fast path has carried of all flows between these ends and to this port, in both directions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried: Option<Carried>,
    #[serde(flatten)]
    pub decision: Decision,
}

/// What is said of a flow besides its packets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The end that decided: `ingress` of the destination or `egress` of the source.
    pub direction: String,
    pub source: FlowEnd,
    pub destination: FlowEnd,
    pub proto: String,
    /// The destination port, of protocols that have ports.
    pub port: Option<u16>,
    /// `TYPE/CODE` of ICMP.
    pub icmp: Option<String>,
    /// The policy whose rule decided, or those that isolate the end, in order.
    pub policies: Vec<PolicyName>,
    /// The place of the rule in its object.
    pub rule: Option<String>,
    /// What decided, as text.
    pub reason: String,
    /// What it would be if the staged policies were in force.
    pub pending: Option<Pending>,
}

/// One end of a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowEnd {
    /// `NAMESPACE/POD`, `node:NAME`, or the address.
    pub name: String,
    pub address: IpAddr,
}

/// A policy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PolicyName {
    pub kind: String,
    pub namespace: Option<String>,
    pub name: String,
}

/// What staged policies would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    /// `denied` or `allowed`.
    pub verdict: String,
    /// The staged policies that would decide.
    pub policies: Vec<PolicyName>,
}

/// The flows of this agent. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct FlowLog(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    kept: Mutex<Kept>,
    /// The number of the last flow.
    last: watch::Sender<u64>,
    /// Clients that wait.
    waiting: Semaphore,
    /// Until when connections that pass are wanted, too.
    sampled: watch::Sender<Option<Instant>>,
    /// Says which path they take.
    fast_path: View,
}

#[derive(Debug, Default)]
struct Kept {
    /// Their numbers have no gaps.
    flows: VecDeque<(Key, Instant, FlowRecord)>,
    /// The number of the last flow of each kind.
    index: HashMap<Key, u64>,
    /// The number of the last flow.
    last: u64,
    unread: Option<String>,
    packets: Packets,
}

/// Flows that differ in nothing else are one, for a minute.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    verdict: bool,
    direction: String,
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    port: u16,
}

/// How long packets count as those of one flow.
const SAME: Duration = Duration::from_secs(60);
/// How long connections that pass are wanted after a client has waited for flows of both verdicts; it asks
/// again at once.
const SAMPLED: Duration = Duration::from_secs(WAIT_MAX.as_secs() + 10);
/// More clients do not wait; they get what there is.
const WAITING_MAX: usize = 16;

// === impl FlowsReport ===

impl FlowsReport {
    pub const SCHEMA: u32 = 1;
}

// === impl FlowsRequest ===

impl FlowsRequest {
    fn wants(&self, flow: &FlowRecord) -> bool {
        let Decision { source, destination, policies, pending, .. } = &flow.decision;
        let is_end = |wanted: &String| {
            [source, destination].iter().any(|end| end.name == *wanted || end.address.to_string() == *wanted)
        };
        let mut asked = policies.iter().chain(pending.iter().flat_map(|pending| &pending.policies));
        (!self.denied || flow.verdict == DENIED)
            && self.pod.as_ref().is_none_or(is_end)
            && self.policy.as_ref().is_none_or(|wanted| asked.any(|policy| policy.is_named(wanted)))
    }
}

/// The verdicts' texts.
pub const DENIED: &str = "denied";
pub const ALLOWED: &str = "allowed";

/// The text of a verdict.
pub const fn verdict(allowed: bool) -> &'static str {
    if allowed { ALLOWED } else { DENIED }
}

// === impl FlowRecord ===

impl FlowRecord {
    /// What the fast path may carry of it.
    fn ends(&self) -> Option<Ends> {
        let Decision { source, destination, proto, port, .. } = &self.decision;
        let protocol = match proto.as_str() {
            "tcp" => 6,
            "udp" => 17,
            _ => return None,
        };
        let is_allowed = self.verdict == ALLOWED;
        let ends = |port| Ends { source: source.address, destination: destination.address, protocol, port };
        port.filter(|_| is_allowed).map(ends)
    }
}

// === impl Decision ===

impl Decision {
    /// `tcp/5432`, `icmp/8/0`: the protocol with its port or message, if it has one.
    pub fn what(&self) -> String {
        match (self.port, &self.icmp) {
            (Some(port), _) => format!("{}/{port}", self.proto),
            (None, Some(message)) => format!("{}/{message}", self.proto),
            (None, None) => self.proto.clone(),
        }
    }
}

// === impl PolicyName ===

impl PolicyName {
    /// Whether `text` is its name, or its namespace and name.
    fn is_named(&self, text: &str) -> bool {
        match (text.split_once('/'), &self.namespace) {
            (Some((namespace, name)), Some(own)) => own == namespace && self.name == name,
            (Some(_), None) => false,
            (None, _) => self.name == text,
        }
    }
}

impl std::fmt::Display for PolicyName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let namespace = self.namespace.as_ref().map(|it| format!("{it}/")).unwrap_or_default();
        write!(f, "{} {namespace}{}", self.kind, self.name)
    }
}

// === impl FlowLog ===

impl FlowLog {
    /// An empty one, of a node with this fast path.
    pub(crate) fn beside(fast_path: View) -> Self {
        Self(Arc::new(Shared { fast_path, ..Shared::default() }))
    }

    /// Says which path the packets of each flow take. Blocks for some milliseconds.
    fn find_paths(&self, flows: &mut [FlowRecord]) {
        let ends: Vec<_> = flows.iter().map(FlowRecord::ends).collect();
        if self.0.fast_path.off().is_some() || ends.iter().all(Option::is_none) {
            return;
        }
        let carrying = self.0.fast_path.carrying();
        for (flow, ends) in flows.iter_mut().zip(ends) {
            let Some(ends) = ends else { continue };
            let taken = self.0.fast_path.of(&carrying, ends);
            let carried = taken.there.plus(taken.back);
            (flow.path, flow.carried) = (taken.path, (carried.packets > 0).then_some(carried));
        }
    }

    /// Adds a packet. Returns whether it is the first of its flow within a minute.
    pub fn add(&self, allowed: bool, flow: &Flow, decision: Decision, now: Instant) -> bool {
        let mut kept = self.kept();
        let is_new = kept.add(allowed, flow, decision, now);
        let last = kept.last;
        drop(kept);
        if is_new {
            self.0.last.send_replace(last);
        }
        is_new
    }

    /// Says why flows are not seen, or that they are.
    pub fn set_unread(&self, reason: Option<String>) {
        self.kept().unread = reason;
    }

    /// Says how many packets were denied, suppressed and lost since the agent's start.
    pub fn count(&self, packets: Packets) {
        self.kept().packets = packets;
    }

    /// The flows that a client asks for.
    pub fn report(&self, request: &FlowsRequest) -> FlowsReport {
        self.kept().report(request)
    }

    /// Until when connections that pass are wanted, and news of that.
    pub(crate) fn sampled(&self) -> watch::Receiver<Option<Instant>> {
        self.0.sampled.subscribe()
    }

    /// A client waits for connections that pass.
    fn want_sampled(&self) {
        self.0.sampled.send_replace(Some(Instant::now() + SAMPLED));
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Shared ===

impl Default for Shared {
    fn default() -> Self {
        let (kept, waiting) = (Mutex::default(), Semaphore::new(WAITING_MAX));
        let (last, sampled) = (watch::Sender::new(0), watch::Sender::new(None));
        Self { kept, last, waiting, sampled, fast_path: View::default() }
    }
}

// === impl Kept ===

impl Kept {
    fn add(&mut self, allowed: bool, flow: &Flow, decision: Decision, now: Instant) -> bool {
        let key = Key {
            verdict: allowed,
            direction: decision.direction.clone(),
            source: flow.source,
            destination: flow.destination,
            protocol: flow.protocol.0,
            port: flow.destination_port,
        };
        let time = rfc3339(SystemTime::now());
        let first = self.flows.front().map_or(0, |(.., flow)| flow.id);
        let place = self.index.get(&key).and_then(|id| usize::try_from(id.checked_sub(first)?).ok());
        if let Some((_, began, known)) = place.and_then(|place| self.flows.get_mut(place))
            && now.saturating_duration_since(*began) < SAME
            && known.decision == decision
        {
            known.packets += 1;
            known.last = time;
            return false;
        }
        self.last += 1;
        let (first, last, verdict) = (time.clone(), time, verdict(allowed).to_owned());
        let (path, carried) = (Path::Kernel, None);
        let record = FlowRecord { id: self.last, first, last, packets: 1, verdict, path, carried, decision };
        self.index.insert(key.clone(), self.last);
        self.flows.push_back((key, now, record));
        if self.flows.len() > FLOWS_MAX
            && let Some((key, _, old)) = self.flows.pop_front()
            && self.index.get(&key) == Some(&old.id)
        {
            self.index.remove(&key);
        }
        true
    }

    fn report(&self, request: &FlowsRequest) -> FlowsReport {
        // Numbers of an agent that has ended are greater.
        let after = if request.after > self.last { 0 } else { request.after };
        let limit = request.limit.clamp(1, ANSWER_MAX);
        let flows = self.flows.iter().map(|(.., flow)| flow);
        let wanted = flows.filter(|flow| flow.id > after && request.wants(flow));
        let mut next = self.last;
        let flows: Vec<FlowRecord> = if request.after == 0 {
            let mut newest: Vec<_> = wanted.rev().take(limit).cloned().collect();
            newest.reverse();
            newest
        } else {
            let oldest: Vec<_> = wanted.take(limit).cloned().collect();
            if oldest.len() == limit {
                next = oldest.last().map_or(next, |flow| flow.id);
            }
            oldest
        };
        let first = self.flows.front().map_or(self.last + 1, |(.., flow)| flow.id);
        let missed = if request.after == 0 { 0 } else { first.saturating_sub(after + 1) };
        let (unread, packets) = (self.unread.clone(), self.packets);
        FlowsReport { schema: FlowsReport::SCHEMA, unread, flows, next, missed, packets }
    }
}
