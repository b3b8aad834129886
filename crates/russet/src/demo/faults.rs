//! `russet demo --break`: what another program, a crash or a firewall may do to a node, one after the other, while a pod of that
//! node sends pings to another node: what the agent noticed and restored, which process it names, and how many pings were lost.
//!
//! The demo itself does the damage through netlink and nf_tables, in the namespace of the first node, so it is the process that
//! the agent should name.

mod damage;
mod traffic;

use std::time::{Duration, Instant};

use russet_agent::drift::{DRIFT_PATH, DriftReport, Repair};
use serde::Serialize;
use serde_json::json;

use self::damage::{Damage, FAULTS, Fault, Target};
use self::traffic::Traffic;
use super::fleet::Fleet;
use super::lab::{Lab, Node};
use super::report::PodReport;
use super::{DemoError, Interrupt, pods};
use crate::command::ask::ask;
use crate::output;

/// All faults, in the order in which they were made.
#[derive(Debug, Serialize)]
pub struct FaultsReport {
    /// The pod that sends the pings, and the one that answers.
    pub from: String,
    pub to: String,
    pub faults: Vec<FaultReport>,
}

/// One fault and what came of it.
#[derive(Debug, Serialize)]
pub struct FaultReport {
    pub name: &'static str,
    /// What was done, for people.
    pub done: &'static str,
    /// What the agent says about it; none if it did not notice it in time.
    pub noticed: Option<Noticed>,
    pub sent: u32,
    pub lost: u32,
    /// The longest time without an answer.
    pub longest_gap_ms: u64,
    /// Whether pings were answered again at the end.
    pub recovered: bool,
}

/// What an agent noticed.
#[derive(Debug, PartialEq, Serialize)]
pub struct Noticed {
    /// What it restored, or reports; one line each.
    pub what: Vec<String>,
    /// The processes that it names.
    pub who: Vec<String>,
    /// From the kernel's event until it was restored; none if it is only reported.
    pub restored_ms: Option<f64>,
}

/// How long an agent repairs nothing before a fault, and how long pings are sent after it was repaired.
const CALM: Duration = Duration::from_millis(300);
/// How long an agent has to notice a fault: restored ones take milliseconds, and what is only reported some seconds.
const NOTICE_DEADLINE: Duration = Duration::from_secs(20);
/// How often the agent is asked.
const QUESTION_INTERVAL: Duration = Duration::from_millis(50);
/// How long one answer of the agent may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Lines of a repair that are shown.
const LINES_SHOWN: usize = 2;

/// Makes all faults on the first node.
pub fn show(
    lab: &Lab,
    fleet: &mut Fleet,
    all_pods: &[PodReport],
    interrupt: &Interrupt,
    say: impl Fn(&str),
) -> Result<FaultsReport, DemoError> {
    let missing = || DemoError::Refused("there is no pod on two nodes".to_owned());
    let (node, other) = (lab.nodes.first().ok_or_else(missing)?, lab.nodes.get(1).ok_or_else(missing)?);
    let pod_of = |node: &Node| all_pods.iter().find(|pod| pod.node == node.name).ok_or_else(missing);
    let (from, to) = (pod_of(node)?, pod_of(other)?);
    let target = Target::new(node, from, to)?;
    let mut faults = Vec::new();
    for fault in &FAULTS {
        say(&format!("fault: {}", fault.done));
        let report = std::thread::scope(|scope| {
            let mut traffic = Traffic::start(scope, from, target.to)?;
            let noticed = make(fault, &target, (lab, node, fleet), &traffic, interrupt);
            // Also after an error, so that the thread ends.
            let counted = traffic.stop()?;
            let (noticed, recovered) = noticed?;
            Ok::<_, DemoError>(FaultReport {
                name: fault.name,
                done: fault.done,
                noticed,
                sent: counted.sent,
                lost: counted.lost,
                longest_gap_ms: u64::try_from(counted.longest_gap.as_millis()).unwrap_or(u64::MAX),
                recovered,
            })
        })?;
        faults.push(report);
    }
    Ok(FaultsReport { from: from.name.clone(), to: to.name.clone(), faults })
}

