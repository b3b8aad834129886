//! The host ends of pods' interfaces, with their routes, neighbours, sysctls and bridges. Used by
//! `controllers`.

use std::fmt;
use std::slice;

use russet_attach::restore::{self, Depth, Fix, Tables};
use russet_journal::{Endpoint, EndpointTable};
use russet_netlink::{NetlinkError, Socket};
use russet_overlay::controller::{self, Comparison, Controller, Result, Round};
use russet_overlay::{OverlayError, ReconcileReport};

/// Compares and restores. One thread at a time works on it.
pub(super) struct Endpoints {
    socket: Socket,
    table: EndpointTable,
    /// How much the next comparison covers.
    depth: Depth,
}

/// One fix, and the endpoint that needs it, by its index among the desired ones.
pub(super) struct Difference {
    endpoint: usize,
    fix: Fix,
}

// === impl Endpoints ===

impl Endpoints {
    pub fn open(table: EndpointTable) -> Result<Self, NetlinkError> {
        Ok(Self { socket: Socket::route()?, table, depth: Depth::Everything })
    }

    /// Restores what is missing.
    pub fn reconcile(&mut self, depth: Depth) -> ReconcileReport {
        self.depth = depth;
        let mut report = controller::reconcile(self);
        if report.what.is_empty() && report.failed > 0 {
            report.note(["compare pods' interfaces"]);
        }
        report
    }

    /// The differences as text. Changes nothing.
    pub fn differences(&mut self) -> Result<Vec<String>, String> {
        self.depth = Depth::Everything;
        controller::differences(self).map_err(|error| error.to_string())
    }
}

impl Controller for Endpoints {
    type Desired = Vec<Endpoint>;
    type Observed = Tables;
    type Difference = Difference;

    fn desired(&mut self) -> Result<Option<Vec<Endpoint>>> {
        Ok(Some(self.table.attached()).filter(|endpoints| !endpoints.is_empty()))
    }

    fn observe(&mut self, _desired: &Vec<Endpoint>, _: &mut ReconcileReport) -> Result<Tables> {
        Ok(Tables::read(&mut self.socket)?)
    }

    fn diff(
        &self,
        desired: &Vec<Endpoint>,
        observed: &Tables,
        _report: &mut ReconcileReport,
    ) -> Vec<Difference> {
        let fixes = |(endpoint, wanted): (usize, &Endpoint)| {
            // An interface without a valid plan cannot be one of ours.
            let plan = wanted.wired.as_deref().and_then(|wired| wired.plan().ok());
            let fixes = plan.map(|plan| restore::differences(slice::from_ref(&plan), observed, self.depth));
            fixes.unwrap_or_default().into_iter().map(move |fix| Difference { endpoint, fix })
        };
        desired.iter().enumerate().flat_map(fixes).collect()
    }

    /// Restores one interface at a time, because requests wait for this lock on the thread that
    /// serves all of them. An interface that has left since the comparison is skipped.
    fn apply(&mut self, comparison: Comparison<Self>, report: &mut ReconcileReport) -> Result<Round> {
        let Comparison { desired, differences, .. } = comparison;
        let Self { socket, table, .. } = self;
        for wrong in differences.chunk_by(|a, b| a.endpoint == b.endpoint) {
            let Some(endpoint) = wrong.first().and_then(|first| desired.get(first.endpoint)) else {
                continue;
            };
            let fixes: Vec<Fix> = wrong.iter().map(|difference| difference.fix.clone()).collect();
            let results = table.while_attached(endpoint, || restore::restore(socket, &fixes));
            let Some(results) = results else { continue };
            report.note(wrong);
            for (fix, result) in fixes.iter().zip(results) {
                match result {
                    Ok(()) => report.count_as(fix.remedy.kind()),
                    Err(error) => report.fail(OverlayError::Other(format!("{fix}: {error}").into())),
                }
            }
        }
        Ok(Round::Complete)
    }
}

// === impl Difference ===

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fix.fmt(f)
    }
}
