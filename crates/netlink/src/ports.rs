//! Which netlink ports are this process's own: what a notification of a change calls who asked for it. Told by every socket that is opened and
//! closed; asked by whoever listens to changes and has to tell its own from others'.
//!
//! A port is one socket's of one protocol: another process may have the same number in another, and where the agent has a PID namespace of its own, the number of
//! the agent's process is somebody else's port.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

/// Protocol (`NETLINK_*`) and number.
type Port = (i32, u32);

/// The ports of this process.
#[derive(Debug)]
struct Ports {
    /// How many open sockets have it: network namespaces count for themselves.
    open: BTreeMap<Port, u32>,
    /// The last of those that were closed: their notifications may still be unread.
    closed: VecDeque<Port>,
}

/// Closed ports that are remembered. Who opens more sockets than that before he reads a notification takes its own change for another's, and looks
/// once too often.
const CLOSED_MAX: usize = 256;

static PORTS: Mutex<Ports> = Mutex::new(Ports { open: BTreeMap::new(), closed: VecDeque::new() });

/// Whether a socket for links, routes and the like of this process has the port, or had it a moment ago. 0 is the kernel.
pub fn is_own_route_port(port: u32) -> bool {
    is_own((libc::NETLINK_ROUTE, port))
}

/// The same of sockets for nf_tables.
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
        // Far above anything that the kernel gives out to the tests beside this one.
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
    fn a_port_is_ours_in_its_own_protocol_alone_and_the_number_of_our_process_is_nobodys_by_itself() {
        let port = 0x7ffe_0000;
        opened((libc::NETLINK_NETFILTER, port));
        assert!(is_own_netfilter_port(port) && !is_own_route_port(port));
        closed((libc::NETLINK_NETFILTER, port));
        // No test of this crate beside this one opens a socket for nf_tables.
        assert!(!is_own_netfilter_port(std::process::id()));
    }
}
