//! Addresses that a DEL releases after everything else is done. The caller of the plugin decides
//! whether to wait for the release before the answer
//! ([`RequestOutcome::settled`](crate::RequestOutcome::settled)), or to answer first and
//! finish the release later ([`RequestOutcome::release`](crate::RequestOutcome)). ADDs that find
//! no free address wait for releases in progress.

use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use russet_cni_spec::CniError;
use russet_store::BoxFuture;
use russet_wiring::failure::NO_ADDRESS;
use tokio::sync::watch;
use tokio::time::Instant;

/// The last part of a DEL: returning its addresses to the store. Nothing happens until it is run.
#[must_use = "the addresses stay held"]
pub struct Release {
    work: BoxFuture<'static, Result<(), CniError>>,
    _pending: Pending,
}

/// The unfinished releases of one node. Clones share them.
#[derive(Debug, Clone)]
pub struct Releases(Rc<watch::Sender<ReleaseCount>>);

/// How many releases a node has started and ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReleaseCount {
    started: u64,
    ended: u64,
}

/// Counts a release as unfinished until it is dropped.
struct Pending(Rc<watch::Sender<ReleaseCount>>);

/// How long an ADD waits for addresses that are being released. A store that takes longer is in
/// trouble; the runtime tries again.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Repeats an ADD that found no free address while addresses of answered DELs are on their way back to
/// the store. An ADD that failed has left nothing.
pub(crate) async fn retried<T>(
    releases: &Releases,
    add: impl AsyncFn() -> Result<T, CniError>,
) -> Result<T, CniError> {
    let limit = Instant::now() + WAIT_TIMEOUT;
    loop {
        let before = releases.count();
        match add().await {
            Err(error) if error.code == NO_ADDRESS && releases.wait_for_progress(before, limit).await => {}
            done => return done,
        }
    }
}

// === impl Release ===

impl Release {
    /// Registers `work` in `releases`.
    pub fn new(releases: &Releases, work: impl Future<Output = Result<(), CniError>> + 'static) -> Self {
        releases.0.send_modify(|count| count.started += 1);
        Self { work: Box::pin(work), _pending: Pending(Rc::clone(&releases.0)) }
    }

    /// Releases the addresses. Once started, it must run to its end.
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
        Self(Rc::new(watch::Sender::new(ReleaseCount::default())))
    }
}

impl Releases {
    /// The number of unfinished releases.
    pub fn pending(&self) -> u64 {
        let count = *self.0.borrow();
        count.started - count.ended
    }

    /// The current count, for [`wait_for_progress`](Self::wait_for_progress).
    pub(crate) fn count(&self) -> ReleaseCount {
        *self.0.borrow()
    }

    /// Waits until one more release has ended than in `before`. Returns false if none is in
    /// progress, and after `limit` in any case.
    pub(crate) async fn wait_for_progress(&self, before: ReleaseCount, limit: Instant) -> bool {
        let mut counts = self.0.subscribe();
        let moved = counts.wait_for(|now| now.ended > before.ended || now.ended == now.started);
        // The sender lives as long as `self`, so the wait ends by an end of a release or by the
        // time limit.
        let _ = tokio::time::timeout_at(limit, moved).await;
        // Past the limit the answer is false even if a release ended: otherwise a caller that none
        // of them helps would retry for ever.
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
    async fn the_wait_ends_with_the_next_release_and_at_once_without_one() {
        let releases = Releases::default();
        let before = releases.count();
        assert!(!releases.wait_for_progress(before, soon()).await, "none is in progress");
        let [one, other] = [(); 2].map(|()| Release::new(&releases, async { Ok(()) }));
        assert_eq!(releases.pending(), 2);
        assert!(!releases.wait_for_progress(before, Instant::now()).await, "the time is up");
        let (ended, moved) = tokio::join!(one.run(), releases.wait_for_progress(before, soon()));
        assert!(ended.is_ok() && moved);
        // The release ended between the search for an address and this question.
        assert!(releases.wait_for_progress(before, soon()).await);
        assert!(
            !releases.wait_for_progress(before, Instant::now()).await,
            "one has ended, and the time is up all the same"
        );
        drop(other);
        assert_eq!(releases.pending(), 0, "a dropped release is not waited for");
        assert!(!releases.wait_for_progress(releases.count(), soon()).await);
    }
}
