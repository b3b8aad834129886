//! The host ends of pods' interfaces, with their routes, neighbours, sysctls and bridges. Used by
//! `drift`.

use std::collections::BTreeMap;
use std::slice;

use russet_attach::restore::{self, Depth, Fix, Tables};
use russet_netlink::{NetlinkError, Socket};

use super::Restored;
use super::attached_interfaces::{AttachedInterfaces, Entry};

/// Compares and restores. One thread at a time works on it.
pub(super) struct Pods {
    socket: Socket,
    interfaces: AttachedInterfaces,
}

/// An interface and the fixes that it needs.
type Wrong = (Entry, Vec<Fix>);

// === impl Pods ===

impl Pods {
    pub fn open(interfaces: AttachedInterfaces) -> Result<Self, NetlinkError> {
        Ok(Self { socket: Socket::route()?, interfaces })
    }

    /// Restores what is missing. The second value is false if some of that failed.
    pub fn restore(&mut self, depth: Depth) -> (Restored, bool) {
        match self.confirmed(depth) {
            Ok(wrong) => {
                let restored = self.restore_all(wrong);
                let succeeded = restored.errors.is_empty();
                (restored, succeeded)
            }
            Err(error) => (Restored::failed("compare pods' interfaces", error.to_string()), false),
        }
    }

    /// The differences as text. Changes nothing.
    pub fn differences(&mut self) -> Result<Vec<String>, String> {
        let wrong =
            self.wrong(self.interfaces.entries(), Depth::Everything).map_err(|error| error.to_string())?;
        Ok(wrong.iter().flat_map(|(_, fixes)| fixes).map(Fix::to_string).collect())
    }

    /// Compares again what differed: the tables are read one after the other, so an interface that
    /// is removed in between looks incomplete.
    fn confirmed(&mut self, depth: Depth) -> Result<Vec<Wrong>, NetlinkError> {
        let wrong = self.wrong(self.interfaces.entries(), depth)?;
        self.wrong(wrong.into_iter().map(|(entry, _)| entry).collect(), depth)
    }

    fn wrong(&mut self, entries: Vec<Entry>, depth: Depth) -> Result<Vec<Wrong>, NetlinkError> {
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        let tables = Tables::read(&mut self.socket)?;
        let wrong = |entry: Entry| {
            // An interface without a valid plan cannot be one of ours.
            let plan = entry.wired.plan().ok()?;
            let fixes = restore::differences(slice::from_ref(&plan), &tables, depth);
            (!fixes.is_empty()).then_some((entry, fixes))
        };
        Ok(entries.into_iter().filter_map(wrong).collect())
    }

    /// Restores one interface at a time, because requests wait for this lock on the thread that
    /// serves all of them. An interface that has left since the comparison is skipped.
    fn restore_all(&mut self, wrong: Vec<Wrong>) -> Restored {
        let Self { socket, interfaces } = self;
        let (mut kinds, mut what, mut errors) = (BTreeMap::new(), Vec::new(), Vec::new());
        for (entry, fixes) in wrong {
            let Some(results) = interfaces.while_attached(&entry, || restore::restore(socket, &fixes)) else {
                continue;
            };
            for (fix, result) in fixes.iter().zip(results) {
                what.push(fix.to_string());
                match result {
                    Ok(()) => *kinds.entry(fix.remedy.kind()).or_insert(0) += 1,
                    Err(error) => errors.push(format!("{fix}: {error}")),
                }
            }
        }
        Restored { what, kinds: kinds.into_iter().collect(), errors }
    }
}
