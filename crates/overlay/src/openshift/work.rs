//! One comparison of what is with what should be: whatever is different is put into words and, unless somebody only looks, put right. Made by `Sdn`,
//! handed through everything that compares.

use russet_linux::sysctl;
use russet_netlink::{Batch, BatchError, NetlinkError, Socket};

use super::SdnError;
use crate::report::{Kind, OverlayError, Report};

/// What was found different, and what became of it.
#[derive(Debug)]
pub(super) struct Work {
    looks_only: bool,
    what: Vec<String>,
    report: Report,
}

/// What came of a comparison: the report, and what was or is to be done, in words.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What took effect, and what failed.
    pub report: Report,
    /// One line for each difference, in order.
    pub what: Vec<String>,
}

// === impl Work ===

impl Work {
    /// Differences are put right.
    pub fn mends() -> Self {
        Self { looks_only: false, what: Vec::new(), report: Report::default() }
    }

    /// They are told, and nothing is changed.
    pub fn looks() -> Self {
        Self { looks_only: true, ..Self::mends() }
    }

    pub fn looks_only(&self) -> bool {
        self.looks_only
    }

    pub fn report(&mut self) -> &mut Report {
        &mut self.report
    }

    /// How much was found different so far.
    pub fn differences(&self) -> usize {
        self.what.len()
    }

    pub fn fail(&mut self, error: impl Into<OverlayError>) {
        self.report.fail(error);
    }

    pub fn finish(self) -> Outcome {
        Outcome { report: self.report, what: self.what }
    }

    /// Something that is no netlink request was different.
    pub fn mended(&mut self, kind: Kind, what: impl Into<String>) {
        self.what.push(what.into());
        if !self.looks_only {
            self.report.count(kind);
        }
    }

    /// Carries requests out that nothing later depends on; what they are about may have gone meanwhile.
    pub fn execute(&mut self, socket: &mut Socket, batch: &Batch, kind: Kind) {
        self.execute_each(socket, batch, |_| kind);
    }

    /// The same, with kinds by the requests' order.
    pub fn execute_each(&mut self, socket: &mut Socket, batch: &Batch, kind: impl Fn(usize) -> Kind) {
        self.what.extend((0..batch.len()).map(|index| socket.describe(batch, index)));
        if self.looks_only {
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

    /// Carries out what the rest depends on.
    pub fn insist(&mut self, socket: &mut Socket, batch: &Batch, kind: Kind) -> Result<(), NetlinkError> {
        self.what.extend((0..batch.len()).map(|index| socket.describe(batch, index)));
        if !self.looks_only {
            socket.execute(batch).map_err(|error: BatchError| error.error)?;
            self.report.count(kind);
        }
        Ok(())
    }

    /// Where there is no IPv6 there is nothing to switch off.
    pub fn sysctl(&mut self, name: &str, value: &str) -> Result<(), SdnError> {
        match sysctl::read(name) {
            Ok(found) if found == value => return Ok(()),
            Ok(_) => {}
            Err(error) if error.is_missing() && name.starts_with("net/ipv6/") => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        if !self.looks_only {
            sysctl::write(name, value)?;
        }
        self.mended(Kind::Sysctl, format!("write sysctl {name} = {value}"));
        Ok(())
    }
}
