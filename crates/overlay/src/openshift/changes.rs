//! Collects the differences of one comparison: each is described and, except in a dry run,
//! repaired. Created by `Sdn` and passed to everything that compares.

use russet_linux::sysctl;
use russet_netlink::{Batch, BatchError, NetlinkError, Socket};

use super::SdnError;
use crate::report::{Kind, OverlayError, ReconcileReport};

/// The differences found so far, and the results of their repair.
#[derive(Debug)]
pub(super) struct Changes {
    is_dry_run: bool,
    what: Vec<String>,
    report: ReconcileReport,
}

/// The result of a comparison: the report, and a description of each difference.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What took effect, and what failed.
    pub report: ReconcileReport,
    /// One line for each difference, in order.
    pub what: Vec<String>,
}

// === impl Changes ===

impl Changes {
    /// Differences are repaired.
    pub fn repairing() -> Self {
        Self { is_dry_run: false, what: Vec::new(), report: ReconcileReport::default() }
    }

    /// Dry run: differences are described, and nothing is changed.
    pub fn dry_run() -> Self {
        Self { is_dry_run: true, ..Self::repairing() }
    }

    pub fn is_dry_run(&self) -> bool {
        self.is_dry_run
    }

    pub fn report(&mut self) -> &mut ReconcileReport {
        &mut self.report
    }

    /// Number of differences found so far.
    pub fn differences(&self) -> usize {
        self.what.len()
    }

    pub fn fail(&mut self, error: impl Into<OverlayError>) {
        self.report.fail(error);
    }

    pub fn finish(self) -> Outcome {
        Outcome { report: self.report, what: self.what }
    }

    /// Records a repair that was not a netlink request.
    pub fn repaired(&mut self, kind: Kind, what: impl Into<String>) {
        self.what.push(what.into());
        if !self.is_dry_run {
            self.report.count(kind);
        }
    }

    /// Sends requests on which nothing later depends; a missing object is not an error, since it
    /// may have been removed meanwhile.
    pub fn execute(&mut self, socket: &mut Socket, batch: &Batch, kind: Kind) {
        self.execute_each(socket, batch, |_| kind);
    }

    /// Like `execute`, with a kind for each request, by its index.
    pub fn execute_each(&mut self, socket: &mut Socket, batch: &Batch, kind: impl Fn(usize) -> Kind) {
        self.what.extend((0..batch.len()).map(|index| socket.describe(batch, index)));
        if self.is_dry_run {
            return;
        }
        for (index, result) in socket.execute_all(batch).into_iter().enumerate() {
            match result {
                Ok(()) => self.report.count(kind(index)),
                Err(error) if error.is_not_found() => {}
                Err(error) => self.report.fail(error),
            }
        }
    }

    /// Sends requests on which the rest depends; stops at the first error.
    pub fn insist(&mut self, socket: &mut Socket, batch: &Batch, kind: Kind) -> Result<(), NetlinkError> {
        self.what.extend((0..batch.len()).map(|index| socket.describe(batch, index)));
        if !self.is_dry_run {
            socket.execute(batch).map_err(|error: BatchError| error.error)?;
            self.report.count(kind);
        }
        Ok(())
    }

    /// Writes a sysctl. Without IPv6 its sysctls are missing and are not needed.
    pub fn sysctl(&mut self, name: &str, value: &str) -> Result<(), SdnError> {
        match sysctl::read(name) {
            Ok(found) if found == value => return Ok(()),
            Ok(_) => {}
            Err(error) if error.is_missing() && name.starts_with("net/ipv6/") => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        if !self.is_dry_run {
            sysctl::write(name, value)?;
        }
        self.repaired(Kind::Sysctl, format!("write sysctl {name} = {value}"));
        Ok(())
    }
}