/// Makes a fault, waits until it is noticed and pings are answered again.
fn make(
    fault: &Fault,
    target: &Target,
    (lab, node, fleet): (&Lab, &Node, &mut Fleet),
    traffic: &Traffic<'_>,
    interrupt: &Interrupt,
) -> Result<(Option<Noticed>, bool), DemoError> {
    let before = until_settled(node, interrupt)?;
    let noticed = match fault.damage {
        Damage::KilledAgent => Some(restart_agent(lab, node, fleet, interrupt)?),
        _ => {
            fault.damage.make(target)?;
            until_noticed(node, before, interrupt)?
        }
    };
    fault.damage.clean_up(target)?;
    let recovered = traffic.is_answered_again(interrupt)?;
    interrupt.wait(CALM)?;
    if matches!(fault.damage, Damage::KilledAgent) {
        // The new one counts its repairs from zero.
        return Ok((noticed, recovered));
    }
    // A difference that was seen first may have been repaired since, and a repair may have been the first of several.
    let restored = question(node).and_then(|report| Noticed::of(&report, before));
    let noticed = restored.filter(|it| it.restored_ms.is_some()).or(noticed);
    Ok((noticed, recovered))
}

/// Waits until the agent has repaired what was before, so that it is not taken for what it notices next. Returns how many
/// repairs it has made.
fn until_settled(node: &Node, interrupt: &Interrupt) -> Result<u64, DemoError> {
    let began = Instant::now();
    let mut before = None;
    loop {
        interrupt.wait(CALM)?;
        let report = question(node);
        let repairs = report.as_ref().map(|report| report.repairs_total);
        let is_calm = report.is_some_and(|report| report.differences.is_empty()) && repairs == before;
        if is_calm || began.elapsed() > NOTICE_DEADLINE {
            return Ok(repairs.or(before).unwrap_or(0));
        }
        before = repairs.or(before);
    }
}

/// Kills the agent as a crash would, and starts it again as the service manager would.
fn restart_agent(
    lab: &Lab,
    node: &Node,
    fleet: &mut Fleet,
    interrupt: &Interrupt,
) -> Result<Noticed, DemoError> {
    let began = Instant::now();
    fleet.kill(&node.name)?;
    fleet.start_daemon(lab, node)?;
    let is_ready = || pods::ready(lab, node);
    fleet.until(interrupt, &format!("the agent of {}", node.name), NOTICE_DEADLINE, is_ready)?;
    Ok(Noticed {
        what: vec![format!(
            "the agent was killed, started again, and was ready after {} ms",
            began.elapsed().as_millis()
        )],
        who: Vec::new(),
        restored_ms: None,
    })
}

fn question(node: &Node) -> Option<DriftReport> {
    ask(&node.paths().cni_socket(), (DRIFT_PATH, DriftReport::SCHEMA), &json!({}), ANSWER_TIMEOUT).ok()
}

fn until_noticed(node: &Node, before: u64, interrupt: &Interrupt) -> Result<Option<Noticed>, DemoError> {
    let began = Instant::now();
    while began.elapsed() < NOTICE_DEADLINE {
        if let Some(noticed) = question(node).and_then(|report| Noticed::of(&report, before)) {
            return Ok(Some(noticed));
        }
        interrupt.wait(QUESTION_INTERVAL)?;
    }
    Ok(None)
}

// === impl Noticed ===

impl Noticed {
    /// What a report has since the repairs that were counted before; none if there is nothing new.
    fn of(report: &DriftReport, before: u64) -> Option<Self> {
        let new = usize::try_from(report.repairs_total.saturating_sub(before)).unwrap_or(usize::MAX);
        let repairs: Vec<&Repair> = report.repairs.iter().take(new).rev().collect();
        let Some(first) = repairs.first() else {
            let only_reported = !report.differences.is_empty();
            return only_reported.then(|| Self {
                what: report.differences.clone(),
                who: Vec::new(),
                restored_ms: None,
            });
        };
        let mut who: Vec<String> =
            repairs.iter().flat_map(|repair| &repair.who).map(ToString::to_string).collect();
        who.dedup();
        Some(Self {
            what: repairs.iter().flat_map(|repair| repair.what.iter().cloned()).collect(),
            who,
            restored_ms: Some(first.ms),
        })
    }

