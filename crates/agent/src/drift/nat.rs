//! What pods need of nf_tables besides verdicts, table `inet russet-cni`: masquerade and published ports. Nobody knows its contents but the requests that wrote
//! them, which are over, perhaps in another life of the agent; so a picture of the table is kept, taken anew after each change of our own, and the table is
//! brought back to it. Used by `drift`.
//!
//! Whether a change was our own is not a matter of what was heard, of which some may be lost: [`nat::changes`] counts them, and a picture is good as long as
//! that says the same as when it was taken.

use std::time::Duration;

use russet_attach::nat;
use russet_linux::probe::{self, Feature};
use russet_nft::{NetlinkError, Nft, Photo, Transaction};

use super::Restored;

/// The table, and how it should be.
pub(super) struct Nat {
    nft: Option<Nft>,
    /// None where it has no nf_tables.
    kernel: Option<Kernel>,
    kept: Option<Kept>,
}

/// The kernel and our own commits, or a test's.
#[derive(Clone, Copy)]
struct Kernel {
    open: fn() -> Result<Nft, NetlinkError>,
    /// [`nat::changes`]
    changes: fn() -> Option<u64>,
}

/// A picture of the table, or that it is not there.
struct Kept {
    photo: Option<Photo>,
    /// [`nat::changes`] when it was taken.
    changes: u64,
}

/// The table at the moment of a look, different from the picture.
struct Look {
    now: Option<Photo>,
    generation: u32,
    differences: usize,
}

/// What a look came to.
enum Seen {
    /// It is as it should be, as far as anybody can know.
    Right,
    Wrong(Look),
    /// A request of ours is at work on it: look again.
    Blurred,
}

/// Tries at the table: each failure means that somebody committed meanwhile.
const TRIES: usize = 8;
/// What one of our own commits takes, for somebody who waits for an answer.
const BLURRED_PAUSE: Duration = Duration::from_millis(5);

// === impl Nat ===

impl Nat {
    /// What is there now is how it should be.
    pub fn open() -> Self {
        let unsupported = matches!(probe::supports(Feature::NfTables), Ok(false));
        Self::of_kernel((!unsupported).then_some(Kernel { open: Nft::open, changes: nat::changes }))
    }

    fn of_kernel(kernel: Option<Kernel>) -> Self {
        let mut new = Self { nft: None, kernel, kept: None };
        // Without a picture the next look takes one.
        let _ = new.follow();
        new
    }

    /// Takes a new picture if requests of ours have changed the table since the last one. False while one is at work: then there will be another.
    pub fn follow(&mut self) -> Result<bool, NetlinkError> {
        // What cannot be opened now, for want of descriptors, may be later.
        let Some(Kernel { open, changes: count }) = self.kernel else { return Ok(true) };
        let nft = match &mut self.nft {
            Some(nft) => nft,
            none => none.insert(open()?),
        };
        let Some(changes) = count() else { return Ok(false) };
        if self.kept.as_ref().is_some_and(|kept| kept.changes == changes) {
            return Ok(true);
        }
        // An older one is worse than none: what was added since would go.
        self.kept = None;
        let photo = nft.photograph(&nat::table())?;
        let still = count() == Some(changes);
        self.kept = still.then_some(Kept { photo, changes });
        Ok(still)
    }

    /// Brings the table back to its picture. The second is false where that failed; none where a request of ours is at work on it, which is soon over.
    pub fn restore(&mut self) -> Option<(Restored, bool)> {
        let failed = |what: &str, error: String| Some((Restored::failed(what, error), false));
        let mut stale = None;
        for _ in 0..TRIES {
            let look = match self.look() {
                Ok(Seen::Right) => return Some((Restored::default(), true)),
                Ok(Seen::Blurred) => continue,
                Ok(Seen::Wrong(look)) => look,
                Err(error) => return failed("compare table inet russet-cni", error.to_string()),
            };
            let (Some(nft), Some(Kept { photo: Some(photo), .. })) = (&mut self.nft, &self.kept) else {
                break;
            };
            let mut transaction = Transaction::new();
            transaction.only_at(look.generation).restore(photo);
            match nft.commit(&transaction) {
                Ok(()) => {
                    let (what, kinds) = (vec![look.to_string()], vec![("pod_nat", 1)]);
                    return Some((Restored { what, kinds, errors: Vec::new() }, true));
                }
                Err(error) if error.is_stale() => stale = Some((look, error)),
                Err(error) => return failed(&look.to_string(), error.to_string()),
            }
        }
        // Others commit without end.
        stale.and_then(|(look, error)| failed(&look.to_string(), error.to_string()))
    }

    /// What differs, in words; changes nothing.
    pub fn differences(&mut self) -> Result<Vec<String>, String> {
        let unknown = |error: String| format!("table {}: {error}", nat::table().name);
        for _ in 0..TRIES {
            match self.look().map_err(|error| unknown(error.to_string()))? {
                Seen::Wrong(look) => return Ok(vec![look.to_string()]),
                Seen::Right => return Ok(Vec::new()),
                Seen::Blurred => std::thread::park_timeout(BLURRED_PAUSE),
            }
        }
        Err(unknown("requests of ours change it all the while".to_owned()))
    }

    fn look(&mut self) -> Result<Seen, NetlinkError> {
        if !self.follow()? {
            return Ok(Seen::Blurred);
        }
        // A table that should not be there is somebody else's.
        let (Some(nft), Some(kernel), Some(Kept { photo: Some(photo), changes })) =
            (&mut self.nft, self.kernel, &self.kept)
        else {
            return Ok(Seen::Right);
        };
        let generation = nft.generation()?;
        let now = nft.photograph(&nat::table())?;
        let differences = photo.differs_from(now.as_ref());
        Ok(match differences {
            0 => Seen::Right,
            // Later changes make for another generation.
            _ if (kernel.changes)() == Some(*changes) => Seen::Wrong(Look { now, generation, differences }),
            _ => Seen::Blurred,
        })
    }
}

// === impl Look ===

impl std::fmt::Display for Look {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = if self.now.is_some() { "changed" } else { "gone" };
        let Self { differences, .. } = self;
        write!(f, "restore table inet {}, which was {state}: {differences} differences", nat::table().name)
    }
}

#[cfg(test)]
mod tests;
