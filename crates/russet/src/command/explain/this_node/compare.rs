//! What the kernel's table of decisions holds, compared with what the policies say.

use std::net::IpAddr;

use russet_addr::Family;
use russet_agent::{PolicyMode, unjudged_on_bridges};
use russet_policy::{Policies, PolicyReport, PolicySettings};
use russet_verdict::evaluator;
use russet_verdict::flow::Flow;
use russet_verdict::ir::Direction;
use russet_verdict::snapshot::Snapshot;

use super::super::decisions;
use super::super::path::family;
use super::super::report::{KernelVerdict, Report};
use super::ThisNode;
use crate::command::policy::datastore::is_policed;

// === impl ThisNode ===

impl ThisNode {
    /// Compares what the kernel's table of decisions says with what the resources say.
    pub fn compare(&mut self, snapshot: &Snapshot, flows: &[Flow], report: &mut Report) {
        if self.config.calico || self.config.policies == PolicyMode::Off {
            let why = if self.config.calico { "left to Felix" } else { "off" };
            report.note("decisions", format!("policies are {why} on this node: its kernel decides nothing"));
            return;
        }
        let mut table = match Policies::open(PolicySettings::default()) {
            Ok(table) => table,
            Err(error) => {
                report.note("decisions", format!("table inet russet-decisions cannot be read: {error}"));
                return;
            }
        };
        match table.faults() {
            Ok(fault) if fault == PolicyReport::default() => {}
            Ok(PolicyReport { structure: Some(text), .. }) => {
                report.finding("drift", format!("table inet russet-decisions is not complete: {text}"));
            }
            Ok(fault) => report.finding(
                "drift",
                format!(
                    "{} elements of table inet russet-decisions are missing, or not those that its decisions need",
                    fault.elements
                ),
            ),
            Err(error) => {
                report.note("decisions", format!("table inet russet-decisions cannot be read: {error}"))
            }
        }
        self.bridges(snapshot, flows, report);
        for flow in flows {
            let trace = evaluator::ask(snapshot, flow);
            for end in [&trace.egress, &trace.ingress] {
                let address = match end.direction {
                    Direction::Ingress => flow.destination,
                    Direction::Egress => flow.source,
                };
                if self.attachments.iter().any(|it| is_policed(it) && it.addresses.contains(&address)) {
                    let own = self.own.contains(&flow.source);
                    let found = decisions::judge(table.current(), end.direction, flow, own);
                    self.compare_end(snapshot, (flow, end.direction, end.allowed), found, report);
                }
            }
        }
    }

    /// A finding for each family in which policies deny a flow between two ports of one bridge, and the kernel
    /// does not judge what that carries.
    fn bridges(&self, snapshot: &Snapshot, flows: &[Flow], report: &mut Report) {
        let bridge = |address: IpAddr| {
            self.attachments
                .iter()
                .find(|it| it.addresses.contains(&address))
                .and_then(|it| it.bridge.as_ref())
        };
        for family in Family::BOTH {
            let mut denied = flows.iter().filter(|flow| {
                Family::of(flow.source) == family && !evaluator::ask(snapshot, flow).allowed()
            });
            let shared = denied
                .find_map(|flow| bridge(flow.source).filter(|it| Some(*it) == bridge(flow.destination)));
            if let (Some(bridge), Some(why)) = (shared, unjudged_on_bridges(family)) {
                let text = format!("policies are not enforced between ports of {bridge} ({family}): {why}");
                report.finding("bridge", text);
            }
        }
    }

    fn compare_end(
        &self,
        snapshot: &Snapshot,
        (flow, direction, allowed): (&Flow, Direction, bool),
        found: decisions::Found,
        report: &mut Report,
    ) {
        let (word, address) = match direction {
            Direction::Ingress => ("ingress", flow.destination),
            Direction::Egress => ("egress", flow.source),
        };
        let end = format!("{word} of {}", self.end(snapshot, address).name);
        let agrees = found.allowed == allowed;
        if !agrees {
            let kernel = if found.allowed { "allows" } else { "denies" };
            let policies = if allowed { "allow" } else { "deny" };
            let text = format!(
                "{end} ({}): the kernel {kernel} this flow ({}), and the policies {policies} it",
                family(address),
                found.why
            );
            report.finding("drift", text);
        }
        report.kernel.push(KernelVerdict { end, allowed: found.allowed, agrees, why: found.why });
    }
}
