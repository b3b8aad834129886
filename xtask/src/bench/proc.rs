//! A daemon under a benchmark, as /proc describes it.

use std::fs;
use std::time::Duration;

use crate::error::{Error, Result};

/// A line of /proc/PID/status, in MB of a million bytes.
pub fn memory(pid: u32, name: &str) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).map_err(Error::io(format!("read {path}")))?;
    let kib = status.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"));
    let kib: Option<f64> = kib.and_then(|kib| kib.trim().parse().ok());
    kib.map(|kib| kib * 1024.0 / 1e6).ok_or_else(|| Error::Found(format!("{path} has no {name}")))
}

/// Processor time of all its threads so far, by the scheduler's clock, which counts nanoseconds.
pub fn cpu(pid: u32) -> Result<Duration> {
    let tasks = format!("/proc/{pid}/task");
    let entries = fs::read_dir(&tasks).map_err(Error::io(format!("read {tasks}")))?;
    let spent = |entry: std::io::Result<fs::DirEntry>| {
        let text = fs::read_to_string(entry.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    Ok(Duration::from_nanos(entries.filter_map(spent).sum()))
}

/// Prefixes of the main table in the process's network namespace, by the kernel's own count.
pub fn prefixes(process: &str) -> Result<usize> {
    let path = format!("/proc/{process}/net/fib_triestat");
    let text = fs::read_to_string(&path).map_err(Error::io(format!("read {path}")))?;
    let found = text.lines().find_map(|line| line.trim().strip_prefix("Prefixes:")?.trim().parse().ok());
    found.ok_or_else(|| Error::Found(format!("{path} counts no prefixes")))
}
