//! What is asked of two ends: all flows that a question means.

use russet_addr::Family;

use super::names::{Peer, PeerError, Probe};
use crate::flow::Flow;
use crate::snapshot::Snapshot;

/// Which flows are judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The source.
    pub from: Peer,
    /// The destination.
    pub to: Peer,
    /// The port; `None` is each port to which the destination gives a name.
    pub probe: Option<Probe>,
    /// Only addresses of this family.
    pub family: Option<Family>,
}

/// Why there is nothing to judge.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuestionError {
    /// An end has no address.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// No port is given, and the destination names none.
    #[error("{0} has no named port: give PORT, PORT/PROTOCOL or icmp")]
    NoPort(Peer),
    /// One end has IPv4 addresses only and the other IPv6 addresses only, or not the family asked.
    #[error("{0} and {1} have no addresses of the same family")]
    Families(Peer, Peer),
}

// === impl Question ===

impl Question {
    /// The flows that are meant, in order: between each two addresses of one family.
    pub fn flows(&self, snapshot: &Snapshot) -> Result<Vec<Flow>, QuestionError> {
        let counts = |flow: &Flow| self.family.is_none_or(|family| family == Family::of(flow.source));
        let (sources, targets) = (self.from.addresses(snapshot)?, self.to.addresses(snapshot)?);
        let mut flows = Vec::new();
        for target in &targets {
            let probes = match self.probe {
                Some(probe) => vec![probe],
                None => named(snapshot, *target),
            };
            if probes.is_empty() {
                return Err(QuestionError::NoPort(self.to.clone()));
            }
            for source in &sources {
                let between = probes.iter().filter_map(|probe| probe.flow(*source, *target));
                flows.extend(between.filter(counts));
            }
        }
        match flows.is_empty() {
            true => Err(QuestionError::Families(self.from.clone(), self.to.clone())),
            false => Ok(flows),
        }
    }
}

fn named(snapshot: &Snapshot, target: std::net::IpAddr) -> Vec<Probe> {
    let ports = snapshot.workload_at(target).into_iter().flat_map(|(_, endpoint)| &endpoint.ports);
    let mut probes: Vec<Probe> = ports.map(|it| Probe { protocol: it.protocol, port: it.port }).collect();
    probes.sort_unstable();
    probes.dedup();
    probes
}
