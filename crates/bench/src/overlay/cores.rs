//! Which processor the threads of this process run on.

use std::fs;

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::Result;

/// The processor of one-core tests, and of receivers.
pub const ONE: usize = 1;
/// The processor of senders that are not to share the receiver's.
pub const OTHER: usize = 0;

/// Every thread of this process that is there now, those of proxies included.
pub fn pin_all(cores: &[usize]) -> Result<()> {
    let set = set(cores);
    for task in fs::read_dir("/proc/self/task")? {
        let id: i32 = task?.file_name().to_string_lossy().parse()?;
        sched_setaffinity(Pid::from_raw(id), &set)?;
    }
    Ok(())
}

/// The calling thread.
pub fn pin_this(core: usize) -> Result<()> {
    Ok(sched_setaffinity(None, &set(&[core]))?)
}

fn set(cores: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    set
}
