//! Sysctls: values below `/proc/sys`, read, and written if they differ.
//!
//! Names are paths with slashes (`net/ipv4/conf/eth0/forwarding`), because an interface's name may
//! contain dots. Names below `net/` refer to the calling thread's network namespace.

mod tree;

use std::fs::File;
use std::io::{self, Read, Write};

use rustix::fs::OFlags;

/// A sysctl that could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum SysctlError {
    /// The name would leave `/proc/sys`.
    #[error("invalid sysctl {name:?}: a path below /proc/sys is wanted, as in net/ipv4/ip_forward")]
    Name {
        /// The name as it came.
        name: String,
    },
    /// The kernel has no such sysctl: its module is not loaded, IPv6 is disabled, or the interface is gone.
    #[error("{operation} sysctl {name}: the kernel has no such sysctl")]
    Missing {
        /// `read` or `write`.
        operation: &'static str,
        /// Its name.
        name: String,
    },
    /// The kernel refused.
    #[error("{operation} sysctl {name}: {source}")]
    Io {
        /// `read`, or `write VALUE to`.
        operation: String,
        /// Its name.
        name: String,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// The kernel returns whole values of up to a page.
const VALUE_BYTES: usize = 4096;
/// The longest value that an error repeats.
const SHOWN_MAX_CHARS: usize = 40;

/// The value without the final newline.
pub fn read(name: &str) -> Result<String, SysctlError> {
    let below = checked(name)?;
    let text = tree::open(below, OFlags::RDONLY).and_then(whole);
    text.map_err(|source| SysctlError::new("read", "read".to_owned(), name, source))
}

/// Writes `value` unless the sysctl has it already; returns whether it wrote.
///
/// Reading first is not for speed: it allows a read-only `/proc/sys` with the right values, and it
/// avoids side effects of writes that change nothing (`forwarding` flushes routes, `mtu` sends
/// notifications).
pub fn write_if_different(name: &str, value: &str) -> Result<bool, SysctlError> {
    if same(&read(name)?, value) {
        return Ok(false);
    }
    write(name, value).map(|()| true)
}

/// Writes `value` without reading first: for values that are known to differ, or whose repeated
/// write has no side effect.
pub fn write(name: &str, value: &str) -> Result<(), SysctlError> {
    let below = checked(name)?;
    let shown: String = value.chars().take(SHOWN_MAX_CHARS).flat_map(char::escape_debug).collect();
    // No create, no truncate: a missing sysctl must be an error, not an attempt to create a file.
    let written = tree::open(below, OFlags::WRONLY).and_then(|mut file| file.write_all(value.as_bytes()));
    written.map_err(|source| SysctlError::new("write", format!("write {shown} to"), name, source))
}

fn whole(mut file: File) -> io::Result<String> {
    let mut buffer = [0; VALUE_BYTES];
    let count = file.read(&mut buffer)?;
    let mut bytes = buffer.get(..count).unwrap_or_default().to_vec();
    if count == VALUE_BYTES {
        file.read_to_end(&mut bytes)?;
    }
    Ok(String::from_utf8_lossy(&bytes).trim_end().to_owned())
}

// === impl SysctlError ===

impl SysctlError {
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }

    fn new(verb: &'static str, operation: String, name: &str, source: io::Error) -> Self {
        let name = name.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => Self::Missing { operation: verb, name },
            _ => Self::Io { operation, name, source },
        }
    }
}

/// Values of several numbers are read back joined by tabs, whatever separated them when they were
/// written.
fn same(a: &str, b: &str) -> bool {
    a.split_whitespace().eq(b.split_whitespace())
}

/// The path below `/proc/sys/`.
fn checked(name: &str) -> Result<&str, SysctlError> {
    let below = name.strip_prefix("/proc/sys/").unwrap_or(name);
    let sound = |part: &str| {
        !matches!(part, "" | "." | "..") && !part.chars().any(|c| c.is_control() || c.is_whitespace())
    };
    if below.split('/').all(sound) {
        Ok(below)
    } else {
        Err(SysctlError::Name { name: name.chars().take(80).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_leave_proc_sys() {
        for bad in ["", "/etc/passwd", "../version", "net/../../version", "net//ipv4", "net/", "net/a\nb"] {
            assert!(matches!(read(bad), Err(SysctlError::Name { .. })), "{bad:?}");
            assert!(matches!(write_if_different(bad, "1"), Err(SysctlError::Name { .. })), "{bad:?}");
        }
    }

    #[test]
    fn both_spellings_of_a_name_read_the_same() {
        assert_eq!(read("kernel/ostype").unwrap(), "Linux");
        assert_eq!(read("/proc/sys/kernel/ostype").unwrap(), "Linux");
    }

    #[test]
    fn a_missing_sysctl_is_distinguished_from_a_refused_one() {
        let error = read("net/ipv4/conf/no-such-link/forwarding").unwrap_err();
        assert!(error.is_missing());
        assert_eq!(
            error.to_string(),
            "read sysctl net/ipv4/conf/no-such-link/forwarding: the kernel has no such sysctl"
        );
    }

    #[test]
    fn several_numbers_are_the_same_whatever_joins_them() {
        assert!(same("4\t4\t1\t7", "4 4 1 7"));
        assert!(!same("4 4 1", "4 4 1 7"));
    }

    #[test]
    #[ignore = "kernel: unshare(CLONE_NEWNET) needs root"]
    fn net_sysctls_follow_the_thread_and_are_written_once() {
        let other = crate::NetNs::create_unnamed().unwrap();
        let name = "net/ipv4/conf/lo/proxy_arp";
        let before = read(name).unwrap();
        other
            .with(|| {
                assert!(write_if_different(name, "1").unwrap());
                assert!(!write_if_different(name, "1").unwrap());
                assert_eq!(read(name).unwrap(), "1");
            })
            .unwrap();
        assert_eq!(read(name).unwrap(), before);
    }

    #[test]
    #[ignore = "kernel: unshare(CLONE_NEWNET) needs root"]
    fn a_refused_value_is_named() {
        let other = crate::NetNs::create_unnamed().unwrap();
        let error =
            other.with(|| write_if_different("net/ipv4/ip_default_ttl", "many").unwrap_err()).unwrap();
        assert!(
            error.to_string().starts_with("write many to sysctl net/ipv4/ip_default_ttl: Invalid"),
            "{error}"
        );
    }
}
