//! Points at which a process may die: tests kill it at each of these points (cni-runtime.md section
//! A.5).

/// A point between two changes of the system's state.
#[cfg(not(test))]
pub(crate) const fn step() {}

/// Kills this process at the point whose number is in `RUSSET_DIE_AT`, counted from 1.
#[cfg(test)]
pub(crate) fn step() {
    use std::sync::atomic::{AtomicU64, Ordering};
    static PASSED: AtomicU64 = AtomicU64::new(0);
    let passed = PASSED.fetch_add(1, Ordering::SeqCst) + 1;
    let wanted = std::env::var(DIE_AT).ok().and_then(|text| text.parse().ok());
    if wanted == Some(passed) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

/// The variable.
#[cfg(test)]
pub(crate) const DIE_AT: &str = "RUSSET_DIE_AT";
