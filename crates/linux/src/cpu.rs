//! What work costs of a processor. For what has a budget of that: the agent's drift thread and the keeper of verdicts call this.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// How long the calling thread has had a processor: what it waits for, the kernel's locks among that, does not count (clock_getres(2), CLOCK_THREAD_CPUTIME_ID).
pub fn busy_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_threads_own_work_counts() {
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
