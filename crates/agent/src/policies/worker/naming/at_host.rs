//! Flows at the node's own interfaces: which host endpoint decided, and by which of its policies.

use std::collections::BTreeMap;

use russet_addr::IfName;
use russet_netlink::{NetlinkError, Socket};
use russet_policy::LoggedFlow;
use russet_verdict::evaluator::{EndTrace, HostInterface, Stage, host_endpoint, judge_host};
use russet_verdict::explain::Decider;
use russet_verdict::hosts::Entrance;
use russet_verdict::snapshot::Snapshot;
use russet_verdict::world::Update;

use super::super::{Phase, Worker};
use super::{CHANGED, Judged, UNKNOWN, because};

/// What the evaluator needs besides what is at the ends of a flow.
#[derive(Debug, Default)]
pub struct AtHosts {
    /// The version of the engine of which the host endpoints are.
    version: Option<u64>,
    /// The host endpoints of this node, with their policies and profiles.
    endpoints: Vec<Update>,
    /// The names of interfaces, by their indexes.
    interfaces: BTreeMap<u32, IfName>,
}

impl Worker {
    /// Brings up to date what names flows at the node's interfaces.
    pub(super) fn look_at_hosts(&self) {
        let mut at = self.at_hosts.borrow_mut();
        if at.version != Some(self.engine.version()) {
            at.endpoints = self.engine.host_endpoints(self.hosts.own());
            at.version = Some(self.engine.version());
        }
        match interfaces() {
            Ok(found) => at.interfaces = found,
            Err(error) => tracing::debug!(%error, "the names of interfaces are old"),
        }
    }

    /// Judges a flow that the table of host endpoints has logged. Staged policies are not asked.
    pub(super) fn judged_at_host(&self, logged: &LoggedFlow, entrances: &[(Entrance, u32)]) -> Judged {
        let mut snapshot = self.engine.around(&logged.flow);
        let at = self.at_hosts.borrow();
        at.endpoints.iter().for_each(|update| snapshot.apply(update.clone()));
        let named =
            entrances.iter().filter_map(|(entrance, index)| Some((*entrance, at.interfaces.get(index)?)));
        let decides = |trace: &EndTrace| trace.allowed == logged.allowed && (trace.logged || !logged.allowed);
        let decided = named
            .map(|(entrance, name)| (entrance, self.judge(&snapshot, logged, entrance, name)))
            .find(|(_, (trace, _))| decides(trace));
        let (direction, decided) = match decided {
            _ if self.phase != Phase::Enforcing => (logged.direction, because(UNKNOWN.to_owned())),
            None => (logged.direction, because(format!("at an interface of this node: {CHANGED}"))),
            Some((entrance, (trace, place))) => {
                let decider = Decider::of(&trace);
                (entrance.direction(), Decider { text: format!("{place}: {}", decider.text), ..decider })
            }
        };
        Judged { snapshot, direction, decided, pending: None }
    }

    /// What the host endpoint of an interface says, and a text that names both.
    fn judge(
        &self,
        snapshot: &Snapshot,
        logged: &LoggedFlow,
        entrance: Entrance,
        name: &IfName,
    ) -> (EndTrace, String) {
        let addresses = self.hosts.addresses(name);
        let interface = HostInterface { node: &self.node, name: name.as_str(), addresses: &addresses };
        let endpoint = host_endpoint(snapshot, &interface);
        let place = match endpoint {
            Some((_, endpoint)) => format!("HostEndpoint {} at {name}", endpoint.name),
            None => name.to_string(),
        };
        let (stage, direction) = (stage(entrance), entrance.direction());
        let failsafe = self.engine.failsafe();
        (judge_host(snapshot, &interface, &failsafe, stage, direction, &logged.flow), place)
    }
}

const fn stage(entrance: Entrance) -> Stage {
    match entrance {
        Entrance::Input | Entrance::Output => Stage::Local,
        Entrance::ForwardIn | Entrance::ForwardOut => Stage::Forward,
        Entrance::PreDnat => Stage::PreDnat,
        Entrance::RawIn | Entrance::RawOut | Entrance::UntrackedIn | Entrance::UntrackedOut => {
            Stage::Untracked
        }
    }
}

fn interfaces() -> Result<BTreeMap<u32, IfName>, NetlinkError> {
    let links = Socket::route()?.links()?;
    Ok(links.into_iter().filter_map(|link| Some((link.index, IfName::new(link.name).ok()?))).collect())
}
