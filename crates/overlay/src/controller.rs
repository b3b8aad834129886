//! The shape of everything that keeps a part of the kernel's state: it knows what should be there,
//! reads what is there, computes the difference, and applies it. Implemented here for nodes' routes
//! and tunnels, in `openshift` for its data path, and in the agent for the rest of a node's state.
//!
//! Level-triggered: nothing is remembered of what was applied, so objects that another program
//! removed are restored, and the next reconciliation completes one that was dropped halfway.

use std::fmt;

use crate::report::{OverlayError, ReconcileReport};

/// Keeps one part of the kernel's state.
pub trait Controller: Sized {
    /// The state that should be.
    type Desired;
    /// The state that is, as far as it matters here.
    type Observed;
    /// One change that brings the second closer to the first. Its text is what an operator reads.
    type Difference: fmt::Display;

    /// How often one reconciliation reads the kernel, because other programs overtook it
    /// ([`OverlayError::is_transient`]) or because it needs several [rounds](Round::Again).
    const ROUNDS_MAX: usize = 1;

    /// None if nothing is to be kept now.
    fn desired(&mut self) -> Result<Option<Self::Desired>>;

    /// Reads the kernel. On an error nothing is changed; an error that concerns a part only goes
    /// into the report.
    fn observe(&mut self, desired: &Self::Desired, report: &mut ReconcileReport) -> Result<Self::Observed>;

    /// Pure: what differs, in the order in which it is to be changed. What cannot be as desired is
    /// refused in the report.
    fn diff(
        &self,
        desired: &Self::Desired,
        observed: &Self::Observed,
        report: &mut ReconcileReport,
    ) -> Vec<Self::Difference>;

    /// Changes the kernel. The report gets the text of each difference
    /// ([`ReconcileReport::note`]), what took effect, and what failed.
    fn apply(&mut self, comparison: Comparison<Self>, report: &mut ReconcileReport) -> Result<Round>;
}

/// What a controller knows before it changes the kernel.
#[derive(Debug)]
pub struct Comparison<C: Controller> {
    pub desired: C::Desired,
    pub observed: C::Observed,
    pub differences: Vec<C::Difference>,
}

/// What follows after differences were applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Round {
    /// Nothing.
    Complete,
    /// Some differences can be computed only now.
    Again,
}

pub type Result<T, E = OverlayError> = std::result::Result<T, E>;

/// Brings the kernel to the desired state.
pub fn reconcile<C: Controller>(controller: &mut C) -> ReconcileReport {
    let mut report = ReconcileReport::default();
    for round in 1..=C::ROUNDS_MAX {
        let noted = report.what.len();
        report.refusals.clear();
        let done = match compare(controller, &mut report) {
            Ok(Some(found)) if !found.differences.is_empty() => controller.apply(found, &mut report),
            Ok(_) => Ok(Round::Complete),
            Err(error) => Err(error),
        };
        match done {
            Ok(Round::Complete) => break,
            Ok(Round::Again) => {}
            Err(error) if error.is_transient() && round < C::ROUNDS_MAX => report.what.truncate(noted),
            Err(error) => {
                report.fail(error);
                break;
            }
        }
    }
    report
}

/// What differs from the desired state, as text. Changes nothing.
pub fn differences<C: Controller>(controller: &mut C) -> Result<Vec<String>> {
    let mut report = ReconcileReport::default();
    let compared = compare(controller, &mut report)?;
    match report.errors.into_iter().next() {
        Some(error) => Err(error),
        None => {
            Ok(compared.iter().flat_map(|found| &found.differences).map(C::Difference::to_string).collect())
        }
    }
}

/// Compares, and changes nothing. None if nothing is to be kept.
pub fn compare<C: Controller>(
    controller: &mut C,
    report: &mut ReconcileReport,
) -> Result<Option<Comparison<C>>> {
    let Some(desired) = controller.desired()? else { return Ok(None) };
    let observed = controller.observe(&desired, report)?;
    let differences = controller.diff(&desired, &observed, report);
    Ok(Some(Comparison { desired, observed, differences }))
}
