//! What the kernel's table of decisions holds, compared with what the policies say.

use std::collections::BTreeSet;
use std::net::IpAddr;

use russet_addr::Family;
use russet_agent::unjudged_on_bridges;
use russet_journal::Attachment;
use russet_policy::{CALICO_PREFIX, Policies, PolicyReport, PolicySettings};
use russet_verdict::evaluator;
use russet_verdict::flow::Flow;
use russet_verdict::ir::Direction;
use russet_verdict::snapshot::Snapshot;

use super::super::decisions;
use super::super::egress;
use super::super::path::family;
use super::super::report::{KernelVerdict, Report};
use super::ThisNode;
use crate::command::policy::datastore::{Datastore, is_policed};
use crate::command::policy::enforcement::{self, Unenforced};

/// Why the kernel is not compared on a node whose agent enforces no policies.
fn not_compared(reason: Unenforced) -> String {
    match reason {
        Unenforced::Felix => "Felix runs on this node and enforces the policies, and the agent enforces none: what the kernel holds is not compared. Pods of the plugin russet have policies only if FELIX_INTERFACEPREFIX includes russ".to_owned(),
        reason => format!("{reason}: the agent of this node enforces no policies, and what the kernel holds is not compared"),
    }
}

// === impl ThisNode ===

impl ThisNode {
    /// Compares what the kernel's table of decisions says with what the resources say.
    pub fn compare(&mut self, data: &Datastore, flows: &[Flow], report: &mut Report) {
        let snapshot = &data.cluster.snapshot;
        if let Some(reason) = enforcement::by_settings(&self.config) {
            report.note("decisions", not_compared(reason));
            return;
        }
        let mut table = match Policies::open(PolicySettings::default()) {
            Ok(table) => table,
            Err(error) => {
                report.note("decisions", format!("table inet russet-decisions cannot be read: {error}"));
                return;
            }
        };
        // Without policies there is no table either.
        let reason = enforcement::by_node(table.epoch().is_some(), russet_agent::has_felix);
        if let Some(reason @ Unenforced::Felix) = reason {
            report.note("decisions", not_compared(reason));
            return;
        }
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
                let has_address = |it: &&Attachment| is_policed(it) && it.addresses.contains(&address);
                let attachment = self.attachments.iter().find(has_address);
                if attachment.is_some() || egress::is_policed(data, address) {
                    let own = self.own.contains(&flow.source) && end.direction == Direction::Ingress;
                    let closed = attachment.and_then(|it| self.closed_end(it, table.ends())).filter(|_| !own);
                    let found =
                        closed.unwrap_or_else(|| decisions::judge(table.current(), end.direction, flow, own));
                    self.compare_end(snapshot, (flow, end.direction, end.allowed), found, report);
                }
            }
        }
    }

    /// What the table says of a host end of Calico's plugins that carries nothing.
    fn closed_end(&self, attachment: &Attachment, open: Option<&BTreeSet<u32>>) -> Option<decisions::Found> {
        let name = attachment.host_name.as_deref().filter(|name| name.starts_with(CALICO_PREFIX))?;
        let (index, _) = self.links.iter().find(|(_, link)| link.name == name)?;
        let why = || format!("{name} is not among the host ends of decided pods");
        (!open?.contains(index)).then(|| decisions::Found { allowed: false, why: why() })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_decisions_of_its_agent_says_who_enforces_policies() {
        let text = not_compared(Unenforced::Felix);
        assert!(text.contains("Felix runs on this node") && text.contains("not compared"), "{text}");
        assert!(not_compared(Unenforced::Off).starts_with("policies are off: "));
    }
}
