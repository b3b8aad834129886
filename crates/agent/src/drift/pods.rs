//! The node's side of pods' interfaces: host ends, their routes, neighbours, sysctls and bridges. Used by `drift`.

use std::collections::BTreeMap;
use std::slice;

use russet_attach::restore::{self, Depth, Fix, Tables};
use russet_netlink::{NetlinkError, Socket};

use super::Restored;
use super::mirror::{Kept, Mirror};

/// Compares and restores; in one pair of hands at a time.
pub(super) struct Pods {
    socket: Socket,
    mirror: Mirror,
}

/// An attachment, and what is not as it should be of it.
type Wrong = (Kept, Vec<Fix>);

// === impl Pods ===

impl Pods {
    pub fn open(mirror: Mirror) -> Result<Self, NetlinkError> {
        Ok(Self { socket: Socket::route()?, mirror })
    }

    /// Puts back what is missing. The second is false where something of that failed.
    pub fn restore(&mut self, depth: Depth) -> (Restored, bool) {
        match self.twice(depth) {
            Ok(wrong) => {
                let restored = self.put_back(wrong);
                let succeeded = restored.errors.is_empty();
                (restored, succeeded)
            }
            Err(error) => (Restored::failed("compare pods' interfaces", error.to_string()), false),
        }
    }

    /// What differs, in words; changes nothing.
    pub fn differences(&mut self) -> Result<Vec<String>, String> {
        let wrong = self.wrong(self.mirror.kept(), Depth::Everything).map_err(|error| error.to_string())?;
        Ok(wrong.iter().flat_map(|(_, fixes)| fixes).map(Fix::to_string).collect())
    }

    /// Looks once more at what is wrong: the tables are read one after the other, and what was missing from one may have vanished from all.
    fn twice(&mut self, depth: Depth) -> Result<Vec<Wrong>, NetlinkError> {
        let wrong = self.wrong(self.mirror.kept(), depth)?;
        self.wrong(wrong.into_iter().map(|(kept, _)| kept).collect(), depth)
    }

    fn wrong(&mut self, kept: Vec<Kept>, depth: Depth) -> Result<Vec<Wrong>, NetlinkError> {
        if kept.is_empty() {
            return Ok(Vec::new());
        }
        let tables = Tables::read(&mut self.socket)?;
        let wrong = |kept: Kept| {
            // One that cannot be is nobody's.
            let plan = kept.wired.plan().ok()?;
            let fixes = restore::differences(slice::from_ref(&plan), &tables, depth);
            (!fixes.is_empty()).then_some((kept, fixes))
        };
        Ok(kept.into_iter().filter_map(wrong).collect())
    }

    /// One attachment at a time: requests wait for the mirror, on the thread that serves all of them. Whatever left since it was looked at is left alone.
    fn put_back(&mut self, wrong: Vec<Wrong>) -> Restored {
        let Self { socket, mirror } = self;
        let (mut kinds, mut what, mut errors) = (BTreeMap::new(), Vec::new(), Vec::new());
        for (kept, fixes) in wrong {
            let Some(results) = mirror.while_kept(&kept, || restore::restore(socket, &fixes)) else {
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
