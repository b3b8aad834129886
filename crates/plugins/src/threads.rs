//! Threads for what blocks and may hang without the kernel's doing: other plugins' processes, and the lock of `host-local`. The process has threads for
//! all kinds of blocking work together, so each kind has a limit of its own, and ADDs leave some of that to DELs. The work on the kernel has its places
//! from here, too.

use std::sync::{Arc, LazyLock};

use russet_cni_spec::CniError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Threads that one kind of work may take at once. Two kinds and what works on the kernel take a bit more than half of the agent's.
const AT_ONCE_MAX: usize = 16;
/// Of these, what is left to DELs: a hundred ADDs whose plugin hangs keep no pod from being deleted.
const DELS_MIN: usize = 4;

/// How much of one kind of work goes on at once. Clones share the places.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    all: Arc<Semaphore>,
    /// For ADDs, before they take a place.
    births: Arc<Semaphore>,
}

/// The right to work, for as long as it is kept.
pub(crate) struct Place {
    _birth: Option<OwnedSemaphorePermit>,
    _place: OwnedSemaphorePermit,
}

/// The threads of one kind of work.
pub(crate) struct Threads(LazyLock<Places>);

// === impl Places ===

impl Places {
    /// So many, of which ADDs never take the last `dels_min`.
    pub fn new(at_once_max: usize, dels_min: usize) -> Self {
        let births = Arc::new(Semaphore::new(at_once_max - dels_min));
        Self { all: Arc::new(Semaphore::new(at_once_max)), births }
    }

    /// One of them, in its turn; `adds` says that it is an ADD's.
    pub async fn take(&self, adds: bool) -> Result<Place, CniError> {
        let _birth = if adds { Some(one_of(&self.births).await?) } else { None };
        Ok(Place { _birth, _place: one_of(&self.all).await? })
    }

    /// One for an ADD that nobody waits for.
    pub fn take_free(&self) -> Option<Place> {
        let one_of = |places: &Arc<Semaphore>| Arc::clone(places).try_acquire_owned().ok();
        Some(Place { _birth: Some(one_of(&self.births)?), _place: one_of(&self.all)? })
    }

    #[cfg(test)]
    pub fn are_taken(&self) -> bool {
        self.all.available_permits() == 0
    }
}

async fn one_of(places: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, CniError> {
    let place = Arc::clone(places).acquire_owned().await;
    place.map_err(|error| CniError::internal("nothing is begun any more", error))
}

// === impl Threads ===

impl Threads {
    pub const fn new() -> Self {
        Self(LazyLock::new(|| Places::new(AT_ONCE_MAX, DELS_MIN)))
    }

    /// Does work on a thread, in its turn; `adds` says that it is an ADD's.
    pub async fn run<T: Send + 'static>(
        &'static self,
        adds: bool,
        work: impl FnOnce() -> Result<T, CniError> + Send + 'static,
    ) -> Result<T, CniError> {
        let place = self.0.take(adds).await?;
        let done = tokio::task::spawn_blocking(move || {
            // Until the work has ended, whoever still waits for it.
            let _place = place;
            work()
        });
        done.await.unwrap_or_else(|error| Err(CniError::internal("a plugin's work stopped half-way", error)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError, mpsc};
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_hundred_adds_that_hang_leave_threads_to_dels_and_to_everything_else() {
        static THREADS: Threads = Threads::new();
        const PATIENCE: Duration = Duration::from_secs(10);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().max_blocking_threads(AT_ONCE_MAX + 1).build().unwrap();
        let (release, hang) = mpsc::channel::<()>();
        let hang = Arc::new(Mutex::new(hang));
        let hanging = |adds| {
            let hang = Arc::clone(&hang);
            // Until the other end is dropped.
            let work = move || Ok(_ = hang.lock().unwrap_or_else(PoisonError::into_inner).recv());
            tokio::task::spawn_local(THREADS.run(adds, work))
        };
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let mut all: Vec<_> = (0..100).map(|_| hanging(true)).collect();
            tokio::task::yield_now().await;
            let del = tokio::time::timeout(PATIENCE, THREADS.run(false, || Ok(()))).await;
            all.extend((0..100).map(|_| hanging(false)));
            tokio::task::yield_now().await;
            let other = tokio::time::timeout(PATIENCE, tokio::task::spawn_blocking(|| ())).await;
            drop(release);
            for one in all {
                one.await.unwrap().unwrap();
            }
            assert!(del.is_ok(), "a DEL waits behind ADDs");
            assert!(other.is_ok(), "no thread is left for others");
        });
    }
}
