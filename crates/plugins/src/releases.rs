//! Addresses that a DEL gives back after everything else of it is done: whoever runs the plugin decides whether to wait for that before the answer
//! ([`Done::settled`](crate::Done::settled)), or to answer and see to it that it comes to its end ([`Done::release`](crate::Done)). ADDs that find no address
//! meanwhile wait for those that are on their way.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use russet_cni_spec::CniError;
use russet_store::BoxFuture;
use tokio::sync::watch;
use tokio::time::Instant;

/// The rest of a DEL: its addresses go back to the store. Nothing of it happens unless it is run.
#[must_use = "the addresses stay held"]
pub struct Release {
    work: BoxFuture<'static, Result<(), CniError>>,
    _pending: Pending,
}

/// The releases of one node that are not done yet. Clones share them.
#[derive(Debug, Clone)]
pub struct Releases(Rc<watch::Sender<Count>>);

/// Where the releases of a node stood.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Count {
    begun: u64,
    ended: u64,
}

/// A release that is not done.
struct Pending(Rc<watch::Sender<Count>>);

/// How long an ADD waits for addresses that others are giving back. A store that takes longer is in trouble, and the runtime tries again.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

// === impl Release ===

impl Release {
    /// `work` as one of `releases`.
    pub fn new(releases: &Releases, work: impl Future<Output = Result<(), CniError>> + 'static) -> Self {
        releases.0.send_modify(|count| count.begun += 1);
        Self { work: Box::pin(work), _pending: Pending(Rc::clone(&releases.0)) }
    }

    /// Gives the addresses back. Once started it is to be run to its end.
    pub async fn run(self) -> Result<(), CniError> {
        let Self { work, _pending } = self;
        work.await
    }
}

impl fmt::Debug for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Release").finish_non_exhaustive()
    }
}

// === impl Releases ===

impl Default for Releases {
    fn default() -> Self {
        Self(Rc::new(watch::Sender::new(Count::default())))
    }
}

impl Releases {
    /// How many are not done.
    pub fn pending(&self) -> u64 {
        let count = *self.0.borrow();
        count.begun - count.ended
    }

    /// Where they stand, for [`moved_on`](Self::moved_on).
    pub(crate) fn count(&self) -> Count {
        *self.0.borrow()
    }

    /// Waits until one more has ended than `before`; false if none of them is under way, and after `limit` whatever ends.
    pub(crate) async fn moved_on(&self, before: Count, limit: Instant) -> bool {
        let mut counts = self.0.subscribe();
        let moved = counts.wait_for(|now| now.ended > before.ended || now.ended == now.begun);
        // Neither happens: the sender lives as long as we, and what is on its way ends.
        let _ = tokio::time::timeout_at(limit, moved).await;
        // Where releases end all the time, and none of them is of use, each look would be followed by another.
        self.count().ended > before.ended && Instant::now() < limit
    }
}

// === impl Pending ===

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.send_modify(|count| count.ended += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[tokio::test]
    async fn whoever_finds_nothing_waits_for_what_is_on_its_way_and_for_nothing_else() {
        let releases = Releases::default();
        let before = releases.count();
        assert!(!releases.moved_on(before, soon()).await, "none is under way");
        let [one, other] = [(); 2].map(|()| Release::new(&releases, async { Ok(()) }));
        assert_eq!(releases.pending(), 2);
        assert!(!releases.moved_on(before, Instant::now()).await, "the time is up");
        let (ended, moved) = tokio::join!(one.run(), releases.moved_on(before, soon()));
        assert!(ended.is_ok() && moved);
        // It ended between the look for an address and this question.
        assert!(releases.moved_on(before, soon()).await);
        assert!(
            !releases.moved_on(before, Instant::now()).await,
            "one has ended, and the time is up all the same"
        );
        drop(other);
        assert_eq!(releases.pending(), 0, "one that is given up keeps nobody waiting");
        assert!(!releases.moved_on(releases.count(), soon()).await);
    }
}
