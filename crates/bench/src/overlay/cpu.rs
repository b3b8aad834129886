//! CPU time: the cost of a stream, independent of other programs.

use std::fs;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::overlay::cores::ONE;
use crate::{BoxError, Result};

/// The clocks of all workers of a one-core test: this process with its proxies, and the CPU's soft
/// interrupts.
pub struct Clock {
    /// `/proc/PID/schedstat` of `ksoftirqd/1`.
    interrupts: String,
}

// === impl Clock ===

impl Clock {
    /// Finds them.
    pub fn find() -> Result<Self> {
        let wanted = format!("ksoftirqd/{ONE}");
        for process in fs::read_dir("/proc")? {
            let path = process?.path();
            // Processes come and go, and not everything here is one.
            if fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == wanted) {
                return Ok(Self { interrupts: path.join("schedstat").to_string_lossy().into_owned() });
            }
        }
        Err(format!("no {wanted}").into())
    }

    /// Time that has been used.
    pub fn now(&self) -> Result<Duration> {
        let own = clock_gettime(ClockId::ProcessCPUTime);
        let own = Duration::new(u64::try_from(own.tv_sec)?, u32::try_from(own.tv_nsec)?);
        let interrupts = fs::read_to_string(&self.interrupts)?;
        let interrupts = interrupts.split(' ').next().and_then(|ns| ns.parse().ok());
        let missing = || BoxError::from(format!("{}: no number", self.interrupts));
        Ok(own + Duration::from_nanos(interrupts.ok_or_else(missing)?))
    }
}