    fn text(&self) -> String {
        let shown: Vec<String> =
            self.what.iter().take(LINES_SHOWN).map(|line| output::visible(line)).collect();
        let more = self.what.len().saturating_sub(LINES_SHOWN);
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        let what = shown.join("; ") + &more;
        let who = if self.who.is_empty() {
            String::new()
        } else {
            format!("\n     by {}", output::visible(&self.who.join(", ")))
        };
        match self.restored_ms {
            Some(ms) => format!("restored in {ms:.1} ms: {what}{who}"),
            None => format!("{what}{who}"),
        }
    }
}

// === impl FaultReport ===

impl FaultReport {
    pub fn is_good(&self) -> bool {
        self.noticed.is_some() && self.recovered
    }

    fn text(&self, number: usize) -> String {
        let noticed = self.noticed.as_ref().map_or("NOT NOTICED by the agent".to_owned(), Noticed::text);
        let recovered = if self.recovered { "" } else { "; NO ANSWERS since" };
        format!(
            "{number:2}. {}\n     {noticed}\n     {} of {} pings lost, at most {} ms without an answer{recovered}\n",
            self.done, self.lost, self.sent, self.longest_gap_ms
        )
    }
}

// === impl FaultsReport ===

impl FaultsReport {
    /// How many faults were not noticed, or not repaired.
    pub fn failures(&self) -> usize {
        self.faults.iter().filter(|fault| !fault.is_good()).count()
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let faults: String =
            self.faults.iter().enumerate().map(|(index, fault)| fault.text(index + 1)).collect();
        format!("\nFaults, while {} sends 100 pings a second to {}:\n{faults}", self.from, self.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repair(what: &str, ms: f64) -> Repair {
        let at = "2026-11-28T10:00:00Z".to_owned();
        let (what, kinds, who, errors) = (vec![what.to_owned()], Default::default(), Vec::new(), Vec::new());
        Repair { at, what, more: 0, kinds, who, heard: true, ms, errors }
    }

    fn report(differences: &[&str], total: u64, repairs: Vec<Repair>) -> DriftReport {
        let differences = differences.iter().map(ToString::to_string).collect();
        DriftReport {
            schema: DriftReport::SCHEMA,
            differences,
            unknown: Vec::new(),
            repairs_total: total,
            repairs,
        }
    }

    #[test]
    fn only_repairs_and_differences_since_the_fault_are_what_was_noticed() {
        let repairs =
            || vec![repair("put route c", 3.0), repair("put route b", 2.0), repair("put route a", 1.0)];
        assert_eq!(Noticed::of(&report(&[], 3, repairs()), 3), None);
        let noticed = Noticed::of(&report(&[], 3, repairs()), 1).unwrap();
        assert_eq!(
            (noticed.restored_ms, noticed.what.join(", ")),
            (Some(2.0), "put route b, put route c".to_owned())
        );
        let reported = Noticed::of(&report(&["chain inet foreign guard drops"], 3, repairs()), 3).unwrap();
        assert_eq!((reported.restored_ms, reported.what.len()), (None, 1));
    }

    #[test]
    fn a_fault_that_was_not_noticed_or_not_repaired_is_a_failure_and_is_shown() {
        let noticed = || Noticed::of(&report(&[], 1, vec![repair("put route a", 1.0)]), 0);
        let fault = |noticed, recovered| FaultReport {
            name: "route",
            done: "a route is deleted",
            noticed,
            sent: 90,
            lost: 1,
            longest_gap_ms: 21,
            recovered,
        };
        let faults = vec![fault(noticed(), true), fault(None, true), fault(noticed(), false)];
        let report = FaultsReport { from: "n1-p1".to_owned(), to: "n2-p1".to_owned(), faults };
        assert_eq!(report.failures(), 2);
        let text = report.text();
        for line in [
            " 1. a route is deleted\n     restored in 1.0 ms: put route a\n     1 of 90 pings lost, at most 21 ms without an answer\n",
            "NOT NOTICED by the agent",
            "; NO ANSWERS since",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
