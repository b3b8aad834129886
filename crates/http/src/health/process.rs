//! The process metrics of every Prometheus client, under the names that dashboards expect; read
//! from /proc at each scrape.

use std::fmt;
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use rustix::process::{Resource, getrlimit};

/// Clock ticks per second in /proc/PID/stat: `USER_HZ`, which is 100 on every supported
/// architecture.
const TICKS_PER_S: f64 = 100.0;
/// Index of user time in /proc/PID/stat, counted from the field behind the program's name; system
/// time follows.
const UTIME_FIELD: usize = 11;

#[derive(Debug)]
pub struct Process {
    started_s: f64,
}

// === impl Process ===

impl Process {
    /// A process that starts now.
    pub fn starting() -> Self {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started_s: started.as_secs_f64() }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // Without the descriptor of this reading itself.
        let fds = fs::read_dir("/proc/self/fd").map_or(0, |fds| fds.count().saturating_sub(1));
        let gauges = [
            (
                "process_resident_memory_bytes",
                "Resident memory of the process",
                status_bytes(&status, "VmRSS"),
            ),
            (
                "process_virtual_memory_bytes",
                "Virtual memory of the process",
                status_bytes(&status, "VmSize"),
            ),
            ("process_open_fds", "Open file descriptors of the process", Some(fds as f64)),
            (
                "process_max_fds",
                "The most file descriptors that the process may open",
                getrlimit(Resource::Nofile).current.map(|most| most as f64),
            ),
            (
                "process_start_time_seconds",
                "When the process started, in seconds since 1970",
                Some(self.started_s),
            ),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(value.unwrap_or(f64::NAN));
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)?;
        }
        let cpu = ConstCounter::new(cpu_s(&stat).unwrap_or(f64::NAN));
        let help = "CPU time of the process, user and system, in seconds";
        cpu.encode(encoder.encode_descriptor("process_cpu_seconds", help, None, cpu.metric_type())?)
    }
}

/// A line of /proc/PID/status: `VmRSS:      5632 kB`.
fn status_bytes(status: &str, key: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

/// User and system time of /proc/PID/stat. The program's name may contain spaces and parentheses.
fn cpu_s(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(UTIME_FIELD).map(|field| field.parse::<f64>().ok());
    Some((fields.next()?? + fields.next()??) / TICKS_PER_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_read_as_proc_5_describes_it() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 3183 0 0 0 150 50 0 0 20 0 1 0 25 12001280 1408 18446744073709551615";
        assert_eq!(cpu_s(stat), Some(2.0));
        let status = "Name:\trusset\nVmSize:\t   11720 kB\nVmRSS:\t    5632 kB\n";
        assert_eq!(status_bytes(status, "VmRSS"), Some(5632.0 * 1024.0));
        assert_eq!(status_bytes(status, "VmSwap"), None);
    }

    #[test]
    fn a_running_process_has_memory_and_descriptors() {
        let mut registry = prometheus_client::registry::Registry::default();
        registry.register_collector(Box::new(Process::starting()));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for name in ["process_resident_memory_bytes", "process_open_fds", "process_start_time_seconds"] {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
            assert!(value.is_some_and(|value| value > 0.0), "{name}: {text}");
        }
        assert!(text.contains("\nprocess_cpu_seconds_total "), "{text}");
    }
}
