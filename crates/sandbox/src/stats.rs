//! The counters of a sandbox's interfaces.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use russet_linux::NetNs;

use crate::SandboxId;
use crate::error::SandboxError;

/// The counters of a sandbox's interfaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    pub id: SandboxId,
    /// When these numbers were read.
    pub at: SystemTime,
    /// Its interfaces but `lo`, in the kernel's order; none with host network.
    pub interfaces: Vec<InterfaceStats>,
}

/// The counters of one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceStats {
    pub name: String,
    /// Received bytes.
    pub rx_bytes: u64,
    /// Receive errors.
    pub rx_errors: u64,
    /// Sent bytes.
    pub tx_bytes: u64,
    /// Send errors.
    pub tx_errors: u64,
}

/// It follows the thread's namespace, which `/sys/class/net` does not.
const DEVICES: &str = "/proc/thread-self/net/dev";

pub(crate) fn interfaces(netns: &Path) -> Result<Vec<InterfaceStats>, SandboxError> {
    let failed = |error: String| SandboxError::step("read the interfaces of", netns.display(), error);
    let netns = NetNs::open(netns).map_err(|error| failed(error.to_string()))?;
    let text = netns.with(|| fs::read_to_string(DEVICES)).map_err(|error| failed(error.to_string()))?;
    Ok(parse(&text.map_err(|error| failed(error.to_string()))?))
}

/// Two lines of headings, then `name:`, 8 numbers of received and 8 of sent packets.
fn parse(text: &str) -> Vec<InterfaceStats> {
    text.lines().skip(2).filter_map(interface).filter(|interface| interface.name != "lo").collect()
}

fn interface(line: &str) -> Option<InterfaceStats> {
    let (name, numbers) = line.rsplit_once(':')?;
    let numbers: Vec<u64> = numbers.split_whitespace().map_while(|number| number.parse().ok()).collect();
    let number = |at: usize| numbers.get(at).copied();
    Some(InterfaceStats {
        name: name.trim().to_owned(),
        rx_bytes: number(0)?,
        rx_errors: number(2)?,
        tx_bytes: number(8)?,
        tx_errors: number(10)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_table_is_read_without_lo() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets errs | bytes\n\
                    \x20   lo: 9 9 9 0 0 0 0 0 9 9 9 0 0 0 0 0\n\
                    \x20 eth0: 1001 11 2 0 0 0 0 0 2002 22 3 0 0 0 0 0\n";
        let eth0 = InterfaceStats {
            name: "eth0".into(),
            rx_bytes: 1001,
            rx_errors: 2,
            tx_bytes: 2002,
            tx_errors: 3,
        };
        assert_eq!(parse(text), [eth0]);
    }

    #[test]
    fn this_machines_own_table_can_be_read() {
        let text = fs::read_to_string(DEVICES).unwrap();
        assert_eq!(parse(&text).len() + 1, text.lines().count() - 2);
    }
}
