//! Measures CPU time. The agent's drift thread and the keeper of verdicts use it to stay within
//! their budgets.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The CPU time of the calling thread; waiting, for example for locks of the kernel, does not count
/// (clock_getres(2), CLOCK_THREAD_CPUTIME_ID).
pub fn busy_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cpu_time_of_the_thread_counts() {
        let work = || {
            let began = busy_time();
            while busy_time() < began + Duration::from_millis(50) {}
        };
        let before = busy_time();
        std::thread::spawn(work).join().unwrap();
        assert!(busy_time() < before + Duration::from_millis(50), "another thread's work");
        work();
        assert!(busy_time() >= before + Duration::from_millis(50));
    }
}
