//! Facts about the running machine: boot identity and kernel version.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Duration;

/// A kernel version, as far as it can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelVersion {
    /// The 6 of 6.18.44.
    pub major: u32,
    /// The 18 of 6.18.44.
    pub minor: u32,
    /// The 44 of 6.18.44; 0 if missing.
    pub patch: u32,
}

/// The text does not begin with two numbers joined by a dot.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid kernel version {0:?}")]
pub struct KernelVersionError(String);

/// The UUID of this boot: state that was recorded under another one describes a kernel that no
/// longer runs.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim_end().to_owned())
}

/// For how long the machine has been running.
pub fn uptime() -> Duration {
    Duration::from_secs(u64::try_from(rustix::system::sysinfo().uptime).unwrap_or(0))
}

/// The running kernel's version.
pub fn kernel_version() -> Result<KernelVersion, KernelVersionError> {
    rustix::system::uname().release().to_string_lossy().parse()
}

// === impl KernelVersion ===

impl KernelVersion {
    /// A version to compare with, as in `kernel_version()? >= KernelVersion::new(5, 14)`.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor, patch: 0 }
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl FromStr for KernelVersion {
    type Err = KernelVersionError;

    fn from_str(text: &str) -> Result<Self, KernelVersionError> {
        let bad = || KernelVersionError(text.chars().take(80).collect());
        let mut numbers = text.splitn(3, '.').map(|part| {
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..digits].parse().ok()
        });
        let mut next = || numbers.next().flatten();
        Ok(Self {
            major: next().ok_or_else(bad)?,
            minor: next().ok_or_else(bad)?,
            patch: next().unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_distributions_are_read_and_ordered() {
        let read = |text: &str| text.parse::<KernelVersion>().unwrap();
        assert_eq!(read("6.18.44-fc-v657").to_string(), "6.18.44");
        assert_eq!(read("5.14.0-427.el9.x86_64"), KernelVersion::new(5, 14));
        assert_eq!(read("6.1-rc2"), KernelVersion::new(6, 1));
        assert!(read("5.9.16") < KernelVersion::new(5, 14));
        for bad in ["", "six", "6", "6.", ".1"] {
            assert!(bad.parse::<KernelVersion>().is_err(), "{bad}");
        }
    }

    #[test]
    fn this_machine_has_a_boot_and_a_version() {
        assert_eq!(boot_id().unwrap().len(), 36);
        assert!(kernel_version().unwrap() > KernelVersion::new(3, 10));
    }
}
