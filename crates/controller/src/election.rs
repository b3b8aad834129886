//! Which replica leads: the rules of client-go's leader election over a lease. Pure: times are those
//! of the replica's own monotonic clock, and a lease's own times are never compared with it, so
//! clocks that differ do not matter. What counts is for how long this replica has seen the lease
//! unchanged.

use std::time::Duration;

use russet_kube::Lease;
use serde_json::Value;

/// The times of an election; the defaults are client-go's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// For how long a lease is its holder's after a renewal. Whole seconds.
    pub lease: Duration,
    /// A leader that could not renew for this long stops its work.
    pub renew_deadline: Duration,
    /// Between two attempts to take or to renew it.
    pub retry: Duration,
}

/// What a replica may do with the lease that it has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Write it with its own name.
    Take,
    /// It is another replica's.
    Wait,
}

/// One replica's view of the election.
#[derive(Debug)]
pub struct Election {
    identity: String,
    timing: Timing,
    /// What holders wrote last, and when this replica saw it first.
    seen: Option<(Value, Duration)>,
    /// When the last successful write of this replica was begun.
    renewed: Option<Duration>,
}

// === impl Timing ===

impl Default for Timing {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { lease: seconds(15), renew_deadline: seconds(10), retry: seconds(2) }
    }
}

impl Timing {
    /// How long after a renewal a leader may begin a write. A write ends within ten seconds, by our
    /// deadline and the server's: with the default of 5 s each one has ended before another replica
    /// can lead.
    pub fn write_window(self) -> Duration {
        self.lease / 3
    }

    /// Why an election with these times cannot work.
    pub fn refused(self) -> Option<&'static str> {
        if self.lease.subsec_nanos() != 0 || self.lease.is_zero() {
            return Some("the lease duration must be whole seconds, and at least one");
        }
        if self.renew_deadline >= self.lease {
            return Some("the renew deadline must be shorter than the lease duration");
        }
        (self.retry >= self.write_window())
            .then_some("the retry period must be shorter than a third of the lease duration")
    }
}

// === impl Election ===

impl Election {
    pub fn new(identity: String, timing: Timing) -> Self {
        Self { identity, timing, seen: None, renewed: None }
    }

    pub fn identity(&self) -> &str {
        &self.identity
    }

    pub fn timing(&self) -> Timing {
        self.timing
    }

    /// The lease was read.
    pub fn observe(&mut self, lease: Option<&Lease>, now: Duration) -> Turn {
        let Some(lease) = lease else { return Turn::Take };
        if self.seen.as_ref().is_none_or(|(spec, _)| spec != lease.spec()) {
            self.seen = Some((lease.spec().clone(), now));
        }
        let since = self.seen.as_ref().map_or(now, |(_, since)| *since);
        let duration = if lease.duration().is_zero() { self.timing.lease } else { lease.duration() };
        let is_free = lease.holder().is_empty() || lease.holder() == self.identity;
        if is_free || now >= since + duration { Turn::Take } else { Turn::Wait }
    }

    /// This replica's write of the lease, begun at `began`, was accepted.
    pub fn written(&mut self, lease: &Lease, began: Duration) {
        self.seen = Some((lease.spec().clone(), began));
        self.renewed = Some(began);
    }

    /// Another replica has the lease, or it was released.
    pub fn lost(&mut self) {
        self.renewed = None;
    }

    /// How long this replica may still lead without another renewal; none if it does not lead.
    pub fn left(&self, now: Duration) -> Option<Duration> {
        let end = self.renewed? + self.timing.renew_deadline;
        end.checked_sub(now).filter(|left| !left.is_zero())
    }

    /// Until when writes may be begun.
    pub fn writes_until(&self) -> Option<Duration> {
        Some(self.renewed? + self.timing.write_window())
    }
}

#[cfg(test)]
mod tests;
