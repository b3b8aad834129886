//! Sockets at ports that tests choose.

use std::io::{self, ErrorKind};
use std::time::Duration;

use crate::eventually_some;

/// An executable is started in much less time.
const DEADLINE: Duration = Duration::from_secs(20);

/// What `bind` makes, a socket at a fixed port, once the port is free. Another test's thread may have forked a
/// child, which keeps a socket open that this process has closed, until it executes its program.
///
/// # Panics
///
/// With every error but that the address is in use, and if it is in use for 20 seconds.
#[track_caller]
pub fn bound<T>(bind: impl Fn() -> io::Result<T>) -> T {
    let result = eventually_some(DEADLINE, || match bind() {
        Err(error) if error.kind() == ErrorKind::AddrInUse => None,
        result => Some(result),
    });
    result.expect("bind a socket")
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::let_pass;

    #[test]
    fn a_port_is_bound_once_the_last_duplicate_of_its_socket_is_closed() {
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, duplicate) = (first.local_addr().unwrap(), first.try_clone().unwrap());
        drop(first);
        let bind = || TcpListener::bind(address);
        assert_eq!(bind().unwrap_err().kind(), ErrorKind::AddrInUse);
        let holder = std::thread::spawn(move || {
            let_pass(Duration::from_millis(100));
            drop(duplicate);
        });
        assert_eq!(bound(bind).local_addr().unwrap(), address);
        holder.join().unwrap();
    }

    #[test]
    #[should_panic(expected = "AddrNotAvailable")]
    fn an_address_of_another_host_is_not_waited_for() {
        bound(|| TcpListener::bind("192.0.2.1:0"));
    }
}
