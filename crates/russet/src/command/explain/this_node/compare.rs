//! What the kernel's table of decisions holds, compared with what the policies say.

use russet_agent::PolicyMode;
use russet_journal::Attachment;
use russet_policy::{Policies, PolicyReport, PolicySettings};
use russet_verdict::evaluator;
use russet_verdict::flow::Flow;
use russet_verdict::ir::Direction;
use russet_verdict::snapshot::Snapshot;

use super::super::decisions;
use super::super::path::family;
use super::super::report::{KernelVerdict, Report};
use super::ThisNode;
use super::pod::OWN_PLUGIN;

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
        for flow in flows {
            let trace = evaluator::ask(snapshot, flow);
            for end in [&trace.egress, &trace.ingress] {
                let address = match end.direction {
                    Direction::Ingress => flow.destination,
                    Direction::Egress => flow.source,
                };
                let is_its = |it: &Attachment| it.plugin == OWN_PLUGIN && it.addresses.contains(&address);
                if self.attachments.iter().any(is_its) {
                    let own = self.own.contains(&flow.source);
                    let found = decisions::judge(table.current(), end.direction, flow, own);
                    self.compare_end(snapshot, (flow, end.direction, end.allowed), found, report);
                }
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
