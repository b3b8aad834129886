//! Tracks the netlink ports of this process, which identify the requester in notifications of
//! changes. Sockets register their port when they are opened and closed; monitors ask whether a
//! change is this process's own.
//!
//! A port belongs to one protocol: another process may have the same number in another protocol,
//! and if the agent has its own PID namespace, its PID may be the port of another process.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

/// Protocol (`NETLINK_*`) and number.
type Port = (i32, u32);

/// The ports of this process.
#[derive(Debug)]
struct Ports {
    /// The number of open sockets with the port; each network namespace has its own ports.
    open: BTreeMap<Port, u32>,
    /// Recently closed ports, whose notifications may be unread.
    closed: VecDeque<Port>,
}

/// How many closed ports are remembered. A process that opens more sockets before it reads a
/// notification takes its own change for a foreign one, and makes one unnecessary comparison.
const CLOSED_MAX: usize = 256;

static PORTS: Mutex<Ports> = Mutex::new(Ports { open: BTreeMap::new(), closed: VecDeque::new() });

/// Whether a NETLINK_ROUTE socket of this process has the port, or had it recently. 0 is the
/// kernel.
pub fn is_own_route_port(port: u32) -> bool {
    is_own((libc::NETLINK_ROUTE, port))
}

/// The same for NETLINK_NETFILTER sockets.
pub fn is_own_netfilter_port(port: u32) -> bool {
    is_own((libc::NETLINK_NETFILTER, port))
}

fn is_own(port: Port) -> bool {
    with(|ports| ports.open.contains_key(&port) || ports.closed.contains(&port))
}

pub(crate) fn opened(port: Port) {
    with(|ports| *ports.open.entry(port).or_default() += 1);
}

pub(crate) fn closed(port: Port) {
    with(|ports| {
        let Some(count) = ports.open.get_mut(&port) else { return };
        *count -= 1;
        if *count == 0 {
            ports.open.remove(&port);
            ports.closed.push_back(port);
            ports.closed.drain(..ports.closed.len().saturating_sub(CLOSED_MAX));
        }
    });
}

fn with<T>(work: impl FnOnce(&mut Ports) -> T) -> T {
    work(&mut PORTS.lock().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_port_is_known_until_many_others_were_closed() {
        // Far above all ports that the kernel assigns to tests running in parallel.
        let ours = |n: u32| (libc::NETLINK_ROUTE, 0x7fff_0000 + n);
        opened(ours(0));
        opened(ours(0));
        closed(ours(0));
        closed(ours(0));
        assert!(is_own(ours(0)));
        for n in 1..=CLOSED_MAX as u32 {
            opened(ours(n));
            closed(ours(n));
        }
        assert!(!is_own(ours(0)));
        assert!(is_own(ours(CLOSED_MAX as u32)));
        assert!(!is_own_route_port(0));
    }

    #[test]
    fn a_port_is_recorded_for_its_protocol_only() {
        let port = 0x7ffe_0000;
        opened((libc::NETLINK_NETFILTER, port));
        assert!(is_own_netfilter_port(port) && !is_own_route_port(port));
        closed((libc::NETLINK_NETFILTER, port));
        // No other test of this crate opens an nf_tables socket.
        assert!(!is_own_netfilter_port(std::process::id()));
    }
}
