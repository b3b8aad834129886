//! The records of a flow log become flows.

use std::collections::BTreeMap;
use std::time::SystemTime;

use super::{End, Seen};
use crate::ir::{Direction, Protocol};

/// More different flows are not kept: each is judged, and so many take some seconds.
pub const FLOWS_MAX: usize = 200_000;

/// What a flow log says of a flow at one end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The end that decided.
    pub direction: Direction,
    /// What it decided.
    pub allowed: bool,
    /// Who began.
    pub source: End,
    /// With whom.
    pub destination: End,
    /// The protocol.
    pub protocol: Protocol,
    /// The destination port, as in [`crate::flow::Flow`].
    pub port: u16,
    /// First packets of connections.
    pub count: u64,
    /// When the first one was seen.
    pub first: SystemTime,
    /// When the last one was seen.
    pub last: SystemTime,
}

/// There are more than [`FLOWS_MAX`] different flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyFlows;

/// Records, as they are added.
#[derive(Debug, Clone, Default)]
pub struct Window {
    flows: BTreeMap<Key, [OneEnd; 2]>,
    span: Option<(SystemTime, SystemTime)>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    source: End,
    destination: End,
    protocol: Protocol,
    port: u16,
}

#[derive(Debug, Clone, Copy, Default)]
struct OneEnd {
    count: u64,
    /// First and last time that it was allowed.
    allowed: Option<(SystemTime, SystemTime)>,
    denied: Option<SystemTime>,
}

// === impl Window ===

impl Window {
    /// Adds a record. It counts for the length of the window also if it is not `wanted` otherwise.
    pub fn add(&mut self, record: Record, wanted: bool) -> Result<(), TooManyFlows> {
        let Record { direction, allowed, source, destination, protocol, port, count, first, last } = record;
        let last = last.max(first);
        self.span = Some(joined(self.span, (first, last)));
        if !wanted {
            return Ok(());
        }
        let key = Key { source, destination, protocol, port };
        if self.flows.len() >= FLOWS_MAX && !self.flows.contains_key(&key) {
            return Err(TooManyFlows);
        }
        let [ingress, egress] = self.flows.entry(key).or_default();
        let end = if direction == Direction::Ingress { ingress } else { egress };
        if allowed {
            end.count = end.count.saturating_add(count);
            end.allowed = Some(joined(end.allowed, (first, last)));
        } else {
            end.denied = end.denied.max(Some(last));
        }
        Ok(())
    }

    /// When the first and the last flow was seen.
    pub fn span(&self) -> Option<(SystemTime, SystemTime)> {
        self.span
    }

    /// The flows that were allowed, and apart from them those of which the last that was seen at one end is
    /// that it denied them. A connection that both ends have seen counts once.
    pub fn finish(self) -> (Vec<Seen>, Vec<Seen>) {
        let (mut flows, mut denied) = (Vec::new(), Vec::new());
        for (key, ends) in self.flows {
            let Some((first, last)) =
                ends.iter().filter_map(|end| end.allowed).reduce(|a, b| joined(Some(a), b))
            else {
                continue;
            };
            // Times are whole seconds: of two in the same one, nothing says which was the last.
            let is_denied = ends.iter().any(|end| end.denied > end.allowed.map(|(_, last)| last));
            let Key { source, destination, protocol, port } = key;
            let count = ends.iter().map(|end| end.count).max().unwrap_or_default();
            let flow = Seen { source, destination, protocol, port, count, first, last };
            if is_denied { &mut denied } else { &mut flows }.push(flow);
        }
        (flows, denied)
    }
}

fn joined(
    known: Option<(SystemTime, SystemTime)>,
    (first, last): (SystemTime, SystemTime),
) -> (SystemTime, SystemTime) {
    known.map_or((first, last), |known| (known.0.min(first), known.1.max(last)))
}
