//! The threads of blocking work that may hang for other reasons than the kernel: processes of other
//! plugins, and the lock of `host-local`. Each kind has a pool of its own, of which a part is
//! reserved for DELs. The kernel work in `wiring` has another one.

use std::sync::LazyLock;

use russet_cni_spec::CniError;
use russet_sync::{BlockingPool, Permit, PoolError};

/// Threads that one kind of work may use at once. Two kinds together with the kernel work use a bit
/// more than half of the agent's threads.
const CONCURRENT_MAX: u32 = 16;
/// Threads of these that are reserved for DELs, so that a hundred ADDs whose plugin hangs do not
/// keep pods from being deleted.
const RESERVED_FOR_DELS: u32 = 4;

/// The pool of one kind of work.
pub const fn pool() -> LazyLock<BlockingPool> {
    LazyLock::new(|| BlockingPool::new(CONCURRENT_MAX, RESERVED_FOR_DELS))
}

/// Waits for a permit. `adds` says that it is for an ADD, which leaves the reserve to DELs.
pub async fn acquire(pool: &BlockingPool, adds: bool) -> Result<Permit, CniError> {
    let permit = if adds { pool.acquire_unreserved().await } else { pool.acquire().await };
    permit.map_err(failed)
}

/// Runs `work` on a thread as soon as there is a permit; `adds` says that it is part of an ADD.
pub async fn run<T: Send + 'static>(
    pool: &BlockingPool,
    adds: bool,
    work: impl FnOnce() -> Result<T, CniError> + Send + 'static,
) -> Result<T, CniError> {
    let permit = acquire(pool, adds).await?;
    pool.run_with(permit, work).await.unwrap_or_else(|error| Err(failed(error)))
}

fn failed(error: PoolError) -> CniError {
    let msg = match error {
        PoolError::Closed => "the process is ending",
        PoolError::Interrupted(_) => "a plugin's work was interrupted",
    };
    CniError::internal(msg, error)
}
